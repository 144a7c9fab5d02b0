"""What the five trainers share: flags, the network's plan, the loop over epochs, the report. No framework in here.

Each ``train_*.py`` brings a network and two functions on one batch (:class:`Trainer`); all else is below. They train on one
device, with plain SGD, a warm-up and a cosine, on random resized crops.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import repeat
from math import ceil, cos, inf, pi
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import portaloader
from portaloader.contract import Adapter, Device
from portaloader.errors import ArgumentError, PortaloaderError
from portaloader.loader import Loader
from portaloader.parity.digest import batch_digest, field_digest

MOMENTUM = 0.9
WEIGHT_DECAY = 5e-5
WARM_UP = 0.1  # of all steps
FIRST_STEPS = 3  # of a measurement, not counted: compilation, the choice of algorithms

T = TypeVar("T")


class Convolution(NamedTuple):
    """A convolution without bias, padded by kernel // 2, then batch normalisation, then perhaps a rectifier."""

    before: int
    after: int
    kernel: int
    stride: int = 1
    gain: float = 1.0
    """The normalisation's first scale."""
    relu: bool = True


class Residual(NamedTuple):
    """A residual block: convolutions in a row, and the one beside them where the shape changes."""

    row: tuple[Convolution, ...]
    shortcut: Convolution | None


class Layers(NamedTuple):
    """A ResNet: the stem and a pooling 3 x 3 with stride 2, the blocks, the mean over the image, a linear layer."""

    stem: Convolution
    blocks: tuple[Residual, ...]
    classes: int


def resnet(depth: int, width: int, classes: int) -> Layers:
    """The layers of a ResNet (K. He et al., CVPR 2016); each block begins as the identity (P. Goyal et al., 2017).

    Args:
        depth: 18 or 50.
        width: the stem's channels, 64 in the paper; every other layer has a multiple of them.
        classes: how many.
    """
    stem = Convolution(3, width, 7, 2)
    blocks, before = [], stem.after
    for stage, number in enumerate({18: (2, 2, 2, 2), 50: (3, 4, 6, 3)}[depth]):
        inner = width << stage
        after = inner if depth == 18 else 4 * inner
        for position in range(number):
            stride = 2 if stage > 0 and position == 0 else 1
            row = [Convolution(before, inner, 3, stride), Convolution(inner, after, 3, gain=0.0, relu=False)]
            if depth == 50:
                row[:1] = [Convolution(before, inner, 1), Convolution(inner, inner, 3, stride)]
                row[-1] = Convolution(inner, after, 1, gain=0.0, relu=False)
            beside = Convolution(before, after, 1, stride, relu=False) if stride > 1 or before != after else None
            blocks.append(Residual(tuple(row), beside))
            before = after
    return Layers(stem, tuple(blocks), classes)


class Job(NamedTuple):
    """What a trainer is asked for."""

    layers: Layers
    seed: int
    mixed: bool
    """Whether to compute in bfloat16 or float16 where that is safe, and keep the weights in float32."""
    device: Device
    """Where the batches are."""


class Trainer(Protocol):
    """A network and its optimizer."""

    parameters: int
    """How many numbers are trained."""

    def set_rate(self, rate: float) -> None:
        """The learning rate of the steps that come."""

    def train_step(self, batch: dict[str, Any]) -> tuple[Any, Any]:
        """Train on a batch: its mean loss, and how many of its samples were right. To wait for them is the caller's."""

    def evaluate(self, batch: dict[str, Any]) -> Any:
        """How many of the samples are right, of those that ``valid`` marks."""


def flags(framework: str) -> argparse.ArgumentParser:
    """The same for every framework."""
    parser = argparse.ArgumentParser(description=f"Train a ResNet on a folder of images, in {framework}.")
    samples = portaloader.samples.path
    parser.add_argument("--data", type=Path, default=samples("train"), help="FOLDER/CLASS/*.jpg; default: bundled samples")
    parser.add_argument("--held-back", type=Path, default=samples("held_back"), help="the same classes, to measure accuracy")
    parser.add_argument("--depth", type=int, choices=[18, 50], default=18, help="of the ResNet")
    parser.add_argument("--width", type=within(int, 1), default=64, help="channels of its first layer; fewer are faster")
    parser.add_argument("--epochs", type=within(int, 1), default=20)
    parser.add_argument("--batch-size", type=within(int, 1), default=16)
    parser.add_argument("--size", type=within(int, 1), default=96, help="height and width of the images, pixels")
    parser.add_argument("--crop", type=within(float, 0.01, 1), default=0.5, help="a random crop's least share of the image")
    parser.add_argument("--lr", type=within(float, 0), default=0.1, help="the greatest learning rate")
    parser.add_argument(
        "--seed", type=within(int, 0, 2**32 - 1), default=0, help="of the stream, and of the network's first weights"
    )
    parser.add_argument("--amp", action="store_true", help="mixed precision")
    parser.add_argument("--device", choices=["auto", "cpu", "gpu"], default="auto", help="of the batches and the network")
    parser.add_argument("--num-threads", type=within(int, 1), help="of DALI; default: one for each processor")
    parser.add_argument(
        "--synthetic", type=within(int, 1), metavar="STEPS", help="train on one batch only: the speed if data were free"
    )
    parser.add_argument("--no-digest", action="store_true", help="do not hash the stream: that takes time")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write what is printed as JSON, too")
    return parser


def within(kind: Callable[[str], float], least: float, most: float = inf) -> Callable[[str], float]:
    """For argparse: a number within these bounds."""

    def number(text: str) -> float:
        value = kind(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text} is not from {least}{f' to {most}' if most < inf else ' on'}")
        return value

    return number


@dataclass(frozen=True)
class Epoch:
    """What is reported of one epoch."""

    loss: float
    accuracy: float
    held_back: float
    """Accuracy on the held-back samples."""
    images_per_second: float
    """Of the training alone."""
    wait_seconds: float
    """Of the training, waiting for data."""
    digest: str | None
    """Of the stream: SHA-256 over the digests of its batches, as ``portaloader parity`` prints them."""


def main(framework: str, make: Callable[[Job], Trainer]) -> None:
    """Do what the command line asks for."""
    parser = flags(framework)
    options = parser.parse_args()
    common = {name: getattr(options, name) for name in ("batch_size", "device", "num_threads", "seed", "size")}
    common |= {"framework": framework, "shard": (0, 1)}
    if options.report is not None:
        try:
            options.report.touch()
        except OSError as error:  # to be told now, not after hours of training
            parser.error(str(error))
    try:
        with (
            portaloader.get_loader(options.data, last_batch="drop", scale=(options.crop, 1.0), **common) as train,
            portaloader.get_loader(
                options.held_back, last_batch="pad", shuffle=False, train=False, resize=options.size * 8 // 7, **common
            ) as held_back,
        ):
            report = run(make, options, train, held_back)
    except PortaloaderError as error:
        parser.error(str(error))
    if options.report is not None:
        asked = {name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()}
        options.report.write_text(json.dumps({"framework": framework, "options": asked, **report}, indent=2))


def run(
    make: Callable[[Job], Trainer], options: argparse.Namespace, train: Loader[Any], held_back: Loader[Any]
) -> dict[str, Any]:
    """Train, or measure the bound; what is to be reported."""
    classes = train.source.classes
    if not classes or held_back.source.classes != classes:
        raise ArgumentError(
            f"{options.data} has the classes {classes}, {options.held_back} has {held_back.source.classes}; "
            f"both are folders with the same classes: FOLDER/CLASS/*.jpg."
        )
    device = train.adapter.device
    trainer = make(Job(resnet(options.depth, options.width, len(classes)), options.seed, options.amp, device))
    console = Console(soft_wrap=True, highlight=False)
    console.print(f"ResNet-{options.depth} in {train.framework}, {trainer.parameters:,} parameters, on {device}")
    if options.synthetic:
        speed = bound(trainer, train, options)
        console.print(f"bound: {speed:.1f} images/s, {options.synthetic} steps on one batch of {options.batch_size}")
        return {"parameters": trainer.parameters, "bound": speed}
    rates = learning_rates(options.lr, options.epochs * len(train))
    epochs = []
    for number in range(1, options.epochs + 1):
        with progress(console, f"epoch {number}", len(train)) as advance:
            epochs.append(one_epoch(trainer, train, held_back, rates, not options.no_digest, advance))
        console.print(f"epoch {number}: {line(epochs[-1])}")
    return {"parameters": trainer.parameters, "epochs": [asdict(epoch) for epoch in epochs]}


def one_epoch(
    trainer: Trainer,
    train: Loader[Any],
    held_back: Loader[Any],
    rates: Iterator[float],
    with_digest: bool,
    advance: Callable[[float], None],
) -> Epoch:
    """Train on all batches of an epoch, then look at the held-back samples."""
    sha = hashlib.sha256()
    batches = hashed(train, sha) if with_digest else iter(train)
    loss, right, waited, began = 0.0, 0, train.stats.wait_seconds, time.perf_counter()
    for step_loss, step_right in training(trainer, batches, rates, train.adapter):
        loss, right = loss + step_loss, right + step_right
        advance(step_loss)
    seconds, waited = time.perf_counter() - began, train.stats.wait_seconds - waited
    images = len(train) * train.plan.batch_size
    found = sum(int(held_back.adapter.to_numpy(right).item()) for right in one_behind(map(trainer.evaluate, held_back)))
    return Epoch(
        loss / len(train),
        right / images,
        found / len(held_back.source),
        images / seconds,
        waited,
        sha.hexdigest() if with_digest else None,
    )


def bound(trainer: Trainer, loader: Loader[Any], options: argparse.Namespace) -> float:
    """Images per second of the training step, on a batch that is there already."""
    batch = next(iter(loader))
    for steps in (FIRST_STEPS, options.synthetic):
        began = time.perf_counter()
        for _ in training(trainer, repeat(batch, steps), repeat(options.lr), loader.adapter):
            pass
        seconds = time.perf_counter() - began
    return float(options.synthetic * options.batch_size / seconds)


def training(
    trainer: Trainer, batches: Iterable[Any], rates: Iterator[float], adapter: Adapter
) -> Iterator[tuple[float, int]]:
    """Train on the batches; of each, its mean loss and how many of its samples were right."""

    def steps() -> Iterator[tuple[Any, Any]]:
        for batch, rate in zip(batches, rates, strict=False):
            trainer.set_rate(rate)
            yield trainer.train_step(batch)

    for loss, right in one_behind(steps()):
        yield adapter.to_numpy(loss).item(), int(adapter.to_numpy(right).item())


def one_behind(results: Iterator[T]) -> Iterator[T]:
    """Each result when the next step was begun: reading one waits for it, and the device shall have work meanwhile."""
    before = next(results)
    for result in results:
        yield before
        before = result
    yield before


def hashed(loader: Loader[Any], sha: hashlib._Hash) -> Iterator[Any]:
    """The batches of an epoch as they are, and their digests into ``sha``."""
    for batch in loader:
        fields = {name: field_digest(values) for name, values in loader.to_numpy(batch).items()}
        sha.update(batch_digest(fields).encode())
        yield batch


def learning_rates(greatest: float, steps: int) -> Iterator[float]:
    """A linear warm-up, then half a cosine down to 0."""
    warm_up = ceil(WARM_UP * steps)
    for step in range(steps):
        yield greatest * min((step + 1) / warm_up, 0.5 + 0.5 * cos(pi * step / steps))


@contextmanager
def progress(console: Console, title: str, steps: int) -> Iterator[Callable[[float], None]]:
    """A bar in a terminal, gone when it is full; the function is to be called with the loss of every step."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=steps)
        yield lambda loss: bar.update(task, advance=1, description=f"{title}: loss {loss:.3f}")


def line(epoch: Epoch) -> str:
    """An epoch for people."""
    parts = [f"loss {epoch.loss:.3f}", f"accuracy {100 * epoch.accuracy:.1f} %", f"held back {100 * epoch.held_back:.1f} %"]
    parts += [f"{epoch.images_per_second:.0f} images/s", f"{epoch.wait_seconds:.1f} s waited for data"]
    return ", ".join([*parts, *([f"stream {epoch.digest[:16]}"] if epoch.digest else [])])
