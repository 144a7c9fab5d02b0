"""The newcomer's first command, and the example that it runs."""

import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from portaloader.cli import app


@pytest.fixture
def asked(request):
    return request.config.getoption("--frameworks").split(",")


def test_demo_compares_and_says_what_is_next():
    done = CliRunner().invoke(app, ["demo", "--frameworks", "numpy", "--batches", "3"])
    assert done.exit_code == 0, done.output
    assert "equal: 3 batches, bit by bit, in numpy" in done.output
    assert "PyTorch is not among the frameworks" in done.output
    assert done.output.strip().splitlines()[-1].startswith("Next: your own images")


def test_small_network_learns(asked):
    if "torch" not in asked:
        pytest.skip("torch was not asked for")
    command = [sys.executable, "-m", "portaloader.examples.demo_torch"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240)
    found = re.search(r"accuracy on 100 held-back samples: ([\d.]+) %", done.stdout)
    assert found, done.stdout
    assert float(found.group(1)) > 90
