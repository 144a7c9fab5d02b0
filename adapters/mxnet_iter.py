"""The loader's epochs as MXNet's own containers: a ``DataIter``, and for Gluon a ``DataLoader``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import mxnet
import numpy as np

from portaloader.contract import Batches, Fields
from portaloader.errors import ArgumentError


class PortaloaderIter(mxnet.io.DataIter):  # type: ignore[misc]
    """For ``Module.fit`` and loops over a ``DataIter``: an epoch, then ``reset()``, then the next.

    The first of the fields are the data, the ones behind it the labels. Where no fields were asked for, "label" is the label,
    and the data are all others but "id" and "valid". A batch's ``index`` are the sample ids, and ``pad`` is how many
    samples fill it up.

    Args:
        batches: the loader's.
        label_dtype: of the labels; None: the loader's. ``SoftmaxOutput`` and its like want "float32".
    """

    def __init__(self, batches: Batches, label_dtype: Any = None) -> None:
        super().__init__(batches.batch_size)
        data, *labels = batches.fields or _default(batches.names)
        self._data, self._labels = _flat((data,)), _flat(tuple(labels))
        self._source = batches
        self._outputs = batches.outputs()
        self._batches: Iterator[Any] | None = None
        self._current: mxnet.io.DataBatch | None = None
        try:
            self._label_dtype = None if label_dtype is None else np.dtype(label_dtype)
        except TypeError as error:
            raise ArgumentError(f'label_dtype={label_dtype!r} was given; it is one of NumPy\'s, such as "float32".') from error

    @property
    def provide_data(self) -> list[mxnet.io.DataDesc]:
        """Name, shape (of a full batch) and dtype of the data."""
        return self._describe(self._data)

    @property
    def provide_label(self) -> list[mxnet.io.DataDesc]:
        """Name, shape (of a full batch) and dtype of the labels."""
        return self._describe(self._labels, self._label_dtype)

    def _describe(self, names: list[str], dtype: np.dtype[Any] | None = None) -> list[mxnet.io.DataDesc]:
        described = []
        for name in names:
            made = self._outputs[name]
            described.append(mxnet.io.DataDesc(name, (self.batch_size, *made.shape), (dtype or made.dtype).type))
        return described

    def __len__(self) -> int:
        return len(self._source)

    def reset(self) -> None:
        """Go to the next epoch; one that has not begun is the next."""
        self._batches = None

    def next(self) -> mxnet.io.DataBatch:
        """The next batch. Raises StopIteration at the epoch's end, until :meth:`reset`."""
        if self._batches is None:
            self._batches = self._source.whole()
        batch = next(self._batches)
        self._current = mxnet.io.DataBatch(
            data=[batch[name] for name in self._data],
            label=[batch[name].astype(self._label_dtype or batch[name].dtype, copy=False) for name in self._labels],
            pad=int((~batch["valid"].asnumpy()).sum()) if "valid" in batch else 0,
            index=batch["id"].asnumpy() if "id" in batch else None,
            provide_data=self.provide_data,
            provide_label=self.provide_label,
        )
        return self._current

    def iter_next(self) -> bool:
        """Take the next batch for the ``get`` functions; whether there is one."""
        try:
            self.next()
        except StopIteration:
            self._current = None
        return self._current is not None

    def getdata(self) -> list[mxnet.nd.NDArray]:
        """The current batch's data."""
        return self._taken().data

    def getlabel(self) -> list[mxnet.nd.NDArray]:
        """The current batch's labels."""
        return self._taken().label

    def getindex(self) -> np.ndarray[Any, np.dtype[np.int64]] | None:
        """The current batch's sample ids."""
        return self._taken().index

    def getpad(self) -> int:
        """How many samples fill the current batch up."""
        return int(self._taken().pad)

    def _taken(self) -> mxnet.io.DataBatch:
        if self._current is None:
            raise StopIteration
        return self._current


class GluonBatches(mxnet.gluon.data.DataLoader):  # type: ignore[misc]
    """For Gluon loops and its ``Estimator``: each iteration is an epoch, then the next; a batch is a list of arrays.

    Where no fields were asked for, a batch is [data, label], as of a ``DataIter``.
    """

    # A DataLoader's own start would make workers and samplers, and its end asks for them.
    _worker_pool = None

    def __init__(self, batches: Batches) -> None:
        self._fields = batches.fields or _default(batches.names)
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[list[Any]]:
        return map(partial(_listed, fields=self._fields), self._batches.whole())


def _default(names: tuple[str, ...]) -> Fields:
    data = tuple(name for name in names if name not in ("id", "valid", "label"))
    first = data[0] if len(data) == 1 else data
    return (first, "label") if "label" in names else (first,)


def _flat(fields: Fields) -> list[str]:
    return [name for field in fields for name in ([field] if isinstance(field, str) else _flat(field))]


def _listed(batch: Mapping[str, Any], fields: Fields) -> list[Any]:
    return [batch[field] if isinstance(field, str) else _listed(batch, field) for field in fields]
