"""What ``native()`` gives, against the loader itself, batch by batch. Part of :class:`AdapterContract`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pytest

from portaloader.errors import ArgumentError, LoaderError, RaggedError
from portaloader.loader import Loader
from portaloader.testing.base import LoaderTests
from portaloader.testing.helpers import Numbers, as_numpy, assert_equal, passed_through, sample_files

OPTIONS: dict[str, Any] = {"size": 32, "batch_size": 8, "num_threads": 2}
FIELDS = ("image", "label", "id")


class NativeContract(LoaderTests):
    """See :class:`portaloader.testing.AdapterContract`.

    A framework whose container is not iterated once for each epoch, or gives no tuples, says so in :meth:`native_epoch`; one
    that reports errors in its own way, in ``native_error``.
    """

    native_options: ClassVar[dict[str, Any]] = {}
    native_error: ClassVar[type[Exception]] = Exception
    ragged: ClassVar[str] = "output 'value' differ in shape"

    def native(self, loader: Loader[Any], *fields: Any) -> Any:
        """What ``native()`` gives of this loader, with the options under test."""
        return loader.native(*fields, **self.native_options)

    def native_epoch(self, native: Any) -> Iterator[Any]:
        """One epoch of what ``native("image", ...)`` gave: tuples or lists of tensors."""
        return iter(native)

    def compared(self, mine: Loader[Any], native: Any, theirs: Loader[Any], names: tuple[str, ...] = FIELDS) -> int:
        """One epoch of ``native``, which is ``mine``, against one of ``theirs``; how many batches there were."""
        number = 0
        for found, batch in zip(self.native_epoch(native), theirs, strict=True):
            wanted = {name: batch[name] for name in names}
            assert [type(tensor) for tensor in found] == [type(tensor) for tensor in wanted.values()]
            for name, tensor in zip(names, found, strict=True):  # what the pipeline left on the host may be with the rest
                assert mine.adapter.device_of(tensor) in (theirs.adapter.device_of(wanted[name]), mine.adapter.device)
            assert_equal(as_numpy(mine, dict(zip(names, found, strict=True))), as_numpy(theirs, wanted))
            number += 1
        return number

    def native_values(self, native: Any, loader: Loader[Any]) -> list[list[int]]:
        """Of each batch of one epoch of ``native("value", ...)``, the first tensor."""
        return [loader.adapter.to_numpy(batch[0]).tolist() for batch in self.native_epoch(native)]

    @pytest.mark.parametrize(
        ("rule", "lengths"),
        [("partial", [4, 4, 4]), ("drop", [3, 3, 3]), ("pad", [4, 4, 4]), ("wrap", [4, 4, 4])],
    )
    def test_native_gives_the_loaders_batches(self, rule: Any, lengths: list[int]) -> None:
        mine, theirs = (self.loader(sample_files(30), last_batch=rule, **OPTIONS) for _ in range(2))
        names = (*FIELDS, "valid") if rule == "pad" else FIELDS
        native = self.native(mine, *names)
        for epoch, length in enumerate(lengths):
            assert (mine.epoch, len(mine)) == (epoch, length)
            assert self.compared(mine, native, theirs, names) == length

    @pytest.mark.parametrize(("rule", "pad"), [("partial", True), ("drop", False), ("pad", True), ("wrap", False)])
    def test_native_gives_a_dali_pipelines_batches(self, rule: Any, pad: bool) -> None:
        mine, theirs = (self.own(last_batch=rule, pad=pad, seed=5) for _ in range(2))
        names = ("image", "label", "valid") if rule == "pad" else ("image", "label")
        native = self.native(mine, *names)
        for epoch in range(3):
            assert mine.epoch == epoch
            length = len(theirs)
            assert length == len(mine)
            assert self.compared(mine, native, theirs, names) == length

    def test_native_of_a_dali_pipeline_that_calls_python(self) -> None:
        from nvidia.dali import fn, pipeline_def

        @pipeline_def(batch_size=2, num_threads=1)  # type: ignore[untyped-decorator]
        def fed() -> Any:
            batches = [np.array([[i], [i + 1]], np.int32) for i in range(0, 6, 2)]
            return fn.external_source(source=batches, cycle="raise", name="value")

        loader = self.loader(None, fed)
        native = self.native(loader, "value")
        assert [self.native_values(native, loader) for _ in range(2)] == [[[0, 1], [2, 3], [4, 5]]] * 2

    def test_native_left_early_begins_the_next_epoch(self) -> None:
        mine, theirs = (self.loader(sample_files(40), **OPTIONS) for _ in range(2))
        native = self.native(mine, *FIELDS)
        epoch = self.native_epoch(native)
        next(epoch)
        next(epoch)
        assert mine.epoch == 0
        for _ in theirs:
            break
        assert self.compared(mine, native, theirs) == 5
        assert mine.epoch == 2

    def test_native_of_a_dali_pipeline_left_early_begins_the_next_epoch(self) -> None:
        mine, theirs = (self.own(pad=True, seed=5) for _ in range(2))
        native = self.native(mine, "image", "label")
        next(self.native_epoch(native))
        for _ in theirs:
            break
        assert self.compared(mine, native, theirs, ("image", "label")) == 3

    def test_native_alone_begins_no_epoch(self) -> None:
        loader = self.loader(sample_files(30), **OPTIONS)
        running = iter(loader)
        next(running)
        native = self.native(loader, *FIELDS)
        assert (len(list(running)), loader.epoch) == (3, 1)
        assert len(list(self.native_epoch(native))) == 4

    def test_native_and_the_loader_are_one_stream(self) -> None:
        mine, theirs = (self.loader(sample_files(30), **OPTIONS) for _ in range(2))
        native = self.native(mine, *FIELDS)
        for turn in range(4):
            if turn % 2:
                for found, wanted in zip(mine, theirs, strict=True):
                    assert_equal(as_numpy(mine, found), as_numpy(theirs, wanted))
            else:
                self.compared(mine, native, theirs)

    def test_native_goes_on_from_a_state(self) -> None:
        theirs, mine = (self.loader(sample_files(30), **OPTIONS) for _ in range(2))
        next(iter(theirs))
        mine.load_state_dict(theirs.state_dict())
        theirs.load_state_dict(theirs.state_dict())
        native = self.native(mine, *FIELDS)
        assert [self.compared(mine, native, theirs) for _ in range(2)] == [3, 4]
        assert mine.state_dict() == theirs.state_dict()

    def test_native_of_a_source_whose_samples_differ_in_size(self) -> None:
        from nvidia.dali import fn

        from portaloader.pipelines import pipeline

        items = [{"image": np.full((3 + i, 2, 3), i, np.uint8), "word": np.arange(i + 1)} for i in range(6)]

        @pipeline
        def filled(sample: Any) -> Any:
            return {"image": fn.resize(sample["image"], size=[4, 4]), "word": fn.pad(sample["word"], shape=[6])}

        mine, theirs = (self.loader(items, filled, batch_size=4) for _ in range(2))
        assert self.compared(mine, self.native(mine, "image", "word"), theirs, ("image", "word")) == 2

    def test_native_takes_nested_fields(self) -> None:
        loader = self.loader(Numbers(4), passed_through, batch_size=2)
        for batch in self.native_epoch(self.native(loader, ("value", "id"), "id")):
            self.check_nested(batch, loader)

    def check_nested(self, batch: Any, loader: Loader[Any]) -> None:
        """A batch of ``native(("value", "id"), "id")``."""
        (value, first), second = batch
        found = [loader.adapter.to_numpy(tensor).tolist() for tensor in (value, first, second)]
        assert found[0] == found[1] == found[2]

    # -- when something goes wrong ----------------------------------------------------------------------------------

    def test_native_error_comes_in_its_place(self) -> None:
        source = Numbers(10, broken=(5,))
        loader = self.loader(source, passed_through, batch_size=2, shuffle=False, prefetch=3)
        native = self.native(loader, "value")
        batches = self.native_epoch(native)
        taken: list[list[int]] = []
        with pytest.raises(self.native_error, match=r"sample 5 \(item 5 of Numbers\).*OSError: item 5 is out of order"):
            taken.extend(loader.adapter.to_numpy(batch[0]).tolist() for batch in batches)
        assert taken == [[0, 1], [2, 3]]
        source.broken = ()
        assert self.native_values(native, loader) == [[i, i + 1] for i in range(0, 10, 2)]

    def test_native_of_a_closed_loader_says_so(self) -> None:
        loader = self.loader(Numbers(4), passed_through, batch_size=2)
        native = self.native(loader, "value")
        loader.close()
        with pytest.raises(LoaderError, match="the loader is closed; make another with get_loader"):
            loader.native()
        with pytest.raises(self.native_error, match="the loader is closed; make another with get_loader"):
            next(self.native_epoch(native))

    def test_native_refuses_ragged_outputs(self) -> None:
        loader = self.loader([{"value": np.zeros(i, np.float32)} for i in (2, 3)], passed_through, shuffle=False)
        with pytest.raises((self.native_error, RaggedError), match=self.ragged):
            list(self.native_epoch(self.native(loader, "value")))

    @pytest.mark.parametrize("fields", [("nothing",), ("value", ("id", "nothing")), ((),), (3,)])
    def test_native_refuses_unknown_outputs(self, fields: Any) -> None:
        loader = self.loader(Numbers(4), passed_through)
        with pytest.raises(ArgumentError, match="native.. was asked for .*; the outputs are 'id', 'value'"):
            loader.native(*fields)

    def test_native_refuses_unknown_options(self) -> None:
        loader = self.loader(Numbers(4), passed_through)
        with pytest.raises(ArgumentError, match="native.. was given nothing; .*no such option"):
            loader.native(nothing=3)
