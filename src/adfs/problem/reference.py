"""The reference optimum of a problem: the methods of the package, run to the last digits."""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from adfs.errors import InputError
from adfs.threads import single_threaded

if TYPE_CHECKING:
    from adfs.algorithms.base import Method
    from adfs.problem.finite_sum import FiniteSum

_MOST_STEPS = 10**9  # steps on single samples by a method that takes many passes to the reference optimum


class Optimum(NamedTuple):
    """A minimiser and its certificate.

    Attributes
    ----------
    theta : ndarray of shape (d,)
        The minimiser.
    value : float
        F(theta).
    gap : float
        (F(theta) − D(dual))/F(0), at least (F(theta) − F*)/F(0); not divided where F(0) = 0.
    dual : ndarray of shape (N, *dual_shape)
        The dual variables that certify it.
    method : str
        The name of the method that found it; empty where no sample depends on θ.
    """

    theta: np.ndarray
    value: float
    gap: float
    dual: np.ndarray
    method: str


@single_threaded
def find_optimum(problem: FiniteSum, tol: float) -> Optimum:
    """Minimise to a relative duality gap of ``tol``, or as far as rounding permits; warn if that is more.

    Every method says where it comes in the order of trials (`Method.reference_order`). The methods that can
    solve the problem run one after another until one of them reaches ``tol``.
    """
    # At run time, not with the module: methods and runs are layers above problems.
    from adfs.algorithms.base import METHODS

    best = _certified(problem, np.zeros((problem.n_samples, *problem.dual_shape)), "")
    if not problem.active.any():
        return best
    # Methods see one node, and at most as many features as samples.
    solved, basis = problem.merged().with_fewer_features()
    refusals = []
    for method in sorted(METHODS.values(), key=lambda method: method.reference_order):
        if method.reference_order == np.inf or (best.method and best.gap <= tol):
            break
        # What a method can solve is its own knowledge.
        try:
            method.check(solved)
        except InputError as refusal:
            refusals.append(refusal)
            continue
        best = _run_to_the_end(problem, solved, basis, method, tol, best)
    # No method can solve this problem: report why the first one cannot.
    if not best.method:
        raise refusals[0]
    if not best.gap <= tol:
        warnings.warn(
            f"the reference optimum reached a relative duality gap of {best.gap:.1e}, not {tol:.1e}; "
            "rescale the features or take a larger sigma",
            RuntimeWarning,
            stacklevel=3,
        )
    return best


def _run_to_the_end(
    problem: FiniteSum,
    solved: FiniteSum,
    basis: np.ndarray | None,
    method: Method,
    tol: float,
    best: Optimum,
) -> Optimum:
    """Return the better of an earlier optimum and of the one that a method finds on ``solved``."""
    import_module("adfs.stages")  # the rules of runs in stages
    from adfs.runtimes.options import RunOptions
    from adfs.runtimes.run import run_method

    # A method that knows F and its gradient goes on until rounding stops it: near the optimum its θ gains
    # digits that the gap, which is of second order in θ, no longer shows.
    ends_by_rounding = method.checks_every_round
    options = RunOptions(
        tol=sys.float_info.min if ends_by_rounding else tol,
        max_passes=None if ends_by_rounding else max(1000.0, _MOST_STEPS / problem.n_samples),
        start=best.dual if best.method else None,
        progress=False,
    )
    run = run_method(method, solved, None, options)
    if not ends_by_rounding and run.converged:
        # The others get those digits from as many passes again.
        passes = max(1.0, float(run.columns["passes"][-1]))
        run = run_method(method, solved, None, RunOptions(max_passes=passes, start=run.dual, progress=False))
    # An interrupted run is no optimum, and must not be kept as one.
    if run.outcome == "stopped":
        raise KeyboardInterrupt
    assert run.dual is not None
    last, point = run.theta[0], run.coef
    if basis is not None:
        last, point = basis @ last, basis @ point
    found = [_certified(problem, run.dual, method.name, point)]
    if problem.linear:
        # The last iterate, at the dual variables that belong to it.
        found.append(_certified(problem, problem.slopes(last), method.name, last))
    # Below the tolerance the last iterate is the better one, although its gap may have more rounding.
    chosen = min(found, key=lambda one: one.gap)
    if ends_by_rounding and found[-1].gap <= tol:
        chosen = found[-1]
    return chosen if chosen.gap < best.gap or not best.method else best


def _certified(
    problem: FiniteSum, duals: np.ndarray, method: str, theta: np.ndarray | None = None
) -> Optimum:
    """Certify the better of θ(s), the point of the dual variables s, and of ``theta``.

    At s = wℓ'(Xθ) the gap of θ itself is ‖∇F(θ)‖²/(2σ); that of θ(s) = θ − ∇F(θ)/σ can be κ times larger.
    """
    duals = problem.clip_to_domain(duals)
    total = problem.row_total(duals)
    point = problem.whole_penalty.minimizer(total)
    found = problem.gap_at(duals, total, point)
    if theta is not None:
        other = problem.gap_at(duals, total, theta)
        if not other.gap > found.gap:
            point, found = theta, other
    scale = problem.value_at_zero if problem.value_at_zero > 0.0 else 1.0
    return Optimum(point, problem.objective(point), found.gap / scale, duals, method)
