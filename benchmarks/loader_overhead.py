"""Throughput through the loader against the same DALI graph run bare, in each framework.

    python benchmarks/loader_overhead.py [--frameworks torch,jax] [--rounds 30] [--source FOLDER] [--device cpu]

Bare means what `pipeline.run()` does, `schedule_run()` and `outputs()` in turn, on the very graph that the loader built (two
graphs differ by some percent from process to process, whichever of them is the loader's; DALI lets no graph change from one
way of running to the other). It is fed with columns that were computed beforehand: neither plan nor keyed random numbers nor
source nor hand-over take part. Rounds alternate between the two, so drift of the machine
cancels; the ratio is taken pair by pair, of wall time and of the processor time of all threads, which other work on the
machine disturbs less. Each framework runs in a process of its own.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

import portaloader
from portaloader import registry
from portaloader.graph import Feed

LINES, IMAGES = 131_072, 512  # a data set of a usual size, and how many of it one rank sees in an epoch


class Replay(Feed):
    """A feed whose batches were computed beforehand."""

    def record(self, batches):
        self.batches = [self._read(rows) | drawn for rows, drawn in self._drawn(batches)]

    def advance(self):
        return next(self._coming)


def photographs(folder):
    """A list of 131,072 lines over 256 JPEG files, some 440 x 330 pixels, cut from scikit-image's and -learn's photographs."""
    import numpy as np
    import skimage
    import sklearn
    from PIL import Image

    files = [Path(sklearn.__file__).parent / "datasets/images" / name for name in ("china.jpg", "flower.jpg")]
    files += [
        Path(skimage.__file__).parent / "data" / name for name in ("rocket.jpg", "chelsea.png", "coffee.png", "astronaut.png")
    ]
    pictures = [Image.open(file).convert("RGB") for file in files]
    rng = np.random.default_rng(0)
    for number in range(256):
        picture = pictures[number % len(pictures)]
        width, height = rng.integers(380, 500), rng.integers(290, 375)
        left, top = (rng.integers(0, max(1, side - size)) for side, size in zip(picture.size, (width, height), strict=True))
        cut = picture.crop((left, top, left + width, top + height))
        cut.save(folder / f"{number:03}.jpg", quality=90)
    files = folder / "files.txt"
    files.write_text("".join(f"{number % 256:03}.jpg {number % 10}\n" for number in range(LINES)))
    return files


def measure(framework, source, device, rounds, batch_size=64):
    """Seconds of one epoch, through the loader and bare, in turn."""
    source = portaloader.sources.open_source(source)
    options = {"batch_size": batch_size, "device": device, "shard": (0, max(1, len(source) // IMAGES))}
    loader = portaloader.get_loader(source, framework=framework, last_batch="drop", **options)
    graph = loader._stream._engine._graph
    feed, replay = graph.feed, Replay(loader.source, 0)
    usual = feed.column
    replay._fields, replay._draws = feed._fields, feed._draws
    epoch = loader.plan.epoch(0)
    replay.record(epoch.batches())

    def bare():
        feed.column = replay.column
        replay._coming, replay._columns = iter(replay.batches), None
        graph.pipe.reset()
        graph.pipe.schedule_run()
        return sum(1 for _ in iter(following, None))

    def following():
        try:
            batch = graph.pipe.outputs()
        except StopIteration:
            return None
        graph.pipe.schedule_run()
        return batch

    def through():
        # The same epoch each time, so that both decode the same pixels.
        feed.column = usual
        loader.load_state_dict(start)
        return sum(1 for _ in loader)

    start = loader.state_dict()
    pairs = []
    for number in range(rounds + 1):
        wall, cpu = {}, {}
        for job in (through, bare) if number % 2 else (bare, through):
            began = time.perf_counter(), time.process_time()
            batches = job()
            wall[job.__name__], cpu[job.__name__] = time.perf_counter() - began[0], time.process_time() - began[1]
            if batches != epoch.steps:
                raise RuntimeError(f"{job.__name__} made {batches} batches, not {epoch.steps}")
        pairs.append((wall["through"], wall["bare"], cpu["through"], cpu["bare"]))
    return {"images": epoch.steps * batch_size, "pairs": pairs[1:]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--frameworks", default=",".join(f.name for f in registry.BUILT_IN.values() if f.is_installed()))
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--source")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(measure(options.worker, options.source, options.device, options.rounds)))
        return
    table = Table(title="images/s through the loader / bare")
    for column in ("framework", "bare, images/s", "ratio: median", "quartiles", "extremes", "CPU time: median"):
        table.add_column(column, justify="left" if column == "framework" else "right")
    with tempfile.TemporaryDirectory() as folder:
        source = options.source or str(photographs(Path(folder)))
        for name in options.frameworks.split(","):
            command = [sys.executable, __file__, "--worker", name, "--source", source, "--device", options.device]
            done = subprocess.run([*command, "--rounds", str(options.rounds)], capture_output=True, text=True, check=True)
            found = json.loads(done.stdout.splitlines()[-1])
            ratios = [bare / through for through, bare, *_ in found["pairs"]]
            cpu = statistics.median(bare / through for *_, through, bare in found["pairs"])
            speed = found["images"] / statistics.median(bare for _, bare, *_ in found["pairs"])
            lower, middle, upper = statistics.quantiles(ratios, n=4)
            spread = (f"{lower:.3f} to {upper:.3f}", f"{min(ratios):.3f} to {max(ratios):.3f}")
            table.add_row(name, f"{speed:.0f}", f"{middle:.3f}", *spread, f"{cpu:.3f}")
    Console().print(table)


if __name__ == "__main__":
    main()
