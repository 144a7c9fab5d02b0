"""``portaloader parity``: are the batches the same in every framework?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from portaloader import registry
from portaloader.cli import report
from portaloader.errors import PortaloaderError
from portaloader.parity import Request


def parity(
    source: Annotated[str | None, typer.Argument(help="Folder of images or file list; none: the bundled samples.")] = None,
    frameworks: Annotated[
        str | None, typer.Option(help="Names with commas between; the first is the reference. Default: all installed.")
    ] = None,
    batches: Annotated[int, typer.Option(min=1, help="How many batches to compare.")] = 8,
    pipeline: Annotated[str | None, typer.Option(help="module:function; default: the recipe that fits.")] = None,
    argument: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE for the pipeline, VALUE as JSON; may be repeated.")
    ] = None,
    outputs: Annotated[
        str | None, typer.Option(help="Of a DALI pipeline with its own readers: its outputs' names, with commas between.")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1)] = 16,
    seed: Annotated[int, typer.Option(help="Of the order and the random numbers.")] = 0,
    shuffle: Annotated[bool, typer.Option(help="A new order in each epoch.")] = True,
    device: Annotated[str, typer.Option(help='"cpu", "gpu" or "auto".')] = "cpu",
    python: Annotated[
        list[str] | None,
        typer.Option(help="FRAMEWORK=INTERPRETER for one that lives in an environment of its own; may be repeated."),
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the report, with all digests, to this file.")] = None,
) -> None:
    """Stream the same batches into each framework and compare them bit by bit.

    Exit status: 0 equal, 1 different (the first batch, field, sample and element that differ are named) or a framework
    failed, 2 wrong usage.
    """
    console = Console()
    request = Request(
        source=source,
        pipeline=pipeline,
        batches=batches,
        options={
            "batch_size": batch_size,
            "seed": seed,
            "shuffle": shuffle,
            "device": device,
            "outputs": _names(outputs) if outputs else None,
        },
        arguments={name: _value(value) for name, value in _pairs("--argument", argument).items()},
    )
    names = _names(frameworks) if frameworks else installed()
    if json_file is not None and not json_file.parent.is_dir():
        raise typer.BadParameter(f"--json {json_file}: there is no folder {json_file.parent}")
    try:
        outcome = report.run(console, request, names, _pairs("--python", python))
    except PortaloaderError as error:
        raise typer.BadParameter(str(error)) from error
    if all(stream.misuse for stream in outcome.streams):
        raise typer.BadParameter(str(outcome.streams[0].error))
    if json_file is not None:
        json_file.write_text(json.dumps(outcome.as_dict(), indent=1), encoding="utf-8")
    report.show(console, outcome)
    raise typer.Exit(0 if outcome.equal else 1)


def installed() -> list[str]:
    """Frameworks that are installed here, NumPy first: it is the reference."""
    found = [framework.name for framework in registry.frameworks().values() if framework.is_installed()]
    return sorted(found, key=lambda name: (name != "numpy", name))


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _pairs(option: str, values: list[str] | None) -> dict[str, str]:
    pairs = {}
    for value in values or []:
        name, equals, rest = value.partition("=")
        if not (name and equals and rest):
            raise typer.BadParameter(f"{option} {value!r} is not of the form NAME=VALUE")
        pairs[name] = rest
    return pairs


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
