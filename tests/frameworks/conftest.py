"""What the tests of several frameworks share."""

import pytest
from dropin_grid import files


@pytest.fixture(scope="session")
def paths(tmp_path_factory):
    """Small files of numbers."""
    return files(tmp_path_factory.mktemp("numbers"))
