"""The contract, for paddle."""

import subprocess
import sys

import paddle
from launchers import check_ranks

from portaloader.testing import AdapterContract


class TestPaddle(AdapterContract):
    framework = "paddle"

    def native_epoch(self, native):
        assert isinstance(native, paddle.io.DataLoader)
        return iter(native)


def test_ranks_of_the_launcher(tmp_path):
    check_ranks("paddle", ["paddle.distributed.launch", "--nproc_per_node=3", "--log_dir", str(tmp_path / "log")], tmp_path)


def test_behind_tensorflow_it_is_refused():
    # Both in one process, in this order, is a segmentation fault.
    code = (
        "import sys, types, portaloader\n"
        "sys.modules['tensorflow'] = types.ModuleType('tensorflow')\n"
        "try: portaloader.get_loader(framework='paddle')\n"
        "except portaloader.errors.FrameworkBrokenError as error:\n"
        "    print('import paddle first' in str(error), 'paddle' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "True False\n"
