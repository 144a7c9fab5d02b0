"""The contract, for jax."""

import numpy as np
import pytest

import portaloader
from portaloader.testing import AdapterContract
from portaloader.testing.dali_pipelines import numbered


class TestJax(AdapterContract):
    framework = "jax"


@pytest.mark.parametrize("rule", ["drop", "wrap"])  # DALI's has no partial batches
def test_dali_pipeline_equals_dalis_iterator(rule):
    from nvidia.dali.plugin.base_iterator import LastBatchPolicy
    from nvidia.dali.plugin.jax import DALIGenericIterator

    policy = {"drop": LastBatchPolicy.DROP, "wrap": LastBatchPolicy.FILL}[rule]
    pipe = numbered()(seed=3, device_id=None)
    dalis = DALIGenericIterator([pipe], ["image", "label"], reader_name="files", auto_reset=True, last_batch_policy=policy)
    with portaloader.get_loader(pipeline=numbered(), seed=3, last_batch=rule, framework="jax", device="cpu") as loader:
        for _ in range(3):
            for mine, theirs in zip(loader, dalis, strict=True):
                np.testing.assert_array_equal(mine["image"], theirs["image"], strict=True)
                np.testing.assert_array_equal(mine["label"], theirs["label"].squeeze(1), strict=True)
