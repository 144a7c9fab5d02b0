"""The counter-based generator: known answers, purity, avalanche, and no correlation between neighbouring keys."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from portaloader.keyed import bits, philox, plan_bits

KNOWN_ANSWERS = {
    "zeros": ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    "ones": ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    "pi": ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
}
"""Philox4x32-10 in the kat_vectors file of Random123: counter, key, output, low word first."""

BASES = 256
"""Keys that each avalanche figure is a mean over."""
MARGIN = 6.0
"""Standard deviations that a statistic may be away from its expectation."""

seeds = st.integers(0, 2**64 - 1)
epochs = st.integers(0, 2**32 - 1)
ids = st.lists(st.integers(0, 2**62), min_size=1, max_size=20)
draws = st.integers(1, 9)
firsts = st.integers(0, 20)


def words(text):
    return [int(word, 16) for word in text.split()]


def some_ids(seed=0):
    return np.random.default_rng(seed).integers(0, 2**62, BASES)


def changed(before, after):
    """For each output bit, the share of keys for which it differs: shape (64,)."""
    difference = (before ^ after).reshape(-1, 1)
    return (difference >> np.arange(64, dtype=np.uint64) & np.uint64(1)).mean(axis=0)


def assert_avalanche(shares):
    """``shares``: one row of 64 for each flipped input bit."""
    shares = np.asarray(shares)
    sigma = 0.5 / np.sqrt(BASES)
    assert np.abs(shares - 0.5).max() < MARGIN * sigma
    assert np.abs(shares.mean(axis=1) - 0.5).max() < MARGIN * sigma / 8
    assert abs(shares.mean() - 0.5) < MARGIN * sigma / np.sqrt(shares.size)


def assert_uncorrelated(a, b):
    """Pearson's r of the values as fractions, and of each bit with the same bit."""
    scale = MARGIN / np.sqrt(a.size)
    assert abs(np.corrcoef(a.ravel() * 2.0**-64, b.ravel() * 2.0**-64)[0, 1]) < scale
    assert np.abs(changed(a, b) - 0.5).max() < scale / 2


@pytest.mark.parametrize("name", KNOWN_ANSWERS)
def test_known_answer(name):
    counter, key, output = map(words, KNOWN_ANSWERS[name])
    found = philox(np.array(counter, dtype=np.uint64)[:, None], (key[0], key[1]))
    assert found.dtype == np.uint64
    assert found[:, 0].tolist() == output


def test_known_answers_hold_for_many_counters_at_once():
    counters = np.tile(np.array(words(KNOWN_ANSWERS["pi"][0]), dtype=np.uint64)[:, None], (1, 5))
    counters[:, 2] = 0
    key = words(KNOWN_ANSWERS["pi"][1])
    found = philox(counters, (key[0], key[1]))
    assert found.shape == (4, 5)
    for column in (0, 1, 3, 4):
        assert found[:, column].tolist() == words(KNOWN_ANSWERS["pi"][2])
    assert found[:, 2].tolist() != words(KNOWN_ANSWERS["pi"][2])


def test_bits_of_the_zero_key_are_the_known_answer():
    found = bits(0, 0, np.array([0]), 2)
    assert found.dtype == np.uint64
    assert found.tolist() == [[0xE169C58D6627E8D5, 0x9B00DBD8BC57AC4C]]


def test_layout_of_counter_and_key():
    """Counter: id low, id high, block of draws, epoch. Key: the seed. A stored state relies on it."""
    sample = words(KNOWN_ANSWERS["pi"][0])
    key = words(KNOWN_ANSWERS["pi"][1])
    output = words(KNOWN_ANSWERS["pi"][2])
    sample_id = np.array([sample[0] | sample[1] << 32], dtype=np.uint64).astype(np.int64)
    found = bits(key[0] | key[1] << 32, sample[3], sample_id, 2, first=2 * sample[2])
    assert found.tolist() == [[output[0] | output[1] << 32, output[2] | output[3] << 32]]


@pytest.mark.parametrize(("batch", "count", "first"), [(1, 1, 0), (7, 8, 0), (7, 8, 1), (3, 1, 5), (0, 4, 0), (4, 0, 3)])
def test_shape_and_dtype(batch, count, first):
    found = bits(1, 2, np.arange(batch), count, first=first)
    assert found.shape == (batch, count)
    assert found.dtype == np.uint64


@settings(deadline=None, max_examples=100, derandomize=True)
@given(seeds, epochs, ids, draws, firsts, st.data())
def test_samples_do_not_depend_on_each_other(seed, epoch, ids, count, first, data):
    chosen = data.draw(st.lists(st.integers(0, len(ids) - 1), max_size=20))
    together = bits(seed, epoch, np.array(ids), count, first=first)
    apart = bits(seed, epoch, np.array(ids)[np.array(chosen, dtype=int)], count, first=first)
    np.testing.assert_array_equal(together[chosen], apart)


@settings(deadline=None, max_examples=100, derandomize=True)
@given(seeds, epochs, ids, draws, firsts)
def test_a_slice_of_the_draws(seed, epoch, ids, count, first):
    everything = bits(seed, epoch, np.array(ids), first + count)
    np.testing.assert_array_equal(bits(seed, epoch, np.array(ids), count, first=first), everything[:, first:])


@settings(deadline=None, max_examples=100, derandomize=True)
@given(seeds, st.lists(epochs, min_size=1, max_size=20), st.integers(0, 2**62), draws)
def test_each_sample_may_have_an_epoch_of_its_own(seed, epochs, sample_id, count):
    together = bits(seed, np.array(epochs), np.full(len(epochs), sample_id), count)
    apart = [bits(seed, epoch, np.array([sample_id]), count)[0] for epoch in epochs]
    np.testing.assert_array_equal(together, apart)


def test_nothing_is_remembered_and_nothing_is_changed():
    ids, epochs = np.arange(5), np.arange(5)
    before = bits(3, epochs, ids, 4)
    bits(4, 1, ids[::-1], 7, first=3)
    np.testing.assert_array_equal(bits(3, epochs, ids, 4), before)
    np.testing.assert_array_equal(ids, np.arange(5))
    np.testing.assert_array_equal(epochs, np.arange(5))


@pytest.mark.parametrize(("one", "other"), [(5, 5 + 2**64), (-1, 2**64 - 1)])
def test_the_seed_counts_modulo_2_to_the_64(one, other):
    np.testing.assert_array_equal(bits(one, 0, np.arange(3), 4), bits(other, 0, np.arange(3), 4))


@pytest.mark.parametrize("kind", [np.int8, np.int32, np.uint32, np.int64, np.uint64])
def test_the_seed_may_be_a_numpy_integer(kind):
    np.testing.assert_array_equal(bits(kind(5), 0, np.arange(3), 4), bits(5, 0, np.arange(3), 4))


def test_all_keys_give_bits_of_their_own():
    ids = np.arange(64)
    found = np.stack([bits(seed, epoch, ids, 8) for seed in (0, 1, 2**32, 2**63) for epoch in (0, 1, 2**31)])
    assert len(np.unique(found)) == found.size


def test_the_plan_has_bits_of_its_own():
    of_samples = np.concatenate([bits(7, 0, np.arange(256), 64).ravel(), bits(7, 1, np.arange(256), 64).ravel()])
    of_plan = np.concatenate([plan_bits(7, epoch, stream, 64) for epoch in (0, 1) for stream in range(8)])
    assert of_plan.dtype == np.uint64
    assert len(np.unique(of_plan)) == of_plan.size
    assert not np.isin(of_plan, of_samples).any()


def test_every_output_bit_is_one_half_of_the_time():
    found = bits(0, 0, np.arange(4096), 8)
    assert np.abs(changed(found, np.zeros_like(found)) - 0.5).max() < MARGIN * 0.5 / np.sqrt(found.size)


def test_avalanche_of_the_seed():
    seeds = some_ids(1)[:8].tolist()
    per_seed = BASES // len(seeds)
    ids = some_ids().reshape(len(seeds), per_seed)
    before = np.stack([bits(s, 3, row, 1) for s, row in zip(seeds, ids, strict=True)])
    after = [np.stack([bits(s ^ 1 << k, 3, row, 1) for s, row in zip(seeds, ids, strict=True)]) for k in range(64)]
    assert_avalanche([changed(before, flipped) for flipped in after])


def test_avalanche_of_the_epoch():
    epochs = some_ids(2) & 0xFFFFFFFF
    before = bits(11, epochs, some_ids(), 1)
    assert_avalanche([changed(before, bits(11, epochs ^ 1 << k, some_ids(), 1)) for k in range(32)])


def test_avalanche_of_the_sample_id():
    before = bits(11, 3, some_ids(), 1)
    assert_avalanche([changed(before, bits(11, 3, some_ids() ^ (1 << k), 1)) for k in range(63)])


def test_avalanche_of_the_draw():
    before = bits(11, 3, some_ids(), 1, first=12345)
    assert_avalanche([changed(before, bits(11, 3, some_ids(), 1, first=12345 ^ 1 << k)) for k in range(32)])


def test_small_numbers_avalanche_as_well():
    """Ids, epochs and seeds count up from 0 in practice: keys that differ in few and low bits."""
    ids = np.arange(BASES)
    assert_avalanche([changed(bits(0, 0, ids, 1), bits(0, 0, ids ^ (1 << k), 1)) for k in range(8, 40)])


@pytest.mark.parametrize("lag", [1, 2, 16])
def test_neighbouring_samples_are_uncorrelated(lag):
    found = bits(0, 0, np.arange(2048 + lag), 8)
    assert_uncorrelated(found[:-lag], found[lag:])


@pytest.mark.parametrize("lag", [1, 2, 3])
def test_neighbouring_draws_are_uncorrelated(lag):
    found = bits(0, 0, np.arange(1024), 16)
    assert_uncorrelated(found[:, :-lag], found[:, lag:])


def test_neighbouring_epochs_are_uncorrelated():
    found = np.stack([bits(0, epoch, np.arange(512), 4) for epoch in range(9)])
    assert_uncorrelated(found[:-1], found[1:])


def test_neighbouring_seeds_are_uncorrelated():
    found = np.stack([bits(seed, 0, np.arange(512), 4) for seed in range(9)])
    assert_uncorrelated(found[:-1], found[1:])
