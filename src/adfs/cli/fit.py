"""``adfs fit``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adfs.cli import options

if TYPE_CHECKING:
    from adfs.cli.fitting import FitRequest, Fitted
    from adfs.files import JsonObject

EXAMPLES = """\b
Examples:
  adfs fit a9a.bz2 --loss logistic -C 1 --out model.json
  adfs fit houses.csv --label price --loss squared --alpha 10 --out model.json
  adfs fit train.svm --nodes 16 --network torus --parameters tuned --tau 50 --out model.json
  adfs fit site-1.svm site-2.svm site-3.svm --network path --out model.json
  mpiexec -n 4 adfs fit 'shard-{rank}.svm' --network cycle --out model.json
  adfs fit claims.csv --label paid --loss squared --offset expected --summary --out model.json
  adfs fit train.csv --label kind --standardize --cv 5 --C-grid 0.01,0.1,1 --out model.json
  adfs fit big.svm --checkpoint run.ckpt --resume --max-seconds 3600 --out model.json

Exit code 1 means that the tolerance was not reached, 130 that the fit was interrupted (Ctrl-C), 143 that it
was told to end (SIGTERM): the model is written all the same and says so.
"""


def run(
    files: Annotated[
        list[str],
        typer.Argument(help="One file, split over --nodes; or several files, one per node.", metavar="FILE"),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Where the model goes; standard output when not given.")
    ] = None,
    loss: options.Loss = "logistic",
    C: Annotated[
        float | None, typer.Option("-C", help="Classification: minimise C Σ w·loss + ½‖θ‖² (default 1).")
    ] = None,
    alpha: Annotated[
        float | None,
        typer.Option("--alpha", help="Regression: minimise Σ w·loss + (alpha/2)‖θ‖², as Ridge (default 1)."),
    ] = None,
    penalty: Annotated[str, typer.Option("--penalty", help="l2, or elasticnet with --l1-ratio.")] = "l2",
    intercept: Annotated[
        bool,
        typer.Option(
            "--intercept/--no-intercept",
            help="Learn an intercept, which is not penalised.",
        ),
    ] = True,
    intercept_scaling: Annotated[
        float | None,
        typer.Option(
            "--intercept-scaling", help="Penalise the intercept as liblinear does: a column that holds this."
        ),
    ] = None,
    l1_ratio: Annotated[
        float, typer.Option("--l1-ratio", help="Share of the l1 norm in the penalty, below 1 (elastic net).")
    ] = 0.0,
    standardize: Annotated[
        bool,
        typer.Option(
            "--standardize", help="Scale the columns first; coefficients are those of the columns as given."
        ),
    ] = False,
    class_weight: Annotated[str | None, typer.Option("--class-weight", help="balanced, or nothing.")] = None,
    multi_class: Annotated[str, typer.Option("--multi-class", help="auto, ovr, or multinomial.")] = "auto",
    summary: Annotated[
        bool,
        typer.Option("--summary", help="Print coefficients with standard errors, z, P>|z| and intervals."),
    ] = False,
    robust: Annotated[
        bool,
        typer.Option(
            "--robust",
            help="With --summary: standard errors that hold where the model does not (sandwich, HC0).",
        ),
    ] = False,
    cv: Annotated[
        int | None,
        typer.Option("--cv", min=2, help="Choose -C or --alpha by so many folds inside each node's rows."),
    ] = None,
    C_grid: Annotated[
        str | None, typer.Option("--C-grid", help="With --cv: the values of C to try, 0.01,0.1,1.")
    ] = None,
    alpha_grid: Annotated[
        str | None, typer.Option("--alpha-grid", help="With --cv: the values of alpha to try.")
    ] = None,
    cv_plot: Annotated[
        Path | None, typer.Option("--cv-plot", help="With --cv: draw the scores here (PNG, PDF or SVG).")
    ] = None,
    delta: Annotated[float, typer.Option("--delta", help="Of the huber loss.")] = 1.0,
    quantile: Annotated[float, typer.Option("--quantile", help="Of the quantile losses.")] = 0.5,
    width: Annotated[float, typer.Option("--width", help="Of the smoothed losses.")] = 0.5,
    epsilon: Annotated[float, typer.Option("--epsilon", help="Of the epsilon_insensitive loss.")] = 0.1,
    form: options.Form = "auto",
    label: options.Label = None,
    weight: options.Weight = None,
    offset: options.Offset = None,
    n_features: options.NFeatures = None,
    index_base: options.IndexBase = None,
    nodes: Annotated[
        int | None,
        typer.Option("--nodes", min=1, help="Split the samples over so many nodes (default 1)."),
    ] = None,
    network: Annotated[
        str,
        typer.Option(
            "--network",
            help="How the nodes are linked: cycle, torus, grid:3x3, …, a file of edges.",
        ),
    ] = "cycle",
    partition: options.Partition = None,
    method: Annotated[
        str,
        typer.Option(
            "--method",
            help="auto: what is predicted to be the least work of adfs, adfs-block, newton, lbfgs and qning, "
            "or interior-point or ns-adfs for losses that are not smooth; msda, …",
        ),
    ] = "auto",
    parameters: options.ParameterChoice = None,
    tau: Annotated[
        str | None,
        typer.Option(
            "--tau",
            help="Time of a message, one sample's computation taking 1, for tuned parameters; "
            "over MPI also: measure.",
        ),
    ] = None,
    schedule: options.Schedule = "iid",
    tol: Annotated[float, typer.Option("--tol", help="Stop at this certified relative duality gap.")] = 1e-6,
    max_passes: Annotated[
        float, typer.Option("--max-passes", help="Stop after so many passes over the data.")
    ] = 10_000.0,
    max_seconds: options.MaxSeconds = None,
    checkpoint: options.Checkpoint = None,
    checkpoint_every: Annotated[
        float, typer.Option("--checkpoint-every", help="Seconds between two checkpoints.")
    ] = 60.0,
    resume: options.Resume = False,
    seed: options.Seed = 0,
    deadline: Annotated[
        float, typer.Option("--deadline", help="Over MPI: give up when a rank is silent for so many seconds.")
    ] = 60.0,
    history: options.History = None,
    timeline: Annotated[
        Path | None,
        typer.Option(
            "--timeline", help="Over MPI: draw who waited for whom into this file (PNG, PDF or SVG)."
        ),
    ] = None,
    as_json: options.Json = False,
    progress: options.Progress = None,
    imports: options.Imports = None,
) -> int:
    """Fit a linear model to a certified error.

    Files are LIBSVM text (plain, gz, bz2, xz), .npz (X and y, or a CSR matrix and y), CSV or parquet with a
    label column.
    """
    from adfs.errors import InputError
    from adfs.files import check_outputs, write_whole
    from adfs.launching import launched_by_mpi

    if resume and checkpoint is None:
        raise InputError("--resume wants the --checkpoint to resume from")
    if as_json and out is None:
        raise InputError("--json prints a summary of the fit: say with --out where the model goes")
    over_mpi = launched_by_mpi()
    if timeline is not None and not over_mpi:
        raise InputError("--timeline shows who waited for whom over MPI: start several ranks with mpiexec -n")
    options.check_figure("--timeline", timeline)
    options.check_figure("--cv-plot", cv_plot)
    if cv is None and (C_grid or alpha_grid or cv_plot):
        raise InputError("--C-grid, --alpha-grid and --cv-plot are for cross-validation: say --cv 5")
    if summary and out is None:
        raise InputError("--summary prints a table: say with --out where the model goes")
    if robust and not summary:
        raise InputError("--robust is about the standard errors of --summary: say that too")
    outputs = {"--out": out, "--history": history, "--timeline": timeline, "--cv-plot": cv_plot}
    if not over_mpi:
        check_outputs({"FILE": files}, outputs | {"--checkpoint": checkpoint})
    else:  # a checkpoint is one file per rank, in a folder
        check_outputs({"FILE": _all_names(files)}, outputs, folders={"--checkpoint": checkpoint})
    if not over_mpi and any("{rank}" in name or "{node}" in name for name in files):
        raise InputError(
            "{rank} and {node} in a file's name are for several processes: start them with mpiexec -n, "
            "or name the files, one per node"
        )
    options.check_positive(
        {
            "--tol": tol,
            "--max-passes": max_passes,
            "--max-seconds": max_seconds,
            "--checkpoint-every": checkpoint_every,
            "--deadline": deadline,
        }
    )
    if class_weight not in (None, "balanced"):
        raise InputError(f"--class-weight is balanced or left out, got {class_weight!r}")

    from adfs.cli.app import TERMINATED
    from adfs.cli.fitting import FitRequest, fit_files
    from adfs.data import ReadOptions
    from adfs.problem.losses import LOSSES
    from adfs.runtimes import RunOptions

    options.load_imports(imports)
    settings = {
        "penalty": penalty,
        "l1_ratio": l1_ratio,
        "fit_intercept": intercept,
        "intercept_scaling": intercept_scaling,
        "standardize": standardize,
        "inference": summary,
        "tol": tol,
        "max_iter": max_passes,
        "method": method,
        "parameters": parameters,
        "tau": _tau(tau, over_mpi),
        "schedule": schedule,
    }
    run = RunOptions(
        seed=seed,
        seconds=max_seconds,
        checkpoint=checkpoint,
        checkpoint_every=checkpoint_every,
        resume=resume,
        progress=progress,
    )
    known = LOSSES[loss].parameters() if loss in LOSSES else {}
    constants = {"delta": delta, "quantile": quantile, "width": width, "epsilon": epsilon}
    request = FitRequest(
        files=tuple(files),
        read=ReadOptions(form, label, weight, n_features, index_base, offset=offset),
        loss=loss,
        constants={name: number for name, number in constants.items() if name in known},
        C=C,
        alpha=alpha,
        class_weight=class_weight,
        multi_class=multi_class,
        settings=settings,
        cv=cv,
        grid=_grid(loss, C_grid, alpha_grid),
        nodes=nodes,
        network=network,
        partition=partition,
        run=run,
        deadline=deadline,
    )

    def finish(fitted: Fitted) -> int:
        if history is not None:
            write_whole(history, fitted.history.to_csv(index=False))
        if out is None:
            sys.stdout.write(fitted.model.to_json())
        else:
            fitted.model.save(out)
        if as_json:
            print(json.dumps(fitted.summary | {"out": str(out)}))
        if summary:
            best = getattr(fitted.estimator, "best_estimator_", None)
            found = (best or fitted.estimator).summary(robust=robust)
            print(found, file=sys.stderr if as_json else sys.stdout)
        if cv is not None and not as_json:
            print(_score_table(fitted.summary), file=sys.stderr)
        if cv_plot is not None:
            options.save_figure(cv_plot, fitted.estimator.plot())
        if over_mpi:
            _show_account(fitted.account, timeline, progress)
        return _tell_end(fitted, request, out)

    try:
        return fit_files(request, finish)
    except KeyboardInterrupt as error:
        if not error.args:
            raise
        return TERMINATED  # before there was a model


def _grid(loss: str, C_grid: str | None, alpha_grid: str | None) -> tuple[float, ...]:
    """Return the weights to try, as numbers."""
    from adfs.errors import InputError

    given = options.the_one_for(loss, C_grid, alpha_grid, ("--C-grid", "--alpha-grid"))
    option = "--C-grid" if C_grid is not None else "--alpha-grid"
    try:
        values = tuple(float(word) for word in given.split(",")) if given is not None else ()
    except ValueError:
        raise InputError(f"{option} is a list of numbers such as 0.01,0.1,1, got {given!r}") from None
    for value in values:
        if not 0.0 < value < float("inf"):
            raise InputError(f"{option} must hold numbers above 0, got {value:g}")
    return values


def _score_table(summary: JsonObject) -> str:
    """Return what cross-validation found: the mean score of each weight tried, and the folds' extremes."""
    found, name = summary["cv"], "C" if "C" in summary else "alpha"
    lines = [f"{name:>10}{found['score']:>10}{'lowest':>10}{'highest':>10}"]
    for one in found["tried"]:
        scores = one["score"], min(one["scores"]), max(one["scores"])
        lines.append(f"{one[name]:>10g}" + "".join(f"{score:>10.4f}" for score in scores))
    return "\n".join(lines)


def _best_weight(summary: JsonObject) -> str:
    """Say what cross-validation chose, where it was asked to."""
    if "cv" not in summary:
        return ""
    name = "C" if "C" in summary else "alpha"
    tried, folds = len(summary["cv"]["tried"]), summary["cv"]["folds"]
    unfinished = summary["cv"]["unfinished"]
    short = f" ({unfinished} of {tried * folds} fits ended above --tol)" if unfinished else ""
    return f" with {name} = {summary[name]:g}, the best of {tried} on {folds} folds{short}"


def _tell_end(fitted: Fitted, request: FitRequest, out: Path | None) -> int:
    """Say how the fit ended, and return the exit code for it."""
    from adfs.cli.app import INTERRUPTED, NOT_CONVERGED
    from adfs.runtimes.loop import Outcome

    gap, passes = fitted.summary["gap"], fitted.summary["passes"]
    where = "" if out is None else f"; the model is in {out}"
    if fitted.outcome is Outcome.CONVERGED:
        print(
            f"adfs: converged to a certified relative gap of {gap:.1e} in {passes:.3g} passes and "
            f"{fitted.summary['seconds']:.3g} s by {_method(fitted)}{_best_weight(fitted.summary)}{where}",
            file=sys.stderr,
        )
        return 0
    if fitted.outcome is Outcome.STOPPED:
        print(f"adfs: the model so far, at a gap of {gap:.1e}, was written{where}", file=sys.stderr)
        return INTERRUPTED
    if fitted.outcome is Outcome.DIVERGED:
        advice = "scale the features to about 1, or raise the penalty (a smaller -C, a larger --alpha)"
        print(f"adfs: diverged after {passes:.3g} passes; {advice}", file=sys.stderr)
        return NOT_CONVERGED
    enough = request.run.seconds is None or passes >= 0.99 * request.settings["max_iter"]
    short = "--max-passes" if enough else "--max-seconds"
    print(
        f"adfs: stopped ({fitted.outcome}){_best_weight(fitted.summary)} at a gap of {gap:.1e} after "
        f"{passes:.0f} passes, above --tol {request.settings['tol']:g}; raise {short} or --tol, "
        "or scale the features",
        file=sys.stderr,
    )
    return NOT_CONVERGED


def _method(fitted: Fitted) -> str:
    """Return the method's name, and why it was chosen where it was."""
    name, reason = fitted.summary["method"], fitted.summary["reason"]
    return f"{name} ({reason})" if reason else str(name)


def _all_names(files: list[str]) -> list[str]:
    """Return the files of all ranks, where one name stands for them."""
    from adfs.launching import launch_of

    launch = launch_of()
    count = launch.size if launch is not None else 1
    return [name.replace("{rank}", str(k)).replace("{node}", str(k)) for name in files for k in range(count)]


def _tau(words: str | None, over_mpi: bool) -> float | str | None:
    """Return τ as a number, or the wish to measure it."""
    from adfs.errors import InputError

    if words is None:
        return None
    if words == "measure":
        if not over_mpi:
            raise InputError("--tau measure measures messages between ranks: start several with mpiexec -n")
        return words
    try:
        return float(words)
    except ValueError:
        raise InputError(f"--tau is a number or measure, got {words!r}") from None


def _show_account(account: dict[str, object], timeline: Path | None, progress: bool | None) -> None:
    """Show how the ranks spent their time; of several classes, in the last one's run."""
    from adfs.runtimes.mpi import draw_timeline, rank_table
    from adfs.runtimes.progress import wanted_on_screen

    if timeline is not None:
        options.save_figure(timeline, draw_timeline(account))
    if wanted_on_screen(progress):
        table = rank_table(account).to_string(float_format=lambda value: f"{value:.3g}")
        print(f"seconds, messages and bytes of each rank\n{table}", file=sys.stderr)
