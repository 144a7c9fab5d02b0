"""Train a ResNet in JAX. A diff of this file and another ``train_*.py`` shows only the framework.

python -m portaloader.examples.train_jax --width 16    # on the bundled samples: a narrow one learns them in a minute
python -m portaloader.examples.train_jax --data train --held-back val --depth 50 --size 224 --batch-size 256 --amp
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax.linen.initializers import constant, he_normal
from jax import Array

from .training import MOMENTUM, WEIGHT_DECAY, Convolution, Job, Layers, Residual, main


class Normalised(nn.Module):  # type: ignore[misc]
    """A convolution and what follows it."""

    plan: Convolution
    dtype: Any

    def setup(self) -> None:
        plan, pad = self.plan, (self.plan.kernel // 2,) * 2
        kernel = {"kernel_size": (plan.kernel,) * 2, "strides": plan.stride, "padding": (pad, pad)}
        self.convolution = nn.Conv(plan.after, **kernel, use_bias=False, kernel_init=he_normal(), dtype=self.dtype)
        self.norm = nn.BatchNorm(momentum=0.9, epsilon=1e-5, scale_init=constant(plan.gain), dtype=self.dtype)

    def __call__(self, image: Array, training: bool) -> Array:
        """Of the shape that the plan says."""
        result = self.norm(self.convolution(image), use_running_average=not training)
        return nn.relu(result) if self.plan.relu else result


class Block(nn.Module):  # type: ignore[misc]
    """Convolutions in a row, added to what went in."""

    plan: Residual
    dtype: Any

    def setup(self) -> None:
        self.row = [Normalised(convolution, self.dtype) for convolution in self.plan.row]
        self.shortcut = Normalised(self.plan.shortcut, self.dtype) if self.plan.shortcut else None

    def __call__(self, image: Array, training: bool) -> Array:
        """Of the same shape, or with more channels and half the size."""
        result = image
        for convolution in self.row:
            result = convolution(result, training)
        return nn.relu(result + (self.shortcut(image, training) if self.shortcut else image))


class ResNet(nn.Module):  # type: ignore[misc]
    """Images (batch, 3, size, size) to one score for each class."""

    plan: Layers
    dtype: Any

    def setup(self) -> None:
        self.stem = Normalised(self.plan.stem, self.dtype)
        self.blocks = [Block(block, self.dtype) for block in self.plan.blocks]
        self.head = nn.Dense(self.plan.classes)

    def __call__(self, image: Array, training: bool) -> Array:
        """The blocks' mean over the image decides."""
        image = image.transpose(0, 2, 3, 1)  # Flax has the channels last
        result = nn.max_pool(self.stem(image, training), (3, 3), (2, 2), ((1, 1), (1, 1)))
        for block in self.blocks:
            result = block(result, training)
        return self.head(result.mean((1, 2), dtype=jnp.float32))


class Trainer:
    """The network and its optimizer."""

    def __init__(self, job: Job) -> None:
        ordinal = job.device.ordinal
        device = jax.local_devices(backend="cpu")[0] if ordinal is None else jax.local_devices(backend="gpu")[ordinal]
        self.network = ResNet(job.layers, jnp.bfloat16 if job.mixed else jnp.float32)
        self.optimizer = optax.chain(optax.add_decayed_weights(WEIGHT_DECAY), optax.trace(MOMENTUM))
        first = jax.jit(partial(self.network.init, training=False))(jax.random.key(job.seed), jnp.zeros((1, 3, 32, 32)))
        self.state = jax.device_put((first["params"], first["batch_stats"], self.optimizer.init(first["params"])), device)
        self.parameters = sum(weight.size for weight in jax.tree.leaves(first["params"]))
        self.rate = 0.0

    def set_rate(self, rate: float) -> None:
        """The learning rate of the steps that come."""
        self.rate = rate

    def train_step(self, batch: dict[str, Array]) -> tuple[Array, Array]:
        """Train on a batch: its mean loss, and how many of its samples were right."""
        self.state, loss, right = _train(self.network, self.optimizer, self.state, self.rate, batch)
        return loss, right

    def evaluate(self, batch: dict[str, Array]) -> Array:
        """How many of the batch's samples are right."""
        return _evaluate(self.network, self.state, batch)


# JAX compiles pure functions: what they change goes in and comes out.


@partial(jax.jit, static_argnums=(0, 1), donate_argnums=2)
def _train(
    network: ResNet, optimizer: optax.GradientTransformation, state: Any, rate: Array, batch: dict[str, Array]
) -> tuple[Any, Array, Array]:
    weights, statistics, memory = state

    def forward(weights: Any) -> tuple[Array, tuple[Array, Any]]:
        variables = {"params": weights, "batch_stats": statistics}
        scores, changed = network.apply(variables, batch["image"], training=True, mutable=["batch_stats"])
        losses = optax.softmax_cross_entropy_with_integer_labels(scores, batch["label"])
        return losses.mean(), (scores, changed["batch_stats"])

    (loss, (scores, statistics)), gradients = jax.value_and_grad(forward, has_aux=True)(weights)
    updates, memory = optimizer.update(gradients, memory, weights)
    weights = optax.apply_updates(weights, jax.tree.map(lambda update: -rate * update, updates))
    return (weights, statistics, memory), loss, (scores.argmax(1) == batch["label"]).sum()


@partial(jax.jit, static_argnums=0)
def _evaluate(network: ResNet, state: Any, batch: dict[str, Array]) -> Array:
    weights, statistics, _ = state
    scores = network.apply({"params": weights, "batch_stats": statistics}, batch["image"], training=False)
    return ((scores.argmax(1) == batch["label"]) & batch["valid"]).sum()


if __name__ == "__main__":
    main("jax", Trainer)
