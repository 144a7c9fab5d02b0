"""Draw the sample images that come with the package (``portaloader/samples``).

Every class is a pattern: checks, dots, rings, stripes or triangles. Colours, scale, angle, light, blur and noise are
drawn alike for all classes, so only the pattern tells the classes apart. Each image has its own random generator,
keyed by split, class and index: the same versions of NumPy and Pillow give the same bytes, whatever else is drawn.

    python tools/make_samples.py              # redraw portaloader/samples
    python tools/make_samples.py --out DIR    # draw elsewhere
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

if TYPE_CHECKING:
    from collections.abc import Callable

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

SEED = 20240229
SPLITS = ("train", "held_back")
SUPERSAMPLE = 3
LUMA = np.array([0.299, 0.587, 0.114])


# A pattern takes coordinates in units of its period and a random "fill" in [0, 1); it says which points are foreground.


def checks(u: Array, v: Array, fill: float) -> Mask:
    """A chessboard."""
    del fill
    mask: Mask = (np.floor(2 * u) + np.floor(2 * v)) % 2 == 0
    return mask


def dots(u: Array, v: Array, fill: float) -> Mask:
    """Discs on a square lattice."""
    return np.hypot(u % 1.0 - 0.5, v % 1.0 - 0.5) < 0.27 + 0.10 * fill


def rings(u: Array, v: Array, fill: float) -> Mask:
    """Annuli on a square lattice."""
    radius = np.hypot(u % 1.0 - 0.5, v % 1.0 - 0.5)
    return (radius < 0.44) & (radius > 0.20 + 0.06 * fill)


def stripes(u: Array, v: Array, fill: float) -> Mask:
    """Parallel bands."""
    del v
    return u % 1.0 < 0.35 + 0.3 * fill


def triangles(u: Array, v: Array, fill: float) -> Mask:
    """Equilateral triangles, point up, between triangles of the background, point down."""
    del fill
    b = v * 2 / np.sqrt(3.0)
    a = u - 0.5 * b
    mask: Mask = a % 1.0 + b % 1.0 < 1.0
    return mask


CLASSES = (checks, dots, rings, stripes, triangles)
PATTERNS: dict[str, Callable[[Array, Array, float], Mask]] = {pattern.__name__: pattern for pattern in CLASSES}


def two_colours(rng: np.random.Generator) -> tuple[Array, Array]:
    """Two random colours whose brightness differs enough to be seen, in grayscale too; either may be the brighter."""
    while True:
        one, two = rng.uniform(20, 235, size=(2, 3))
        if abs(LUMA @ (one - two)) > 80:
            return one, two


def coverage(pattern: Callable[[Array, Array, float], Mask], w: int, h: int, rng: np.random.Generator) -> Array:
    """The share of each pixel that is foreground, at a random scale, angle and position."""
    y, x = (np.mgrid[: h * SUPERSAMPLE, : w * SUPERSAMPLE] + 0.5) / SUPERSAMPLE
    period, angle = rng.uniform(24, 36), rng.uniform(0, 2 * np.pi)
    u = (np.cos(angle) * x + np.sin(angle) * y) / period + rng.uniform()
    v = (np.cos(angle) * y - np.sin(angle) * x) / period + rng.uniform()
    mask = pattern(u, v, rng.uniform())
    share: Array = mask.reshape(h, SUPERSAMPLE, w, SUPERSAMPLE).mean(axis=(1, 3))
    return share


def light(w: int, h: int, rng: np.random.Generator) -> Array:
    """Uneven light: a slope of brightness in a random direction."""
    y, x = np.mgrid[-1 : 1 : h * 1j, -1 : 1 : w * 1j]
    angle = rng.uniform(0, 2 * np.pi)
    level: Array = rng.uniform(0.8, 1.05) + rng.uniform(0, 0.2) * (np.cos(angle) * x + np.sin(angle) * y)
    return level


def draw(name: str, rng: np.random.Generator) -> Image.Image:
    """One image of the class."""
    w, h = (int(n) for n in rng.integers(80, 145, size=2))
    fore, back = two_colours(rng)
    share = coverage(PATTERNS[name], w, h, rng)[..., None]
    pixels = (share * fore + (1 - share) * back) * light(w, h, rng)[..., None]
    pixels += rng.normal(0, rng.uniform(0, 2), size=(h, w, 1))
    image = Image.fromarray(pixels.round().clip(0, 255).astype(np.uint8))
    return image.filter(ImageFilter.GaussianBlur(rng.uniform(0.5, 1.1)))


def encode(image: Image.Image, rng: np.random.Generator) -> bytes:
    """JPEG bytes, 4:2:0; a few files are grayscale, a few progressive."""
    gray, progressive = rng.uniform(size=2) < (0.03, 0.05)
    if gray:
        image = image.convert("L")
    out = io.BytesIO()
    quality = int(rng.integers(42, 59))
    image.save(out, "JPEG", quality=quality, subsampling="4:2:0", optimize=True, progressive=bool(progressive))
    return out.getvalue()


def sample(split: str, name: str, index: int) -> bytes:
    """The bytes of one sample file: a function of its split, class and index only."""
    rng = np.random.default_rng([SEED, SPLITS.index(split), list(PATTERNS).index(name), index])
    return encode(draw(name, rng), rng)


def main() -> None:
    """Draw every sample, in place of those that are there."""
    parser = argparse.ArgumentParser(description="Draw the package's sample images.")
    default = Path(__file__).resolve().parent.parent / "portaloader" / "samples"
    parser.add_argument("--out", type=Path, default=default, help="folder to write to (default: portaloader/samples)")
    parser.add_argument("--train", type=int, default=80, help="images per class in train (default: %(default)s)")
    parser.add_argument("--held-back", type=int, default=20, help="images per class held back (default: %(default)s)")
    args = parser.parse_args()

    files = total = 0
    for split, count in zip(SPLITS, (args.train, args.held_back), strict=True):
        for name in PATTERNS:
            folder = args.out / split / name
            folder.mkdir(parents=True, exist_ok=True)
            for old in folder.glob("[0-9][0-9][0-9].jpg"):
                old.unlink()
            for index in range(count):
                total += (folder / f"{index:03d}.jpg").write_bytes(sample(split, name, index))
                files += 1
    print(f"{files} files, {total} bytes")


if __name__ == "__main__":
    main()
