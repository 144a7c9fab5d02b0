"""The contract, for jax; and arrays over several devices."""

import json
import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from readme import run

import portaloader
from portaloader.errors import ArgumentError
from portaloader.testing import AdapterContract, as_numpy, sample_files
from portaloader.testing.base import numbered
from portaloader.testing.helpers import Numbers, assert_equal, passed_through


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


# -- several devices ---------------------------------------------------------------------------------------------------


@pytest.fixture
def mesh():
    return Mesh(np.array(jax.devices("cpu")).reshape(2, 2), ("data", "model"))


def loaders(number, **options):
    options = {"framework": "jax", "size": 32, "batch_size": 8, "device": "cpu", "last_batch": "pad", **options}
    return [portaloader.get_loader(sample_files(20), **options) for _ in range(number)]


def test_batches_over_the_devices(mesh):
    mine, theirs = loaders(2)
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    native = mine.native(sharding=sharding)
    for _ in range(2):
        assert len(native) == 3
        for found, wanted in zip(native, theirs, strict=True):
            for array in found.values():
                assert array.sharding == sharding
                assert len(array.devices()) == 4
                assert {shard.data.shape[0] for shard in array.addressable_shards} == {4}
            theirs.dtypes.update(mine.dtypes)
            assert_equal(as_numpy(mine, found), as_numpy(theirs, wanted))


def test_each_output_has_its_own_sharding(mesh):
    (loader,) = loaders(1)
    over_all = NamedSharding(mesh, PartitionSpec(("data", "model")))
    for image, label, _ in loader.native("image", "label", "id", sharding={"image": over_all}):
        assert image.sharding == over_all
        assert {shard.data.shape for shard in image.addressable_shards} == {(2, 3, 32, 32)}
        assert len(label.devices()) == 1


def test_a_step_over_the_devices(mesh):
    (loader,) = loaders(1)
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    mean = jax.jit(lambda image: image.mean(axis=(1, 2, 3)), out_shardings=sharding)
    for batch in loader.native(sharding=sharding):
        found = mean(batch["image"])
        assert found.sharding == sharding
        np.testing.assert_allclose(found, np.asarray(batch["image"]).mean(axis=(1, 2, 3)), rtol=1e-4, atol=1e-5)


def test_a_batch_that_the_devices_cannot_share(mesh):
    (loader,) = loaders(1, batch_size=9, last_batch="partial")
    native = loader.native(sharding=NamedSharding(mesh, PartitionSpec("data")))
    with pytest.raises(ArgumentError, match=r"output 'id' of shape \(9,\) cannot be laid out.*drop.*pad"):
        next(iter(native))
    native = loader.native(sharding=NamedSharding(mesh, PartitionSpec(None, "data")))
    with pytest.raises(ArgumentError, match=r"output 'id' of shape \(9,\) cannot be laid out.*for some outputs only"):
        next(iter(native))


def test_sharding_begins_an_epoch_with_its_first_batch(mesh):
    (loader,) = loaders(1)
    native = loader.native(sharding=NamedSharding(mesh, PartitionSpec("data")))
    iter(native)
    assert len(list(native)) == 3
    assert loader.epoch == 1


def test_threads_share_an_epoch_over_the_devices(mesh):
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    with portaloader.get_loader(Numbers(80), passed_through, framework="jax", batch_size=4, device="cpu") as loader:
        batches = iter(loader.native("id", sharding=sharding))
        with ThreadPoolExecutor(4) as pool:
            parts = [pool.submit(lambda: [i for (ids,) in batches for i in ids.tolist()]) for _ in range(4)]
        assert sorted(i for part in parts for i in part.result()) == list(range(80))


@pytest.mark.skipif(not hasattr(jax, "set_mesh"), reason="this JAX has no set_mesh()")
def test_batches_within_a_mesh(mesh):
    with portaloader.get_loader(Numbers(8), passed_through, framework="jax", batch_size=4, device="cpu") as loader:
        expected = [batch["value"].tolist() for _ in range(2) for batch in loader]
        loader.load_state_dict({**loader.state_dict(), "epoch": 0, "position": 0})
        with jax.set_mesh(mesh):
            for batch in loader:
                assert len(batch["id"].devices()) == 1
                assert batch["value"].tolist() == expected.pop(0)
            for (value,) in loader.native("value", sharding=NamedSharding(mesh, PartitionSpec("data"))):
                assert len(value.devices()) == 4
                assert value.tolist() == expected.pop(0)
    assert not expected


def test_several_processes_bring_their_parts():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, str(Path(__file__).with_name("jax_process.py")), str(port)]
    environment = {**{name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}, "JAX_PLATFORMS": "cpu"}
    processes = [
        subprocess.Popen(
            [*command, str(index), "2"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for index in range(2)
    ]
    outputs = [process.communicate(timeout=200) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    found = [json.loads(printed.splitlines()[-1]) for printed, _ in outputs]
    with portaloader.get_loader(Numbers(22), passed_through, framework="numpy", batch_size=8, last_batch="pad") as whole:
        for first, second, batch in zip(*found, whole, strict=True):
            assert first["shape"] == second["shape"] == [8]
            assert first["devices"] == second["devices"] == 4
            assert sorted(first["here"] + second["here"]) == sorted(batch["id"].tolist())
            assert first["total"] == second["total"] == batch["id"].sum()


@pytest.mark.parametrize("sharding", ["data", {"nothing": None}, {"value": "data"}])
def test_what_is_no_sharding(sharding):
    with (
        portaloader.get_loader(Numbers(4), passed_through, framework="jax", device="cpu") as loader,
        pytest.raises(ArgumentError, match="jax.sharding.Sharding.*'id', 'value'"),
    ):
        loader.native(sharding=sharding)


def test_the_readmes_loop():
    (train,) = loaders(1)
    names = run("JAX:", {"jax": jax, "NamedSharding": NamedSharding, "PartitionSpec": PartitionSpec, "train": train})
    assert train.epoch == 1
    assert len(names["batch"]["image"].devices()) == jax.device_count()
