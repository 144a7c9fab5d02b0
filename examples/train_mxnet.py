"""Train a ResNet in MXNet. A diff of this file and another ``train_*.py`` shows only the framework.

python -m portaloader.examples.train_mxnet --width 16    # on the bundled samples: a narrow one learns them in a minute
python -m portaloader.examples.train_mxnet --data train --held-back val --depth 50 --size 224 --batch-size 256 --amp
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import portaloader  # noqa: F401  before MXNet, which would not find its names in NumPy

# isort: split
import mxnet as mx
from mxnet import autograd, gluon
from mxnet.contrib import amp
from mxnet.gluon import nn
from mxnet.ndarray import NDArray

from .training import MOMENTUM, WEIGHT_DECAY, Convolution, Job, Layers, Residual, main


class Normalised(nn.HybridSequential):  # type: ignore[misc]
    """A convolution and what follows it."""

    def __init__(self, plan: Convolution) -> None:
        super().__init__()
        pad = plan.kernel // 2
        he = mx.init.MSRAPrelu("in", 0)
        gain = mx.init.Constant(plan.gain)
        shape = {"in_channels": plan.before, "channels": plan.after, "kernel_size": plan.kernel}
        convolution = nn.Conv2D(**shape, strides=plan.stride, padding=pad, use_bias=False, weight_initializer=he)
        norm = nn.BatchNorm(in_channels=plan.after, gamma_initializer=gain)
        self.add(convolution, norm, *([nn.Activation("relu")] if plan.relu else []))


class Block(nn.HybridBlock):  # type: ignore[misc]
    """Convolutions in a row, added to what went in."""

    def __init__(self, plan: Residual) -> None:
        super().__init__()
        self.row = nn.HybridSequential()
        self.row.add(*map(Normalised, plan.row))
        self.shortcut = Normalised(plan.shortcut) if plan.shortcut else nn.HybridSequential()

    def hybrid_forward(self, F: Any, image: NDArray) -> NDArray:
        """Of the same shape, or with more channels and half the size."""
        return F.relu(self.row(image) + self.shortcut(image))


class ResNet(nn.HybridBlock):  # type: ignore[misc]
    """Images (batch, 3, size, size) to one score for each class."""

    def __init__(self, plan: Layers) -> None:
        super().__init__()
        self.stem = nn.HybridSequential()
        self.stem.add(Normalised(plan.stem), nn.MaxPool2D(3, 2, 1))
        self.blocks = nn.HybridSequential()
        self.blocks.add(*map(Block, plan.blocks))
        self.head = nn.Dense(plan.classes, in_units=plan.blocks[-1].row[-1].after)

    def hybrid_forward(self, F: Any, image: NDArray) -> NDArray:
        """The blocks' mean over the image decides."""
        return self.head(self.blocks(self.stem(image)).mean((2, 3)))


class Trainer:
    """The network and its optimizer."""

    def __init__(self, job: Job) -> None:
        mx.random.seed(job.seed)
        device = mx.cpu() if job.device.ordinal is None else mx.gpu(job.device.ordinal)
        if job.mixed:  # before the network: what calls an operator finds another in its place
            amp.init("bfloat16" if device.device_type == "cpu" else "float16")
        self.network = ResNet(job.layers)
        self.network.initialize(ctx=device)
        self.network.hybridize(static_alloc=True, static_shape=True)
        weights = self.network.collect_params()
        self.parameters = sum(math.prod(weight.shape) for weight in weights.values() if weight.grad_req != "null")
        self.optimizer = gluon.Trainer(weights, "sgd", {"momentum": MOMENTUM, "wd": WEIGHT_DECAY})
        self.cross_entropy = gluon.loss.SoftmaxCrossEntropyLoss()
        self.mixed = job.mixed
        if job.mixed:
            amp.init_trainer(self.optimizer)

    def set_rate(self, rate: float) -> None:
        """The learning rate of the steps that come."""
        self.optimizer.set_learning_rate(rate)

    def train_step(self, batch: dict[str, NDArray]) -> tuple[NDArray, NDArray]:
        """Train on a batch: its mean loss, and how many of its samples were right."""
        with autograd.record():
            scores = self.network(batch["image"])
            loss = self.cross_entropy(scores, batch["label"]).mean()
            with amp.scale_loss(loss, self.optimizer) if self.mixed else nullcontext(loss) as scaled:
                autograd.backward(scaled)
        self.optimizer.step(1)
        return loss, (scores.argmax(1).astype("int64") == batch["label"]).sum()

    def evaluate(self, batch: dict[str, NDArray]) -> NDArray:
        """How many of the batch's samples are right."""
        scores = self.network(batch["image"])
        return ((scores.argmax(1).astype("int64") == batch["label"]) * batch["valid"].astype("int64")).sum()


if __name__ == "__main__":
    main("mxnet", Trainer)
