"""A counter for listings that take long: nothing for the first second, then one line on a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

_PATIENCE = 1.0  # seconds
_EVERY = 1024  # items between two looks at the clock


def counted(items: Iterable[T], what: str) -> Iterator[T]:
    """Pass ``items`` through; where that takes over a second, show on stderr how many have come."""
    began = shown = time.monotonic()
    visible = sys.stderr.isatty()
    printed = False
    for count, item in enumerate(items, start=1):
        yield item
        if count % _EVERY:
            continue
        now = time.monotonic()
        if visible and now - began > _PATIENCE and now - shown > 0.1:
            shown, printed = now, True
            print(f"\r{what}: {count:,}", end="", file=sys.stderr, flush=True)
    if printed:
        print(file=sys.stderr)
