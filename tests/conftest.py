"""Options of the suite."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", default="cpu", choices=["cpu", "gpu"], help="where the contract's batches are made")
    parser.addoption("--frameworks", default="", help="names with commas between, which are then required to be installed")
    parser.addoption("--reference", default="", help="a Python with DALI 1.35 and MXNet, whose iterators are compared with")
