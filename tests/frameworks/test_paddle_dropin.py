"""DALI's iterators for Paddle on a CPU, beside DALI's own, which works there with two names of Paddle's replaced."""

import importlib
import importlib.util
import inspect
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from dropin_contract import DROP, FILL, PARTIAL, DropInContract, Fed, fed, label, numbers
from dropin_grid import cases, options, pipeline, walked
from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.backend import TensorCPU

import portaloader.compat
from portaloader.compat.plugin import paddle as plugin
from portaloader.errors import ArgumentError, RaggedError

# isort: split
import paddle

portaloader.compat.install()

GRID = list(dict.fromkeys(replace(case, style="dict") for case in cases()))


def dalis_module():
    file = Path(importlib.import_module("nvidia.dali.plugin").__path__[0], "paddle.py")
    spec = importlib.util.spec_from_file_location("dalis_own_paddle", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def dalis(monkeypatch):
    """DALI's own module, for which the CPU passes for a GPU."""
    monkeypatch.setattr(paddle, "CUDAPlace", lambda ordinal: paddle.CPUPlace())
    monkeypatch.setattr(paddle.device.cuda, "current_stream", lambda ordinal: SimpleNamespace(cuda_stream=None))
    # Gone from Paddle 3, and DALI 2.0 asks for it.
    monkeypatch.setattr(paddle.framework.core.DenseTensor, "recursive_sequence_lengths", lengths, raising=False)
    return dalis_module()


def lengths(tensor):
    return [[end - start for start, end in pairwise(offsets)] for offsets in tensor.lod()]


# -- beside DALI's own -------------------------------------------------------------------------------------------------


@pytest.mark.skipif(paddle.device.cuda.device_count() > 0, reason="with a GPU it works")
def test_dalis_own_cannot_work_here(paths):
    import nvidia.dali.plugin.paddle as imported
    from nvidia.dali.plugin import paddle as attribute

    assert imported is attribute is plugin
    with pytest.raises(TypeError, match="CUDAPlace"):
        dalis_module().DALIClassificationIterator(numbers(paths), reader_name="numbers")


def test_dalis_own_is_left_alone_where_it_works():
    code = (
        "import portaloader.compat, paddle\n"
        "paddle.device.cuda.device_count = lambda: 1\n"
        "portaloader.compat.install()\n"
        "import nvidia.dali.plugin.paddle as plugin\n"
        "iterator = plugin.DALIGenericIterator\n"
        "print(plugin.__name__, plugin.__file__.endswith('nvidia/dali/plugin/paddle.py'), iterator.__module__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "nvidia.dali.plugin.paddle True nvidia.dali.plugin.paddle\n"


def test_signatures_are_dalis():
    for name in ("DALIGenericIterator", "DALIClassificationIterator", "feed_ndarray"):
        mine, own = (inspect.signature(getattr(module, name)).parameters.values() for module in (plugin, dalis_module()))
        assert [(p.name, p.default) for p in mine] == [(p.name, p.default) for p in own]


def described(batch):
    return [{name: contents(tensor) for name, tensor in part.items()} for part in batch]


def contents(tensor):
    values = np.array(tensor)
    return str(values.dtype), values.shape, values.tolist(), tensor.lod()


def run(module, case, paths):
    pipes = [pipeline(case, paths, shard) for shard in range(case.first, case.first + case.pipes)]
    try:
        made = module.DALIClassificationIterator(pipes, **options(plugin, case))
    except RuntimeError as error:
        return "nothing" if "no data" in str(error) or "no batch" in str(error) else str(error)
    return walked(made, case, described)


@pytest.mark.filterwarnings("ignore:Please set `reader_name`")
@pytest.mark.parametrize("case", GRID, ids=str)
def test_same_batches_as_dalis(dalis, paths, case):
    assert run(plugin, case, paths) == run(dalis, case, paths)


# -- LoD levels --------------------------------------------------------------------------------------------------------


def uneven(info):
    """Samples of 1 to 3 rows and 0 to 3 columns, of two numbers each."""
    return np.full((1 + info.idx_in_epoch % 3, info.idx_in_epoch % 4, 2), info.idx_in_epoch, np.float32)


def rows(info):
    return np.full((info.idx_in_epoch % 3, 2), info.idx_in_epoch, np.float32)


def even(info):
    return np.full((3, 2, 2), info.idx_in_epoch, np.float32)


@pytest.mark.filterwarnings("ignore:Please set `reader_name`")
@pytest.mark.parametrize(("sample", "level"), [(rows, 1), (uneven, 2), (uneven, 3), (even, 1), (even, 2), (even, 3)])
@pytest.mark.parametrize("dynamic", [True, False])
def test_lod_levels_are_dalis(dalis, sample, level, dynamic):
    def batches(module, **settings):
        pipe = fed(Fed(sample, batches=4), Fed(label, batches=4), **settings)
        made = module.DALIGenericIterator(pipe, [("sequences", level), "label"], 10, last_batch_policy=PARTIAL)
        return [described(batch) for batch in made]

    # DALI's own asks a list of tensors for DLPack, which it has not, with its usual executor.
    found = batches(plugin, exec_dynamic=dynamic)
    assert found == batches(dalis, exec_dynamic=False)
    assert [len(batch[0]["label"][2]) for batch in found] == [3, 3, 3, 1]


def test_lod_levels_are_paddles():
    made = plugin.DALIGenericIterator(fed(Fed(uneven), Fed(rows)), [("cells", 2), ("rows", 1)])
    (batch,) = next(made)
    # Samples of 1 by 0, 2 by 1 and 3 by 2 cells, and of 0, 1 and 2 rows.
    wanted = {
        "cells": ([[1, 2, 3], [0, 1, 1, 2, 2, 2]], [[1, 1]] * 2 + [[2, 2]] * 6),
        "rows": ([[0, 1, 2]], [[1, 1], [2, 2], [2, 2]]),
    }
    for name, (lengths, values) in wanted.items():
        tensor = paddle.base.create_lod_tensor(np.array(values, np.float32), lengths, paddle.CPUPlace())
        assert contents(batch[name]) == contents(tensor)
        assert isinstance(batch[name], type(tensor))


def test_lod_levels_that_do_not_fit():
    with pytest.raises(RaggedError, match=r"output 'cells' has samples of different shapes behind LoD level 1; give a higher"):
        plugin.DALIGenericIterator(fed(Fed(uneven)), [("cells", 1)])
    with pytest.raises(ArgumentError, match="output 'rows' was given LoD level 3; its samples have 2 axes"):
        plugin.DALIGenericIterator(fed(Fed(rows)), [("rows", 3)])
    with pytest.raises(RaggedError, match=r"output 'rows' .* Give it a LoD level, as \('rows', 1\)"):
        plugin.DALIGenericIterator(fed(Fed(rows)), ["rows"])
    for output_map in ([("rows", -1)], [("rows", "1")], [("rows",)]):
        with pytest.raises(ArgumentError, match="an item is a name, or a name and a LoD level from 0"):
            plugin.DALIGenericIterator(fed(Fed(rows)), output_map)
    with pytest.raises(ArgumentError, match="output_map names 'a', 'a'; give each output a name of its own"):
        plugin.DALIGenericIterator(fed(Fed(even), Fed(even)), ["a", ("a", 1)])


# -- by themselves -----------------------------------------------------------------------------------------------------


class TestPaddle(DropInContract):
    unsupported = "uint16"

    def iterator(self, pipes, names=("data", "label"), **options):
        return plugin.DALIGenericIterator(pipes, list(names), **options)

    def arrays(self, part):
        return list(part.values()), 0

    def to_numpy(self, array):
        return np.array(array)

    def pointer(self, array):
        return array._ptr()


@pytest.mark.filterwarnings("ignore:Please set `reader_name`")
@pytest.mark.skipif(not hasattr(paddle, "uint32"), reason="this Paddle has no such types")
@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize("dtype", ["uint32", "uint64"])
def test_unsigned_integers(dtype, dynamic):
    pipe = fed(Fed(lambda info: np.array([2**31, info.idx_in_epoch], dtype)), exec_dynamic=dynamic)
    batches = [batch[0]["a"] for batch in plugin.DALIGenericIterator(pipe, ["a"], size=5, last_batch_policy=PARTIAL)]
    found = [paddle.to_tensor(batch).numpy() for batch in batches]
    assert [values.tolist() for values in found] == [[[2**31, i] for i in part] for part in ((0, 1, 2), (3, 4))]
    assert {str(values.dtype) for values in found} == {dtype}


def expected(size, batch, shards, policy, stick, epoch):
    """The labels of each pipeline for each batch, of a reader that pads: written out without DALI's counters."""
    bounds = [size * i // shards for i in range(shards + 1)]
    turns = [(i + (0 if stick else epoch)) % shards for i in range(shards)]
    mine = [list(range(bounds[i], bounds[i + 1])) for i in turns]
    most, least = (pick(map(len, mine)) for pick in (max, min))
    if policy == DROP:
        return [[shard[start : start + batch] for shard in mine] for start in range(0, least - batch + 1, batch)]
    starts = range(0, most, batch)
    if policy == PARTIAL:
        return [[shard[start : start + batch] for shard in mine] for start in starts]
    return [[(shard + shard[-1:] * (most + batch))[start : start + batch] for shard in mine] for start in starts]


@pytest.mark.parametrize("stick", [True, False])
@pytest.mark.parametrize(
    ("policy", "shards", "size", "batch"),
    [
        (policy, shards, size, batch)
        for policy in (FILL, DROP, PARTIAL)
        for shards in (1, 2, 3)
        for size, batch in ((5, 1), (7, 2), (9, 3), (12, 2), (13, 4), (12, 3))
        # Where shards differ in length, DALI's DROP begins an epoch with what filled the one before.
        if policy != DROP or not size % shards
    ],
)
def test_batches_written_out(paths, policy, stick, shards, size, batch):
    pipes = [numbers(paths, size, True, shard, shards, stick, batch_size=batch) for shard in range(shards)]
    made = plugin.DALIClassificationIterator(pipes, reader_name="numbers", last_batch_policy=policy)
    for epoch in range(4):
        wanted = expected(size, batch, shards, policy, stick, epoch)
        found = [[part["label"] for part in taken] for taken in made]
        assert [[np.array(values).ravel().tolist() for values in parts] for parts in found] == wanted
        assert {tuple(np.array(values).shape[1:]) for parts in found for values in parts} == {(1,)}


def test_feed_ndarray():
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    tensor = paddle.zeros([2, 3])
    pointer = tensor.data_ptr()
    assert plugin.feed_ndarray(TensorCPU(values), pointer) == pointer
    assert tensor.numpy().tolist() == values.tolist()


@pipeline_def(batch_size=4, num_threads=1, device_id=None)
def separable(paths):
    """A number, and whether it is one of the greater half of 12."""
    data, number = fn.readers.file(files=paths[:12], labels=list(range(12)), pad_last_batch=True, name="numbers")
    return fn.cast(data[:1], dtype=types.FLOAT) / 6 - 1, fn.cast(number >= 6, dtype=types.INT64)


def test_trained_with(paths):
    paddle.seed(0)
    net = paddle.nn.Linear(1, 2)
    optimizer = paddle.optimizer.SGD(0.5, parameters=net.parameters())
    made = plugin.DALIClassificationIterator(separable(paths), reader_name="numbers", auto_reset=True)
    losses = []
    for _ in range(30):
        for (batch,) in made:
            loss = paddle.nn.functional.cross_entropy(net(paddle.to_tensor(batch["data"])), paddle.to_tensor(batch["label"]))
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()
            losses.append(float(loss))
    assert len(losses) == 90
    assert losses[-1] < losses[2] / 2


def test_fed_to_an_executor(paths):
    paddle.enable_static()
    try:
        program = paddle.static.Program()
        with paddle.static.program_guard(program):
            data = paddle.static.data("data", [None, 1], "float32")
            doubled = data * 2
        executor = paddle.static.Executor(paddle.CPUPlace())
        for (batch,) in plugin.DALIClassificationIterator(separable(paths), reader_name="numbers"):
            (found,) = executor.run(program, feed={"data": batch["data"]}, fetch_list=[doubled])
            assert found.tolist() == (2 * np.array(batch["data"])).tolist()
    finally:
        paddle.disable_static()
