"""A comparison over a grid: every combination of some values is a comparison, and a map of who wins where."""

from __future__ import annotations

import itertools
import math
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from adfs.algorithms import METHODS
from adfs.errors import InputError
from adfs.experiments.comparison import Comparison, MethodSpec
from adfs.experiments.inputs import TomlTable, check_keys, make_problem, read_table, to_toml, with_paths
from adfs.experiments.results import load_runs, markdown, run_path, time_to
from adfs.experiments.runner import Task, in_processes, is_finished, make_run, prepare
from adfs.files import JsonObject, load_modules, write_whole
from adfs.pages import number
from adfs.planning import Facts, predict
from adfs.planning.choice import is_predictable
from adfs.runtimes import Run

# A run is given up when its clock passes this many times that of the best finished one.
_PATIENCE = 2.0
# Fields that all comparisons of a grid share.
_SHARED = ("methods", "seeds", "title", "imports")
_SYMBOLS = {"n_features": "d", "samples_per_node": "m"}


class Point(NamedTuple):
    """A comparison of a grid, its values in words by the names of the axes, and the name of its folder."""

    place: dict[str, str]
    comparison: Comparison
    name: str


@dataclass(frozen=True, eq=False)
class Grid:
    """Comparisons that differ in some fields.

    Parameters
    ----------
    table : mapping
        The fields that all comparisons share, as `Comparison.from_table` takes them.
    axes : mapping of str to list
        The values of the other fields; every combination is a comparison.

    Examples
    --------
    >>> table = {"data": "synthetic:90x3", "methods": ["adfs", "msda"]}
    >>> grid = Grid(table, {"tau": [1.0, 50.0], "network": ["cycle:9", "grid:3x3"]})
    >>> [[point.name for point in column] for column in grid.columns()]
    [['cycle-9_tau-1.0', 'cycle-9_tau-50.0'], ['grid-3x3_tau-1.0', 'grid-3x3_tau-50.0']]
    """

    table: TomlTable
    axes: Mapping[str, Sequence[Any]]

    def __post_init__(self) -> None:
        check_keys(self.axes, Comparison, "a grid")
        for key, values in self.axes.items():
            if key in _SHARED:
                raise InputError(f"grid: all comparisons have the same {key}: put it above [grid]")
            if not isinstance(values, list | tuple) or not values:
                raise InputError(f"grid: {key} must be a list of values, got {values!r}")
            # Folders and tables are named after the values.
            names = [_words(value, place) for place, value in enumerate(values)]
            twice = next((name for name in names if names.count(name) > 1), None)
            if twice is not None:
                raise InputError(f"grid: {key} has the value {twice!r} twice")

    def columns(self) -> list[list[Point]]:
        """Return the comparisons; those that differ in τ alone together, because they can share runs."""
        keys = sorted(self.axes, key=lambda key: key == "tau")
        named = ([(key, _words(value, k), value) for k, value in enumerate(self.axes[key])] for key in keys)
        points = []
        for chosen in itertools.product(*named):
            # Numbers alone would not say what they are.
            told = [
                f"{key} {words}" if isinstance(value, int | float) else words for key, words, value in chosen
            ]
            table = {**self.table, **{key: value for key, _, value in chosen}, "title": ", ".join(told)}
            name = re.sub(r"[^\w.+-]+", "-", "_".join(told)).lower()
            place = {key: words for key, words, _ in chosen}
            points.append(Point(place, Comparison.from_table(table), name))
        height = len(self.axes.get("tau", [None]))
        return [points[first : first + height] for first in range(0, len(points), height)]


def _words(value: object, place: int) -> str:
    """Return the value of an axis in words; ``place`` is its place in the list."""
    if isinstance(value, Mapping):
        others = [f"{_SYMBOLS.get(key, key)} = {value[key]}" for key in value if key != "source"]
        return ", ".join([Path(value.get("source", "")).name, *others])
    if isinstance(value, list | tuple):  # a network as its edges, for instance
        return f"number {place + 1}"
    return value if isinstance(value, str) else to_toml(value)


def read_grid(path: str | Path, overrides: TomlTable | None = None, *, quick: bool = False) -> Grid:
    """Read a comparison over a grid from a TOML file.

    Parameters
    ----------
    path : path
        Of a file with a table ``[grid]`` of lists.
    overrides : mapping, optional
        Fields that replace those of the file, or a whole list of its grid.
    quick : bool
        Whether the lists of the table ``[quick]``, which are parts of those in ``[grid]``, replace them.
    """
    table, given = read_table(path, overrides), overrides or {}
    try:
        axes, few = (_lists(table, name, Path(path).parent.absolute()) for name in ("grid", "quick"))
        if quick and not few:
            raise InputError("there is no table [quick] with some of the values of [grid]")
        for key, values in few.items():
            extra = [value for value in values if value not in axes.get(key, [])]
            if extra:
                raise InputError(f"quick: {key} = {to_toml(extra[0])} is not in the grid")
        if "data" in axes and "data" in given and "source" not in table["data"]:
            raise InputError("the data are a list of the grid, which only --data can replace")
        shared = {key: value for key, value in table.items() if key not in ("grid", "quick")}
        chosen = axes | (few if quick else {})
        return Grid(shared, {key: values for key, values in chosen.items() if key not in given})
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _lists(table: TomlTable, name: str, base: Path) -> dict[str, list[Any]]:
    """Return a table of lists, with paths relative to ``base`` made absolute."""
    lists = table.get(name, {})
    if not isinstance(lists, Mapping) or not all(isinstance(values, list) for values in lists.values()):
        raise InputError(f"{name} must be a table of lists, got {lists!r}")
    # The result has another key where networks change.
    return {
        key: [next(iter(with_paths({key: value}, base).values())) for value in lists[key]] for key in lists
    }


# --------------------------------------------------------------------------- running


def run_grid(
    grid: Grid,
    folder: str | Path,
    *,
    jobs: int = 1,
    fresh: bool = False,
    progress: bool | None = None,
    origin: Path | None = None,
) -> pd.DataFrame:
    """Run the comparisons of a grid, or those that are not finished yet, and write their times.

    The methods of a comparison run one after another, in the order of the planner's predictions. A run is
    given up when its clock passes twice the best finished one, among the methods that need nothing that it
    does not need: sums over all nodes, or solvers of whole local problems. A finished run is timed again for
    every other τ that leaves its parameters as they are.

    Parameters
    ----------
    grid : Grid
    folder : path
        Gets the folder of each comparison in ``points``, ``times.csv`` and ``winners.md``.
    jobs, fresh, progress, origin
        As for `run_comparison`. A job is all comparisons that differ in τ alone.

    Returns
    -------
    pandas.DataFrame
        One row per comparison and method: the values of the axes; ``method``, ``label``; ``sums`` and
        ``local``, what the method needs; ``predicted``, the planner's time, inf without one; ``time``, the
        median over seeds, a lower bound unless ``reached``.
    """
    folder, columns = Path(folder), grid.columns()
    for point in itertools.chain(*columns):
        point.comparison.check_names()
    for point in itertools.chain(*columns):
        prepare(folder / "points" / point.name, point.comparison, origin, fresh)
    make = partial(_run_column, folder / "points")
    found = in_processes(make, columns, jobs, progress, folder / "points")
    times = pd.DataFrame([row for rows, _ in found for row in rows])
    if len(times):
        write_whole(folder / "times.csv", times.to_csv(index=False))
        write_whole(folder / "winners.md", markdown(winners_text(winners(times))))
    for error in (error for _, errors in found for error in errors):
        raise error
    return times


def _run_column(
    folder: Path, column: Sequence[Point]
) -> tuple[str, tuple[list[JsonObject], list[InputError]]]:
    """Run comparisons that differ in τ alone; return a line, the rows of the table, and what went wrong."""
    line = column[0].name
    load_modules(column[0].comparison.imports)  # a new process has not imported them yet
    try:
        predicted = _predicted([point.comparison for point in column])
    except InputError as error:  # of the data or the network
        return line, ([], [InputError(f"{line}: {error}")])
    rows, errors = list[JsonObject](), list[InputError]()
    # The seeds outside: the problem of a seed is kept for all τ.
    for seed in column[0].comparison.seeds:
        for point, times in zip(column, predicted, strict=True):
            others = [folder / other.name for other in column if other is not point]
            order = sorted(point.comparison.methods, key=lambda entry: times[entry.label])
            errors += _run_point(folder / point.name, point.comparison, order, seed, others)
    for point, times in zip(column, predicted, strict=True):
        results = load_runs(point.comparison, folder / point.name)
        for entry in (entry for entry in point.comparison.methods if results.of(entry.label)):
            time, reached = results.median_time(entry.label, point.comparison.target)
            needs = dict(zip(("sums", "local"), _needs(entry), strict=True))
            found = {"predicted": times[entry.label], "time": time, "reached": reached}
            rows.append({**point.place, "method": entry.method, "label": entry.label, **needs, **found})
    return line, (rows, errors)


def _needs(entry: MethodSpec) -> tuple[bool, bool]:
    method = METHODS[entry.method]
    return method.needs_sums, method.solves_locally


def _predicted(comparisons: Sequence[Comparison]) -> list[dict[str, float]]:
    """Return the planner's times for comparisons that differ in τ alone: by label, inf where it has none."""
    first = comparisons[0]
    problem, network = make_problem(first, first.seeds[0])
    facts, tol = Facts.of(problem), first.target / (1.0 if first.relative else problem.value_at_zero)
    predicted = []
    for comparison in comparisons:
        tau, times = comparison.tau, {entry.label: math.inf for entry in comparison.methods}
        delays = comparison.delays.make(tau, network)
        # A plan is made with the default constants of each method.
        for entry in (entry for entry in comparison.methods if entry.parameters is None):
            if is_predictable(entry.method, facts, network, tol, tau):
                times[entry.label] = predict(entry.method, facts, network, delays, tol).time
        predicted.append(times)
    return predicted


def _run_point(
    folder: Path, comparison: Comparison, order: Iterable[MethodSpec], seed: int, others: Sequence[Path]
) -> list[InputError]:
    """Run the methods of a comparison in an order; return what went wrong.

    ``others`` are folders of comparisons that differ in τ alone.
    """
    finished: list[tuple[MethodSpec, float]] = []
    errors = []
    column = "relative" if comparison.relative else "suboptimality"
    for entry in order:
        # What needs less is the best of more maps: a rival that needs more must not end its run.
        rivals = (time for rival, time in finished if all(map(operator.le, _needs(rival), _needs(entry))))
        patience = _PATIENCE * min(rivals, default=math.inf)
        task = Task(comparison, entry, seed, run_path(folder, entry, seed), patience)
        places = [task.path, *(run_path(other, entry, seed) for other in others)]
        if not any(is_finished(task, path) for path in places):
            _, error = make_run(task)
            if error is not None:
                errors.append(error)
                continue
        finished.append((entry, time_to(Run.load(task.path).frame, comparison.target, column)))
    return errors


# --------------------------------------------------------------------------- who wins where


def winners(times: pd.DataFrame) -> pd.DataFrame:
    """Return the best method of each comparison, simulated and predicted.

    Parameters
    ----------
    times : pandas.DataFrame
        Of `run_grid`, or the rows of some of the methods.

    Returns
    -------
    pandas.DataFrame
        One row per comparison: the values of the axes; ``winner``, its ``time``, and ``lead``, how many times
        as long the next method takes (a lower bound unless ``exact``; other parameters of the same method do
        not count); ``predicted``, the method that the planner predicts to be the best, and ``loss``, how many
        times as long as the winner it takes (at least, where it was given up). A comparison that no method
        finished has no winner.
    """
    axes, rows = list(times.columns[: times.columns.get_loc("method")]), []
    for _, here in times.groupby(axes, sort=False):
        simulated = np.where(here["reached"], here["time"], math.inf)
        best, chosen = int(np.argmin(simulated)), int(np.argmin(here["predicted"]))
        # The next method is the one that took least, or was given up first; not another form of this one.
        rest = here[here["method"] != here["method"].iloc[best]]
        second = None if rest.empty else rest.loc[rest["time"].idxmin()]
        label, took = here["label"].to_numpy(), here["time"].to_numpy()
        done = math.isfinite(simulated[best])
        rows.append(
            {
                **here[axes].iloc[0].to_dict(),
                "winner": label[best] if done else "",
                "time": simulated[best],
                "lead": second["time"] / took[best] if done and second is not None else math.nan,
                "exact": second is not None and bool(second["reached"]),
                "predicted": label[chosen] if math.isfinite(here["predicted"].iloc[chosen]) else "",
                "loss": took[chosen] / took[best] if done else math.nan,
            }
        )
    return pd.DataFrame(rows)


def winners_text(found: pd.DataFrame) -> pd.DataFrame:
    """Return the winners as text: one row per comparison, its values as the index."""
    lead = found["lead"].map(number).where(found["exact"], "> " + found["lead"].map(number))
    shown = found.assign(time=found["time"].map(number), lead=lead, loss=found["loss"].map(number))
    return shown.drop(columns="exact").set_index(list(found.columns[: found.columns.get_loc("winner")]))
