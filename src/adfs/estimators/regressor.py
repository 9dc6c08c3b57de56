"""The regressor."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from adfs.estimators.base import LinearEstimator, from_weights, per_weight, positive
from adfs.estimators.intercept import Affine, append_column, fit_affine_squares
from adfs.estimators.solving import Plan, Solution, solve
from adfs.problem import Problem, get_loss

__all__ = ["ADFSRegressor"]

# The constants each loss takes, by the name of the estimator's parameter.
_CONSTANTS = {
    "huber": ("delta",),
    "quantile": ("quantile",),
    "smoothed-quantile": ("quantile", "width"),
    "epsilon-insensitive": ("epsilon",),
}


class ADFSRegressor(RegressorMixin, LinearEstimator):  # type: ignore[misc]
    """Linear regression that minimises Σ_j w_j ℓ(x_jᵀθ; y_j) + (alpha/2)‖θ‖² to a certified duality gap.

    For the squared loss ½(xᵀθ − y)² this is half of Ridge's objective, so ``alpha`` means what it means
    there; for the ε-insensitive loss ``alpha`` is 1/C of LinearSVR. One node is the default; see
    `ADFSClassifier`.

    Parameters
    ----------
    loss : str
        With r = xᵀθ − y: ``"squared"`` ½r²; ``"huber"`` ½r² up to ``delta`` and linear beyond;
        ``"smoothed_quantile"``, the pinball loss of
        ``quantile`` with its kink rounded over ``width``. Not smooth, hence by NS-ADFS, whose gap falls as
        1/t² only: ``"absolute"`` |r|, ``"quantile"``, ``"epsilon_insensitive"`` max(0, |r| − ``epsilon``).
    alpha : float
        Above 0.
    penalty : str
        ``"l2"``; there is no other.
    fit_intercept : bool
        For the squared loss exact and not penalised, by centring (sparse rows stay sparse). For others a
        column that holds ``intercept_scaling`` everywhere, penalised like the others, as liblinear does:
        centre y first, or scale up.
    intercept_scaling : float
    delta, quantile, width, epsilon : float
        Constants of the losses above.
    tol, max_iter, n_nodes, graph, partition, random_state, warm_start, verbose
        As for `ADFSClassifier`.

    Attributes
    ----------
    coef_ : ndarray of shape (d,)
    intercept_ : float
    n_iter_ : int
    dual_gap_ : float
    node_coef_ : ndarray of shape (n_nodes, d)
    node_intercept_ : ndarray of shape (n_nodes,)
    history_ : DataFrame
    n_features_in_, feature_names_in_
        As everywhere in scikit-learn.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = ADFSRegressor(alpha=0.1, n_nodes=4, random_state=0).fit(X, y)
    >>> model.coef_.shape, round(model.score(X, y), 2)
    ((10,), 0.51)
    """

    def __init__(
        self,
        loss: str = "squared",
        *,
        alpha: float = 1.0,
        penalty: str = "l2",
        fit_intercept: bool = True,
        intercept_scaling: float = 1.0,
        delta: float = 1.0,
        quantile: float = 0.5,
        width: float = 0.5,
        epsilon: float = 0.1,
        tol: float = 1e-6,
        max_iter: float = 10_000,
        n_nodes: int = 1,
        graph: Any = "cycle",
        partition: Any = "contiguous",
        random_state: Any = None,
        warm_start: bool = False,
        verbose: int = 0,
    ) -> None:
        self.loss = loss
        self.alpha = alpha
        self.penalty = penalty
        self.fit_intercept = fit_intercept
        self.intercept_scaling = intercept_scaling
        self.delta = delta
        self.quantile = quantile
        self.width = width
        self.epsilon = epsilon
        self.tol = tol
        self.max_iter = max_iter
        self.n_nodes = n_nodes
        self.graph = graph
        self.partition = partition
        self.random_state = random_state
        self.warm_start = warm_start
        self.verbose = verbose

    def _fit(self, X: Any, y: Any, sample_weight: Any, base: Plan | None = None) -> list[Solution]:
        name = self._check("regression")
        alpha = positive(self.alpha, "alpha")
        X, y, weights = self._data(X, y, sample_weight, y_numeric=True)
        y = np.asarray(y, dtype=np.float64)
        loss = get_loss(name, **{key: float(getattr(self, key)) for key in _CONSTANTS.get(name, ())})
        plan = self._make_plan(base)
        parts = self._parts(y, plan.seed)
        order = np.concatenate(parts)
        key = (X.shape, name, self.fit_intercept)
        warm = self._warm_dual(key)
        start = from_weights(None if warm is None else warm[0], weights, order)

        def make(rows: Any, targets: np.ndarray) -> Problem:
            n = len(parts)
            return Problem(rows, targets, loss, alpha / n, n, partition=parts, sample_weight=weights)

        if not self.fit_intercept:
            solution = solve(make(X, y), plan, start)
            found = Affine(solution, 0.0, np.zeros(len(parts)))
        elif name == "squared":
            found = fit_affine_squares(X, y, weights, alpha, make, plan, start)
        else:
            scale = float(self.intercept_scaling)
            solution = solve(make(append_column(X, scale), y), plan, start)
            found = Affine(solution, scale * float(solution.theta[-1]), scale * solution.node_theta[:, -1])
        solution, d = found.solution, X.shape[1]
        self.coef_ = solution.theta[:d].copy()
        self.intercept_ = found.intercept
        self.node_coef_ = solution.node_theta[:, :d].copy()
        self.node_intercept_ = found.node_intercept
        self.n_iter_ = self._passes([solution])
        self.dual_gap_ = solution.gap
        self.history_ = solution.frame
        self._save_warm(key, [per_weight(solution.dual, weights, order)])
        return [solution]

    def predict(self, X: Any) -> np.ndarray:
        """Return xᵀθ + b, shape (N,)."""
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=False)
        return np.asarray(X @ self.coef_ + self.intercept_)
