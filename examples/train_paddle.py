"""Train a ResNet in PaddlePaddle. A diff of this file and another ``train_*.py`` shows only the framework.

python -m portaloader.examples.train_paddle --width 16    # on the bundled samples: a narrow one learns them in a minute
python -m portaloader.examples.train_paddle --data train --held-back val --depth 50 --size 224 --batch-size 256 --amp
"""

from __future__ import annotations

import paddle
from paddle import Tensor, nn
from paddle.nn.initializer import Constant, KaimingNormal

from portaloader.errors import ArgumentError

from .training import MOMENTUM, WEIGHT_DECAY, Convolution, Job, Layers, Residual, main


class Normalised(nn.Sequential):  # type: ignore[misc]
    """A convolution and what follows it."""

    def __init__(self, plan: Convolution) -> None:
        pad = plan.kernel // 2
        he = paddle.ParamAttr(initializer=KaimingNormal())
        gain = paddle.ParamAttr(initializer=Constant(plan.gain))
        convolution = nn.Conv2D(plan.before, plan.after, plan.kernel, plan.stride, pad, weight_attr=he, bias_attr=False)
        norm = nn.BatchNorm2D(plan.after, weight_attr=gain)
        super().__init__(convolution, norm, nn.ReLU() if plan.relu else nn.Identity())


class Block(nn.Layer):  # type: ignore[misc]
    """Convolutions in a row, added to what went in."""

    def __init__(self, plan: Residual) -> None:
        super().__init__()
        self.row = nn.Sequential(*map(Normalised, plan.row))
        self.shortcut = Normalised(plan.shortcut) if plan.shortcut else nn.Identity()

    def forward(self, image: Tensor) -> Tensor:
        """Of the same shape, or with more channels and half the size."""
        return nn.functional.relu(self.row(image) + self.shortcut(image))


class ResNet(nn.Layer):  # type: ignore[misc]
    """Images (batch, 3, size, size) to one score for each class."""

    def __init__(self, plan: Layers) -> None:
        super().__init__()
        self.stem = nn.Sequential(Normalised(plan.stem), nn.MaxPool2D(3, 2, 1))
        self.blocks = nn.Sequential(*map(Block, plan.blocks))
        self.head = nn.Linear(plan.blocks[-1].row[-1].after, plan.classes)

    def forward(self, image: Tensor) -> Tensor:
        """The blocks' mean over the image decides."""
        return self.head(self.blocks(self.stem(image)).mean((2, 3)))


class Trainer:
    """The network and its optimizer."""

    def __init__(self, job: Job) -> None:
        if job.mixed and job.device.ordinal is None:
            raise ArgumentError("--amp was asked for, and Paddle computes in mixed precision on a GPU only.")
        paddle.seed(job.seed)
        paddle.device.set_device("cpu" if job.device.ordinal is None else f"gpu:{job.device.ordinal}")
        self.network = ResNet(job.layers)
        weights = [weight for weight in self.network.parameters() if not weight.stop_gradient]
        self.parameters = sum(weight.size for weight in weights)
        self.optimizer = paddle.optimizer.Momentum(0.0, MOMENTUM, weights, weight_decay=WEIGHT_DECAY)
        self.mixed = job.mixed

    def set_rate(self, rate: float) -> None:
        """The learning rate of the steps that come."""
        self.optimizer.set_lr(rate)

    def train_step(self, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Train on a batch: its mean loss, and how many of its samples were right."""
        self.network.train()
        with paddle.amp.auto_cast(self.mixed, dtype="bfloat16"):
            scores = self.network(batch["image"])
            loss = nn.functional.cross_entropy(scores, batch["label"])
        loss.backward()
        self.optimizer.step()
        self.optimizer.clear_grad()
        return loss.detach(), (scores.argmax(1) == batch["label"]).sum()

    def evaluate(self, batch: dict[str, Tensor]) -> Tensor:
        """How many of the batch's samples are right."""
        self.network.eval()
        with paddle.no_grad(), paddle.amp.auto_cast(self.mixed, dtype="bfloat16"):
            scores = self.network(batch["image"])
        return ((scores.argmax(1) == batch["label"]) & batch["valid"]).sum()


if __name__ == "__main__":
    main("paddle", Trainer)
