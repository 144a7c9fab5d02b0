"""Runs the graph over the plan's batches: the one epoch state machine of the project.

An epoch is begun with its batches, handed out one by one, and ends by itself or is left. DALI works on ``prefetch``
batches ahead; none of them is lost when a later one fails, and none outlives its epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from portaloader.errors import LoaderError, PipelineRunError, PortaloaderError, SampleError
from portaloader.graph import Graph, OpenGraph, Settings
from portaloader.pipelines import Pipeline
from portaloader.plan import Rows
from portaloader.sources import Source


class Engine:
    """One graph and what it is doing. Not safe for use by several threads at once."""

    def __init__(self, definition: Pipeline, arguments: Mapping[str, Any], source: Source, settings: Settings) -> None:
        self._source = source
        self._parts = (definition, arguments, source, settings)
        self._graph: Graph | None = Graph(*self._parts)
        self._running = False
        self._closed = False
        self._failure: Exception | None = None
        self.names = self._graph.names
        """The outputs, in order: id, valid where there is one, and what the pipeline returned."""
        self.random_operators = self._graph.random_operators()
        """DALI's own random operators in the graph."""

    def start(self, rows: Iterator[Rows]) -> None:
        """Begin an epoch with these batches; one that is under way is left."""
        if self._closed:
            raise LoaderError("the loader is closed; make another with get_loader().")
        self._leave()
        # A graph whose operator failed is of no use; it was dropped, and the new epoch gets a new one.
        self._graph = self._graph or Graph(*self._parts)
        self._graph.feed.begin(rows)
        self._running, self._failure = True, None
        with self._dropped_on_error():
            self._graph.pipe.reset()
            self._schedule()

    def next(self) -> tuple[Rows, tuple[Any, ...]]:
        """The next batch: its rows, and DALI's tensor lists in the order of :attr:`names`.

        Raises:
            StopIteration: the epoch is over.
            SampleError: a sample cannot be read or processed; all batches before it have been handed out.
            PipelineRunError: the graph failed, and no single sample is to blame.
        """
        graph = self._graph
        if not self._running or graph is None:
            raise StopIteration
        with self._dropped_on_error():
            try:
                if self._failure is not None and not graph.feed.scheduled:
                    raise self._failure
                outputs = graph.pipe.outputs()
            except StopIteration:
                self._running = False
                if graph.feed.failure is not None:
                    raise graph.feed.failure from graph.feed.failure.__cause__
                raise
            except Exception as error:  # of many types: DALI's own, and those of Python's that it maps them to
                raise self._explain(graph, error) from error
            rows = graph.feed.scheduled.popleft()
            self._schedule()
        return rows, outputs

    def open_graph(self, names: Sequence[str]) -> OpenGraph:
        """The same graph with these outputs, for somebody else to feed and to run."""
        return OpenGraph(*self._parts, keep=names)

    def probe(self, row: Rows) -> tuple[Any, ...]:
        """What comes out for a single sample: DALI's tensor lists in the order of :attr:`names`.

        Raises:
            SampleError: it cannot be read or processed.
        """
        if self._closed:
            raise LoaderError("the loader is closed; make another with get_loader().")
        return self._alone(self._graph or Graph(*self._parts), row)

    def close(self) -> None:
        """Give the graph back. Works in any state, and twice."""
        self._closed = True
        self._drop()

    def _schedule(self) -> None:
        """Give DALI its next batch to work on. Where that fails, the batches before are still good."""
        if self._graph is None or self._failure is not None:
            return
        try:
            self._graph.pipe.schedule_run()
        except Exception as error:
            self._failure = error

    def _leave(self) -> None:
        """Take what DALI still works on from it, so that the next epoch finds it idle."""
        if not self._running or self._graph is None:
            return
        self._graph.feed.begin(iter(()))
        with self._dropped_on_error():
            try:
                self._graph.pipe.schedule_run()  # finds no batch, and so ends the epoch
                while not self._graph.pipe.empty():
                    self._graph.pipe.outputs()
            except Exception:
                self._drop()  # a batch that nobody will see has failed
        if self._graph is not None:
            self._graph.feed.scheduled.clear()
        self._running = False

    def _drop(self) -> None:
        self._graph, self._running = None, False

    @contextmanager
    def _dropped_on_error(self) -> Iterator[None]:
        """Whatever goes wrong (an interrupt as well) leaves the engine without a graph, ready for a new one."""
        try:
            yield
        except StopIteration:
            raise
        except BaseException:
            self._drop()
            raise

    def _explain(self, graph: Graph, error: Exception) -> PortaloaderError:
        """Which sample made the graph fail: the batches under way are run again, one sample at a time."""
        for rows in list(graph.feed.scheduled):
            for i in range(len(rows)):
                try:
                    self._alone(graph, rows[i : i + 1])
                except PortaloaderError as found:
                    return found
        return PipelineRunError(f"the pipeline failed on a batch, but on none of its samples alone: {_reason(error)}")

    def _alone(self, graph: Graph, row: Rows) -> tuple[Any, ...]:
        """One sample through a graph of its own. Raises SampleError where that fails."""
        single = graph.single()
        single.feed.begin(iter([row]))
        try:
            single.pipe.schedule_run()
            return tuple(single.pipe.outputs())
        except Exception as error:
            if isinstance(single.feed.failure, PortaloaderError):
                raise single.feed.failure from single.feed.failure.__cause__  # it cannot be read
            sample_id = int(row.ids[0])
            where, found = self._source.describe(sample_id), self._source.diagnose(sample_id)
            raise SampleError(
                f"sample {sample_id} ({where}) cannot be processed: {f'{found}. ' if found else ''}{_reason(error)}",
                sample_id=sample_id,
                where=where,
            ) from error


def _reason(error: Exception) -> str:
    """The part of DALI's message that says what happened, without its frames and its context."""
    text = str(error)
    operator = text.split("Error in ", 1)[1].split("\n", 1)[0].rstrip(",") if "Error in " in text else ""
    if "encountered:" in text:
        text = text.split("encountered:", 1)[1]
    for tail in ("C++ context:", "Current pipeline object"):
        text = text.split(tail, 1)[0]
    text = " ".join(text.replace("Critical error in pipeline:", "").split())
    return f"{operator}: {text}" if operator else text
