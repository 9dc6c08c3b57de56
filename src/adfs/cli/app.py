"""The command line as a whole: its commands, its options, and how an error is shown.

A command is one module of this package with a function ``run``, whose docstring is the command's help,
perhaps an ``EXAMPLES`` text shown below it, and one line in `COMMANDS`; its close relatives are functions
beside it, such as ``score`` with ``SCORE_EXAMPLES``. Heavy imports (numpy, numba) belong inside the
functions: all command modules are imported whenever ``adfs`` starts.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, TextIO

import typer

from adfs._version import __version__
from adfs.cli import options
from adfs.errors import AdfsError
from adfs.launching import wait_for_rank_0

#: Command name -> the module whose ``run`` it is, or ``module:function``; in the order of ``adfs --help``.
COMMANDS: dict[str, str] = {
    "fit": "adfs.cli.fit",
    "predict": "adfs.cli.predict",
    "score": "adfs.cli.predict:score",
    "simulate": "adfs.cli.simulate",
    "rates": "adfs.cli.simulate:rates",
    "plan": "adfs.cli.plan",
    "compare": "adfs.cli.compare",
    "reproduce": "adfs.cli.compare:reproduce",
    "report": "adfs.cli.compare:report",
    "net-bench": "adfs.cli.plan:net_bench",
}

#: Exit codes: a run that did not reach its tolerance, a bad request (ours or the command line's), a file or
#: standard output that failed, a run that Ctrl-C or a SIGTERM ended, as shells report it.
NOT_CONVERGED, BAD_REQUEST, FILE_TROUBLE, INTERRUPTED, TERMINATED = 1, 2, 3, 130, 143

_RENAMED_OPTIONS = {"--algorithm": "--method", "--graph": "--network", "--graph-seed": "--network-seed"}

_EXAMPLES = """\b
Examples:
  adfs fit train.svm.bz2 --loss logistic -C 1 --out model.json
  adfs predict model.json test.svm.bz2 > labels.txt
  adfs score model.json test.svm.bz2
  adfs rates train.svm --nodes 9 --network grid:3x3 --tau 5

\b
Exit codes: 0 done, 1 the tolerance was not reached (results are written all the same),
2 something given cannot be used, 3 a file or standard output failed (a full disk), 130 interrupted,
143 told to end (SIGTERM).
"""


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"adfs {__version__}")
        raise typer.Exit


def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error; anywhere on the line.")
    ] = False,
) -> None:
    """Linear models on data spread over a network, each with a certified error; and the theory behind.

    Results go to standard output or to files, progress and errors to standard error.
    """
    del version, debug  # `main` looks for the latter itself
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def build() -> typer.Typer:
    """Assemble the application from `COMMANDS`; `main` runs it."""
    settings = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
    app = typer.Typer(
        name="adfs",
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings=settings,
        epilog=_EXAMPLES,
    )
    app.callback(invoke_without_command=True, epilog=_EXAMPLES)(_root)
    for name, module in COMMANDS.items():
        place, _, function = module.partition(":")
        commands = import_module(place)
        examples = getattr(commands, f"{function.upper()}_EXAMPLES" if function else "EXAMPLES", None)
        app.command(name, epilog=examples, context_settings=settings)(getattr(commands, function or "run"))
    return app


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
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    if debug:
        given = ["--debug", *(word for word in given if word != "--debug")]
    printed = sys.stdout, sys.stderr
    try:
        code = _run(given, debug)
    except SystemExit as ending:
        # Typer's word for a pipe whose reader (`adfs predict … | head`) has seen enough: no error.
        if not isinstance(ending.__context__, BrokenPipeError):
            raise
        code = 0
    finally:
        sys.stdout, sys.stderr = printed  # which Typer wraps in that case
    trouble = _flush(sys.stdout)
    if trouble is not None:
        _say(f"cannot write to standard output: {trouble.strerror}")
        code = FILE_TROUBLE
    return code


def _run(given: list[str], debug: bool) -> int:
    """Run a command; return its exit code, after one sentence where it failed."""
    if {"-h", "--help"} & set(given[1:]):
        options.show_losses()
    try:
        code = build()(args=given, prog_name="adfs", standalone_mode=False)
    except (AdfsError, typer.TyperException) as error:
        if debug:
            traceback.print_exception(error)
        message = error.format_message() if isinstance(error, typer.TyperException) else str(error)
        message = _current_option(message) or message
        wait_for_rank_0()
        _say(message)
        return FILE_TROUBLE if isinstance(error, OSError) else BAD_REQUEST
    except OSError as error:
        if error.errno is None:  # no file that fails, but a library that cannot be loaded, or the like
            raise
        if debug:
            traceback.print_exception(error)
        wait_for_rank_0()
        # Only opening a file gives its name; what fails once it is open is standard output, most likely.
        where = error.filename or "standard output or a file that was open"
        _say(f"reading or writing failed: {where}: {error.strerror}")
        return FILE_TROUBLE
    except typer.Abort:
        code = INTERRUPTED
    if code in (INTERRUPTED, TERMINATED):  # the former is what Typer makes of Ctrl-C
        _say("interrupted" if code == INTERRUPTED else "told to end (SIGTERM)")
    return code if isinstance(code, int) else 0


def _current_option(message: str) -> str | None:
    """Return the sentence for an option that was renamed in version 0.3, from Typer's; None for others."""
    match = re.match(r"No such option: (--[a-z-]+)", message)
    option = _RENAMED_OPTIONS.get(match[1]) if match else None
    return f"the option {match[1]} is called {option} since version 0.3" if match and option else None


def _say(message: str) -> None:
    try:
        print("adfs:", *message.split(), file=sys.stderr, flush=True)  # on one line
    except OSError:
        _discard(sys.stderr)


def _flush(stream: TextIO | None) -> OSError | None:
    """Write out what was printed; return why that failed, which a closed pipe does not count for."""
    try:
        if stream is not None:
            stream.flush()
    except BrokenPipeError:
        _discard(stream)
    except OSError as error:
        _discard(stream)
        return error
    return None


def _discard(stream: TextIO | None) -> None:
    """Let the rest of what was printed go nowhere: Python would complain of it at exit otherwise."""
    with contextlib.suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        if stream is not None:
            os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
