"""The keyed shuffle: a bijection, as random as NumPy's permutation, without a table."""

import itertools
import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from portaloader.plan import Permutation

SIGMAS = 6.0
"""Standard deviations that a statistic may be away from what it is for truly random orders."""
ORDERS, SMALL, LARGE = 2000, 25, 100_000
"""How many orders of SMALL samples, an odd square, are looked at; and the size of a few long ones."""
BILLION = 10**9


def whole(size, seed=0, epoch=0):
    return Permutation(size, seed, epoch)[np.arange(size)]


def excess(counts, freedom):
    """Chi-square of counts that should be equal, in standard deviations above its expectation.

    By the cube root of E. Wilson and M. Hilferty (1931), which makes a chi-square of few degrees of freedom near normal.
    """
    expected = counts.mean()
    chi_square = ((counts - expected) ** 2 / expected).sum()
    spread = 2 / (9 * freedom)
    return (np.cbrt(chi_square / freedom) - (1 - spread)) / math.sqrt(spread)


def correlation(a, b):
    """Pearson's r in units of its standard deviation for independent values."""
    return np.corrcoef(a, b)[0, 1] * math.sqrt(len(a))


def is_odd(order):
    """Whether a permutation is made of an odd number of swaps."""
    seen = np.zeros(len(order), dtype=bool)
    cycles = 0
    for start in range(len(order)):
        cycles += not seen[start]
        while not seen[start]:
            seen[start] = True
            start = order[start]
    return (len(order) - cycles) % 2 == 1


# Every statistic is computed for our orders and for NumPy's, and held to the same bound.
@pytest.fixture(scope="module", params=["keyed", "numpy"])
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def orders(kind):
    """ORDERS epochs of SMALL samples, one row each."""
    if kind == "keyed":
        return np.stack([whole(SMALL, 3, epoch) for epoch in range(ORDERS)])
    random = np.random.default_rng(3)
    return np.stack([random.permutation(SMALL) for _ in range(ORDERS)])


@pytest.fixture(scope="module")
def long_orders(kind):
    """Three epochs of LARGE samples."""
    if kind == "keyed":
        return [whole(LARGE, 3, epoch) for epoch in range(3)]
    random = np.random.default_rng(3)
    return [random.permutation(LARGE) for _ in range(3)]


@pytest.mark.parametrize("first", range(1, 201, 20))
def test_bijection_for_every_small_size(first):
    for size in range(first, first + 20):
        assert np.sort(whole(size, seed=size)).tolist() == list(range(size))


@settings(deadline=None, max_examples=30, derandomize=True)
@given(st.integers(201, 20_000), st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1))
def test_bijection(size, seed, epoch):
    assert np.bincount(whole(size, seed, epoch), minlength=size).tolist() == [1] * size


@pytest.mark.parametrize("size", [2**16, 2**16 + 1, 257**2, 300**2 - 1, 300 * 301])
def test_bijection_where_the_number_of_rounds_changes_and_at_squares(size):
    assert (np.bincount(whole(size), minlength=size) == 1).all()


@settings(deadline=None, max_examples=50, derandomize=True)
@given(st.integers(2**16, 2**62), st.integers(0, 2**64 - 1), st.data())
def test_large_sizes_stay_within_range_and_apart(size, seed, data):
    begin = data.draw(st.integers(0, size - 64))
    found = Permutation(size, seed, 0)[np.arange(begin, begin + 64)]
    assert found.dtype == np.int64
    assert found.min() >= 0
    assert found.max() < size
    assert len(np.unique(found)) == 64


@pytest.mark.parametrize("size", [0, -1, 2**62 + 1])
def test_size_out_of_bounds(size):
    with pytest.raises(ValueError, match=r"2\*\*62"):
        Permutation(size, 0, 0)


def test_length_shape_and_dtype():
    permutation = Permutation(10, 0, 0)
    positions = np.arange(10).reshape(2, 5)
    found = permutation[positions]
    assert len(permutation) == 10
    assert found.dtype == np.int64
    assert found.tolist() == whole(10).reshape(2, 5).tolist()
    assert positions.tolist() == np.arange(10).reshape(2, 5).tolist()
    assert permutation[np.arange(0)].shape == (0,)


def test_random_access_is_access_in_order():
    permutation = Permutation(5000, 1, 2)
    in_order = permutation[np.arange(5000)]
    jumps = np.random.default_rng(0).integers(0, 5000, 2000)
    assert (permutation[jumps] == in_order[jumps]).all()
    assert [permutation[np.array([i])][0] for i in (4999, 0, 17)] == in_order[[4999, 0, 17]].tolist()


@pytest.mark.parametrize(("size", "seeds"), [(2, 2000), (3, 2400), (4, 2400), (5, 3600)])
def test_all_orders_are_equally_likely(size, seeds):
    known = {order: i for i, order in enumerate(itertools.permutations(range(size)))}
    found = [known[tuple(whole(size, seed).tolist())] for seed in range(seeds)]
    counts = np.bincount(found, minlength=len(known))
    assert excess(counts, len(known) - 1) < SIGMAS


def test_each_sample_is_at_each_position_equally_often(orders):
    counts = np.zeros((SMALL, SMALL))
    np.add.at(counts, (np.arange(SMALL)[None, :], orders), 1)
    assert abs(excess(counts, (SMALL - 1) ** 2)) < SIGMAS


def test_each_pair_of_samples_follows_one_another_equally_often(orders):
    counts = np.zeros((SMALL, SMALL))
    np.add.at(counts, (orders[:, :-1], orders[:, 1:]), 1)
    pairs = counts[~np.eye(SMALL, dtype=bool)]
    assert np.trace(counts) == 0
    assert abs(excess(pairs, len(pairs) - 1)) < SIGMAS


def test_number_of_fixed_points(orders):
    """Mean and variance are 1."""
    fixed = (orders == np.arange(SMALL)).sum(axis=1)
    assert abs(fixed.mean() - 1) < SIGMAS / math.sqrt(ORDERS)
    assert abs(fixed.var() - 1) < SIGMAS * math.sqrt(3 / ORDERS)


def test_number_of_rising_steps(orders):
    """Ascents: mean (n - 1) / 2, variance (n + 1) / 12."""
    rising = (np.diff(orders, axis=1) > 0).sum(axis=1)
    assert abs(rising.mean() - (SMALL - 1) / 2) < SIGMAS * math.sqrt((SMALL + 1) / 12 / ORDERS)


def test_half_of_the_orders_are_odd(orders):
    odd = np.mean([is_odd(order) for order in orders.tolist()])
    assert abs(odd - 0.5) < SIGMAS * 0.5 / math.sqrt(ORDERS)


def test_one_epoch_tells_nothing_of_the_next(orders):
    """The step of a sample from one epoch to the next is uniform, and no place is kept more often than by chance."""
    steps = (np.argsort(orders[1:], axis=1) - np.argsort(orders[:-1], axis=1)) % SMALL
    assert abs(excess(np.bincount(steps.ravel(), minlength=SMALL), SMALL - 1)) < SIGMAS
    kept = (orders[1:] == orders[:-1]).sum(axis=1)
    assert abs(kept.mean() - 1) < SIGMAS / math.sqrt(ORDERS)


@pytest.mark.parametrize("lag", [1, 2, 3, 316, 317])
def test_neighbours_are_uncorrelated(long_orders, lag):
    """317 is the side of the square that LARGE samples are folded into."""
    order = long_orders[0]
    assert abs(correlation(order[:-lag], order[lag:])) < SIGMAS


@pytest.mark.parametrize(("one", "other"), [(0, 1), (0, 2), (1, 2)])
def test_epochs_are_uncorrelated(long_orders, one, other):
    assert abs(correlation(long_orders[one], long_orders[other])) < SIGMAS


def test_a_sample_is_uncorrelated_with_its_position(long_orders):
    assert abs(correlation(long_orders[0], np.arange(LARGE))) < SIGMAS


def test_steps_between_neighbours_are_spread_evenly(long_orders):
    steps = np.diff(long_orders[0]) % LARGE * 100 // LARGE
    assert abs(excess(np.bincount(steps, minlength=100), 99)) < SIGMAS


def test_batches_are_fair_shares_of_the_source(long_orders):
    """Of 100 runs of positions and 100 runs of ids, each pair has as many samples in common."""
    cell = LARGE // 100
    counts = np.bincount(long_orders[0] // cell * 100 + np.arange(LARGE) // cell, minlength=10_000)
    assert abs(excess(counts, 99 * 99)) < SIGMAS


def test_epochs_and_seeds_differ():
    rows = [whole(100, seed, epoch) for seed in range(8) for epoch in range(8)]
    assert len({row.tobytes() for row in rows}) == 64


def test_seeds_are_uncorrelated():
    orders = [whole(20_000, seed) for seed in range(3)]
    assert max(abs(correlation(orders[a], orders[b])) for a, b in [(0, 1), (0, 2), (1, 2)]) < SIGMAS


def test_an_order_stays_what_it_is():
    """A stored state means these orders; a change of them needs a new version of the state."""
    assert whole(10, 0, 0).tolist() == [2, 0, 6, 3, 1, 4, 8, 9, 5, 7]
    assert whole(10, 1, 2).tolist() == [4, 2, 7, 5, 6, 1, 8, 0, 3, 9]
    assert Permutation(BILLION, 0, 0)[np.arange(3)].tolist() == [46172289, 237290360, 587840674]


def test_a_billion_samples_need_no_table():
    tracemalloc.start()
    try:
        found = Permutation(BILLION, 0, 0)[np.arange(256)]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 32 * 2**20
    assert len(np.unique(found)) == 256
    assert found.max() < BILLION
    # The ids of the first batch come from everywhere.
    assert abs(found.mean() / BILLION - 0.5) < SIGMAS / math.sqrt(12 * 256)


def test_random_access_among_a_billion():
    permutation = Permutation(BILLION, 0, 0)
    begin = BILLION - 1000
    in_order = permutation[np.arange(begin, BILLION)]
    jumps = np.random.default_rng(0).permutation(1000)
    assert (permutation[begin + jumps] == in_order[jumps]).all()
