"""One sample, augmented alike however it is delivered: the idea that the project stands on."""

import numpy as np
import pytest
from nvidia.dali import fn, types

import portaloader
from portaloader.testing.helpers import sample_files

FILES = sample_files(40)


@portaloader.pipeline
def augmented(sample, size=24):
    """Every distribution of portaloader.random, each with an effect on the pixels."""
    image = portaloader.recipes.classification(sample, size=size, layout="HWC", dtype="uint8")["image"]
    image = fn.rotate(image, angle=portaloader.random.uniform(-20, 20), keep_size=True, fill_value=0)
    image = fn.brightness_contrast(
        image,
        brightness=portaloader.random.choice([0.8, 1.0, 1.2]),
        contrast=1.0 + 0.1 * portaloader.random.normal(),
    )
    corner = fn.cast(portaloader.random.integers(0, 8, shape=2), dtype=types.FLOAT)
    image = fn.erase(image, anchor=corner, shape=[4.0, 4.0], axes=(0, 1), fill_value=7)
    return {"image": image, "label": sample["label"]}


def pixels(epoch=0, ranks=1, **options):
    """Sample id to pixels, for one epoch."""
    found = {}
    for rank in range(ranks):
        with portaloader.get_loader(
            FILES, augmented, framework="numpy", device="cpu", shard=(rank, ranks), epoch=epoch, **options
        ) as loader:
            for batch in loader:
                found |= dict(zip(batch["id"].tolist(), batch["image"].copy(), strict=True))
    assert sorted(found) == list(range(40))
    return found


@pytest.fixture(scope="module")
def reference():
    return pixels(batch_size=7)


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 1},
        {"batch_size": 32},
        {"batch_size": 7, "num_threads": 1},
        {"batch_size": 7, "num_threads": 5},
        {"batch_size": 7, "prefetch": 4},
        {"batch_size": 7, "shuffle": False},
        {"batch_size": 4, "ranks": 2},
        {"batch_size": 5, "ranks": 3, "num_threads": 3, "shuffle": False},
    ],
    ids=str,
)
def test_pixels_depend_on_nothing_else(reference, options):
    found = pixels(**options)
    assert all(np.array_equal(found[i], reference[i]) for i in reference)


@pytest.mark.parametrize("options", [{"epoch": 1}, {"seed": 1}], ids=str)
def test_pixels_depend_on_epoch_and_seed(reference, options):
    found = pixels(batch_size=7, **options)
    assert not any(np.array_equal(found[i], reference[i]) for i in reference)


def test_wrapped_samples_belong_to_the_next_epoch():
    options = {"framework": "numpy", "device": "cpu", "batch_size": 16}
    with (
        portaloader.get_loader(FILES, augmented, last_batch="wrap", **options) as wrapped,
        portaloader.get_loader(FILES, augmented, epoch=1, **options) as following,
    ):
        tail = [batch["image"].copy() for batch in wrapped][-1][8:]
        assert np.array_equal(tail, next(iter(following))["image"][:8])
