"""All frameworks side by side, each in a process of its own: the same batches, bit by bit."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from portaloader import parity, registry
from portaloader.cli import app


@pytest.fixture(scope="module")
def frameworks(request):
    """The ones that were asked for; all that are installed, if none were. NumPy is the reference."""
    asked = [name for name in request.config.getoption("--frameworks").split(",") if name]
    return ["numpy", *(asked or [f.name for f in registry.BUILT_IN.values() if f.is_installed() and f.name != "numpy"])]


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """The photographs that scikit-learn and scikit-image come with, in a folder for each."""
    import skimage
    import sklearn

    root = tmp_path_factory.mktemp("photographs")
    for package, pattern in ((sklearn, "datasets/images/*.jpg"), (skimage, "data/*.[jp][pn]g")):
        target = root / package.__name__
        target.mkdir()
        for file in sorted(Path(package.__file__).parent.glob(pattern)):
            shutil.copy(file, target / file.name)
    assert len(list(root.rglob("*.*g"))) >= 8
    return root


def test_requested_frameworks_are_installed(frameworks):
    assert [name for name in frameworks if not registry.resolve(name).is_installed()] == []


def test_photographs_are_equal_everywhere(frameworks, photographs, tmp_path):
    report = tmp_path / "report.json"
    command = ["parity", str(photographs), "--frameworks", ",".join(frameworks), "--batches", "6"]
    done = CliRunner().invoke(app, [*command, "--batch-size", "4", "--json", str(report)])
    assert done.exit_code == 0, done.output
    found = json.loads(report.read_text())
    assert found["equal"] is True
    streams = {stream["framework"]: [batch["digest"] for batch in stream["batches"]] for stream in found["streams"]}
    assert list(streams) == frameworks
    assert all(len(set(digests)) == 6 for digests in streams.values())
    assert len({tuple(digests) for digests in streams.values()}) == 1
    assert f"equal: 6 batches, bit by bit, in {', '.join(frameworks)}" in done.output


def test_own_pipeline_and_evaluation(frameworks, photographs):
    request = parity.Request(
        source=str(photographs),
        pipeline="portaloader.recipes:classification",
        batches=2,
        options={"batch_size": 8, "shuffle": False, "last_batch": "pad", "device": "cpu"},
        arguments={"train": False, "size": 100, "resize": 120, "layout": "HWC", "dtype": "uint8"},
    )
    report = parity.check(request, frameworks)
    assert report.equal, [*report.errors, *map(str, report.differences)]
    fields = report.streams[0].batches[0]["fields"]
    assert {name: (f["dtype"], f["shape"]) for name, f in fields.items()} == {
        "id": ("int64", [8]),
        "valid": ("bool", [8]),
        "image": ("uint8", [8, 100, 100, 3]),
        "label": ("int64", [8]),
    }


def test_dali_pipeline_with_its_own_readers_and_random_numbers(frameworks, photographs, tmp_path, monkeypatch):
    (tmp_path / "theirs.py").write_text(
        "from nvidia.dali import fn, pipeline_def\n"
        "@pipeline_def(batch_size=4, num_threads=2)\n"
        "def augmented(root):\n"
        "    files, labels = fn.readers.file(file_root=root, random_shuffle=True, pad_last_batch=True)\n"
        "    images = fn.decoders.image_random_crop(files)\n"
        "    images = fn.rotate(images, angle=fn.random.uniform(range=(-20.0, 20.0)), keep_size=True)\n"
        "    return fn.resize(images, size=[96, 96]), labels\n"
    )
    monkeypatch.chdir(tmp_path)
    command = ["parity", "--pipeline", "theirs:augmented", "--argument", f"root={photographs}", "--outputs", "image,label"]
    report = tmp_path / "report.json"
    done = CliRunner().invoke(app, [*command, "--frameworks", ",".join(frameworks), "--batches", "12", "--json", str(report)])
    assert done.exit_code == 0, done.output
    batches = json.loads(report.read_text())["streams"][0]["batches"]
    assert len({batch["digest"] for batch in batches}) == 12
    assert batches[0]["ids"] is None


def test_another_interpreter(photographs):
    command = ["parity", str(photographs), "--frameworks", "numpy", "--batches", "1", "--python", f"np={sys.executable}"]
    assert CliRunner().invoke(app, command).exit_code == 0
    done = CliRunner().invoke(app, [*command[:-1], "numpy=/bin/false"])
    assert done.exit_code == 1
    assert "numpy: the process failed: no message" in done.output


@pytest.mark.parametrize(
    ("options", "status", "words"),
    [
        (["--frameworks", "numpy,caffe"], 2, "framework='caffe' was asked for"),
        (
            ["--pipeline", "nowhere:function", "--frameworks", "numpy"],
            2,
            "ArgumentError: the pipeline 'nowhere:function' cannot",
        ),
        (["--pipeline", "nowhere", "--frameworks", "numpy"], 2, "not of the form module:function"),
        (["/nowhere", "--frameworks", "numpy"], 2, "SourceNotFoundError: the source '/nowhere'"),
        (["--json", "/nowhere/report.json", "--frameworks", "numpy"], 2, "there is no folder /nowhere"),
        (["--python", "mxnet"], 2, "not of the form NAME=VALUE"),
    ],
)
def test_wrong_usage(options, status, words):
    done = CliRunner().invoke(app, ["parity", *options], env={"COLUMNS": "300"})
    assert done.exit_code == status
    assert words in done.output


def test_interrupt_ends_the_workers(tmp_path):
    # The pipeline's module tells that its worker is there, and then never ends.
    os.mkfifo(tmp_path / "started")
    (tmp_path / "endless.py").write_text(
        "import os, pathlib, signal\npathlib.Path('started').write_text(str(os.getpid()))\nsignal.pause()\n"
    )
    command = [sys.executable, "-m", "portaloader", "parity", "--frameworks", "numpy", "--pipeline", "endless:nothing"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, preexec_fn=_with_interrupts) as asked:
        worker = Path("/proc", (tmp_path / "started").read_text())
        assert worker.exists()
        asked.send_signal(signal.SIGINT)
        assert asked.wait(60) == 130
        assert not worker.exists()


def _with_interrupts():
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background begins without
