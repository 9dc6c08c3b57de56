"""Which method and which network, from facts that all processes share: what ``"auto"`` stands for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from adfs.errors import InputError
from adfs.network import Network
from adfs.pages import number
from adfs.planning.facts import Facts
from adfs.planning.predictions import FORMULAS, LOCAL_SOLVERS, Prediction, candidates, predict_all, ranked
from adfs.runtimes.delays import Delays


class Choice(NamedTuple):
    """A method on a network, the time that it is predicted to take, and why it was chosen, in words."""

    method: str
    network: Network
    time: float
    reason: str


def choose(
    facts: Facts,
    networks: Sequence[Network],
    *,
    tau: float | None = 1.0,
    tol: float = 1e-6,
    methods: Iterable[str] | None = None,
    rounds: Mapping[str, float] | None = None,
) -> Choice:
    """Choose the method and the network that are predicted to be the quickest; nothing is run.

    Parameters
    ----------
    facts : Facts
        The same in every process, and so is the choice but for the last digits of eigenvalues: let process 0
        tell the others.
    networks : sequence of Network
    tau : float, optional
        Time of a message, one sample's computation taking 1. None: nothing is planned, the nodes are what
        they are, and the least work counts (`predict` without delays).
    tol : float
    methods : iterable of str, optional
        All that are registered and fit the problem when left out, apart from those whose local solves the
        clock counts as one pass.
    rounds : mapping, optional
        How often a method has to solve the problem, once where it does not say.

    Examples
    --------
    >>> from adfs.network import Network
    >>> facts = Facts(n_samples=50_000, n_features=500, kappa_s=5000.0, kappa_b=500.0)
    >>> choose(facts, [Network("path:16"), Network("grid:4x4")], tau=10.0).network.name
    'grid:4x4'
    """
    names = candidates(facts, methods)
    if methods is None:
        names = [name for name in names if name not in LOCAL_SOLVERS]
    delays = None if tau is None else Delays(tau=tau, law="fixed")
    often = rounds or {}
    predicted = predict_all(names, facts, networks, delays, tol)
    found = ranked((replace(one, time=often.get(one.method, 1.0) * one.time) for one in predicted), {})
    if not found:
        raise InputError("none of these methods can run on this problem and these networks")
    best = found[0]
    network = next(one for one in networks if _name(one) == best.graph)
    return Choice(best.method, network, best.time, _reason(found, tau))


def _name(network: Network) -> str:
    return network.name or f"{network.n_nodes} nodes"


def _reason(found: Sequence[Prediction], tau: float | None) -> str:
    """Say what the best of some predictions is, and what the next other choice would take."""
    best = found[0]
    other = next((one for one in found if one.graph != best.graph), None)
    if other is None:
        other = next((one for one in found if one.method != best.method), None)
    if tau is None:
        stated = best.method in FORMULAS
        words = f"{number(best.position)} rounds" if stated else f"{number(best.passes)} passes"
        behind = (
            "" if other is None else f", {other.time / best.time:.2g} times less work than {other.method}"
        )
        return f"{words} are predicted{behind}"
    words = (
        f"{best.method} on {best.graph} is predicted to take {number(best.time)} samples' time at τ = {tau:g}"
    )
    return words if other is None else f"{words}, {other.method} on {other.graph} {number(other.time)}"
