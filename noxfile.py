"""Each suite in an environment of its own: `nox -l` lists them, `nox -s core torch` runs some.

`make test` runs the same suites in shared environments, which takes a fraction of the time.
"""

from pathlib import Path

import nox

nox.options.sessions = ["lint", "core", "torch", "tensorflow", "mxnet", "paddle", "jax", "keras", "lightning"]
nox.options.error_on_missing_interpreters = True
CONSTRAINTS = ("-c", "constraints.txt")
TEST = ("hypothesis", "pytest", "pytest-timeout")


@nox.session
def lint(session):
    session.install(*CONSTRAINTS, "-e", ".[dev]", "torch")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")


@nox.session
def core(session):
    """Without any framework but NumPy."""
    session.install(*CONSTRAINTS, "-e", ".", *TEST, "pillow")
    session.run("pytest", "tests/core", "tests/frameworks/test_numpy.py", *session.posargs)


def install_operator(session, constraints):
    """DALI's operator for tf.data, which is compiled against the TensorFlow that is there."""
    session.install("setuptools", "wheel")
    session.install("-c", constraints, "--no-build-isolation", "--no-cache-dir", "nvidia-dali-tf-plugin-cuda120")


def tests(name):
    """The framework's contract, and where there are any its drop-in iterators."""
    return sorted(map(str, Path("tests/frameworks").glob(f"test_{name}*.py")))


def framework(name, *packages):
    @nox.session(name=name)
    def suite(session):
        session.install(*CONSTRAINTS, "-e", ".", *TEST, *packages)
        if name == "tensorflow":
            install_operator(session, "constraints.txt")
        session.run("pytest", *tests(name), *session.posargs)

    suite.func.__doc__ = f"The contract, with {name} as the only framework."


framework("torch", "torch")
framework("tensorflow", "tensorflow-cpu")
framework("paddle", "paddlepaddle", "setuptools")
framework("jax", "jax")


@nox.session
@nox.parametrize("backend", ["tensorflow", "jax", "torch"])
def keras(session, backend):
    """Keras 3's own loops, on one of its backends."""
    packages = {"tensorflow": "tensorflow-cpu"}
    session.install(*CONSTRAINTS, "-e", ".", *TEST, "keras", packages.get(backend, backend))
    if backend == "tensorflow":
        install_operator(session, "constraints.txt")
    session.run("pytest", "tests/loops/test_keras.py", *session.posargs, env={"KERAS_BACKEND": backend})


@nox.session
def lightning(session):
    """PyTorch Lightning's Trainer."""
    session.install(*CONSTRAINTS, "-e", ".", *TEST, "torch", "lightning")
    session.run("pytest", "tests/loops/test_lightning.py", *session.posargs)


@nox.session
def mxnet(session):
    """The contract, with MXNet as its metadata want it: beside NumPy 1.26."""
    session.install("-e", ".[mxnet]", *TEST)
    session.run("pytest", *tests("mxnet"), *session.posargs)


@nox.session(python="3.10")
@nox.parametrize("name", ["numpy", "tensorflow", "mxnet", "paddle", "jax", "torch"])
def oldest(session, name):
    """The contract, with the oldest versions that the requirements and extras allow."""
    packages = {
        "numpy": [],
        "tensorflow": ["tensorflow-cpu"],
        "paddle": ["paddlepaddle", "setuptools"],
        "mxnet": ["mxnet", "setuptools"],
    }
    session.install("-c", "constraints-oldest.txt", "-e", ".", *TEST, *packages.get(name, [name]))
    if name == "tensorflow":
        install_operator(session, "constraints-oldest.txt")
    session.run("pytest", *tests(name), *session.posargs)
