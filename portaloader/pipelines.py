"""``@portaloader.pipeline``: what is done to a sample, as a DALI graph with named inputs and outputs.

The operators are DALI's own (``nvidia.dali.fn``); nothing wraps them. A pipeline function is called once, when the graph
is built. It receives the fields of a sample as graph nodes and returns its outputs by name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal, overload

from portaloader.errors import ArgumentError, PipelineError

if TYPE_CHECKING:
    from portaloader.sources import Field

RESERVED = ("id", "valid")
"""Names that the loader adds to a batch itself."""

Node = Any
"""A ``nvidia.dali.pipeline.DataNode``."""


class Sample(Mapping[str, Node]):
    """The fields of a sample as graph nodes: ``sample["image"]`` is the file's content, ``sample["label"]`` an int64.

    A field that the function does not look at is never read.
    """

    def __init__(self, fields: Mapping[str, Field], device: Literal["cpu", "gpu"], read: Callable[[str], Node]) -> None:
        self._fields = fields
        self._read = read
        self.device: Literal["cpu", "gpu"] = device
        """Where the batches will be handed over."""

    @property
    def decoder_device(self) -> Literal["cpu", "mixed"]:
        """For DALI's image decoders: "mixed" (CPU in, GPU out) where batches are made on a GPU, else "cpu"."""
        return "mixed" if self.device == "gpu" else "cpu"

    def is_encoded(self, name: str) -> bool:
        """Whether this field is the content of a file, which wants decoding, rather than values."""
        return self.field(name).kind != "array"

    def field(self, name: str) -> Field:
        """What the source says of a field.

        Raises:
            PipelineError: there is none of this name.
        """
        if name not in self._fields:
            raise PipelineError(
                f"the pipeline reads sample[{name!r}]; the source has the fields {', '.join(map(repr, self._fields))}."
            )
        return self._fields[name]

    def __getitem__(self, name: str) -> Node:
        self.field(name)
        return self._read(name)

    def __contains__(self, name: object) -> bool:
        return name in self._fields

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)


class Pipeline:
    """A pipeline function: what ``@portaloader.pipeline`` makes. Calling it calls the function, within another one."""

    def __init__(self, function: Callable[..., Any], outputs: Sequence[str] | None = None) -> None:
        self.function = function
        self.outputs = tuple(outputs) if outputs is not None else None
        self.__name__ = getattr(function, "__name__", "pipeline")
        self.__doc__ = function.__doc__
        self.__module__ = function.__module__
        parameters = list(inspect.signature(function).parameters.values())
        if not parameters:
            raise PipelineError(f"the pipeline {self.__name__}() takes no argument; its first one receives the sample.")

    def __call__(self, sample: Mapping[str, Node], **arguments: Any) -> Any:
        """What the function returns for this sample: a pipeline may be a part of another one."""
        return self.function(sample, **arguments)

    def __repr__(self) -> str:
        return f"<portaloader.pipeline {self.__module__}.{self.__name__}{inspect.signature(self.function)}>"

    def check_arguments(self, arguments: Mapping[str, Any], options: Sequence[str] = ()) -> None:
        """Raise ArgumentError for an argument that the function does not take, or needs and was not given.

        Args:
            arguments: by name.
            options: names that somebody may have meant instead.
        """
        try:
            inspect.signature(self.function).bind(None, **arguments)
        except TypeError as error:
            names = ", ".join(list(inspect.signature(self.function).parameters)[1:]) or "none"
            unknown = [name for name in arguments if name not in inspect.signature(self.function).parameters]
            meant = [close for name in unknown for close in get_close_matches(name, options, 1)]
            hint = f" Was {' and '.join(meant)} meant, an option of the loader?" if meant else ""
            raise ArgumentError(f"the pipeline {self.__name__}(): {error}. It takes: {names}.{hint}") from error

    def trace(self, sample: Sample, arguments: Mapping[str, Any]) -> dict[str, Node]:
        """Call the function and check what it returns.

        Raises:
            PipelineError: it returns nothing, no names, a name twice, a reserved name, or something that is no node.
        """
        return self._named(self.function(sample, **arguments))

    def _named(self, returned: Any) -> dict[str, Node]:
        if isinstance(returned, Mapping):
            pairs = list(returned.items())
        elif self.outputs is not None and returned is not None:
            nodes = list(returned) if isinstance(returned, (tuple, list)) else [returned]
            if len(nodes) != len(self.outputs):
                raise self._wrong(f"returned {len(nodes)} outputs for the {len(self.outputs)} names {self.outputs}")
            pairs = list(zip(self.outputs, nodes, strict=True))
        else:
            pairs = []
        if not pairs:
            what = (
                "nothing"
                if returned is None or (isinstance(returned, (tuple, list, dict)) and not returned)
                else f"{type(returned).__name__} without names"
            )
            raise self._wrong(f"returned {what}")
        self._check_names([name for name, _ in pairs])
        for name, node in pairs:
            self._check_node(name, node)
        return dict(pairs)

    def _check_names(self, names: list[Any]) -> None:
        for name in names:
            if not isinstance(name, str):
                raise self._wrong(f"has an output named {name!r}, which is not a str")
            if names.count(name) > 1:
                raise self._wrong(f"has two outputs named {name!r}")
            if name in RESERVED:
                raise self._wrong(f"has an output named {name!r}, which the loader adds itself")

    def _check_node(self, name: str, node: Any) -> None:
        from nvidia.dali.pipeline import DataNode

        if not isinstance(node, DataNode):
            raise self._wrong(f"returned a {type(node).__name__} for the output {name!r}, which is not a node of the graph")

    def _wrong(self, found: str) -> PipelineError:
        return PipelineError(
            f"the pipeline {self.__name__}() {found}. Return a dict of names and what DALI's functions gave, such as "
            f'{{"image": fn.resize(...), "label": sample["label"]}}.'
        )


@overload
def pipeline(function: Callable[..., Any], /) -> Pipeline: ...
@overload
def pipeline(*, outputs: Sequence[str]) -> Callable[[Callable[..., Any]], Pipeline]: ...
def pipeline(
    function: Callable[..., Any] | None = None, /, *, outputs: Sequence[str] | None = None
) -> Pipeline | Callable[[Callable[..., Any]], Pipeline]:
    """Make a function of a sample a pipeline that :func:`portaloader.get_loader` takes.

    The function's first parameter receives a :class:`Sample`; the others are arguments of ``get_loader``. It returns a
    dict of output names to nodes, or, with ``outputs=("image", "label")``, the nodes in that order::

        @portaloader.pipeline
        def small(sample, size=64):
            image = fn.decoders.image(sample["image"], device=sample.decoder_device)
            angle = portaloader.random.uniform(-10, 10)
            image = fn.rotate(image, angle=angle, keep_size=True)
            return {"image": fn.resize(image, size=[size, size]), "label": sample["label"]}
    """
    if function is not None:
        return Pipeline(function)
    return lambda function: Pipeline(function, outputs)


# -- while a function is traced, portaloader.random finds the graph here ----------------------------------------------

Draw = Callable[[Any], Any]
_draws: ContextVar[Callable[[int, Draw, Any, int], Node] | None] = ContextVar("portaloader_draws", default=None)


@contextmanager
def tracing(add_draw: Callable[[int, Draw, Any, int], Node]) -> Iterator[None]:
    """Let ``portaloader.random`` add its numbers to the graph that is being built."""
    token = _draws.set(add_draw)
    try:
        yield
    finally:
        _draws.reset(token)


def add_draw(count: int, transform: Draw, dtype: Any, ndim: int) -> Node:
    """A node of keyed random numbers: ``transform`` turns (batch, count) uint64 bits into the values of a batch."""
    add = _draws.get()
    if add is None:
        raise PipelineError(
            "portaloader.random was used outside of a pipeline; its functions make nodes of the graph that is being built, "
            "so call them within a function decorated with @portaloader.pipeline."
        )
    return add(count, transform, dtype, ndim)
