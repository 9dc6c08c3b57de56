"""Products with a gossip matrix, summed in a fixed order: the same bits wherever the rows are computed."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from adfs.algorithms.base import Gossip
from adfs.compilation import compiled

__all__ = ["local_gossip", "row_products"]


@compiled
def row_products(data: np.ndarray, indices: np.ndarray, indptr: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the product of CSR rows with values (m, k), each row summed in the order it is stored.

    Shape (rows, k).
    """
    rows = indptr.size - 1
    out = np.zeros((rows, values.shape[1]))
    for i in range(rows):
        for position in range(indptr[i], indptr[i + 1]):
            weight = data[position]
            j = indices[position]
            for k in range(values.shape[1]):
                out[i, k] += weight * values[j, k]
    return out


def local_gossip(matrix: sp.csr_array) -> Gossip:
    """Return the operator of a process that holds all nodes."""
    csr = sp.csr_array(matrix)
    csr.sort_indices()

    def gossip(values: np.ndarray) -> np.ndarray:
        flat = np.ascontiguousarray(values.reshape(values.shape[0], -1))
        return row_products(csr.data, csr.indices, csr.indptr, flat).reshape(values.shape)

    return gossip
