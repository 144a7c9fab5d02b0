"""A pipeline function and a source, built into one DALI pipeline that asks for its inputs batch by batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from portaloader import keyed
from portaloader.contract import Device
from portaloader.dali import check_gpu, import_dali, keep_in_forks
from portaloader.errors import PipelineError, PortaloaderError, SampleError
from portaloader.outputs import shared_outputs
from portaloader.pipelines import Draw, Node, Pipeline, Sample, tracing
from portaloader.plan import Rows
from portaloader.sources import Field, Source
from portaloader.sources.base import LABEL, Column

VALID = Field("array", np.dtype(np.bool_), 0)
_DRAWN_TOGETHER = 1024
"""Samples."""


@dataclass(frozen=True)
class Settings:
    """What the graph is built with."""

    batch_size: int
    device: Device
    num_threads: int
    prefetch: int
    """Batches that DALI works on ahead of the one that is handed over."""
    seed: int
    with_valid: bool
    """Whether the batch tells which of its samples are padding."""


class Feed:
    """Answers the graph's calls for its inputs: takes the plan's next batch, reads it, and draws its random numbers."""

    def __init__(self, source: Source, seed: int) -> None:
        self.scheduled: deque[Rows] = deque()
        """Batches that the graph was given and has not given back yet."""
        self.failure: Exception | None = None
        """Why the stream ended early: raised when its batch is due, after the good ones before it."""
        self._source = source
        self._seed = seed
        self._coming: Iterator[tuple[Rows, dict[str, Column]]] = iter(())
        self._fields: list[str] = []
        self._draws: list[tuple[str, int, int, Draw]] = []
        self._columns: dict[str, Column] | None = None
        self._taken: set[str] = set()

    def begin(self, rows: Iterator[Rows]) -> None:
        """Give these batches next."""
        self._coming, self.failure, self._columns = self._drawn(rows), None, None

    def add_field(self, name: str) -> None:
        """Read this field of every sample."""
        self._fields.append(name)

    def add_draw(self, name: str, count: int, transform: Draw) -> None:
        """Draw ``count`` more random numbers for every sample."""
        self._draws.append((name, self.draws, count, transform))

    @property
    def draws(self) -> int:
        """How many random numbers are drawn for every sample."""
        return self._draws[-1][1] + self._draws[-1][2] if self._draws else 0

    def column(self, name: str) -> Column:
        """This input's share of the next batch.

        DALI asks for the inputs of a batch one by one, in no particular order: one that is asked for again begins the next.
        """
        columns = self._columns
        if columns is None or name in self._taken:
            columns = self._columns = self.advance()
            self._taken.clear()
        self._taken.add(name)
        return columns[name]

    def advance(self) -> dict[str, Column]:
        """All inputs of the next batch, by name. Raises StopIteration at the epoch's end, and where :attr:`failure` cut it."""
        if self.failure is not None:
            raise StopIteration
        rows, drawn = next(self._coming)
        try:
            columns = self._read(rows) | drawn
        except Exception as error:
            # DALI would lose the good batches before this one; it is told that the epoch ends here instead.
            self.failure = error
            raise StopIteration from error
        self.scheduled.append(rows)
        return columns

    def _read(self, rows: Rows) -> dict[str, Column]:
        try:
            fetched = self._source.fetch(rows.ids, self._fields)
        except Exception as error:
            raise self._blame(rows, error) from error
        columns = {f"field_{name}": column for name, column in fetched.items()}
        return columns | {"id": rows.ids, "valid": rows.valid}

    def _drawn(self, batches: Iterator[Rows]) -> Iterator[tuple[Rows, dict[str, Column]]]:
        """Each batch with its random numbers, which are drawn for several batches in one go: NumPy's cost is by the call."""
        for rows in batches:
            together = [rows, *islice(batches, max(0, _DRAWN_TOGETHER // len(rows) - 1))]
            ids, epochs = (np.concatenate([getattr(r, name) for r in together]) for name in ("ids", "epochs"))
            bits = keyed.bits(self._seed, epochs, ids, self.draws)
            drawn = {name: transform(bits[:, first : first + count]) for name, first, count, transform in self._draws}
            end = 0
            for part in together:
                begin, end = end, end + len(part)
                yield part, {name: column[begin:end] for name, column in drawn.items()}

    def _blame(self, rows: Rows, error: Exception) -> PortaloaderError:
        """Which sample of the batch it is that the source cannot read."""
        for sample_id in rows.ids.tolist():
            try:
                self._source.fetch(np.array([sample_id]), self._fields)
            except Exception as alone:
                where = self._source.describe(sample_id)
                return SampleError(
                    f"sample {sample_id} ({where}) cannot be read: {type(alone).__name__}: {alone}",
                    sample_id=sample_id,
                    where=where,
                )
        return SampleError(
            f"the source failed on a batch, but on none of its samples alone: {type(error).__name__}: {error}",
            sample_id=int(rows.ids[0]),
            where=self._source.describe(int(rows.ids[0])),
        )


class Graph:
    """One built DALI pipeline with its feed. After an operator failed it is of no use any more; build another.

    Args:
        definition: the pipeline function.
        arguments: of the function.
        source: the samples.
        settings: of the DALI pipeline.
        keep: the outputs that are wanted, in order; None: all of them.
    """

    def __init__(
        self,
        definition: Pipeline,
        arguments: Mapping[str, Any],
        source: Source,
        settings: Settings,
        keep: Sequence[str] | None = None,
    ) -> None:
        self._recipe = (definition, arguments, source)
        self.settings = settings
        self.feed = Feed(source, settings.seed)
        self._fields = source.fields
        self._inputs: dict[str, Node] = {}
        self._external: dict[str, Field] = {}  # filled by OpenGraph, while the function is traced below
        if settings.device.ordinal is not None:
            check_gpu(settings.device.ordinal)
        self.pipe = import_dali().Pipeline(
            batch_size=settings.batch_size,
            num_threads=settings.num_threads,
            device_id=settings.device.ordinal,
            seed=settings.seed % 2**31,
            prefetch_queue_depth=settings.prefetch,
        )
        with self.pipe, tracing(self._draw):
            outputs = {"id": self._input("id", LABEL)}
            if settings.with_valid:
                outputs["valid"] = self._input("valid", VALID)
            sample = Sample(source.fields, settings.device.kind, self._read)
            outputs |= definition.trace(sample, arguments)
            self.names = tuple(outputs) if keep is None else tuple(keep)
            self.pipe.set_outputs(*self._handed_over([outputs[name] for name in self.names]))
        try:
            self.pipe.build()
            keep_in_forks(self.pipe)
        except Exception as error:
            raise PipelineError(f"DALI cannot build the pipeline: {error}") from error

    def single(self) -> Graph:
        """The same graph for one sample at a time."""
        return Graph(*self._recipe, replace(self.settings, batch_size=1, num_threads=1, prefetch=1))

    def random_operators(self) -> list[str]:
        """DALI's own random operators in this graph: they keep a state, which depends on all that they did before."""
        from nvidia.dali.backend import GetSchema  # type: ignore[attr-defined]

        names = (getattr(op._op, "schema_name", "") for op in self.pipe._ops)
        return sorted({name for name in names if name and GetSchema(name).HasRandomSeedArg()})

    def _handed_over(self, nodes: Sequence[Node]) -> list[Node]:
        """The outputs where they are wanted, each in memory of its own."""
        from nvidia.dali import fn

        shared = shared_outputs(nodes)
        nodes = [fn.copy(node) if position in shared else node for position, node in enumerate(nodes)]
        return [node.gpu() for node in nodes] if self.settings.device.kind == "gpu" else nodes

    def _read(self, name: str) -> Node:
        """The node of a field, made when it is first asked for."""
        from nvidia.dali import fn

        if name not in self._inputs:
            field = self._fields[name]
            self.feed.add_field(name)
            node = self._field(name, field)
            self._inputs[name] = fn.io.file.read(node) if field.kind == "file" else node
        return self._inputs[name]

    def _field(self, name: str, field: Field) -> Node:
        return self._input(f"field_{name}", field)

    def _draw(self, count: int, transform: Draw, dtype: np.dtype[Any], ndim: int) -> Node:
        name = f"draw_{self.feed.draws}"
        self.feed.add_draw(name, count, transform)
        return self._input(name, Field("array", dtype, ndim))

    def _input(self, name: str, field: Field) -> Node:
        from nvidia.dali import fn

        feed = self.feed  # the pipeline keeps its callbacks: one that held this graph would keep both, and their threads
        return fn.external_source(
            source=lambda: feed.column(name),
            batch=True,
            name=f"portaloader_{name}",
            dtype=dali_type(field.dtype),
            ndim=field.ndim,
            layout=_layout(field),
        )


class OpenGraph(Graph):
    """The graph with its inputs left open, for somebody else to feed: with arrays only, which :meth:`arrays` makes.

    A field whose samples may differ in size comes as three inputs: its bytes, filled up to the longest of the batch; how many
    they are; and the shape of the values.
    """

    @property
    def inputs(self) -> dict[str, tuple[np.dtype[Any], int]]:
        """Of each input that the outputs need: dtype, and number of axes with the batch's."""
        used = {getattr(op._op, "_name", None) for op in self.pipe._ops}
        return {name: (field.dtype, field.ndim + 1) for name, field in self._external.items() if name in used}

    def arrays(self, columns: Mapping[str, Column]) -> dict[str, npt.NDArray[Any]]:
        """What to feed the inputs with, by name."""
        found: dict[str, npt.NDArray[Any]] = {}
        for name, column in columns.items():
            if not name.startswith("field_") or (isinstance(column, np.ndarray) and column.ndim == 1):
                found[name] = np.asarray(column)
                continue
            sizes = np.array([values.nbytes for values in column], np.int32)
            flat = np.zeros((len(column), max(1, sizes.max())), np.uint8)
            for row, values, size in zip(flat, column, sizes, strict=True):
                row[:size] = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
            shapes = np.array([values.shape for values in column], np.int32)
            found |= {name: flat, f"{name}_size": sizes, f"{name}_shape": shapes}
        return found

    def _field(self, name: str, field: Field) -> Node:
        from nvidia.dali import fn

        name = f"field_{name}"
        if field.ndim == 0:
            return self._input(name, field)
        flat = self._input(name, Field("array", np.dtype(np.uint8), 1))
        size = self._input(f"{name}_size", Field("array", np.dtype(np.int32), 0))
        content = fn.slice(flat, 0, size, axes=[0])
        if field.dtype == np.uint8 and field.ndim == 1:
            return content
        shape = self._input(f"{name}_shape", Field("array", np.dtype(np.int32), 1))
        return fn.reinterpret(content, dtype=dali_type(field.dtype), shape=shape, layout=_layout(field))

    def _input(self, name: str, field: Field) -> Node:
        from nvidia.dali import fn

        self._external[name] = field
        return fn.external_source(name=name, batch=True, dtype=dali_type(field.dtype), ndim=field.ndim, layout=_layout(field))


def _layout(field: Field) -> str | None:
    return "HWC" if field.kind == "array" and field.ndim == 3 else None


def dali_type(dtype: np.dtype[Any]) -> Any:
    """DALI's name of a NumPy dtype."""
    from nvidia.dali import types

    return types.to_dali_type(dtype.name)
