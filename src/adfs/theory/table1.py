"""Table 1 of the paper, evaluated on a problem, a network and a communication time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from adfs.network import Network
from adfs.theory.summary import Source, check_network, check_smooth, check_tau, summarize

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["table1"]


def table1(problem: Source, network: Network, tau: float) -> pd.DataFrame:
    """Return the time each method takes to divide the error by e, constants left out (the paper's Table 1).

    Parameters
    ----------
    problem : Problem
        m is its largest number of samples per node, n·m its number of samples.
    network : Network
    tau : float
        Time of a communication, one sample's computation taking 1.

    Returns
    -------
    pandas.DataFrame
        One row per method, indexed by its name, with columns ``distributed``, ``asynchronous``,
        ``stochastic``, ``time`` and ``formula``.

    Examples
    --------
    >>> import numpy as np, adfs
    >>> X = np.random.default_rng(0).standard_normal((90, 3))
    >>> problem = adfs.Problem(X, np.sign(X[:, 0]), n_nodes=9)
    >>> frame = adfs.theory.table1(problem, adfs.Network("grid:3x3"), tau=5)
    >>> list(frame.index)
    ['point-saga', 'agd', 'msda', 'esdacd', 'dsba', 'adfs']
    """
    import pandas as pd

    summary = summarize(problem)
    check_network(summary, network)
    check_smooth(summary)
    check_tau(tau)
    m, total = float(summary.n_samples.max()), float(summary.n_samples.sum())
    kappa_s = float(summary.kappa.max())
    kappa_b = 1.0 + float(summary.batch_kappa.max())
    gamma = network.gamma
    rows = [
        ("point-saga", False, False, True, total + math.sqrt(total * kappa_s), "nm + √(nm κ_s)"),
        ("agd", False, False, False, total * math.sqrt(kappa_b), "nm √κ_b"),
        ("msda", True, False, False, math.sqrt(kappa_b) * (m + tau / math.sqrt(gamma)), "√κ_b (m + τ/√γ)"),
        ("esdacd", True, True, False, (m + tau) * math.sqrt(kappa_b / gamma), "(m + τ) √(κ_b/γ)"),
        ("dsba", True, False, True, (m + kappa_s + 1.0 / gamma) * (1.0 + tau), "(m + κ_s + 1/γ)(1 + τ)"),
        (
            "adfs",
            True,
            True,
            True,
            m + math.sqrt(m * kappa_s) + (1.0 + tau) * math.sqrt(kappa_s / gamma),
            "m + √(m κ_s) + (1 + τ) √(κ_s/γ)",
        ),
    ]
    columns = ["method", "distributed", "asynchronous", "stochastic", "time", "formula"]
    return pd.DataFrame(rows, columns=columns).set_index("method")
