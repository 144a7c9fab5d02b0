"""The command line: one file for each command."""

from __future__ import annotations

import typer

from portaloader.cli import demo, doctor, parity

app = typer.Typer(
    name="portaloader",
    help="One input pipeline, written once with NVIDIA DALI, for every deep learning framework.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)
app.command()(demo.demo)
app.command()(parity.parity)
app.command()(doctor.doctor)
