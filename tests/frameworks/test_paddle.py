"""The contract, for paddle."""

import subprocess
import sys

import numpy as np
import paddle
import pytest
from launchers import check_ranks
from readme import run

import portaloader
from portaloader.errors import SampleError
from portaloader.testing import AdapterContract
from portaloader.testing.helpers import passed_through, sample_files


class TestPaddle(AdapterContract):
    framework = "paddle"

    def native_epoch(self, native):
        assert isinstance(native, paddle.io.DataLoader)
        return iter(native)


def test_ranks_of_the_launcher(tmp_path):
    check_ranks("paddle", ["paddle.distributed.launch", "--nproc_per_node=3", "--log_dir", str(tmp_path / "log")], tmp_path)


def test_behind_tensorflow_it_is_refused():
    # Both in one process, in this order, is a segmentation fault.
    code = (
        "import sys, types, portaloader\n"
        "sys.modules['tensorflow'] = types.ModuleType('tensorflow')\n"
        "try: portaloader.get_loader(framework='paddle')\n"
        "except portaloader.errors.FrameworkBrokenError as error:\n"
        "    print('import paddle first' in str(error), 'paddle' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "True False\n"


# -- paddle.Model ------------------------------------------------------------------------------------------------------


class MeanColour(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.head = paddle.nn.Linear(3, 7)
        self.seen = []

    def forward(self, image):
        self.seen.append(image.numpy())
        return self.head(image.mean(axis=[2, 3]))


def model():
    network = MeanColour()
    made = paddle.Model(network)
    made.prepare(
        paddle.optimizer.SGD(0.01, parameters=network.parameters()),
        paddle.nn.CrossEntropyLoss(),
        paddle.metric.Accuracy(),
    )
    return made, network


def loader(framework="paddle", count=22, **options):
    return portaloader.get_loader(
        sample_files(count), framework=framework, size=16, batch_size=8, **{"device": "cpu", **options}
    )


class Logs(paddle.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.losses, self.steps = [], []

    def on_epoch_end(self, epoch, logs=None):
        self.losses.append(logs["loss"])
        self.steps.append(logs["step"] + 1)

    def on_eval_end(self, logs=None):
        self.losses.append(logs["acc"])


# Of Paddle's, which copies whatever tensors it is given.
copied = pytest.mark.filterwarnings("ignore:To copy construct from a tensor")


@copied
def test_model_fit():
    made, network = model()
    logs = Logs()
    with loader() as train, loader(count=10, shuffle=False) as check:
        data, held_back = (one.native("image", "label") for one in (train, check))
        made.fit(data, held_back, epochs=2, verbose=0, callbacks=[logs], accumulate_grad_batches=2)
    assert logs.steps == [3, 3]
    assert len(logs.losses) == 4
    with loader("numpy") as train, loader("numpy", count=10, shuffle=False) as check:
        wanted = [batch["image"] for _ in range(2) for one in (train, check) for batch in one]
    assert len(network.seen) == len(wanted)
    for image, expected in zip(network.seen, wanted, strict=True):
        np.testing.assert_array_equal(image, expected, strict=True)


@copied
def test_model_evaluate_and_predict():
    made, _ = model()
    # Two loaders, since an epoch has crops of its own.
    with loader(shuffle=False) as check:
        found = made.evaluate(check.native("image", "label"), verbose=0)
    with loader(shuffle=False) as check:
        (outputs,) = made.predict(check.native("image"), verbose=0, stack_outputs=True)
    assert outputs.shape == (22, 7)
    with loader("numpy", shuffle=False) as other:
        labels = np.concatenate([batch["label"] for batch in other])
    assert found["acc"] == pytest.approx((outputs.argmax(1) == labels).mean())


@copied
def test_model_fit_reports_a_sample_that_cannot_be_read():
    # Paddle's own DataLoader over an IterableDataset would wait for ever.
    network = paddle.nn.Linear(1, 1)
    made = paddle.Model(network)
    made.prepare(paddle.optimizer.SGD(0.01, parameters=network.parameters()), paddle.nn.MSELoss())
    items = [{"value": np.ones(1, np.float32), "target": np.ones(1, np.float32)} for _ in range(8)]

    class Source(list):
        def __getitem__(self, index):
            if index == 5:
                raise OSError("item 5 is out of order")
            return items[index]

    with (
        portaloader.get_loader(Source(items), passed_through, framework="paddle", batch_size=2, device="cpu") as train,
        pytest.raises(SampleError, match="sample 5 .*item 5 is out of order"),
    ):
        made.fit(train.native("value", "target"), epochs=1, verbose=0)


@copied
def test_the_readmes_loop(capsys):
    made, network = model()
    with loader() as train, loader(count=10, shuffle=False) as held_back:
        run("Paddle:", {"model": made, "train": train, "held_back": held_back})
    assert len(network.seen) == 3 * (3 + 2)
