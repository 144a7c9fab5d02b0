"""The built wheel, in a clean environment, with a third party's adapter beside it."""

import json
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
THIRDPARTY = Path(__file__).parent / "thirdparty"


def run(*command, cwd, ok=True):
    done = subprocess.run([str(word) for word in command], cwd=cwd, capture_output=True, text=True, timeout=280)
    if ok:
        assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__"))
    run(sys.executable, "-m", "build", "--wheel", "--outdir", folder, source, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def clean(wheel, tmp_path_factory):
    """A new environment with the wheel, pytest, and the third party's package; a folder that is not the repository."""
    folder = tmp_path_factory.mktemp("clean")
    venv.create(folder / "env", with_pip=True)
    python = folder / "env" / "bin" / "python"
    pip = (python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "-c", ROOT / "constraints.txt")
    run(*pip, wheel, "pytest", "setuptools", "wheel", cwd=folder)
    run(*pip, "--no-deps", "--no-build-isolation", THIRDPARTY, cwd=folder)
    return folder


def test_wheel_holds_what_it_should(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert wheel.name == "portaloader-0.1.0-py3-none-any.whl"
    assert {"portaloader/adapters/torch.py", "portaloader/examples/demo_torch.py", "portaloader/py.typed"} <= set(names)
    images = [name for name in names if name.endswith(".jpg")]
    assert len(images) == 500
    assert sum(zipfile.ZipFile(wheel).getinfo(name).file_size for name in images) < 1_500_000
    assert not [name for name in names if not name.startswith(("portaloader/", "portaloader-0.1.0.dist-info/"))]


def test_streams_in_a_clean_environment(clean):
    code = (
        "import portaloader\n"
        "with portaloader.get_loader(framework='numpy') as loader:\n"
        "    print(portaloader.__file__, sum(len(batch['id']) for batch in loader))"
    )
    done = run(clean / "env/bin/python", "-c", code, cwd=clean)
    file, count = done.stdout.split()
    assert Path(file).is_relative_to(clean)
    assert count == "400"


def test_command_line_of_the_wheel(clean):
    done = run(clean / "env/bin/portaloader", "doctor", "--json", cwd=clean)
    found = {check["name"]: check["status"] for check in json.loads(done.stdout)["checks"]}
    assert found["dali"] == found["numpy"] == found["listframe"] == "ok"
    assert found["torch"] == found["tensorflow"] == "absent"


def test_third_party_adapter_keeps_the_contract(clean):
    done = run(clean / "env/bin/python", "-m", "pytest", "-q", "--noconftest", THIRDPARTY / "tests", cwd=clean)
    assert " passed" in done.stdout
    assert "failed" not in done.stdout
    assert "skipped" not in done.stdout


def test_parity_names_the_first_difference(clean):
    command = (clean / "env/bin/portaloader", "parity", "--frameworks", "numpy,listframe,listframe_faulty", "--batches", 4)
    options = ("--json", clean / "report.json", "--argument", "size=16", "--argument", 'layout="CHW"')
    done = run(*command, *options, cwd=clean, ok=False)
    assert done.returncode == 1
    report = json.loads((clean / "report.json").read_text())
    assert report["equal"] is False
    (difference,) = report["differences"]
    third = report["streams"][0]["batches"][2]
    wanted = {"framework": "listframe_faulty", "reference": "numpy", "batch": 2, "field": "image", "element": [2, 5, 7]}
    assert {key: difference[key] for key in wanted} == wanted
    assert difference["sample"] == third["ids"][1]
    assert "(1 of 768 elements differ)" in difference["detail"]
    assert f"in batch 2, field 'image', sample {third['ids'][1]}, element [2, 5, 7]" in done.stdout
