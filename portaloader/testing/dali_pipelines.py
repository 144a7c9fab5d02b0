"""DALI pipelines with their own readers, handed to every framework as they are. Part of :class:`AdapterContract`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from portaloader.errors import LengthError
from portaloader.loader import Loader
from portaloader.testing.base import READERS, LoaderTests
from portaloader.testing.helpers import as_numpy, assert_equal, views_of


class DaliPipelineContract(LoaderTests):
    """See :class:`portaloader.testing.AdapterContract`."""

    def labels(self, loader: Loader[Any]) -> list[list[int]]:
        """Of each batch of one epoch."""
        return [as_numpy(loader, batch)["label"].tolist() for batch in loader]

    def test_dali_pipeline_equals_numpys(self) -> None:
        mine, numpys = (self.own(name, seed=3, pad=True) for name in (self.framework, "numpy"))
        for epoch in range(3):
            assert (mine.epoch, len(mine)) == (epoch, 3)
            found, wanted = ([as_numpy(loader, batch) for batch in loader] for loader in (mine, numpys))
            assert [batch["image"].shape for batch in found] == [(4, 16, 16, 3), (4, 16, 16, 3), (2, 16, 16, 3)]
            assert [(batch["label"].shape, str(batch["label"].dtype)) for batch in found] == [
                ((4,), "int64"),
                ((4,), "int64"),
                ((2,), "int64"),
            ]
            assert sorted(label for batch in found for label in batch["label"].tolist()) == list(range(READERS))
            for a, b in zip(found, wanted, strict=True):
                assert_equal(a, b)

    def test_dali_pipeline_gives_this_frameworks_tensors(self) -> None:
        loader = self.own(pad=True)
        batch = next(iter(loader))
        assert list(batch) == ["image", "label"]
        assert all(isinstance(tensor, loader.adapter.tensor_type) for tensor in batch.values())

    @pytest.mark.parametrize(
        ("rule", "pad", "lengths"),
        [("partial", True, [4, 4, 2]), ("drop", False, [4, 4]), ("pad", True, [4, 4, 4]), ("wrap", False, [4, 4, 4])],
    )
    def test_last_batch_of_a_dali_pipeline(self, rule: str, pad: bool, lengths: list[int]) -> None:
        loader = self.own(last_batch=rule, pad=pad)
        assert len(loader) == len(lengths)
        batches = [as_numpy(loader, batch) for batch in loader]
        assert [len(batch["label"]) for batch in batches] == lengths
        seen = [label for batch in batches for label in batch["label"].tolist()]
        if rule == "pad":
            assert [batch["valid"].tolist() for batch in batches] == [[True] * 4, [True] * 4, [True, True, False, False]]
            assert batches[0]["valid"].dtype == np.bool_
        assert len(set(seen[:READERS])) == min(len(seen), READERS)
        if rule == "wrap":
            # It goes on behind: what filled this epoch up is not in the next one again.
            rest = [label for batch in self.labels(loader) for label in batch]
            assert sorted(seen[READERS:] + rest[: READERS - 2]) == list(range(READERS))

    @pytest.mark.parametrize("stick", [True, False])
    def test_shards_of_a_dali_pipeline(self, stick: bool) -> None:
        ranks = [self.own(shard=(rank, 2), pad=True, stick=stick) for rank in range(2)]
        for _ in range(2):
            epochs = [self.labels(loader) for loader in ranks]
            assert [list(map(len, epoch)) for epoch in epochs] == [[4, 1], [4, 1]]
            assert sorted(label for epoch in epochs for batch in epoch for label in batch) == list(range(READERS))

    def test_leaving_a_dali_pipeline_early_begins_the_next_epoch(self) -> None:
        whole, left = (self.own(pad=True) for _ in range(2))
        epochs = [self.labels(whole) for _ in range(2)]
        for _ in left:
            break
        assert left.epoch == 0
        assert self.labels(left) == epochs[1]
        assert left.epoch == 2

    def test_held_batches_of_a_dali_pipeline_do_not_change(self) -> None:
        loader = self.own(pad=True)
        held = [(batch, as_numpy(loader, batch)) for _ in range(10) for batch in loader]
        assert len(held) == 30
        for batch, copy in held:
            assert_equal(as_numpy(loader, batch), copy)

    def test_each_output_of_a_dali_pipeline_has_memory_of_its_own(self) -> None:
        from nvidia.dali import fn, pipeline_def

        @pipeline_def(batch_size=1, num_threads=1)  # type: ignore[untyped-decorator]
        def fed() -> Any:
            values = [np.arange(3, dtype=np.float32) + i for i in range(6)]
            return tuple(views_of(fn.external_source(source=values, batch=False, cycle="raise")).values())

        self.check_own_memory(self.loader(None, fed, outputs=["value", "again", "row", "pair", "one"]))

    def test_external_source_ends_the_epoch(self) -> None:
        from nvidia.dali import fn, pipeline_def

        def source(info: Any) -> Any:
            if info.iteration == 3:
                raise StopIteration
            return np.array([info.epoch_idx, info.iteration, info.idx_in_epoch], np.float32)

        @pipeline_def(batch_size=2, num_threads=1)  # type: ignore[untyped-decorator]
        def fed() -> Any:
            return fn.external_source(source=source, batch=False, name="value")

        loader = self.loader(None, fed)
        with pytest.raises(LengthError, match="no reader"):
            len(loader)
        expected = [[[[e, i, 2 * i], [e, i, 2 * i + 1]] for i in range(3)] for e in range(3)]
        assert [self.values_of(loader) for _ in range(2)] == expected[:2]
        for _ in loader:
            break
        assert self.values_of(loader)[0][0][1:] == [0, 0]

    def values_of(self, loader: Loader[Any]) -> list[Any]:
        """The field ``value`` of each batch of one epoch."""
        return [as_numpy(loader, batch)["value"].tolist() for batch in loader]
