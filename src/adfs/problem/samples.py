"""The samples as kernels take them: one argument."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from adfs.problem.labels import Labels
from adfs.problem.loss_base import Loss
from adfs.problem.rows import Rows


class Samples(NamedTuple):
    """The samples of a block of nodes, node after node.

    Attributes
    ----------
    loss : Loss
    rows : DenseRows or SparseRows
        The N rows.
    y : ndarray of shape (N,) or ShiftedLabels
        Labels or targets, with offsets where there are any: read by `adfs.problem.labels.label_at`.
    weights : ndarray of shape (N,)
        Sample weights.
    offsets : ndarray of shape (n + 1,)
        Node i holds the rows ``offsets[i]:offsets[i + 1]``.
    """

    loss: Loss
    rows: Rows
    y: Labels
    weights: np.ndarray
    offsets: np.ndarray
