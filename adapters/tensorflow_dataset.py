"""The loader's epochs as a ``tf.data.Dataset``: by DALI's compiled operator where it is there, else by DLPack."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from types import ModuleType
from typing import Any

import numpy as np
import tensorflow as tf

from portaloader.contract import Batches, Device, LentGraph, LentPipeline
from portaloader.errors import ArgumentError, FrameworkBrokenError, StateError

Shapes = Mapping[str, tuple[int | None, ...]]
_CPU = Device()
_REFUSED = (np.dtype(np.float64),)  # by DALI's operator


def dataset(batches: Batches, compiled: bool | None, shapes: Shapes | None) -> tf.data.Dataset:
    """One epoch in every iteration, the next one in the next; the structure of a batch is what was asked for.

    Args:
        batches: the loader's.
        compiled: whether DALI's operator runs the graph; None: where it is installed and gives the same stream.
        shapes: of samples whose size changes from batch to batch, by the outputs' names, None for what changes.
    """
    _check_shapes(shapes or {}, batches.names)
    if batches.device.ordinal is not None:
        if compiled:
            raise ArgumentError(
                "compiled=True was asked for, and the loader's batches are on a GPU. There DALI's operator begins an epoch "
                "before anybody asks for a batch of it, so that epochs are lost; leave it out, or ask for device='cpu'."
            )
        return _by_dlpack(batches, _spec(batches, shapes or {}))
    plugin = _plugin(must=bool(compiled)) if compiled is not False else None
    order = tuple(tf.nest.flatten(batches.pick({name: name for name in batches.names})))
    lent = batches.lend(order, _REFUSED) if plugin is not None else None
    if compiled and lent is None:
        raise ArgumentError(
            "compiled=True was asked for, and DALI's operator cannot give the loader's stream: the pipeline calls Python, has "
            "an output of 64-bit floats or DALI's own random operators behind a source, or has begun to run in the loader."
        )
    spec = _spec(batches, shapes or {})
    if plugin is None or lent is None:
        made = _by_dlpack(batches, spec)
    elif isinstance(lent, LentGraph):
        made = _fed(plugin, batches, lent, batches.pick(spec))
    else:
        if "run" not in lent.kept:
            dtypes = [tf.as_dtype(made.dtype) for made in lent.made.values()]
            lent.kept["run"] = _Run(_dali(plugin.DALIDataset, lent, batches, dtypes))
        made = _endless(lent.kept["run"], batches, lent, spec)
    if batches.steps is None:
        made = made.filter(lambda *_: True)  # DALI's operator says that it is endless; what is filtered says nothing
    else:
        made = made.apply(tf.data.experimental.assert_cardinality(batches.steps))
    return made.with_options(_untuned())


def _untuned() -> tf.data.Options:
    """DALI works ahead and in parallel by itself.

    A thread of TensorFlow's that does so as well would take batches that nobody asked for yet. And the one that tunes sleeps
    for longer and longer, by twice as much every time, and the end of an iteration waits until it wakes up.
    """
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    options.autotune.enabled = False
    # A strategy's worker would look for files to divide; the loader has its share already.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return options


def _check_shapes(shapes: Shapes, names: tuple[str, ...]) -> None:
    unknown = set(shapes) - set(names)
    if unknown:
        raise ArgumentError(f"shapes= names {sorted(unknown)}; the outputs are {', '.join(map(repr, names))}.")


def _plugin(must: bool) -> ModuleType | None:
    """DALI's module with the compiled operator; None, with a warning, where it is not there."""
    try:
        return importlib.import_module("nvidia.dali.plugin.tf")
    except Exception as error:  # of many types: what a library compiled for another TensorFlow says
        import nvidia.dali

        text = (
            f"DALI's operator for TensorFlow {tf.__version__} cannot be loaded ({type(error).__name__}: {error}). To compile "
            f"it, with TensorFlow installed: pip install setuptools wheel && pip install --no-build-isolation "
            f"nvidia-dali-tf-plugin-cuda120=={nvidia.dali.__version__}"
        )
        if must:
            raise FrameworkBrokenError(f"compiled=True was asked for. {text}") from error
        warnings.warn(
            f"{text}. Until then the data set takes its batches from Python, one by one; compiled=False says that it may.",
            stacklevel=5,
        )
        return None


def _spec(batches: Batches, shapes: Shapes) -> dict[str, tf.TensorSpec]:
    size = batches.batch_size if batches.full else None
    return {
        name: tf.TensorSpec((size, *shapes.get(name, made.shape)), tf.as_dtype(made.dtype))
        for name, made in batches.outputs().items()
    }


def _promised(batches: Batches) -> Callable[[], None]:
    """Raises StateError where a data set's cardinality or batch size, which are what they were now, do not hold any more."""
    steps, full = batches.steps, batches.full

    def check() -> None:
        if (steps is not None and batches.steps != steps) or (full and not batches.full):
            raise StateError(
                "a state was loaded since this data set was made, and begins within an epoch: the data set promises "
                f"{'epochs of ' + str(steps) if steps else 'full'} batches. Call native() again, behind load_state_dict()."
            )

    return check


def _by_dlpack(batches: Batches, spec: Mapping[str, tf.TensorSpec]) -> tf.data.Dataset:
    """The loader's own batches, where they are and without a copy."""
    check = _promised(batches)

    def epoch() -> Iterator[list[tf.Tensor]]:
        check()
        for batch in batches.whole():
            yield tf.nest.flatten(batches.pick(batch))

    structure = batches.pick(spec)
    return _generated(epoch, tf.nest.flatten(structure), structure, batches.device)


def _generated(
    make: Callable[[], Iterator[list[Any]]],
    yielded: Sequence[tf.TensorSpec],
    structure: Any,
    device: Device = _CPU,
    then: Callable[..., list[tf.Tensor]] | None = None,
    section: tf.CriticalSection | None = None,
) -> tf.data.Dataset:
    """What a Python generator yields, on any device.

    TensorFlow's ``from_generator()`` and ``copy_to_device()`` are made of the same data set, of three functions that begin an
    iteration, give its next element and end it; it is the only one that runs on a GPU as well. A number says which iteration
    it is.

    Args:
        make: the generator function; each iteration calls it.
        yielded: what it yields.
        structure: of an element.
        then: makes an element's tensors of them, within the graph; None: they are the element's.
        section: what an element is made in.
    """
    running: dict[int, Iterator[list[Any]]] = {}
    numbers = count()

    def begin() -> int:
        number = next(numbers)
        running[number] = make()
        return number

    def take(number: tf.Tensor) -> list[Any]:
        return next(running[int(number)])

    def end(number: tf.Tensor) -> int:
        running.pop(int(number), None)
        return 0

    def element(number: tf.Tensor) -> list[tf.Tensor]:
        return made(number) if section is None else section.execute(lambda: made(number), exclusive_resource_access=False)

    def made(number: tf.Tensor) -> list[tf.Tensor]:
        taken = tf.py_function(take, [number], [one.dtype for one in yielded])
        for tensor, one in zip(taken, yielded, strict=True):
            tensor.set_shape(one.shape)
        return taken if then is None else then(*taken)

    def concrete(function: Callable[..., Any], *given: tf.TensorSpec) -> Any:
        return tf.function(function, input_signature=given, autograph=False).get_concrete_function()

    number, flat = tf.TensorSpec((), tf.int64), tf.nest.flatten(structure)
    following = concrete(element, number)
    with tf.device(_place(device)):
        variant = tf.raw_ops.GeneratorDataset(
            init_func=concrete(lambda: tf.py_function(begin, [], tf.int64)),
            next_func=following,
            finalize_func=concrete(lambda number: tf.py_function(end, [number], tf.int64), number),
            init_func_other_args=[],
            next_func_other_args=following.captured_inputs,
            finalize_func_other_args=[],
            output_types=[one.dtype for one in flat],
            output_shapes=[one.shape for one in flat],
        )
    return tf.data.experimental.from_variant(variant, structure)


def _place(device: Device) -> str:
    return "cpu:0" if device.ordinal is None else f"gpu:{device.ordinal}"


def _dali(
    kind: type[Any], lent: LentGraph | LentPipeline, batches: Batches, dtypes: Iterable[tf.DType], **options: Any
) -> Any:
    with tf.device("cpu:0"):
        return kind(
            lent.pipe,
            batch_size=batches.batch_size,
            num_threads=lent.num_threads,
            device_id=None,
            prefetch_queue_depth=lent.prefetch,
            output_dtypes=tuple(dtypes),
            **options,
        )


def _fed(plugin: ModuleType, batches: Batches, lent: LentGraph, structure: Any) -> tf.data.Dataset:
    """DALI's operator, fed by the plan.

    It takes its first batches as soon as it is iterated, also by somebody who then takes none. So the epoch begins and ends
    in two empty data sets before and behind it.
    """

    def fed(name: str) -> tf.data.Dataset:
        dtype, ndim = lent.inputs[name]
        spec = tf.TensorSpec((None,) * ndim, tf.as_dtype(dtype))
        columns = _generated(lambda: ([column] for column in lent.columns(name)), [spec], spec)
        return plugin.experimental.Input(columns, batch=True)

    def empty(effect: Callable[[], None]) -> tf.data.Dataset:
        def generator() -> Iterator[list[Any]]:
            effect()
            yield from ()

        return _generated(generator, tf.nest.flatten(structure), structure)

    check = _promised(batches)

    def begin() -> None:
        check()
        lent.begin()

    specs = tf.nest.flatten(structure)
    run = _dali(
        plugin.experimental.DALIDatasetWithInputs,
        lent,
        batches,
        [spec.dtype for spec in specs],
        output_shapes=tuple(spec.shape for spec in specs),
        input_datasets={name: fed(name) for name in lent.inputs},
    )
    named = tf.data.experimental.from_variant(tf.data.experimental.to_variant(run), structure)
    return empty(begin).concatenate(named).concatenate(empty(lent.end))


class _Run:
    """DALI's endless data set, read by one epoch after the other."""

    def __init__(self, made: tf.data.Dataset) -> None:
        self.section = tf.CriticalSection()
        """An iterator that was left may still be taking a batch: nothing happens between counting one and taking it."""
        self.taken = tf.Variable(0, dtype=tf.int64)
        """Batches, ever since."""
        self._batches = iter(made)

    def take(self) -> Any:
        tensors = self._batches.get_next()
        with tf.control_dependencies(tensors):
            self.taken.assign_add(1)
        return tensors


def _endless(run: _Run, batches: Batches, lent: LentPipeline, spec: Mapping[str, tf.TensorSpec]) -> tf.data.Dataset:
    """DALI's operator over a pipeline with readers of its own: it goes on for ever, and is cut into the loader's epochs."""

    def counts() -> Iterator[list[int]]:
        passed_over, numbers = lent.begin(int(run.taken))
        for _ in range(passed_over):
            run.take()
        yield from ([number] for number in numbers)

    def batch(count: tf.Tensor) -> list[tf.Tensor]:
        with tf.control_dependencies([count]):  # where there is none, none is taken
            tensors = run.take()
        found = {}
        for name, tensor in zip(lent.made, tensors, strict=True):
            flat = tf.squeeze(tensor, 1) if lent.made[name].shape == (1,) and len(spec[name].shape) == 1 else tensor
            found[name] = tf.cast(flat if batches.full else flat[:count], spec[name].dtype)
            found[name].set_shape(spec[name].shape)
        if "valid" in spec:
            found["valid"] = tf.range(batches.batch_size, dtype=tf.int64) < count
        return tf.nest.flatten(batches.pick(found))

    counted = [tf.TensorSpec((), tf.int64)]
    return _generated(counts, counted, batches.pick(spec), then=batch, section=run.section)
