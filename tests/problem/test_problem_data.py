"""What a problem takes in: dense and sparse rows, partitions, shards, weights, and the awkward sizes."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from adfs.errors import InputError
from adfs.problem import Problem, Samples, evaluation, gaps, split
from adfs.problem.losses import Loss, get_loss
from adfs.problem.samples import DenseRows, Rows, SparseRows, row_column, row_entry, row_span, rows_of
from adfs.problem.shards import as_rows
from loss_cases import CASES, ON_SPARSE_ROWS, case_id, with_rows


def made(loss: Loss, n: int = 40, d: int = 7, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) * (rng.uniform(size=(n, d)) < 0.5)
    X[:, 0] = rng.standard_normal(n)
    y = rng.choice([-1.0, 1.0], n) if loss.task == "classification" else rng.standard_normal(n)
    return X, y, rng.uniform(0.1, 3.0, n)


# --------------------------------------------------------------------------- rows


def test_rows_are_walked_alike_dense_and_sparse() -> None:
    X, _, _ = made(get_loss("squared"))
    dense, sparse = rows_of(X), rows_of(sp.csr_array(X))
    assert isinstance(dense, DenseRows)
    assert isinstance(sparse, SparseRows)
    for j in range(X.shape[0]):
        for rows in (dense, sparse):
            walked = np.zeros(X.shape[1])
            for k in range(*row_span(rows, j)):
                walked[row_column(rows, j, k)] += row_entry(rows, j, k)
            assert np.array_equal(walked, X[j])


@pytest.mark.parametrize("loss", ON_SPARSE_ROWS, ids=case_id)
def test_evaluation_has_the_same_bits_dense_and_sparse(loss: Loss) -> None:
    X, y, weights = made(loss)
    rng = np.random.default_rng(1)
    node_starts = np.array([0, 5, 5, 22, 40])
    for array in (y, weights, node_starts):  # as in a problem: the same kernels
        array.setflags(write=False)
    theta, s = rng.standard_normal(7), rng.standard_normal((40, 1))
    dense, sparse = rows_of(X), rows_of(sp.csr_array(X))

    def sums(rows: Rows) -> list[bytes]:
        margins = evaluation.row_margins(rows, theta, 40, 1)
        arrays = [
            *gaps.scan_rows(rows, weights, node_starts),
            gaps.row_roundings(rows, 40),
            evaluation.loss_slopes(Samples(loss, rows, y, weights, node_starts), theta),
            evaluation.loss_sums(loss, y, weights, node_starts, margins),
            evaluation.weighted_row_sums(rows, node_starts, s, 7),
            evaluation.weighted_row_total(rows, node_starts, s, 7),
        ]
        return [array.tobytes() for array in arrays]

    assert sums(dense) == sums(sparse)


def test_evaluation_sums_node_by_node() -> None:
    loss = get_loss("logistic")
    X, y, weights = made(loss)
    node_starts = np.array([0, 5, 5, 22, 40])
    for array in (y, weights, node_starts):
        array.setflags(write=False)
    rng = np.random.default_rng(1)
    theta, s = rng.standard_normal(7), rng.standard_normal((40, 1))
    rows = rows_of(X)
    losses_ = np.log1p(np.exp(-y * (X @ theta))) * weights
    margins = evaluation.row_margins(rows, theta, 40, 1)
    sums = evaluation.loss_sums(loss, y, weights, node_starts, margins)
    vectors = evaluation.weighted_row_sums(rows, node_starts, s, 7)
    for i, (a, b) in enumerate([(0, 5), (5, 5), (5, 22), (22, 40)]):
        assert sums[i] == pytest.approx(losses_[a:b].sum(), rel=1e-14)
        np.testing.assert_allclose(vectors[i], s[a:b, 0] @ X[a:b], rtol=0, atol=1e-14)
    total = np.zeros(7)
    for vector in vectors:
        total += vector
    assert evaluation.weighted_row_total(rows, node_starts, s, 7).tobytes() == total.tobytes()


def test_primal_from_dual_needs_no_matrix_of_nodes_by_features() -> None:
    n, d = 20_000, 50_000  # n × d doubles would be 8 GB
    X = sp.csr_array((np.ones(n), (np.arange(n), np.arange(n) % d)), shape=(n, d))
    problem = Problem(X, np.ones(n), "squared", sigma=1.0 / n, n_nodes=n)
    theta = problem.primal_from_dual(np.full(n, 2.0))
    np.testing.assert_allclose(theta[:n], -2.0, rtol=1e-12)
    assert not theta[n:].any()


def test_as_rows_puts_unsorted_and_repeated_entries_right_on_a_copy() -> None:
    data = np.array([1.0, 2.0, 3.0, 4.0])
    indices = np.array([2, 0, 0, 1])
    matrix = sp.csr_array((data.copy(), indices.copy(), np.array([0, 3, 4])), shape=(2, 3))
    rows = as_rows(matrix)
    assert rows.has_canonical_format
    np.testing.assert_array_equal(rows.toarray(), [[5.0, 0.0, 1.0], [0.0, 4.0, 0.0]])
    assert np.array_equal(matrix.data, data)
    assert np.array_equal(matrix.indices, indices)
    assert matrix.nnz == 4


def test_as_rows_has_indices_of_the_small_type_whatever_was_given() -> None:
    matrix = sp.csr_array(np.eye(3))
    wide = sp.csr_array((matrix.data, matrix.indices.astype(np.int64), matrix.indptr.astype(np.int64)))
    for given in (matrix, wide, matrix.tocsc(), matrix.tocoo(), sp.csr_matrix(matrix)):
        rows = as_rows(given)
        assert rows.indices.dtype == rows.indptr.dtype == np.int32
        np.testing.assert_array_equal(rows.toarray(), np.eye(3))


def test_problem_neither_copies_nor_changes_data_in_the_right_form() -> None:
    X = np.random.default_rng(0).standard_normal((6, 2))
    kept = X.copy()
    problem = Problem(X, np.ones(6), sigma=1.0, n_nodes=2)
    assert np.shares_memory(problem.X, X)
    problem.optimum()
    assert np.array_equal(X, kept)
    sparse = sp.csr_array(X)
    assert np.shares_memory(Problem(sparse, np.ones(6), n_nodes=2).X.data, sparse.data)


def test_problem_copies_labels_and_weights_and_keeps_them_from_writes() -> None:
    y, weights = np.ones(4), np.ones(4)
    problem = Problem(np.eye(4), y, sample_weight=weights)
    y[:], weights[:] = 7.0, 7.0
    assert np.all(problem.y == 1.0)
    assert np.all(problem.weights == 1.0)
    for array in (problem.y, problem.weights, problem.node_starts, problem.sigma, problem.row_index):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 2


@pytest.mark.parametrize("form", ["frame", "float32", "int", "fortran", "list", "readonly"])
def test_problem_takes_many_forms_of_input(form: str) -> None:
    X = np.arange(12.0).reshape(4, 3) - 5.0
    y = np.array([1.0, -1.0, 1.0, -1.0])
    given: object = {
        "frame": pd.DataFrame(X, columns=list("abc")),
        "float32": X.astype(np.float32),
        "int": X.astype(int),
        "fortran": np.asfortranarray(X),
        "list": X.tolist(),
        "readonly": X,
    }[form]
    if form == "readonly":
        X.setflags(write=False)
    labels = pd.Series(y, index=list("wxyz")) if form == "frame" else y.astype(np.float32)
    problem = Problem(given, labels, sigma=0.5, n_nodes=2, sample_weight=pd.Series([1, 2, 3, 4]))
    reference = Problem(np.array(X), y, sigma=0.5, n_nodes=2, sample_weight=[1.0, 2.0, 3.0, 4.0])
    assert problem.X.dtype == np.float64
    assert problem.X.flags.c_contiguous
    theta = np.array([0.1, -0.2, 0.3])
    assert problem.objective(theta) == reference.objective(theta)


# --------------------------------------------------------------------------- partitions


@pytest.mark.parametrize("name", ["contiguous", "random", "label"])
@pytest.mark.parametrize("n_nodes", [1, 3, 7, 23])
def test_split_gives_every_row_to_one_node(name: str, n_nodes: int) -> None:
    y = np.random.default_rng(4).choice([-1.0, 1.0], 23)
    parts = split(name, y, n_nodes, seed=5)
    assert len(parts) == n_nodes
    assert sorted(np.concatenate(parts).tolist()) == list(range(23))
    assert all(part.size > 0 for part in parts)
    assert all(np.all(np.diff(part) > 0) for part in parts)
    again = split(name, y, n_nodes, seed=5)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))
    if name != "label":
        sizes = [part.size for part in parts]
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("n_nodes", [1, 2, 3, 7, 10])
def test_problem_takes_contiguous_rows_as_split_does(n_nodes: int) -> None:
    problem = Problem(np.eye(10), np.ones(10), "squared", n_nodes=n_nodes)
    sizes = [part.size for part in split("contiguous", np.ones(10), n_nodes)]
    assert np.diff(problem.node_starts).tolist() == sizes
    assert sizes == [part.size for part in np.array_split(np.arange(10), n_nodes)]
    with pytest.raises(InputError, match="concentration"):
        Problem(np.eye(10), np.ones(10), "squared", n_nodes=n_nodes, concentration=1.0)


def test_split_at_random_depends_on_the_seed() -> None:
    y = np.ones(50)
    one, two = split("random", y, 2, seed=0), split("random", y, 2, seed=1)
    assert not np.array_equal(one[0], two[0])


def test_split_by_label_takes_its_concentration() -> None:
    y = np.repeat([-1.0, 1.0], 500)

    def spread(concentration: float) -> float:
        parts = split("label", y, 5, seed=3, concentration=concentration)
        return float(np.std([(y[part] > 0).mean() for part in parts]))

    assert spread(1e5) < 0.02 < 0.3 < spread(0.05)
    sizes = [part.size for part in split("label", y, 400, seed=3, concentration=1e-3)]
    assert min(sizes) >= 1  # a share so uneven leaves most nodes empty before one is handed over
    assert sum(sizes) == 1000


def test_problem_rows_follow_their_partition() -> None:
    X, y, weights = made(get_loss("squared"), n=12, d=3)
    lists = [[11, 0, 5], [], [1, 2, 3, 4, 6, 7, 8, 9, 10]]
    problem = Problem(X, y, "squared", [1.0, 2.0, 3.0], 3, partition=lists, sample_weight=weights)
    order = np.concatenate([np.array(part, dtype=int) for part in lists])
    np.testing.assert_array_equal(problem.row_index, order)
    np.testing.assert_array_equal(problem.node_starts, [0, 3, 3, 12])
    np.testing.assert_array_equal(problem.X, X[order])
    np.testing.assert_array_equal(problem.y, y[order])
    np.testing.assert_array_equal(problem.weights, weights[order])
    np.testing.assert_array_equal(problem.node_of_row, [0] * 3 + [2] * 9)
    sparse = Problem(sp.csr_array(X), y, "squared", [1.0, 2.0, 3.0], 3, partition=lists)
    np.testing.assert_array_equal(sparse.X.toarray(), X[order])
    assert sparse.X.has_canonical_format
    whole = Problem(X, y, "squared", 6.0, sample_weight=weights)
    theta = np.array([0.3, -1.0, 2.0])
    assert problem.objective(theta) == pytest.approx(whole.objective(theta), rel=1e-14)


# --------------------------------------------------------------------------- shards


def test_problem_keeps_shards_as_given_and_gives_them_back() -> None:
    X, y, weights = made(get_loss("squared"), n=10, d=3)
    problem = Problem.from_shards(
        [(X[:4], y[:4]), (sp.csr_array(X[4:5]), y[4:5], weights[4:5]), (X[5:], y[5:], weights[5:])],
        loss="squared",
        sigma=[1.0, 2.0, 0.5],
    )
    assert problem.sparse
    assert problem.n_nodes == 3
    np.testing.assert_array_equal(problem.node_starts, [0, 4, 5, 10])
    np.testing.assert_array_equal(problem.X.toarray(), X)
    np.testing.assert_array_equal(problem.weights, np.concatenate([np.ones(4), weights[4:]]))
    np.testing.assert_array_equal(problem.row_index, np.arange(10))
    shards = problem.shards
    assert [shard.y.size for shard in shards] == [4, 1, 5]
    again = Problem.from_shards(shards, loss="squared", sigma=problem.sigma)
    theta = np.array([0.3, -1.0, 2.0])
    assert again.objective(theta) == problem.objective(theta)


def test_problem_shards_are_views_of_dense_rows() -> None:
    problem = Problem(np.random.default_rng(0).standard_normal((9, 2)), np.ones(9), n_nodes=3)
    assert all(np.shares_memory(shard.X, problem.X) for shard in problem.shards)


def test_problem_prints_what_it_is() -> None:
    problem = Problem(sp.csr_array(np.eye(3)), [1, -1, 1], "hinge", n_nodes=2)
    assert repr(problem) == "Problem(loss='hinge', n_nodes=2, n_samples=3, n_features=3, sparse)"


# --------------------------------------------------------------------------- awkward sizes


@pytest.mark.parametrize(("loss", "sparse"), with_rows(CASES))
def test_problem_takes_zero_rows_and_zero_weights_as_constants(loss: Loss, sparse: bool) -> None:
    X, y, weights = made(loss, n=20, d=4)
    X[3], X[7:9] = 0.0, 0.0
    weights[[5, 8, 11]] = 0.0
    given = sp.csr_array(X) if sparse else X
    problem = Problem(given, y, loss, [0.5, 1.0, 0.7], 3, sample_weight=weights)
    expected = np.ones(20, dtype=bool)
    expected[[3, 7, 8, 5, 11]] = False
    np.testing.assert_array_equal(problem.active, expected)
    assert not np.asarray(problem.smoothness)[~expected].any()
    found = problem.optimum()
    assert found.gap <= 1e-12
    active = Problem(X[expected], y[expected], loss, 2.2, sample_weight=weights[expected])
    constant = sum(problem.term(j).value(np.zeros(4)) for j in (3, 7))
    assert found.value == pytest.approx(active.optimum().value + constant, rel=1e-12)


def test_problem_of_nothing_but_constants_is_solved_by_zero() -> None:
    problem = Problem(np.zeros((3, 2)), [1.0, -1.0, 1.0], "logistic", n_nodes=3)
    found = problem.optimum()
    assert found.gap == 0.0
    assert not found.theta.any()
    assert found.value == pytest.approx(3 * np.log(2.0), rel=1e-15)
    assert problem.kappa_s == 0.0
    assert problem.kappa_b == 1.0


@pytest.mark.parametrize("name", ["logistic", "hinge", "squared", "absolute"])
def test_problem_of_zero_weights_is_solved_by_zero(name: str) -> None:
    problem = Problem(np.eye(3), np.ones(3), name, n_nodes=3, sample_weight=np.zeros(3))
    found = problem.optimum()
    assert found.value == found.gap == 0.0
    assert not found.theta.any()
    assert problem.duality_gap(np.zeros(3)) == 0.0


@pytest.mark.parametrize("name", ["logistic", "hinge", "squared", "quantile"])
def test_problem_may_have_nodes_without_samples(name: str) -> None:
    loss = get_loss(name)
    X, y, _ = made(loss, n=6, d=2)
    empty = (np.empty((0, 2)), np.empty(0))
    problem = Problem.from_shards([empty, (X, y), empty, empty], loss=loss, sigma=[1.0, 2.0, 3.0, 4.0])
    whole = Problem(X, y, loss, 10.0)
    assert problem.objective(np.ones(2)) == whole.objective(np.ones(2))
    np.testing.assert_array_equal(problem.kappa[[0, 2, 3]], 0.0)
    assert problem.kappa[1] == pytest.approx(whole.kappa[0] * 5.0)
    np.testing.assert_array_equal(problem.batch_smoothness[[0, 2, 3]], 0.0)
    assert problem.optimum().value == pytest.approx(whole.optimum().value, rel=1e-12)


def test_problem_may_have_no_samples_at_all() -> None:
    empty = (np.empty((0, 2)), np.empty(0))
    problem = Problem.from_shards([empty, empty], loss="logistic", sigma=1.0)
    assert problem.n_samples == 0
    assert problem.objective(np.ones(2)) == 2.0
    np.testing.assert_array_equal(problem.kappa, [0.0, 0.0])
    found = problem.optimum()
    assert found.value == 0.0
    assert problem.duality_gap(np.empty(0)) == 0.0


@pytest.mark.parametrize("loss", CASES, ids=case_id)
def test_problem_may_have_one_sample_a_node_and_constant_columns(loss: Loss) -> None:
    X, y, _ = made(loss, n=8, d=3)
    X[:, 1] = 1.0
    X[:, 2] = 0.0
    problem = Problem(X, y, loss, np.linspace(0.1, 0.8, 8), 8)
    np.testing.assert_array_equal(problem.node_starts, np.arange(9))
    found = problem.optimum()
    assert found.gap <= 1e-12
    assert abs(found.theta[2]) <= 1e-15
    one = Problem(X[:1], y[:1], loss, 0.3)
    assert one.optimum().gap <= 1e-12


@pytest.mark.parametrize("loss", CASES, ids=case_id)
def test_problem_takes_integer_weights_as_repeated_rows(loss: Loss) -> None:
    X, y, _ = made(loss, n=15, d=4)
    weights = np.random.default_rng(2).integers(0, 4, 15)
    weighted = Problem(X, y, loss, 0.7, sample_weight=weights)
    repeated = Problem(np.repeat(X, weights, axis=0), np.repeat(y, weights), loss, 0.7)
    theta = np.random.default_rng(3).standard_normal(4)
    assert weighted.objective(theta) == pytest.approx(repeated.objective(theta), rel=1e-14)
    np.testing.assert_allclose(weighted.gradient(theta), repeated.gradient(theta), rtol=0, atol=1e-13)
    np.testing.assert_allclose(weighted.hessian(theta), repeated.hessian(theta), rtol=0, atol=1e-13)
    if loss.smooth:
        assert weighted.kappa_b == pytest.approx(repeated.kappa_b, rel=1e-13)
        assert weighted.kappa_s == pytest.approx(repeated.kappa_s, rel=1e-13)
    assert weighted.optimum().value == pytest.approx(repeated.optimum().value, rel=1e-12)


def test_problem_counts_nodes_by_the_index_lists() -> None:
    problem = Problem(np.eye(4), [1, -1, 1, -1], partition=[[0, 3], [1], [2]])
    assert problem.n_nodes == 3
    assert problem.row_index.tolist() == [0, 3, 1, 2]
