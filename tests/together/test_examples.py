"""The trainers of all frameworks: the same flags and parts, and the same batches in every epoch."""

import ast
import json
import math
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


def train(framework, data, *flags):
    report = data / f"{framework}.json"
    command = [sys.executable, "-W", "ignore", "-m", f"portaloader.examples.train_{framework}", "--device", "cpu"]
    command += ["--data", str(data / "train"), "--held-back", str(data / "held_back"), "--size", "32", "--batch-size", "8"]
    done = subprocess.run(
        [*command, "--report", str(report), *flags], capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(report.read_text()), done.stdout


def test_each_sees_the_same_batches(frameworks, data):
    assert frameworks
    found = {name: train(name, data, "--epochs", "2", "--lr", "0.01") for name in frameworks}
    for name, (report, printed) in found.items():
        first, second = report["epochs"]
        assert first["digest"] != second["digest"], name
        assert all(f"stream {epoch['digest'][:16]}" in printed for epoch in (first, second)), name
        assert all(math.isfinite(epoch["loss"]) and epoch["images_per_second"] > 0 for epoch in (first, second)), name
    reports = [report for report, _ in found.values()]
    assert len({tuple(epoch["digest"] for epoch in report["epochs"]) for report in reports}) == 1
    assert len({report["parameters"] for report in reports}) == 1


def test_the_bound(frameworks, data):
    for name in frameworks:
        report, printed = train(name, data, "--synthetic", "2")
        assert report["bound"] > 0
        assert f"bound: {report['bound']:.1f} images/s" in printed


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
