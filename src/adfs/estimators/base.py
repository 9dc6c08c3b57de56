"""What the classifier and the regressor share: checking parameters, splitting over nodes, warnings."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted

from adfs.errors import InputError, new_name, unknown_name
from adfs.estimators.alike import check_alike
from adfs.estimators.inference import Summary, summary_of
from adfs.estimators.pipeline import FittedModel, ModelSpec, Start, fit_model
from adfs.estimators.solver import LocalData, Solver
from adfs.network import Network
from adfs.network.inputs import is_graph_file
from adfs.problem import Loss, split
from adfs.problem.finite_sum import check_count
from adfs.problem.losses import LOSSES, check_labels, get_loss
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

_ONE_NODE = Network("path:1")
_LARGEST_LOGARITHM = 500.0  # its exponential, and that of its negative, may still be squared

# Fitted attributes that are there with inference=True alone.
_INFERRED = (
    "standard_errors_",
    "robust_standard_errors_",
    "z_values_",
    "p_values_",
    "intercept_standard_error_",
    "dispersion_",
)

#: The parameters of losses that estimators take as their own; others are given with an instance of the loss.
LOSS_PARAMETERS = ("delta", "quantile", "width", "epsilon")


def positive(value: Any, name: str) -> float:
    """Return a parameter as a number, checked to be finite and above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise InputError(f"{name} must be a number above 0, got {value!r}")
    if not (np.isfinite(value) and value > 0.0):
        raise InputError(f"{name} must be finite and above 0, got {value!r}")
    return float(value)


def check_weights(sample_weight: Any, X: Any) -> np.ndarray:
    """Return one weight per row."""
    weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    return np.asarray(weights)


def read_offset(offset: Any, n_rows: int, loss: Loss) -> np.ndarray | None:
    """Return offsets as numbers, one per row or one row of them per row."""
    if offset is None:
        return None
    values = np.asarray(offset, dtype=np.float64)
    if values.ndim not in (1, 2) or len(values) != n_rows:
        raise InputError(f"offset must have one entry per row: X has {n_rows} rows, got shape {values.shape}")
    if not np.isfinite(values).all():
        raise InputError("offset contains NaN or infinity")
    if loss.link == "log" and np.abs(values).max(initial=0.0) > _LARGEST_LOGARITHM:
        raise InputError(
            f"offset must lie between −{_LARGEST_LOGARITHM:g} and {_LARGEST_LOGARITHM:g} for the loss "
            f"{loss.name!r}, whose means it multiplies by its exponential; give the logarithm of the exposure"
        )
    return values


def check_penalty(penalty: str, l1_ratio: Any) -> None:
    """Raise unless the penalty is strongly convex."""
    if penalty not in ("l2", "elasticnet"):
        raise InputError(
            f"penalty={penalty!r} is not available: ADFS needs a strongly convex penalty at every node; "
            "use 'l2', or 'elasticnet' with l1_ratio"
        )
    if isinstance(l1_ratio, bool) or not isinstance(l1_ratio, int | float | np.integer | np.floating):
        raise InputError(f"l1_ratio must be a number of at least 0 and below 1, got {l1_ratio!r}")
    if l1_ratio == 1.0:
        raise InputError(
            "l1_ratio=1 leaves no strong convexity, which ADFS needs at every node; take 0.99 or less"
        )
    if not 0.0 <= l1_ratio < 1.0:
        raise InputError(f"l1_ratio must be at least 0 and below 1, got {l1_ratio!r}")


def count_nodes(n_nodes: Any, network: Any, seed: int) -> int:
    """Return the number of nodes: the one given, or the network's own; 1 where neither says."""
    if n_nodes is not None:
        check_count(n_nodes)
    if isinstance(network, str) and ":" not in network and not is_graph_file(network):
        return int(n_nodes or 1)
    try:
        found = network.n_nodes if isinstance(network, Network) else Network(network, seed=seed).n_nodes
    except InputError:
        if not isinstance(network, str) or is_graph_file(network):
            raise
        return int(n_nodes or 1)  # a name without sizes, or a wrong one, which is told once there is a size
    if n_nodes not in (None, found):
        raise InputError(
            f"the network {network!r} has {found} nodes but n_nodes is {n_nodes}; leave one of them out"
        )
    return int(found)


@dataclass(frozen=True)
class Prepared:
    """What a fit works on: the model's description, rows node after node and where they stood, a solver."""

    spec: ModelSpec
    data: LocalData
    order: np.ndarray
    solver: Solver


class LinearEstimator(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """The part of a linear model that does not depend on the task."""

    # Set by the classes that derive from this one.
    penalty: str
    l1_ratio: float
    loss: str | Loss
    tol: float
    max_iter: float
    n_nodes: int | str | None
    network: Any
    partition: Any
    method: str
    parameters: Any
    tau: float | str | None
    schedule: str
    cluster: Cluster | None
    random_state: Any
    warm_start: bool
    verbose: int
    intercept_scaling: float | None
    fit_intercept: bool
    coef_: Any
    intercept_: Any
    standardize: bool
    inference: bool

    _task: str

    def __new__(cls, *args: Any, **parameters: Any) -> Self:
        """Refuse names of parameters from before version 0.3 in a sentence that has the new one."""
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
            What is added to xᵀθ + b in the loss: the logarithm of an exposure, or what another model says.

        Returns
        -------
        self
        """
        self._warn(self._fit(X, y, sample_weight, offset), interrupt=True)
        return self

    @abstractmethod
    def _spec(self, loss: Loss) -> ModelSpec:
        """Return what is to be fitted, after checking the parameters that only this kind has."""

    @abstractmethod
    def _read_data(self, X: Any, y: Any, sample_weight: Any) -> tuple[Any, np.ndarray, np.ndarray]:
        """Return rows, targets and weights, checked as scikit-learn checks them."""

    @abstractmethod
    def _take(self, model: FittedModel) -> None:
        """Set the fitted attributes."""

    @single_threaded  # once for all that asks for it on the way
    def _fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        offset: Any = None,
        options: RunOptions | None = None,
        nodes: Sequence[int] | None = None,
    ) -> FittedModel:
        """Fit, and return the model behind the attributes.

        ``options`` has what the parameters of an estimator do not say; ``nodes`` which nodes of the network
        this process holds, in the order of its parts.
        """
        with self.cluster or OneProcess() as cluster:
            check_alike(cluster, self, X)
            ready = self._prepare(cluster, (X, y, sample_weight, offset), options, nodes)
            spec, data = ready.spec, ready.data
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
        """Check the parameters and ``given`` rows, targets, weights and offsets; say how they are solved."""
        X, y, sample_weight, offset = given

        def check() -> tuple[ModelSpec, Any, np.ndarray, np.ndarray, np.ndarray | None]:
            spec = self._spec(self._loss())
            rows, targets, weights = self._read_data(X, y, sample_weight)
            self._single = rows.dtype == np.float32
            if not spec.classifies:
                check_labels(spec.loss, targets, "y")
            shift = read_offset(offset, len(targets), spec.loss)
            return spec, rows.astype(np.float64, copy=False), targets, weights, shift

        spec, rows, targets, weights, shift = cluster.attempt("to check the data", check)
        shifted = cluster.gather(shift is not None, "to check the data")
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
        self._take(model)
        self._take_inference(model)
        if self._single:
            self.coef_ = self.coef_.astype(np.float32)
            if isinstance(self.intercept_, np.ndarray):
                self.intercept_ = self.intercept_.astype(np.float32)
        self.n_iter_ = int(min(max(1, np.ceil(model.passes)), np.ceil(self.max_iter)))
        self.dual_gap_, self.absolute_gap_ = model.gap, model.absolute_gap
        self.method_, self.method_reason_ = model.method, model.reason
        self._recorded = model.recorded

    @property
    def history_(self) -> pd.DataFrame:
        """What was recorded, one row per point (made when asked for: it takes longer than a small fit)."""
        import pandas as pd

        return pd.DataFrame(self._recorded)

    def _take_inference(self, model: FittedModel) -> None:
        """Set the standard errors, where they were asked for."""
        self._inference = model.inference
        for name in _INFERRED:
            self.__dict__.pop(name, None)
        if model.inference is None:
            return
        shape, width = self.coef_.shape, model.coef.shape[1]

        def of_coef(values: Iterable[np.ndarray]) -> np.ndarray:
            return np.array([line[:width] for line in values]).reshape(shape)

        found = model.inference
        self.standard_errors_ = of_coef(one.errors() for one in found)
        self.robust_standard_errors_ = of_coef(one.errors(robust=True) for one in found)
        self.z_values_ = of_coef(one.z_values() for one in found)
        self.p_values_ = of_coef(one.p_values() for one in found)
        self.dispersion_ = found[0].dispersion  # models of several classes have none to estimate
        if self.fit_intercept:
            own = np.array([one.errors()[width] for one in found])
            self.intercept_standard_error_ = own if len(shape) == 2 else float(own[0])

    def summary(self, *, robust: bool = False, confidence: float = 0.95) -> Summary:
        """Return the table of coefficients, standard errors, z and p values and confidence intervals.

        Its ``table`` is a data frame; printed, it also says what was fitted and how.

        Parameters
        ----------
        robust : bool
            Standard errors that hold where the model does not (sandwich).
        confidence : float
            Of the intervals.
        """
        check_is_fitted(self)
        if self._inference is None:
            raise InputError("there are no standard errors: fit with inference=True")
        names = [str(name) for name in getattr(self, "feature_names_in_", ())]
        names = names or [f"x{k}" for k in range(self.n_features_in_)]
        if self.fit_intercept:
            names.append("intercept")
        classes = [_plain(label) for label in getattr(self, "classes_", np.array([])).tolist()]
        several = len(self._inference) > 1
        sides = f"{classes[1]} against {classes[0]}" if len(classes) == 2 else "each against the others"
        reason = f" ({self.method_reason_})" if self.method_reason_ else ""
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
            How often such an interval holds the true value; between 0 and 1.
        robust : bool
            By standard errors that hold where the model does not.
        """
        return self.summary(robust=robust, confidence=confidence).table.iloc[:, 4:]

    def _loss(self) -> Loss:
        """Return the loss with its constants, after checking what both kinds of model take."""
        check_penalty(self.penalty, self.l1_ratio)
        for name in ("tol", "max_iter"):
            positive(getattr(self, name), name)
        if self.intercept_scaling is not None:
            positive(self.intercept_scaling, "intercept_scaling")
        other = "ADFSRegressor" if self._task == "classification" else "ADFSClassifier"
        if isinstance(self.loss, Loss):
            chosen = self.loss
        else:
            name = str(self.loss)
            if name not in LOSSES:
                known = sorted(name for name, cls in LOSSES.items() if cls.task == self._task)
                raise unknown_name(f"{self._task} loss", self.loss, known)
            constants = {
                key: float(getattr(self, key))
                for key in LOSSES[name].parameters()
                if key in LOSS_PARAMETERS and hasattr(self, key)
            }
            chosen = get_loss(name, **constants)
        if chosen.task != self._task:
            raise InputError(f"loss={self.loss!r} is for {chosen.task}: use {other}")
        return chosen

    def _seed(self, cluster: Cluster, options: RunOptions | None) -> int:
        """Return the seed; process 0's, where it was not given."""
        if options is not None:
            return options.seed
        why = "to agree on the seed"
        seed = cluster.attempt(why, lambda: int(check_random_state(self.random_state).randint(2**31 - 1)))
        return int(cluster.gather(seed, why)[0])

    def _solver(
        self,
        cluster: Cluster,
        options: RunOptions | None,
        seed: int,
        nodes: Sequence[int] | None,
    ) -> tuple[int, Solver]:
        """Return how many nodes this process has, and how problems on all of them are solved."""
        n_nodes, named = self.n_nodes, self.network
        if cluster.size == 1:
            count = count_nodes(n_nodes, named, seed)
            network = _network(named, count, seed)
        else:
            count = cluster.attempt(
                "to count the nodes", lambda: check_count(1 if n_nodes is None else n_nodes)
            )
            total = sum(cluster.gather(count, "to count the nodes"))
            network = cluster.attempt(
                "to build the network",
                lambda: _network(named, count_nodes(total, named, seed), seed),
            )
        network, placement = numbered(cluster, count, nodes, network)
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
        """Warn when the gap was not reached; a Ctrl-C is passed on."""
        if interrupt and model.outcome is Outcome.STOPPED:
            raise KeyboardInterrupt
        if model.outcome is Outcome.CONVERGED:
            return
        if model.outcome is Outcome.DIVERGED:
            advice = "standardise the features, or penalise more"
            words = f"{type(self).__name__} diverged after {model.passes:.3g} passes: {advice}"
            warnings.warn(words, ConvergenceWarning, stacklevel=3)
            return
        warnings.warn(
            f"{type(self).__name__} stopped at a relative duality gap of {model.gap:.1e} after "
            f"{model.passes:.0f} passes, above tol={self.tol:g}: standardise the features, "
            "or raise max_iter or tol",
            ConvergenceWarning,
            stacklevel=3,
        )

    def _warm_start(self, cluster: Cluster, key: tuple[Any, ...], order: np.ndarray) -> Start | None:
        """Return what the last fit ended with, when it was on data of the same shape everywhere."""
        mine = self.warm_start and getattr(self, "_warm_key", None) == key
        if not all(cluster.gather(mine, "to start from the last fit")):
            return None
        saved: Start = self._warm_saved
        return replace(saved, duals=[one[order] for one in saved.duals])

    def _save_warm(self, key: tuple[Any, ...], order: np.ndarray, model: FittedModel, balance: float) -> None:
        """Keep what the next fit may start from, the dual variables in the order of the rows given."""
        kept = [one for one in model.duals if one is not None]
        if not self.warm_start or len(kept) < len(model.duals):
            self.__dict__.pop("_warm_key", None)
            self.__dict__.pop("_warm_saved", None)
            return
        duals = []
        for one in kept:
            out = np.empty_like(one)
            out[order] = one
            duals.append(out)
        self._warm_key, self._warm_saved = key, Start(duals, model.coef, model.intercept, balance)


def _plain(label: object) -> str:
    """Return a class as people write it: whole numbers without a point."""
    return str(int(label)) if isinstance(label, float) and label.is_integer() else str(label)


def _refuse_old_names(cls: type[LinearEstimator], parameters: Iterable[str]) -> None:
    known = cls._get_param_names()
    for name in parameters:
        current = None if name in known else new_name(name, known)
        if current is not None:
            raise TypeError(f"{cls.__name__}: the parameter {name!r} is called {current!r} since version 0.3")


def _network(network: Any, n_nodes: int, seed: int) -> Network:
    """Return the network of a graph's name or of a user's own graph."""
    if n_nodes == 1:
        return _ONE_NODE
    return network if isinstance(network, Network) else Network(network, n_nodes=n_nodes, seed=seed)


def _local_data(data: LocalData, parts: list[np.ndarray]) -> LocalData:
    """Return the rows node after node; not copied when they stand so already."""
    order = np.concatenate(parts)
    node_starts = np.concatenate([[0], np.cumsum([part.size for part in parts])]).astype(np.int64)
    if np.array_equal(order, np.arange(order.size)):
        return replace(data, node_starts=node_starts)
    shift = None if data.offset is None else data.offset[order]
    return LocalData(data.X[order], data.y[order], data.weights[order], node_starts, shift)
