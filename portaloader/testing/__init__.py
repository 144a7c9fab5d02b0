"""The contract that every adapter keeps, as tests that it inherits. Needs pytest.

A package that brings a framework of its own proves it in three lines::

    from portaloader.testing import AdapterContract

    class TestMyFramework(AdapterContract):
        framework = "myframework"
"""

import pytest

# The assertions of the suite are worth as much detail as those of a test file; this comes before they are imported.
_FILES = ("base", "contract", "dali_pipelines", "helpers", "native")
pytest.register_assert_rewrite(*(f"portaloader.testing.{name}" for name in _FILES))

from portaloader.testing.contract import AdapterContract  # noqa: E402
from portaloader.testing.helpers import as_numpy, sample_files  # noqa: E402
from portaloader.testing.native import NativeContract  # noqa: E402

__all__ = ["AdapterContract", "NativeContract", "as_numpy", "sample_files"]
