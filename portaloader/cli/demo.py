"""``portaloader demo``: the main job on the bundled samples, and a small training."""

from __future__ import annotations

import subprocess
import sys
from typing import Annotated

import typer
from rich.console import Console

from portaloader import registry
from portaloader.cli import report
from portaloader.cli.parity import installed
from portaloader.errors import PortaloaderError
from portaloader.parity import Request


def demo(
    frameworks: Annotated[str | None, typer.Option(help="Names with commas between. Default: all installed.")] = None,
    batches: Annotated[int, typer.Option(min=1, help="How many batches to compare.")] = 8,
    train: Annotated[bool, typer.Option(help="Train a small network in PyTorch, where it is installed.")] = True,
) -> None:
    """Stream the bundled samples into every framework, compare the batches, then train a small network."""
    console = Console()
    console.print("[bold]1. One pipeline, every framework[/]: decode, random resized crop, random flip, normalise")
    names = [name.strip() for name in frameworks.split(",") if name.strip()] if frameworks else installed()
    request = Request(batches=batches, options={"batch_size": 16, "device": "cpu"}, arguments={"size": 96})
    try:
        names = ["numpy", *(name for name in map(_canonical, names) if name != "numpy")]
        outcome = report.run(console, request, names)
    except PortaloaderError as error:
        raise typer.BadParameter(str(error)) from error
    report.show(console, outcome)
    if not outcome.equal:
        console.print("Next: `portaloader doctor` says what is wrong and which line mends it.")
        raise typer.Exit(1)
    if train:
        _train(console, "torch" in names)
    console.print(
        "[bold]Next[/]: your own images, in five lines of README.md; `portaloader parity FOLDER` compares them like this.",
        soft_wrap=True,
    )


def _canonical(name: str) -> str:
    return registry.resolve(name).name


def _train(console: Console, with_torch: bool) -> None:
    console.print("\n[bold]2. Training[/]: a small convolutional network on the bundled samples, in PyTorch")
    if not with_torch:
        console.print("left out: PyTorch is not among the frameworks of this demo.")
        return
    done = subprocess.run([sys.executable, "-m", "portaloader.examples.demo_torch"], check=False)
    if done.returncode:
        raise typer.Exit(1)
