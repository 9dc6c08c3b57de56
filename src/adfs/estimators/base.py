"""The part of a fit that the classifier and the regressor share: data, network, solver, results, warnings."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from adfs._version import __version__
from adfs.errors import InputError, new_name, unknown_name
from adfs.estimators.distributed import Engine, to_compare
from adfs.estimators.inference import WithStandardErrors
from adfs.estimators.model_file import WithModelFile
from adfs.estimators.pipeline import FittedModel, Start, fit_model
from adfs.estimators.solver import LocalData, ModelSpec, Solver, read_offset, refuse_missing_labels
from adfs.files import JsonObject
from adfs.network import GRAPHS, Network
from adfs.network.inputs import is_graph_file
from adfs.prediction import decision_values
from adfs.problem import LOSSES, Loss
from adfs.problem.losses import check_labels
from adfs.problem.shards import arrange, as_rows, check_count, check_range
from adfs.runtimes import Cluster, OneProcess, Outcome, RunOptions
from adfs.runtimes.cluster import Placement, RefusalError, numbered
from adfs.runtimes.run import wanted_on_screen
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

_NUMBERS = (int, float, np.integer, np.floating)

#: Fits on one node share their network, and what was computed of it.
_ONE_NODE = Network("path:1")


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
class LinearEstimator(WithStandardErrors, WithModelFile, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
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
    n_nodes: int | None = None
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
        if not parameters.keys() <= cls.__dataclass_fields__.keys():
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
        engine = self.cluster
        fit = partial(engine.fit, self) if isinstance(engine, Engine) else self._fit
        self._report(fit(X, y, sample_weight, offset))
        return self

    @abstractmethod
    def _weights(self, loss: Loss) -> dict[str, Any]:
        """Return the fields of `ModelSpec` that the parameters of this class determine, after a check."""

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
            cluster.interrupted = False  # of an earlier fit
            # Processes that disagree stop here, before they wait for each other.
            cluster.same(partial(to_compare, self, X))
            ready = self._prepare(cluster, (X, y, sample_weight, offset), options, nodes)
            start = self._warm_start(cluster, ready) if self.warm_start else None
            model = fit_model(ready.data, ready.spec, ready.solver, start)
            self._set_fitted(model)
            self._last: tuple[Any, Start] | None = None
            if self.warm_start and model.end is not None:
                places = np.argsort(ready.order)  # the inverse permutation
                end = replace(model.end, duals=[values[places] for values in model.end.duals])
                self._last = _shape_of(ready), end
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

        def check() -> tuple[ModelSpec, LocalData, int]:
            spec, regression = self._spec(), self._task == "regression"
            refuse_missing_labels(y)
            rows, targets = validate_data(self, X, y, **READ_OPTIONS, y_numeric=regression)
            if regression:
                targets = np.asarray(targets, dtype=np.float64)
                check_range(targets, "y")
                check_labels(spec.loss, targets, "y")
            elif targets.dtype.kind not in "biuU":  # whole numbers and text are always classes
                check_classification_targets(targets)
            weights = _check_sample_weight(sample_weight, rows, dtype=np.float64, ensure_non_negative=True)
            shift = None if offset is None else read_offset(offset, len(targets), spec.loss)
            if self.n_nodes is not None:
                check_count(self.n_nodes)
            self._single = rows.dtype == np.float32  # solved in double precision all the same
            rows = as_rows(rows)
            seed = options.seed if options else check_random_state(self.random_state).randint(2**31 - 1)
            return spec, LocalData(rows, targets, weights, np.array([0]), shift), int(seed)

        # An error in one process becomes an error in all of them.
        spec, data, seed = cluster.attempt("to check the data", check)
        count = None if self.n_nodes is None else int(self.n_nodes)
        cards = cluster.allgather([data.offset is not None, seed, count])
        shifted, seeds, counts = zip(*cards, strict=True)
        if any(shifted) and not all(shifted):
            raise RefusalError("some processes have an offset and others have none; give all of them one")
        seed = seeds[0]  # the processes may have different ones if the seed is random

        def split_rows() -> tuple[Network, np.ndarray, np.ndarray | None]:
            # The network may determine the number of nodes, if one process holds all of them.
            asked = None if counts == (None,) else sum(1 if each is None else each for each in counts)
            total = count_nodes(asked, self.network, seed)
            own = total if len(counts) == 1 else counts[cluster.rank] or 1
            rows_of_nodes = arrange(self.partition, data.y, own, seed=seed)
            if total == 1:
                return _ONE_NODE, *rows_of_nodes
            known = isinstance(self.network, Network)
            network = self.network if known else Network(self.network, n_nodes=total, seed=seed)
            return network, *rows_of_nodes

        self.network_, starts, order = cluster.attempt("to split the data", split_rows)
        rank_of_node = numbered(cluster, starts.size - 1, nodes)
        placement = Placement(rank_of_node, self.network_.edges, len(cards))
        # The parameters of the estimator override the options of the run.
        chosen = replace(
            options or RunOptions(progress=bool(self.verbose)),
            seed=seed,
            tol=float(self.tol),
            max_passes=float(self.max_iter),
            parameters=self.parameters,
            tau=self.tau,
            schedule=self.schedule,
        )
        if placement.n_ranks > 1 and wanted_on_screen(chosen.progress):
            cluster.say(str(placement))
        n_jobs = getattr(self, "n_jobs", None)
        solver = Solver(cluster, self.network_, placement, chosen, self.method, n_jobs, chosen.checkpoint)
        if order is None:  # rows that are in the order of the nodes already are not copied
            return Prepared(spec, replace(data, node_starts=starts), np.arange(starts[-1]), solver)
        return Prepared(spec, data.take(order, starts), order, solver)

    def _set_fitted(self, model: FittedModel) -> None:
        """Set all fitted attributes; single precision in gives single precision out."""
        self.coef_: Any = model.coef
        self.intercept_: Any = model.intercept
        self._take(model)
        if model.inference is not None or self._inference is not None:  # of this fit, or of an earlier one
            self._take_inference(model.inference, model.coef.shape[1])
        if self._single:
            self.coef_ = self.coef_.astype(np.float32)
            if isinstance(self.intercept_, np.ndarray):
                self.intercept_ = self.intercept_.astype(np.float32)
        self.n_iter_ = int(np.ceil(model.passes))
        self.dual_gap_, self.absolute_gap_ = model.gap, model.absolute_gap
        self.method_, self.method_reason_ = model.method, model.reason
        self._recorded = model.recorded
        # What the model's file holds of the fit: parameters may be changed before it is written.
        self._softmax, self._training = model.softmax, self._training_facts(model)

    def _training_facts(self, model: FittedModel) -> JsonObject:
        """Return the facts about a fit that the model file and ``--json`` hold."""
        weight = "C" if model.classes is not None else "alpha"
        constants: Any = self._loss()
        # Of several classes the run with the largest gap is reported.
        worst = max(model.runs, key=attrgetter("gap"))
        n_nodes, seed = model.node_coef.shape[1], self.random_state
        return {
            "outcome": str(model.outcome),
            "gap": model.gap,
            "absolute_gap": model.absolute_gap,
            "tol": float(self.tol),
            "passes": round(model.passes, 3),
            "seconds": round(model.seconds, 3),
            "n_samples": model.n_samples,
            weight: float(getattr(self, weight)),
            **constants._asdict(),  # delta of the Huber loss, and so on
            "intercept": bool(self.fit_intercept),
            **({"standardized": True} if self.standardize else {}),
            **({"l1_ratio": float(self.l1_ratio)} if self.l1_ratio else {}),
            "method": worst.method,
            "reason": model.reason,
            "n_nodes": n_nodes,
            "network": (self.network_.name or "given by its edges") if n_nodes > 1 else None,
            "seed": int(seed) if isinstance(seed, int | np.integer) else None,
            "adfs": __version__,
        }

    @property
    def history_(self) -> pd.DataFrame:
        """The recorded rows, made when they are asked for: a data frame takes longer than a small fit."""
        import pandas as pd

        return pd.DataFrame(self._recorded)

    def _margins(self, X: Any, offset: Any) -> np.ndarray:
        """Return the decision values of rows, which are checked first; an offset is added."""
        check_is_fitted(self)
        # No rows have no predictions: a filter may leave a block of a collection without any.
        options = {"accept_sparse": "csr", "dtype": READ_OPTIONS["dtype"], "ensure_min_samples": 0}
        X = validate_data(self, X, reset=False, **options)
        coef = self.coef_ if self.coef_.ndim == 2 else self.coef_[None, :]
        return decision_values(X, coef, self.intercept_, offset)

    def _spec(self) -> ModelSpec:
        """Return the description of the model, after a check of the parameters."""
        if self.penalty not in ("l2", "elasticnet"):
            raise InputError(
                "{penalty} is not available; use 'l2', or 'elasticnet' with {l1_ratio} (1 for the lasso)",
                penalty=self.penalty,
                l1_ratio=None,
            )
        ratio: Any = self.l1_ratio
        if isinstance(ratio, bool) or not (isinstance(ratio, _NUMBERS) and 0.0 <= ratio <= 1.0):
            raise InputError(f"{{l1_ratio}} must be between 0 and 1, got {ratio!r}", l1_ratio=None)
        for name in ("tol", "max_iter", "intercept_scaling"):
            if getattr(self, name) is not None:
                positive(getattr(self, name), name)
        loss = self._loss()
        return ModelSpec(
            loss=loss,
            l1_ratio=float(ratio),
            free_intercept=bool(self.fit_intercept) and self.intercept_scaling is None,
            intercept_column=self.intercept_scaling if self.fit_intercept else None,
            standardize=bool(self.standardize),
            inference=bool(self.inference),
            **self._weights(loss),
        )

    def _loss(self) -> Loss:
        """Return the loss with its parameters."""
        chosen = self.loss
        if not isinstance(chosen, Loss):
            if chosen not in LOSSES:
                known = sorted(name for name, cls in LOSSES.items() if cls.task == self._task)
                raise unknown_name(f"{self._task} loss", chosen, known)
            # Parameters of the loss that are parameters of the estimator; a loss may have others.
            taken = [name for name in self._loss_parameters if hasattr(LOSSES[chosen], name)]
            chosen = LOSSES[chosen](**{name: float(getattr(self, name)) for name in taken})
        if chosen.task != self._task:
            other = "ADFSRegressor" if self._task == "classification" else "ADFSClassifier"
            raise InputError(f"loss={self.loss!r} is for {chosen.task}: use {other}")
        return chosen

    def _report(self, model: FittedModel) -> None:
        """Warn if the gap was not reached; pass an interrupt on."""
        if model.outcome is Outcome.CONVERGED:
            return
        if model.outcome is Outcome.STOPPED:
            raise KeyboardInterrupt
        if model.outcome is Outcome.DIVERGED:  # its gap says nothing
            ended = f"diverged after {model.passes:.3g} passes: standardise the features, or penalise more"
        else:
            ended = (
                f"stopped at a relative duality gap of {model.gap:.1e} after {model.passes:.0f} passes, "
                f"above tol={self.tol:g}: standardise the features, or raise max_iter or tol"
            )
        warnings.warn(f"{type(self).__name__} {ended}", ConvergenceWarning, stacklevel=3)

    def _warm_start(self, cluster: Cluster, ready: Prepared) -> Start | None:
        """Return the end of the last fit, if every process had data of the same shape then."""
        last: tuple[Any, Start] | None = getattr(self, "_last", None)
        alike = last is not None and last[0] == _shape_of(ready)
        # All processes start from the last fit, or none of them does.
        cluster.activity = "to start from the last fit"
        if not all(cluster.allgather(alike)) or last is None:
            return None
        end = last[1]
        return replace(end, duals=[values[ready.order] for values in end.duals])


def _shape_of(ready: Prepared) -> tuple[Any, ...]:
    """Return what must be the same in two fits for the second to start from the end of the first."""
    spec, data = ready.spec, ready.data
    classes = np.unique(data.y).tolist() if spec.loss.task == "classification" else []
    intercept = spec.free_intercept, spec.intercept_column is None
    return data.X.shape, spec.loss.name, *intercept, spec.softmax, *classes


def _refuse_old_names(cls: type[LinearEstimator], parameters: Iterable[str]) -> None:
    """Raise TypeError for a parameter's name from before version 0.3."""
    known = cls._get_param_names()
    for name in parameters:
        current = None if name in known else new_name(name, known)
        if current is not None:
            raise TypeError(f"{cls.__name__}: the parameter {name!r} is called {current!r} since version 0.3")


# --------------------------------------------------------------------------- checks


def positive(value: Any, name: str) -> float:
    """Return a parameter as a number, checked to be finite and above 0; True is no number."""
    if isinstance(value, bool) or not (isinstance(value, _NUMBERS) and 0.0 < value < np.inf):
        raise InputError(f"{{{name}}} must be finite and above 0, got {value!r}", **{name: None})
    return float(value)


def count_nodes(n_nodes: Any, network: Any, seed: int) -> int:
    """Return the number of nodes: the one given, or the network's own; 1 where neither is given."""
    if isinstance(network, str) and network in GRAPHS:  # without a size
        return int(n_nodes or 1)
    try:
        found = network.n_nodes if isinstance(network, Network) else Network(network, seed=seed).n_nodes
    except InputError:
        if not isinstance(network, str) or is_graph_file(network):
            raise
        # The name has no size, or is wrong: `Network` reports that once it is given the number of nodes.
        return int(n_nodes or 1)
    if n_nodes not in (None, found):
        raise InputError(
            f"the network {network!r} has {found} nodes but n_nodes is {n_nodes}; leave one of them out"
        )
    return int(found)
