"""Keyed random numbers for pipelines: each is a function of (seed, epoch, sample id, draw) and of nothing else.

So one sample is augmented alike whatever the batch size, the threads, the number of ranks, the prefetch or the framework,
and differently in every epoch. The functions are called within a ``@portaloader.pipeline`` function and return graph
nodes (on the CPU, where DALI's operators take their arguments). The number of the draw is the place of the call among the
calls of the function: an added call at the end leaves the earlier numbers as they were.

With ``shape=n`` a function gives n independent numbers for each sample, a node of shape (n,), instead of one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from portaloader.errors import ArgumentError
from portaloader.pipelines import Node, add_draw

_FLOAT32 = float(np.finfo(np.float32).max)

Bits = npt.NDArray[np.uint64]


def uniform(low: float = 0.0, high: float = 1.0, *, shape: int | None = None) -> Node:
    """float32, uniform in [low, high)."""
    if not -_FLOAT32 <= low < high <= _FLOAT32:
        raise ArgumentError(f"uniform({low}, {high}) was asked for; low must be below high, and both within float32.")
    return _node(lambda bits: uniform_of(bits, low, high), np.float32, shape)


def normal(mean: float = 0.0, stddev: float = 1.0, *, shape: int | None = None) -> Node:
    """float32, normal with this mean and standard deviation."""
    if not (0 <= stddev <= _FLOAT32 and -_FLOAT32 <= mean <= _FLOAT32):
        raise ArgumentError(
            f"normal({mean}, {stddev}) was asked for; a standard deviation is not negative, and both are within float32."
        )
    return _node(lambda bits: normal_of(bits, mean, stddev), np.float32, shape)


def coin_flip(probability: float = 0.5, *, shape: int | None = None) -> Node:
    """int32, 1 with this probability, else 0."""
    if not 0 <= probability <= 1:
        raise ArgumentError(f"coin_flip({probability}) was asked for; a probability is within 0 and 1.")
    return _node(lambda bits: (fraction(bits) < probability).astype(np.int32), np.int32, shape)


def integers(low: int, high: int, *, shape: int | None = None) -> Node:
    """int32 (int64 where the bounds need it), uniform in low, low + 1, ..., high - 1."""
    whole = all(isinstance(bound, (int, np.integer)) and not isinstance(bound, bool) for bound in (low, high))
    if not (whole and -(2**63) <= low < high <= 2**63 and high - low <= 2**53):
        raise ArgumentError(
            f"integers({low}, {high}) was asked for; low must be below high, both whole numbers within int64, "
            f"at most 2**53 apart."
        )
    low, high = int(low), int(high)
    dtype = _integer_dtype(low, high - 1)
    return _node(lambda bits: integers_of(bits, low, high).astype(dtype), dtype, shape)


def choice(values: int | Sequence[float], probabilities: Sequence[float] | None = None, *, shape: int | None = None) -> Node:
    """One of ``values`` (an int n means 0 to n - 1), each as likely as its probability, or all alike.

    int32 (int64 where needed) if all values are whole numbers, else float32.
    """
    table = np.arange(values) if isinstance(values, int) else np.asarray(values)
    if table.ndim != 1 or not len(table) or table.dtype.kind not in "iuf":
        raise ArgumentError(f"choice({values!r}) was asked for; give a number of values, or a list of numbers.")
    weights = np.ones(len(table)) if probabilities is None else np.asarray(probabilities, dtype=np.float64)
    if weights.shape != table.shape or (weights < 0).any() or not 0 < weights.sum() < np.inf:
        raise ArgumentError(f"choice() was given the probabilities {probabilities!r} for {len(table)} values.")
    whole = table.dtype.kind in "iu"
    dtype = _integer_dtype(int(table.min()), int(table.max())) if whole else np.dtype(np.float32)
    limits = np.cumsum(weights / weights.sum())[:-1]
    typed = table.astype(dtype)
    return _node(lambda bits: typed[np.searchsorted(limits, fraction(bits), side="right")], dtype, shape)


def fraction(bits: Bits) -> npt.NDArray[np.float64]:
    """In [0, 1), from the upper 53 bits."""
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def uniform_of(bits: Bits, low: float, high: float) -> npt.NDArray[np.float32]:
    """The values of :func:`uniform` for these bits."""
    values = (low + (high - low) * fraction(bits)).astype(np.float32)
    # Rounding to float32 may reach the bound that the interval leaves out.
    return np.minimum(values, np.nextafter(np.float32(high), np.float32(low)))


def normal_of(bits: Bits, mean: float, stddev: float) -> npt.NDArray[np.float32]:
    """The values of :func:`normal` for these bits, by G. Box and M. Muller (1958) from two halves of 32 bits."""
    radius = np.sqrt(-2.0 * np.log(((bits >> np.uint64(32)).astype(np.float64) + 0.5) * 2.0**-32))
    angle = (bits & np.uint64(0xFFFFFFFF)).astype(np.float64) * (2.0 * np.pi * 2.0**-32)
    return (mean + stddev * (radius * np.cos(angle))).astype(np.float32)


def integers_of(bits: Bits, low: int, high: int) -> npt.NDArray[np.int64]:
    """The values of :func:`integers` for these bits. The bias is at most (high - low) / 2**64, below 2**-11."""
    return (bits % np.uint64(high - low)).astype(np.int64) + low


def _integer_dtype(low: int, high: int) -> np.dtype[Any]:
    bounds = np.iinfo(np.int32)
    return np.dtype(np.int32 if bounds.min <= low and high <= bounds.max else np.int64)


def _node(transform: Callable[[Bits], npt.NDArray[Any]], dtype: npt.DTypeLike, shape: int | None) -> Node:
    if shape is None:
        return add_draw(1, lambda bits: transform(bits[:, 0]), np.dtype(dtype), 0)
    if isinstance(shape, bool) or not isinstance(shape, int) or shape < 1:
        raise ArgumentError(f"shape={shape!r} was asked for; it is a number of values, at least 1.")
    return add_draw(shape, transform, np.dtype(dtype), 1)
