"""The trainers of all frameworks: the same flags and parts, the same batches in every epoch, and all of them learn."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import portaloader

EXAMPLES = Path(__file__).parents[2] / "examples"
FRAMEWORKS = ("torch", "tensorflow", "mxnet", "paddle", "jax")


@pytest.fixture(scope="module")
def frameworks(request):
    asked = [name for name in request.config.getoption("--frameworks").split(",") if name]
    return [name for name in FRAMEWORKS if name in asked]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Sixteen of the bundled images of every class, and four held back."""
    folder = tmp_path_factory.mktemp("data")
    for name, number in (("train", 16), ("held_back", 4)):
        for label in sorted(portaloader.samples.path(name).iterdir()):
            (folder / name / label.name).mkdir(parents=True)
            for file in sorted(label.glob("*.jpg"))[:number]:
                (folder / name / label.name / file.name).symlink_to(file)
    return folder


def started(framework, *flags):
    command = [sys.executable, "-W", "ignore", "-m", f"portaloader.examples.train_{framework}", "--device", "cpu"]
    return subprocess.run([*command, *flags], capture_output=True, text=True, timeout=900, check=False)


def train(framework, folder, *flags):
    """What a trainer reports and prints; the report goes into the folder."""
    report = folder / f"{framework}.json"
    done = started(framework, "--report", str(report), *flags)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(report.read_text()), done.stdout


def small(data):
    return "--data", str(data / "train"), "--held-back", str(data / "held_back"), "--size", "32", "--batch-size", "8"


@pytest.mark.timeout(1500)  # every framework trains for most of a minute
def test_each_learns_from_the_same_batches(frameworks, tmp_path):
    assert frameworks
    found = {name: train(name, tmp_path, "--width", "16") for name in frameworks}
    for name, (report, printed) in found.items():
        epochs = report["epochs"]
        assert epochs[-1]["held_back"] > 0.7, f"{name}: {printed}"  # by chance 0.2
        assert epochs[-1]["loss"] < 0.7 * epochs[0]["loss"], f"{name}: {printed}"
        assert len({epoch["digest"] for epoch in epochs}) == len(epochs) == 20, name
        assert all(f"stream {epoch['digest'][:16]}" in printed for epoch in epochs), name
        assert all(epoch["images_per_second"] > 0 for epoch in epochs), name
    reports = [report for report, _ in found.values()]
    assert len({tuple(epoch["digest"] for epoch in report["epochs"]) for report in reports}) == 1
    assert len({report["parameters"] for report in reports}) == 1


def test_mixed_precision_of_the_deeper_network(frameworks, data):
    for name in frameworks:
        flags = (*small(data), "--depth", "50", "--width", "16", "--epochs", "1", "--lr", "0.01")
        plain, _ = train(name, data, *flags)
        if name == "paddle":
            done = started(name, *flags, "--amp")
            assert done.returncode == 2
            assert "Paddle computes in mixed precision on a GPU only" in done.stderr
            continue
        mixed, _ = train(name, data, *flags, "--amp")
        losses = [report["epochs"][0]["loss"] for report in (plain, mixed)]
        assert losses[0] != losses[1], name
        assert losses[1] == pytest.approx(losses[0], rel=0.1), name
        assert plain["epochs"][0]["digest"] == mixed["epochs"][0]["digest"]
        assert plain["parameters"] == mixed["parameters"]


def test_the_bound(frameworks, data):
    for name in frameworks:
        report, printed = train(name, data, *small(data), "--synthetic", "2")
        assert report["bound"] > 0
        assert f"bound: {report['bound']:.1f} images/s" in printed


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--seed", "-1"), "--seed: -1 is not from 0 to 4294967295"),
        (("--epochs", "0"), "--epochs: 0 is not from 1 on"),
        (("--synthetic", "0"), "--synthetic: 0 is not from 1 on"),
        (("--crop", "2"), "--crop: 2 is not from 0.01 to 1"),
        (("--lr", "nan"), "--lr: nan is not from 0 on"),
        (("--report", "/proc/nowhere/report.json"), "No such file or directory"),
    ],
)
def test_flags_that_cannot_be_used(frameworks, flags, message):
    done = started(frameworks[-1], *flags)
    assert (done.returncode, message in done.stderr) == (2, True), done.stderr


def test_a_diff_shows_only_the_framework():
    def parts(node):
        kinds = (ast.ClassDef, ast.FunctionDef)
        return [(part.name, parts(part)) for part in node.body if isinstance(part, kinds) and not part.name.startswith("_")]

    outlines = {}
    for name in FRAMEWORKS:
        classes = parts(ast.parse((EXAMPLES / f"train_{name}.py").read_text()))
        outlines[name] = [
            (title, [method for method, _ in methods if title == "Trainer"])
            for title, methods in classes
            if title[0].isupper()
        ]
    assert len({json.dumps(outline) for outline in outlines.values()}) == 1
    assert [title for title, _ in outlines["torch"]] == ["Normalised", "Block", "ResNet", "Trainer"]
