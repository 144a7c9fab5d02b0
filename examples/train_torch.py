"""Train a ResNet in PyTorch. A diff of this file and another ``train_*.py`` shows only the framework.

python -m portaloader.examples.train_torch --width 16    # on the bundled samples: a narrow one learns them in a minute
python -m portaloader.examples.train_torch --data train --held-back val --depth 50 --size 224 --batch-size 256 --amp
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .training import MOMENTUM, WEIGHT_DECAY, Convolution, Job, Layers, Residual, main


class Normalised(nn.Sequential):
    """A convolution and what follows it."""

    def __init__(self, plan: Convolution) -> None:
        convolution = nn.Conv2d(plan.before, plan.after, plan.kernel, plan.stride, plan.kernel // 2, bias=False)
        norm = nn.BatchNorm2d(plan.after)
        nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
        nn.init.constant_(norm.weight, plan.gain)
        super().__init__(convolution, norm, nn.ReLU() if plan.relu else nn.Identity())


class Block(nn.Module):
    """Convolutions in a row, added to what went in."""

    def __init__(self, plan: Residual) -> None:
        super().__init__()
        self.row = nn.Sequential(*map(Normalised, plan.row))
        self.shortcut = Normalised(plan.shortcut) if plan.shortcut else nn.Identity()

    def forward(self, image: Tensor) -> Tensor:
        """Of the same shape, or with more channels and half the size."""
        return torch.relu(self.row(image) + self.shortcut(image))


class ResNet(nn.Module):
    """Images (batch, 3, size, size) to one score for each class."""

    def __init__(self, plan: Layers) -> None:
        super().__init__()
        self.stem = nn.Sequential(Normalised(plan.stem), nn.MaxPool2d(3, 2, 1))
        self.blocks = nn.Sequential(*map(Block, plan.blocks))
        self.head = nn.Linear(plan.blocks[-1].row[-1].after, plan.classes)

    def forward(self, image: Tensor) -> Tensor:
        """The blocks' mean over the image decides."""
        image = image.contiguous(memory_format=torch.channels_last)
        return self.head(self.blocks(self.stem(image)).mean((2, 3)))


class Trainer:
    """The network and its optimizer."""

    def __init__(self, job: Job) -> None:
        torch.manual_seed(job.seed)
        device = torch.device("cpu" if job.device.ordinal is None else f"cuda:{job.device.ordinal}")
        self.network = ResNet(job.layers).to(device)
        self.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        weights = list(self.network.parameters())
        self.parameters = sum(weight.numel() for weight in weights)
        self.optimizer = torch.optim.SGD(weights, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)
        self.precision = torch.autocast(device.type, torch.bfloat16, enabled=job.mixed)

    def set_rate(self, rate: float) -> None:
        """The learning rate of the steps that come."""
        self.optimizer.param_groups[0]["lr"] = rate

    def train_step(self, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Train on a batch: its mean loss, and how many of its samples were right."""
        self.network.train()
        self.optimizer.zero_grad()
        with self.precision:
            scores = self.network(batch["image"])
            loss = nn.functional.cross_entropy(scores, batch["label"])
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return loss.detach(), (scores.argmax(1) == batch["label"]).sum()

    def evaluate(self, batch: dict[str, Tensor]) -> Tensor:
        """How many of the batch's samples are right."""
        self.network.eval()
        with torch.no_grad(), self.precision:
            scores = self.network(batch["image"])
        return ((scores.argmax(1) == batch["label"]) & batch["valid"]).sum()


if __name__ == "__main__":
    main("torch", Trainer)
