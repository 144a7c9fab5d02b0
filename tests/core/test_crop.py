"""The recipe's random resized crop, against torchvision's RandomResizedCrop.get_params written in NumPy."""

import math

import numpy as np
import pytest

import portaloader
from portaloader.recipes.classification import crop_window

SHAPES = [(480, 640), (224, 224), (60, 300), (300, 60), (20, 400), (400, 20), (9, 7), (2, 3)]
"""Heights and widths in pixels. The long ones often need the fallback, 20 x 400 always."""
SAMPLES = 2000
"""Crops of each shape that are looked at."""
REFERENCE = 20_000
SCALE, RATIO, ATTEMPTS = (0.08, 1.0), (3 / 4, 4 / 3), 10
SQUARE, SLIM = {"scale": (0.05, 0.5), "ratio": (1.0, 1.0)}, {"scale": (0.1, 0.5), "ratio": (0.25, 0.5)}


@portaloader.pipeline
def windows(sample, scale=SCALE, ratio=RATIO):
    start, extent = crop_window(sample["height"], sample["width"], scale, ratio)
    return {"start": start, "extent": extent}


def crops(shapes, samples=SAMPLES, **arguments):
    """For each shape, ``samples`` rows of top, left, height, width."""
    source = [{"height": height, "width": width} for height, width in shapes for _ in range(samples)]
    options = {"framework": "numpy", "batch_size": 1000, "shuffle": False, "seed": 11}
    with portaloader.get_loader(source, windows, **options, **arguments) as loader:
        rows = [np.concatenate([batch["start"], batch["extent"]], axis=1) for batch in loader]
    return dict(zip(shapes, np.concatenate(rows).reshape(len(shapes), samples, 4), strict=True))


def fallback(height, width, ratio=RATIO):
    """torchvision's crop after ten attempts in vain."""
    w, h = width, height
    if width / height < min(ratio):
        h = round(width / min(ratio))
    elif width / height > max(ratio):
        w = round(height * max(ratio))
    return [(height - h) // 2, (width - w) // 2, h, w]


def reference(shape, count=REFERENCE, scale=SCALE, ratio=RATIO, seed=0):
    """As torchvision draws them: ten attempts in turn, the first one that fits, else the fallback."""
    random = np.random.default_rng(seed)
    height, width = shape
    rows = np.tile(fallback(height, width, ratio), (count, 1))
    open_ = np.ones(count, dtype=bool)
    for _ in range(ATTEMPTS):
        area = height * width * random.uniform(*scale, count)
        aspect = np.exp(random.uniform(*np.log(ratio), count))
        w, h = np.rint(np.sqrt(area * aspect)).astype(int), np.rint(np.sqrt(area / aspect)).astype(int)
        fits = open_ & (w >= 1) & (w <= width) & (h >= 1) & (h <= height)
        top, left = random.integers(0, (height - h).clip(0) + 1), random.integers(0, (width - w).clip(0) + 1)
        rows[fits] = np.stack([top, left, h, w], axis=1)[fits]
        open_ &= ~fits
    return rows


def ks(a, b):
    """Two-sample Kolmogorov-Smirnov statistic over its critical value at 1e-6."""
    a, b = np.sort(a), np.sort(b)
    values = np.concatenate([a, b])
    distance = np.abs(np.searchsorted(a, values, "right") / len(a) - np.searchsorted(b, values, "right") / len(b)).max()
    return distance / math.sqrt(-math.log(1e-6 / 2) / 2 * (len(a) + len(b)) / len(a) / len(b))


def share_of_area(rows, shape):
    return rows[:, 2] * rows[:, 3] / (shape[0] * shape[1])


def log_ratio(rows, shape):
    return np.log(rows[:, 3] / rows[:, 2])


def place(rows, shape, axis):
    """Where the crop lies, 0 to 1, for those crops that leave a choice."""
    room = shape[axis] - rows[:, 2 + axis]
    return rows[room > 0, axis] / room[room > 0]


def is_fallback(rows, shape):
    return (rows == fallback(*shape)).all(axis=1)


def assert_same_share(found, expected):
    """Of two samples of yes and no, within six standard deviations."""
    p = np.concatenate([found, expected]).mean()
    assert abs(found.mean() - expected.mean()) <= 6 * math.sqrt(p * (1 - p) * (1 / len(found) + 1 / len(expected)))


@pytest.fixture(scope="module")
def all_crops():
    return crops(SHAPES)


@pytest.fixture(params=SHAPES, ids="{0[0]}x{0[1]}".format)
def shape(request):
    return request.param


def test_int32_within_the_image_and_not_empty(all_crops, shape):
    rows = all_crops[shape]
    assert rows.dtype == np.int32
    assert (rows[:, :2] >= 0).all()
    assert (rows[:, 2:] >= 1).all()
    assert (rows[:, :2] + rows[:, 2:] <= shape).all()


@pytest.mark.parametrize("measure", [share_of_area, log_ratio])
def test_size_is_distributed_as_torchvisions(all_crops, shape, measure):
    assert ks(measure(all_crops[shape], shape), measure(reference(shape), shape)) < 1


@pytest.mark.parametrize("axis", [0, 1], ids=["top", "left"])
def test_place_is_distributed_as_torchvisions(all_crops, shape, axis):
    found, expected = place(all_crops[shape], shape, axis), place(reference(shape), shape, axis)
    assert len(found) == len(expected) == 0 or ks(found, expected) < 1


def test_share_of_fallbacks(all_crops, shape):
    assert_same_share(is_fallback(all_crops[shape], shape), is_fallback(reference(shape), shape))


def test_the_shapes_have_crops_with_and_without_fallback(all_crops):
    assert is_fallback(all_crops[20, 400], (20, 400)).all()
    assert 0.05 < is_fallback(all_crops[60, 300], (60, 300)).mean() < 0.95
    assert not is_fallback(all_crops[480, 640], (480, 640)).all()


def test_the_first_and_the_last_place_are_reached(all_crops):
    rows = all_crops[9, 7]
    assert (rows[:, 0] == 0).any()
    assert (rows[:, 0] + rows[:, 2] == 9)[rows[:, 2] < 9].any()
    assert (rows[:, 1] + rows[:, 3] == 7)[rows[:, 3] < 7].any()


def test_top_and_left_are_independent(all_crops):
    rows = all_crops[480, 640]
    room = (480, 640) - rows[:, 2:]
    free = (room > 0).all(axis=1)
    places = rows[free, :2] / room[free]
    assert abs(np.corrcoef(places, rowvar=False)[0, 1]) < 6 / math.sqrt(len(places))


@pytest.mark.parametrize("arguments", [SQUARE, SLIM], ids=["square", "slim"])
def test_other_scales_and_ratios(arguments):
    shape = (120, 200)
    rows, expected = crops([shape], **arguments)[shape], reference(shape, **arguments)
    for measure in (share_of_area, log_ratio):
        assert ks(measure(rows, shape), measure(expected, shape)) < 1
    for axis in (0, 1):
        assert ks(place(rows, shape, axis), place(expected, shape, axis)) < 1


@pytest.mark.parametrize("ratio", [RATIO, (0.5, 2.0), (0.8, 1.25)], ids="{0[0]:.2f}-{0[1]:.2f}".format)
def test_the_fallback_is_torchvisions_to_the_pixel(ratio):
    """Also where half a pixel is to be rounded: 10 * 1.25 is 12, as Python rounds it."""
    for shape, rows in crops([(10, 400), (11, 400), (400, 10), (401, 13)], samples=5, ratio=ratio).items():
        assert rows.tolist() == [fallback(*shape, ratio)] * 5


def test_whole_image():
    rows = crops([(50, 50)], samples=100, scale=(1.0, 1.0), ratio=(1.0, 1.0))[50, 50]
    assert (rows == [0, 0, 50, 50]).all()


@pytest.mark.parametrize("shape", [(1, 1), (1, 500), (500, 1), (6000, 8000)])
def test_extreme_sizes_stay_inside(shape):
    rows = crops([shape], samples=200)[shape]
    assert (rows[:, :2] >= 0).all()
    assert (rows[:, 2:] >= 1).all()
    assert (rows[:, :2] + rows[:, 2:] <= shape).all()
