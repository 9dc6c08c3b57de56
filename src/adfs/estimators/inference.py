"""How certain coefficients are: standard errors from one sum over the nodes, robust ones from a second.

With H = Σ wℓ''xxᵀ + P, P the penalty's curvature, the estimate moves by H⁻¹ times the sum of the samples'
slopes. Its covariance is H⁻¹(φ Σ wℓ''xxᵀ)H⁻¹ where the model is right, φ being the dispersion, and
H⁻¹(Σ wℓ'²xxᵀ)H⁻¹ where it need not be. Where the model is right ℓ'' may be its expectation, which differs for
the Gamma and Tweedie losses only. Weights count as repeated rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.linalg
from scipy.special import ndtr, ndtri
from sklearn.utils.validation import check_is_fitted

from adfs.errors import InputError
from adfs.estimators.solver import LocalData, ModelSpec, Solver, append_column, row_products
from adfs.problem import LOSSES, Loss
from adfs.problem.evaluation import loss_curvatures, loss_derivatives
from adfs.problem.samples import gram_matrices, labels_of, rows_of
from adfs.runtimes.cluster import RefusalError

if TYPE_CHECKING:
    import pandas as pd

# Fitted attributes that exist after a fit with inference=True only.
_INFERRED = (
    "standard_errors_",
    "robust_standard_errors_",
    "z_values_",
    "p_values_",
    "intercept_standard_error_",
    "dispersion_",
)
_NO_INFORMATION = 1e-12  # an eigenvalue of the scaled information that passes for 0
_NOTABLE = 0.1  # share of a standard error that the penalty takes


def check_inference(spec: ModelSpec) -> None:
    """Raise unless there are standard errors for such a model, in every process alike."""
    if spec.l1_ratio > 0.0:
        raise RefusalError(
            "{inference} needs {l1_ratio}: coefficients that an l1 term sets to 0 have no standard errors",
            inference=True,
            l1_ratio=0,
        )
    if not spec.loss.standard_errors:
        known = ", ".join(name for name, other in LOSSES.items() if other.standard_errors)
        raise RefusalError(f"the loss {spec.loss.name!r} has no standard errors: they are for {known}")
    if spec.softmax:
        raise RefusalError(
            "softmax models (multinomial, or more than two classes) have no standard errors: "
            "with {inference} use {multi_class}",
            inference=True,
            multi_class="ovr",
        )


@dataclass(frozen=True)
class Inference:
    """How certain one model's numbers are: those of its coefficients, then that of its intercept if any.

    Attributes
    ----------
    loss : Loss
    estimate : ndarray of shape (m,)
        The numbers themselves.
    covariance, robust : ndarray of shape (m, m)
        Where the model is right, and where it need not be; nan where the estimate is not finite, or so large
        that sums over the rows are not.
    dispersion : float
        φ: the variance of the targets around the model for the squared loss, relative to the mean to the
        power p for the Gamma (p = 2) and Tweedie losses, otherwise 1.
    n_rows : int
    n_weighted : float
        The sum of their weights.
    notes : tuple of str
        What to know when reading the standard errors.
    """

    loss: Loss
    estimate: np.ndarray = field(repr=False)
    covariance: np.ndarray = field(repr=False)
    robust: np.ndarray = field(repr=False)
    dispersion: float
    n_rows: int
    n_weighted: float
    notes: tuple[str, ...]

    def errors(self, *, robust: bool = False) -> np.ndarray:
        """Return the standard errors, shape (m,)."""
        with np.errstate(invalid="ignore"):  # a variance of 0 that rounding put below it
            return np.sqrt(np.diag(self.robust if robust else self.covariance))

    def z_values(self, *, robust: bool = False) -> np.ndarray:
        """Return the numbers over their standard errors, shape (m,)."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(self.estimate / self.errors(robust=robust))

    def p_values(self, *, robust: bool = False) -> np.ndarray:
        """Return how likely numbers as far from 0 are where 0 is right, shape (m,)."""
        return np.asarray(2.0 * ndtr(-np.abs(self.z_values(robust=robust))))

    def table(self, names: list[str], robust: bool, confidence: float) -> pd.DataFrame:
        """Return one row per number, with its interval of a ``confidence`` between 0 and 1."""
        import pandas as pd

        tail, errors = 0.5 * (1.0 - confidence), self.errors(robust=robust)
        half = -ndtri(tail) * errors
        columns = {
            "coef": self.estimate,
            "std err": errors,
            "z": self.z_values(robust=robust),
            "P>|z|": self.p_values(robust=robust),
            f"[{tail:g}": self.estimate - half,
            f"{1.0 - tail:g}]": self.estimate + half,
        }
        return pd.DataFrame(columns, index=pd.Index(names))

    def header(self, *, robust: bool) -> dict[str, str]:
        """Return what stands above the table."""
        weighted = "" if self.n_weighted == self.n_rows else f", of weight {self.n_weighted:g} together"
        sandwich = robust or not self.loss.likelihood
        return {
            **({"link": self.loss.link} if self.loss.likelihood else {}),
            "rows": f"{self.n_rows}{weighted}",
            "df residuals": f"{self.n_weighted - self.estimate.size:g}",
            **({"dispersion": f"{self.dispersion:.6g}"} if self.loss.dispersed else {}),
            "std err": "robust (sandwich, HC0)" if sandwich else "not robust",
        }


def infer(data: LocalData, loss: Loss, theta: np.ndarray, penalty: np.ndarray, solver: Solver) -> Inference:
    """Return how certain a fitted model is; every process of the cluster calls it together.

    Parameters
    ----------
    data : LocalData
        With labels or targets as the loss takes them, the samples' own weights, and the columns that
        ``theta`` is for.
    loss : Loss
    theta : ndarray of shape (m,)
        The coefficients, and the intercept where there is one.
    penalty : ndarray of shape (m,)
        The penalty's curvature in each of them, in units of the samples' losses.
    solver : Solver
    """
    X = data.X if theta.size == data.X.shape[1] else append_column(data.X, 1.0)
    weights = data.weights
    with np.errstate(over="ignore", invalid="ignore"):  # a fit that diverged
        margins, labels = row_products(X, theta, data.node_starts), labels_of(loss, data.y, data.offset)
        bends = weights * loss_curvatures(loss, margins, labels)
        squares = weights * loss_derivatives(loss, margins, labels) ** 2
        observed, scores = (_gram(X, values, data, solver) for values in (bends, squares))
        # The curvature may depend on the target; the information is its expectation.
        expected = loss.expected_curvature(margins if data.offset is None else margins + data.offset)
        information = observed if expected is None else _gram(X, expected * weights, data, solver)
        misfits = squares if expected is None else squares / expected
    count, total, misfit = solver.totals([np.ones_like(weights), weights, misfits], data.node_starts)
    # The dispersion takes one degree of freedom per coefficient.
    if loss.dispersed and total <= theta.size:
        raise RefusalError(
            f"{total:g} samples leave no dispersion to estimate beside {theta.size} coefficients; "
            "there are standard errors for more samples only"
        )
    dispersion = float(misfit / (total - theta.size)) if loss.dispersed else 1.0
    if all(np.isfinite(values).all() for values in (theta, information, observed, scores)):
        # The sandwich has the observed curvatures on both sides of the squared scores.
        inverse = _inverse(information, penalty)
        bread = inverse if information is observed else _inverse(observed, penalty)
        robust = bread @ scores @ bread
        covariance = dispersion * inverse @ information @ inverse if loss.likelihood else robust
        notes = _notes(loss, information, covariance, penalty, dispersion)
    else:
        covariance = robust = np.full((theta.size, theta.size), np.nan)
        notes = ("coefficients that are not finite, or so large that sums are not, have no standard errors",)
    return Inference(loss, theta, covariance, robust, dispersion, int(count), float(total), notes)


def _sizes(information: np.ndarray, penalty: np.ndarray) -> np.ndarray:
    """Return by what to divide the numbers so that all count about the same, shape (m,)."""
    size = np.sqrt(np.diag(information) + penalty)
    return np.where(size > 0.0, size, 1.0)


def _inverse(information: np.ndarray, penalty: np.ndarray) -> np.ndarray:
    """Return (information + P)⁻¹; columns of different sizes are brought to one, and back."""
    size = _sizes(information, penalty)
    products = np.outer(size, size)
    return np.asarray(scipy.linalg.pinvh(information / products + np.diag(penalty / size**2)) / products)


def _gram(X: object, values: np.ndarray, data: LocalData, solver: Solver) -> np.ndarray:
    """Return Σ_j v_j x_j x_jᵀ over all nodes, shape (m, m)."""
    width = X.shape[1]  # type: ignore[attr-defined]
    # One matrix per node, added in the order of the nodes: the same bits on any number of processes.
    parts = [
        gram_matrices(rows_of(X), values, data.node_starts[node : node + 2], width)[0]
        for node in range(data.node_starts.size - 1)
    ]
    lower = solver.add(np.array(parts).reshape(len(parts), -1)).reshape(width, width)
    return np.asarray(np.tril(lower) + np.tril(lower, -1).T)


def _notes(
    loss: Loss, information: np.ndarray, covariance: np.ndarray, penalty: np.ndarray, dispersion: float
) -> tuple[str, ...]:
    """Return sentences about what the standard errors rest on."""
    found = []
    size = _sizes(information, penalty)
    scaled = information / np.outer(size, size)
    if not loss.likelihood:
        found.append(f"the loss {loss.name!r} is no likelihood: all standard errors are robust ones")
    roots = np.linalg.eigvalsh(scaled)
    rank = int((roots > _NO_INFORMATION * roots[-1]).sum())
    if rank < roots.size:
        found.append(
            f"the data determine {rank} of {roots.size} coefficients: the penalty alone makes the others "
            "finite, and their standard errors do not say how uncertain they are"
        )
    else:
        free = dispersion * np.diag(np.linalg.inv(scaled)) / size**2
        taken = 1.0 - np.sqrt(np.diag(covariance) / np.where(free > 0.0, free, 1.0))
        if loss.likelihood and taken.max() > _NOTABLE:
            found.append(
                f"the penalty makes standard errors smaller than those of a fit without it, by up to "
                f"{100 * taken.max():.0f} %: penalise less to compare with other programs"
            )
    return tuple(found)


@dataclass(frozen=True, repr=False)
class Summary:
    """The table people know: one row per coefficient.

    Attributes
    ----------
    header : dict
        What the table is of: the loss, its link, rows, residual degrees of freedom, an estimated dispersion,
        the kind of standard errors, the method and why it was chosen, the certified gap.
    table : DataFrame
        Columns ``coef``, ``std err``, ``z``, ``P>|z|`` and the two ends of the confidence interval.
    notes : tuple of str
    """

    header: dict[str, str]
    table: pd.DataFrame
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        width = max(map(len, self.header)) + 2
        lines = [f"{name:<{width}}{words}" for name, words in self.header.items()]
        ends = list(self.table.columns[4:])
        formats = dict.fromkeys(("coef", "std err", *ends), "{:.6g}".format)
        text = self.table.to_string(formatters={**formats, "z": "{:.3f}".format, "P>|z|": "{:.3f}".format})
        return "\n".join([*lines, "", text, *(f"note: {note}" for note in self.notes)])


class WithStandardErrors:
    """The part of an estimator that sets standard errors and prints their table."""

    coef_: Any
    fit_intercept: bool
    n_features_in_: int
    method_: str
    method_reason_: str
    dual_gap_: float
    _loss: Callable[[], Loss]
    _inference: list[Inference] | None = None

    def _take_inference(self, models: list[Inference] | None, width: int) -> None:
        """Set the standard errors of models with ``width`` coefficients each, in place of earlier ones."""
        self._inference, shape = models, self.coef_.shape
        for name in _INFERRED:
            self.__dict__.pop(name, None)
        if models is None:
            return

        def of_coef(values: Iterable[np.ndarray]) -> np.ndarray:
            return np.array([line[:width] for line in values]).reshape(shape)

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
        if not 0.0 < confidence < 1.0:
            raise InputError(f"confidence must be between 0 and 1, got {confidence!r}")
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
        tables = {name: found.table(names, robust, confidence) for name, found in models.items()}
        # What is said of all classes is said once.
        common = set.intersection(*(set(found.notes) for found in models.values()))
        notes = dict.fromkeys(
            note if note in common else f"class {name}: {note}"
            for name, found in models.items()
            for note in found.notes
        )
        import pandas as pd

        joined = pd.concat(tables, names=["class", "coefficient"]) if several else tables[""]
        return Summary(header, joined, tuple(notes))

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


def _plain(label: object) -> str:
    """Return the text of a class: whole numbers without a decimal point."""
    return str(int(label)) if isinstance(label, float) and label.is_integer() else str(label)
