"""The contract, for torch."""

import subprocess
import sys

import pytest
import torch
from launchers import check_ranks

import portaloader
from portaloader.testing import AdapterContract
from portaloader.testing.base import numbered


class TestTorch(AdapterContract):
    framework = "torch"

    def native_epoch(self, native):
        assert isinstance(native, torch.utils.data.IterableDataset)
        return iter(torch.utils.data.DataLoader(native, batch_size=None))


def test_worker_processes_are_refused():
    # In a process of its own: a worker is a fork, which does not always survive the threads of the tests before.
    code = (
        "import portaloader, torch\n"
        "loader = portaloader.get_loader(framework='torch', device='cpu')\n"
        "workers = torch.utils.data.DataLoader(loader.native(), batch_size=None, num_workers=1)\n"
        "print(len(workers))\n"
        "try: next(iter(workers))\n"
        "except portaloader.errors.ArgumentError as error: print('num_workers=0' in str(error))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "13\nTrue\n"


def test_a_closed_loader_leaves_other_workers_alone():
    # Garbage with DALI's threads in it, collected in a worker, would hang there.
    code = (
        "import portaloader, torch\n"
        "with portaloader.get_loader(framework='torch', device='cpu', size=16) as loader:\n"
        "    for _ in loader: break\n"
        "class Collects(torch.utils.data.Dataset):\n"
        "    def __len__(self): return 4\n"
        "    def __getitem__(self, index):\n"
        "        import gc; gc.collect()\n"
        "        return index\n"
        "print([batch.tolist() for batch in torch.utils.data.DataLoader(Collects(), batch_size=2, num_workers=2)])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "[[0, 1], [2, 3]]\n"


def test_ranks_of_the_launcher(tmp_path):
    check_ranks("torch", ["torch.distributed.run", "--standalone", "--nproc-per-node=3"], tmp_path)


@pytest.mark.parametrize(("rule", "pad"), [("partial", True), ("drop", False), ("wrap", False)])
def test_dali_pipeline_equals_dalis_iterator(rule, pad):
    from nvidia.dali.plugin.base_iterator import LastBatchPolicy
    from nvidia.dali.plugin.pytorch import DALIGenericIterator

    policy = {"partial": LastBatchPolicy.PARTIAL, "drop": LastBatchPolicy.DROP, "wrap": LastBatchPolicy.FILL}[rule]
    pipe = numbered()(pad=pad, seed=3, device_id=None)
    dalis = DALIGenericIterator([pipe], ["image", "label"], reader_name="files", auto_reset=True, last_batch_policy=policy)
    with portaloader.get_loader(
        pipeline=numbered(), pad=pad, seed=3, last_batch=rule, framework="torch", device="cpu"
    ) as loader:
        for _ in range(3):
            for mine, (theirs,) in zip(loader, dalis, strict=True):
                assert torch.equal(mine["image"], theirs["image"])
                assert torch.equal(mine["label"], theirs["label"].squeeze(1).long())
