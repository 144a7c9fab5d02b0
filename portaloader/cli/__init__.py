"""The command line: one file for each command."""

from __future__ import annotations

from typing import Annotated

import typer

from portaloader import __version__
from portaloader.cli import demo, doctor, parity

app = typer.Typer(
    name="portaloader",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"portaloader {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print it.")] = False,
) -> None:
    """One input pipeline, written once with NVIDIA DALI, for every deep learning framework."""


app.command()(demo.demo)
app.command()(parity.parity)
app.command()(doctor.doctor)
