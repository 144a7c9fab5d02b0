"""``portaloader doctor``: what is installed, what works, and which line mends the rest."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from portaloader import __version__, registry
from portaloader.doctor import Check, examine
from portaloader.errors import PortaloaderError

_STYLES = {"ok": "green", "absent": "dim", "broken": "bold red", "warning": "yellow"}


def doctor(
    framework: Annotated[
        list[str] | None, typer.Option(help="Look at this framework only; may be repeated. Default: all.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document, and nothing else.")] = False,
) -> None:
    """Say what is installed, in which version, what of it works, and which line mends the rest.

    Each framework is tried in a process of its own: one batch of the bundled samples, compared with NumPy's.
    Exit status: 0 what is installed works, 1 something is broken, 2 wrong usage.
    """
    waiting = Console(stderr=True)
    try:
        with waiting.status("trying DALI and the frameworks, two at a time ..."):
            checks = examine(framework or ())
    except PortaloaderError as error:
        raise typer.BadParameter(str(error)) from error
    if as_json:
        typer.echo(json.dumps(document(checks), indent=1))
    else:
        _show(Console(), checks)
    raise typer.Exit(0 if works(checks) else 1)


def works(checks: Iterable[Check]) -> bool:
    """Whether nothing that is installed, and nothing that portaloader needs, is broken."""
    return all(check.status != "broken" for check in checks)


def document(checks: Sequence[Check]) -> dict[str, object]:
    """JSON-able: "portaloader" (its version), "works" (bool), and "checks", each with the fields of :class:`Check`."""
    return {"portaloader": __version__, "works": works(checks), "checks": [asdict(check) for check in checks]}


def _show(console: Console, checks: Sequence[Check]) -> None:
    table = Table(title=f"portaloader {__version__}", title_justify="left")
    for column in ("status", "name", "version", "detail"):
        table.add_column(column, overflow="fold")
    for check in checks:
        # Text, because Rich would read brackets in a plain string as markup.
        table.add_row(Text(check.status, _STYLES[check.status]), *map(Text, (check.name, check.version or "", check.detail)))
    console.print(table)
    for title, statuses in (("To mend", ["broken"]), ("To mind", ["warning"]), ("To add", ["absent"])):
        remedies = [check for check in checks if check.remedy and check.status in statuses]
        if remedies:
            console.print(f"{title}:", style="bold")
        for check in remedies:
            console.print(f"  {check.remedy}", markup=False, highlight=False, soft_wrap=True)
    console.print(f"Next: {_next(checks)}", markup=False, highlight=False, soft_wrap=True)


def _next(checks: Sequence[Check]) -> str:
    broken = [check.name for check in checks if check.status == "broken"]
    tried = [name for name in broken if name in {*registry.frameworks(), "dali", "tf-plugin"}]
    if tried:
        return f"mend what is broken; `python -X faulthandler -m portaloader.doctor {tried[0]}` shows its whole error."
    if broken:
        return "mend what is broken, then ask again."
    if {check.name for check in checks if check.status == "ok"} & set(registry.frameworks()) <= {"numpy"}:
        return "add a framework, then `portaloader demo`."
    return "`portaloader demo` streams the bundled samples into every framework that works here."
