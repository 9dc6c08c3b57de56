"""The ``adfs`` program: its commands, its exit codes, how errors are printed and signals are handled.

A command is a function of a module of this package and one line in `COMMANDS`. Its docstring is its help; the
examples in it are printed after the options. Heavy imports (numpy, numba) belong inside the functions,
because all command modules are imported whenever ``adfs`` starts.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import re
import signal
import sys
import textwrap
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from types import FrameType
from typing import Annotated, Any, TextIO

import typer

from adfs._version import __version__
from adfs.cli.options import flatten
from adfs.errors import AdfsError, ExitCode
from adfs.launching import wait_for_rank_0

#: Command -> its module, in the order of ``adfs --help``; the function has the name of the command.
COMMANDS: dict[str, str] = {
    "fit": "adfs.cli.models",
    "predict": "adfs.cli.models",
    "score": "adfs.cli.models",
    "simulate": "adfs.cli.simulate",
    "rates": "adfs.cli.plan",
    "plan": "adfs.cli.plan",
    "compare": "adfs.cli.simulate",
    "reproduce": "adfs.cli.simulate",
    "report": "adfs.cli.simulate",
    "net-bench": "adfs.cli.plan",
}

# Options that had another name before version 0.3.
_RENAMED_OPTIONS = {"--algorithm": "--method", "--graph": "--network", "--graph-seed": "--network-seed"}


def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error; anywhere on the line.")
    ] = False,
) -> None:
    """Fit linear models on data spread over a network, each with a certified error, and study the methods.

    Results go to standard output or to files, progress and errors to standard error.

    Exit codes: 0 done, 1 the tolerance was not reached (results are written all the same), 2 something given
    cannot be used, 3 a file or standard output failed (a full disk), 130 interrupted, 143 told to end
    (SIGTERM).

    Examples
    --------
    adfs fit train.svm.bz2 --loss logistic -C 1 --out model.json
    adfs predict model.json test.svm.bz2 > labels.txt
    adfs score model.json test.svm.bz2
    adfs rates train.svm --nodes 9 --network grid:3x3 --tau 5
    """
    del debug  # `main` handles it, because it may stand anywhere
    if version:
        typer.echo(f"adfs {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def build(helps: Mapping[str, str]) -> typer.Typer:
    """Assemble the application from `COMMANDS`; ``helps`` replace the help of options."""
    settings = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
    app = typer.Typer(
        name="adfs", pretty_exceptions_enable=False, rich_markup_mode=None, context_settings=settings
    )
    app.callback(invoke_without_command=True, **_help_of(_root))(_root)
    for name, module in COMMANDS.items():
        command = getattr(import_module(module), name.replace("-", "_"))
        # Typer reads the options of each command from its signature.
        app.command(name, context_settings=settings, **_help_of(command))(flatten(command, helps))
    return app


def _help_of(command: Callable[..., Any]) -> dict[str, Any]:
    """Return the parts of a docstring that stand before and after the options in the help."""
    before, _, examples = inspect.cleandoc(command.__doc__ or "").partition("\n\nExamples\n--------\n")
    return {"help": before, "epilog": "\b\nExamples:\n" + textwrap.indent(examples, "  ")}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    arguments : sequence of str, optional
        What follows ``adfs``; the process's own arguments when omitted.

    Returns
    -------
    int
        The exit code: 0; 1 when a tolerance was not reached; 2 for a bad request; 3 when a file or standard
        output failed; 130 when interrupted; 143 when a fit was told to end. An error that is not ours goes
        through with its traceback, since it is a defect to report.
    """
    # --debug is an option of the program, and may stand behind the command.
    words = list(sys.argv[1:] if arguments is None else arguments)
    given, debug = [word for word in words if word != "--debug"], "--debug" in words
    # Typer may replace both streams.
    printed = sys.stdout, sys.stderr
    try:
        code = _run(given, debug)
    except SystemExit as ending:
        # Typer exits so if the reader of a pipe (`adfs predict … | head`) has closed it: no error.
        if not isinstance(ending.__context__, BrokenPipeError):
            raise
        code = 0
    finally:
        sys.stdout, sys.stderr = printed  # Typer has wrapped them in that case
    # A full disk shows only when the output is flushed.
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:  # its reader has closed it
        _discard(sys.stdout)
    except OSError as error:
        _discard(sys.stdout)
        _say(f"cannot write to standard output: {error.strerror}")
        code = ExitCode.FILE_TROUBLE
    return code


def _run(given: list[str], debug: bool) -> int:
    """Run a command and return its exit code; an error is printed as one sentence."""
    helps = {}
    if {"-h", "--help"} & set(given[1:]):
        # The help names all losses. Importing them takes a second, which other calls do not need.
        from adfs.problem.losses import describe_losses

        helps["loss"] = describe_losses()
    try:
        code = build(helps)(args=given, prog_name="adfs", standalone_mode=False)
    except typer.Abort:
        code = ExitCode.INTERRUPTED
    except (AdfsError, typer.TyperException, OSError) as error:
        if isinstance(error, AdfsError):
            message, code = str(error), error.exit_code
        elif isinstance(error, typer.TyperException):
            message, code = _current_option(error.format_message()), ExitCode.BAD_REQUEST
        elif error.errno is None:  # not a file, but a library that cannot be loaded, for instance
            raise
        else:
            # The error has a name only if opening a file failed; otherwise it is most likely the output.
            where = error.filename or "standard output or a file that was open"
            message, code = f"reading or writing failed: {where}: {error.strerror}", ExitCode.FILE_TROUBLE
        if debug:
            traceback.print_exception(error)
        wait_for_rank_0()
        _say(message)
    if code in (ExitCode.INTERRUPTED, ExitCode.TERMINATED):
        _say("interrupted" if code == ExitCode.INTERRUPTED else "told to end (SIGTERM)")
    return code if isinstance(code, int) else 0


def _current_option(message: str) -> str:
    """Return another sentence for an option that was renamed in version 0.3; other messages are unchanged."""
    # Typer gives no other access to the name of the option.
    match = re.match(r"No such option: (--[a-z-]+)", message)
    if match is None or match[1] not in _RENAMED_OPTIONS:
        return message
    return f"the option {match[1]} is called {_RENAMED_OPTIONS[match[1]]} since version 0.3"


@contextlib.contextmanager
def handling_sigterm(handler: Any) -> Iterator[None]:
    """Handle SIGTERM in another way for a while; only the main thread may change that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGTERM) is handler:  # a rank that fails installs its own handler
            signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def sigterm_as_ctrl_c() -> Iterator[list[int]]:
    """Let the first SIGTERM (of Slurm, of Kubernetes) end a fit as Ctrl-C does; yield the signals."""
    received: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        if received:
            return
        received.append(number)
        interrupt = signal.getsignal(signal.SIGINT)
        if callable(interrupt) and interrupt is not signal.default_int_handler:
            interrupt(signal.SIGINT, frame)  # that of a run, which ends it in order
        else:
            raise KeyboardInterrupt(number)

    with handling_sigterm(stop):
        try:
            yield received
        except KeyboardInterrupt:
            raise KeyboardInterrupt(*received) from None  # its argument decides the exit code


def _say(message: str) -> None:
    try:
        print("adfs:", *message.split(), file=sys.stderr, flush=True)  # on one line
    except OSError:
        _discard(sys.stderr)


def _discard(stream: TextIO) -> None:
    """Discard the unwritten rest of a stream, because Python would report it at exit."""
    with contextlib.suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
