"""What the contract's tests share: small sources, small pipelines, and one way to look at a batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from portaloader import samples
from portaloader.loader import Loader
from portaloader.pipelines import Node, Sample, pipeline


def sample_files(count: int) -> list[dict[str, Any]]:
    """The first ``count`` bundled images, as dicts of a path and a label."""
    files = sorted(samples.path("train").glob("*/*.jpg"))[:count]
    return [{"image": file, "label": number % 7} for number, file in enumerate(files)]


def as_numpy(loader: Loader[Any], batch: dict[str, Any]) -> dict[str, npt.NDArray[Any]]:
    """A copy of a batch on the host, in the dtypes that the pipeline made."""
    return {name: values.copy() for name, values in loader.to_numpy(batch).items()}


def assert_equal(found: dict[str, npt.NDArray[Any]], wanted: dict[str, npt.NDArray[Any]]) -> None:
    """Same names in the same order, same dtypes, same shapes, same bits."""
    assert list(found) == list(wanted)
    for name in wanted:
        assert found[name].dtype == wanted[name].dtype, name
        assert found[name].shape == wanted[name].shape, name
        assert found[name].tobytes() == wanted[name].tobytes(), name


@pipeline
def passed_through(sample: Sample) -> dict[str, Node]:
    """Every field as it is."""
    return {name: sample[name] for name in sample}


def views_of(value: Node) -> dict[str, Node]:
    """Outputs that DALI has in one place: a node twice and a view of it, constants, which it keeps, and views of them."""
    from nvidia.dali import fn, types

    constant = types.Constant(np.array([1, 2], np.float32))
    row, pair = fn.reshape(value, shape=[1, 3]), fn.expand_dims(constant, axes=0)
    return {"value": value, "again": value, "row": row, "pair": pair, "one": types.Constant([1.0])}


@pipeline
def views(sample: Sample) -> dict[str, Node]:
    """:func:`views_of` the field ``value``."""
    return views_of(sample["value"])


class Numbers:
    """``count`` items that hold their own number; the ones in ``broken`` cannot be read."""

    def __init__(self, count: int, broken: tuple[int, ...] = (), offset: int = 0) -> None:
        self.count = count
        self.broken = broken
        self.offset = offset

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index in self.broken:
            raise OSError(f"item {index} is out of order")
        return {"value": index + self.offset}
