"""The contract, for paddle."""

from launchers import check_ranks

from portaloader.testing import AdapterContract


class TestPaddle(AdapterContract):
    framework = "paddle"


def test_ranks_of_the_launcher(tmp_path):
    check_ranks("paddle", ["paddle.distributed.launch", "--nproc_per_node=3", "--log_dir", str(tmp_path / "log")], tmp_path)
