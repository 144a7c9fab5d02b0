"""DALI's iterators for MXNet on DALI 2, beside those of DALI 1.35, which was the last one in the registry to have them."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from dropin_contract import PARTIAL, DropInContract, Fed, fed, label, numbers
from dropin_grid import cases
from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.backend import TensorCPU

import portaloader.compat
from portaloader.contract import Device
from portaloader.errors import ArgumentError, RaggedError

# isort: split
import mxnet

from portaloader.adapters.mxnet import MxnetAdapter

portaloader.compat.install()
plugin = importlib.import_module("nvidia.dali.plugin.mxnet")

SCRIPT = Path(__file__).with_name("dropin_grid.py")
GRID = list(map(str, cases()))


# -- beside DALI 1.35 --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def sides(request, tmp_path_factory):
    """What the grid's script prints with DALI 1.35, and what it prints here."""
    reference = request.config.getoption("--reference")
    if not reference:
        pytest.skip("--reference names a Python with DALI 1.35, to compare with: make test-mxnet")
    if not Path(reference).is_file():
        pytest.fail(f"--reference={reference} is not there; `make test-mxnet` makes it", pytrace=False)
    folder = tmp_path_factory.mktemp("grid")
    environment = {**os.environ, "PYTHONPATH": str(Path(portaloader.__file__).parents[1])}
    running = []
    for name, python in (("reference", reference), ("mine", sys.executable)):
        with (folder / name).open("w") as out, (folder / f"{name}.log").open("w") as log:
            running.append(subprocess.Popen([python, str(SCRIPT)], stdout=out, stderr=log, env=environment))
    for process, name in zip(running, ("reference", "mine"), strict=True):
        assert process.wait(timeout=250) == 0, (folder / f"{name}.log").read_text()[-3000:]
    return [json.loads((folder / name).read_text()) for name in ("reference", "mine")]


def test_the_reference_is_dalis_own(sides):
    reference, mine = sides
    assert reference["dali"].startswith("1.35.")
    assert reference["module"] == "nvidia.dali.plugin.mxnet"
    assert int(mine["dali"].split(".")[0]) >= 2
    assert mine["module"] == "portaloader.compat.plugin.mxnet"
    assert list(reference["cases"]) == list(mine["cases"]) == GRID


def test_signatures_are_dalis(sides):
    reference, mine = sides
    assert mine["signatures"] == reference["signatures"]


@pytest.mark.parametrize("case", GRID)
def test_same_batches_as_dalis(sides, case):
    wanted, found = (side["cases"][case] for side in sides)
    if wanted == "refused: AssertionError":  # an epoch without a batch
        assert found == "refused: PipelineRunError"
    else:
        assert found == wanted


def test_most_of_the_grid_has_batches(sides):
    found = [case for case in sides[0]["cases"].values() if isinstance(case, list)]
    assert len(found) > 1000
    assert sum(len(batches) for _, epochs, _ in found for _, batches in epochs) > 8000


def test_what_is_not_as_in_dali_1(sides):
    reference, mine = (side["faults"] for side in sides)
    # The batch that was looked at counts as none of the epoch, which gets another one.
    assert reference["reset_before_the_first_batch"] == [[0, 1, 2, 3], [0, 1, 2, 3]]
    assert mine["reset_before_the_first_batch"] == [[0, 1, 2, 3]]
    assert reference["provide_data_before_the_first_batch"] == [[4], [[0, 1, 2, 3], [0, 1, 2, 3]]]
    assert mine["provide_data_before_the_first_batch"] == [[4], [[0, 1, 2, 3]]]
    # Any word that is not "no" means yes.
    assert (reference["auto_reset_of_a_word"], mine["auto_reset_of_a_word"]) == ("yes", "ArgumentError")
    # The batch's own axis is squeezed away where it is 1 and the labels have no other.
    assert (reference["labels_without_an_axis"], mine["labels_without_an_axis"]) == ("IndexError", [[5], [6]])
    # Names without an output are passed over; an output without a name is an IndexError.
    assert (reference["too_few_names"], mine["too_few_names"]) == ("IndexError", "ArgumentError")
    assert [name for name, *_ in reference["too_many_names"]] == ["a", "b"]
    assert mine["too_many_names"] == "ArgumentError"


# -- by themselves -----------------------------------------------------------------------------------------------------


class MxnetDropIn(DropInContract):
    plugin = plugin
    unsupported = "int16"

    def to_numpy(self, array):
        return array.asnumpy()

    def pointer(self, array):
        return MxnetAdapter(Device()).data_pointer(array)


class TestGeneric(MxnetDropIn):
    def iterator(self, pipes, names=("data", "label"), **options):
        tags = [plugin.DALIGenericIterator.DATA_TAG, *[plugin.DALIGenericIterator.LABEL_TAG] * (len(names) - 1)]
        return plugin.DALIGenericIterator(pipes, list(zip(names, tags, strict=False)), **options)

    def arrays(self, part):
        assert isinstance(part, mxnet.io.DataBatch)
        return [*part.data, *part.label], part.pad


class TestGluon(MxnetDropIn):
    def iterator(self, pipes, names=("data", "label"), **options):
        return plugin.DALIGluonIterator(pipes, output_types=["dense"] * len(names), **options)

    def arrays(self, part):
        assert isinstance(part, list)
        return part, 0


def test_the_module_is_found_by_both_names():
    import nvidia.dali.plugin.mxnet as imported
    from nvidia.dali.plugin import mxnet as attribute

    assert imported is attribute is plugin is sys.modules["portaloader.compat.plugin.mxnet"]
    assert (plugin.DALIGenericIterator.DATA_TAG, plugin.DALIGenericIterator.LABEL_TAG) == ("data", "label")
    assert (plugin.DALIGluonIterator.DENSE_TAG, plugin.DALIGluonIterator.SPARSE_TAG) == ("dense", "sparse")
    assert issubclass(plugin.DALIClassificationIterator, (plugin.DALIGenericIterator, mxnet.io.DataIter))


@pytest.mark.parametrize("prepare", [True, False])
def test_provided(paths, prepare):
    pipes = [numbers(paths, shard=shard, shards=2) for shard in range(2)]
    output_map = [("pixels", "data"), ("number", "label")]
    made = plugin.DALIGenericIterator(
        pipes, output_map, reader_name="numbers", data_layout="NHWC", prepare_first_batch=prepare
    )
    ((data,), (number,)) = made.provide_data, made.provide_label
    assert (data.name, data.shape, data.dtype, data.layout) == ("pixels", (8, 3), np.uint8, "NHWC")
    assert (number.name, number.shape, number.dtype) == ("number", (8,), np.int32)
    assert [[part.label[0].shape for part in batch] for batch in made] == [[(4,), (4,)], [(4,), (4,)]]
    assert (made.provide_data, made.provide_label) == ([data], [number])
    made.provide_data, made.provide_label = [number], None
    assert (made.provide_data, made.provide_label) == ([number], None)


@pytest.mark.parametrize("prepare", [True, False])
def test_provided_where_it_was_restored_at_an_epochs_end(paths, prepare):
    def begin(checkpoint=None):
        pipe = numbers(paths, enable_checkpointing=True, checkpoint=checkpoint)
        return plugin.DALIClassificationIterator(pipe, reader_name="numbers", prepare_first_batch=prepare)

    def labels(made):
        return [batch[0].label[0].asnumpy().tolist() for batch in made]

    first = begin()
    epoch = labels(first)
    second = begin(*first.checkpoints())
    assert second.provide_label[0].name == "softmax_label"
    third = begin(*second.checkpoints())  # the batch that was looked at is still to come
    assert labels(second) == epoch
    assert [third.provide_label[0].shape, labels(third)] == [(4,), epoch]


def test_several_data_and_labels():
    pipe = fed(*(Fed(lambda info, n=n: np.full((2, 1), n, np.float32)) for n in range(4)))
    output_map = [("a", "label"), ("b", "data"), ("c", "label"), ("d", "data")]
    made = plugin.DALIGenericIterator(pipe, output_map)
    assert [d.name for d in made.provide_data + made.provide_label] == ["b", "d", "a", "c"]
    (batch,) = next(made)
    assert [(array.shape, array.asnumpy().mean()) for array in batch.data] == [((3, 2, 1), 1), ((3, 2, 1), 3)]
    assert [(array.shape, array.asnumpy().mean()) for array in batch.label] == [((3, 2), 0), ((3, 2), 2)]


@pytest.mark.parametrize(("squeeze", "shape"), [(True, (1,)), (False, (1, 1))])
def test_squeezed_labels_keep_the_batchs_axis(paths, squeeze, shape):
    pipe = numbers(paths, batch_size=1)
    made = plugin.DALIClassificationIterator(pipe, reader_name="numbers", squeeze_labels=squeeze)
    assert [batch[0].label[0].shape for batch in made] == [shape] * 10
    assert made.provide_label[0].shape == shape


def test_arguments_of_mxnets_own(paths):
    for output_map in ([("a", "data"), ("a", "label")], [("a", "data"), ("b", "labels")], ["data", "label"]):
        with pytest.raises(ArgumentError, match=r"output_map.*(a name of its own|DATA_TAG or LABEL_TAG)"):
            plugin.DALIGenericIterator(numbers(paths), output_map, reader_name="numbers")
    with pytest.raises(
        ArgumentError, match=r"output_types=\['dense', 'ragged'\] was given; the tags are DENSE_TAG and SPARSE"
    ):
        plugin.DALIGluonIterator(numbers(paths), output_types=["dense", "ragged"], reader_name="numbers")


@pytest.mark.filterwarnings("ignore:Please set `reader_name`")
def test_sparse_outputs():
    def boxes(info):
        return np.full((info.idx_in_epoch % 3, 4), info.idx_in_epoch, np.float32)

    pipe = fed(Fed(boxes, batches=4), Fed(lambda info: np.int64(info.idx_in_epoch), batches=4))
    made = plugin.DALIGluonIterator(pipe, 5, output_types=["sparse", "sparse"], last_batch_policy=PARTIAL)
    ((found, numbers),), ((last, _),) = made
    assert [array.shape for array in found] == [(0, 4), (1, 4), (2, 4)]
    assert [array.asnumpy().tolist() for array in last] == [[], [[4.0] * 4]]
    assert [(array.shape, int(array.asnumpy())) for array in numbers] == [((), 0), ((), 1), ((), 2)]
    assert {array.dtype for array in numbers} == {np.int64}
    with pytest.raises(RaggedError, match="output '0' .* SPARSE_TAG"):
        plugin.DALIGluonIterator(fed(Fed(boxes), Fed(label)))


# -- feed_ndarray ------------------------------------------------------------------------------------------------------


def test_feed_ndarray():
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    array = plugin.get_mx_array((2, 3), dtype="float32")
    assert plugin.feed_ndarray(TensorCPU(values), array) is None
    assert array.asnumpy().tolist() == values.tolist()
    plugin.feed_ndarray(TensorCPU(values + 1), array)
    assert array.asnumpy().tolist() == (values + 1).tolist()
    empty = plugin.get_mx_array((0, 3), dtype="float32")
    plugin.feed_ndarray(TensorCPU(values[:0].copy()), empty)
    assert empty.asnumpy().shape == (0, 3)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (
            mxnet.nd.zeros((2, 3), dtype="int32"),
            r"shape \(2, 3\) and dtype float32, the NDArray \(2, 3\) and int32; make it with",
        ),
        (mxnet.nd.zeros((3, 2)), r"shape \(2, 3\) and dtype float32, the NDArray \(3, 2\) and float32"),
        (np.zeros((2, 3), np.float32), "arr is a ndarray; .* writes into an NDArray"),
    ],
)
def test_feed_ndarray_refuses(array, message):
    with pytest.raises(ArgumentError, match=message):
        plugin.feed_ndarray(TensorCPU(np.ones((2, 3), np.float32)), array)


def test_get_mx_array():
    for shape, dtype, expected in ((3, np.longlong, ((3,), np.int64)), ([2, 1], None, ((2, 1), np.float32))):
        array = plugin.get_mx_array(shape, mxnet.cpu(), dtype)
        assert (array.shape, array.dtype) == expected


# -- trained with ------------------------------------------------------------------------------------------------------


@pipeline_def(batch_size=4, num_threads=1, device_id=None)
def separable(paths, first=0, last=12, shard=0, shards=1):
    """A number, and whether it is one of the greater half of 12."""
    data, number = fn.readers.file(
        files=paths[first:last],
        labels=list(range(first, last)),
        shard_id=shard,
        num_shards=shards,
        pad_last_batch=True,
        name="numbers",
    )
    return fn.cast(data[:1], dtype=types.FLOAT) / 6 - 1, fn.cast(number >= 6, dtype=types.FLOAT)


@pytest.mark.parametrize("devices", [1, 2])
def test_module_fit(paths, devices):
    def batches(first, last):
        pipes = [separable(paths, first, last, shard, devices) for shard in range(devices)]
        return plugin.DALIClassificationIterator(pipes, reader_name="numbers", last_batch_policy=PARTIAL)

    mxnet.random.seed(0)
    np.random.seed(0)  # MXNet's initializer asks NumPy
    output = mxnet.sym.SoftmaxOutput(
        mxnet.sym.FullyConnected(mxnet.sym.Variable("data"), num_hidden=2), mxnet.sym.Variable("softmax_label")
    )
    module = mxnet.mod.Module(output, context=[mxnet.cpu(i) for i in range(devices)])
    seen = []
    train, held_back = batches(0, 12), batches(6 - 2 * devices, 6 + 2 * devices)
    assert len(held_back) == 1  # an epoch of a single batch, which is reset before it as well
    module.fit(
        train,
        held_back,
        num_epoch=30,
        optimizer_params={"learning_rate": 2.0},
        batch_end_callback=lambda state: seen.append((state.epoch, state.nbatch)),
    )
    per_epoch = 3 if devices == 1 else 2
    assert seen == [(epoch, n) for epoch in range(30) for n in range(per_epoch)]
    assert dict(module.score(held_back, "acc"))["accuracy"] > 0.8


def test_gluon_loop(paths):
    mxnet.random.seed(0)
    net = mxnet.gluon.nn.Dense(2)
    net.initialize()
    trainer = mxnet.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.5})
    loss_of = mxnet.gluon.loss.SoftmaxCrossEntropyLoss()
    made = plugin.DALIGluonIterator(separable(paths, batch_size=5), reader_name="numbers", last_batch_policy=PARTIAL)
    losses = []
    for _ in range(30):
        for ((data, half),) in made:
            with mxnet.autograd.record():
                loss = loss_of(net(data), half)
            loss.backward()
            trainer.step(len(data))
            losses.append((len(data), float(loss.mean().asscalar())))
    assert [count for count, _ in losses] == [5, 5, 2] * 30
    assert losses[-1][1] < losses[2][1] / 2
