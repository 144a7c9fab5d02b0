"""The drop-in iterators' import: nothing before it is asked for, and nothing twice."""

import subprocess
import sys


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout


def test_install_imports_nothing_and_only_once():
    code = (
        "import sys, portaloader.compat\n"
        "before = len(sys.meta_path)\n"
        "portaloader.compat.install()\n"
        "portaloader.compat.install()\n"
        "print(len(sys.meta_path) - before, {'nvidia', 'numpy', 'mxnet', 'paddle'} & set(sys.modules))"
    )
    assert run(code) == "1 set()\n"


def test_other_plugins_are_as_they_were():
    code = (
        "import portaloader.compat\n"
        "portaloader.compat.install()\n"
        "from importlib.util import find_spec\n"
        "import nvidia.dali.plugin.base_iterator as plugin\n"
        "print(plugin.__spec__.origin == plugin.__file__, find_spec('nvidia.dali.plugin.nothing'))"
    )
    assert run(code) == "True None\n"


def test_a_framework_that_is_absent_is_named():
    code = (
        "import sys, portaloader.compat\n"
        "portaloader.compat.install()\n"
        "for name in ('mxnet', 'paddle'):\n"
        "    sys.modules[name] = None\n"
        "    try: __import__(f'nvidia.dali.plugin.{name}')\n"
        "    except ImportError as error: print(error.name)"
    )
    assert run(code) == "mxnet\npaddle\n"
