"""The contract, for mxnet."""

from portaloader.testing import AdapterContract


class TestMxnet(AdapterContract):
    framework = "mxnet"
