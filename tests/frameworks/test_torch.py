"""The contract, for torch."""

from launchers import check_ranks

from portaloader.testing import AdapterContract


class TestTorch(AdapterContract):
    framework = "torch"


def test_ranks_of_the_launcher(tmp_path):
    check_ranks("torch", ["torch.distributed.run", "--standalone", "--nproc-per-node=3"], tmp_path)
