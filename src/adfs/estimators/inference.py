"""How certain coefficients are: standard errors from one sum over the nodes, robust ones from a second.

With H = Σ wℓ''xxᵀ + P, P the penalty's curvature, the estimate moves by H⁻¹ times the sum of the samples'
slopes. Its covariance is H⁻¹(φ Σ wℓ''xxᵀ)H⁻¹ where the model is right, φ being the dispersion, and
H⁻¹(Σ wℓ'²xxᵀ)H⁻¹ where it need not be. Weights count as repeated rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import scipy.linalg
from scipy.special import ndtr, ndtri

from adfs.errors import InputError
from adfs.estimators.solver import LocalData, Solver, append_column, row_products
from adfs.problem import Loss
from adfs.problem.evaluation import loss_curvatures, loss_derivatives
from adfs.problem.samples import labels_of, rows_of
from adfs.problem.shards import as_rows
from adfs.problem.smoothness import gram_matrices

if TYPE_CHECKING:
    import pandas as pd

#: Losses that say how the targets are distributed, so that their curvature is the information.
_LIKELIHOODS = ("logistic", "squared", "poisson", "gamma")
_DISPERSED = ("squared", "gamma")  # whose variance is the data's to tell
_WITH_ERRORS = (*_LIKELIHOODS, "huber")
_NO_INFORMATION = 1e-12  # an eigenvalue of the scaled information that passes for 0
_NOTABLE = 0.1  # share of a standard error that the penalty takes


def check_inference(loss: Loss, softmax: bool, l1_ratio: float = 0.0) -> None:
    """Raise unless there are standard errors for such a model."""
    if l1_ratio > 0.0:
        raise InputError(
            "coefficients that an l1 term puts to 0 have no standard errors: use l1_ratio=0, "
            "or inference=False"
        )
    if loss.name not in _WITH_ERRORS:
        raise InputError(
            f"the loss {loss.name!r} has no standard errors: they are for {', '.join(_WITH_ERRORS)}"
        )
    if softmax:
        raise InputError(
            "there are no standard errors for a softmax model of more than two classes: use multi_class='ovr'"
        )


@dataclass(frozen=True)
class Inference:
    """How certain one model's numbers are: those of its coefficients, then that of its intercept if any.

    Attributes
    ----------
    covariance, robust : ndarray of shape (m, m)
        Where the model is right, and where it need not be.
    dispersion : float
        φ: the variance of the targets around the model for the squared loss, relative to the squared mean for
        the Gamma loss, otherwise 1.
    notes : tuple of str
        What to know when reading the standard errors.
    """

    covariance: np.ndarray = field(repr=False)
    robust: np.ndarray = field(repr=False)
    dispersion: float
    notes: tuple[str, ...]

    def errors(self, *, robust: bool = False) -> np.ndarray:
        """Return the standard errors, shape (m,)."""
        return np.sqrt(np.diag(self.robust if robust else self.covariance))


def infer(
    data: LocalData, loss: Loss, y: np.ndarray, theta: np.ndarray, penalty: np.ndarray, solver: Solver
) -> Inference:
    """Return how certain a fitted model is; every process of the cluster calls it together.

    Parameters
    ----------
    data : LocalData
        With the samples' own weights, and the columns that ``theta`` is for.
    loss : Loss
    y : ndarray of shape (N,)
        Labels or targets as the loss takes them.
    theta : ndarray of shape (m,)
        The coefficients, and the intercept where there is one.
    penalty : ndarray of shape (m,)
        The penalty's curvature in each of them, in units of the samples' losses.
    solver : Solver
    """
    X = data.X if theta.size == data.X.shape[1] else append_column(data.X, 1.0)
    X = as_rows(X)
    margins, labels = row_products(X, theta, data.offsets), labels_of(loss, y, data.offset)
    # The Gamma loss's curvature depends on the target; its expectation is 1.
    bends = data.weights * (1.0 if loss.name == "gamma" else loss_curvatures(loss, margins, labels))
    slopes = loss_derivatives(loss, margins, labels)
    squares = data.weights * slopes**2
    information, scores = (_gram(X, values, data, solver) for values in (bends, squares))
    total, misfit = solver.totals([data.weights, squares], data.offsets)
    if loss.name in _DISPERSED and total <= theta.size:
        raise InputError(
            f"{total:g} samples leave no dispersion to estimate beside {theta.size} coefficients; "
            "there are standard errors for more samples only"
        )
    dispersion = misfit / (total - theta.size) if loss.name in _DISPERSED else 1.0
    # Columns of different sizes are brought to one, and back.
    size = np.sqrt(np.diag(information) + penalty)
    size = np.where(size > 0.0, size, 1.0)
    scaled = information / np.outer(size, size)
    inverse = scipy.linalg.pinvh(scaled + np.diag(penalty / size**2)) / np.outer(size, size)
    robust = inverse @ scores @ inverse
    covariance = dispersion * inverse @ information @ inverse if loss.name in _LIKELIHOODS else robust
    return Inference(
        covariance, robust, float(dispersion), _notes(loss, scaled, covariance, size, dispersion)
    )


def _gram(X: object, values: np.ndarray, data: LocalData, solver: Solver) -> np.ndarray:
    """Return Σ_j v_j x_j x_jᵀ over all nodes, shape (m, m)."""
    width = X.shape[1]  # type: ignore[attr-defined]
    parts = [
        gram_matrices(rows_of(X), values, data.offsets[node : node + 2], width)[0]
        for node in range(data.offsets.size - 1)
    ]
    lower = solver.add(np.array(parts).reshape(len(parts), -1)).reshape(width, width)
    return np.asarray(np.tril(lower) + np.tril(lower, -1).T)


def _notes(
    loss: Loss, scaled: np.ndarray, covariance: np.ndarray, size: np.ndarray, dispersion: float
) -> tuple[str, ...]:
    """Return sentences about what the standard errors rest on."""
    found = []
    if loss.name not in _LIKELIHOODS:
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
        if loss.name in _LIKELIHOODS and taken.max() > _NOTABLE:
            found.append(
                f"the penalty makes standard errors smaller than those of a fit without it, by up to "
                f"{100 * taken.max():.0f} %: penalise less to compare with other programs"
            )
    return tuple(found)


@dataclass(frozen=True)
class Summary:
    """The table people know: one row per coefficient.

    Attributes
    ----------
    table : DataFrame
        Columns ``coef``, ``std err``, ``z``, ``P>|z|`` and the two ends of the confidence interval.
    notes : tuple of str
    """

    table: pd.DataFrame
    notes: tuple[str, ...]

    def __str__(self) -> str:
        ends = list(self.table.columns[4:])
        formats = dict.fromkeys(("coef", "std err", *ends), "{:.6g}".format)
        text = self.table.to_string(formatters={**formats, "z": "{:.3f}".format, "P>|z|": "{:.3f}".format})
        return "\n".join([text, *(f"note: {note}" for note in self.notes)])


def summary_of(
    models: dict[str, tuple[np.ndarray, Inference]], names: list[str], robust: bool, confidence: float
) -> Summary:
    """Return the table of one model, or of several by their names.

    Parameters
    ----------
    models : dict
        Each model's numbers (m,) and how certain they are.
    names : list of str
        What the numbers are called.
    robust : bool
    confidence : float
        Between 0 and 1.
    """
    import pandas as pd

    if not 0.0 < confidence < 1.0:
        raise InputError(f"confidence must be between 0 and 1, got {confidence!r}")
    parts = {}
    tail = 0.5 * (1.0 - confidence)
    for name, (theta, found) in models.items():
        errors = found.errors(robust=robust)
        with np.errstate(divide="ignore", invalid="ignore"):
            z = theta / errors
        reach = -ndtri(tail) * errors
        columns = {
            "coef": theta,
            "std err": errors,
            "z": z,
            "P>|z|": 2.0 * ndtr(-np.abs(z)),
            f"[{tail:g}": theta - reach,
            f"{1.0 - tail:g}]": theta + reach,
        }
        parts[name] = pd.DataFrame(columns, index=pd.Index(names))
    table = parts[""] if len(parts) == 1 else pd.concat(parts, names=["class", "coefficient"])
    notes = dict.fromkeys(note for _, found in models.values() for note in found.notes)
    return Summary(table, tuple(notes))
