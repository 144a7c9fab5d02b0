"""What the pieces cost: the import, keyed random numbers, the first ids of a huge epoch, listing a large folder.

    python benchmarks/small_costs.py [--files 200000]

Each figure is the median of several runs, with the least and the greatest.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from portaloader import keyed
from portaloader.plan import Plan
from portaloader.plan import epoch as plan_epoch
from portaloader.sources import ImageFolder


def timed(job, runs):
    """Milliseconds of each run, after one that is not counted."""
    job()
    found = []
    for _ in range(runs):
        began = time.perf_counter()
        job()
        found.append(1e3 * (time.perf_counter() - began))
    return found


def import_time(runs=15):
    """Milliseconds that `import portaloader` adds to an interpreter, run by run."""
    code = "import time; t = time.perf_counter(); import portaloader; print(1e3 * (time.perf_counter() - t))"
    return [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
        for _ in range(runs)
    ]


def first_ids():
    plan_epoch._permutation.cache_clear()
    next(Plan(10**9, 64).epoch(3).batches())


def make_files(root, count):
    """Empty files in 100 folders: listing looks at names only."""
    for number in range(100):
        folder = root / f"class{number:02}"
        folder.mkdir()
        for i in range(count // 100):
            os.close(os.open(folder / f"image{i:06}.jpg", os.O_CREAT))


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--files", type=int, default=200_000)
    options = parser.parse_args()
    table = Table(title="milliseconds")
    for column in ("what", "median", "least", "greatest"):
        table.add_column(column, justify="left" if column == "what" else "right")

    def add(what, found):
        table.add_row(what, *(f"{f(found):.3f}" for f in (statistics.median, min, max)))

    ids = np.arange(256, dtype=np.int64)
    add("import portaloader", import_time())
    add("keyed numbers, 256 samples x 8 draws", timed(lambda: keyed.bits(1, 2, ids, 8), 500))
    add("first 64 ids of 10**9 shuffled", timed(first_ids, 200))
    tracemalloc.start()
    first_ids()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    with tempfile.TemporaryDirectory() as folder:
        make_files(Path(folder), options.files)
        add(f"listing a folder of {options.files:,} files", timed(lambda: ImageFolder(folder), 3))
        source = ImageFolder(folder)
        per_file = source._paths.nbytes / len(source)
    Console().print(table)
    print(f"memory peak of the first ids of 10**9: {peak / 1e3:.0f} kB; paths of the folder: {per_file:.0f} bytes a file")


if __name__ == "__main__":
    main()
