"""What DALI's iterators have in common in every framework, as tests to inherit."""

import numpy as np
import pytest
from nvidia.dali import Pipeline, fn, pipeline_def, types
from nvidia.dali.backend import TensorCPU, TensorListCPU
from nvidia.dali.plugin.base_iterator import LastBatchPolicy

from portaloader.compat.plugin import iterator
from portaloader.errors import ArgumentError, DeviceError, DtypeError, PipelineRunError, RaggedError

FILL, DROP, PARTIAL = LastBatchPolicy.FILL, LastBatchPolicy.DROP, LastBatchPolicy.PARTIAL


@pipeline_def(batch_size=4, num_threads=1, device_id=None)
def numbers(paths, size=10, pad=True, shard=0, shards=1, stick=False, name="numbers"):
    """The first three bytes of small files, and labels that count."""
    data, label = fn.readers.file(
        files=paths[:size],
        labels=list(range(size)),
        pad_last_batch=pad,
        shard_id=shard,
        num_shards=shards,
        stick_to_shard=stick,
        name=name,
    )
    return data, label


@pipeline_def(batch_size=3, num_threads=1, device_id=None)
def fed(*sources):
    """An output for each source, which is called with the sample's info."""
    return tuple(fn.external_source(source=source, batch=False) for source in sources)


class Fed:
    """Calls ``make(info)`` for the samples of ``batches`` batches, and then the epoch is over."""

    def __init__(self, make, batches=3):
        self.make, self.batches = make, batches

    def __call__(self, info):
        if info.iteration >= self.batches:
            raise StopIteration
        return np.asarray(self.make(info))


def label(info):
    return np.array([info.idx_in_epoch], np.int32)


class DropInContract:
    """A subclass says which iterator, and how its batches are read."""

    plugin = None
    unsupported = ""

    def iterator(self, pipes, names=("data", "label"), **options):
        raise NotImplementedError

    def arrays(self, part):
        """Of one pipeline's part of a batch: the framework's arrays, and how many samples at the end are none."""
        raise NotImplementedError

    def to_numpy(self, array):
        raise NotImplementedError

    def pointer(self, array):
        raise NotImplementedError

    def values(self, batch):
        """Of each pipeline the outputs, as NumPy arrays of the samples that count."""
        found = []
        for part in batch:
            arrays, pad = self.arrays(part)
            found.append([values[: len(values) - pad] for values in map(self.to_numpy, arrays)])
        return found

    def labels(self, batch):
        return [part[1].ravel().tolist() for part in self.values(batch)]

    def events(self, made, count):
        """The next labels, and "end" where an epoch ends."""
        found = []
        while len(found) < count:
            try:
                found.append(self.labels(next(made)))
            except StopIteration:
                found.append("end")
        return found

    def test_one_epoch_after_the_other(self, paths):
        made = self.iterator(numbers(paths), reader_name="numbers", last_batch_policy=PARTIAL)
        assert (len(made), made.size, made.batch_size) == (3, 10, 4)
        for _ in range(3):
            batches = list(made)
            assert [self.labels(batch) for batch in batches] == [[[0, 1, 2, 3]], [[4, 5, 6, 7]], [[8, 9]]]
            ((data, _),) = self.values(batches[1])
            assert data.tolist() == [[i, 255 - i, 7 * i] for i in range(4, 8)]
            assert data.dtype == np.uint8
            with pytest.raises(StopIteration):
                next(made)

    def test_next_and_auto_reset(self, paths):
        for yes in (True, "yes", "True", 1):
            made = self.iterator([numbers(paths)], reader_name="numbers", last_batch_policy=DROP, auto_reset=yes)
            assert self.events(made, 5) == [[[0, 1, 2, 3]], [[4, 5, 6, 7]], "end", [[0, 1, 2, 3]], [[4, 5, 6, 7]]]
        made = self.iterator(numbers(paths, batch_size=10), reader_name="numbers", auto_reset="no")
        assert self.events(made, 3) == [[list(range(10))], "end", "end"]
        made.reset()
        assert self.labels(made.next()) == [list(range(10))]

    def test_reset_in_the_middle_goes_on(self, paths, caplog):
        made = self.iterator(numbers(paths), reader_name="numbers", last_batch_policy=PARTIAL)
        assert self.labels(next(made)) == [[0, 1, 2, 3]]
        made.reset()
        assert "does not support resetting while epoch is not finished" in caplog.text
        assert [self.labels(batch) for batch in made] == [[[4, 5, 6, 7]], [[8, 9]]]

    def test_reset_before_the_first_batch_passes_over_none(self, paths, caplog):
        made = self.iterator(numbers(paths, batch_size=10), reader_name="numbers")
        made.reset()
        made.reset()
        assert [self.labels(batch) for batch in made] == [[list(range(10))]]
        assert not caplog.records

    @pytest.mark.parametrize("stick", [True, False])
    def test_several_pipelines_are_the_shards(self, paths, stick):
        pipes = [numbers(paths, shard=shard, shards=3, stick=stick) for shard in range(3)]
        made = self.iterator(pipes, reader_name="numbers", last_batch_policy=PARTIAL)
        shards = [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9]]
        for epoch in range(4):
            assert [self.labels(batch) for batch in made] == [shards if stick else [shards[(i + epoch) % 3] for i in range(3)]]

    @pytest.mark.parametrize("shards", [1, 2])
    @pytest.mark.parametrize("prepare", [True, False])
    @pytest.mark.parametrize(("policy", "pad"), [(FILL, True), (FILL, False), (DROP, True), (PARTIAL, True)])
    def test_checkpoint_goes_on_as_before(self, paths, shards, prepare, policy, pad):
        def begin(checkpoints=None):
            pipes = [
                numbers(paths, pad=pad, shard=i, shards=shards, batch_size=3, enable_checkpointing=True, checkpoint=checkpoint)
                for i, checkpoint in enumerate(checkpoints or [None] * shards)
            ]
            options = {"reader_name": "numbers", "last_batch_policy": policy, "prepare_first_batch": prepare}
            return self.iterator(pipes, auto_reset=True, **options)

        whole = self.events(begin(), 12)
        assert whole.count("end") > 1
        for taken in range(9):
            made = begin()
            self.events(made, taken)
            rest = whole[taken:]
            if prepare and rest[0] == "end":  # at an epoch's end it is the next one that is prepared
                rest.pop(0)
            assert self.events(begin(made.checkpoints()), len(rest)) == rest

    def test_checkpoints_of_others(self, paths):
        made = self.iterator(numbers(paths), reader_name="numbers")
        with pytest.raises(ValueError, match="checkpointing disabled"):
            made.checkpoints()

    def test_restored_at_the_end_iterates_the_next_epoch(self, paths):
        made = self.iterator(numbers(paths, enable_checkpointing=True), reader_name="numbers")
        epoch = [self.labels(batch) for batch in made]
        restored = numbers(paths, enable_checkpointing=True, checkpoint=made.checkpoints()[0])
        assert [self.labels(batch) for batch in self.iterator(restored, reader_name="numbers")] == epoch

    def test_external_source_ends_the_epochs(self):
        made = self.iterator(fed(Fed(lambda info: np.ones(2)), Fed(label)))
        assert [self.labels(batch) for batch in made] == [[[0, 1, 2]], [[3, 4, 5]], [[6, 7, 8]]]
        made.reset()
        assert [self.labels(batch) for batch in made] == [[[0, 1, 2]], [[3, 4, 5]], [[6, 7, 8]]]

    def test_shapes_from_batch_to_batch(self):
        made = self.iterator(
            fed(Fed(lambda info: np.full((info.iteration + 1, 2), info.idx_in_epoch, np.float32)), Fed(label))
        )
        for index, batch in enumerate(made):
            ((data, _),) = self.values(batch)
            assert data.shape == (3, index + 1, 2)
            assert data[:, 0, 0].tolist() == [3 * index, 3 * index + 1, 3 * index + 2]
        assert index == 2

    @staticmethod
    def lists(*lengths):
        def batches():
            yield from ([np.array([i], np.int32)] * length for i, length in enumerate(lengths))

        with Pipeline(batch_size=3, num_threads=1, device_id=None) as pipe:
            label = fn.external_source(source=batches(), dtype=types.INT32)
            pipe.set_outputs(label, label)
        return pipe

    @pytest.mark.filterwarnings("ignore:Please set `reader_name`")
    def test_batch_sizes_that_vary(self):
        made = self.iterator(self.lists(3, 1, 2))
        assert [self.labels(batch) for batch in made] == [[[0, 0, 0]], [[1]], [[2, 2]]]
        with pytest.raises(ArgumentError, match=r"a batch has \[1\] samples, and the pipelines' batch size is 3"):
            list(self.iterator(self.lists(3, 1), size=6))

    def test_samples_of_different_shapes(self):
        ragged = fed(Fed(lambda info: np.zeros((info.idx_in_batch + 1, 2))), Fed(label))
        with pytest.raises(RaggedError, match=r"different shapes \(\(1, 2\) and \(3, 2\)\)"):
            self.iterator(ragged)

    @pytest.mark.filterwarnings("ignore:Please set `reader_name`")
    @pytest.mark.parametrize("dynamic", [True, False])
    def test_a_batch_that_is_refused_is_passed_over(self, dynamic):
        def ragged_once(info):
            return np.zeros((1 + (info.iteration == 1) * info.idx_in_batch, 2))

        pipe = fed(Fed(ragged_once, batches=9), Fed(label, batches=9), exec_dynamic=dynamic)
        made = self.iterator(pipe, size=9, auto_reset=True)
        assert self.labels(next(made)) == [[0, 1, 2]]
        with pytest.raises(RaggedError):
            next(made)
        assert self.events(made, 3) == [[[6, 7, 8]], "end", [[9, 10, 11]]]

    @pytest.mark.parametrize("dynamic", [True, False])
    def test_held_batches_do_not_change(self, paths, dynamic):
        made = self.iterator(numbers(paths, exec_dynamic=dynamic), reader_name="numbers", auto_reset=True)
        held = [(batch, self.values(batch)) for _ in range(6) for batch in made]
        assert len(held) == 18
        for batch, values in held:
            for part, copies in zip(self.values(batch), values, strict=True):
                assert all((array == copy).all() for array, copy in zip(part, copies, strict=True))

    def test_whole_batches_are_not_copied(self, paths):
        made = self.iterator(numbers(paths), reader_name="numbers", prepare_first_batch=False)
        usual, seen = made._get_outputs, []

        def outputs():
            seen.append(usual())
            return seen[-1]

        made._get_outputs = outputs
        for batch in made:
            arrays, _ = self.arrays(batch[0])
            assert [self.pointer(array) for array in arrays] == [output.as_tensor().data_ptr() for output in seen[-1][0]]

    @pytest.mark.parametrize("dtype", ["uint8", "int8", "int32", "int64", "float16", "float32", "float64", "bool"])
    @pytest.mark.parametrize("dynamic", [True, False])
    def test_dtypes(self, dtype, dynamic):
        sample = np.array([[0, 1], [2, 3]]).astype(dtype)
        made = self.iterator(fed(Fed(lambda info: sample), Fed(label), exec_dynamic=dynamic))
        ((data, _),) = self.values(next(made))
        assert (data.dtype, data.tolist()) == (sample.dtype, [sample.tolist()] * 3)

    def test_dtype_that_the_framework_has_not(self):
        with pytest.raises(DtypeError, match=rf"{self.unsupported}.*fn\.cast"):
            self.iterator(fed(Fed(lambda info: np.zeros(2, self.unsupported)), Fed(label)))

    def test_outputs_on_a_gpu_that_the_framework_has_not(self, monkeypatch, paths):
        monkeypatch.setattr(iterator, "TensorGPU", TensorCPU)
        monkeypatch.setattr(iterator, "TensorListGPU", TensorListCPU)
        with pytest.raises(DeviceError, match=r"is on a GPU, and the framework sees none.* End the pipeline with \.cpu\(\)"):
            self.iterator(numbers(paths), reader_name="numbers")

    def test_no_batch_at_all(self, paths):
        with pytest.raises(PipelineRunError, match=r"no batch.*DROP.*\(11\).*Lower"):
            self.iterator(numbers(paths, batch_size=11), reader_name="numbers", last_batch_policy=DROP)
        with pytest.raises(PipelineRunError, match="external source without samples"):
            self.iterator(fed(Fed(label, batches=0), Fed(label, batches=0)))

    def test_pipelines_that_run_already(self, paths):
        ran, asked, twice = (numbers(paths) for _ in range(3))
        ran.run()
        asked.schedule_run()
        asked.outputs()
        for pipes in (ran, asked, [twice, twice]):
            with pytest.raises(ArgumentError, match=r"runs already, by run\(\) or outputs\(\), or is here twice; make one"):
                self.iterator(pipes, reader_name="numbers")

    def test_a_pipeline_of_an_iterator_before(self, paths):
        pipe = numbers(paths)
        for _ in range(3):
            made = self.iterator(pipe, reader_name="numbers", last_batch_policy=PARTIAL)
            assert [self.labels(batch) for batch in made] == [[[0, 1, 2, 3]], [[4, 5, 6, 7]], [[8, 9]]]

    @pytest.mark.parametrize("dynamic", [True, False])
    @pytest.mark.parametrize("serialized", [True, False])
    def test_outputs_have_memory_of_their_own(self, paths, dynamic, serialized):
        @pipeline_def(batch_size=1, num_threads=1, device_id=None, exec_dynamic=dynamic)
        def pipe():
            constant = types.Constant(np.array([1, 2], np.float32))
            value = fn.cast(fn.readers.file(files=paths[:6], name="six")[0], dtype=types.FLOAT)
            row, pair = fn.reshape(value, shape=[1, 3]), fn.expand_dims(constant, axes=0)
            return value - constant[0], constant, value, value, row, pair

        made = Pipeline.deserialize(pipe().serialize(), exec_dynamic=dynamic) if serialized else pipe()
        batches = list(self.iterator(made, names="abcdef", reader_name="six"))
        assert len(batches) == 6
        arrays = [array for batch in batches for array in self.arrays(batch[0])[0]]
        assert len({self.pointer(array) for array in arrays}) == len(arrays) == 36
        for i, batch in enumerate(batches):
            (found,) = self.values(batch)
            value = [i, 255 - i, 7 * i]
            expected = [[i - 1, 254 - i, 7 * i - 1], [1, 2], value, value, value, [1, 2]]
            assert [array.ravel().tolist() for array in found] == expected

    def test_built_pipelines_are_fine(self, paths):
        pipe = numbers(paths)
        pipe.build()
        assert len(list(self.iterator((pipe,), reader_name="numbers"))) == 3

    @pytest.mark.parametrize(
        ("pipes", "options", "message"),
        [
            ([], {}, r"pipelines=\[\] was given"),
            ([{}, None], {}, "None.*it is a DALI pipeline, or a list of them"),
            ([{}, {"batch_size": 2}], {}, "differ in batch size: 4, 2"),
            ([{}, {"enable_checkpointing": True}], {}, "differ in enable_checkpointing: False, True"),
            ([{}, {"size": 9}], {}, "differ in epoch_size of the reader 'numbers': 10, 9"),
            ([{}, {"shards": 2}], {}, "differ in number_of_shards"),
            ([{}, {"pad": False}], {}, "differ in pad_last_batch"),
            ([{}, {"stick": True}], {}, "differ in stick_to_shard"),
            ([{}], {"reader_name": "others"}, "reader_name='others' was given; a pipeline's readers are: 'numbers'"),
            ([{}], {"size": 10}, "reader_name='numbers' was given, and size=10"),
            ([{}], {"last_batch_padded": True}, "last_batch_padded=True as well; the reader knows both"),
            ([{}], {"reader_name": None, "size": 0}, "size=0 was given for 1 pipeline; give reader_name="),
            ([{}, {}], {"reader_name": None}, "size=-1 was given for 2 pipelines; give reader_name="),
            ([{}], {"reader_name": None, "size": "many"}, "size='many' was given; it is a number of samples"),
            ([{}], {"last_batch_policy": "FILL"}, "last_batch_policy='FILL' was given; there are FILL, DROP"),
            ([{}], {"last_batch_policy": None}, "last_batch_policy=None was given"),
            ([{}], {"auto_reset": "maybe"}, "auto_reset='maybe' was given; it is True or"),
            ([{}], {"auto_reset": "False"}, "auto_reset='False' was given"),
            ([{}], {"names": ("one",)}, "1 outputs were named, and the pipeline has 2"),
            ([{}], {"names": ("one", "two", "three")}, "3 outputs were named, and the pipeline has 2"),
        ],
    )
    def test_arguments_that_cannot_be_used(self, paths, pipes, options, message):
        made = [settings if settings is None else numbers(paths, **settings) for settings in pipes]
        with pytest.raises(ArgumentError, match=message):
            self.iterator(made, **{"reader_name": "numbers", **options})

    def test_deprecated_names_of_policies(self, paths):
        for old, new in ((True, [0, 1, 2]), (False, [0, 1])):
            with pytest.warns(Warning, match="fill_last_batch"):
                made = self.iterator(
                    numbers(paths, size=5, batch_size=3), reader_name="numbers", fill_last_batch=old, last_batch_policy=None
                )
            assert len(self.labels(list(made)[-1])[0]) == len(new)
