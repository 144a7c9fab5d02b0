"""The loader's epochs as a ``tf.data.Dataset``: by DALI's compiled operator where it is there, else by DLPack."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from portaloader.contract import Batches, Device, LentGraph, LentPipeline, Output
from portaloader.errors import ArgumentError, FrameworkBrokenError

Shapes = Mapping[str, tuple[int | None, ...]]
_REFUSED = (np.dtype(np.float64),)  # by DALI's operator


def dataset(batches: Batches, compiled: bool | None, shapes: Shapes | None, runs: dict[Any, Any]) -> tf.data.Dataset:
    """One epoch in every iteration, the next one in the next; the structure of a batch is what was asked for.

    Args:
        batches: the loader's.
        compiled: whether DALI's operator runs the graph; None: where it is installed and gives the same stream.
        shapes: of samples whose size changes from batch to batch, by the outputs' names, None for what changes.
        runs: the loader's endless pipelines that run already; kept here.
    """
    _check_shapes(shapes or {}, batches.names)
    plugin = _plugin(must=bool(compiled)) if compiled is not False else None
    order = tuple(tf.nest.flatten(batches.pick({name: name for name in batches.names})))
    # TensorFlow's own data sets, which cut an endless pipeline into epochs, work on the CPU only.
    lent = batches.lend(order, _REFUSED, endless=batches.device.kind == "cpu") if plugin is not None else None
    if compiled and lent is None:
        raise ArgumentError(
            "compiled=True was asked for, and DALI's operator cannot give the loader's stream: the pipeline calls Python, has "
            "an output of 64-bit floats or DALI's own random operators behind a source, or has begun to run in the loader."
        )
    spec = _spec(batches, {**batches.outputs()}, shapes or {})
    if plugin is None or lent is None:
        made = _by_dlpack(batches, spec)
    elif isinstance(lent, LentGraph):
        made = _fed(plugin, batches, lent, batches.pick(spec))
    else:
        if lent.pipe not in runs:
            dtypes = [tf.as_dtype(made.dtype) for made in lent.made.values()]
            runs[lent.pipe] = iter(_dali(plugin.DALIDataset, lent, batches, dtypes)), tf.Variable(0, dtype=tf.int64)
        made = _endless(*runs[lent.pipe], batches, lent, spec)
    if batches.device.kind == "gpu":
        return made
    if batches.steps is None:
        return made.filter(lambda *_: True)  # DALI's operator says that it is endless; what is filtered says nothing
    return made.apply(tf.data.experimental.assert_cardinality(batches.steps))


def _check_shapes(shapes: Shapes, names: tuple[str, ...]) -> None:
    unknown = set(shapes) - set(names)
    if unknown:
        raise ArgumentError(f"shapes= names {sorted(unknown)}; the outputs are {', '.join(map(repr, names))}.")


def _plugin(must: bool) -> ModuleType | None:
    """DALI's module with the compiled operator; None, with a warning, where it is not there."""
    try:
        import nvidia.dali.plugin.tf as plugin

        return plugin
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


def _spec(batches: Batches, outputs: Mapping[str, Output], shapes: Shapes) -> dict[str, tf.TensorSpec]:
    size = batches.batch_size if batches.full else None
    return {
        name: tf.TensorSpec((size, *shapes.get(name, made.shape)), tf.as_dtype(made.dtype)) for name, made in outputs.items()
    }


def _by_dlpack(batches: Batches, spec: Mapping[str, tf.TensorSpec]) -> tf.data.Dataset:
    """The loader's own batches: a generator makes each, and a function takes it over as it is, without a copy."""
    made: deque[dict[str, tf.Tensor]] = deque()

    def steps() -> Iterator[int]:
        made.clear()
        for number, batch in enumerate(batches.whole()):
            made.append(batch)
            yield number

    def take(_: tf.Tensor) -> list[tf.Tensor]:
        batch = made.popleft()
        return [batch[name] for name in spec]

    @tf.autograph.experimental.do_not_convert
    def batch(number: tf.Tensor) -> Any:
        tensors = tf.py_function(take, [number], [one.dtype for one in spec.values()])
        for tensor, one in zip(tensors, spec.values(), strict=True):
            tensor.set_shape(one.shape)
        return batches.pick(dict(zip(spec, tensors, strict=True)))

    epochs = tf.data.Dataset.from_generator(steps, output_signature=tf.TensorSpec((), tf.int64))
    return _in_step(epochs.map(batch))


def _in_step(made: tf.data.Dataset) -> tf.data.Dataset:
    """Without the thread that TensorFlow would have work ahead: what is taken from the loader is what is handed out."""
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    return made.with_options(options)


def _dali(
    kind: type[Any], lent: LentGraph | LentPipeline, batches: Batches, dtypes: Iterable[tf.DType], **options: Any
) -> Any:
    with tf.device(_place(batches.device)):
        return kind(
            lent.pipe,
            batch_size=batches.batch_size,
            num_threads=lent.num_threads,
            device_id=batches.device.ordinal,
            prefetch_queue_depth=lent.prefetch,
            output_dtypes=tuple(dtypes),
            **options,
        )


def _place(device: Device) -> str:
    return "cpu:0" if device.ordinal is None else f"gpu:{device.ordinal}"


def _fed(plugin: ModuleType, batches: Batches, lent: LentGraph, structure: Any) -> tf.data.Dataset:
    """DALI's operator, fed by the plan.

    It takes its first batches as soon as it is iterated, also by somebody who then takes none. So the epoch begins and ends
    in two empty data sets before and behind it; on a GPU, where there are no others, in the first of its inputs.
    """
    alone, first = batches.device.kind == "gpu", next(iter(lent.inputs))

    def fed(name: str) -> tf.data.Dataset:
        def columns() -> Iterator[npt.NDArray[Any]]:
            if alone and name == first:
                lent.begin()
            yield from lent.columns(name)
            if alone and name == first:
                lent.end()

        dtype, ndim = lent.inputs[name]
        spec = tf.TensorSpec((None,) * ndim, tf.as_dtype(dtype))
        return plugin.experimental.Input(tf.data.Dataset.from_generator(columns, output_signature=spec), batch=True)

    def empty(effect: Callable[[], None]) -> tf.data.Dataset:
        def generator() -> Iterator[Any]:
            effect()
            return iter(())

        return tf.data.Dataset.from_generator(generator, output_signature=structure)

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
    return named if alone else empty(lent.begin).concatenate(named).concatenate(empty(lent.end))


def _endless(
    run: Any, taken: tf.Variable, batches: Batches, lent: LentPipeline, spec: Mapping[str, tf.TensorSpec]
) -> tf.data.Dataset:
    """DALI's operator over a pipeline with readers of its own: it goes on for ever, and is cut into the loader's epochs."""

    def take() -> Any:
        tensors = run.get_next()
        with tf.control_dependencies(tensors):
            taken.assign_add(1)
        return tensors

    def counts() -> Iterator[int]:
        for _ in range(lent.begin(int(taken))):
            take()
        yield from lent.counts()

    @tf.autograph.experimental.do_not_convert
    def batch(count: tf.Tensor) -> Any:
        found = {}
        for name, tensor in zip(lent.made, take(), strict=True):
            flat = tf.reshape(tensor, (-1,)) if len(spec[name].shape) == 1 else tensor
            found[name] = tf.cast(flat if batches.full else flat[:count], spec[name].dtype)
            found[name].set_shape(spec[name].shape)
        if "valid" in spec:
            found["valid"] = tf.range(batches.batch_size, dtype=tf.int64) < count
        return batches.pick(found)

    epochs = tf.data.Dataset.from_generator(counts, output_signature=tf.TensorSpec((), tf.int64))
    return _in_step(epochs.map(batch))
