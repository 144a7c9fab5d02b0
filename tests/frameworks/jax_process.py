"""One of the processes of test_jax.py's test of several: python jax_process.py PORT INDEX COUNT."""

import json
import os
import sys

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import portaloader
from portaloader.testing.helpers import Numbers, passed_through

port, index, count = map(int, sys.argv[1:])
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"127.0.0.1:{port}", count, index)
sharding = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), PartitionSpec("data"))
found = []
with portaloader.get_loader(
    Numbers(22), passed_through, framework="jax", batch_size=4, shard=(index, count), last_batch="pad", device="cpu"
) as loader:
    for batch in loader.native(sharding=sharding):
        ids = batch["id"]
        here = np.concatenate([np.asarray(part.data) for part in ids.addressable_shards])
        total = jax.jit(lambda value: value.sum())(ids)
        found.append({"shape": ids.shape, "here": here.tolist(), "total": int(total), "devices": len(ids.sharding.device_set)})
print(json.dumps(found))
