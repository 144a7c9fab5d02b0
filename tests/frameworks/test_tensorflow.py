"""The contract, for tensorflow."""

from portaloader.testing import AdapterContract


class TestTensorflow(AdapterContract):
    framework = "tensorflow"
