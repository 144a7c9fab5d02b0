"""Image classification: the usual ImageNet training and evaluation transforms."""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from typing import Any, Literal

from portaloader import random
from portaloader.errors import ArgumentError, PipelineError
from portaloader.pipelines import Node, Sample, pipeline

ATTEMPTS = 10
"""Crops that are tried before the fallback, as in torchvision."""


@pipeline
def classification(
    sample: Sample,
    *,
    train: bool = True,
    size: int = 224,
    resize: int = 256,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
    flip: float = 0.5,
    mean: Sequence[float] = (0.485, 0.456, 0.406),
    std: Sequence[float] = (0.229, 0.224, 0.225),
    layout: Literal["CHW", "HWC"] = "CHW",
    dtype: Literal["float32", "float16", "uint8"] = "float32",
) -> dict[str, Node]:
    """``image`` and, where the source has one, ``label`` (int64, shape (batch,)).

    ``image`` has shape (batch, 3, size, size), or (batch, size, size, 3) with ``layout="HWC"``; RGB.

    Args:
        sample: with the field ``image``: an image file, or pixels (height, width, 3) uint8.
        train: a random resized crop and a random flip; else resize and centre crop.
        size: height and width of the result, pixels.
        resize: evaluation: the shorter side before the crop, pixels.
        scale: training: the crop's share of the image's area, least and greatest.
        ratio: training: the crop's width / height, least and greatest; log-uniform.
        flip: training: probability of a horizontal flip.
        mean: of each channel, in units of a pixel value / 255; subtracted.
        std: of each channel, likewise; divided by.
        layout: order of the axes.
        dtype: "uint8" gives plain pixel values, without mean and std.

    Only the region that the crop needs is decoded. The crop's distribution is that of torchvision's RandomResizedCrop
    (C. Szegedy et al., "Going Deeper with Convolutions", CVPR 2015): ten attempts, then the centre at the nearest ratio.
    """
    from nvidia.dali import fn, types

    _check_pixels(sample)
    _check(size=size, resize=resize, scale=scale, ratio=ratio, layout=layout, dtype=dtype)
    if train:
        pixels = random_resized_crop(sample, size, scale, ratio)
        mirror = random.coin_flip(flip)
    else:
        pixels = fn.resize(_decode(sample), resize_shorter=resize, interp_type=types.INTERP_LINEAR)
        mirror = 0
    image = fn.crop_mirror_normalize(
        pixels,
        mirror=mirror,
        crop=(size, size),
        dtype=getattr(types, {"float32": "FLOAT", "float16": "FLOAT16", "uint8": "UINT8"}[dtype]),
        output_layout=layout,
        mean=[0.0] if dtype == "uint8" else [255 * m for m in mean],
        std=[1.0] if dtype == "uint8" else [255 * s for s in std],
    )
    return {"image": image, "label": sample["label"]} if "label" in sample else {"image": image}


def random_resized_crop(sample: Sample, size: int, scale: tuple[float, float], ratio: tuple[float, float]) -> Node:
    """The field ``image``, cropped at random and resized: (size, size, 3) uint8. Of a file, only the crop is decoded."""
    from nvidia.dali import fn, types

    encoded = sample.is_encoded("image")
    shape = fn.peek_image_shape(sample["image"]) if encoded else sample["image"].shape()
    start, extent = crop_window(shape[0], shape[1], scale, ratio)
    if encoded:
        crop = fn.decoders.image_slice(
            sample["image"],
            start=start,
            shape=extent,
            axis_names="HW",
            device=sample.decoder_device,
            output_type=types.RGB,
        )
    else:
        crop = fn.slice(_on_device(sample, sample["image"]), start=start, shape=extent, axis_names="HW")
    return fn.resize(crop, size=[size, size], interp_type=types.INTERP_LINEAR)


def crop_window(height: Node, width: Node, scale: tuple[float, float], ratio: tuple[float, float]) -> tuple[Node, Node]:
    """The crop of torchvision's RandomResizedCrop: its (top, left) and its (height, width), int32, each of shape (2,).

    All attempts are drawn at once, and the first one that fits into the image is taken, as if they had been drawn in turn.
    """
    from nvidia.dali import fn, math, types

    height, width = fn.cast(height, dtype=types.FLOAT), fn.cast(width, dtype=types.FLOAT)
    area = height * width * random.uniform(*_interval(scale), shape=ATTEMPTS)
    aspect = math.exp(random.uniform(*_interval((log(ratio[0]), log(ratio[1]))), shape=ATTEMPTS))
    tried_w, tried_h = math.floor(math.sqrt(area * aspect) + 0.5), math.floor(math.sqrt(area / aspect) + 0.5)
    fits = (tried_w > 0) & (tried_w <= width) & (tried_h > 0) & (tried_h <= height)
    # Rank the attempts that fit, the first one highest; the product of two comparisons picks it.
    rank = fn.cast(fits, dtype=types.FLOAT) * types.Constant([float(ATTEMPTS - i) for i in range(ATTEMPTS)])
    best = fn.reductions.max(rank)
    first = fn.cast((rank == best) & fits, dtype=types.FLOAT)
    found = fn.cast(best > 0.0, dtype=types.FLOAT)
    # The fallback: as much of the image as the nearest allowed ratio has, from its centre.
    full_w, full_h = math.min(width, _half_even(height * ratio[1])), math.min(height, _half_even(width / ratio[0]))
    crop_w = found * fn.reductions.sum(first * tried_w) + (1.0 - found) * full_w
    crop_h = found * fn.reductions.sum(first * tried_h) + (1.0 - found) * full_h
    top = _place(height - crop_h, random.uniform(), found)
    left = _place(width - crop_w, random.uniform(), found)
    start, extent = fn.stack(top, left), fn.stack(crop_h, crop_w)
    return fn.cast(start, dtype=types.INT32), fn.cast(extent, dtype=types.INT32)


def _half_even(value: Node) -> Node:
    """Rounded to whole numbers, halves to even ones, as Python's ``round`` does."""
    from nvidia.dali import fn, math, types

    up = math.floor(value + 0.5)
    odd_half = (value - math.floor(value) == 0.5) & (up != 2.0 * math.floor(up / 2.0))
    return up - fn.cast(odd_half, dtype=types.FLOAT)


def _place(room: Node, uniform: Node, found: Node) -> Node:
    """Where the crop begins: one of the room + 1 places, or the middle for the fallback."""
    from nvidia.dali import math

    return found * math.min(room, math.floor(uniform * (room + 1.0))) + (1.0 - found) * math.floor(room / 2.0)


def _decode(sample: Sample) -> Node:
    from nvidia.dali import fn, types

    if not sample.is_encoded("image"):
        return _on_device(sample, sample["image"])
    return fn.decoders.image(sample["image"], device=sample.decoder_device, output_type=types.RGB)


def _on_device(sample: Sample, node: Node) -> Node:
    return node.gpu() if sample.device == "gpu" else node


def _interval(bounds: tuple[float, float]) -> tuple[float, float]:
    """Bounds for a uniform draw, which wants a low below the high, also where both are the same number."""
    low, high = bounds
    return (low, high) if low < high else (low, low + 1e-9)


def _check_pixels(sample: Sample) -> None:
    found = sample.field("image")
    if found.kind == "array" and (found.dtype != "uint8" or found.ndim != 3 or (found.shape or (3,))[-1] != 3):
        shape = f"of shape {found.shape}" if found.shape is not None else f"with {found.ndim} axes"
        raise PipelineError(
            f"the field 'image' is {found.dtype} {shape}; this recipe takes image files, or pixels (height, width, 3) as "
            f"uint8, before any normalisation. Leave transforms out of the data set, or give a pipeline of your own."
        )


def _check(**arguments: Any) -> None:
    for name in ("size", "resize"):
        value = arguments[name]
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ArgumentError(f"{name}={value!r} was given; it is a number of pixels, at least 1.")
    for name in ("scale", "ratio"):
        low, high = arguments[name]
        if not 0 < low <= high:
            raise ArgumentError(f"{name}={arguments[name]!r} was given; it is (least, greatest), both above 0.")
    if arguments["layout"] not in ("CHW", "HWC"):
        raise ArgumentError(f'layout={arguments["layout"]!r} was given; it is "CHW" or "HWC".')
    if arguments["dtype"] not in ("float32", "float16", "uint8"):
        raise ArgumentError(f'dtype={arguments["dtype"]!r} was given; it is "float32", "float16" or "uint8".')
