"""``adfs fit``: checks of the options before the files are read, and the report after the fit."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adfs.cli import options
from adfs.errors import InputError
from adfs.files import check_outputs, write_whole
from adfs.launching import launch_of, launched_by_mpi

if TYPE_CHECKING:
    from adfs.cli.fit_files import FitRequest, Fitted
    from adfs.files import JsonObject


def fit(
    files: Annotated[
        list[str],
        typer.Argument(help="One file, split over --nodes; or several files, one per node.", metavar="FILE"),
    ],
    output: options.FitOutputOptions,
    model: options.ModelOptions,
    search: options.SearchOptions,
    reading: options.FitFileOptions,
    nodes: options.FitNodeOptions,
    limits: options.FitRunOptions,
) -> int:
    """Fit a linear model to a certified error.

    Files are LIBSVM text (plain, gz, bz2, xz), .npz (X and y, or a CSR matrix and y), CSV or parquet with a
    label column. Exit code 1 means that the tolerance was not reached, 130 that the fit was interrupted
    (Ctrl-C), 143 that it was told to end (SIGTERM): the model is written in all three cases, and contains
    the outcome.

    Examples
    --------
    adfs fit a9a.bz2 --loss logistic -C 1 --out model.json
    adfs fit houses.csv --label price --loss squared --alpha 10 --out model.json
    adfs fit train.svm --nodes 16 --network torus --parameters tuned --tau 50 --out model.json
    adfs fit site-1.svm site-2.svm site-3.svm --network path --out model.json
    mpiexec -n 4 adfs fit 'shard-{rank}.svm' --network cycle --out model.json
    adfs fit claims.csv --label paid --loss squared --offset expected --summary --out model.json
    adfs fit train.csv --label kind --standardize --cv 5 --C-grid 0.01,0.1,1 --out model.json
    adfs fit big.svm --checkpoint run.ckpt --resume --max-seconds 3600 --out model.json
    """
    over_mpi = launched_by_mpi()
    _check_combinations(output, model, search, limits, over_mpi)
    _check_files(files, output, limits, over_mpi)

    # The heavy modules are imported after the checks, so that a wrong option is reported at once.
    from adfs.cli.app import TERMINATED
    from adfs.cli.fit_files import FitRequest, fit_files

    options.load_imports(output.imports)
    # These two are texts on the command line.
    tau, grid = _tau(model.tau, over_mpi), _grid(model.loss, search)
    request = FitRequest(tuple(files), model, reading, nodes, limits, tau, search.cv, grid)

    # Called in process 0 only, before MPI ends.
    def finish(fitted: Fitted) -> int:
        _write(fitted, output, model.inference)
        if over_mpi:
            _show_account(fitted.account, output.timeline, limits.progress)
        return _report_end(fitted, request, output.out)

    try:
        return fit_files(request, finish)
    except KeyboardInterrupt as error:
        if not error.args:
            raise
        return TERMINATED  # before there was a model


# --------------------------------------------------------------------------- before the fit


def _check_combinations(
    output: options.FitOutputOptions,
    model: options.ModelOptions,
    search: options.SearchOptions,
    limits: options.FitRunOptions,
    over_mpi: bool,
) -> None:
    """Raise if an option needs another one that is missing."""
    # Each sentence names the option that is missing.
    if limits.resume and limits.checkpoint is None:
        raise InputError("--resume needs the --checkpoint to resume from")
    if output.as_json and output.out is None:
        raise InputError("--json prints a summary of the fit: give the file of the model with --out")
    if output.timeline is not None and not over_mpi:
        raise InputError("--timeline shows who waited for whom over MPI: start several ranks with mpiexec -n")
    options.check_figure("--timeline", output.timeline)
    if search.cv is None and (search.C_grid or search.alpha_grid):
        raise InputError("--C-grid and --alpha-grid are for cross-validation: add --cv 5")
    if model.inference and output.out is None:
        raise InputError("--summary prints a table: give the file of the model with --out")
    if output.robust and not model.inference:
        raise InputError("--robust is about the standard errors of --summary: add --summary")
    if model.class_weight not in (None, "balanced"):
        raise InputError(f"--class-weight is balanced or left out, got {model.class_weight!r}")


def _check_files(
    files: list[str], output: options.FitOutputOptions, limits: options.FitRunOptions, over_mpi: bool
) -> None:
    """Raise unless the outputs can be written, and none of them is one of the files."""
    outputs = {"--out": output.out, "--history": output.history, "--timeline": output.timeline}
    if over_mpi:
        # One name may stand for the files of all ranks; a checkpoint is a folder with one file per rank.
        launch = launch_of()
        ranks = [str(rank) for rank in range(launch.size if launch is not None else 1)]
        names = [name.replace("{rank}", k).replace("{node}", k) for name in files for k in ranks]
        check_outputs({"FILE": names}, outputs, folders={"--checkpoint": limits.checkpoint})
        return
    check_outputs({"FILE": files}, outputs | {"--checkpoint": limits.checkpoint})
    if any("{rank}" in name or "{node}" in name for name in files):
        raise InputError(
            "{rank} and {node} in a file's name are for several processes: start them with mpiexec -n, "
            "or name the files, one per node"
        )


def file_names(files: Sequence[str], n_nodes: int | None, n_ranks: int) -> list[str]:
    """Return the file of each node: several files, or a name with {rank} or {node} in it.

    Examples
    --------
    >>> file_names(["shard-{rank}.svm"], None, 2)
    ['shard-0.svm', 'shard-1.svm']
    """
    # Several files are the nodes, in the order of the command line.
    if len(files) > 1:
        if n_nodes not in (None, len(files)):
            raise InputError(f"{len(files)} files make as many nodes, one each; leave out --nodes")
        names = list(files)
    elif "{node}" in files[0]:
        names = [files[0].replace("{node}", str(node)) for node in range(n_nodes or n_ranks)]
    elif "{rank}" in files[0]:
        if n_nodes not in (None, n_ranks):
            raise InputError(
                f"{{rank}} makes one node per rank ({n_ranks}): use {{node}} with --nodes {n_nodes}"
            )
        names = [files[0].replace("{rank}", str(rank)) for rank in range(n_ranks)]
    else:
        raise InputError(
            f"{files[0]} is one file for {n_ranks} ranks, and each reads its own only: "
            "give one file per node, or a name such as shard-{rank}.svm"
        )
    if len(names) < n_ranks:
        raise InputError(
            f"there are {len(names)} files for {n_ranks} ranks; start {len(names)} ranks or fewer"
        )
    return names


def _grid(loss: str, search: options.SearchOptions) -> tuple[float, ...]:
    """Return the weights of the penalty that cross-validation tries, empty for its default grid."""
    # The grid of the other task is an error, as -C for a regression is.
    given = options.penalty_weight(loss, search.C_grid, search.alpha_grid, ("--C-grid", "--alpha-grid"))
    option = "--C-grid" if search.C_grid is not None else "--alpha-grid"
    try:
        values = tuple(float(word) for word in given.split(",")) if given is not None else ()
    except ValueError:
        raise InputError(f"{option} is a list of numbers such as 0.01,0.1,1, got {given!r}") from None
    for value in values:
        if not 0.0 < value < float("inf"):
            raise InputError(f"{option} must hold numbers above 0, got {value:g}")
    return values


def _tau(text: str | None, over_mpi: bool) -> float | str | None:
    """Return τ as a number, or the request to measure it."""
    if text is None:
        return None
    if text == "measure":
        if not over_mpi:
            raise InputError("--tau measure measures messages between ranks: start several with mpiexec -n")
        return text
    try:
        return float(text)
    except ValueError:
        raise InputError(f"--tau is a number or measure, got {text!r}") from None


# --------------------------------------------------------------------------- after the fit


def _write(fitted: Fitted, output: options.FitOutputOptions, summary: bool) -> None:
    """Write the model and the history, and print the tables."""
    # The files first: a full disk is reported before the tables are printed.
    if output.history is not None:
        write_whole(output.history, fitted.history.to_csv(index=False))
    if output.out is None:
        sys.stdout.write(fitted.model.to_json())
    else:
        fitted.model.save(output.out)
    if output.as_json:
        print(json.dumps(fitted.summary | {"out": str(output.out)}))
    # Standard output holds the JSON object alone if there is one.
    if summary:
        table = fitted.estimator.summary(robust=output.robust)
        print(table, file=sys.stderr if output.as_json else sys.stdout)
    if "cv" in fitted.summary and not output.as_json:
        print(_score_table(fitted.summary), file=sys.stderr)


def _score_table(summary: JsonObject) -> str:
    """Return the scores of cross-validation: the mean of each weight tried, and the extremes of the folds."""
    search, name = summary["cv"], "C" if "C" in summary else "alpha"
    lines = [f"{name:>10}{search['score']:>10}{'lowest':>10}{'highest':>10}"]
    for entry in search["tried"]:
        # The mean over the folds, and their extremes.
        scores = entry["score"], min(entry["scores"]), max(entry["scores"])
        lines.append(f"{entry[name]:>10g}" + "".join(f"{score:>10.4f}" for score in scores))
    return "\n".join(lines)


def _best_weight(summary: JsonObject) -> str:
    """Return a clause with the choice of cross-validation, empty without one."""
    if "cv" not in summary:
        return ""
    name = "C" if "C" in summary else "alpha"
    tried, folds = len(summary["cv"]["tried"]), summary["cv"]["folds"]
    # Fits that ended above the tolerance make the choice less certain.
    unfinished = summary["cv"]["unfinished"]
    short = f" ({unfinished} of {tried * folds} fits ended above --tol)" if unfinished else ""
    return f" with {name} = {summary[name]:g}, the best of {tried} on {folds} folds{short}"


def _report_end(fitted: Fitted, request: FitRequest, out: Path | None) -> int:
    """Print how the fit ended, and return the exit code for it."""
    from adfs.cli.app import INTERRUPTED, NOT_CONVERGED
    from adfs.runtimes.loop import Outcome

    summary = fitted.summary
    gap, passes, chosen = summary["gap"], summary["passes"], _best_weight(summary)
    where = "" if out is None else f"; the model is in {out}"
    if fitted.outcome is Outcome.CONVERGED:
        reason = f" ({summary['reason']})" if summary["reason"] else ""
        sentence = (
            f"converged to a certified relative gap of {gap:.1e} in {passes:.3g} passes and "
            f"{summary['seconds']:.3g} s by {summary['method']}{reason}{chosen}{where}"
        )
        code = 0
    elif fitted.outcome is Outcome.STOPPED:
        sentence, code = f"the model so far, at a gap of {gap:.1e}, was written{where}", INTERRUPTED
    elif fitted.outcome is Outcome.DIVERGED:
        advice = "scale the features to about 1, or raise the penalty (a smaller -C, a larger --alpha)"
        sentence, code = f"diverged after {passes:.3g} passes; {advice}", NOT_CONVERGED
    else:
        # The limit that ended the fit: the passes are rounded, so they may be a little below theirs.
        used_up = request.limits.seconds is None or passes >= 0.99 * request.model.max_iter
        limit = "--max-passes" if used_up else "--max-seconds"
        sentence = (
            f"stopped ({fitted.outcome}){chosen} at a gap of {gap:.1e} after {passes:.0f} passes, above "
            f"--tol {request.model.tol:g}; raise {limit} or --tol, or scale the features"
        )
        code = NOT_CONVERGED
    print(f"adfs: {sentence}", file=sys.stderr)
    return code


def _show_account(account: JsonObject, timeline: Path | None, progress: bool | None) -> None:
    """Show how the ranks spent their time; with several classes, in the run of the last one."""
    from adfs.runtimes.mpi import draw_timeline, rank_table
    from adfs.runtimes.run import wanted_on_screen

    # The drawing and the table show the same account.
    if timeline is not None:
        options.save_figure(timeline, draw_timeline(account))
    if wanted_on_screen(progress):
        table = rank_table(account).to_string(float_format=lambda value: f"{value:.3g}")
        print(f"seconds, messages and bytes of each rank\n{table}", file=sys.stderr)
