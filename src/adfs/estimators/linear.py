"""The classifier and the regressor."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils import check_consistent_length
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import _check_sample_weight, check_is_fitted

from adfs.errors import InputError
from adfs.estimators.base import LinearEstimator, positive
from adfs.estimators.distributed import lazy_on_engines
from adfs.estimators.pipeline import FittedModel
from adfs.prediction import explained_share, predicted_classes, probabilities
from adfs.problem import LOSSES, Loss, Multinomial
from adfs.problem.losses import check_labels
from adfs.problem.samples import sparse

# Whether there is one softmax model; None leaves it to the number of classes, which all processes know.
_SOFTMAX = {"auto": None, "ovr": False, Multinomial.name: True}


def _has_probabilities(estimator: ADFSClassifier) -> bool:
    """Return whether the margins of the loss determine probabilities."""
    loss = estimator.loss if isinstance(estimator.loss, Loss) else LOSSES.get(estimator.loss)
    return loss is not None and loss.link == "logit"


@dataclass(eq=False, repr=False, kw_only=True)
class ADFSClassifier(ClassifierMixin, LinearEstimator):  # type: ignore[misc]
    """Linear classifier that minimises C Σ_j w_j ℓ(x_jᵀθ; y_j) + ½‖θ‖² to a certified duality gap.

    ``C`` means what it means in scikit-learn's LogisticRegression and LinearSVC. With one node, the
    default, this is Newton's method or APCG on the dual, whichever is predicted to be less work; with more,
    the samples are split over the nodes of a graph, which solve the same problem by sums over all of them or
    by neighbours talking to each other (ADFS), simulated in this process, with the same answer.

    See :doc:`/glossary` for words such as node, pass and gap.

    Parameters
    ----------
    loss : str or Loss
        ``"logistic"``; ``"squared_hinge"`` (without ½, as in LinearSVC); ``"smoothed_hinge"`` (see
        ``width``); ``"hinge"``, which is not smooth and takes some hundred passes;
        a registered name, or an instance with its constants.
    C : float
        Weight of the data against the penalty ½‖θ‖².
    penalty : str
        ``"l2"`` or ``"elasticnet"``; ``l1_ratio`` alone says which of them it is.
    l1_ratio : float
        Share of the ℓ1 norm in the penalty, from 0 to 1 (the lasso): l1_ratio·‖θ‖₁ + ((1 − l1_ratio)/2)‖θ‖²
        stands for ½‖θ‖², as in scikit-learn. For smooth losses.
    fit_intercept : bool
        Learn an intercept, which is not penalised.
    intercept_scaling : float, optional
        When given, the intercept is liblinear's: a column that holds this everywhere, penalised like the
        others.
    standardize : bool
        Scale the columns to a standard deviation of 1 before the fit, by sums over the nodes; coefficients
        are those of the columns as they were. Sparse rows stay sparse, constant columns as they are.
    inference : bool
        Compute standard errors too; see `summary`. For the logistic loss with two classes or one-versus-rest.
    class_weight : dict, "balanced" or None
        Factors of the classes' sample weights.
    multi_class : str
        ``"ovr"``, one classifier per class against all others; ``"multinomial"``, one softmax model
        (logistic loss only); ``"auto"``, a softmax model for the logistic loss with more than two classes
        and otherwise one-versus-rest.
    width : float
        Width of the rounded kink of the smoothed hinge.
    tol : float
        Certified relative duality gap at which to stop: (P − D)/P₀, P₀ being P of the best model that has an
        intercept and no coefficients, P(0) without an intercept.
    max_iter : float
        Most passes over the data.
    n_nodes : int, optional
        Nodes that the rows are split over: as many as the graph's name says, otherwise 1. With a ``cluster``
        this counts the nodes of this process.
    network : str, networkx graph, array or Network
        How the nodes are linked; see `adfs.Network`, and `adfs.plan` for a recommendation.
    partition : str or list of index arrays
        ``"contiguous"``, ``"random"``, ``"label"``, or the rows of each node.
    method : str
        ``"auto"``, or any method's name. Auto is what the planner predicts to be the least work of
        ``"adfs"``, ``"adfs-block"``, ``"newton"`` (few features, or badly scaled ones), ``"lbfgs"`` (few
        samples per node and many features) and ``"qning"`` (one node); ``"adfs"`` where ``parameters``,
        ``tau`` or ``schedule`` are given. Losses that are not smooth have ``"interior-point"`` (few features)
        or ``"ns-adfs"``.
    parameters, tau, schedule
        As in `adfs.simulate`.
    cluster : Cluster, optional
        Processes that fit together, each with its own rows: ``adfs.MpiRanks(comm)``. Every one of them ends
        with the same fitted estimator.
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
    absolute_gap_ : float
        P − D itself, the largest of all classes.
    method_, method_reason_ : str
        The method that ran, and why it was chosen where that was left open.
    node_coef_ : ndarray of shape (n_nodes, d) or (n_classes, n_nodes, d)
        What each node ended with.
    node_intercept_ : ndarray of shape (n_nodes,) or (n_classes, n_nodes)
    network_ : Network
        What linked the nodes.
    history_ : DataFrame
        The recorded rows; with a column ``class`` when there are several runs.
    standard_errors_, robust_standard_errors_ : ndarray, shaped as ``coef_``
        With ``inference=True``, as all that follow; robust ones hold where the model does not.
    z_values_, p_values_ : ndarray, shaped as ``coef_``
        By the standard errors that are not robust; `summary` has both kinds, and the intercept's.
    intercept_standard_error_ : ndarray, shaped as ``intercept_``
    dispersion_ : float
        1: the logistic loss has none to estimate.
    n_features_in_, feature_names_in_
        As everywhere in scikit-learn.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = ADFSClassifier(C=10.0, n_nodes=4, network="cycle", random_state=0).fit(X, y)
    >>> model.coef_.shape, model.node_coef_.shape, model.dual_gap_ <= model.tol
    ((3, 4), (3, 4, 4), True)
    """

    loss: str | Loss = field(default="logistic", kw_only=False)
    C: float = 1.0
    class_weight: Any = None
    multi_class: str = "auto"
    n_jobs: int | None = None

    _task = "classification"
    _loss_parameters = ("width",)

    def _weights(self, loss: Loss) -> dict[str, Any]:
        if self.multi_class not in _SOFTMAX:
            raise InputError(
                f"{{multi_class}} must be auto, ovr or multinomial, got {self.multi_class!r}",
                multi_class=None,
            )
        softmax = _SOFTMAX[self.multi_class]
        if softmax and loss.multiclass(2) is None:
            raise InputError(
                f"{{multi_class}} is for the logistic loss, not {self.loss!r}", multi_class=self.multi_class
            )
        data_weight = positive(self.C, "C") * loss.sklearn_factor
        return {"data_weight": data_weight, "class_weight": self.class_weight, "softmax": softmax}

    def _take(self, model: FittedModel) -> None:
        assert model.classes is not None
        self.classes_ = model.classes
        # Two classes have one model, and its arrays have no axis for classes.
        single = len(model.coef) == 1
        self.node_coef_ = model.node_coef[0] if single else model.node_coef
        self.node_intercept_ = model.node_intercept[0] if single else model.node_intercept

    @lazy_on_engines
    def decision_function(self, X: Any, offset: Any = None) -> np.ndarray:
        """Return xᵀθ + b: (N,) for two classes (positive is ``classes_[1]``), else (N, n_classes).

        An ``offset`` of the same shape is added.
        """
        return self._margins(X, offset)

    def sparsify(self) -> Self:
        """Store ``coef_`` sparse, as scikit-learn's linear classifiers do; predictions stay the same."""
        check_is_fitted(self)
        self.coef_ = sp.csr_matrix(self.coef_)
        return self

    def densify(self) -> Self:
        """Store ``coef_`` as an array again."""
        check_is_fitted(self)
        if sparse(self.coef_):
            self.coef_ = self.coef_.toarray()
        return self

    @lazy_on_engines
    def predict(self, X: Any, offset: Any = None) -> np.ndarray:
        """Return the class of each row, shape (N,)."""
        return predicted_classes(self.decision_function(X, offset), self.classes_)

    @available_if(_has_probabilities)  # type: ignore[untyped-decorator, unused-ignore]
    @lazy_on_engines
    def predict_proba(self, X: Any, offset: Any = None) -> np.ndarray:
        """Return the probabilities of the classes, shape (N, n_classes); for the logistic loss only.

        One-versus-rest probabilities are scaled to sum to one.
        """
        return probabilities(self.decision_function(X, offset), softmax=self.multi_class != "ovr")

    @available_if(_has_probabilities)  # type: ignore[untyped-decorator, unused-ignore]
    def predict_log_proba(self, X: Any, offset: Any = None) -> np.ndarray:
        """Return the logarithms of the probabilities, shape (N, n_classes)."""
        return np.log(self.predict_proba(X, offset))  # type: ignore[no-any-return]

    @lazy_on_engines
    def score(self, X: Any, y: Any, sample_weight: Any = None, offset: Any = None) -> float:
        """Return the weighted share of right classes."""
        from sklearn.metrics import accuracy_score

        return float(accuracy_score(y, self.predict(X, offset), sample_weight=sample_weight))


@dataclass(eq=False, repr=False, kw_only=True)
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
        amounts above 0, ``"tweedie"`` for amounts many of which are 0, all less their least value (half the
        deviance); give the logarithm of an exposure as ``offset``. `PoissonRegressor`, `GammaRegressor` and
        `TweedieRegressor` divide by the sum of the weights, so their ``alpha`` times that sum is the one
        here.
    alpha : float
        Above 0.
    penalty : str
        ``"l2"`` or ``"elasticnet"``; ``l1_ratio`` alone says which of them it is.
    l1_ratio : float
        Share of the ℓ1 norm in the penalty, from 0 to 1 (the lasso): l1_ratio·‖θ‖₁ + ((1 − l1_ratio)/2)‖θ‖²
        stands for ½‖θ‖², as in scikit-learn. For smooth losses.
    fit_intercept : bool
        Learn an intercept, which is not penalised.
    intercept_scaling : float, optional
        When given, the intercept is liblinear's: a column that holds this everywhere, penalised like the
        others.
    standardize, inference : bool
        As for `ADFSClassifier`; standard errors are there for the squared and Huber losses and those
        with a log link.
    delta, quantile, width, epsilon : float
        Constants of the losses above.
    power : float
        Of the Tweedie loss, strictly between 1 and 2: the variance is proportional to the mean to this power.
    tol, max_iter, n_nodes, network, partition, method, parameters, tau, schedule, cluster
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
        relative to the squared mean for the Gamma loss and to the mean to its power for the Tweedie loss;
        otherwise 1.
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

    loss: str | Loss = field(default="squared", kw_only=False)
    alpha: float = 1.0
    delta: float = 1.0
    quantile: float = 0.5
    epsilon: float = 0.1
    power: float = 1.5

    _task = "regression"
    _loss_parameters = ("delta", "quantile", "width", "epsilon", "power")

    def _weights(self, loss: Loss) -> dict[str, Any]:
        return {"penalty_weight": positive(self.alpha, "alpha")}

    def _take(self, model: FittedModel) -> None:
        self.coef_, self.intercept_ = model.coef[0], float(model.intercept[0])
        self.node_coef_, self.node_intercept_ = model.node_coef[0], model.node_intercept[0]

    @lazy_on_engines
    def predict(self, X: Any, offset: Any = None) -> np.ndarray:
        """Return xᵀθ + b, and the ``offset`` (N,) where one is given; shape (N,).

        For losses with a log link the mean, the exponential of that.
        """
        return self._loss().mean(self._margins(X, offset))

    @lazy_on_engines
    def score(self, X: Any, y: Any, sample_weight: Any = None, offset: Any = None) -> float:
        """Return R², or D² (the share of the deviance explained) for losses with a log link."""
        predicted, loss = self.predict(X, offset), self._loss()
        targets = np.asarray(y, dtype=np.float64).ravel()
        # D² is undefined for targets outside the domain of the loss.
        check_consistent_length(predicted, targets)
        check_labels(loss, targets, "y")
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        return explained_share(loss.unit_deviances, targets, predicted, weights)
