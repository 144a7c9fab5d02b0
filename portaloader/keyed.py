"""Counter-based random bits: a pure function of a key and a counter.

The generator is Philox4x32-10 of J. Salmon, M. Moraes, R. Dror, D. Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3"
(SC 2011), vectorised over counters with NumPy. Nothing is remembered between calls, so the bits of one sample do not
depend on which other samples are asked for, in which order, or by whom.

Layout of the 128-bit counter, from the low word: sample id (64 bits), block of draws (32 bits), epoch (32 bits).
The 64-bit key is the seed. A block holds two draws of 64 bits. Blocks from ``2**31`` on are reserved for the plan.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], dtype=np.uint64)
_WEYL = np.array([[[0x9E3779B9 * i], [0xBB67AE85 * i]] for i in range(10)], dtype=np.uint64)
"""What is added to the key in each of the ten rounds."""
_WORD = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def philox(counter: npt.NDArray[np.uint64], key: tuple[int, int]) -> npt.NDArray[np.uint64]:
    """Philox4x32-10: four words of 32 bits for each counter.

    Args:
        counter: shape (4, n), uint64 that hold 32-bit words, low word first.
        key: two 32-bit words, low word first.

    Returns:
        shape (4, n), uint64 that hold 32-bit words.
    """
    even, odd = counter[0::2], counter[1::2]
    for keys in (np.array([[key[0]], [key[1]]], dtype=np.uint64) + _WEYL) & _WORD:
        product = even * _MULTIPLIERS
        even, odd = (product >> _HALF)[::-1] ^ odd ^ keys, (product & _WORD)[::-1]
    words = np.empty_like(counter)
    words[0::2], words[1::2] = even, odd
    return words


def bits(
    seed: int,
    epochs: int | npt.NDArray[np.int64],
    ids: npt.NDArray[np.int64],
    draws: int,
    *,
    first: int = 0,
) -> npt.NDArray[np.uint64]:
    """Random bits keyed by (seed, epoch, sample id, draw).

    Args:
        seed: taken modulo 2**64.
        epochs: one epoch for all samples, or one for each, shape (batch,); modulo 2**32.
        ids: sample ids, shape (batch,).
        draws: how many draws for each sample.
        first: number of the first draw.

    Returns:
        shape (batch, draws), uint64, every bit used.
    """
    seed = int(seed)
    ids = np.asarray(ids, dtype=np.int64).astype(np.uint64)
    low, high = first // 2, (first + draws + 1) // 2
    blocks = high - low
    counter = np.empty((4, len(ids), blocks), dtype=np.uint64)
    counter[0] = (ids & _WORD)[:, None]
    counter[1] = (ids >> _HALF)[:, None]
    counter[2] = np.arange(low, high, dtype=np.uint64)
    counter[3] = np.broadcast_to(np.asarray(epochs, dtype=np.int64), ids.shape).astype(np.uint64)[:, None] & _WORD
    words = philox(counter.reshape(4, -1), (seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF))
    pairs = words[0::2] | (words[1::2] << _HALF)
    flat = pairs.reshape(2, len(ids), blocks).transpose(1, 2, 0).reshape(len(ids), 2 * blocks)
    skip = first - 2 * low
    return np.asarray(flat[:, skip : skip + draws])


_PLAN_BLOCK = 2**31


def plan_bits(seed: int, epoch: int, stream: int, count: int) -> npt.NDArray[np.uint64]:
    """Bits for the plan itself, disjoint from every sample's: shape (count,), uint64, keyed by (seed, epoch, stream)."""
    return bits(seed, epoch, np.array([stream]), count, first=2 * _PLAN_BLOCK).reshape(count)
