"""The contract, for mxnet; and its native containers."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from readme import run

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


def test_threads_share_an_epoch_of_gluons(loader):
    batches = iter(loader.native("id", style="gluon"))
    with ThreadPoolExecutor(4) as pool:
        parts = [pool.submit(lambda: [i for (ids,) in batches for i in ids.asnumpy().tolist()]) for _ in range(4)]
    found = [i for part in parts for i in part.result()]
    assert (set(found), len(found)) == (set(range(10)), 12)  # padded


def test_unknown_style():
    with (
        portaloader.get_loader(Numbers(4), passed_through, framework="mxnet") as made,
        pytest.raises(ArgumentError, match="style='keras'.*module.*gluon"),
    ):
        made.native(style="keras")


def test_labels_of_another_dtype(loader):
    native = loader.native(label_dtype="float32")
    (described,) = native.provide_label
    assert described.dtype == np.float32
    for batch in native:
        assert batch.label[0].dtype == np.float32
        assert batch.label[0].asnumpy().tolist() == [i % 7 for i in batch.index]
    with pytest.raises(ArgumentError, match="label_dtype='float99' was given"):
        loader.native(label_dtype="float99")
    with pytest.raises(ArgumentError, match="style=.module"):
        loader.native(style="gluon", label_dtype="float32")


# -- MXNet's own loops -------------------------------------------------------------------------------------------------


def batches(framework="mxnet", count=22, **options):
    return portaloader.get_loader(
        sample_files(count), framework=framework, size=16, batch_size=8, **{"device": "cpu", **options}
    )


class MeanColour(mxnet.gluon.nn.HybridBlock):
    def __init__(self):
        super().__init__()
        self.seen = []
        with self.name_scope():
            self.head = mxnet.gluon.nn.Dense(7)

    def forward(self, image):
        self.seen.append(image.asnumpy())
        return self.head(image.mean(axis=(2, 3)))


def classifier_estimator(network):
    from mxnet.gluon.contrib.estimator import Estimator

    network.initialize()
    accuracy = mxnet.metric.Accuracy()
    trainer = mxnet.gluon.Trainer(network.collect_params(), "sgd")
    made = Estimator(network, mxnet.gluon.loss.SoftmaxCrossEntropyLoss(), accuracy, trainer=trainer, context=mxnet.cpu())
    made.logger.setLevel("ERROR")
    return made


def test_estimator():
    network = MeanColour()
    made = classifier_estimator(network)
    with batches() as train, batches(count=10, shuffle=False) as check:
        made.fit(train.native(style="gluon"), check.native("image", "label", style="gluon"), epochs=2)
    with batches("numpy") as train, batches("numpy", count=10, shuffle=False) as check:
        wanted = [batch["image"] for _ in range(2) for one in (train, check) for batch in one]
    assert len(network.seen) == len(wanted)
    for image, expected in zip(network.seen, wanted, strict=True):
        np.testing.assert_array_equal(image, expected, strict=True)


def classifier_module():
    data = mxnet.sym.Variable("image")
    mean = mxnet.sym.mean(data, axis=(2, 3))
    network = mxnet.sym.SoftmaxOutput(mxnet.sym.FullyConnected(mean, num_hidden=7), mxnet.sym.Variable("label"))
    return mxnet.mod.Module(network, data_names=["image"], label_names=["label"], context=mxnet.cpu())


def test_module_fit():
    module = classifier_module()
    seen = []
    with batches(last_batch="pad") as train, batches(count=10, last_batch="pad", shuffle=False) as check:
        module.fit(
            train.native(label_dtype="float32"),
            check.native(label_dtype="float32"),
            num_epoch=3,
            optimizer="sgd",
            batch_end_callback=lambda parameters: seen.append((parameters.epoch, parameters.nbatch)),
        )
        assert seen == [(epoch, number) for epoch in range(3) for number in range(3)]
        assert train.epoch == 3
        found = module.predict(check.native(label_dtype="float32")).asnumpy()
        assert found.shape == (10, 7)  # the padding is left out
        assert dict(module.score(check.native(label_dtype="float32"), "acc"))["accuracy"] <= 1


def test_the_readmes_loops():
    module, estimator = classifier_module(), classifier_estimator(MeanColour())
    with batches(last_batch="pad") as train, batches(count=10, last_batch="pad", shuffle=False) as held_back:
        run("MXNet:", {"module": module, "estimator": estimator, "train": train, "held_back": held_back})
        assert (train.epoch, held_back.epoch) == (6, 6)
