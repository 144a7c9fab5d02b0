"""The contract, for jax."""

from portaloader.testing import AdapterContract


class TestJax(AdapterContract):
    framework = "jax"
