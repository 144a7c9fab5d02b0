"""Keras 3's own loops, under the backend that KERAS_BACKEND names."""

import os

import keras
import numpy as np
import pytest
from readme import run

import portaloader
from portaloader.compat.keras import dataset
from portaloader.errors import ArgumentError, LoaderError
from portaloader.testing.helpers import Numbers, passed_through, sample_files

BACKEND = os.environ["KERAS_BACKEND"]


def loader(count=22, batch_size=8, **options):
    options = {"framework": BACKEND, "device": "cpu", "size": 16, "batch_size": batch_size, **options}
    return portaloader.get_loader(sample_files(count), **options)


def model():
    """A classifier of the mean colour, with known input shapes."""
    image = keras.Input((3, 16, 16))
    made = keras.Model(image, keras.layers.Dense(7)(keras.ops.mean(image, axis=(2, 3))))
    made.compile(optimizer="sgd", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return made


def test_the_backend():
    assert keras.backend.backend() == BACKEND
    assert keras.__version__ >= "3"


def test_epochs_end_by_themselves():
    seen = []
    with loader() as train, loader(10, shuffle=False) as check:
        history = model().fit(
            dataset(train, "image", "label"),
            epochs=3,
            validation_data=dataset(check, "image", "label"),
            callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append((epoch, train.epoch)))],
        )
        assert sorted(history.history) == ["accuracy", "loss", "val_accuracy", "val_loss"]
        assert all(len(values) == 3 and np.isfinite(values).all() for values in history.history.values())
        assert seen == [(0, 0), (1, 1), (2, 2)]
        assert len(list(train)) == 3
        assert train.epoch == 4


def test_the_values_arrive():
    # The sum of the losses of a model that gives its input: it is as large as the ids that came.
    with portaloader.get_loader(
        [{"x": np.float32(2**i), "y": np.float32(0)} for i in range(11)], passed_through, framework=BACKEND, batch_size=4
    ) as train:
        given = keras.Input((), batch_size=None)
        identity = keras.Model(given, given * 1.0)
        identity.compile(loss=lambda target, found: keras.ops.sum(found - target), optimizer="sgd")
        data = dataset(train, "x", "y")
        totals = [identity.evaluate(data, verbose=0, return_dict=True)["loss"] for _ in range(2)]
        predicted = [identity.predict(data, verbose=0).tolist() for _ in range(2)]
    assert all(np.isfinite(totals))
    with portaloader.get_loader(
        [{"x": np.float32(2**i)} for i in range(11)], passed_through, framework="numpy", batch_size=4
    ) as other:
        expected = [[value for batch in other for value in batch["x"].tolist()] for _ in range(4)]
    assert predicted == expected[2:]


def test_sample_weights_leave_the_padding_out():
    made = model()
    made.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), weighted_metrics=["accuracy"])
    right = []
    for names, rule in ((("image", "label", "valid"), "pad"), (("image", "label"), "partial")):
        with loader(21, last_batch=rule, shuffle=False) as check:
            right.append(made.evaluate(dataset(check, *names), verbose=0, return_dict=True)["accuracy"])
    assert right[0] == pytest.approx(right[1], rel=1e-6)


def test_several_inputs():
    with loader() as train:
        first, second = keras.Input((3, 16, 16)), keras.Input((), dtype="int32" if BACKEND == "jax" else "int64")
        joined = keras.ops.mean(first, axis=(1, 2, 3)) + 0.0 * keras.ops.cast(second, "float32")
        two = keras.Model([first, second], joined)
        assert two.predict(dataset(train, ("image", "id")), verbose=0).shape == (22,)


def test_steps_per_epoch():
    with loader(64) as train:
        history = model().fit(dataset(train, "image", "label"), epochs=2, steps_per_epoch=2, verbose=0)
        assert len(history.history["loss"]) == 2


def test_early_stopping():
    with loader() as train, loader(10) as check:
        stop = keras.callbacks.EarlyStopping(monitor="val_loss", patience=0, min_delta=1e9)
        history = model().fit(
            dataset(train, "image", "label"),
            epochs=10,
            validation_data=dataset(check, "image", "label"),
            callbacks=[stop],
        )
        assert len(history.history["loss"]) == 2


def test_a_model_that_is_built_on_its_first_batch():
    with loader() as train:
        made = keras.Sequential([keras.layers.GlobalAveragePooling2D(data_format="channels_first"), keras.layers.Dense(7)])
        made.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        history = made.fit(dataset(train, "image", "label"), epochs=2, verbose=0)
        assert len(history.history["loss"]) == 2


def test_tensors_are_the_backends_own():
    from keras.src.trainers.data_adapters import get_data_adapter

    with loader() as train:
        convert, made = train.adapter.convert, []

        def spy(tensor, dtype):
            made.append(convert(tensor, dtype))
            return made[-1]

        train.adapter.convert = spy
        adapter = get_data_adapter(dataset(train, "image", "label"))
        assert adapter.num_batches == 3
        adapter.on_epoch_begin()
        iterator = {"jax": "get_jax_iterator", "torch": "get_torch_dataloader", "tensorflow": "get_tf_dataset"}[BACKEND]
        for number, batch in enumerate(getattr(adapter, iterator)()):
            assert all(isinstance(tensor, train.adapter.tensor_type) for tensor in batch)
            if BACKEND != "tensorflow":  # whose own operator makes the tensors
                image = made[3 * number + 1]
                assert train.adapter.data_pointer(batch[0]) == train.adapter.data_pointer(image)


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_goes_on_from_a_state():
    items = [{"value": np.float32(i)} for i in range(11)]

    def made():
        return portaloader.get_loader(items, passed_through, framework=BACKEND, batch_size=4, device="cpu")

    def values(one):
        return [value for batch in one for value in one.to_numpy(batch)["value"].tolist()]

    with made() as first, made() as train:
        next(iter(first))
        train.load_state_dict(first.state_dict())
        first.load_state_dict(first.state_dict())
        given = keras.Input(())
        identity = keras.Model(given, given * 1.0)
        identity.compile(loss="mse")
        data = dataset(train, "value")
        assert [identity.predict(data, verbose=0).tolist() for _ in range(2)] == [values(first) for _ in range(2)]


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_epochs_of_different_lengths():
    seen = []

    class Ids(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs):
            seen[-1] += 1

        def on_epoch_begin(self, epoch, logs):
            seen.append(0)

    with loader(21, last_batch="wrap") as train, loader(21, last_batch="wrap") as other:
        model().fit(dataset(train, "image", "label"), epochs=4, callbacks=[Ids()], verbose=0)
        assert seen == [len(list(other)) for _ in range(4)] == [3, 3, 2, 3]


def test_an_error_reaches_the_caller():
    source = Numbers(8, broken=(5,))
    with portaloader.get_loader(source, passed_through, framework=BACKEND, batch_size=2, shuffle=False) as train:
        given = keras.Input(())
        identity = keras.Model(given, given * 1.0)
        with pytest.raises(Exception, match="sample 5 .item 5 of Numbers. cannot be read"):
            identity.predict(dataset(train, "value"), verbose=0)


def test_another_frameworks_loader_is_refused():
    with (
        portaloader.get_loader(Numbers(4), passed_through, framework="numpy") as train,
        pytest.raises(ArgumentError, match=f"Keras runs on {BACKEND} here.*tensors of numpy.*framework='{BACKEND}'"),
    ):
        dataset(train, "value")


def test_outputs_have_to_be_named():
    with loader() as train, pytest.raises(ArgumentError, match="inputs, then targets"):
        dataset(train)


def test_a_closed_loader():
    with loader() as train:
        pass
    with pytest.raises(LoaderError, match="closed"):
        dataset(train, "image", "label")


def test_the_readmes_loop():
    made = model()
    with loader() as train, loader(10, shuffle=False) as held_back:
        run("Keras 3", {"model": made, "train": train, "held_back": held_back})
        assert len(list(train)) == 3
        assert train.epoch == 4
