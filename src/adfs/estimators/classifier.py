"""The classifier."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import ClassifierMixin
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.parallel import Parallel, delayed
from sklearn.utils.validation import check_is_fitted, validate_data

from adfs.data.model import probabilities
from adfs.errors import InputError, unknown_name
from adfs.estimators.base import LinearEstimator, from_weights, per_weight, positive
from adfs.estimators.intercept import append_column
from adfs.estimators.solving import Plan, Solution, solve
from adfs.problem import GeneralProblem, Problem, get_loss

__all__ = ["ADFSClassifier"]

_MULTI_CLASS = ("ovr", "multinomial")


def balanced(class_sums: np.ndarray) -> np.ndarray:
    """Return the factors that give every class the same total weight, from the weights' sums a class."""
    sums = np.where(class_sums > 0.0, class_sums, 1.0)
    return np.asarray(class_sums.sum() / (class_sums.size * sums))


def _is_logistic(estimator: ADFSClassifier) -> bool:
    return str(estimator.loss) == "logistic"


class ADFSClassifier(ClassifierMixin, LinearEstimator):  # type: ignore[misc]
    """Linear classifier that minimises C Σ_j w_j ℓ(x_jᵀθ; y_j) + ½‖θ‖² to a certified duality gap.

    ``C`` means what it means in scikit-learn's LogisticRegression and LinearSVC. With one node, the
    default, this is APCG on the dual, a fast solver in its own right; with more, the samples are split over
    the nodes of a graph and ADFS solves the same problem by neighbours talking to each other (simulated in
    this process), with the same answer.

    Parameters
    ----------
    loss : str
        ``"logistic"``; ``"squared_hinge"`` (without ½, as in LinearSVC); ``"smoothed_hinge"`` (see
        ``width``); ``"hinge"``, which is not smooth: it runs NS-ADFS, whose gap falls as 1/t² only.
    C : float
        Weight of the data against the penalty ½‖θ‖².
    penalty : str
        ``"l2"``; there is no other.
    fit_intercept : bool
        Learn an intercept as liblinear does: a column that holds ``intercept_scaling`` everywhere,
        penalised like the others.
    intercept_scaling : float
        The larger, the less the intercept is penalised, and the worse the condition.
    class_weight : dict, "balanced" or None
        Factors of the classes' sample weights.
    multi_class : str
        ``"ovr"``, one classifier a class against all others; or ``"multinomial"``, one softmax model
        (logistic loss only), which runs interpreted, a Python call a sample: for a few thousand samples.
    width : float
        Width of the rounded kink of the smoothed hinge.
    tol : float
        Certified relative duality gap at which to stop: (P − D)/P(0).
    max_iter : float
        Most passes over the data.
    n_nodes : int
    graph : str, networkx graph, array or Network
        How the nodes are linked; see `adfs.Network`.
    partition : str or list of index arrays
        ``"contiguous"``, ``"random"``, ``"label"``, or the rows of each node.
    random_state : int, RandomState or None
        Of the schedule and of a random partition.
    warm_start : bool
        Start from the dual variables of the last fit when the data has the same shape and classes; ``C``
        and the sample weights may have changed.
    verbose : int
        Above 0: a progress bar on standard error.
    n_jobs : int or None
        Threads for the classes of one-versus-rest.

    Attributes
    ----------
    coef_ : ndarray of shape (1, d) or (n_classes, d)
    intercept_ : ndarray of shape (1,) or (n_classes,)
    classes_ : ndarray of shape (n_classes,)
    n_iter_ : int
        Passes over the data, the most of all classes.
    dual_gap_ : float
        Certified relative duality gap, the largest of all classes.
    node_coef_ : ndarray of shape (n_nodes, d) or (n_classes, n_nodes, d)
        What each node ended with.
    node_intercept_ : ndarray of shape (n_nodes,) or (n_classes, n_nodes)
    history_ : DataFrame
        The recorded rows; with a column ``class`` when there are several runs.
    n_features_in_, feature_names_in_
        As everywhere in scikit-learn.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = ADFSClassifier(C=10.0, n_nodes=4, graph="cycle", random_state=0).fit(X, y)
    >>> model.coef_.shape, model.node_coef_.shape, model.dual_gap_ <= model.tol
    ((3, 4), (3, 4, 4), True)
    """

    def __init__(
        self,
        loss: str = "logistic",
        *,
        C: float = 1.0,
        penalty: str = "l2",
        fit_intercept: bool = True,
        intercept_scaling: float = 1.0,
        class_weight: Any = None,
        multi_class: str = "ovr",
        width: float = 0.5,
        tol: float = 1e-6,
        max_iter: float = 10_000,
        n_nodes: int = 1,
        graph: Any = "cycle",
        partition: Any = "contiguous",
        random_state: Any = None,
        warm_start: bool = False,
        verbose: int = 0,
        n_jobs: int | None = None,
    ) -> None:
        self.loss = loss
        self.C = C
        self.penalty = penalty
        self.fit_intercept = fit_intercept
        self.intercept_scaling = intercept_scaling
        self.class_weight = class_weight
        self.multi_class = multi_class
        self.width = width
        self.tol = tol
        self.max_iter = max_iter
        self.n_nodes = n_nodes
        self.graph = graph
        self.partition = partition
        self.random_state = random_state
        self.warm_start = warm_start
        self.verbose = verbose
        self.n_jobs = n_jobs

    def _fit(self, X: Any, y: Any, sample_weight: Any, base: Plan | None = None) -> list[Solution]:
        name = self._check("classification")
        scale = positive(self.C, "C")
        if self.multi_class not in _MULTI_CLASS:
            raise unknown_name("multi_class", self.multi_class, _MULTI_CLASS)
        X, y, weights = self._data(X, y, sample_weight)
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if self.classes_.size < 2:
            raise InputError(
                f"{type(self).__name__} needs samples of at least two classes, y holds one class only"
            )
        if self.class_weight == "balanced":
            weights = weights * balanced(np.bincount(codes, weights=weights))[codes]
        elif self.class_weight is not None:
            weights = weights * compute_class_weight(self.class_weight, classes=self.classes_, y=y)[codes]
        # scikit-learn's squared hinge has no ½ and ours has.
        weights = scale * (2.0 if name == "squared-hinge" else 1.0) * weights
        rows = append_column(X, float(self.intercept_scaling)) if self.fit_intercept else X
        plan = self._make_plan(base)
        parts = self._parts(codes, plan.seed)
        order = np.concatenate(parts)
        key = (rows.shape, tuple(self.classes_.tolist()), name, self.multi_class, self.fit_intercept)
        warm = self._warm_dual(key)
        if self.multi_class == "multinomial":
            if name != "logistic":
                raise InputError(f"multi_class='multinomial' is for the logistic loss, not {self.loss!r}")
            solutions = [self._solve_multinomial(rows, codes, weights, parts, plan, warm)]
            self._take_multinomial(solutions[0], X.shape[1])
        else:
            loss = get_loss(name, **({"width": float(self.width)} if name == "smoothed-hinge" else {}))
            targets = [1] if self.classes_.size == 2 else range(self.classes_.size)

            done: list[Solution] = []

            def one(number: int, target: int) -> Solution:
                problem = Problem(
                    rows,
                    np.where(codes == target, 1.0, -1.0),
                    loss,
                    1.0 / len(parts),
                    len(parts),
                    partition=parts,
                    sample_weight=weights,
                )
                start = from_weights(None if warm is None else warm[number], weights, order)
                # Threads have neither checkpoints nor a limit in seconds: those come from outside.
                solution = solve(problem, plan if len(targets) == 1 else plan.part(done), start)
                done.append(solution)
                return solution

            jobs = (delayed(one)(number, target) for number, target in enumerate(targets))
            solutions = Parallel(n_jobs=self.n_jobs, require="sharedmem")(jobs)
            self._take(solutions, X.shape[1])
        self.n_iter_ = self._passes(solutions)
        self.dual_gap_ = max(solution.gap for solution in solutions)
        self._save_warm(key, [per_weight(solution.dual, weights, order) for solution in solutions])
        return solutions

    def _solve_multinomial(
        self, rows: Any, codes: Any, weights: Any, parts: list[np.ndarray], plan: Plan, warm: Any
    ) -> Solution:
        problem = GeneralProblem.multinomial(
            rows,
            codes,
            1.0 / len(parts),
            len(parts),
            n_classes=self.classes_.size,
            partition=parts,
            sample_weight=weights,
        )
        order = np.concatenate(parts)
        return solve(problem, plan, from_weights(None if warm is None else warm[0], weights, order))

    def _split(self, theta: np.ndarray, n_features: int) -> tuple[np.ndarray, np.ndarray]:
        """Return coefficients and intercepts from parameters (…, d) or (…, d + 1)."""
        if not self.fit_intercept:
            return theta, np.zeros(theta.shape[:-1])
        return theta[..., :n_features].copy(), float(self.intercept_scaling) * theta[..., n_features]

    def _take(self, solutions: list[Solution], n_features: int) -> None:
        self.coef_, self.intercept_ = self._split(np.array([one.theta for one in solutions]), n_features)
        nodes, intercepts = self._split(np.array([one.node_theta for one in solutions]), n_features)
        single = len(solutions) == 1
        self.node_coef_ = nodes[0] if single else nodes
        self.node_intercept_ = intercepts[0] if single else intercepts
        if single:
            self.history_ = solutions[0].frame
        else:
            named = zip(self.classes_, solutions, strict=True)
            self.history_ = pd.concat(
                [one.frame.assign(**{"class": name}) for name, one in named], ignore_index=True
            )

    def _take_multinomial(self, solution: Solution, n_features: int) -> None:
        count = self.classes_.size
        theta = solution.theta.reshape(count, -1)
        nodes = solution.node_theta.reshape(solution.node_theta.shape[0], count, -1).transpose(1, 0, 2)
        if count == 2:  # as scikit-learn has it: one row, the difference of the two
            theta, nodes = theta[1:] - theta[:1], nodes[1] - nodes[0]
        self.coef_, self.intercept_ = self._split(np.ascontiguousarray(theta), n_features)
        self.node_coef_, self.node_intercept_ = self._split(np.ascontiguousarray(nodes), n_features)
        self.history_ = solution.frame

    def decision_function(self, X: Any) -> np.ndarray:
        """Return xᵀθ + b: (N,) for two classes (positive is ``classes_[1]``), else (N, n_classes)."""
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=False)
        scores = np.asarray(X @ self.coef_.T) + self.intercept_
        return np.asarray(scores.ravel() if scores.shape[1] == 1 else scores)

    def predict(self, X: Any) -> np.ndarray:
        """Return the class of each row, shape (N,)."""
        scores = self.decision_function(X)
        codes = (scores > 0.0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)
        return np.asarray(self.classes_[codes])

    @available_if(_is_logistic)  # type: ignore[untyped-decorator, unused-ignore]
    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probabilities of the classes, shape (N, n_classes); for the logistic loss only.

        One-versus-rest probabilities are scaled to sum to one.
        """
        return probabilities(self.decision_function(X), softmax=self.multi_class == "multinomial")

    @available_if(_is_logistic)  # type: ignore[untyped-decorator, unused-ignore]
    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Return the logarithms of the probabilities, shape (N, n_classes)."""
        return np.asarray(np.log(self.predict_proba(X)))
