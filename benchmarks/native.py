"""Throughput of `native()` against DALI's own iterator over the same pipeline, and of TensorFlow's against tf.data's own.

    python benchmarks/native.py [--jobs torch,tensorflow,jax,mxnet,paddle,tf.data] [--rounds 24]

The pipeline is DALI's usual one for training: its file reader, decoding with a random crop, a resize to 224, flip,
normalisation. Both sides run epochs of 16 batches in turn. Two pipelines that are alike may differ by some percent, so both
are made anew every four rounds, and the ratio is taken pair by pair, of wall time and of the processor time of all threads.
Each job runs in a process of its own.

For MXNet and Paddle, for which DALI has no iterator on a CPU, the drop-in iterators run against DALI's for PyTorch.

The last row is another job: the loader's planned recipe as a `tf.data.Dataset`, against tf.data's own operators for the same
(decode_and_crop_jpeg of a distorted box, resize, flip, normalise).
"""

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from loader_overhead import photographs
from rich.console import Console
from rich.table import Table

import portaloader

BATCH, IMAGES, SIZE, AFRESH = 64, 1024, 224, 4
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
OURS, THEIRS = "ours", "theirs"
THREADS = len(os.sched_getaffinity(0))


def training_pipeline():
    from nvidia.dali import fn, pipeline_def

    @pipeline_def(batch_size=BATCH, num_threads=THREADS, device_id=None, seed=3)
    def training(files):
        encoded, label = fn.readers.file(
            files=files, labels=[i % 10 for i in range(len(files))], random_shuffle=True, initial_fill=64, name="reader"
        )
        image = fn.resize(fn.decoders.image_random_crop(encoded), size=[SIZE, SIZE])
        mirror = fn.random.coin_flip()
        mean, std = ([255 * value for value in values] for values in (MEAN, STD))
        return fn.crop_mirror_normalize(image, mirror=mirror, mean=mean, std=std, name="image"), fn.copy(label, name="label")

    return training


def ours(framework, files):
    if framework in {"mxnet", "paddle"}:
        return generic(framework, files)
    loader = portaloader.get_loader(
        pipeline=training_pipeline(), files=files, framework=framework, device="cpu", last_batch="drop"
    )
    native = loader.native("image", "label")
    if framework == "torch":
        from torch.utils.data import DataLoader

        native = DataLoader(native, batch_size=None)
    return lambda: sum(1 for _ in native)


def theirs(framework, files):
    if framework == "tensorflow":
        pipe = training_pipeline()(files=files)
        import tensorflow as tf
        from nvidia.dali.plugin.tf import DALIDataset

        with tf.device("cpu:0"):
            endless = iter(
                DALIDataset(pipe, batch_size=BATCH, num_threads=THREADS, device_id=None, output_dtypes=(tf.float32, tf.int32))
            )
        return lambda: sum(1 for _ in (next(endless) for _ in range(len(files) // BATCH)))
    return generic("jax" if framework == "jax" else "pytorch", files)


def generic(plugin, files):
    """DALI's iterator for a framework, or the drop-in with its name."""
    from nvidia.dali.plugin.base_iterator import LastBatchPolicy

    found = "portaloader.compat.plugin" if plugin in {"mxnet", "paddle"} else "nvidia.dali.plugin"
    names = [("image", "data"), ("label", "label")] if plugin == "mxnet" else ["image", "label"]
    kind = importlib.import_module(f"{found}.{plugin}").DALIGenericIterator
    options = {"reader_name": "reader", "auto_reset": True, "last_batch_policy": LastBatchPolicy.DROP}
    batches = kind([training_pipeline()(files=files)], names, **options)
    return lambda: sum(1 for _ in batches)


def planned(files):
    loader = portaloader.get_loader(
        [(file, i % 10) for i, file in enumerate(files)], framework="tensorflow", device="cpu", batch_size=BATCH
    )
    native = loader.native("image", "label")
    return lambda: sum(1 for _ in native)


def tfs_own(files):
    import tensorflow as tf

    def image(file, label):
        encoded = tf.io.read_file(file)
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            tf.image.extract_jpeg_shape(encoded),
            tf.zeros((1, 0, 4)),
            aspect_ratio_range=(3 / 4, 4 / 3),
            area_range=(0.08, 1.0),
            use_image_if_no_bounding_boxes=True,
        )
        window = tf.concat([begin[:2], size[:2]], 0)
        pixels = tf.image.resize(tf.image.decode_and_crop_jpeg(encoded, window, channels=3), (SIZE, SIZE))
        pixels = (tf.image.random_flip_left_right(pixels) / 255.0 - MEAN) / STD
        return tf.transpose(pixels, (2, 0, 1)), label

    labels = tf.constant([i % 10 for i in range(len(files))], tf.int64)
    batches = (
        tf.data.Dataset.from_tensor_slices((files, labels))
        .shuffle(len(files))
        .map(image, num_parallel_calls=tf.data.AUTOTUNE)
        .batch(BATCH)
        .prefetch(tf.data.AUTOTUNE)
    )
    return lambda: sum(1 for _ in batches)


def measure(job, files, rounds):
    """Seconds of an epoch of each side, in turn: wall and processor time."""
    makers = {OURS: lambda: ours(job, files), THEIRS: lambda: theirs(job, files)}
    if job == "tf.data":
        makers = {OURS: lambda: planned(files), THEIRS: lambda: tfs_own(files)}
    pairs = []
    for number in range(rounds):
        if number % AFRESH == 0:
            sides = {}
            for side in (OURS, THEIRS) if number % (2 * AFRESH) else (THEIRS, OURS):
                sides[side] = makers[side]()
                sides[side]()  # warm
        spent = {}
        for side in (OURS, THEIRS) if number % 2 else (THEIRS, OURS):
            began = time.perf_counter(), time.process_time()
            batches = sides[side]()
            spent[side] = time.perf_counter() - began[0], time.process_time() - began[1]
            if batches != len(files) // BATCH:
                raise RuntimeError(f"{side} made {batches} batches, not {len(files) // BATCH}")
        pairs.append((*spent[OURS], *spent[THEIRS]))
    return pairs


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", default="torch,tensorflow,jax,mxnet,paddle,tf.data")
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        files = sorted(str(file) for file in Path(options.folder).glob("*.jpg"))
        files = (files * IMAGES)[:IMAGES]
        print(json.dumps(measure(options.worker, files, options.rounds)))
        return
    table = Table(title="images/s of native() / DALI's own iterator")
    for column in ("", "theirs, images/s", "ratio: median", "quartiles", "extremes", "CPU time: median"):
        table.add_column(column, justify="right" if column else "left")
    with tempfile.TemporaryDirectory() as folder:
        photographs(Path(folder))
        for name in options.jobs.split(","):
            command = [sys.executable, __file__, "--worker", name, "--folder", folder, "--rounds", str(options.rounds)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            pairs = json.loads(done.stdout.splitlines()[-1])
            ratios = [theirs / mine for mine, _, theirs, _ in pairs]
            cpu = statistics.median(theirs / mine for _, mine, _, theirs in pairs)
            speed = IMAGES / statistics.median(theirs for *_, theirs, _ in pairs)
            lower, middle, upper = statistics.quantiles(ratios, n=4)
            spread = (f"{lower:.3f} to {upper:.3f}", f"{min(ratios):.3f} to {max(ratios):.3f}")
            table.add_row(name, f"{speed:.0f}", f"{middle:.3f}", *spread, f"{cpu:.3f}")
    Console().print(table)


if __name__ == "__main__":
    main()
