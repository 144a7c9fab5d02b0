"""What all parts of the contract stand on: loaders on the device under test, closed after the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest

import portaloader
from portaloader.loader import Loader
from portaloader.testing.helpers import as_numpy, sample_files

READERS = 10  # files


def numbered(**settings: Any) -> Callable[..., Any]:
    """A ``@pipeline_def`` function over ten bundled images, whose labels are their numbers."""
    from nvidia.dali import fn, pipeline_def

    files = [str(item["image"]) for item in sample_files(READERS)]

    @pipeline_def(num_threads=2, batch_size=4)  # type: ignore[untyped-decorator]
    def numbered(pad: bool = False, stick: bool = False, shard_id: int = 0, num_shards: int = 1) -> Any:
        encoded, label = fn.readers.file(
            files=files,
            labels=list(range(READERS)),
            pad_last_batch=pad,
            stick_to_shard=stick,
            shard_id=shard_id,
            num_shards=num_shards,
            random_shuffle=True,
            name="files",
        )
        image = fn.decoders.image_random_crop(encoded, device=settings.get("device", "cpu"))
        return fn.resize(image, size=[16, 16], name="image"), fn.copy(label, name="label")

    return numbered  # type: ignore[no-any-return]


class LoaderTests:
    """Inherit it, and name the framework. With pytest's option ``--device gpu``, batches are made on a GPU."""

    framework: ClassVar[str]

    @pytest.fixture(autouse=True)
    def _device(self, request: pytest.FixtureRequest) -> Iterator[None]:
        self.device = request.config.getoption("--device", default="cpu")
        self._open: list[Loader[Any]] = []
        yield
        for loader in self._open:
            loader.close()

    def loader(self, source: Any = None, pipeline: Any = None, framework: str | None = None, **options: Any) -> Loader[Any]:
        """A loader on the device under test, closed after the test."""
        options = {"device": self.device, **options}
        made = portaloader.get_loader(source, pipeline, framework=framework or self.framework, **options)
        self._open.append(made)
        return made

    def own(self, framework: str | None = None, **options: Any) -> Loader[Any]:
        """A loader of :func:`numbered`."""
        function = numbered(device="mixed" if self.device == "gpu" else "cpu")
        return self.loader(None, function, framework, **options)

    def check_own_memory(self, loader: Loader[Any]) -> None:
        """Of a loader of :func:`~portaloader.testing.helpers.views_of` six values, one by one: no two tensors share memory."""
        held = [batch for _ in range(2) for batch in loader]
        assert len(held) == 12
        for i, batch in enumerate(held):
            found = {name: values.ravel().tolist() for name, values in as_numpy(loader, batch).items() if name != "id"}
            value = [i % 6, i % 6 + 1, i % 6 + 2]
            assert found == {"value": value, "again": value, "row": value, "pair": [1, 2], "one": [1]}
        pointers = [loader.adapter.data_pointer(tensor) for batch in held for tensor in batch.values()]
        if None not in pointers:  # where the framework shows them
            assert len(set(pointers)) == len(pointers)
