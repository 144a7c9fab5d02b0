"""The contract, for torch."""

from portaloader.testing import AdapterContract


class TestTorch(AdapterContract):
    framework = "torch"
