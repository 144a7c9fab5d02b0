"""Who imports whom: the core no framework, an adapter its own and no other, importing portaloader next to nothing."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import portaloader
from portaloader import registry

PACKAGE = Path(portaloader.__file__).parent
ADAPTERS = Path(__import__("portaloader.adapters").adapters.__file__).parent
PLUGINS = PACKAGE / "compat" / "plugin"
FRAMEWORKS = {framework.module for framework in registry.BUILT_IN.values()} - {"numpy"}

# Layer to the layers that it may import; what is not listed may import anything of the core.
LAYERS = {
    "errors": set(),
    "keyed": set(),
    "contract": {"errors"},
    "dali": {"errors"},
    "samples": set(),
    "plan": {"contract", "errors", "keyed", "plan"},
    "sources": {"errors", "samples", "sources"},
    "pipelines": {"errors", "sources"},
    "random": {"errors", "pipelines"},
    "recipes": {"errors", "pipelines", "random", "recipes", "sources"},
    "outputs": set(),
    "graph": {"contract", "dali", "errors", "keyed", "outputs", "pipelines", "plan", "sources"},
    "engine": {"errors", "graph", "pipelines", "plan", "sources"},
    "stream": {"contract", "engine", "errors", "graph", "plan", "sources"},
    "dali_pipeline": {"contract", "dali", "errors"},
    "dali_stream": {"contract", "dali", "errors", "outputs", "stream"},
    "loader": {"contract", "errors", "native", "plan", "sources", "stream"},
    "native": {"contract", "dali_stream", "errors", "graph", "loader", "stream"},
    "launch": {"contract", "errors"},
    "registry": {"contract", "errors"},
    "adapters": {"adapters", "contract", "errors"},
}


def imports(file):
    """Modules that a file names in import statements, at any depth."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if file.parent == ADAPTERS and node.level == 1:  # installed under another name: mypy finds its neighbours so
                yield f"portaloader.adapters.{node.module}"
                continue
            assert node.level == 0, f"{file}: imports are absolute"
            yield from (
                (f"{node.module}.{alias.name}" for alias in node.names) if node.module == "portaloader" else [node.module]
            )


def core_files():
    apart = {ADAPTERS, PLUGINS}
    return [file for file in PACKAGE.rglob("*.py") if not apart & set(file.parents) and "examples" not in file.parts]


@pytest.mark.parametrize("file", core_files(), ids=lambda file: str(file.relative_to(PACKAGE)))
def test_core_imports_no_framework(file):
    tree = ast.parse(file.read_text())
    for node in ast.walk(tree):  # the annotations of the front door name the frameworks' types
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            node.body = [ast.Pass()]
    named = {name.partition(".")[0] for node in ast.walk(tree) for name in _names(node)}
    assert not named & FRAMEWORKS


def _names(node):
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) else []


@pytest.mark.parametrize("file", sorted(ADAPTERS.glob("[a-z]*.py")), ids=lambda file: file.stem)
def test_adapter_imports_its_own_framework_only(file):
    named = {name.partition(".")[0] for name in imports(file)}
    assert named & FRAMEWORKS == {registry.BUILT_IN[file.stem.partition("_")[0]].module} - {"numpy"}


@pytest.mark.parametrize("file", sorted(PLUGINS.glob("*.py")), ids=lambda file: file.stem)
def test_drop_in_imports_its_own_framework_only(file):
    own = registry.BUILT_IN.get(file.stem)
    named = {name.partition(".")[0] for name in imports(file)}
    assert named & FRAMEWORKS == ({own.module} if own else set())


def layer_files():
    for layer, allowed in LAYERS.items():
        if layer == "adapters":
            files = list(ADAPTERS.glob("*.py"))
        elif (PACKAGE / f"{layer}.py").exists():
            files = [PACKAGE / f"{layer}.py"]
        else:
            files = list((PACKAGE / layer).rglob("*.py"))
        assert files, layer
        for file in files:
            yield pytest.param(file, allowed, id=f"{layer}-{file.stem}")


@pytest.mark.parametrize(("file", "allowed"), list(layer_files()))
def test_layers_import_one_way(file, allowed):
    named = {name.split(".")[1] for name in imports(file) if name.startswith("portaloader.")}
    assert named <= allowed


def test_every_core_module_has_a_place():
    found = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    free = {"__init__", "__main__", "api", "cli", "compat", "doctor", "parity", "testing"}
    assert found - {"adapters", "examples"} == (set(LAYERS) - {"adapters"}) | free


def test_importing_portaloader_imports_no_dali_no_framework():
    heavy = sorted(FRAMEWORKS | {"numpy", "nvidia", "rich", "typer"})
    code = f"import sys, portaloader\nprint(sorted(name for name in sys.modules if name.partition('.')[0] in {heavy}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_public_names_are_there():
    for name in portaloader.__all__:
        assert getattr(portaloader, name) is not None
    assert dir(portaloader) == sorted(portaloader.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        portaloader.nothing  # noqa: B018


def test_decorator_is_not_shadowed_by_a_module():
    import portaloader.pipelines

    assert callable(portaloader.pipeline)
