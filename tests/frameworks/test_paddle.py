"""The contract, for paddle."""

from portaloader.testing import AdapterContract


class TestPaddle(AdapterContract):
    framework = "paddle"
