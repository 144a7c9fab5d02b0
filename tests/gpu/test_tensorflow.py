"""TensorFlow's native data set on a GPU: its batches are the loader's, and stay there.

    pytest tests/gpu/test_tensorflow.py --device gpu

Not part of `make test`: it needs a CUDA device and TensorFlow with CUDA.
"""

import numpy as np
import pytest
import tensorflow as tf
from nvidia.dali.backend import TensorGPU

import portaloader
from portaloader.errors import ArgumentError
from portaloader.testing.base import numbered
from portaloader.testing.helpers import sample_files

FILES = sample_files(70)
OPTIONS = {"size": 64, "batch_size": 16, "device": "gpu", "num_threads": 4}


@pytest.mark.parametrize("rule", ["partial", "pad", "drop", "wrap"])
def test_batches_are_the_loaders(rule):
    with (
        portaloader.get_loader(FILES, framework="tensorflow", last_batch=rule, **OPTIONS) as made,
        portaloader.get_loader(FILES, framework="numpy", last_batch=rule, **OPTIONS) as other,
    ):
        native = made.native("image", "label", "id")
        for _ in range(3):
            found = 0
            for (image, label, ids), wanted in zip(native, other, strict=True):
                assert image.device.endswith("GPU:0")
                assert image.dtype == tf.float32
                assert label.dtype == ids.dtype == tf.int64
                np.testing.assert_array_equal(image, wanted["image"], strict=True)
                np.testing.assert_array_equal(label, wanted["label"], strict=True)
                np.testing.assert_array_equal(ids, wanted["id"], strict=True)
                found += 1
            assert found
        assert made.epoch == other.epoch == 3


def test_images_are_not_copied():
    with portaloader.get_loader(FILES, framework="tensorflow", **OPTIONS) as made:
        convert, addresses = made.adapter.convert, []

        def noted(tensor, dtype):
            addresses.append(tensor.data_ptr())
            return convert(tensor, dtype)

        made.adapter.convert = noted
        for (image,) in made.native("image"):
            assert TensorGPU(tf.experimental.dlpack.to_dlpack(image)).data_ptr() in addresses


def test_graph_mode_and_leaving_early():
    @tf.function
    def labels(batches):
        found = tf.constant(0, tf.int64)
        for _, label in batches:
            found += tf.reduce_sum(label)
        return found

    with (
        portaloader.get_loader(FILES, framework="tensorflow", **OPTIONS) as made,
        portaloader.get_loader(FILES, framework="numpy", **OPTIONS) as other,
    ):
        native = made.native("image", "label")
        for _ in range(2):
            assert int(labels(native)) == sum(batch["label"].sum() for batch in other)
        next(iter(native))
        iter(native)  # nobody asks for a batch
        assert made.epoch == 2
        for batch in other:
            first = batch["label"]
            break
        assert len(list(native)) == len(made)
        assert made.epoch == 4
        assert first.shape == (16,)


def test_the_operator_is_refused():
    with (
        portaloader.get_loader(FILES, framework="tensorflow", **OPTIONS) as made,
        pytest.raises(ArgumentError, match="compiled=True was asked for, and the loader's batches are on a GPU"),
    ):
        made.native(compiled=True)


def test_keras_trains():
    with portaloader.get_loader(FILES, framework="tensorflow", last_batch="drop", **OPTIONS) as made:
        layers = [tf.keras.layers.Permute((2, 3, 1)), tf.keras.layers.Conv2D(8, 3, 4), tf.keras.layers.GlobalMaxPool2D()]
        model = tf.keras.Sequential([*layers, tf.keras.layers.Dense(len(FILES))])
        model.compile("sgd", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        with pytest.warns(UserWarning, match="ran out of data"):  # Keras says so of every data set whose length is not known
            history = model.fit(made.native("image", "label"), epochs=2, shuffle=False, verbose=0)
        assert made.epoch == 2
        assert len(history.history["loss"]) == 2
        assert np.isfinite(history.history["loss"]).all()


def test_dali_pipeline_with_readers():
    function = numbered(device="mixed")
    with (
        portaloader.get_loader(pipeline=function, framework="tensorflow", device="gpu", pad=True) as made,
        portaloader.get_loader(pipeline=function, framework="numpy", device="gpu", pad=True) as other,
    ):
        native = made.native("image", "label")
        for _ in range(2):
            for (image, label), wanted in zip(native, other, strict=True):
                np.testing.assert_array_equal(image, wanted["image"])
                np.testing.assert_array_equal(label, wanted["label"])
