"""How a comparison of streams is shown while it runs and when it is done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from portaloader.parity import Report, Request, Stream, check

_DIGITS = 8  # of the 16 in the JSON report: enough to see, and six frameworks fit into 80 columns


def run(
    console: Console, request: Request, frameworks: Sequence[str], interpreters: Mapping[str, str] | None = None
) -> Report:
    """Compare, with a progress bar over the frameworks."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("streaming, each framework in a process of its own", total=len(frameworks))

        def finished(stream: Stream) -> None:
            progress.update(task, advance=1, description=f"{stream.framework} is done")

        return check(request, frameworks, interpreters=interpreters, finished=finished)


def table(report: Report) -> Table:
    """A row for each batch, a column for each framework, and whether the row is equal."""
    shown = [stream for stream in report.streams if stream.error is None]
    grid = Table(title="digest of every batch", title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1))
    grid.add_column("batch", justify="right")
    for stream in shown:
        version = (stream.version or "").partition("+")[0]
        grid.add_column(f"{stream.framework}\n{version}\n{stream.device}", no_wrap=True)
    grid.add_column("", no_wrap=True)
    for number in range(len(shown[0].batches) if shown else 0):
        digests = [stream.batches[number]["digest"] for stream in shown]
        verdict = "[green]equal" if len(set(digests)) == 1 else "[red]DIFFERENT"
        grid.add_row(str(number), *(digest[:_DIGITS] for digest in digests), verdict)
    return grid


def show(console: Console, report: Report) -> None:
    """The table, the notes, what failed, and the verdict."""
    if any(stream.batches for stream in report.streams):
        console.print(table(report))
    for stream in report.streams:
        for note in stream.notes:
            console.print(f"note on {stream.framework}: {note}", style="dim", markup=False)
    for line in (*report.errors, *map(str, report.differences)):
        console.print(line, style="red", markup=False, soft_wrap=True)
    good = [stream for stream in report.streams if stream.error is None]
    if report.equal:
        count = len(good[0].batches)
        names = ", ".join(stream.framework for stream in good)
        alone = " (which is compared with nothing: name another framework)" if len(good) == 1 else ""
        console.print(f"[bold green]equal[/]: {count} batches, bit by bit, in {names}{alone}", soft_wrap=True)
    else:
        console.print("[bold red]not equal")
