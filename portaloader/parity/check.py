"""Runs one worker for each framework, and compares what they report."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from portaloader import registry

_AT_ONCE = 2  # workers; each imports a framework, which takes memory
_workers: set[subprocess.Popen[str]] = set()
"""Those that run: an interrupt of this process ends them."""


@dataclass(frozen=True)
class Request:
    """The stream that is compared."""

    source: str | None = None
    """A folder or file list; None: the bundled samples."""
    pipeline: str | None = None
    """ "module:function"; None: the recipe that fits the source."""
    batches: int = 8
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of ``get_loader``: batch_size, seed, shuffle, device ..."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the pipeline."""


@dataclass(frozen=True)
class Stream:
    """What one framework was handed."""

    framework: str
    version: str | None = None
    device: str | None = None
    batches: Sequence[Mapping[str, Any]] = ()
    """Of each batch: "digest", "ids" (None where the pipeline has its own readers), and "fields" with dtype, shape, digest,
    and a digest for each sample."""
    notes: Sequence[str] = ()
    error: str | None = None
    """Why there are no batches."""
    misuse: bool = False
    """Whether the error is in what was asked for, and not in the framework."""


@dataclass(frozen=True)
class Difference:
    """The first place at which a framework's stream differs from the reference's."""

    framework: str
    reference: str
    batch: int
    field: str | None
    sample: int | None
    """Sample id."""
    element: tuple[int, ...] | None
    """Index within the sample."""
    detail: str

    def __str__(self) -> str:
        place = [f"batch {self.batch}"]
        if self.field is not None:
            place.append(f"field {self.field!r}")
        if self.sample is not None:
            place.append(f"sample {self.sample}")
        if self.element is not None:
            place.append(f"element {list(self.element)}")
        return f"{self.framework} differs from {self.reference} in {', '.join(place)}: {self.detail}"


@dataclass(frozen=True)
class Report:
    """The outcome: equal where every framework was handed the reference's stream, bit by bit."""

    request: Request
    streams: Sequence[Stream]
    """The first one is the reference."""
    differences: Sequence[Difference]

    @property
    def errors(self) -> list[str]:
        """Frameworks that handed out nothing, and why."""
        return [f"{stream.framework}: {stream.error}" for stream in self.streams if stream.error]

    @property
    def equal(self) -> bool:
        """Whether all frameworks were handed the reference's stream."""
        return not self.differences and not self.errors

    def as_dict(self) -> dict[str, Any]:
        """JSON-able, with all digests."""
        return {"equal": self.equal, **asdict(self)}


def check(
    request: Request,
    frameworks: Sequence[str],
    *,
    interpreters: Mapping[str, str] | None = None,
    finished: Callable[[Stream], None] = lambda stream: None,
) -> Report:
    """Compare the streams of these frameworks; the first is the reference.

    Args:
        request: which stream.
        frameworks: canonical names or aliases, at least one.
        interpreters: Python interpreters of frameworks that live in an environment of their own.
        finished: called as each framework is done.

    Raises:
        UnknownFrameworkError: no such framework. One that is not installed is an error in the report.
    """
    interpreters = {registry.resolve(name).name: path for name, path in (interpreters or {}).items()}
    names = list(dict.fromkeys(registry.resolve(name).name for name in frameworks))

    def run(name: str) -> Stream:
        stream = _stream(request, name, interpreters.get(name, sys.executable))[0]
        finished(stream)
        return stream

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        try:
            streams = list(pool.map(run, names))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            _end_workers()
            raise
    reference, *others = streams
    differences = []
    if reference.error is None:
        found = (_compare(request, reference, other, interpreters) for other in others if other.error is None)
        differences = [difference for difference in found if difference is not None]
    return Report(request, streams, differences)


def _stream(request: Request, name: str, python: str, dump: int | None = None) -> tuple[Stream, dict[str, Any]]:
    """Run a worker: its stream, and the values of the batch that was to be dumped."""
    with tempfile.TemporaryDirectory(prefix="portaloader-") as folder:
        asked, result = Path(folder, "request.json"), Path(folder, "result.json")
        asked.write_text(json.dumps({**asdict(request), "framework": name, "dump": dump}), encoding="utf-8")
        with subprocess.Popen(  # noqa: S603
            [python, "-m", "portaloader.parity.worker", str(asked), str(result)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        ) as worker:
            _workers.add(worker)
            try:
                said = worker.communicate()[1]
            finally:
                worker.kill()  # an interrupt came; one that has ended is left as it is
                _workers.discard(worker)
        if worker.returncode or not result.exists():
            return Stream(name, error=_failure(worker.returncode, said)), {}
        answer = json.loads(result.read_text(encoding="utf-8"))
        values = dict(np.load(f"{result}.npz")) if Path(f"{result}.npz").exists() else {}
    version = registry.resolve(name).version() if python == sys.executable else None
    return Stream(framework=name, version=version, **answer), values


def _end_workers() -> None:
    for worker in list(_workers):
        worker.kill()


def _failure(status: int, said: str) -> str:
    if status < 0:
        return f"the process was ended by {signal.Signals(-status).name}"
    return f"the process failed: {(said.strip() or 'no message').splitlines()[-1]}"


def _compare(request: Request, reference: Stream, other: Stream, interpreters: Mapping[str, str]) -> Difference | None:
    """The first difference between two streams, down to the element."""
    pairs = list(zip(reference.batches, other.batches, strict=True))
    number = next((i for i, (mine, theirs) in enumerate(pairs) if mine["digest"] != theirs["digest"]), None)
    if number is None:
        return None
    mine, theirs = pairs[number]
    at = Difference(other.framework, reference.framework, number, None, None, None, "")
    a, b = mine["fields"], theirs["fields"]
    if list(a) != list(b):
        return replace(at, detail=f"the fields are {list(b)}, not {list(a)}")
    name = next(name for name in a if a[name]["digest"] != b[name]["digest"])
    for what in ("dtype", "shape"):
        if a[name][what] != b[name][what]:
            return replace(at, field=name, detail=f"{what} {b[name][what]}, not {a[name][what]}")
    row = next(i for i, pair in enumerate(zip(a[name]["samples"], b[name]["samples"], strict=True)) if pair[0] != pair[1])
    sample = replace(at, field=name, sample=mine["ids"][row] if mine["ids"] else None)
    # The digests tell where; the values are fetched by making the batch again, which the stream allows.
    again = replace(request, batches=number + 1)
    values = [
        _stream(again, s.framework, interpreters.get(s.framework, sys.executable), dump=number)[1].get(name)
        for s in (reference, other)
    ]
    if values[0] is None or values[1] is None:
        return replace(sample, detail="the batch could not be made again to look at its elements")
    unequal = np.argwhere(_bits(values[0][row]) != _bits(values[1][row]))
    if not len(unequal):
        return replace(sample, detail="the digests differ, yet the batch was equal when it was made again")
    element = tuple(int(i) for i in unequal[0])
    wanted, found = values[0][row][element], values[1][row][element]
    return replace(
        sample, element=element, detail=f"{found!s}, not {wanted!s} ({len(unequal)} of {values[0][row].size} elements differ)"
    )


def _bits(values: Any) -> Any:
    """The values as unsigned integers: so NaN equals itself, and 0.0 is not -0.0."""
    return np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}").reshape(values.shape)
