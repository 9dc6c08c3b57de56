from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adfs.compilation import compiled
from adfs.errors import InputError
from adfs.problem.evaluation import sampling_weights
from adfs.schedule import AliasTables
from adfs.schedule.sampling import build_actor_table, draw_column, draw_sample

weights = st.lists(
    st.one_of(st.just(0.0), st.floats(1e-6, 1e6), st.integers(1, 5).map(float)), min_size=1, max_size=40
).filter(any)


def row_probabilities(tables):
    """What the first table gives, read back from it."""
    threshold = (tables.packed >> np.uint64(32)).astype(float) / 2.0**32
    alias = (tables.packed & np.uint64(2**32 - 1)).astype(int)
    return (threshold + np.bincount(alias, 1.0 - threshold, minlength=alias.size)) / alias.size


def actor_probabilities(table):
    """Exactly what a table over actors gives, in units of 2**-64 of a column."""
    mass = [0] * len(table)
    for column, (threshold, alias) in enumerate(table.tolist()):
        mass[column] += threshold
        mass[alias] += 2**64 - threshold
    return mass


@given(weights)
def test_alias_tables_give_the_probabilities(values):
    tables = AliasTables.build(values, [0, len(values)])
    expected = np.array(values) / sum(values)
    # Each row's mass is a whole number of 2**-32 of a column; a tiny weight gets one unit from the largest.
    allowed = (2 + len(values)) * 2.0**-32 / len(values)
    np.testing.assert_allclose(row_probabilities(tables), expected, rtol=0, atol=allowed)


@given(weights)
def test_alias_tables_reach_positive_weights_and_never_zero_ones(values):
    tables = AliasTables.build(values, [0, len(values)])
    threshold = (tables.packed >> np.uint64(32)).tolist()
    alias = (tables.packed & np.uint64(2**32 - 1)).tolist()
    own = {i for i in range(len(values)) if threshold[i] > 0}
    reachable = own | set(alias)  # an alias is reached: a threshold is below 2**32
    assert reachable == {i for i, value in enumerate(values) if value > 0.0}


@given(weights)
def test_actor_table_is_exact_to_its_resolution(values):
    p = np.array(values) / sum(values)
    mass = actor_probabilities(build_actor_table(p))
    assert sum(mass) == len(p) << 64
    unit = 2.0 ** (1 + len(p).bit_length()) * 2.0  # two units of 2**-bits of a column, in 2**-64
    for got, want in zip(mass, p, strict=True):
        # Running sums round to 2**-53 of the whole.
        assert abs(got - want * len(p) * 2.0**64) <= (2 + len(p)) * unit + 2.0**-51 * (len(p) << 64)
        assert (got == 0) == (want == 0.0)


@compiled
def compiled_column(draw, columns):
    return draw_column(draw, columns)


@compiled
def compiled_sample(draw, packed, node_starts, node):
    return draw_sample(draw, packed, node_starts, node)


def test_draw_column_is_the_upper_half_of_the_product():
    rng = np.random.default_rng(0)
    for draw in [0, 1, 2**32 - 1, 2**32, 2**64 - 1, *rng.integers(0, 2**64, 200, dtype=np.uint64).tolist()]:
        for columns in (1, 2, 3, 1000, 2**31 - 1, 2**32 - 1):
            column, position = compiled_column(np.uint64(draw), np.uint64(columns))
            assert (int(column), int(position)) == divmod(draw * columns, 2**64)


def test_alias_tables_keep_draws_at_the_ends_inside():
    tables = AliasTables.build([0.0, 1.0, 0.0, 5.0, 0.0], [0, 5])
    for draw in (0, 2**64 - 1):
        assert compiled_sample(np.uint64(draw), tables.packed, tables.node_starts, np.uint64(0)) in (1, 3)


def test_alias_tables_take_many_rows_of_one_weight_and_some_of_none():
    values = np.ones(100_000)
    values[::3] = 0.0
    p = row_probabilities(AliasTables.build(values, [0, values.size]))
    assert (p[::3] == 0.0).all()
    np.testing.assert_allclose(p[values > 0], 1.0 / values.sum(), rtol=1e-9)


def test_alias_tables_of_several_nodes_equal_those_built_alone():
    rng = np.random.default_rng(2)
    node_starts = np.array([0, 4, 4, 11, 12])
    values = rng.random(12)
    tables = AliasTables.build(values, node_starts, node_ids=[7, 3, 5, 1])
    assert tables.drawable.tolist() == [True, False, True, True]
    assert tables.node_ids.tolist() == [7, 3, 5, 1]
    for k in range(4):
        part = slice(node_starts[k], node_starts[k + 1])
        alone = AliasTables.build(values[part], [0, node_starts[k + 1] - node_starts[k]])
        assert tables.packed[part].tolist() == alone.packed.tolist()


def test_alias_tables_do_not_depend_on_the_scale_of_the_weights():
    values = np.random.default_rng(3).random(50)
    for scale in (2.0**-1000, 2.0**900):
        scaled = AliasTables.build(values * scale, [0, 50])
        assert scaled.packed.tolist() == AliasTables.build(values, [0, 50]).packed.tolist()


@pytest.mark.parametrize(
    ("values", "node_starts", "node_ids", "match"),
    [
        ([1.0, -1.0], [0, 2], None, "not negative"),
        ([1.0, np.nan], [0, 2], None, "finite"),
        ([1.0, np.inf], [0, 2], None, "finite"),
        ([1.0, 1.0], [0, 1], None, "node_starts"),
        ([1.0, 1.0], [0, 2, 1, 2], None, "node_starts"),
        ([1.0, 1.0], [], None, "node_starts"),
        ([1.0, 1.0], [0, 1, 2], [0], "node_ids"),
        ([1.0, 1.0], [0, 1, 2], [3, 3], "node_ids"),
        ([1.0, 1.0], [0, 1, 2], [-1, 0], "node_ids"),
    ],
)
def test_alias_tables_refuse_bad_weights(values, node_starts, node_ids, match):
    with pytest.raises(InputError, match=match):
        AliasTables.build(values, node_starts, node_ids=node_ids)


def test_sampling_weights_are_roots():
    rng = np.random.default_rng(0)
    smoothness = rng.uniform(0.0, 9.0, 7)
    active = np.array([True, True, False, True, True, True, True])
    node_starts, sigma = np.array([0, 3, 7]), np.array([0.5, 2.0])
    expected = np.sqrt(1.0 + smoothness / np.repeat(sigma, [3, 4])) * active
    found = sampling_weights(smoothness, active, node_starts, sigma)
    np.testing.assert_allclose(found, expected, rtol=1e-15)
    smoothness[active] = np.inf
    assert sampling_weights(smoothness, active, node_starts, sigma).tolist() == active.tolist()
