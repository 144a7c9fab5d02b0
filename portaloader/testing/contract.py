"""What every adapter must do, written once. See :class:`AdapterContract`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from portaloader import registry
from portaloader.contract import Device
from portaloader.errors import DtypeError, LoaderError, RaggedError, SampleError
from portaloader.loader import Loader
from portaloader.testing.dali_pipelines import DaliPipelineContract
from portaloader.testing.helpers import Numbers, as_numpy, assert_equal, passed_through, sample_files, views
from portaloader.testing.native import NativeContract

SMALL: dict[str, Any] = {"size": 32, "batch_size": 8, "num_threads": 2}
DTYPES = ["float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool"]


class AdapterContract(DaliPipelineContract, NativeContract):
    """Inherit it, name the framework, and pytest runs the whole contract on it.

    With the command line option ``--device gpu``, where a conftest defines it, the batches are made on a GPU.
    """

    def values(self, loader: Loader[Any]) -> list[list[int]]:
        """The field ``value`` of each batch of one epoch."""
        return [as_numpy(loader, batch)["value"].tolist() for batch in loader]

    # -- what comes out ---------------------------------------------------------------------------------------------

    def test_framework_is_installed(self) -> None:
        assert registry.resolve(self.framework).is_installed()

    def test_types_devices_shapes_and_dtypes(self) -> None:
        loader = self.loader(sample_files(20), **SMALL)
        adapter = loader.adapter
        batch = next(iter(loader))
        assert list(batch) == ["id", "image", "label"]
        expected = Device() if self.framework == "numpy" else adapter.device
        for tensor in batch.values():
            assert isinstance(tensor, adapter.tensor_type)
            assert adapter.device_of(tensor) == expected
        shapes = {name: tuple(tensor.shape) for name, tensor in batch.items()}
        assert shapes == {"id": (8,), "image": (8, 3, 32, 32), "label": (8,)}
        found = {name: adapter.to_numpy(tensor).dtype for name, tensor in batch.items()}
        int64 = np.dtype(np.int64)
        integer = adapter.narrowed.get(int64, int64)
        assert found == {"id": integer, "image": np.dtype(np.float32), "label": integer}

    def test_ids_name_the_samples(self) -> None:
        loader = self.loader(sample_files(8), shuffle=False, **SMALL)
        ids = next(iter(loader))["id"]
        if not hasattr(ids, "__getitem__"):  # a framework of somebody else's need not have it
            ids = loader.adapter.to_numpy(ids)
        assert [loader.source.describe(ids[i]) for i in range(8)] == [f"item {i} of list" for i in range(8)]

    def test_batches_equal_numpys(self) -> None:
        mine, numpys = (self.loader(sample_files(20), framework=name, **SMALL) for name in (self.framework, "numpy"))
        for _ in range(2):
            for found, wanted in zip(mine, numpys, strict=True):
                assert_equal(as_numpy(mine, found), as_numpy(numpys, wanted))

    @pytest.mark.parametrize("name", DTYPES)
    def test_dtype_arrives_or_is_refused(self, name: str) -> None:
        values = [np.array([0, 1, 2, 100]).astype(name), np.array([1, 0, 3, 127]).astype(name)]
        loader = self.loader([{"value": value} for value in values], passed_through, shuffle=False)
        dtype = np.dtype(name)
        if dtype in loader.adapter.unsupported:
            with pytest.raises(DtypeError, match="value.*cast"):
                next(iter(loader))
            return
        batch = next(iter(loader))
        held = loader.adapter.to_numpy(batch["value"])
        assert held.dtype == loader.adapter.narrowed.get(dtype, dtype)
        found = as_numpy(loader, batch)["value"]
        assert found.dtype == dtype
        assert found.tolist() == np.stack(values).tolist()

    def test_integers_are_never_cut(self) -> None:
        loader = self.loader(Numbers(4, offset=2**40), passed_through, shuffle=False)
        if np.dtype(np.int64) in loader.adapter.narrowed:
            with pytest.raises(DtypeError, match="outside"):
                next(iter(loader))
        else:
            assert self.values(loader) == [[2**40 + i for i in range(4)]]

    # -- whose memory it is -----------------------------------------------------------------------------------------

    def test_hand_over_is_zero_copy(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loader = self.loader(sample_files(20), **SMALL)
        convert = loader.adapter.convert
        pointers: list[tuple[int | None, int]] = []

        def spy(tensor: Any, dtype: Any) -> Any:
            made = convert(tensor, dtype)
            if dtype == np.float32:
                pointers.append((loader.adapter.data_pointer(made), tensor.data_ptr()))
            return made

        monkeypatch.setattr(loader.adapter, "convert", spy)
        for _ in loader:
            pass
        if self.framework == "numpy" and self.device == "gpu":
            return  # copied to the host, as it says
        assert len(pointers) == len(loader)
        assert all(mine in (None, dalis) for mine, dalis in pointers)

    def test_each_output_has_memory_of_its_own(self) -> None:
        items = [{"value": np.arange(3, dtype=np.float32) + i} for i in range(6)]
        self.check_own_memory(self.loader(items, views, batch_size=1, shuffle=False))

    def test_held_batches_do_not_change(self) -> None:
        loader = self.loader(sample_files(40), size=8, batch_size=2, num_threads=2)
        held: list[dict[str, Any]] = []
        copies: list[dict[str, Any]] = []
        while len(held) < 100:
            for batch in loader:
                held.append(batch)
                copies.append(as_numpy(loader, batch))
        for batch, copy in zip(held, copies, strict=True):
            assert_equal(as_numpy(loader, batch), copy)

    def test_held_batches_outlive_the_loader(self) -> None:
        loader = self.loader(sample_files(8), **SMALL)
        batch = next(iter(loader))
        copy = as_numpy(loader, batch)
        loader.close()
        assert_equal(as_numpy(loader, batch), copy)

    # -- epochs -----------------------------------------------------------------------------------------------------

    def test_epochs_follow_each_other_and_differ(self) -> None:
        loader = self.loader(Numbers(10), passed_through, batch_size=4)
        epochs = []
        for number in range(3):
            assert (loader.epoch, len(loader)) == (number, 3)
            epochs.append([value for batch in self.values(loader) for value in batch])
        assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
        assert len({tuple(epoch) for epoch in epochs}) == 3
        assert loader.stats.batches == 9
        assert loader.stats.samples == 30

    def test_leaving_early_begins_the_next_epoch(self) -> None:
        whole = self.loader(Numbers(23), passed_through, batch_size=2)
        epochs = [self.values(whole) for _ in range(3)]
        loader = self.loader(Numbers(23), passed_through, batch_size=2)
        for taken, _ in enumerate(loader, start=1):
            assert loader.epoch == 0
            if taken == 3:
                break
        assert self.values(loader) == epochs[1]
        assert self.values(loader) == epochs[2]

    def test_an_iterator_that_was_left_says_so(self) -> None:
        loader = self.loader(Numbers(8), passed_through, batch_size=2)
        first = iter(loader)
        next(first)
        next(iter(loader))
        assert loader.epoch == 1
        with pytest.raises(LoaderError, match="iterator of epoch 0 was left"):
            next(first)

    @pytest.mark.parametrize(
        ("rule", "sizes", "lengths"),
        [
            ("partial", [4, 4, 2], [3, 3]),
            ("drop", [4, 4], [2, 2]),
            ("pad", [4, 4, 4], [3, 3]),
            ("wrap", [4, 4, 4], [3, 2]),
        ],
    )
    def test_last_batch(self, rule: Any, sizes: list[int], lengths: list[int]) -> None:
        loader = self.loader(Numbers(10), passed_through, batch_size=4, last_batch=rule, shuffle=False)
        batches = [as_numpy(loader, batch) for batch in loader]
        assert [len(batch["value"]) for batch in batches] == sizes
        assert len(batches) == lengths[0]
        assert len(loader) == lengths[1]
        last = batches[-1]
        if rule == "pad":
            assert last["valid"].tolist() == [True, True, False, False]
            assert last["valid"].dtype == np.bool_
        else:
            assert "valid" not in last
        if rule == "wrap":
            assert last["value"].tolist() == [8, 9, 0, 1]
            assert self.values(loader) == [[2, 3, 4, 5], [6, 7, 8, 9]]

    @pytest.mark.parametrize("rule", ["partial", "drop", "pad", "wrap"])
    def test_shards_are_disjoint_and_in_step(self, rule: Any) -> None:
        ranks = [self.loader(Numbers(29), passed_through, batch_size=3, last_batch=rule, shard=(rank, 3)) for rank in range(3)]
        streams = [[as_numpy(loader, batch) for batch in loader] for loader in ranks]
        assert len({len(stream) for stream in streams}) == 1
        seen = [
            value
            for stream in streams
            for batch in stream
            for value, valid in zip(batch["id"].tolist(), batch.get("valid", np.ones(9, bool)).tolist(), strict=False)
            if valid
        ]
        if rule == "drop":
            assert len(set(seen)) == len(seen) == 27
        elif rule == "wrap":
            assert set(seen) == set(range(29))
        else:
            assert sorted(seen) == list(range(29))

    def test_resumes_where_another_framework_stopped(self) -> None:
        numpys = self.loader(sample_files(30), framework="numpy", **SMALL)
        batches = iter(numpys)
        next(batches)
        state = json.loads(json.dumps(numpys.state_dict()))
        rest = [as_numpy(numpys, batch) for batch in batches]
        mine = self.loader(sample_files(30), **SMALL)
        mine.load_state_dict(state)
        found = [as_numpy(mine, batch) for batch in mine]
        assert len(found) == len(rest) == 3
        for one, other in zip(found, rest, strict=True):
            assert_equal(one, other)

    # -- when something goes wrong ----------------------------------------------------------------------------------

    def test_source_error_comes_in_its_place(self) -> None:
        loader = self.loader(Numbers(10, broken=(5,)), passed_through, batch_size=2, shuffle=False, prefetch=3)
        batches = iter(loader)
        taken = [as_numpy(loader, next(batches))["value"].tolist() for _ in range(2)]
        assert taken == [[0, 1], [2, 3]]
        with pytest.raises(SampleError, match=r"sample 5 \(item 5 of Numbers\).*OSError: item 5 is out of order") as caught:
            next(batches)
        assert caught.value.sample_id == 5
        assert isinstance(caught.value.__cause__, OSError)
        with pytest.raises(StopIteration):
            next(batches)

    def test_goes_on_with_the_next_epoch_after_an_error(self) -> None:
        source = Numbers(6, broken=(1,))
        loader = self.loader(source, passed_through, batch_size=2, shuffle=False)
        with pytest.raises(SampleError):
            list(loader)
        source.broken = ()
        assert self.values(loader) == [[0, 1], [2, 3], [4, 5]]
        assert loader.epoch == 2

    @pytest.mark.parametrize("damage", ["vanished", "truncated", "not an image"])
    def test_damaged_file_is_named(self, damage: str, tmp_path: Path) -> None:
        items = []
        for number, item in enumerate(sample_files(6)):
            file = tmp_path / f"{number}.jpg"
            file.write_bytes(Path(item["image"]).read_bytes())
            items.append({**item, "image": file})
        bad = tmp_path / "4.jpg"
        loader = self.loader(items, shuffle=False, **SMALL | {"batch_size": 2})
        if damage == "vanished":
            bad.unlink()
        elif damage == "truncated":
            bad.write_bytes(bad.read_bytes()[: bad.stat().st_size // 2])
        else:
            bad.write_text("no picture at all")
        if damage == "truncated" and self.device == "gpu":
            # NVIDIA's GPU decoders report no error for it and fill up the missing part: docs/guarantees.md, deviations.
            assert len(list(loader)) == 3
            return
        said = "No such file" if damage == "vanished" else ""
        with pytest.raises(SampleError, match=f"sample 4 .*cannot be processed: {said}") as caught:
            list(loader)
        assert caught.value.sample_id == 4
        assert caught.value.where.endswith(("4.jpg", "item 4 of list"))
        loader.close()
        loader.close()

    def test_ragged_output_is_refused(self) -> None:
        items = [{"value": np.zeros(2)}, {"value": np.zeros(3)}]
        loader = self.loader(items, passed_through)
        with pytest.raises(RaggedError, match=r"'value' differ in shape.*\(2,\).*\(3,\).*fn.pad"):
            list(loader)

    def test_closed_loader_says_so(self) -> None:
        loader = self.loader(Numbers(4), passed_through, batch_size=2)
        batches = iter(loader)
        next(batches)
        loader.close()
        with pytest.raises(LoaderError, match="closed"):
            iter(loader)
        with pytest.raises(LoaderError, match="closed"):
            next(batches)

    # -- the process ------------------------------------------------------------------------------------------------

    def test_loads_no_other_framework(self) -> None:
        # What the framework itself imports is its own affair (TensorFlow imports JAX where it finds it).
        mine = registry.resolve(self.framework).module
        known = sorted({f.module for f in registry.BUILT_IN.values()} - {"numpy", mine})
        text = self._run(
            f"import {mine}\n"
            f"before = {{name for name in {known!r} if name in sys.modules}}\n"
            f"loader = portaloader.get_loader(framework={self.framework!r}, batch_size=4, size=8, device='cpu')\n"
            "next(iter(loader))\n"
            f"print('loaded', [name for name in {known!r} if name in sys.modules and name not in before])"
        )
        assert "loaded []" in text

    def test_interpreter_ends_while_batches_are_made(self) -> None:
        text = self._run(
            f"loader = portaloader.get_loader(framework={self.framework!r}, batch_size=4, device={self.device!r})\n"
            "batch = next(iter(loader))\n"
            "print('first batch')"
        )
        assert "first batch" in text

    def test_interrupt_ends_the_process(self) -> None:
        # The signal is sent by the process to itself, from within the source: it is then surely under way.
        text = self._run(
            "import os, signal\n"
            "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a job in the background begins without it
            "class Source:\n"
            "    sent = False\n"
            "    def __len__(self): return 1000\n"
            "    def __getitem__(self, i):\n"
            "        if i == 50 and not Source.sent:\n"
            "            Source.sent = True\n"
            "            os.kill(os.getpid(), signal.SIGINT)\n"
            "        return {'value': i}\n"
            "from portaloader.testing.helpers import passed_through\n"
            f"loader = portaloader.get_loader(Source(), passed_through, framework={self.framework!r}, batch_size=4,\n"
            f"                                shuffle=False, device={self.device!r})\n"
            "try:\n"
            "    for batch in loader: pass\n"
            "except KeyboardInterrupt: print('interrupted')\n"
            "print(len(list(loader)), 'batches in epoch', loader.epoch - 1)"
        )
        assert "interrupted" in text
        assert "250 batches in epoch 1" in text

    def _run(self, body: str) -> str:
        """Run a script in a process of its own; it must end by itself, and well."""
        done = subprocess.run(  # noqa: S603
            [sys.executable, "-c", f"import sys, portaloader\n{body}"],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout
