"""The contract, for mxnet; and its native containers."""

import numpy as np
import pytest

import portaloader  # before MXNet, which fails at its import on NumPy 2 without it
from portaloader.errors import ArgumentError
from portaloader.testing import AdapterContract, NativeContract
from portaloader.testing.helpers import Numbers, passed_through, sample_files

# isort: split
import mxnet


class TestMxnet(AdapterContract):
    framework = "mxnet"

    def native_epoch(self, native):
        native.reset()
        return ((*batch.data, *batch.label) for batch in native)

    def check_nested(self, batch, loader):
        value, first, second = (loader.adapter.to_numpy(tensor).tolist() for tensor in batch)
        assert value == first == second


class TestGluon(NativeContract):
    framework = "mxnet"
    native_options = {"style": "gluon"}


@pytest.fixture
def loader():
    with portaloader.get_loader(sample_files(10), framework="mxnet", batch_size=4, size=16, last_batch="pad") as made:
        yield made


def test_data_iter_tells_what_it_provides(loader):
    native = loader.native()
    assert isinstance(native, mxnet.io.DataIter)
    assert native.batch_size == 4
    (data,), (label,) = native.provide_data, native.provide_label
    assert (data.name, data.shape, data.dtype) == ("image", (4, 3, 16, 16), np.float32)
    assert (label.name, label.shape, label.dtype) == ("label", (4,), np.int64)
    batches = list(native)
    assert [batch.pad for batch in batches] == [0, 0, 2]
    assert sorted(i for batch in batches for i in batch.index[: 4 - batch.pad].tolist()) == list(range(10))
    assert all(batch.data[0].shape == data.shape and batch.label[0].dtype == label.dtype for batch in batches)
    assert all(batch.provide_data == native.provide_data for batch in batches)


def test_data_iter_ends_until_it_is_reset(loader):
    native = loader.native()
    assert len(list(native)) == len(native) == 3
    assert list(native) == []
    native.reset()
    native.reset()  # an epoch that has not begun is not passed over
    assert len(list(native)) == 3
    assert loader.epoch == 2


def test_data_iter_one_part_at_a_time(loader):
    native = loader.native(("image", "id"), "label")
    pads = []
    while native.iter_next():
        assert [tuple(array.shape) for array in native.getdata()] == [(4, 3, 16, 16), (4,)]
        assert native.getdata()[1].asnumpy().tolist() == native.getindex().tolist()
        assert [tuple(array.shape) for array in native.getlabel()] == [(4,)]
        pads.append(native.getpad())
    assert pads == [0, 0, 2]
    with pytest.raises(StopIteration):
        native.getdata()


def test_unknown_style():
    with (
        portaloader.get_loader(Numbers(4), passed_through, framework="mxnet") as made,
        pytest.raises(ArgumentError, match="style='keras'.*module.*gluon"),
    ):
        made.native(style="keras")
