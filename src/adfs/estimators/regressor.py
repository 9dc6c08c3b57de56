"""The regressor."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils.validation import check_is_fitted, validate_data

from adfs.data.model import add_offset, deviance_score
from adfs.estimators.base import READ_OPTIONS, LinearEstimator, check_weights, positive
from adfs.estimators.pipeline import FittedModel, ModelSpec
from adfs.problem import Loss
from adfs.runtimes import Cluster


class ADFSRegressor(RegressorMixin, LinearEstimator):  # type: ignore[misc]
    """Linear regression that minimises Σ_j w_j ℓ(x_jᵀθ; y_j) + (alpha/2)‖θ‖² to a certified duality gap.

    For the squared loss ½(xᵀθ − y)² this is half of Ridge's objective, so ``alpha`` means what it means
    there; ElasticNet divides by the number of samples, so its ``alpha`` times that number is the one here;
    for the ε-insensitive loss ``alpha`` is 1/C of LinearSVR. One node is the default; see `ADFSClassifier`.

    Parameters
    ----------
    loss : str or Loss
        With r = xᵀθ − y: ``"squared"`` ½r²; ``"huber"`` ½r² up to ``delta`` and linear beyond;
        ``"smoothed_quantile"``, the pinball loss of
        ``quantile`` with its kink rounded over ``width``. Not smooth, hence some hundred passes:
        ``"absolute"`` |r|, ``"quantile"``, ``"epsilon_insensitive"`` max(0, |r| − ``epsilon``).
        With u = xᵀθ the logarithm of the mean: ``"poisson"`` eᵘ − yu for counts, ``"gamma"`` u + ye⁻ᵘ for
        amounts above 0, both less their least value (half the deviance); give the logarithm of an exposure
        as ``offset``. `PoissonRegressor` and `GammaRegressor` divide by the sum of the weights, so their
        ``alpha`` times that sum is the one here.
    alpha : float
        Above 0.
    penalty : str
        ``"l2"`` or ``"elasticnet"``; ``l1_ratio`` alone says which of them it is.
    l1_ratio : float
        Share of the ℓ1 norm in the penalty, at least 0 and below 1: l1_ratio·‖θ‖₁ + ((1 − l1_ratio)/2)‖θ‖²
        stands for ½‖θ‖², as in scikit-learn. For smooth losses.
    fit_intercept : bool
        Learn an intercept, which is not penalised.
    intercept_scaling : float, optional
        When given, the intercept is liblinear's: a column that holds this everywhere, penalised like the
        others.
    standardize, inference : bool
        As for `ADFSClassifier`; standard errors are there for the squared, Huber, Poisson and Gamma losses.
    delta, quantile, width, epsilon : float
        Constants of the losses above.
    tol, max_iter, n_nodes, network, partition, algorithm, parameters, tau, schedule, cluster
        As for `ADFSClassifier`.
    random_state, warm_start, verbose
        As for `ADFSClassifier`.

    Attributes
    ----------
    coef_ : ndarray of shape (d,)
    intercept_ : float
    n_iter_ : int
    dual_gap_, absolute_gap_ : float
    method_, method_reason_ : str
    node_coef_ : ndarray of shape (n_nodes, d)
    node_intercept_ : ndarray of shape (n_nodes,)
    network_ : Network
        What linked the nodes.
    history_ : DataFrame
    standard_errors_, robust_standard_errors_, z_values_, p_values_ : ndarray of shape (d,)
        With ``inference=True``, as for `ADFSClassifier`.
    intercept_standard_error_ : float
    dispersion_ : float
        With ``inference=True``: the estimated variance of the targets around the model for the squared loss,
        relative to the squared mean for the Gamma loss; otherwise 1.
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

    _task = "regression"

    def __init__(
        self,
        loss: str | Loss = "squared",
        *,
        alpha: float = 1.0,
        penalty: str = "l2",
        l1_ratio: float = 0.0,
        fit_intercept: bool = True,
        intercept_scaling: float | None = None,
        standardize: bool = False,
        inference: bool = False,
        delta: float = 1.0,
        quantile: float = 0.5,
        width: float = 0.5,
        epsilon: float = 0.1,
        tol: float = 1e-6,
        max_iter: float = 10_000,
        n_nodes: int | str | None = None,
        network: Any = "cycle",
        partition: Any = "contiguous",
        method: str = "auto",
        parameters: Any = None,
        tau: float | str | None = None,
        schedule: str = "iid",
        cluster: Cluster | None = None,
        random_state: Any = None,
        warm_start: bool = False,
        verbose: int = 0,
    ) -> None:
        self.loss = loss
        self.alpha = alpha
        self.penalty = penalty
        self.l1_ratio = l1_ratio
        self.fit_intercept = fit_intercept
        self.intercept_scaling = intercept_scaling
        self.standardize = standardize
        self.inference = inference
        self.delta = delta
        self.quantile = quantile
        self.width = width
        self.epsilon = epsilon
        self.tol = tol
        self.max_iter = max_iter
        self.n_nodes = n_nodes
        self.network = network
        self.partition = partition
        self.method = method
        self.parameters = parameters
        self.tau = tau
        self.schedule = schedule
        self.cluster = cluster
        self.random_state = random_state
        self.warm_start = warm_start
        self.verbose = verbose

    def _spec(self, loss: Loss) -> ModelSpec:
        return ModelSpec(
            loss=loss,
            penalty_weight=positive(self.alpha, "alpha"),
            intercept=bool(self.fit_intercept),
            intercept_scaling=self.intercept_scaling,
            standardize=bool(self.standardize),
            l1_ratio=float(self.l1_ratio),
            inference=bool(self.inference),
        )

    def _read_data(self, X: Any, y: Any, sample_weight: Any) -> tuple[Any, np.ndarray, np.ndarray]:
        X, y = validate_data(self, X, y, **READ_OPTIONS, y_numeric=True)
        return X, np.asarray(y, dtype=np.float64), check_weights(sample_weight, X)

    def _take(self, model: FittedModel) -> None:
        self.coef_, self.intercept_ = model.coef[0], float(model.intercept[0])
        self.node_coef_, self.node_intercept_ = model.node_coef[0], model.node_intercept[0]

    def predict(self, X: Any, offset: Any = None) -> np.ndarray:
        """Return xᵀθ + b, and the ``offset`` (N,) where one is given; shape (N,).

        For the losses ``"poisson"`` and ``"gamma"`` the mean, the exponential of that.
        """
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", dtype=READ_OPTIONS["dtype"], reset=False)
        scores = np.asarray(X @ self.coef_ + self.intercept_)
        scores = scores if offset is None else add_offset(scores, offset)
        return np.exp(scores) if self._loss().link == "log" else scores

    def score(self, X: Any, y: Any, sample_weight: Any = None, offset: Any = None) -> float:
        """Return R², or D² (the share of the deviance explained) for ``"poisson"`` and ``"gamma"``."""
        predicted, loss = self.predict(X, offset), self._loss()
        if loss.link == "log":
            return deviance_score(loss.name, y, predicted, check_weights(sample_weight, X))
        return float(r2_score(y, predicted, sample_weight=sample_weight))
