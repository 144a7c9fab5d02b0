"""What is installed here, what of it works, and which line mends the rest. Imports no framework and no DALI.

What may crash, hang or quarrel is tried in a process of its own. ``python -m portaloader.doctor NAME`` is such a trial by
hand, with the whole error: of a framework, of ``dali``, or of ``tf-plugin``.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from portaloader import dali, launch, registry
from portaloader.errors import PortaloaderError
from portaloader.registry import Framework

_AT_ONCE = 2  # a framework takes a processor and up to some gigabytes while it starts
_PLUGIN = r"nvidia-dali-tf-plugin-cuda\d+"
_MARK = "portaloader-doctor "
_NOT_TRIED = "not tried, because what it needs does not run"

Facts = Mapping[str, Any]  # what came of a trial: "error", in one line, or None; and else what was found out
_UNTRIED: Facts = {"error": _NOT_TRIED}


@dataclass(frozen=True)
class Check:
    """What was found about one thing."""

    name: str
    status: Literal["ok", "absent", "broken", "warning"]
    """ "absent": optional, and not installed. "warning": it works, but mind the detail."""
    version: str | None
    detail: str
    remedy: str | None = None
    """The line that mends it."""


def examine(names: Iterable[str] = (), *, limit: float = 120.0) -> list[Check]:
    """All checks, in the order in which they are best read.

    Args:
        names: of the frameworks to look at, or their aliases; none: every one that there is an adapter for.
        limit: seconds that one trial may take.

    Raises:
        UnknownFrameworkError: no such framework.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about adapters that are passed over, which is a check of its own
        known = registry.frameworks()
    chosen = {registry.resolve(name).name for name in names} or set(known)
    examined = [f for f in known.values() if f.name in chosen | {"numpy"}]  # the others are compared with NumPy
    untried = {f.name: _unusable(f) for f in examined}  # once: an installation may be going on beside this
    subjects = [name for name, check in untried.items() if check is None]
    if "tensorflow" in subjects and _installed(_PLUGIN):
        subjects.append("tf-plugin")
    dali_check, dali_facts = _dali(limit)
    trials = dict.fromkeys(subjects, _UNTRIED)
    if dali_check.status == "ok":
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            trials = dict(zip(subjects, pool.map(lambda subject: attempt(subject, limit), subjects), strict=True))
    linux = sys.platform == "linux"
    return [
        Check("python", "ok", platform.python_version(), platform.python_implementation()),
        Check("platform", "ok" if linux else "broken", None, platform.platform() + ("" if linux else "; DALI needs Linux")),
        dali_check,
        _gpu(dali_facts),
        *(untried[f.name] or _framework(f, trials) for f in examined),
        *([_tf_plugin(trials.get("tf-plugin", _UNTRIED))] if "tensorflow" in subjects else []),
        *_hazards(chosen, {f.name for f in known.values() if not _is_absent(f)}, trials),
        _launcher(),
        *_passed_over(known),
    ]


def _dali(limit: float) -> tuple[Check, Facts]:
    found = _installed(r"nvidia-dali(-nightly|-weekly)?-cuda\d+")
    if not found:
        return Check("dali", "broken", None, "not installed, and portaloader needs it", dali.INSTALL), _UNTRIED
    if len(found) > 1:
        mend = f"pip uninstall -y {' '.join(found)} && {dali.INSTALL}"
        return Check("dali", "broken", None, f"{' and '.join(found)} share the folder nvidia/dali", mend), _UNTRIED
    ((name, version),) = found.items()
    package = Framework("dali", "", "nvidia.dali", f"pip install {name}", (name,), dali.MINIMUM)
    if unusable := _unusable(package):
        return unusable, _UNTRIED
    facts = attempt("dali", limit)
    ran = Check("dali", "ok", version, "a pipeline ran on the CPU")
    return _failure("dali", version, facts, _again(package)) or ran, facts


def _gpu(facts: Facts) -> Check:
    if facts["error"]:
        return Check("gpu", "warning", None, _NOT_TRIED)
    if count := facts["gpus"]:
        return Check("gpu", "ok", None, f"DALI sees {count} GPU{'s' if count > 1 else ''}")
    if Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi"):
        detail = "there is an NVIDIA driver, and DALI sees no GPU (a container without --gpus all?)"
        return Check("gpu", "warning", None, detail, "nvidia-smi; env | grep CUDA_VISIBLE_DEVICES")
    return Check("gpu", "ok", None, "no NVIDIA driver: CPU pipelines only")


def _unusable(framework: Framework) -> Check | None:
    """Why a framework need not be tried: it is absent, or of a version that cannot work. None: try it."""
    name, version = framework.name, framework.version()
    if _is_absent(framework):
        return Check(name, "absent", None, "not installed", framework.install)
    needed = ".".join(map(str, framework.minimum))
    if name == "mxnet" and version not in (None, needed):
        # By its metadata it wants NumPy 1. It works without, and pip would take NumPy 2 from the other frameworks.
        alone = "--no-deps " if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else ""
        detail = f"{needed}, its last release, is needed; unasked, pip takes 1.0.0 beside NumPy 2"
        return Check(name, "broken", version, detail, f"pip install {alone}mxnet=={needed}")
    if framework.is_too_old():
        return Check(name, "broken", version, f"{needed} or newer is needed", f"{framework.install} -U")
    return None


def _framework(framework: Framework, trials: Mapping[str, Facts]) -> Check:
    """What the trial of a framework showed: is its batch NumPy's, and on which device?"""
    name, facts, reference = framework.name, trials[framework.name], trials["numpy"].get("digests", {})
    version = framework.version()
    if failure := _failure(name, version, facts, _again(framework)):
        return failure
    device = facts["device"]
    digest = facts["digests"][device]
    wanted = reference.get(device)
    if name == "numpy":
        return Check(name, "ok", version, f"batch {digest} on {device}")
    if digest != (wanted or digest):
        return Check(name, "broken", version, f"batch {digest} on {device}, and NumPy's is {wanted}", _again(framework))
    seen = "; sees no GPU" if device == "cpu" else ""
    return Check(name, "ok", version, f"batch {digest} on {device}, {'as' if wanted else 'not compared with'} NumPy's{seen}")


def _tf_plugin(facts: Facts) -> Check:
    """DALI's own plugin for TensorFlow, which is compiled against both."""
    name, wanted = next(iter(_installed(r"nvidia-dali-cuda\d+").items()), ("nvidia-dali-cuda120", None))
    line = f"pip install --no-build-isolation {name.replace('dali', 'dali-tf-plugin')}{f'=={wanted}' if wanted else ''}"
    version = next(iter(_installed(_PLUGIN).values()), None)
    if version is None:
        return Check("tf-plugin", "absent", None, f"not needed for portaloader; install with {line}", line)
    if version != wanted:
        return Check("tf-plugin", "broken", version, f"it does not match DALI {wanted}", line)
    loaded = Check("tf-plugin", "ok", version, "matches DALI, and TensorFlow loads it")
    return _failure("tf-plugin", version, facts, f"{line} --force-reinstall --no-deps --no-cache-dir") or loaded


def _hazards(chosen: set[str], installed: set[str], trials: Mapping[str, Facts]) -> Iterator[Check]:
    """What goes wrong only where certain things meet in one process."""
    pair = {"tensorflow", "paddle"}
    if pair <= installed and pair & chosen:
        detail = "importing TensorFlow and then Paddle in one process is a segmentation fault; Paddle first is fine"
        yield Check(
            "import-order-paddle", "warning", None, detail, "import paddle  # in your script, above: import tensorflow"
        )
    if "mxnet" in installed & chosen and np.lib.NumpyVersion(np.__version__) >= "1.24.0":
        detail = f"MXNet alone cannot be imported beside NumPy {np.__version__}; portaloader sees to it"
        yield Check("import-order-mxnet", "warning", None, detail, "import portaloader  # in your script, above: import mxnet")
    memory = "it takes most of the GPU's memory when it starts, and leaves little for DALI"
    for name, variable, value in (
        ("jax", "XLA_PYTHON_CLIENT_PREALLOCATE", "false"),
        ("tensorflow", "TF_FORCE_GPU_ALLOW_GROWTH", "true"),
    ):
        on_gpu = trials.get(name, {}).get("device", "cpu") != "cpu"
        if on_gpu and os.environ.get(variable, "").lower() != value:
            yield Check(f"gpu-memory-{name}", "warning", None, memory, f"export {variable}={value}")
    if trials.get("jax", {}).get("narrowed"):
        yield Check("integers-jax", "warning", None, "64-bit integers arrive in JAX as 32-bit ones", "export JAX_ENABLE_X64=1")


def _launcher() -> Check:
    try:
        here = launch.from_environment()
    except PortaloaderError as error:
        return Check("launcher", "broken", None, str(error), "env | grep -E 'RANK|SIZE|PADDLE|PMI|SLURM'")
    if here.launcher == "none":
        return Check("launcher", "ok", None, "none: this process is the only one")
    local = f"{here.local.index} of {here.local.count} on this machine"
    return Check("launcher", "ok", None, f"{here.launcher}: rank {here.shard.index} of {here.shard.count}, {local}")


def _passed_over(known: Mapping[str, Framework]) -> Iterator[Check]:
    """Registered adapters whose name is another one's."""
    for entry in importlib.metadata.entry_points(group=registry.GROUP):
        owner = known.get(entry.name)
        if owner is not None and owner.adapter != entry.value:
            detail = f"passed over: the name {entry.name!r} is that of {owner.adapter}"
            yield Check(f"adapter {entry.value}", "warning", None, detail)


def _failure(name: str, version: str | None, facts: Facts, remedy: str | None) -> Check | None:
    if facts["error"] == _NOT_TRIED:
        return Check(name, "warning", version, _NOT_TRIED)
    return Check(name, "broken", version, facts["error"], remedy) if facts["error"] else None


def _again(framework: Framework) -> str:
    """The line that installs the version that is here once more, with all that it needs."""
    for name in framework.distributions:
        if version := replace(framework, distributions=(name,)).version():
            return f"pip install --force-reinstall {name}=={version}"
    return framework.install


def _is_absent(framework: Framework) -> bool:
    # Not asked of other people's adapters: to look for a module inside a package imports the package.
    return framework.name in registry.BUILT_IN and not framework.is_installed()


def _installed(pattern: str) -> dict[str, str]:
    """Distributions whose whole name matches, with their versions."""
    named = ((re.sub(r"[-_.]+", "-", d.name or "").lower(), d.version) for d in importlib.metadata.distributions())
    return {name: version for name, version in sorted(named) if re.fullmatch(pattern, name)}


def attempt(subject: str, limit: float) -> Facts:
    """Try a framework, "dali" or "tf-plugin" in a process of its own, which finds on its path what this one finds."""
    code = f"import sys; sys.path[:] = {sys.path!r}; from portaloader import doctor; doctor.report({subject!r})"
    # Two at once may share a GPU with each other and with whatever runs there: none takes all of its memory.
    modest = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said:
        command = [sys.executable, "-c", code]
        try:
            done = subprocess.run(command, stdout=said, stderr=said, timeout=limit, check=False, env=modest)  # noqa: S603
        except subprocess.TimeoutExpired:
            return {"error": f"stopped, because it did not end within {limit:g} seconds"}
        said.seek(0)
        lines = [line for line in said.read().splitlines() if line.strip()]
    if done.returncode < 0:
        return {"error": f"killed by {signal.Signals(-done.returncode).name} ({signal.strsignal(-done.returncode)})"}
    answers = [line.removeprefix(_MARK) for line in lines if line.startswith(_MARK)]
    if done.returncode or not answers:
        return {"error": f"ended with exit status {done.returncode}; its last words: {lines[-1] if lines else 'none'}"}
    return dict(json.loads(answers[-1]))


def report(subject: str) -> None:
    """Try it in this process, and print what came of it, for :func:`attempt` and for people."""
    try:
        facts = {"error": None, **_TRIALS.get(subject, _try_framework)(subject)}
    except Exception as error:
        traceback.print_exc()
        root: BaseException = error
        while root.__cause__ is not None:
            root = root.__cause__
        facts = {"error": f"{type(root).__name__}: {' '.join(str(root).split())[:300]}"}
    print(f"\n{_MARK}{json.dumps(facts)}", flush=True)


def _try_dali(_: str) -> Facts:
    pipeline = dali.import_dali().Pipeline(batch_size=1, num_threads=1, device_id=None)
    with pipeline:
        pipeline.set_outputs(importlib.import_module("nvidia.dali.fn").constant(idata=[1, 2, 3]))
    (output,) = pipeline.run()
    if np.asarray(output.at(0)).tolist() != [1, 2, 3]:
        raise ValueError(f"a pipeline that gives [1, 2, 3] gave {output}")
    return {"gpus": dali.gpu_count()}


def _try_framework(name: str) -> Facts:
    """A batch of the bundled samples, on the device that the framework prefers; NumPy's on both, to compare with."""
    from portaloader.api import get_loader
    from portaloader.parity.digest import batch_digest, field_digest

    digests = {}
    for device in ("auto", 0) if name == "numpy" and dali.gpu_count() else ("auto",):
        with get_loader(framework=name, batch_size=4, shard=(0, 1), device=device) as loader:
            batch, adapter = next(iter(loader)), loader.adapter
            for output, tensor in batch.items():
                if not isinstance(tensor, adapter.tensor_type):
                    raise TypeError(f"{output!r} is {type(tensor)}, and not {adapter.tensor_type}")
            fields = {output: field_digest(values) for output, values in loader.to_numpy(batch).items()}
            digests[str(adapter.device)] = batch_digest(fields)
    return {"digests": digests, "device": next(iter(digests)), "narrowed": bool(adapter.narrowed)}


_TRIALS: dict[str, Callable[[str], Facts]] = {
    "dali": _try_dali,
    "tf-plugin": lambda _: {"plugin": importlib.import_module("nvidia.dali.plugin.tf").__name__},
}

if __name__ == "__main__":
    report(sys.argv[1])
