"""What the constants of ADFS and of NS-ADFS have in common: who acts how often."""

from __future__ import annotations

import numpy as np

from adfs.errors import InputError

__all__ = ["EventParameters"]

_SUM_TOLERANCE = 1e-9


class EventParameters:
    """The part of an event-driven method's constants that a schedule is made from.

    ``node_probability`` is p_i, ``edge_probability`` p_e, ``edge_weights`` the μ_e² of communication edges,
    ``sigma`` σ_i. The classes that derive from this one are frozen records, and hold these among others.
    """

    sigma: np.ndarray
    node_probability: np.ndarray
    edge_weights: np.ndarray
    edge_probability: np.ndarray

    def _freeze_arrays(self, *, nodes: tuple[str, ...], edges: tuple[str, ...], samples: str) -> None:
        """Make the named arrays float64 and unwritable, and raise unless they fit together.

        ``nodes`` are those with a number per node, ``edges`` those with one per edge; ``samples`` names the
        one that is above 0 at the nodes that hold samples.
        """
        for name in (*nodes, *edges):
            array = np.array(getattr(self, name), dtype=np.float64)
            if array.ndim != 1 or not np.all(np.isfinite(array)) or np.any(array < 0.0):
                raise InputError(
                    f"parameters: {name} must be one finite number of at least 0 per node or edge"
                )
            array.setflags(write=False)
            object.__setattr__(self, name, array)
        if {getattr(self, name).size for name in nodes} != {self.sigma.size}:
            raise InputError("parameters: the arrays of the nodes have different lengths")
        if {getattr(self, name).size for name in edges} != {self.edge_weights.size}:
            raise InputError("parameters: the arrays of the edges have different lengths")
        total = float(self.node_probability.sum() + self.edge_probability.sum())
        if abs(total - 1.0) > _SUM_TOLERANCE:
            raise InputError(f"parameters: the probabilities sum to {total:.12g}, not 1")
        if np.any(self.edge_probability <= 0.0):
            raise InputError("parameters: every edge needs a probability above 0, or the nodes never agree")
        if np.any((self.node_probability > 0.0) != (getattr(self, samples) > 0.0)):
            raise InputError("parameters: exactly the nodes that hold samples need a probability above 0")

    @property
    def n_nodes(self) -> int:
        """N."""
        return int(self.sigma.size)

    @property
    def p_comm(self) -> float:
        """Probability that an event is a communication."""
        return float(self.edge_probability.sum())

    @property
    def p_comp(self) -> float:
        """Probability that an event is a computation."""
        return float(self.node_probability.sum())
