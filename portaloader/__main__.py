"""``python -m portaloader``: the command line."""

from portaloader.cli import app

app()
