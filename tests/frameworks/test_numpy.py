"""The contract, for numpy."""

from portaloader.testing import AdapterContract


class TestNumpy(AdapterContract):
    framework = "numpy"
