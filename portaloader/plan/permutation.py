"""A keyed shuffle: a bijection on range(n), computed where it is needed.

A Feistel network over Z_a x Z_b with a * b slightly above n (the generalised Feistel cipher of J. Black and P. Rogaway,
"Ciphers with Arbitrary Finite Domains", CT-RSA 2002) permutes range(a * b); a value that falls outside range(n) is sent
through again until it falls inside (cycle walking), which keeps it a bijection. With a = ceil(sqrt(n)) that happens to
about one value in sqrt(n). No table is made, so 10**9 samples cost what 10 do.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from portaloader.keyed import plan_bits

# Few rounds mix a large domain; on a handful of samples 16 are needed until all n! orders are equally likely.
_ROUNDS_SMALL, _ROUNDS_LARGE, _LARGE = 24, 10, 2**16
_STREAM = 0
_LIMIT = 2**62


class Permutation:
    """The order of one epoch. ``Permutation(n, seed, epoch)[positions]`` gives the sample ids at these positions.

    Args:
        size: number of samples, 1 to 2**62.
        seed: the run's seed.
        epoch: each epoch has an order of its own.
    """

    def __init__(self, size: int, seed: int, epoch: int) -> None:
        if not 1 <= size <= _LIMIT:
            raise ValueError(f"a permutation of {size} samples was asked for; 1 to 2**62 are possible")
        self.size = size
        self._a = math.isqrt(size - 1) + 1
        self._b = -(-size // self._a)
        # With both odd every round would be an even permutation, and half of all orders out of reach.
        self._b += self._a * self._b % 2
        self._rounds = _ROUNDS_LARGE if size > _LARGE else _ROUNDS_SMALL
        self._keys = plan_bits(seed, epoch, _STREAM, 2 * self._rounds)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Sample ids, int64, of the shape of ``positions`` (int64, each within range(n))."""
        values = self._encipher(np.asarray(positions, dtype=np.int64).astype(np.uint64))
        size = np.uint64(self.size)
        outside = values >= size
        while outside.any():
            values[outside] = self._encipher(values[outside])
            outside = values >= size
        return values.astype(np.int64)

    def _encipher(self, values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        a, b = np.uint64(self._a), np.uint64(self._b)
        left, right = values % a, values // a
        for i in range(self._rounds):
            # The two halves swap places in each round, and with them the ranges they live in.
            left, right = right, (left + _mix(right, self._keys[2 * i], self._keys[2 * i + 1]) % a) % a
            a, b = b, a
        # An even number of rounds: left is in range(a) again.
        return left + a * right


def _mix(values: npt.NDArray[np.uint64], before: np.uint64, after: np.uint64) -> npt.NDArray[np.uint64]:
    """Keyed 64-bit hash: the finaliser of SplitMix64 (G. Steele et al., OOPSLA 2014) between two key words."""
    z = values + before
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (z ^ (z >> np.uint64(31))) + after
