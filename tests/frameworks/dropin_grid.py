"""Runs DALI's MXNet iterators over a grid of settings, and prints every batch of several epochs as JSON.

One script for both sides of a comparison: with DALI 1.35 they are DALI's own, the last ones; with DALI 2 portaloader's.
The outputs are the bytes of small files and labels, for the two releases decode images differently.
"""

import inspect
import itertools
import json
import sys
import tempfile
import warnings
from dataclasses import astuple, dataclass
from pathlib import Path

EPOCHS = 4
SAMPLES = 13


@dataclass(frozen=True)
class Case:
    counted: str  # by the "reader", by a "size" that is given, or by the external "source"
    style: str
    samples: int
    batch: int
    shards: int
    first: int = 0  # the shard of the first pipeline
    pipes: int = 1
    policy: str = "FILL"
    padded: bool = False
    stick: bool = False
    shuffle: str = "none"
    auto_reset: object = False
    prepare: bool = True
    reset: bool = True  # explicitly, after each epoch; without it iter() does
    early: bool = False  # a reset after each epoch's first batch, which is ignored

    def __str__(self):
        return "-".join(map(str, astuple(self)))


def cases():
    """The grid. What the counters have no business with takes turns."""
    turns = zip(
        itertools.cycle(["generic", "gluon"]),
        itertools.cycle([False, "yes", True]),
        itertools.cycle([True, True, False, True, False]),
        itertools.cycle([True, True, False, False, True, True, False]),
        itertools.cycle([False] * 6 + [True] * 5),
        strict=False,
    )
    places = [(1, 0, 1), (3, 1, 1), (2, 0, 2), (3, 0, 3)]
    policies = ["FILL", "DROP", "PARTIAL"]
    for samples, batch, place, policy, padded, stick, shuffle in itertools.product(
        (5, 8, SAMPLES), (2, 3, 4), places, policies, (False, True), (False, True), ("none", "epoch", "buffer")
    ):
        if not (stick and (shuffle == "epoch" or place[0] == 1)):
            style, auto_reset, prepare, reset, early = next(turns)
            yield Case(
                "reader", style, samples, batch, *place, policy, padded, stick, shuffle, auto_reset, prepare, reset, early
            )
    for samples, batch, pipes, policy, padded, style in itertools.product(
        (5, 12, SAMPLES), (2, 4), (1, 2, 3), policies, (False, True), ("generic", "gluon")
    ):
        _, auto_reset, prepare, reset, early = next(turns)
        yield Case(
            "size", style, samples, batch, pipes, 0, pipes, policy, padded, False, "none", auto_reset, prepare, reset, early
        )
    for style, auto_reset, prepare in itertools.product(("generic", "gluon"), (False, "yes"), (False, True)):
        yield Case("source", style, 7, 3, 1, auto_reset=auto_reset, prepare=prepare)


def files(folder):
    paths = [Path(folder) / f"{i:02}" for i in range(SAMPLES)]
    for i, path in enumerate(paths):
        path.write_bytes(bytes([i, 255 - i, 7 * i]))
    return list(map(str, paths))


def pipeline(case, paths, shard):
    from nvidia.dali import Pipeline, fn, types

    made = Pipeline(batch_size=case.batch, num_threads=1, device_id=None, prefetch_queue_depth=1 + case.samples % 2)
    with made:
        if case.counted == "source":
            data = fn.external_source(source=numbers(case), batch=False, dtype=types.INT64)
            made.set_outputs(data, data[:1])
            return made
        shuffled = {
            "none": {},
            "epoch": {"shuffle_after_epoch": True},
            "buffer": {"random_shuffle": True, "initial_fill": 3, "seed": 11},
        }
        data, label = fn.readers.file(
            files=paths[: case.samples],
            labels=list(range(case.samples)),
            shard_id=shard,
            num_shards=case.shards,
            pad_last_batch=case.padded,
            stick_to_shard=case.stick,
            name="numbers",
            **shuffled[case.shuffle],
        )
        if case.shuffle == "epoch":
            data = fn.cat(data, fn.external_source(source=run_number, batch=False, dtype=types.UINT8))
        made.set_outputs(data, label)
    return made


def numbers(case):
    import numpy as np

    def sample(info):
        if info.idx_in_epoch >= case.samples // case.batch * case.batch:
            raise StopIteration
        return np.array([info.epoch_idx, info.idx_in_epoch])

    return sample


def run_number(info):
    import numpy as np

    return np.array([info.iteration], np.uint8)


def options(plugin, case):
    """Of the iterator, but for what an output is called."""
    counted = {
        "reader": {"reader_name": "numbers"},
        "size": {"size": case.samples, "last_batch_padded": case.padded},
        "source": {},
    }[case.counted]
    policy = getattr(plugin.LastBatchPolicy, case.policy)
    return {"auto_reset": case.auto_reset, "prepare_first_batch": case.prepare, "last_batch_policy": policy, **counted}


def iterator(plugin, case, pipes):
    if case.style == "gluon":
        return plugin.DALIGluonIterator(pipes, **options(plugin, case))
    layout = {"squeeze_labels": False, "data_layout": "NHWC"} if case.batch == 3 else {}
    return plugin.DALIClassificationIterator(pipes, **options(plugin, case), **layout)


def walked(made, case, told):
    """Of several epochs the length and the batches, each as it is told."""
    found = []
    for _ in range(EPOCHS):
        batches = []
        found.append([None if case.counted == "source" else len(made), batches])
        for batch in made:
            batches.append(told(batch))
            if case.early and len(batches) == 1 < len(made):
                made.reset()
        if case.reset:
            made.reset()
    return found


class Reader:
    """What a pipeline gives without an iterator. Of ``shuffle_after_epoch`` the releases make different orders, so a batch of
    it is told by the number of the run that made it, and by whether its values are the ones of that run."""

    def __init__(self, pipe):
        pipe.build()
        self.pipe, self.runs = pipe, []

    def told(self, data, label):
        run = data[0][-1] if data else None
        while run is not None and run >= len(self.runs):
            self.runs.append([output.as_array().tolist() for output in self.pipe.run()])
        return run, run is None or [data, label] == [values[: len(data)] for values in self.runs[run]]


def described(part, reader):
    arrays, pad = ((*part.data, *part.label), int(part.pad)) if hasattr(part, "data") else (part, None)
    values = [array.asnumpy().tolist() for array in arrays]
    if reader:
        values = reader.told(values[0], arrays[1].asnumpy().reshape(-1, 1).tolist())
    return [pad, values, [[str(array.dtype.__name__), list(array.shape)] for array in arrays]]


def provided(made):
    return [[d.name, list(d.shape), str(d.dtype.__name__), d.layout] for d in made.provide_data + made.provide_label]


def run(plugin, case, paths):
    shards = range(case.first, case.first + case.pipes)
    readers = [Reader(pipeline(case, paths, shard)) if case.shuffle == "epoch" else None for shard in shards]
    try:
        made = iterator(plugin, case, [pipeline(case, paths, shard) for shard in shards])
    except (AssertionError, RuntimeError) as error:
        return f"refused: {type(error).__name__}"
    # A look at what is provided makes the first batch, which counts twice in DALI 1.35 where it is the epoch's only one.
    before = provided(made) if case.style == "generic" and case.prepare else None
    found = walked(made, case, lambda batch: [described(*pair) for pair in zip(batch, readers, strict=False)])
    after = provided(made) if case.style == "generic" and any(batches for _, batches in found) else None
    return [before, found, after]


def faults(plugin, paths):
    """What DALI 1.35 does that is no example to follow; each with an epoch of one batch, of labels 0 to 3."""
    reader = Case("reader", "generic", 4, 4, 1)
    scalars = Case("reader", "generic", 4, 1, 1)

    def one(case=reader, **changed):
        made = plugin.DALIClassificationIterator(pipeline(case, paths, 0), **{**options(plugin, case), **changed})
        return made, lambda: [batch[0].label[0].asnumpy().tolist() for batch in made]

    def reset_before_the_first_batch():
        made, labels = one()
        made.reset()
        return labels()

    def provide_data_before_the_first_batch():
        made, labels = one(prepare_first_batch=False)
        return [provided(made)[1][1], labels()]

    def named(*names):
        output_map = [(name, plugin.DALIGenericIterator.LABEL_TAG) for name in names]
        return lambda: provided(plugin.DALIGenericIterator(pipeline(reader, paths, 0), output_map, reader_name="numbers"))

    def auto_reset_of_a_word():
        return one(auto_reset="False")[0]._auto_reset

    def labels_without_an_axis():
        from nvidia.dali import Pipeline, fn

        with Pipeline(batch_size=1, num_threads=1, device_id=None) as pipe:
            data, label = fn.readers.file(files=paths[:2], labels=[5, 6], name="numbers")
            pipe.set_outputs(data, fn.squeeze(label, axes=0))
        return [batch[0].label[0].asnumpy().tolist() for batch in iterator(plugin, scalars, [pipe])]

    found = {}
    for fault in (
        reset_before_the_first_batch,
        provide_data_before_the_first_batch,
        auto_reset_of_a_word,
        labels_without_an_axis,
    ):
        found[fault.__name__] = outcome(fault)
    return {**found, "too_few_names": outcome(named("a")), "too_many_names": outcome(named("a", "b", "c"))}


def outcome(call):
    try:
        return call()
    except Exception as error:
        return type(error).__name__


def main():
    import portaloader.compat

    portaloader.compat.install()
    warnings.simplefilter("ignore")
    import nvidia.dali
    from nvidia.dali.plugin import mxnet as plugin

    names = ("DALIGenericIterator", "DALIClassificationIterator", "DALIGluonIterator", "feed_ndarray", "get_mx_array")
    found = {
        "dali": nvidia.dali.__version__,
        "module": plugin.__name__,
        "signatures": {name: parameters(getattr(plugin, name)) for name in names},
    }
    with tempfile.TemporaryDirectory() as folder:
        paths = files(folder)
        found["faults"] = faults(plugin, paths)
        found["cases"] = {str(case): run(plugin, case, paths) for case in cases()}
    json.dump(found, sys.stdout)


def parameters(called):
    return [[p.name, str(p.default)] for p in inspect.signature(called).parameters.values()]


if __name__ == "__main__":
    main()
