"""The contract, for tensorflow; and its native data set, with DALI's compiled operator and without."""

import sys

import numpy as np
import pytest
import tensorflow as tf
from nvidia.dali import fn, pipeline_def
from readme import run

import portaloader
from portaloader.errors import ArgumentError, FrameworkBrokenError, LoaderError, StateError
from portaloader.testing import AdapterContract, NativeContract, as_numpy
from portaloader.testing.base import numbered
from portaloader.testing.helpers import Numbers, assert_equal, passed_through, sample_files


class TestTensorflow(AdapterContract):
    framework = "tensorflow"
    native_error = tf.errors.OpError
    ragged = "DALI pipeline is not uniform|output 'value' differ in shape"  # with DALI's operator, and without


class TestWithoutTheOperator(NativeContract):
    framework = "tensorflow"
    native_options = {"compiled": False}
    native_error = tf.errors.OpError


@pytest.fixture(params=[True, False], ids=["compiled", "dlpack"])
def compiled(request):
    return request.param


def loader(count=30, pipeline=None, **options):
    options = {"batch_size": 8, "device": "cpu", **options}
    if pipeline is None:
        return portaloader.get_loader(sample_files(count), framework="tensorflow", size=32, **options)
    return portaloader.get_loader(Numbers(count), pipeline, framework="tensorflow", **options)


@pytest.mark.parametrize(
    ("options", "cardinality", "size"),
    [
        ({}, 4, None),
        ({"last_batch": "drop"}, 3, 8),
        ({"last_batch": "pad"}, 4, 8),
        ({"last_batch": "wrap"}, tf.data.UNKNOWN_CARDINALITY, 8),
        ({"last_batch": "wrap", "count": 32}, 4, 8),
        ({"count": 32}, 4, 8),
        ({"shard": (1, 2)}, 2, None),
    ],
)
def test_dataset_tells_what_it_holds(compiled, options, cardinality, size):
    with loader(**options) as made:
        native = made.native(compiled=compiled)
        assert native.cardinality() == cardinality
        spec = {"id": ((size,), tf.int64), "image": ((size, 3, 32, 32), tf.float32), "label": ((size,), tf.int64)}
        if options.get("last_batch") == "pad":
            spec["valid"] = ((size,), tf.bool)
        assert native.element_spec == {name: tf.TensorSpec(*spec[name]) for name in spec}
        pair = made.native("image", "label", compiled=compiled)
        assert pair.element_spec == (native.element_spec["image"], native.element_spec["label"])


def test_dataset_runs_in_graph_mode(compiled):
    @tf.function
    def total(batches):
        found = tf.constant(0, tf.int64)
        for batch in batches:
            found += tf.reduce_sum(batch["value"])
        return found

    with loader(21, passed_through) as made:
        native = made.native(compiled=compiled)
        assert [int(total(native)) for _ in range(3)] == [210] * 3
        assert made.epoch == 3


def test_dataset_goes_through_tensorflows_own_steps(compiled):
    with loader(21, passed_through) as made:
        native = made.native("value", compiled=compiled).map(lambda value: value + 1).unbatch().batch(5).prefetch(2)
        epochs = [[value.numpy() for value in native] for _ in range(2)]
        assert [[len(value) for value in epoch] for epoch in epochs] == [[5, 5, 5, 5, 1]] * 2
        assert all(sorted(np.concatenate(epoch)) == list(range(1, 22)) for epoch in epochs)


def test_dataset_begins_an_epoch_with_its_first_batch(compiled):
    # Keras makes an iterator at the end of every epoch that nobody asks for a batch.
    with loader(21, passed_through) as made:
        native = made.native("value", compiled=compiled)
        for epoch in range(3):
            iter(native)
            assert made.epoch == epoch
            assert len(list(native)) == 3


def test_two_iterators_of_one_dataset(compiled):
    with loader(21, passed_through) as made:
        native = made.native("value", compiled=compiled)
        first, second = iter(native), iter(native)
        next(first)
        next(second)
        with pytest.raises(tf.errors.OpError, match="iterator of epoch 0 was left"):
            list(first)
        assert made.epoch == 1


def test_an_iterator_that_works_ahead_and_was_left():
    # It takes batches of DALI's endless data set while the next epoch begins.
    files = [str(item["image"]) for item in sample_files(30)]

    @pipeline_def(batch_size=4, num_threads=1)
    def slow():
        file, label = fn.readers.file(files=files, labels=list(range(30)), pad_last_batch=False, name="files")
        image = fn.gaussian_blur(fn.resize(fn.decoders.image(file), size=[500, 500]), window_size=15)
        return fn.reductions.mean(image, name="mean"), fn.copy(label, name="label")

    with (
        portaloader.get_loader(pipeline=slow, framework="tensorflow", device="cpu", last_batch="wrap") as made,
        portaloader.get_loader(pipeline=slow, framework="numpy", device="cpu", last_batch="wrap") as other,
    ):
        ahead = made.native("mean", "label", compiled=True).prefetch(2)
        expected = [[batch["label"].tolist() for batch in other] for _ in range(4)]
        old = []
        for epoch in range(4):
            old.append(iter(ahead))
            if epoch % 2:
                assert [label.numpy().tolist() for _, label in old[-1]] == expected[epoch]
            else:
                assert next(old[-1])[1].numpy().tolist() == expected[epoch][0]


def test_a_state_that_is_loaded_behind_native(compiled):
    with loader(21, passed_through) as made, loader(21, passed_through) as stopped:
        next(iter(stopped))
        native = made.native("value", compiled=compiled)
        made.load_state_dict(stopped.state_dict())
        with pytest.raises(tf.errors.OpError, match=r"epochs of 3 batches. Call native\(\) again, behind load_state_dict"):
            list(native)
        assert [len(list(made.native("value", compiled=compiled))) for _ in range(2)] == [2, 3]
        assert len(list(native)) == 3


def test_strategies_leave_the_shards_to_the_loader(compiled):
    with loader(21, passed_through) as made:
        native = made.native("value", compiled=compiled)
        for strategy in (tf.distribute.MirroredStrategy(["cpu:0"]), tf.distribute.OneDeviceStrategy("cpu:0")):
            distributed = strategy.experimental_distribute_dataset(native)
            assert sorted(int(number) for (values,) in distributed for number in values) == list(range(21))


def test_samples_whose_size_changes_from_batch_to_batch(compiled):
    items = [{"value": np.full(2 + i // 2, i, np.float32)} for i in range(4)]
    options = {"framework": "tensorflow", "batch_size": 2, "shuffle": False, "device": "cpu"}
    with portaloader.get_loader(items, passed_through, **options) as made:
        native = made.native("value", compiled=compiled, shapes={"value": (None,)})
        assert native.element_spec == (tf.TensorSpec((2, None), tf.float32),)
        assert [batch[0].shape.as_list() for batch in native] == [[2, 2], [2, 3]]
        with pytest.raises(ArgumentError, match="shapes= names .'size'.; the outputs are 'id', 'value'"):
            made.native(shapes={"size": ()})


def test_state_while_tensorflow_runs_the_graph():
    with loader(21, passed_through) as made, loader(21, passed_through) as other:
        native = made.native("value", compiled=True)
        for _ in native:
            with pytest.raises(StateError, match="TensorFlow runs epoch 0.*native.compiled=False."):
                made.state_dict()
            break
        list(native)
        for epoch in (other, other):
            list(epoch)
        assert made.state_dict() == other.state_dict()


def test_state_behind_every_batch_without_the_operator():
    with loader(21, passed_through) as made, loader(21, passed_through) as other:
        for (value,), batch in zip(made.native("value", compiled=False), other, strict=True):
            assert value.numpy().tolist() == batch["value"].numpy().tolist()
            assert made.state_dict() == other.state_dict()


def test_a_sample_that_cannot_be_processed(compiled, tmp_path):
    bad = tmp_path / "bad.jpg"
    bad.write_text("no picture at all")
    items = [*sample_files(3), {"image": bad, "label": 0}]
    with portaloader.get_loader(
        items, framework="tensorflow", size=32, batch_size=2, shuffle=False, device="cpu", prefetch=1
    ) as made:
        batches = iter(made.native("image", compiled=compiled))
        next(batches)
        # DALI's operator names itself, and no sample.
        with pytest.raises(tf.errors.OpError, match="peek_image_shape" if compiled else "sample 3 .item 3 of list. cannot"):
            next(batches)


@pytest.mark.parametrize("name", ["float16", "float32", "float64", "int8", "int32", "int64", "uint8", "uint16", "bool"])
@pytest.mark.parametrize("shape", [(), (2,), (2, 3, 1)], ids=["scalar", "vector", "image"])
def test_dtypes_through_the_operator(name, shape):
    items = [{"value": np.full(shape, i, name)} for i in (0, 1, 1)]
    with portaloader.get_loader(items, passed_through, framework="tensorflow", batch_size=2, device="cpu") as made:
        for found, wanted in zip([as_numpy(made, batch) for batch in made.native()], _again(items), strict=True):
            assert_equal(found, wanted)


def _again(items):
    with portaloader.get_loader(items, passed_through, framework="numpy", batch_size=2) as made:
        return [as_numpy(made, batch) for batch in made]


def test_without_the_plugin_there_is_a_warning(monkeypatch):
    monkeypatch.setitem(sys.modules, "nvidia.dali.plugin.tf", None)
    with loader(21, passed_through) as made:
        with pytest.warns(UserWarning, match="pip install --no-build-isolation nvidia-dali-tf-plugin-cuda120=="):
            native = made.native("value")
        assert [len(value) for (value,) in native] == [8, 8, 5]
        with pytest.raises(FrameworkBrokenError, match="compiled=True was asked for.*pip install"):
            made.native(compiled=True)
        made.native(compiled=False)


def test_the_operator_where_it_cannot_give_the_stream():
    from nvidia.dali import fn

    @portaloader.pipeline
    def shaken(sample):
        return {"value": sample["value"] + fn.random.uniform(range=[0, 1])}

    with loader(21, shaken) as made, loader(21, shaken) as other:
        with pytest.raises(ArgumentError, match="compiled=True was asked for.*random"):
            made.native(compiled=True)
        native = made.native("value")
        for _ in range(2):
            for (value,), batch in zip(native, other, strict=True):
                assert value.numpy().tolist() == batch["value"].numpy().tolist()


def test_dali_pipeline_that_has_run_in_the_loader():
    with (
        portaloader.get_loader(pipeline=numbered(), framework="tensorflow", device="cpu", pad=True) as made,
        portaloader.get_loader(pipeline=numbered(), framework="tensorflow", device="cpu", pad=True) as other,
    ):
        list(made), list(other)
        with pytest.raises(ArgumentError, match="compiled=True was asked for.*has begun to run in the loader"):
            made.native(compiled=True)
        for (label,), batch in zip(made.native("label"), other, strict=True):
            assert label.numpy().tolist() == batch["label"].numpy().tolist()


def test_dali_pipeline_runs_in_one_place():
    with portaloader.get_loader(pipeline=numbered(), framework="tensorflow", device="cpu", pad=True) as made:
        first, second = made.native("label"), made.native("label", "image")
        seen = [label.numpy().tolist() for (label,) in first] + [label.numpy().tolist() for label, _ in second]
        with pytest.raises(LoaderError, match="TensorFlow runs this loader's DALI pipeline"):
            next(iter(made))
    with portaloader.get_loader(pipeline=numbered(), framework="numpy", pad=True) as other:
        assert seen == [batch["label"].tolist() for _ in range(2) for batch in other]


@pytest.mark.parametrize(("rule", "pad"), [("drop", False), ("wrap", False), ("pad", True)])
def test_dali_pipeline_equals_dalis_dataset(rule, pad, compiled):
    from nvidia.dali.plugin.tf import DALIDataset

    pipe = numbered()(pad=pad, seed=3, device_id=None)
    with tf.device("cpu:0"):
        dalis = iter(DALIDataset(pipe, batch_size=4, num_threads=2, device_id=None, output_dtypes=(tf.uint8, tf.int32)))
    with portaloader.get_loader(
        pipeline=numbered(), pad=pad, seed=3, last_batch=rule, framework="tensorflow", device="cpu"
    ) as made:
        native = made.native("image", "label", compiled=compiled)
        for _ in range(3):
            for image, label in native:
                theirs = next(dalis)
                assert image.dtype == tf.uint8
                assert label.dtype == tf.int64
                np.testing.assert_array_equal(image, theirs[0], strict=True)
                np.testing.assert_array_equal(label, tf.squeeze(theirs[1], 1))
            if rule == "drop":
                next(dalis)  # the part of a batch that the rule leaves out


def test_the_readmes_loop():
    with loader() as train:
        names = run("TensorFlow:", {"train": train})
        assert train.epoch == 1
    assert names["image"].shape == (6, 3, 32, 32)
    assert names["label"].shape == (6,)
