"""The methods whose cost is known, and the choice behind ``method="auto"``: the cheapest that is able."""

from __future__ import annotations

import math
from typing import NamedTuple

from adfs.algorithms import METHODS
from adfs.errors import InputError
from adfs.network import Network
from adfs.theory import Facts

#: A chosen method is replaced by the next one when it has used this many times its predicted passes.
PATIENCE = 3.0


class Choice(NamedTuple):
    """The method that was chosen.

    Attributes
    ----------
    method : str
    reason : str
        One sentence with the predicted numbers.
    limit : float
        The passes after which ``next_method`` takes over; infinite where nothing was predicted.
    next_method : str or None
        The second cheapest method, if there is one.
    """

    method: str
    reason: str
    limit: float
    next_method: str | None


def is_predictable(name: str, facts: Facts, network: Network, tol: float, tau: float) -> bool:
    """Whether a method can solve a problem on a network, at a cost that is known."""
    method = METHODS[name]
    # Without a bound of the curvature there is no cost.
    able = method.can_solve(facts, network.n_nodes)
    return able and method.cost(facts, network, tol, tau).passes < math.inf


def choose(facts: Facts, network: Network, tol: float, *, events_only: bool = False) -> Choice:
    """Return the cheapest of the methods that can solve a problem and start from an earlier point.

    Parameters
    ----------
    facts : Facts
        Processes may have different last digits of eigenvalues, so rank 0 sends its choice to the others.
    network : Network
    tol : float
        The certified relative gap to reach.
    events_only : bool
        Whether parameters, a τ or a schedule were given, which only methods driven by events have.

    Examples
    --------
    >>> facts = Facts(n_samples=50_000, n_features=20, kappa_s=5000.0, kappa_b=500.0)
    >>> choose(facts, Network("grid:4x4"), 1e-6).method
    'newton'
    """
    able = [
        method
        for method in METHODS.values()
        if method.warm_starts
        and (method.kind == "events" or not events_only)
        and method.can_solve(facts, network.n_nodes)
    ]
    if not able:
        advice = ": leave out parameters, tau and schedule" if events_only else ""
        raise InputError(f"no method can solve this problem{advice}")
    # One number per method: computations and messages, in units of one sample's step.
    costs = {method.name: method.cost(facts, network, tol) for method in able}
    work = {name: cost.work(facts) for name, cost in costs.items()}
    order = sorted(work, key=work.__getitem__)
    best, second = order[0], order[1] if len(order) > 1 else None
    passes = costs[best].passes
    if second is None:
        return Choice(best, "no other method can solve this problem", math.inf, None)
    if passes == math.inf:
        return Choice(best, "the curvature of the loss has no bound, so no cost is known", passes, None)
    ratio = work[second] / work[best]
    other = f"{ratio:,.1f} times the work" if ratio < math.inf else "no cost is known"
    reason = f"{passes:,.1f} passes are predicted, and {other} for {second}"
    # Problems on which second derivatives take many rounds are harder still for every other method.
    if METHODS[best].invariant_to_units:
        return Choice(best, reason, math.inf, None)
    return Choice(best, reason, PATIENCE * passes, second)
