"""Records as text."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["text_table"]


def text_table(title: str, rows: Sequence[tuple[str, str, object]], notes: Sequence[str] = ()) -> str:
    """Lay out (what, symbol, value) rows under a title, notes below.

    Examples
    --------
    >>> print(text_table("Sizes", [("nodes", "n", 3), ("gap", "γ", 0.25)]))
    Sizes
      nodes  n  3
      gap    γ  0.25
    """
    cells = [
        (what, symbol, f"{value:.6g}" if isinstance(value, float) else str(value))
        for what, symbol, value in rows
    ]
    first = max((len(what) for what, _, _ in cells), default=0)
    second = max((len(symbol) for _, symbol, _ in cells), default=0)
    lines = [f"  {what:<{first}}  {symbol:<{second}}  {value}" for what, symbol, value in cells]
    return "\n".join([title, *lines, *(f"  note: {note}" for note in notes)])
