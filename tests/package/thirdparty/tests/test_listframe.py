"""All that the package has to write to prove its adapter."""

from portaloader.testing import AdapterContract


class TestListframe(AdapterContract):
    framework = "listframe"
