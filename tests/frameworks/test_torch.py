"""The contract, for torch."""

import pytest
import torch
from launchers import check_ranks

import portaloader
from portaloader.testing import AdapterContract
from portaloader.testing.dali_pipelines import numbered


class TestTorch(AdapterContract):
    framework = "torch"


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
