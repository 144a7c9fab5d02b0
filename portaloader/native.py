"""What native containers are built on: a loader's epochs, and its graph for a framework that runs it itself."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt

from portaloader.contract import Batch, Batches, Fields, LentGraph, LentPipeline, Output
from portaloader.dali_stream import DaliStream, Tally
from portaloader.errors import ArgumentError, LengthError
from portaloader.graph import OpenGraph
from portaloader.loader import Loader, Turn
from portaloader.stream import PlannedStream


class LoaderBatches(Batches):
    """A loader's epochs, with the outputs in the shape that was asked for."""

    def __init__(self, loader: Loader[Any], fields: Sequence[Any]) -> None:
        stream = loader._stream
        self.names, self.batch_size = stream.names, stream.batch_size
        self.device = loader.adapter.device
        self.fields = _checked(tuple(fields), self.names)
        self._loader = loader

    @property
    def full(self) -> bool:
        return self._loader._stream.full

    @property
    def steps(self) -> int | None:
        stream = self._loader._stream
        try:
            return stream.steps if stream.steady else None
        except LengthError:
            return None

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        return map(self.pick, iter(self._loader))

    def whole(self) -> Iterator[Batch]:
        return iter(self._loader)

    def pick(self, batch: Mapping[str, Any]) -> Any:
        return _picked(batch, self.fields) if self.fields else dict(batch)

    def outputs(self) -> Mapping[str, Output]:
        return self._loader._stream.outputs()

    def lend(self, names: tuple[str, ...], refused: Collection[np.dtype[Any]]) -> LentGraph | LentPipeline | None:
        stream = self._loader._stream
        if isinstance(stream, PlannedStream):
            made = self.outputs()
            graph = None if any(made[name].dtype in refused for name in names) else stream.open_graph(names)
            return _PlannedGraph(self._loader, stream, graph, made) if graph else None
        if isinstance(stream, DaliStream):
            tally = stream.lend(refused)
            return _CountedPipeline(self._loader, stream, tally) if tally else None
        return None


def _checked(fields: Fields, names: Sequence[str]) -> Fields:
    for field in fields:
        if isinstance(field, tuple) and field:
            _checked(field, names)
        elif field not in names:
            raise ArgumentError(f"native() was asked for {field!r}; the outputs are {', '.join(map(repr, names))}.")
    return fields


def _picked(batch: Mapping[str, Any], fields: Fields) -> tuple[Any, ...]:
    return tuple(batch[field] if isinstance(field, str) else _picked(batch, field) for field in fields)


class _PlannedGraph(LentGraph):
    """A planned stream's graph, with its inputs left open; whoever runs it builds it anew for every epoch."""

    def __init__(self, loader: Loader[Any], stream: PlannedStream, graph: OpenGraph, made: Mapping[str, Output]) -> None:
        self.pipe, self.inputs = graph.pipe, graph.inputs
        self.made = {name: made[name] for name in graph.names}
        self.num_threads, self.prefetch = graph.settings.num_threads, graph.settings.prefetch
        self._loader, self._stream, self._graph = loader, stream, graph
        self._run = _Run(graph, Turn(0))

    def begin(self) -> None:
        with self._loader._lock:
            self._run = _Run(self._graph, self._loader._enter())
            self._graph.feed.begin(self._stream.lend())

    def columns(self, name: str) -> Iterator[npt.NDArray[Any]]:
        run = self._run
        for step in count():
            with self._loader._lock:
                self._loader._check_turn(run.turn)
                if not run.reach(step):
                    return
                array = run.arrays[name]
            yield array

    def end(self) -> None:
        with self._loader._lock:
            self._loader._check_turn(self._run.turn)
            failure = self._graph.feed.failure
            self._stream.leave()
            if failure is not None:
                raise failure from failure.__cause__


class _Run:
    """One epoch of a graph that is fed from outside."""

    def __init__(self, graph: OpenGraph, turn: Turn) -> None:
        self.turn = turn
        self.arrays: dict[str, npt.NDArray[Any]] = {}
        self._graph = graph
        self._step = -1

    def reach(self, step: int) -> bool:
        """Make this step's arrays; whether there are any. The first input that asks for a step makes it for all."""
        if step > self._step:
            self._step = step
            feed = self._graph.feed
            try:
                self.arrays = self._graph.arrays(feed.advance())
            except StopIteration:
                self.arrays = {}
            feed.scheduled.clear()  # whoever runs the graph gives no batch back
        return bool(self.arrays)


class _CountedPipeline(LentPipeline):
    """A DALI pipeline with its own readers: endless, and its epochs are counted here."""

    def __init__(self, loader: Loader[Any], stream: DaliStream, tally: Tally) -> None:
        self.pipe, self.made = tally.pipe, tally.made
        self.num_threads, self.prefetch = tally.pipe.num_threads, tally.pipe._prefetch_queue_depth
        self.kept = tally.kept
        self._loader, self._stream, self._tally = loader, stream, tally

    def begin(self, taken: int) -> tuple[int, Iterator[int]]:
        with self._loader._lock:
            turn = self._loader._enter()
            self._stream.begin()
            return self._tally.runs - taken, self._counts(turn)

    def _counts(self, turn: Turn) -> Iterator[int]:
        while True:
            with self._loader._lock:
                self._loader._check_turn(turn)
                try:
                    number = self._stream.count()
                except StopIteration:
                    return
            yield number
