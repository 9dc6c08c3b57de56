"""The errors of this package, and the sentence for an unknown name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import ClassVar

__all__ = ["AdfsError", "ExitCode", "FileError", "InputError", "new_name", "unknown_name"]

#: What parameters, options and keys were called before version 0.3.
_RENAMED = {
    "algorithm": "method",
    "graph": "network",
    "graphs": "network",
    "graph_seed": "network_seed",
    "nodes": "n_nodes",
    "passes": "max_passes",
}


class ExitCode(IntEnum):
    """How a command ended; Ctrl-C and SIGTERM have the codes that shells use."""

    NOT_CONVERGED = 1
    BAD_REQUEST = 2
    FILE_TROUBLE = 3
    INTERRUPTED = 130
    TERMINATED = 143


class AdfsError(Exception):
    """Base class of the errors that this package raises."""

    #: The exit code of a command that fails with this error.
    exit_code: ClassVar[ExitCode] = ExitCode.BAD_REQUEST


class InputError(AdfsError, ValueError):
    """An argument, an option or a file cannot be used; the message says which, why, and what to do.

    Parameters
    ----------
    message : str
        The sentence. A name in braces, ``{tol}``, stands for one of the parameters.
    **parameters
        The parameters that the sentence is about, each with its value, or with None if the sentence needs
        only the name. The command line replaces them by its options.

    Examples
    --------
    >>> error = InputError("{inference} needs {l1_ratio}", inference=True, l1_ratio=0)
    >>> print(error)
    inference=True needs l1_ratio=0
    >>> error.with_options({"inference": "--summary", "l1_ratio": "--l1-ratio"})
    '--summary needs --l1-ratio 0'
    """

    def __init__(self, message: str = "", **parameters: object) -> None:
        self.template, self.parameters = message, parameters
        for name, value in parameters.items():
            message = message.replace(f"{{{name}}}", name if value is None else f"{name}={value!r}")
        super().__init__(message)

    def with_options(self, options: Mapping[str, str]) -> str:
        """Return the sentence with the option that sets each parameter in place of its name."""
        if not self.parameters:
            return str(self)
        sentence = self.template
        for name, value in self.parameters.items():
            option = options.get(name, name)
            # Options that are set to True are flags.
            word = option if value is None or value is True else f"{option} {value}"
            sentence = sentence.replace(f"{{{name}}}", word)
        return sentence


class FileError(AdfsError, OSError):
    """A file could not be written or read, for a reason of the disk rather than of the request."""

    exit_code = ExitCode.FILE_TROUBLE


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
        The kind of thing, for instance ``"loss"``.
    name : object
        The unknown name.
    known : iterable of str
        The names that exist.

    Returns
    -------
    InputError
        The caller raises it.

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
