"""On a GPU: a consumer that lags behind, on a stream of its own, still reads the batch that it was given.

    pytest tests/gpu --device gpu

Not part of `make test`: it needs a CUDA device, PyTorch with CUDA, and JAX with CUDA.
"""

import numpy as np
import pytest

import portaloader
from portaloader.testing.helpers import sample_files

OPTIONS = {"size": 64, "batch_size": 16, "device": "gpu", "num_threads": 4}
FILES = sample_files(400)


@pytest.fixture(scope="module")
def sums():
    """Of each batch of two epochs, from the host."""
    with portaloader.get_loader(FILES, framework="numpy", **OPTIONS) as loader:
        return [batch["image"].astype(np.float64).sum() for _ in range(2) for batch in loader]


def test_torch_consumer_on_a_side_stream(sums):
    import torch

    found = []
    with portaloader.get_loader(FILES, framework="torch", **OPTIONS) as loader, torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(2):
            for batch in loader:
                assert batch["image"].is_cuda
                torch.cuda._sleep(40_000_000)  # the stream is busy for some 20 ms before it gets to the batch
                found.append(batch["image"].double().sum())
                del batch  # the host lets go of the batch while the stream has not read it yet
        torch.cuda.synchronize()
    assert np.allclose([float(value) for value in found], sums, rtol=1e-12)


def test_jax_consumer_that_lags(sums):
    import jax
    import jax.numpy as jnp

    @jax.jit
    def slow_sum(x):
        def step(_, value):
            return jnp.tanh(value @ value) * 1e-3

        busy = jax.lax.fori_loop(0, 60, step, jnp.ones((2048, 2048), jnp.float32))
        return x.sum() + 0 * busy.sum()

    found = []
    with portaloader.get_loader(FILES, framework="jax", **OPTIONS) as loader:
        for _ in range(2):
            for batch in loader:
                found.append(slow_sum(batch["image"]))
                del batch
    assert np.allclose([float(value) for value in found], sums, rtol=1e-3, atol=1.0)
