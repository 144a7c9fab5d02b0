"""DALI pipelines as they are: what is found without being told, what is refused, and DALI's own counting."""

import itertools

import numpy as np
import pytest
from nvidia.dali import Pipeline, fn, pipeline_def, types
from nvidia.dali.plugin.base_iterator import LastBatchPolicy

import portaloader
from portaloader.errors import (
    ArgumentError,
    DeviceError,
    LengthError,
    LoaderError,
    PipelineError,
    PipelineRunError,
    PlanError,
    StateError,
)
from portaloader.testing.helpers import sample_files

FILES = [str(item["image"]) for item in sample_files(60)]


@pipeline_def
def numbers(size=10, pad=True, shard_id=0, num_shards=1, stick=False):
    """Labels only: the files are read and not decoded."""
    _, label = fn.readers.file(
        files=FILES[:size],
        labels=list(range(size)),
        shard_id=shard_id,
        num_shards=num_shards,
        pad_last_batch=pad,
        stick_to_shard=stick,
        name="numbers",
    )
    return fn.copy(label, name="label")


def load(pipeline=numbers, **options):
    return portaloader.get_loader(pipeline=pipeline, framework="numpy", device="cpu", **options)


def labels(loader):
    return [batch["label"].tolist() for batch in loader]


def test_settings_of_the_decorator_stand_unless_others_are_asked_for():
    decorated = pipeline_def(batch_size=3, num_threads=1, seed=5)(lambda: fn.random.uniform(name="number"))
    for asked, expected in (({}, (3, 1, 5)), ({"batch_size": 4, "num_threads": 2, "seed": 6}, (4, 2, 6))):
        with load(decorated, **asked) as loader:
            pipe = loader._stream._pipe
            assert (pipe.max_batch_size, pipe.num_threads, pipe.seed) == expected
            assert next(iter(loader))["number"].shape == (expected[0],)
    with load() as loader:
        assert loader._stream._pipe.max_batch_size == 32


def test_arguments_of_the_function_and_of_dalis_pipeline():
    with load(size=7, batch_size=4, set_affinity=False) as loader:
        assert labels(loader) == [[0, 1, 2, 3], [4, 5, 6]]
    with pytest.raises(ArgumentError, match=r"numbers\(\): .*'sizes'. It takes: size, pad, shard_id, num_shards, stick"):
        load(sizes=7)


@pytest.mark.parametrize("built", [False, True])
def test_a_pipeline_object(built):
    pipe = numbers(size=5, batch_size=2, num_threads=1, device_id=None)
    if built:
        pipe.build()
    with load(pipe, batch_size=2) as loader:
        assert labels(loader) == [[0, 1], [2, 3], [4]]
        with pytest.raises(LoaderError, match="readers of its own"):
            loader.source.describe(0)
        with pytest.raises(StateError, match=r"portaloader\.pipeline"):
            loader.state_dict()


def test_a_pipeline_that_runs_elsewhere():
    pipe = numbers(batch_size=2, num_threads=1, device_id=None)
    pipe.run()
    with pytest.raises(ArgumentError, match="runs elsewhere already"):
        load(pipe)
    pipe = numbers(batch_size=2, num_threads=1, device_id=None)
    first = load(pipe)
    with pytest.raises(ArgumentError, match="runs elsewhere already"):
        load(pipe)
    first.close()
    with pytest.raises(LoaderError, match="closed"):
        iter(first)
    with pytest.raises(LengthError, match="closed"):
        len(first)


def test_what_a_pipeline_object_cannot_change():
    made = {"batch_size": 2, "num_threads": 1, "device_id": None, "seed": 3}
    for name, value, has in (("batch_size", 3, "2"), ("num_threads", 2, "1"), ("seed", 4, "3"), ("prefetch", 5, "2")):
        words = name.replace("prefetch", "prefetch_queue_depth")
        with pytest.raises(ArgumentError, match=f"{words}={value} was asked for; the pipeline was made with {words}={has}"):
            load(numbers(**made), **{name: value})
    with pytest.raises(ArgumentError, match="device='cpu' was asked for; the pipeline was made with device_id=0"):
        load(numbers(**{**made, "device_id": 0}))
    with pytest.raises(ArgumentError, match="takes none any more"):
        load(numbers(batch_size=2, num_threads=1, device_id=None), size=3)
    with pytest.raises(ArgumentError, match="exec_dynamic=False"):
        load(numbers, exec_dynamic=False)


@pytest.mark.parametrize(("option", "value"), [("source", [1]), ("shuffle", False), ("epoch", 2)])
def test_options_that_are_the_readers(option, value):
    with pytest.raises(ArgumentError, match="leave source, shuffle, epoch out"):
        load(**{option: value})


def test_outputs_without_names():
    unnamed = pipeline_def(batch_size=2, num_threads=1)(lambda: tuple(fn.readers.file(files=FILES[:4])))
    with pytest.raises(ArgumentError, match=r"2 outputs, not all with names; give outputs=.*name="):
        load(unnamed)
    for wrong in ("ab", ("a",), ("a", "a"), (1, 2)):
        with pytest.raises(ArgumentError, match="outputs="):
            load(unnamed, outputs=wrong)
    with load(unnamed, outputs=("file", "label")) as loader, pytest.raises(portaloader.errors.RaggedError, match="'file'"):
        list(loader)
    with pytest.raises(ArgumentError, match='has an output "valid", which last_batch="pad" adds itself'):
        load(outputs=["valid"], last_batch="pad", batch_size=2)
    serialized = Pipeline.deserialize(unnamed().serialize(), batch_size=2, num_threads=1, device_id=None, exec_dynamic=True)
    with pytest.raises(ArgumentError, match=r"outputs=\('label',\) was given; the pipeline has 2 outputs"):
        load(serialized, outputs=("label",))
    with pytest.raises(ArgumentError, match="for DALI pipelines"):
        portaloader.get_loader(framework="numpy", outputs=("a",))


def test_several_readers():
    @pipeline_def(batch_size=2, num_threads=1)
    def two():
        _, a = fn.readers.file(files=FILES[:4], name="four")
        _, b = fn.readers.file(files=FILES[:6], name="six")
        return fn.copy(a, name="a"), fn.copy(b, name="b")

    with pytest.raises(ArgumentError, match=r"2 readers; .* one of \['four', 'six'\]"):
        load(two)
    with pytest.raises(ArgumentError, match="reader='five' was asked for; the pipeline's readers are: four, six"):
        load(two, reader="five")
    with load(two, reader="six") as loader:
        assert len(loader) == len(list(loader)) == 3


def test_ranks_that_would_all_read_everything():
    unsharded = pipeline_def(batch_size=2, num_threads=1)(lambda: fn.copy(fn.readers.file(files=FILES[:4])[1], name="a"))
    with pytest.raises(PlanError, match="rank 1 of 2, and the reader .* has 1 shards.*shard_id and num_shards"):
        load(unsharded, shard=(1, 2))
    with load(unsharded, shard=(0, 1)) as loader:
        assert len(loader) == 2


def test_ranks_that_would_read_the_same_shard():
    forgot = pipeline_def(batch_size=2, num_threads=1)(lambda num_shards: numbers.__wrapped__(num_shards=num_shards))
    with pytest.raises(PlanError, match=r"rank 1 of 2, and the reader 'numbers' reads shard 0.*shard_id"):
        load(forgot, shard=(1, 2))
    with load(forgot, shard=(0, 2)) as loader:
        assert labels(loader) == [[0, 1], [2, 3], [4]]


def test_only_what_is_read_becomes_numbers():
    # Padded to the longest of a batch, which may be 1.
    def counted(counts):
        @pipeline_def(batch_size=2, num_threads=1)
        def objects():
            _, label = fn.readers.file(files=FILES[:4], labels=counts, name="four")
            classes = fn.slice(types.Constant(np.int32([10, 11, 12])), 0, label, axes=[0])
            squeezed = fn.squeeze(label, axes=0)
            return label, label * 2, squeezed, fn.pad(classes, fill_value=-1), fn.random.uniform(shape=1)

        return load(objects, outputs=("label", "twice", "squeezed", "classes", "drawn"))

    with counted([1, 1, 2, 3]) as loader:
        first, second = loader
    for name in ("label", "twice", "squeezed"):
        assert (first[name].shape, first[name].dtype) == ((2,), np.int64)
    assert second["twice"].tolist() == [4, 6]
    assert (first["classes"].tolist(), second["classes"].tolist()) == ([[10], [10]], [[10, 11, -1], [10, 11, 12]])
    assert first["classes"].dtype == second["classes"].dtype == np.int32
    assert first["drawn"].shape == (2, 1)


def test_a_number_that_becomes_several():
    def given(*lengths):
        batches = [np.ones((2, length), np.float32) for length in lengths]
        return load(
            pipeline_def(batch_size=2, num_threads=1)(lambda: fn.external_source(source=batches, cycle="raise", name="x"))
        )

    with given(3, 1) as loader:
        assert [batch["x"].shape for batch in loader] == [(2, 3), (2, 1)]
    with given(1, 3) as loader:
        batches = iter(loader)
        assert next(batches)["x"].shape == (2,)
        with pytest.raises(PipelineRunError, match=r"had one number for each sample, and has shape \(3,\) now"):
            next(batches)


def test_short_batches_of_an_external_source_are_dropped():
    def given(*sizes):
        batches = [[np.float32([i])] * size for i, size in enumerate(sizes)]
        made = pipeline_def(batch_size=3, num_threads=1)(lambda: fn.external_source(source=batches, cycle="raise", name="x"))
        return load(made, last_batch="drop")

    with given(3, 3, 2) as loader:
        assert [[batch["x"].tolist() for batch in loader] for _ in range(2)] == [[[0] * 3, [1] * 3]] * 2
    with given(2) as loader, pytest.raises(PipelineRunError, match='no batch.*less than a batch.*"drop"'):
        list(loader)
    with given(3, 2, 3) as loader, pytest.raises(PipelineRunError, match='gives a batch of 2 samples, where 3.*"partial"'):
        list(loader)


def test_rules_that_a_reader_cannot_keep():
    with pytest.raises(PlanError, match='last_batch="pad".*pad_last_batch=False; set it to True'):
        load(pad=False, last_batch="pad")
    with pytest.raises(PlanError, match='last_batch="wrap".*pad_last_batch=True; set it to False'):
        load(last_batch="wrap")
    with pytest.raises(PlanError, match="5 samples in 2 shards leave some rank an empty last batch"):
        load(size=5, batch_size=1, shard=(0, 2))
    with pytest.raises(PlanError, match="5 samples in 2 shards do not fill a batch of 3"):
        load(size=5, batch_size=3, shard=(0, 2), last_batch="drop")
    with pytest.warns(UserWarning, match="pad_last_batch=False: what fills its last batch is missing"):
        load(size=5, batch_size=2, pad=False).close()


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"batch_size": 0}, ArgumentError, "batch_size=0"),
        ({"batch_size": "4"}, ArgumentError, "batch_size='4'"),
        ({"last_batch": "fill"}, ArgumentError, "last_batch='fill'.*'partial'"),
        ({"device": 63}, DeviceError, "gpu:63"),
    ],
)
def test_bad_options(options, kind, words):
    with pytest.raises(kind, match=words):
        portaloader.get_loader(pipeline=numbers, framework="numpy", **options)


def test_a_pipeline_in_the_sources_place():
    with pytest.raises(ArgumentError, match="write get_loader"):
        portaloader.get_loader(numbers, framework="numpy")


def test_any_seed():
    drawn = pipeline_def(batch_size=3, num_threads=1)(lambda: fn.random.uniform(name="number"))
    for seed in (-5, 0, 2**60):
        first, second = (next(iter(load(drawn, seed=seed)))["number"].tolist() for _ in range(2))
        assert first == second


def test_external_source_that_is_exhausted():
    def source(cycle):
        batches = [[np.float32([i])] * 2 for i in range(3)]
        return pipeline_def(batch_size=2, num_threads=1)(lambda: fn.external_source(source=batches, cycle=cycle, name="x"))

    with load(source("raise")) as loader:
        assert [[batch["x"].tolist() for batch in loader] for _ in range(2)] == [[[0, 0], [1, 1], [2, 2]]] * 2
    with load(source(False)) as loader:
        assert len(list(loader)) == 3
        with pytest.raises(PipelineRunError, match='exhausted.*cycle="raise"'):
            list(loader)


def test_an_epoch_that_is_left_before_its_first_batch():
    def source(info):
        if info.iteration == 2:
            raise StopIteration
        return np.float32([info.iteration])

    fed = pipeline_def(batch_size=1, num_threads=1)(lambda: fn.external_source(source=source, batch=False, name="x"))
    with load(fed) as loader:
        loader._stream.begin()  # as an interrupt during the first batch leaves it
        assert [[batch["x"].tolist() for batch in loader] for _ in range(2)] == [[[0], [1]]] * 2
        assert loader.epoch == 3


def test_a_pipeline_that_fails():
    broken = pipeline_def(batch_size=2, num_threads=1)(
        lambda: fn.decoders.image(fn.external_source(source=lambda: [np.zeros(9, np.uint8)] * 2), name="image")
    )
    with load(broken) as loader:
        for _ in range(2):
            with pytest.raises(PipelineRunError, match="failed"):
                list(loader)
    impossible = pipeline_def(batch_size=2, num_threads=1)(lambda: fn.copy(fn.readers.file(file_root="/nowhere")[0], name="x"))
    with pytest.raises(PipelineError, match="cannot build"):
        load(impossible)


def dalis(pipe, policy):
    """The batches of DALI's own iterator, for three epochs: its counters, and nothing of ours."""
    from nvidia.dali.plugin.base_iterator import _DaliBaseIterator

    class Own(_DaliBaseIterator):
        def __next__(self):
            (outputs,) = self._get_outputs()
            values = np.asarray(outputs[0].as_tensor()).reshape(-1).copy()
            self._schedule_runs()
            self._advance_and_check_drop_last()
            cut, left = self._remove_padded()
            return values[: left[0]].tolist() if np.any(cut) else values.tolist()

    iterator = Own([pipe], reader_name="numbers", auto_reset=True, last_batch_policy=policy)
    return [list(iterator) for _ in range(3)]


GRID = itertools.product([7, 12, 13], [1, 3, 4], [1, 2, 3], ["partial", "drop", "pad", "wrap"], [False, True])


@pytest.mark.filterwarnings("ignore:the reader 'numbers' has pad_last_batch=False")
@pytest.mark.parametrize(("size", "batch_size", "ranks", "rule", "stick"), list(GRID))
def test_batches_are_those_of_dalis_counters(size, batch_size, ranks, rule, stick):
    for pad in (False, True):
        for rank in range(ranks):
            arguments = {"size": size, "pad": pad, "stick": stick, "batch_size": batch_size, "num_threads": 1}
            try:
                loader = load(last_batch=rule, shard=(rank, ranks), **arguments)
            except PlanError:
                continue
            policy = {"partial": LastBatchPolicy.PARTIAL, "drop": LastBatchPolicy.DROP}.get(rule, LastBatchPolicy.FILL)
            with loader:
                lengths, epochs = zip(*((len(loader), labels(loader)) for _ in range(3)), strict=True)
            pipe = numbers(**arguments, shard_id=rank, num_shards=ranks, device_id=None)
            assert isinstance(pipe, Pipeline)
            assert list(epochs) == dalis(pipe, policy)
            assert [len(epoch) for epoch in epochs] == list(lengths)
