"""Every bad input gets one clear sentence that says what was wrong, where, and what to do."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import minimize_scalar

import adfs
from adfs.errors import AdfsError, InputError
from adfs.problem import GeneralProblem, Multinomial, MultinomialLogisticTerm, Problem, Shard, split

X = np.arange(12.0).reshape(4, 3)
Y = np.array([1.0, -1.0, 1.0, -1.0])


def changed(value: float, *, sparse: bool = False) -> Any:
    out = X.copy()
    out[2, 1] = value
    return sp.csr_array(out) if sparse else out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"X": changed(np.nan)}, "X contains NaN or infinity; clean or impute it first"),
        ({"X": changed(np.inf)}, "X contains NaN or infinity"),
        ({"X": changed(np.nan, sparse=True)}, "X contains NaN or infinity"),
        ({"X": X[0]}, "X must be two-dimensional (samples × features), got shape (3,)"),
        ({"X": X[None]}, "X must be two-dimensional (samples × features), got shape (1, 4, 3)"),
        ({"X": 3.0}, "X must be two-dimensional (samples × features), got shape ()"),
        ({"X": sp.coo_array(X[0])}, "X must be two-dimensional (samples × features), got shape (3,)"),
        ({"X": np.array([["a", "b"]] * 4, dtype=object)}, "X cannot be read as numbers; "),
        ({"X": [[1.0, 2.0], [3.0]]}, "X cannot be read as numbers; "),
        ({"X": X + 1j}, "X holds complex numbers; give their real parts"),
        ({"X": sp.csr_array(X + 1j)}, "X holds complex numbers; give their real parts"),
        ({"X": np.empty((4, 0))}, "X has no features (shape (4, 0))"),
        ({"X": np.empty((0, 3)), "y": []}, "X has no rows"),
        ({"y": [1.0, -1.0]}, "y must have one entry per row of X: X has 4 rows, y has shape (2,)"),
        ({"y": Y[:, None]}, "y must have one entry per row of X: X has 4 rows, y has shape (4, 1)"),
        ({"y": [1.0, np.nan, 1.0, 1.0]}, "y contains NaN or infinity"),
        ({"y": [1.0, np.inf, 1.0, 1.0], "loss": "squared"}, "y contains NaN or infinity"),
        ({"y": list("abcd")}, "y cannot be read as numbers; "),
        (
            {"y": [1, 0, 1, 0]},
            "y: the loss 'logistic' wants labels −1 and +1, and row 1 has another one; map your labels",
        ),
        ({"y": [1, -1, 1, 2], "loss": "hinge"}, "wants labels −1 and +1, and row 3 has another one"),
        ({"sigma": -1.0}, "sigma must be finite and above 0 at every node, node 0 has -1"),
        ({"sigma": 0.0}, "sigma must be finite and above 0 at every node, node 0 has 0"),
        ({"sigma": [1.0, np.nan]}, "sigma must be finite and above 0 at every node, node 1 has nan"),
        ({"sigma": np.inf}, "sigma must be finite and above 0 at every node, node 0 has inf"),
        ({"sigma": [1.0, 2.0, 3.0]}, "sigma must be one number or one per node (2 nodes), got shape (3,)"),
        ({"sigma": "strong"}, "sigma must be a number or one number per node, got 'strong'"),
        ({"loss": "squaredhinge"}, "unknown loss 'squaredhinge': did you mean 'squared_hinge'?"),
        ({"partition": "contigous"}, "unknown partition 'contigous': did you mean 'contiguous'?"),
        ({"partition": 7}, "partition must be a name or one index list per node, got 7"),
        ({"partition": [[0, 1, 2, 3]]}, "partition gives 1 index lists, but there are 2 nodes"),
        (
            {"partition": [[0, 1], [2]]},
            "partition holds row 3 0 times; every row must be given to exactly one",
        ),
        ({"partition": [[0, 1, 2], [2, 3]]}, "partition holds row 2 2 times"),
        ({"partition": [[0, 1, 2], [3, 4]]}, "partition holds row 4, but rows go from 0 to 3"),
        ({"partition": [[0, 1, 2], [-1]]}, "partition holds row -1, but rows go from 0 to 3"),
        ({"partition": [[0, 1, 2], [3.0]]}, "the list of node 1 must hold whole row numbers, got [3.0]"),
        ({"partition": [[0, 1, 2], ["d"]]}, "the list of node 1 must hold whole row numbers, got ['d']"),
        ({"partition": [[0, 1], [2, 3]], "concentration": 1.0}, "index lists take no options"),
        (
            {"partition": "label", "concentraton": 1.0},
            "unknown option of the partition 'label' 'concentraton': did you mean 'concentration'?",
        ),
        ({"partition": "random", "concentration": 1.0}, "unknown option of the partition 'random'"),
        ({"partition": "label", "concentration": 0.0}, "concentration must be finite and above 0, got 0.0"),
        (
            {"partition": "label", "concentration": np.nan},
            "concentration must be finite and above 0, got nan",
        ),
        (
            {"sample_weight": [1.0, 1.0, -0.5, 1.0]},
            "sample_weight must be finite and at least 0, that of row 2 is not",
        ),
        (
            {"sample_weight": [1.0, np.nan, 1.0, 1.0]},
            "sample_weight must be finite and at least 0, that of row 1 is not",
        ),
        (
            {"sample_weight": [1.0]},
            "sample_weight must have one entry per row of X: X has 4 rows, got shape (1,)",
        ),
        ({"sample_weight": list("abcd")}, "sample_weight cannot be read as numbers"),
        ({"n_nodes": 5}, "4 samples cannot be split over 5 nodes: every node needs one; use fewer nodes"),
        ({"n_nodes": 0}, "n_nodes must be a whole number of at least 1, got 0"),
        ({"n_nodes": 2.0}, "n_nodes must be a whole number of at least 1, got 2.0"),
        ({"n_nodes": True}, "n_nodes must be a whole number of at least 1, got True"),
    ],
)
def test_problem_refuses_bad_input_in_one_sentence(arguments: dict[str, Any], sentence: str) -> None:
    everything: dict[str, Any] = {"X": X, "y": Y, "loss": "logistic", "n_nodes": 2} | arguments
    with pytest.raises(InputError, match=re.escape(sentence)) as caught:
        Problem(**everything)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, AdfsError)
    assert "\n" not in str(caught.value)


def test_split_by_label_refuses_targets_that_are_no_classes() -> None:
    with pytest.raises(
        InputError, match=r"partition 'label' wants classes, but the 60 labels take 60 values"
    ):
        split("label", np.random.default_rng(0).standard_normal(60), 3)


@pytest.mark.parametrize(
    ("shards", "sentence"),
    [
        ([], "no shards were given; there must be at least one node"),
        ([(X, Y), (X,)], "shard 1 must be (X, y), (X, y, weights) or (X, y, weights, offset), got 1 parts"),
        ([(X, Y), (X[:, :2], Y)], "shards have different numbers of features ([2, 3])"),
        ([(X, Y), (X, Y[:3])], "shard 1: y must have one entry per row of X: X has 4 rows, y has shape (3,)"),
        ([(X, Y), (changed(np.nan), Y)], "shard 1: X contains NaN or infinity"),
        ([(X, 2 * Y)], "shard 0: y: the loss 'logistic' wants labels −1 and +1, and row 0 has another one"),
        ([(X, Y, -Y)], "shard 0: sample_weight must be finite and at least 0, that of row 0 is not"),
        ([Shard(X, Y, np.ones(3))], "shard 0: sample_weight must have one entry per row of X"),
        ([7], "shard 0 must be (X, y), (X, y, weights) or (X, y, weights, offset), got int"),
    ],
)
def test_problem_refuses_bad_shards_in_one_sentence(shards: list[Any], sentence: str) -> None:
    with pytest.raises(InputError, match=re.escape(sentence)):
        Problem.from_shards(shards)


@pytest.mark.parametrize("method", ["objective", "gradient", "hessian"])
@pytest.mark.parametrize("theta", [np.zeros(2), np.zeros(4), 0.0, np.zeros((2, 4)), np.zeros((1, 1, 3))])
def test_problem_refuses_a_parameter_of_the_wrong_shape(method: str, theta: Any) -> None:
    with pytest.raises(InputError, match=r"theta must have shape \(3,\)"):
        getattr(Problem(X, Y), method)(theta)


@pytest.mark.parametrize("method", ["dual_objective", "primal_from_dual", "duality_gap", "clip_to_domain"])
@pytest.mark.parametrize("s", [np.zeros(3), np.zeros((4, 1)), 0.0])
def test_problem_refuses_duals_of_the_wrong_shape(method: str, s: Any) -> None:
    with pytest.raises(InputError, match=r"s must have shape \(4,\), got "):
        getattr(Problem(X, Y), method)(s)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"y": [0, 1, 2, -1]}, "are whole numbers from 0, and row 3 has another one; number your"),
        ({"y": [0, 1, 2, 0.5]}, "wants labels that are whole numbers from 0, and row 3 has another one"),
        ({"y": [0, 1, 2, np.nan]}, "y contains NaN or infinity"),
        ({"y": list("abca")}, "y cannot be read as numbers"),
        ({"y": [0, 1]}, "y must have one entry per row of X: X has 4 rows, y has shape (2,)"),
        ({"n_classes": 2}, "wants labels that are whole numbers from 0 to 1, and row 2 has another one"),
        ({"n_classes": -2}, "n_classes must be a whole number of at least 1, got -2"),
        ({"X": changed(np.nan)}, "X contains NaN or infinity"),
        ({"X": np.empty((0, 3)), "y": []}, "X has no rows"),
        ({"sigma": -1.0}, "sigma must be finite and above 0"),
        (
            {"sample_weight": [1.0, 1.0, 1.0, -1.0]},
            "sample_weight must be finite and at least 0, that of row 3 is not",
        ),
        ({"n_nodes": 0}, "n_nodes must be a whole number of at least 1, got 0"),
        ({"n_nodes": 9}, "4 samples cannot be split over 9 nodes"),
        ({"partition": "contiguos"}, "unknown partition 'contiguos': did you mean 'contiguous'?"),
    ],
)
def test_problem_refuses_bad_multinomial_input(arguments: dict[str, Any], sentence: str) -> None:
    everything: dict[str, Any] = {"X": X, "y": [0, 1, 2, 0]} | arguments
    with pytest.raises(InputError, match=re.escape(sentence)):
        Problem(loss=Multinomial(everything.pop("n_classes", 0)), **everything)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            {"X": [[1e-163], [1e-163]], "sigma": 5e-324},
            "sigma must be between 2.2e-308 and",
        ),
        (
            {"sigma": 1e308, "n_nodes": 2},
            "1.8e+308 in all, node 0 has 1e+308",
        ),
        ({"X": [[1.0], [1e-163]]}, "row 1 has a squared norm that is not a double; scale X"),
        ({"X": [[1.0], [1e-160]]}, "row 1 has a squared norm that is not a double; scale X"),
        ({"X": [[1e155], [1.0]]}, "X holds a number beyond ±1e+150 in row 0, whose square"),
        ({"X": [[1e160], [1e160]], "loss": "squared"}, "X holds a number beyond ±1e+150 in row 0"),
        ({"sample_weight": [1.0, 1e-310]}, "row 1 has a weight too small to divide by"),
        (
            {"X": [[1.0], [1e-150]], "sample_weight": [1.0, 1e-10]},
            "row 1 has weight × squared norm / sigma",
        ),
        (
            {"X": [[1.0], [1e100]], "sigma": 1e-300},
            "row 1 has weight × squared norm / sigma",
        ),
        ({"y": [1.0, -1e155], "loss": "squared"}, "y holds a number beyond ±1e+150 in row 1, whose square"),
    ],
)
def test_problem_refuses_what_doubles_cannot_hold(
    sparse: bool, arguments: dict[str, Any], sentence: str
) -> None:
    everything: dict[str, Any] = {"X": [[1.0], [2.0]], "y": [1, 1]} | arguments
    everything["X"] = sp.csr_array(np.array(everything["X"])) if sparse else everything["X"]
    with pytest.raises(InputError, match=re.escape(sentence)):
        Problem(**everything)


def test_problem_names_the_place_of_what_doubles_cannot_hold() -> None:
    with pytest.raises(InputError, match="shard 1: row 2 has a squared norm"):
        Problem.from_shards([([[1.0]], [1.0]), ([[1.0], [0.0], [1e-161]], [1.0, 1.0, 1.0])])
    with pytest.raises(InputError, match="row 0 has a weight"):
        Problem(np.ones((3, 1)), np.ones(3), n_nodes=2, partition=[[2], [1, 0]], sample_weight=[1e-310, 1, 1])
    # Zeros are not too small, and what has no weight is not looked at.
    fine = Problem([[0.0], [1e-200], [1.0]], [1, 1, 1], sample_weight=[1.0, 0.0, 1.0])
    assert fine.active.tolist() == [False, False, True]


@pytest.mark.parametrize("size", [1e-140, 1e-60, 1e60, 1e140])
@pytest.mark.parametrize("sigma", [1e-200, 1.0, 1e200])
def test_certificate_is_never_false_at_the_ends_of_the_range(size: float, sigma: float) -> None:
    """In the variable m = size·θ the minimum is that of a problem of ordinary size, whatever σ/size² is."""
    rows, signs = np.array([1.0, -2.0, 0.5]), np.array([1.0, -1.0, -1.0])
    try:
        problem = Problem(size * rows[:, None], signs, sigma=sigma)
    except InputError as error:
        assert "beyond doubles" in str(error)  # noqa: PT017
        return
    run = adfs.simulate("adfs", problem, tol=1e-6, max_passes=200.0)

    def value(m: float) -> float:
        penalty = 0.5 * sigma * (m / size) * (m / size)
        return float(np.logaddexp(0.0, -m * signs * rows).sum() + penalty)

    if run.converged:
        # With a penalty this large nothing is gained by leaving 0.
        free = sigma / size < 1e12 * size
        least = minimize_scalar(value, bounds=(-20.0, 20.0), method="bounded").fun if free else value(0.0)
        assert value(size * float(run.coef[0])) - least <= 2e-6 * value(0.0)


def test_general_problem_refuses_bad_input() -> None:
    term = MultinomialLogisticTerm(np.ones(2), 0, 2)
    with pytest.raises(InputError, match="no terms were given; there must be at least one node"):
        GeneralProblem([], 4)
    with pytest.raises(InputError, match=r"node 1, term 0: expected an adfs\.problem\.Term, got int"):
        GeneralProblem([[term], [3]], 4)  # type: ignore[list-item]
    with pytest.raises(InputError, match="n_features must be at least 1, got 0"):
        GeneralProblem([[term]], 0)
    for smoothness in ([np.nan], [1.0, 2.0], [0.1]):
        with pytest.raises(InputError, match="smoothness must be one number per term"):
            GeneralProblem([[term]], 4, smoothness=smoothness)
