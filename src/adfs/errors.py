"""The errors a user can meet, and the sentence that suggests a name they may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["AdfsError", "FileError", "InputError", "new_name", "unknown_name"]

#: What parameters, options and keys were called before version 0.3.
_RENAMED = {
    "algorithm": "method",
    "graph": "network",
    "graphs": "network",
    "graph_seed": "network_seed",
    "nodes": "n_nodes",
    "passes": "max_passes",
}


class AdfsError(Exception):
    """Base of every error this package raises on purpose."""


class InputError(AdfsError, ValueError):
    """Something that was given cannot be used; the message says what, where, and what to do."""


class FileError(AdfsError, OSError):
    """A file could not be written or read, and the reason lies with the disk rather than with the request."""


def new_name(name: object, known: Iterable[str]) -> str | None:
    """Return what an old name is called now, if it is one of the known names; None for any other name.

    Examples
    --------
    >>> new_name("algorithm", ["method", "loss"]), new_name("squared-hinge", ["squared_hinge"])
    ('method', 'squared_hinge')
    """
    names = list(known)
    candidates = (_RENAMED.get(str(name)), str(name).replace("-", "_"))
    return next((new for new in candidates if new != name and new in names), None)


def unknown_name(kind: str, name: object, known: Iterable[str]) -> InputError:
    """Build the error for a name that is not in a registry.

    Parameters
    ----------
    kind : str
        What was looked up, for instance ``"loss"``.
    name : object
        What the user gave.
    known : iterable of str
        The names that exist.

    Returns
    -------
    InputError
        To be raised by the caller.

    Examples
    --------
    >>> print(unknown_name("loss", "logstic", ["logistic", "squared"]))
    unknown loss 'logstic': did you mean 'logistic'? Known: logistic, squared
    """
    names = sorted(known)
    current = new_name(name, names)
    if current is not None:
        return InputError(f"the {kind} {name!r} is called {current!r} since version 0.3")
    close = difflib.get_close_matches(str(name), names, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return InputError(f"unknown {kind} {name!r}: {hint}Known: {', '.join(names)}")
