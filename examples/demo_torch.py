"""Train a small convolutional network on the bundled samples, in PyTorch, on the CPU.

    python -m portaloader.examples.demo_torch [--epochs 30]

Prints the accuracy on the held-back samples.
"""

from __future__ import annotations

import argparse
from itertools import pairwise

import torch
from rich.progress import track
from torch import nn

import portaloader
from portaloader.loader import Loader


def network(classes: int) -> nn.Module:
    """Four strided convolutions and the greatest response of each channel: a pattern may be anywhere."""
    channels = (3, 16, 32, 64, 128)
    layers: list[nn.Module] = []
    for before, after in pairwise(channels):
        layers += [nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(channels[-1], classes))


def accuracy(model: nn.Module, loader: Loader[torch.Tensor]) -> float:
    """The share of one epoch's samples that the model gets right."""
    model.eval()
    right = total = 0
    with torch.no_grad():
        for batch in loader:
            right += int((model(batch["image"]).argmax(1) == batch["label"]).sum())
            total += len(batch["label"])
    model.train()
    return right / total


def main(epochs: int) -> float:
    """Train; return the accuracy on the held-back samples."""
    torch.manual_seed(0)
    torch.set_num_threads(1)  # the network is small; the other cores decode
    samples = portaloader.samples
    train = portaloader.get_loader(
        samples.path("train"), framework="torch", batch_size=16, device="cpu", size=64, scale=(0.5, 1.0)
    )
    held_back = portaloader.get_loader(
        samples.path("held_back"), framework="torch", shuffle=False, device="cpu", train=False, size=64, resize=72
    )
    model = network(classes=len(train.source.classes or ()))
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=epochs * len(train), pct_start=0.2)
    for _ in track(range(epochs), "training"):
        for batch in train:
            loss = nn.functional.cross_entropy(model(batch["image"]), batch["label"])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
    found = accuracy(model, held_back)
    seconds = train.stats.wait_seconds
    print(f"{train.stats.samples} samples seen, {seconds:.1f} s waited for data")
    print(f"accuracy on {len(held_back.source)} held-back samples: {100 * found:.1f} %")
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--epochs", type=int, default=30)
    main(parser.parse_args().epochs)
