"""``portaloader doctor``, in faked environments: packages and adapters that are made up in a folder on the path."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
import typer
from typer.testing import CliRunner, Result

from portaloader import doctor, registry
from portaloader.cli import doctor as command
from portaloader.doctor import Check

CRASH = "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n"
HANG = "import threading\nthreading.Event().wait()\n"
FINE = "from portaloader.adapters.numpy import NumpyAdapter\nclass Fake(NumpyAdapter):\n    name = 'fake'\n"
WRONG_VALUES = FINE + "    def to_numpy(self, tensor):\n        return tensor + 1\n"
WRONG_TYPE = FINE + "    tensor_type = str\n"
LAUNCHERS = ("RANK", "WORLD_SIZE", "PADDLE_TRAINER_ID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")


@pytest.fixture(autouse=True)
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in which packages can be faked, and no launcher around."""
    for variable in LAUNCHERS:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    forget = registry.frameworks.cache_clear
    forget()
    yield tmp_path
    forget()


def distribution(site: Path, name: str, version: str = "1.0", entry: str = "") -> None:
    """Make a distribution that holds nothing but its name."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(f"[{registry.GROUP}]\n{entry}\n" if entry else "")


def adapter(site: Path, source: str) -> None:
    """Make a third-party adapter "fake" with this source."""
    (site / "fake_adapter.py").write_text(source)
    distribution(site, "fake-adapter", entry="fake = fake_adapter:Fake")


def known(monkeypatch: pytest.MonkeyPatch, *frameworks: registry.Framework) -> None:
    """Let these be all frameworks that there are, and NumPy."""
    found = MappingProxyType({f.name: f for f in (registry.BUILT_IN["numpy"], *frameworks)})
    monkeypatch.setattr(registry, "frameworks", lambda: found)


def by_name(checks: list[Check]) -> dict[str, Check]:
    found = {check.name: check for check in checks}
    assert len(found) == len(checks), "two checks have one name"
    return found


def run(*arguments: str) -> Result:
    app = typer.Typer()
    app.command()(command.doctor)
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})


def test_numpy_and_dali_work_here() -> None:
    found = by_name(doctor.examine(["np"]))
    for name in ("python", "platform", "dali", "numpy", "launcher"):
        assert found[name].status == "ok", found[name]
    assert found["numpy"].version
    assert not set(found) & {"torch", "tf-plugin", "import-order-paddle", "import-order-mxnet"}


def test_imports_no_framework_and_no_dali() -> None:
    code = "import sys, portaloader.doctor; print([m for m in ('nvidia.dali', 'torch', 'jax') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("source", "status", "detail"),
    [(FINE, "ok", "as NumPy's"), (WRONG_VALUES, "broken", "and NumPy's is"), (CRASH, "broken", "SIGSEGV")],
    ids=["works", "other values", "crash"],
)
def test_third_party_adapter(site: Path, source: str, status: str, detail: str) -> None:
    adapter(site, source)
    found = by_name(doctor.examine(["fake"]))
    assert (found["fake"].status, found["fake"].version) == (status, "1.0")
    assert detail in found["fake"].detail
    assert found["fake"].remedy == (None if status == "ok" else "pip install --force-reinstall fake-adapter==1.0")
    assert found["numpy"].status == "ok"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import no_such_module\n", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("raise RuntimeError('two\\nlines')\n", "RuntimeError: two lines"),
        ("print('bye')\nraise SystemExit(3)\n", "ended with exit status 3; its last words: bye"),
        ("other = 1\n", "AttributeError: module 'fake_adapter' has no attribute 'Fake'"),
        (CRASH, "killed by SIGSEGV (Segmentation fault)"),
        (FINE + "import atexit, os\natexit.register(os.abort)\n", "killed by SIGABRT (Aborted)"),
        (WRONG_TYPE, "TypeError: 'id' is <class 'numpy.ndarray'>, and not <class 'str'>"),
    ],
    ids=["import", "exception", "exit", "attribute", "crash", "crash at exit", "type"],
)
def test_trial_that_fails(site: Path, source: str, expected: str) -> None:
    adapter(site, source)
    assert doctor.attempt("fake", 60)["error"] == expected


def test_trial_that_hangs_is_stopped(site: Path) -> None:
    adapter(site, HANG)
    assert doctor.attempt("fake", 1)["error"] == "stopped, because it did not end within 1 seconds"


@pytest.mark.parametrize(
    ("name", "version", "numpy", "status", "remedy"),
    [
        ("torch", None, "2.4.0", "absent", 'pip install "torch>=2.4"'),
        ("torch", "2.3.1", "2.4.0", "broken", 'pip install "torch>=2.4" -U'),
        ("mxnet", "1.0.0", "2.4.0", "broken", "pip install --no-deps mxnet==1.9.1"),
        ("mxnet", "1.0.0", "1.26.4", "broken", "pip install mxnet==1.9.1"),
    ],
)
def test_unusable(
    site: Path, monkeypatch: pytest.MonkeyPatch, name: str, version: str | None, numpy: str, status: str, remedy: str
) -> None:
    if version is not None:
        distribution(site, "stand-in", version)
    module = "no_such_module" if version is None else "json"
    known(monkeypatch, replace(registry.BUILT_IN[name], module=module, distributions=("stand-in",)))
    monkeypatch.setattr(np, "__version__", numpy)
    monkeypatch.setattr(doctor, "attempt", works)
    check = by_name(doctor.examine([name]))[name]
    assert (check.status, check.version, check.remedy) == (status, version, remedy)


def test_adapter_whose_name_is_taken(site: Path) -> None:
    distribution(site, "rival", entry="numpy = rival:Adapter")
    check = by_name(doctor.examine(["numpy"]))["adapter rival:Adapter"]
    assert check.status == "warning"
    assert "portaloader.adapters.numpy:NumpyAdapter" in check.detail


def works(subject: str, limit: float, gpus: int = 0, device: str = "cpu") -> doctor.Facts:
    """Take the place of a trial, in which everything works."""
    digests = {"cpu": "abc"} | ({"gpu:0": "def"} if gpus else {})
    facts = {"digests": digests, "device": "cpu" if subject == "numpy" else device, "narrowed": subject == "jax"}
    return {"error": None, "gpus": gpus, **facts}


def works_on_gpu(subject: str, limit: float) -> doctor.Facts:
    return works(subject, limit, 2, "gpu:0")


def dali_is(monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
    """Let these be the distributions that are installed: DALI's, and its plugin's."""
    found = {name.replace("_", "-"): version for name, version in versions.items()}
    monkeypatch.setattr(doctor, "_installed", lambda pattern: {n: v for n, v in found.items() if re.fullmatch(pattern, n)})
    monkeypatch.setattr(registry.Framework, "version", lambda self: found.get(self.distributions[0], "99"))


@pytest.mark.parametrize(
    ("versions", "detail", "remedy"),
    [
        ({}, "not installed, and portaloader needs it", "pip install nvidia-dali-cuda120"),
        ({"nvidia_dali_cuda120": "1.53.0"}, "2.0 or newer is needed", "pip install nvidia-dali-cuda120 -U"),
        (
            {"nvidia_dali_cuda120": "2.4.0", "nvidia_dali_cuda130": "2.4.0"},
            "nvidia-dali-cuda120 and nvidia-dali-cuda130 share the folder nvidia/dali",
            "pip uninstall -y nvidia-dali-cuda120 nvidia-dali-cuda130 && pip install nvidia-dali-cuda120",
        ),
    ],
    ids=["absent", "old", "two"],
)
def test_dali_broken(monkeypatch: pytest.MonkeyPatch, versions: dict[str, str], detail: str, remedy: str) -> None:
    dali_is(monkeypatch, **versions)
    monkeypatch.setattr(doctor, "attempt", lambda subject, limit: pytest.fail(f"{subject} was tried"))
    found = by_name(doctor.examine(["numpy"]))
    assert (found["dali"].status, found["dali"].detail, found["dali"].remedy) == ("broken", detail, remedy)
    assert (found["numpy"].status, found["gpu"].status) == ("warning", "warning")


def test_dali_that_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "attempt", lambda subject, limit: {"error": "killed by SIGILL (Illegal instruction)"})
    found = by_name(doctor.examine(["numpy"]))
    assert (found["dali"].status, found["dali"].detail) == ("broken", "killed by SIGILL (Illegal instruction)")
    assert (found["dali"].remedy or "").startswith("pip install --force-reinstall nvidia-dali-cuda1")
    assert found["numpy"].status == "warning"


def test_gpu_that_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "attempt", works)
    monkeypatch.setattr(shutil, "which", lambda tool: "/usr/bin/" + tool)
    assert by_name(doctor.examine(["numpy"]))["gpu"].status == "warning"


@pytest.mark.parametrize(
    ("plugin", "status"), [(None, "absent"), ("2.4.0", "ok"), ("2.3.0", "broken")], ids=["absent", "fits", "does not"]
)
def test_tensorflow_plugin(monkeypatch: pytest.MonkeyPatch, plugin: str | None, status: str) -> None:
    dali_is(monkeypatch, nvidia_dali_cuda120="2.4.0", **({"nvidia_dali_tf_plugin_cuda120": plugin} if plugin else {}))
    known(monkeypatch, replace(registry.BUILT_IN["tensorflow"], module="json"))
    monkeypatch.setattr(doctor, "attempt", works)
    check = by_name(doctor.examine(["tf"]))["tf-plugin"]
    line = "pip install --no-build-isolation nvidia-dali-tf-plugin-cuda120==2.4.0"
    assert (check.status, check.version) == (status, plugin)
    assert check.remedy == (None if status == "ok" else line)


def hazards(monkeypatch: pytest.MonkeyPatch, *names: str) -> set[str]:
    """What is warned of where all frameworks are installed."""
    known(monkeypatch, *(replace(f, module="json", distributions=()) for f in registry.BUILT_IN.values() if f.name != "numpy"))
    return {check.name for check in doctor.examine(names) if check.name.startswith(("import", "gpu-memory", "integers"))}


def test_hazards_without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "attempt", works)
    assert hazards(monkeypatch) == {"import-order-paddle", "import-order-mxnet", "integers-jax"}
    assert hazards(monkeypatch, "paddle") == {"import-order-paddle"}
    assert hazards(monkeypatch, "torch") == set()


def test_hazards_with_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "attempt", works_on_gpu)
    monkeypatch.delenv("TF_FORCE_GPU_ALLOW_GROWTH", raising=False)
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    assert hazards(monkeypatch, "jax", "tf") == {"import-order-paddle", "integers-jax", "gpu-memory-tensorflow"}
    found = by_name(doctor.examine(["jax"]))
    assert found["gpu"].detail == "DALI sees 2 GPUs"
    assert found["jax"].detail == "batch def on gpu:0, as NumPy's"


def test_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "5")
    assert doctor.attempt("numpy", 60)["error"] is None, "the trial heeds the launcher"
    monkeypatch.setattr(doctor, "attempt", works)
    check = by_name(doctor.examine(["numpy"]))["launcher"]
    assert check.status == "broken"
    assert "WORLD_SIZE" in check.detail
    monkeypatch.setenv("WORLD_SIZE", "8")
    check = by_name(doctor.examine(["numpy"]))["launcher"]
    assert (check.status, check.detail.partition(",")[0]) == ("ok", "torchrun: rank 5 of 8")


def test_json_and_exit_status(site: Path) -> None:
    adapter(site, CRASH)
    result = run("--json", "--framework", "numpy", "--framework", "fake")
    document = json.loads(result.stdout)
    assert result.exit_code == 1
    assert list(document) == ["portaloader", "works", "checks"]
    assert document["works"] is False
    for check in document["checks"]:
        assert list(check) == ["name", "status", "version", "detail", "remedy"]
        assert check["status"] in {"ok", "absent", "broken", "warning"}
    assert {check["name"]: check["status"] for check in document["checks"]}["fake"] == "broken"


@pytest.mark.parametrize(
    ("checks", "status", "last"),
    [
        ([Check("torch", "ok", "2.13.0", "")], 0, "Next: `portaloader demo` streams"),
        ([Check("torch", "absent", None, "", "pip install portaloader[torch]")], 0, "Next: add a framework"),
        ([Check("launcher", "broken", None, "")], 1, "Next: mend what is broken, then"),
        ([Check("launcher", "broken", None, ""), Check("jax", "broken", "0.4", "")], 1, "portaloader.doctor jax`"),
    ],
    ids=["ok", "none", "broken", "broken framework"],
)
def test_last_line(monkeypatch: pytest.MonkeyPatch, checks: list[Check], status: int, last: str) -> None:
    monkeypatch.setattr(command, "examine", lambda names: checks)
    result = run()
    assert result.exit_code == status
    assert last in result.stdout.splitlines()[-1]


def test_remedies_are_lines_to_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "pip install --force-reinstall portaloader[torch] " + "x" * 300
    check = Check("torch", "broken", "2.13.0", "an error [with brackets]", line)
    monkeypatch.setattr(command, "examine", lambda names: [check])
    output = run().stdout
    assert f"  {line}\n" in output
    assert "an error [with brackets]" in output


def test_unknown_framework() -> None:
    result = run("--framework", "caffe")
    assert result.exit_code == 2
    assert "caffe" in result.output
