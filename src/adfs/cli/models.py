"""``adfs fit``, ``adfs predict`` and ``adfs score``.

`adfs.cli.fit_files` makes the fit itself; this module checks the options before it, and reports after it.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adfs.cli import options
from adfs.errors import ExitCode, InputError
from adfs.files import check_outputs, load_modules, write_whole
from adfs.launching import launch_of, read_hosts

if TYPE_CHECKING:
    from adfs.cli.fit_files import FitRequest, Fitted
    from adfs.data import LinearModel, Table
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

    Files are LIBSVM text (plain, gz, bz2, xz, zst), .npz (X and y, or a CSR matrix and y), CSV or parquet
    with a label column, or a folder of parquet files; - is standard input. Columns of text become
    categories, and missing numbers the mean. Exit code 1 means that the tolerance was not reached, 130 that
    the fit was interrupted (Ctrl-C), 143 that it was told to end (SIGTERM): the model is written in all three
    cases, and contains the outcome.

    Examples
    --------
    adfs fit a9a.bz2 --loss logistic -C 1 --out model.json
    adfs fit houses.csv --label price --loss squared --alpha 10 --out model.json
    adfs fit train.svm --nodes 16 --network torus --parameters tuned --tau 50 --out model.json
    adfs fit site-1.svm site-2.svm site-3.svm --network path --out model.json
    mpiexec -n 4 adfs fit 'shard-{rank}.svm' --network cycle --out model.json
    adfs fit 'shard-{rank}.svm' --peers hosts.toml --rank 2 --out model.json
    adfs fit claims.csv --label paid --loss squared --offset expected --summary --out model.json
    adfs fit train.csv --label kind --standardize --cv 5 --C-grid 0.01,0.1,1 --out model.json
    adfs fit big.svm --checkpoint run.ckpt --resume --max-seconds 3600 --out model.json
    """
    n_ranks = _count_ranks(nodes)
    _check_combinations(output, model, search, limits, n_ranks)
    _check_files(files, output, limits, n_ranks)

    # The heavy modules are imported after the checks, so that a wrong option is reported at once.
    from adfs.cli.fit_files import FitRequest, fit_files

    load_modules(output.imports or [])
    request = FitRequest(tuple(files), model, search, reading, nodes, limits)

    # Called in process 0 only, before the others end.
    def finish(fitted: Fitted) -> int:
        _write(fitted, output, model.inference)
        if n_ranks > 1:
            _show_account(fitted.account, output.timeline, limits.progress)
        return _report_end(fitted, request, output.out)

    try:
        return fit_files(request, finish)
    except KeyboardInterrupt as error:
        if not error.args:
            raise
        return ExitCode.TERMINATED  # before there was a model


# --------------------------------------------------------------------------- before a fit


def _count_ranks(nodes: options.FitNodeOptions) -> int:
    """Return how many processes fit together: those of a list, or those of an MPI launcher."""
    if (nodes.peers is None) != (nodes.rank is None):
        raise InputError(
            "--peers and --rank go together: the list of all processes, and the place of this one"
        )
    if nodes.peers is not None:
        return len(read_hosts(nodes.peers).addresses)
    launch = launch_of()
    return launch.size if launch is not None else 1


def _check_combinations(
    output: options.FitOutputOptions,
    model: options.ModelOptions,
    search: options.SearchOptions,
    limits: options.FitRunOptions,
    n_ranks: int,
) -> None:
    """Raise if an option needs another one that is missing."""
    # Each sentence names the option that is missing.
    if limits.resume and limits.checkpoint is None:
        raise InputError("--resume needs the --checkpoint to resume from")
    if output.as_json and output.out is None:
        raise InputError("--json prints a summary of the fit: give the file of the model with --out")
    several = "start several with mpiexec -n, or with --peers"
    if output.timeline is not None and n_ranks == 1:
        raise InputError(f"--timeline shows who waited for whom of several ranks: {several}")
    if model.tau == "measure" and n_ranks == 1:
        raise InputError(f"--tau measure measures messages between ranks: {several}")
    options.check_figure("--timeline", output.timeline)
    if search.cv is None and (search.C_grid or search.alpha_grid or search.l1_ratios or search.scoring):
        raise InputError(
            "--C-grid, --alpha-grid, --l1-ratios and --scoring are for cross-validation: add --cv 5"
        )
    if search.l1_ratios and model.l1_ratio:
        raise InputError("--l1-ratio is one value and --l1-ratios are several to try: take one of them")
    if model.inference and output.out is None:
        raise InputError("--summary prints a table: give the file of the model with --out")
    if output.robust and not model.inference:
        raise InputError("--robust is about the standard errors of --summary: add --summary")
    if model.class_weight not in (None, "balanced"):
        raise InputError(f"--class-weight is balanced or left out, got {model.class_weight!r}")


def _check_files(
    files: list[str], output: options.FitOutputOptions, limits: options.FitRunOptions, n_ranks: int
) -> None:
    """Raise unless the outputs can be written, and none of them is one of the files."""
    outputs = {"--out": output.out, "--history": output.history, "--timeline": output.timeline}
    if n_ranks > 1:
        # One name may stand for the files of all ranks; a checkpoint is a folder with one file per rank.
        ranks = [str(rank) for rank in range(n_ranks)]
        names = [name.replace("{rank}", k).replace("{node}", k) for name in files for k in ranks]
        check_outputs({"FILE": names}, outputs, folders={"--checkpoint": limits.checkpoint})
        return
    check_outputs({"FILE": files}, outputs | {"--checkpoint": limits.checkpoint})
    if any("{rank}" in name or "{node}" in name for name in files):
        raise InputError(
            "{rank} and {node} in a file's name are for several processes: start them with mpiexec -n, "
            "or name the files, one per node"
        )


# --------------------------------------------------------------------------- after a fit


def _write(fitted: Fitted, output: options.FitOutputOptions, summary: bool) -> None:
    """Write the model and the history, and print the tables."""
    # The files first: a full disk is reported before the tables are printed.
    if output.history is not None:
        write_whole(output.history, fitted.estimator.history_.to_csv(index=False))
    if output.out is None:
        sys.stdout.write(fitted.model.to_json())
    else:
        fitted.model.save(output.out)
    if output.as_json:
        print(json.dumps(fitted.summary | {"out": str(output.out)}))
    # Standard output holds the JSON object alone if there is one.
    if summary:
        stream = sys.stderr if output.as_json else sys.stdout
        if fitted.model.encoding is not None:
            print(f"{fitted.model.encoding}\n", file=stream)
        print(fitted.estimator.summary(robust=output.robust), file=stream)
    if "cv" in fitted.summary and not output.as_json:
        print(_score_table(fitted.summary), file=sys.stderr)


def _score_table(summary: JsonObject) -> str:
    """Return the scores of cross-validation: the mean of each weight tried, and the extremes of the folds."""
    search, name = summary["cv"], "C" if "C" in summary else "alpha"
    width = max(10, len(search["score"]) + 2)
    names = [each for each in (name, "l1_ratio") if each in search["tried"][0]]
    heads = "".join(f"{each:>10}" for each in names)
    lines = [f"{heads}{search['score']:>{width}}{'lowest':>{width}}{'highest':>{width}}"]
    for entry in search["tried"]:
        # The mean over the folds, and their extremes.
        scores = entry["score"], min(entry["scores"]), max(entry["scores"])
        values = "".join(f"{entry[each]:>10g}" for each in names)
        lines.append(values + "".join(f"{score:>{width}.4f}" for score in scores))
    return "\n".join(lines)


def _report_end(fitted: Fitted, request: FitRequest, out: Path | None) -> int:
    """Print how the fit ended, and return the exit code for it."""
    from adfs.runtimes.loop import Outcome

    summary = fitted.summary
    gap, passes, chosen = summary["gap"], summary["passes"], ""
    if "cv" in summary:
        name = "C" if "C" in summary else "alpha"
        tried, folds = len(summary["cv"]["tried"]), summary["cv"]["folds"]
        ratio = f" and l1_ratio = {summary['l1_ratio']:g}" if "l1_ratio" in summary["cv"]["tried"][0] else ""
        chosen = f" with {name} = {summary[name]:g}{ratio}, the best of {tried} on {folds} folds"
        # Fits that ended above the tolerance make the choice less certain.
        if summary["cv"]["unfinished"]:
            chosen += f" ({summary['cv']['unfinished']} of {tried * folds} fits ended above --tol)"
    where = "" if out is None else f"; the model is in {out}"
    if fitted.outcome is Outcome.CONVERGED:
        reason = f" ({summary['reason']})" if summary["reason"] else ""
        sentence = (
            f"converged to a certified relative gap of {gap:.1e} in {passes:.3g} passes and "
            f"{summary['seconds']:.3g} s by {summary['method']}{reason}{chosen}{where}"
        )
        code = 0
    elif fitted.outcome is Outcome.STOPPED:
        sentence, code = f"the model so far, at a gap of {gap:.1e}, was written{where}", ExitCode.INTERRUPTED
    elif fitted.outcome is Outcome.DIVERGED:
        advice = "scale the features to about 1, or raise the penalty (a smaller -C, a larger --alpha)"
        sentence, code = f"diverged after {passes:.3g} passes; {advice}", ExitCode.NOT_CONVERGED
    else:
        limit = "--max-passes" if request.limits.seconds is None else "--max-passes, --max-seconds"
        sentence = (
            f"stopped ({fitted.outcome}){chosen} at a gap of {gap:.1e} after {passes:.0f} passes, above "
            f"--tol {request.model.tol:g}; raise {limit} or --tol, or scale the features"
        )
        code = ExitCode.NOT_CONVERGED
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


# --------------------------------------------------------------------------- predictions and scores


@dataclass(frozen=True)
class SampleOptions:
    """How a file is read for a model.

    form: auto (by the file's ending), libsvm, npz, csv or parquet.
    label: Label column of CSV and parquet: a name, or a number counted from 0 (or from the end, -1).
    offset: Column of the offsets, if its name differs from the training data.
    no_offset: Leave out the offset that the model was fitted with.
    ignore_extra: Leave out features that the model does not know.
    as_json: Print one JSON object.
    """

    form: str = options.option("auto", "--format")
    label: str | None = None
    offset: str | None = None
    no_offset: bool = False
    ignore_extra: bool = options.option(False, "--ignore-extra-features")
    as_json: bool = options.option(False, "--json")


@dataclass(frozen=True)
class PredictionOptions:
    """What is predicted, and where it goes.

    out: Write here instead of standard output.
    proba: Probabilities of the classes, as CSV; logistic loss only.
    decision: The values xᵀθ + b instead of classes or means.
    """

    out: Path | None = options.option(None, "--out", "-o")
    proba: bool = False
    decision: bool = False


def predict(
    model: Annotated[Path, typer.Argument(help="A model that adfs fit wrote.")],
    file: Annotated[
        str, typer.Argument(help="Samples, in any format of adfs fit; labels are not looked at.")
    ],
    output: PredictionOptions,
    samples: SampleOptions,
) -> None:
    """Predict, one line per sample.

    Examples
    --------
    adfs predict model.json test.svm.bz2 > labels.txt
    adfs predict model.json test.csv --proba --out probabilities.csv
    """
    if output.proba and output.decision:
        raise InputError("--proba and --decision are two different outputs: take one")
    check_outputs({"MODEL": model, "FILE": file}, {"--out": output.out})
    fitted, table = read_for(model, file, samples, labels_needed=False)
    compute = fitted.proba if output.proba else fitted.decision if output.decision else fitted.predict
    values = compute(table.X, table.offset)
    # Several columns have the classes as their heads.
    header: list[object] = list(fitted.classes or []) if values.ndim == 2 else []
    if samples.as_json:
        text = json.dumps({"columns": header or None, "predictions": values.tolist()}) + "\n"
    else:
        rows = values.tolist() if values.ndim == 2 else values[:, None].tolist()
        text = "".join(",".join(map(str, row)) + "\n" for row in ([header, *rows] if header else rows))
    if output.out is None:
        sys.stdout.write(text)
    else:
        write_whole(output.out, text)


def read_for(
    path: Path, file: str, samples: SampleOptions, *, weight: str | None = None, labels_needed: bool = True
) -> tuple[LinearModel, Table]:
    """Return a model, and a file's samples for it: features in the model's order, label and offset by name.

    Options override the names that the model has stored.
    """
    from adfs.data import Column, Encoding, LinearModel, RawTable, ReadOptions, align, read_raw

    model = LinearModel.load(path)
    if samples.no_offset and samples.offset is not None:
        raise InputError("--offset and --no-offset contradict each other: take one")
    label = samples.label if samples.label is not None else model.label
    offset = samples.offset if samples.offset is not None else model.offset
    encoding = model.encoding
    read = ReadOptions(samples.form, label, weight, offset=offset)
    if encoding is not None:
        read = replace(read, no_header=encoding.no_header, decimal=encoding.decimal)
    table = read_raw(file, replace(read, labels_needed=labels_needed, offset_needed=False))
    if isinstance(table, RawTable):
        # A model without an encoding takes columns of numbers, by their names if both have names.
        names = model.feature_names if table.named and model.feature_names else table.X.columns
        encoding = encoding or Encoding(tuple(Column(name) for name in names))
        extra = {*table.X.columns} - {column.name for column in encoding.columns} - {*encoding.dropped}
        if extra and not samples.ignore_extra:
            raise InputError(
                f"{file} has a column {min(extra)!r} that the model does not know; name the label with "
                "--label, or leave such columns out with --ignore-extra-features"
            )
        table = encoding.encode(table)
        for note in table.notes:
            print(f"adfs: {note}", file=sys.stderr)
    if samples.no_offset:
        table = replace(table, offset=None)
    elif offset is not None and table.offset is None:
        known = "" if samples.offset is not None else ", which the model was fitted with"
        raise InputError(
            f"{file} has no column {offset!r} of offsets{known}; add it, name another one with --offset, "
            "or predict without it by --no-offset"
        )
    (table,) = align(
        [table],
        n_features=model.n_features,
        index_base=model.index_base,
        ignore_extra=samples.ignore_extra,
        remedy="leave out those that the model does not know with --ignore-extra-features",
    )
    return model, table


def score(
    model: Annotated[Path, typer.Argument(help="A model that adfs fit wrote.")],
    file: Annotated[str, typer.Argument(help="Samples with labels, in any format of adfs fit.")],
    samples: SampleOptions,
    weight: Annotated[str | None, typer.Option(help="Column of sample weights of CSV and parquet.")] = None,
) -> None:
    """Score a model on samples with labels.

    The score is the share of right classes, R² for a regression, D² for losses with a log link
    (poisson, gamma, tweedie).

    Examples
    --------
    adfs score model.json test.svm.bz2
    adfs score model.json test.csv --label price --json
    """
    import numpy as np

    from adfs.prediction import explained_share, mean_score
    from adfs.problem import LOSSES, get_loss
    from adfs.problem.losses import check_labels

    fitted, table = read_for(model, file, samples, weight=weight)
    assert table.y is not None
    predicted = fitted.predict(table.X, table.offset)
    if (table.y.dtype.kind == "U") != (predicted.dtype.kind == "U"):
        raise InputError(f"{file}: its labels and those of the model are not of one kind (numbers, or text)")
    weights = np.ones(table.n_samples) if table.weights is None else table.weights
    if weights.min() < 0.0 or not weights.any():
        raise InputError(f"{file}: the weights must be at least 0, and one of them above 0")
    if fitted.classes is not None:
        metric, value = "accuracy", mean_score(predicted == table.y, weights)
    else:
        # A loss from outside is not known here, and its model is scored by R².
        name = fitted.loss if fitted.loss in LOSSES else "squared"
        given = {key: fitted.training.get(key) for key in LOSSES[name].parameters()}
        loss = get_loss(name, **{key: one for key, one in given.items() if isinstance(one, int | float)})
        check_labels(loss, table.y, file)
        metric = loss.score.lower().replace("²", "2")
        value = explained_share(loss.unit_deviances, table.y, predicted, weights)
    if samples.as_json:
        print(json.dumps({"metric": metric, "score": value, "n_samples": table.n_samples}))
    else:
        print(f"{metric} {value:.6f} ({table.n_samples} samples)")
