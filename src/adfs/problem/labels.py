"""Labels as kernels take them: plain numbers, or each with an offset of the sample's margin.

With an offset o the loss of a sample is ℓ(xᵀθ + o; b). A kernel of one output hands labels on without
looking at them, by `label_at`: the functions of a loss see from the *type* of a label whether it has an
offset. One of several outputs adds the offsets to its margins by `add_shift`. Either way kernels for labels
without offsets are compiled as if there were no such thing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, SupportsIndex

import numpy as np
from numba import types

from adfs.compilation import overloads
from adfs.problem.loss_base import Loss
from adfs.problem.rows import kind_of


class ShiftedLabels(NamedTuple):
    """Labels ``values`` (N,) and what is added to the margins, ``shift`` (N,) or (N, K)."""

    values: np.ndarray
    shift: np.ndarray


class ShiftedLabel(NamedTuple):
    """The label of one sample and what is added to its one margin."""

    label: float
    shift: float


Labels = np.ndarray | ShiftedLabels
Label = float | ShiftedLabel


def labels_of(loss: Loss, y: np.ndarray, offset: np.ndarray | None) -> Labels:
    """Return labels as kernels take them; a loss of u − b has the offset in its target."""
    if offset is None:
        return y
    if not loss.translates:
        return ShiftedLabels(y, offset)
    moved: np.ndarray = y - offset
    moved.setflags(write=False)  # as targets without offsets: the same kernels
    return moved


def label_rows(y: Labels, rows: np.ndarray) -> Labels:
    """Return the labels of some rows."""
    return ShiftedLabels(y.values[rows], y.shift[rows]) if isinstance(y, ShiftedLabels) else y[rows]


def label_at(y: Labels, j: SupportsIndex) -> Label:
    """Return the label of row j with its offset, for a loss of one output."""
    if isinstance(y, ShiftedLabels):
        return ShiftedLabel(float(y.values[j]), float(y.shift[j]))
    return float(y[j])


def plain_label(y: Labels, j: SupportsIndex) -> float:
    """Return the label of row j without its offset."""
    return float(y.values[j] if isinstance(y, ShiftedLabels) else y[j])


def add_shift(y: Labels, j: SupportsIndex, factor: float, out: np.ndarray) -> None:
    """Add a multiple of the offsets of row j to K numbers, in place."""
    raise NotImplementedError("compiled code only")


def shift_product(y: Labels, j: SupportsIndex, s: np.ndarray) -> float:
    """Return the inner product of the offsets of row j and K numbers."""
    raise NotImplementedError("compiled code only")


def shift_size(y: Labels, j: SupportsIndex) -> float:
    """Return the sum of the sizes of the offsets of row j."""
    raise NotImplementedError("compiled code only")


@overloads(label_at)
def _label_at(y: types.Type, j: types.Type) -> Callable[..., object]:
    if kind_of(y) is ShiftedLabels:
        return lambda y, j: ShiftedLabel(y.values[j], y.shift[j])
    return lambda y, j: y[j]


@overloads(plain_label)
def _plain_label(y: types.Type, j: types.Type) -> Callable[..., object]:
    return (lambda y, j: y.values[j]) if kind_of(y) is ShiftedLabels else (lambda y, j: y[j])


def _several(y: types.Type) -> bool:
    return bool(y.types[1].ndim == 2)


@overloads(add_shift)
def _add_shift(y: types.Type, j: types.Type, factor: types.Type, out: types.Type) -> Callable[..., object]:
    if kind_of(y) is not ShiftedLabels:
        return lambda y, j, factor, out: None

    def one(y: ShiftedLabels, j: int, factor: float, out: np.ndarray) -> None:
        out[0] += factor * y.shift[j]

    def several(y: ShiftedLabels, j: int, factor: float, out: np.ndarray) -> None:
        for k in range(out.size):
            out[k] += factor * y.shift[j, k]

    return several if _several(y) else one


@overloads(shift_product)
def _shift_product(y: types.Type, j: types.Type, s: types.Type) -> Callable[..., object]:
    if kind_of(y) is not ShiftedLabels:
        return lambda y, j, s: 0.0

    def several(y: ShiftedLabels, j: int, s: np.ndarray) -> float:
        total = 0.0
        for k in range(s.size):
            total += y.shift[j, k] * s[k]
        return total

    return several if _several(y) else (lambda y, j, s: y.shift[j] * s[0])


@overloads(shift_size)
def _shift_size(y: types.Type, j: types.Type) -> Callable[..., object]:
    if kind_of(y) is not ShiftedLabels:
        return lambda y, j: 0.0

    def several(y: ShiftedLabels, j: int) -> float:
        total = 0.0
        for k in range(y.shift.shape[1]):
            total += abs(y.shift[j, k])
        return total

    return several if _several(y) else (lambda y, j: abs(y.shift[j]))
