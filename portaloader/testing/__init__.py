"""The contract that every adapter keeps, as tests that it inherits. Needs pytest.

A package that brings a framework of its own proves it in three lines::

    from portaloader.testing import AdapterContract

    class TestMyFramework(AdapterContract):
        framework = "myframework"
"""

import pytest

# The assertions of the suite are worth as much detail as those of a test file; this comes before they are imported.
pytest.register_assert_rewrite(*(f"portaloader.testing.{name}" for name in ("contract", "dali_pipelines", "helpers")))

from portaloader.testing.contract import AdapterContract  # noqa: E402
from portaloader.testing.helpers import as_numpy, sample_files  # noqa: E402

__all__ = ["AdapterContract", "as_numpy", "sample_files"]
