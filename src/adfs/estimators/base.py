"""The part of a fit that the classifier and the regressor share: data, network, solver, results, warnings."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from adfs.errors import InputError, new_name, unknown_name
from adfs.estimators.checks import check_alike, check_penalty, count_nodes, positive, read_offset
from adfs.estimators.inference import Summary, summary_of
from adfs.estimators.pipeline import FittedModel, ModelSpec, Start, fit_model
from adfs.estimators.solver import LocalData, Solver
from adfs.network import Network
from adfs.prediction import decision_values
from adfs.problem import LOSSES, Loss, get_loss, split
from adfs.problem.finite_sum import check_count
from adfs.problem.losses import check_labels
from adfs.runtimes import Cluster, OneProcess, Outcome, RunOptions
from adfs.runtimes.cluster import RefusalError
from adfs.runtimes.joint_problem import numbered
from adfs.runtimes.run import tell_placement
from adfs.threads import single_threaded

if TYPE_CHECKING:
    import pandas as pd

#: How scikit-learn is asked to check rows.
READ_OPTIONS: dict[str, Any] = {
    "accept_sparse": "csr",
    "dtype": [np.float64, np.float32],
    "order": "C",
    "accept_large_sparse": True,
}

# Fitted attributes that exist after a fit with inference=True only.
_INFERRED = (
    "standard_errors_",
    "robust_standard_errors_",
    "z_values_",
    "p_values_",
    "intercept_standard_error_",
    "dispersion_",
)


@dataclass(frozen=True)
class Prepared:
    """The input of a fit.

    Attributes
    ----------
    spec : ModelSpec
    data : LocalData
        The rows of this process, node after node.
    order : ndarray of shape (N,)
        The place of each of these rows in the X that was given.
    solver : Solver
    """

    spec: ModelSpec
    data: LocalData
    order: np.ndarray
    solver: Solver


# A dataclass writes the constructor that scikit-learn asks for: it stores each parameter under its own name.
@dataclass(eq=False, repr=False, kw_only=True)
class LinearEstimator(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """The part of a linear model that does not depend on the task; see `ADFSClassifier`."""

    loss: str | Loss = field(default="", kw_only=False)
    penalty: str = "l2"
    l1_ratio: float = 0.0
    fit_intercept: bool = True
    intercept_scaling: float | None = None
    standardize: bool = False
    inference: bool = False
    width: float = 0.5
    tol: float = 1e-6
    max_iter: float = 10_000
    n_nodes: int | str | None = None
    network: Any = "cycle"
    partition: Any = "contiguous"
    method: str = "auto"
    parameters: Any = None
    tau: float | str | None = None
    schedule: str = "iid"
    cluster: Cluster | None = None
    random_state: Any = None
    warm_start: bool = False
    verbose: int = 0

    _task: ClassVar[str]
    # The parameters above that are parameters of losses, too.
    _loss_parameters: ClassVar[tuple[str, ...]]

    def __new__(cls, *args: Any, **parameters: Any) -> Self:
        """Refuse a parameter's name from before version 0.3 in a sentence with the new name."""
        _refuse_old_names(cls, parameters)
        made: Self = super().__new__(cls)
        return made

    def set_params(self, **parameters: Any) -> Self:
        """Set parameters by name, as scikit-learn's estimators do."""
        _refuse_old_names(type(self), parameters)
        super().set_params(**parameters)
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None, offset: Any = None) -> Self:
        """Fit the model.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (N, d)
            With a ``cluster``, the rows of this process.
        y : array-like of shape (N,)
        sample_weight : array-like of shape (N,), optional
        offset : array-like of shape (N,), or (N, n_classes) for more than two classes, optional
            Added to xᵀθ + b in the loss: the logarithm of an exposure, or the margins of another model.

        Returns
        -------
        self
        """
        self._warn(self._fit(X, y, sample_weight, offset), interrupt=True)
        return self

    @abstractmethod
    def _spec(self, loss: Loss) -> ModelSpec:
        """Return the description of the model, after checking the parameters of this class."""

    @abstractmethod
    def _read_data(self, X: Any, y: Any, sample_weight: Any) -> tuple[Any, np.ndarray, np.ndarray]:
        """Return rows, targets and weights, checked as scikit-learn checks them."""

    @abstractmethod
    def _take(self, model: FittedModel) -> None:
        """Set the fitted attributes in the shapes of this class."""

    @single_threaded
    def _fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        offset: Any = None,
        options: RunOptions | None = None,
        nodes: Sequence[int] | None = None,
    ) -> FittedModel:
        """Fit, set the attributes, and return the model.

        ``options`` are options of the run that estimators have no parameters for. ``nodes`` are the nodes of
        the network that this process holds, in the order of its parts.
        """
        with self.cluster or OneProcess() as cluster:
            # Processes that disagree stop here, before they wait for each other.
            check_alike(cluster, self, X)
            ready = self._prepare(cluster, (X, y, sample_weight, offset), options, nodes)
            spec, data = ready.spec, ready.data
            # Dual variables of an earlier fit are usable for data of the same shape and classes only.
            key: tuple[Any, ...] = (data.X.shape, spec.loss.name, spec.intercept, spec.softmax)
            if self.warm_start and spec.classifies:
                key += tuple(np.unique(data.y).tolist())
            model = fit_model(data, spec, ready.solver, self._warm_start(cluster, key, ready.order))
            self._set_fitted(model)
            self._save_warm(key, ready.order, model, spec.balance)
        return model

    def _prepare(
        self,
        cluster: Cluster,
        given: tuple[Any, Any, Any, Any],
        options: RunOptions | None,
        nodes: Sequence[int] | None,
    ) -> Prepared:
        """Check the parameters and the ``given`` rows, targets, weights and offsets; split the rows."""
        X, y, sample_weight, offset = given

        def check() -> tuple[ModelSpec, Any, np.ndarray, np.ndarray, np.ndarray | None]:
            spec = self._spec(self._loss())
            rows, targets, weights = self._read_data(X, y, sample_weight)
            self._single = rows.dtype == np.float32  # solved in double precision all the same
            if not spec.classifies:
                check_labels(spec.loss, targets, "y")
            shift = read_offset(offset, len(targets), spec.loss)
            return spec, rows.astype(np.float64, copy=False), targets, weights, shift

        # An error in one process becomes an error in all of them.
        spec, rows, targets, weights, shift = cluster.attempt("to check the data", check)
        shifted = cluster.allgather(shift is not None)
        if any(shifted) and not all(shifted):
            raise RefusalError("some processes have an offset and others have none; give all of them one")
        seed = self._seed(cluster, options)
        count, solver = self._solver(cluster, options, seed, nodes)
        self.network_ = solver.network
        parts = cluster.attempt("to split the data", lambda: split(self.partition, targets, count, seed=seed))
        data = _local_data(LocalData(rows, targets, weights, np.array([0]), shift), parts)
        return Prepared(spec, data, np.concatenate(parts), solver)

    def _set_fitted(self, model: FittedModel) -> None:
        """Set all fitted attributes; single precision in gives single precision out."""
        self.coef_: Any = model.coef
        self.intercept_: Any = model.intercept
        self._take(model)
        self._take_inference(model)
        if self._single:
            self.coef_ = self.coef_.astype(np.float32)
            if isinstance(self.intercept_, np.ndarray):
                self.intercept_ = self.intercept_.astype(np.float32)
        self.n_iter_ = int(np.ceil(model.passes))
        self.dual_gap_, self.absolute_gap_ = model.gap, model.absolute_gap
        self.method_, self.method_reason_ = model.method, model.reason
        self._recorded = model.recorded

    @property
    def history_(self) -> pd.DataFrame:
        """The recorded rows, made when they are asked for: a data frame takes longer than a small fit."""
        import pandas as pd

        return pd.DataFrame(self._recorded)

    def _take_inference(self, model: FittedModel) -> None:
        """Set the standard errors, or remove those of an earlier fit."""
        self._inference = model.inference
        for name in _INFERRED:
            self.__dict__.pop(name, None)
        if model.inference is None:
            return
        shape, width = self.coef_.shape, model.coef.shape[1]

        def of_coef(values: Iterable[np.ndarray]) -> np.ndarray:
            return np.array([line[:width] for line in values]).reshape(shape)

        models = model.inference
        self.standard_errors_ = of_coef(each.errors() for each in models)
        self.robust_standard_errors_ = of_coef(each.errors(robust=True) for each in models)
        self.z_values_ = of_coef(each.z_values() for each in models)
        self.p_values_ = of_coef(each.p_values() for each in models)
        self.dispersion_ = models[0].dispersion  # models of several classes have none to estimate
        if self.fit_intercept:
            errors = np.array([each.errors()[width] for each in models])
            self.intercept_standard_error_ = errors if len(shape) == 2 else float(errors[0])

    def summary(self, *, robust: bool = False, confidence: float = 0.95) -> Summary:
        """Return the table of coefficients, standard errors, z and p values and confidence intervals.

        Its ``table`` is a data frame; printed, it also describes the model and the fit.

        Parameters
        ----------
        robust : bool
            Standard errors that are valid even if the model is wrong (sandwich).
        confidence : float
            Of the intervals.
        """
        check_is_fitted(self)
        if self._inference is None:
            raise InputError("there are no standard errors: fit with inference=True")
        # One row per column of the data, and one for the intercept.
        names = [str(name) for name in getattr(self, "feature_names_in_", ())]
        names = names or [f"x{k}" for k in range(self.n_features_in_)]
        if self.fit_intercept:
            names.append("intercept")
        classes = [_plain(label) for label in getattr(self, "classes_", np.array([])).tolist()]
        several = len(self._inference) > 1
        sides = f"{classes[1]} against {classes[0]}" if len(classes) == 2 else "each against the others"
        reason = f" ({self.method_reason_})" if self.method_reason_ else ""
        # The header describes the model before the standard errors, and the fit after them.
        header = {
            "loss": self._loss().name,
            **({"classes": sides} if classes else {}),
            **self._inference[0].header(robust=robust),
            "method": self.method_ + reason,
            "certified gap": f"{self.dual_gap_:.1e}",
        }
        models = dict(zip(classes if several else [""], self._inference, strict=True))
        return summary_of(models, names, header, robust, confidence)

    def confidence_intervals(self, confidence: float = 0.95, *, robust: bool = False) -> pd.DataFrame:
        """Return both ends of each coefficient's interval, and of the intercept's: two columns of `summary`.

        Parameters
        ----------
        confidence : float
            How often such an interval contains the true value; between 0 and 1.
        robust : bool
            From standard errors that are valid even if the model is wrong.
        """
        return self.summary(robust=robust, confidence=confidence).table.iloc[:, 4:]

    def _margins(self, X: Any, offset: Any) -> np.ndarray:
        """Return the decision values of rows, which are checked first; an offset is added."""
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", dtype=READ_OPTIONS["dtype"], reset=False)
        coef = self.coef_ if self.coef_.ndim == 2 else self.coef_[None, :]
        return decision_values(X, coef, self.intercept_, offset)

    def _loss(self) -> Loss:
        """Return the loss with its parameters, after checking the parameters that both tasks have."""
        check_penalty(self.penalty, self.l1_ratio)
        positive(self.tol, "tol")
        positive(self.max_iter, "max_iter")
        if self.intercept_scaling is not None:
            positive(self.intercept_scaling, "intercept_scaling")
        if isinstance(self.loss, Loss):
            chosen = self.loss
        else:
            if self.loss not in LOSSES:
                known = sorted(name for name, cls in LOSSES.items() if cls.task == self._task)
                raise unknown_name(f"{self._task} loss", self.loss, known)
            # Parameters of the loss that are parameters of the estimator; a loss may have others.
            taken = set(LOSSES[self.loss].parameters()) & set(self._loss_parameters)
            chosen = get_loss(self.loss, **{name: float(getattr(self, name)) for name in taken})
        if chosen.task != self._task:
            other = "ADFSRegressor" if self._task == "classification" else "ADFSClassifier"
            raise InputError(f"loss={self.loss!r} is for {chosen.task}: use {other}")
        return chosen

    def _seed(self, cluster: Cluster, options: RunOptions | None) -> int:
        """Return the seed of the run; that of process 0 if the seed is random."""
        if options is not None:
            return options.seed

        def draw() -> int:
            return int(check_random_state(self.random_state).randint(2**31 - 1))

        return cluster.bcast(cluster.attempt("to agree on the seed", draw))

    def _solver(
        self,
        cluster: Cluster,
        options: RunOptions | None,
        seed: int,
        nodes: Sequence[int] | None,
    ) -> tuple[int, Solver]:
        """Return the number of nodes of this process, and the solver of problems on all nodes."""
        why = "to build the network"
        if cluster.size == 1:  # a network with a size of its own determines the number of nodes
            count = total = count_nodes(self.n_nodes, self.network, seed)
        else:
            count = cluster.attempt(why, lambda: check_count(1 if self.n_nodes is None else self.n_nodes))
            total = sum(cluster.allgather(count))
            total = cluster.attempt(why, lambda: count_nodes(total, self.network, seed))
        network = cluster.attempt(why, lambda: _network(self.network, total, seed))
        network, placement = numbered(cluster, count, nodes, network)
        # The parameters of the estimator override the options of the run.
        base = RunOptions(progress=bool(self.verbose)) if options is None else options
        chosen = replace(
            base,
            seed=seed,
            tol=float(self.tol),
            max_passes=float(self.max_iter),
            parameters=self.parameters,
            tau=self.tau,
            schedule=self.schedule,
        )
        tell_placement(cluster, placement, chosen.progress)
        n_jobs = getattr(self, "n_jobs", None)
        return count, Solver(
            cluster, network, placement, chosen, self.method, n_jobs, part_of=chosen.checkpoint
        )

    def _warn(self, model: FittedModel, interrupt: bool) -> None:
        """Warn if the gap was not reached; pass an interrupt on."""
        if interrupt and model.outcome is Outcome.STOPPED:
            raise KeyboardInterrupt
        if model.outcome is Outcome.CONVERGED:
            return
        if model.outcome is Outcome.DIVERGED:  # its gap says nothing
            advice = "standardise the features, or penalise more"
            message = f"{type(self).__name__} diverged after {model.passes:.3g} passes: {advice}"
            warnings.warn(message, ConvergenceWarning, stacklevel=3)
            return
        warnings.warn(
            f"{type(self).__name__} stopped at a relative duality gap of {model.gap:.1e} after "
            f"{model.passes:.0f} passes, above tol={self.tol:g}: standardise the features, "
            "or raise max_iter or tol",
            ConvergenceWarning,
            stacklevel=3,
        )

    def _warm_start(self, cluster: Cluster, key: tuple[Any, ...], order: np.ndarray) -> Start | None:
        """Return the end of the last fit, if every process had data of the same shape then."""
        # All processes start from the last fit, or none of them does.
        mine = self.warm_start and getattr(self, "_warm_key", None) == key
        cluster.activity = "to start from the last fit"
        if not all(cluster.allgather(mine)):
            return None
        saved: Start = self._warm_saved
        return replace(saved, duals=[values[order] for values in saved.duals])

    def _save_warm(self, key: tuple[Any, ...], order: np.ndarray, model: FittedModel, balance: float) -> None:
        """Keep a start of the next fit, with the dual variables in the order of the given rows."""
        kept = [values for values in model.duals if values is not None]
        if not self.warm_start or len(kept) < len(model.duals):
            self.__dict__.pop("_warm_key", None)
            self.__dict__.pop("_warm_saved", None)
            return
        places = np.argsort(order)  # the inverse permutation
        duals = [values[places] for values in kept]
        self._warm_key, self._warm_saved = key, Start(duals, model.coef, model.intercept, balance)


def _plain(label: object) -> str:
    """Return the text of a class: whole numbers without a decimal point."""
    return str(int(label)) if isinstance(label, float) and label.is_integer() else str(label)


def _refuse_old_names(cls: type[LinearEstimator], parameters: Iterable[str]) -> None:
    """Raise TypeError for a parameter's name from before version 0.3."""
    known = cls._get_param_names()
    for name in parameters:
        current = None if name in known else new_name(name, known)
        if current is not None:
            raise TypeError(f"{cls.__name__}: the parameter {name!r} is called {current!r} since version 0.3")


def _network(network: Any, n_nodes: int, seed: int) -> Network:
    """Return the network with a name, or of a user's own graph."""
    if n_nodes == 1:
        return Network("path:1")
    return network if isinstance(network, Network) else Network(network, n_nodes=n_nodes, seed=seed)


def _local_data(data: LocalData, parts: list[np.ndarray]) -> LocalData:
    """Return the rows node after node; rows that are in this order already are not copied."""
    order = np.concatenate(parts)
    node_starts = np.concatenate([[0], np.cumsum([part.size for part in parts])]).astype(np.int64)
    if np.array_equal(order, np.arange(order.size)):
        return replace(data, node_starts=node_starts)
    shift = None if data.offset is None else data.offset[order]
    return LocalData(data.X[order], data.y[order], data.weights[order], node_starts, shift)
