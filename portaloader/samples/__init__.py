"""Small sample images that come with the package: enough to train a toy classifier without a download.

One folder per split (``train``, ``held_back``), one folder per class inside it, small JPEG files inside that. They are
drawn, not photographed: each class is a pattern (checks, dots, rings, ...) in random colours, at a random scale and
angle, under uneven light. Sizes vary, and a few files are grayscale or progressive, as in real folders.

``tools/make_samples.py`` in the source repository draws them. Their licence is the project's: Apache-2.0.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

__all__ = ["path"]

_SPLITS = ("train", "held_back")


def path(split: Literal["train", "held_back"] = "train") -> Path:
    """Return the folder of one split; its sub-folders are the classes."""
    if split not in _SPLITS:
        raise ValueError(f"no sample split {split!r}: it is one of {', '.join(map(repr, _SPLITS))}")
    return Path(__file__).resolve().parent / split
