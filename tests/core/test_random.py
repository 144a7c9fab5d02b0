"""The distributions of portaloader.random, on bits and through a DALI graph."""

import math

import numpy as np
import pytest

import portaloader
from portaloader import keyed, random
from portaloader.errors import ArgumentError, PipelineError

DRAWS = 50_000
SAMPLES, PER_SAMPLE, SEED = 600, 10, 5
EXTREMES = np.array([0, 1, 2**11, 2**32 - 1, 2**63, 2**64 - 2**11, 2**64 - 1], dtype=np.uint64)
"""Bits at the ends of their range."""
WEIGHTS = [0.5, 0.0, 2.0, 1.5]


def some_bits(seed=0):
    return keyed.bits(seed, 0, np.arange(DRAWS // 8), 8).ravel()


def ks(values, cdf):
    """Kolmogorov-Smirnov statistic against a continuous distribution, over its critical value at 1e-6."""
    values = np.sort(np.asarray(values, dtype=np.float64).ravel())
    n, expected = len(values), cdf(values)
    distance = max((np.arange(1, n + 1) / n - expected).max(), (expected - np.arange(n) / n).max())
    return distance / math.sqrt(-math.log(1e-6 / 2) / 2 / n)


def normal_cdf(x):
    return np.array([0.5 * math.erfc(-v / math.sqrt(2)) for v in x])


def assert_shares(values, expected):
    """Each value as often as its probability says, within six standard deviations; others never."""
    assert set(np.unique(values).tolist()) == {value for value, p in expected.items() if p}
    for value, p in expected.items():
        assert abs((values == value).mean() - p) <= 6 * math.sqrt(p * (1 - p) / values.size)


@portaloader.pipeline
def everything(sample):
    return {
        "uniform": random.uniform(),
        "angle": random.uniform(-10, 10, shape=PER_SAMPLE),
        "normal": random.normal(shape=PER_SAMPLE),
        "coin": random.coin_flip(0.3, shape=PER_SAMPLE),
        "sure": random.coin_flip(1.0),
        "never": random.coin_flip(0.0),
        "integers": random.integers(-2, 3, shape=PER_SAMPLE),
        "wide": random.integers(0, 2**40),
        "index": random.choice(4, WEIGHTS, shape=PER_SAMPLE),
        "value": random.choice([0.25, 1.5, -3.0], shape=PER_SAMPLE),
        "far": random.choice([1, 2**40]),
        "last": random.coin_flip(),
    }


@pytest.fixture(scope="module")
def drawn():
    """All samples of an epoch, field by field."""
    source = [np.zeros(1, dtype=np.uint8)] * SAMPLES
    with portaloader.get_loader(source, everything, framework="numpy", shuffle=False, seed=SEED, batch_size=200) as loader:
        batches = list(loader)
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


def test_fraction_is_uniform():
    assert ks(random.fraction(some_bits()), lambda x: x) < 1


def test_fraction_leaves_one_out():
    found = random.fraction(EXTREMES)
    assert found.dtype == np.float64
    assert found.min() == 0.0
    assert found.max() == 1 - 2.0**-53


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-10.0, 10.0), (1000.0, 1001.0), (-3e-5, 2e-5)])
def test_uniform(low, high):
    found = random.uniform_of(some_bits(), low, high)
    assert found.dtype == np.float32
    assert ks(found, lambda x: (x - low) / (high - low)) < 1


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-10.0, 10.0), (1e6, 1e6 + 1), (-1.0, -1e-9), (0.1, 0.3), (-0.3, -0.1)])
def test_uniform_has_its_low_and_not_its_high(low, high):
    found = random.uniform_of(EXTREMES, low, high)
    assert found.min() == np.float32(low)
    assert found.max() < np.float32(high)


@pytest.mark.parametrize(("mean", "stddev"), [(0.0, 1.0), (-5.0, 0.25), (3.0, 100.0)])
def test_normal(mean, stddev):
    found = random.normal_of(some_bits(), mean, stddev)
    assert found.dtype == np.float32
    assert ks(found, lambda x: normal_cdf((x - mean) / stddev)) < 1


def test_normal_is_finite_and_reaches_the_tails():
    far = np.array([0, 2**31, 2**64 - 1], dtype=np.uint64)
    found = random.normal_of(np.concatenate([EXTREMES, far]), 0.0, 1.0)
    assert np.isfinite(found).all()
    assert found.max() > 6
    assert found.min() < -6


def test_normal_without_deviation_is_its_mean():
    assert (random.normal_of(some_bits(), 2.5, 0.0) == np.float32(2.5)).all()


@pytest.mark.parametrize(("low", "high"), [(0, 2), (-3, 4), (10, 20), (0, 1)])
def test_integers(low, high):
    found = random.integers_of(some_bits(), low, high)
    assert found.dtype == np.int64
    assert_shares(found, dict.fromkeys(range(low, high), 1 / (high - low)))


def test_integers_over_a_wide_range():
    low, high = -(2**40), 2**45
    found = random.integers_of(some_bits(), low, high)
    assert ks(found, lambda x: (x - low) / (high - low)) < 1


def test_integers_over_all_of_int64_but_one():
    found = random.integers_of(EXTREMES, -(2**63), 2**63 - 1)
    assert found.min() == -(2**63)
    assert found.max() <= 2**63 - 2


def test_dtypes_and_shapes_in_a_batch(drawn):
    alone = {"uniform": np.float32, "sure": np.int32, "wide": np.int64, "far": np.int64}
    several = {
        "angle": np.float32,
        "normal": np.float32,
        "coin": np.int32,
        "integers": np.int32,
        "index": np.int32,
        "value": np.float32,
    }
    assert {name: drawn[name].dtype for name in alone} == alone
    assert {name: drawn[name].dtype for name in several} == several
    assert {drawn[name].shape for name in alone} == {(SAMPLES,)}
    assert {drawn[name].shape for name in several} == {(SAMPLES, PER_SAMPLE)}


def test_continuous_distributions_in_a_graph(drawn):
    assert ks(drawn["uniform"], lambda x: x) < 1
    assert ks(drawn["angle"], lambda x: (x + 10) / 20) < 1
    assert ks(drawn["normal"], normal_cdf) < 1


def test_coin_flip_in_a_graph(drawn):
    assert_shares(drawn["coin"], {1: 0.3, 0: 0.7})
    assert (drawn["sure"] == 1).all()
    assert (drawn["never"] == 0).all()


def test_integers_in_a_graph(drawn):
    assert_shares(drawn["integers"], dict.fromkeys(range(-2, 3), 0.2))
    assert ks(drawn["wide"], lambda x: x / 2**40) < 1


def test_choice_in_a_graph(drawn):
    assert_shares(drawn["index"], {i: weight / 4 for i, weight in enumerate(WEIGHTS)})
    assert_shares(drawn["value"], {0.25: 1 / 3, 1.5: 1 / 3, -3.0: 1 / 3})
    assert_shares(drawn["far"], {1: 0.5, 2**40: 0.5})


def test_numbers_of_a_sample_are_independent(drawn):
    columns = np.concatenate([drawn[name] for name in ("angle", "normal", "coin", "integers", "index", "value")], axis=1)
    correlation = np.corrcoef(columns, rowvar=False) - np.eye(columns.shape[1])
    assert np.abs(correlation).max() < 6 / math.sqrt(SAMPLES)


def test_numbers_are_those_of_the_key(drawn):
    """One draw after the other, in the order of the calls: 1 uniform, then 10 for the angle, then 10 normal ones."""
    bits = keyed.bits(SEED, 0, np.arange(SAMPLES), 21)
    np.testing.assert_array_equal(drawn["uniform"], random.uniform_of(bits[:, 0], 0, 1))
    np.testing.assert_array_equal(drawn["angle"], random.uniform_of(bits[:, 1:11], -10, 10))
    np.testing.assert_array_equal(drawn["normal"], random.normal_of(bits[:, 11:], 0, 1))


@pytest.mark.parametrize(
    ("call", "remedy"),
    [
        (lambda: random.uniform(1, 1), "low must be below high"),
        (lambda: random.uniform(2, 1), "low must be below high"),
        (lambda: random.uniform(float("nan"), 1), "low must be below high"),
        (lambda: random.normal(0, -1), "not negative"),
        (lambda: random.coin_flip(1.5), "within 0 and 1"),
        (lambda: random.coin_flip(-0.1), "within 0 and 1"),
        (lambda: random.coin_flip(float("nan")), "within 0 and 1"),
        (lambda: random.integers(3, 3), "low must be below high"),
        (lambda: random.choice(0), "number of values"),
        (lambda: random.choice([]), "number of values"),
        (lambda: random.choice(["a", "b"]), "list of numbers"),
        (lambda: random.choice([[1, 2]]), "list of numbers"),
        (lambda: random.choice(3, [0.5, 0.5]), "for 3 values"),
        (lambda: random.choice(2, [1, -1]), "probabilities"),
        (lambda: random.choice(2, [0, 0]), "probabilities"),
        (lambda: random.choice(2, [1, float("nan")]), "probabilities"),
        (lambda: random.uniform(shape=0), "at least 1"),
        (lambda: random.normal(shape=-1), "at least 1"),
        (lambda: random.coin_flip(shape=True), "number of values"),
        (lambda: random.choice(2, shape=(2, 3)), "number of values"),
    ],
)
def test_bad_argument(call, remedy):
    with pytest.raises(ArgumentError, match=remedy):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda: random.integers(0.5, 3),
        lambda: random.integers(0, 2**64),
        lambda: random.integers(-(2**63) - 1, 0),
        lambda: random.uniform(0, float("inf")),
        lambda: random.normal(0, float("nan")),
    ],
    ids=["fraction", "above int64", "below int64", "infinite", "not a number"],
)
def test_bounds_that_cannot_be_drawn_from(call):
    with pytest.raises(ArgumentError):
        call()


@pytest.mark.parametrize("name", ["uniform", "normal", "coin_flip", "integers", "choice"])
def test_outside_of_a_pipeline(name):
    arguments = {"integers": (0, 5), "choice": (3,)}.get(name, ())
    with pytest.raises(PipelineError, match="outside of a pipeline.*within a function decorated with @portaloader.pipeline"):
        getattr(random, name)(*arguments)
