"""The front door: resolve what was asked for, build it, hand it over."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from portaloader import launch, recipes, registry
from portaloader.contract import MOST, Adapter, Device, LastBatch, Shard
from portaloader.dali import cpu_count
from portaloader.dali_pipeline import Asked, is_dali, make_pipeline
from portaloader.dali_stream import DaliStream
from portaloader.engine import Engine
from portaloader.errors import ArgumentError
from portaloader.graph import Settings
from portaloader.loader import Loader
from portaloader.pipelines import Pipeline
from portaloader.plan import Plan
from portaloader.sources import open_source
from portaloader.stream import EPOCHS, PlannedStream

if TYPE_CHECKING:
    import jax
    import mxnet
    import numpy
    import numpy.typing
    import paddle
    import tensorflow
    import torch

ShardLike = tuple[int, int] | Shard | Literal["auto"]
DeviceLike = Literal["cpu", "gpu", "auto"] | int


@overload
def get_loader(
    source: Any = ..., pipeline: Any = ..., *, framework: Literal["torch", "pytorch"], **options: Any
) -> Loader[torch.Tensor]: ...
@overload
def get_loader(
    source: Any = ..., pipeline: Any = ..., *, framework: Literal["tensorflow", "tf"], **options: Any
) -> Loader[tensorflow.Tensor]: ...
@overload
def get_loader(
    source: Any = ..., pipeline: Any = ..., *, framework: Literal["mxnet", "mx"], **options: Any
) -> Loader[mxnet.nd.NDArray]: ...
@overload
def get_loader(
    source: Any = ..., pipeline: Any = ..., *, framework: Literal["paddle", "paddlepaddle"], **options: Any
) -> Loader[paddle.Tensor]: ...
@overload
def get_loader(source: Any = ..., pipeline: Any = ..., *, framework: Literal["jax"], **options: Any) -> Loader[jax.Array]: ...
@overload
def get_loader(
    source: Any = ..., pipeline: Any = ..., *, framework: Literal["numpy", "np"], **options: Any
) -> Loader[numpy.typing.NDArray[Any]]: ...
@overload
def get_loader(source: Any = ..., pipeline: Any = ..., *, framework: str | None = ..., **options: Any) -> Loader[Any]: ...
def get_loader(
    source: Any = None,
    pipeline: Any = None,
    *,
    framework: str | None = None,
    batch_size: int | None = None,
    shuffle: bool | None = None,
    seed: int | None = None,
    epoch: int = 0,
    last_batch: LastBatch = "partial",
    shard: ShardLike = "auto",
    device: DeviceLike = "auto",
    num_threads: int | None = None,
    prefetch: int | None = None,
    outputs: Sequence[str] | None = None,
    reader: str | None = None,
    **pipeline_args: Any,
) -> Loader[Any]:
    """A stream of batches for one framework.

    Args:
        source: a folder of images, a file list (.txt .csv .jsonl), any object with ``__len__`` and ``__getitem__``, or a
            :class:`portaloader.sources.Source`; None: the bundled samples.
        pipeline: a function decorated with ``@portaloader.pipeline``; None: the recipe that fits the source. Or, without a
            source, a DALI pipeline with its own readers: a ``@pipeline_def`` function or a ``Pipeline`` that has not run yet.
        framework: "torch", "tensorflow", "mxnet", "paddle", "jax", "numpy", or the name of an installed adapter; None: the
            one framework that this process has imported.
        batch_size: samples in a batch of one rank; None: 32.
        shuffle: a new order in each epoch, or the source's own; None: True.
        seed: of the order and of all keyed random numbers; None: 0.
        epoch: the first epoch's number, from 0.
        last_batch: where an epoch does not divide into full batches. "partial": smaller ones at its end, no sample
            repeated · "drop": full ones only · "pad": full ones, and ``valid`` tells · "wrap": filled up from the next
            epoch, which then goes on behind. The number of batches is the same on every rank.
        shard: (index, count), or "auto": as the launcher's environment tells.
        device: "cpu", "gpu", a CUDA ordinal, or "auto": where the framework works.
        num_threads: of DALI; None: the processors that this process may use, divided by the processes on this machine.
        prefetch: batches that are made ahead, at least 1; None: 2.
        outputs: of a DALI pipeline: the names of its outputs, where its operators have none.
        reader: of a DALI pipeline with several readers: the one whose epochs count.
        **pipeline_args: handed to the pipeline function.

    Of a DALI pipeline, what its decorator says stands where None is written above. Its readers have the order and the shards:
    the function's parameters ``shard_id`` and ``num_shards`` are filled in. Its batches have no ``id``, and it gives no state.

    Raises:
        PortaloaderError: see :mod:`portaloader.errors`; each message says what to do.
    """
    here = launch.from_environment() if shard == "auto" else launch.Launch(_shard(shard))
    chosen = registry.resolve(framework)
    _check(epoch, prefetch, num_threads, shuffle)
    if is_dali(source) or isinstance(source, Pipeline):
        raise ArgumentError("a pipeline was given as the source; write get_loader(pipeline=...).")
    threads = num_threads or max(1, cpu_count() // here.local.count)
    if is_dali(pipeline):
        if source is not None or shuffle is not None or epoch:
            raise ArgumentError(
                "a DALI pipeline's readers have the samples and their order: leave source, shuffle, epoch out."
            )
        adapter_type = registry.adapter_class(chosen)
        ordinal = _device(device, adapter_type, here).ordinal
        if batch_size is not None:
            _check_whole("batch_size", batch_size, 1, MOST)
        seed = None if seed is None else seed % 2**31
        asked = Asked(batch_size, num_threads, seed, prefetch, *([ordinal] if device != "auto" else []))
        pipe = make_pipeline(pipeline, pipeline_args, here.shard, asked, Asked(32, threads, 0, None, ordinal))
        return Loader(DaliStream(pipe, outputs, reader, last_batch, here.shard), adapter_type(Device(pipe.device_id)))
    if outputs is not None or reader is not None:
        raise ArgumentError("outputs= and reader= are for DALI pipelines with their own readers.")
    opened = open_source(source)
    batch_size, seed = 32 if batch_size is None else batch_size, 0 if seed is None else seed
    plan = Plan(len(opened), batch_size, shuffle is not False, seed, last_batch, here.shard)
    definition = _definition(pipeline, opened, pipeline_args)
    adapter_type = registry.adapter_class(chosen)
    adapter = adapter_type(_device(device, adapter_type, here))
    settings = Settings(
        batch_size=plan.batch_size,
        device=adapter.device,
        num_threads=threads,
        prefetch=prefetch or 2,
        seed=plan.seed,
        with_valid=last_batch == "pad",
    )
    return Loader(PlannedStream(opened, plan, Engine(definition, pipeline_args, opened, settings), epoch), adapter)


def _definition(pipeline: Any, source: Any, arguments: Mapping[str, Any]) -> Pipeline:
    if pipeline is None:
        pipeline = recipes.for_source(source)
    if not isinstance(pipeline, Pipeline):
        raise ArgumentError(
            f"pipeline={pipeline!r} is not a pipeline; decorate the function with @portaloader.pipeline, "
            f"or with DALI's own @pipeline_def."
        )
    options = list(inspect.signature(get_loader).parameters)[:-1]
    pipeline.check_arguments(arguments, options)
    return pipeline


def _shard(shard: Any) -> Shard:
    if isinstance(shard, Shard):
        return shard
    try:
        index, count = shard
    except (TypeError, ValueError):
        raise ArgumentError(f'shard={shard!r} was given; it is (index, count), such as (0, 2), or "auto".') from None
    return Shard(index, count)


def _device(device: Any, adapter: type[Adapter], here: launch.Launch) -> Device:
    if device == "auto":
        return adapter.default_device()
    if device == "cpu":
        return Device()
    if device == "gpu":
        return Device(here.local.index)
    if isinstance(device, int) and not isinstance(device, bool) and device >= 0:
        return Device(device)
    raise ArgumentError(f'device={device!r} was asked for; it is "cpu", "gpu", a CUDA ordinal from 0, or "auto".')


def _check(epoch: Any, prefetch: Any, num_threads: Any, shuffle: Any) -> None:
    _check_whole("epoch", epoch, 0, EPOCHS)
    for name, value in (("prefetch", prefetch), ("num_threads", num_threads)):
        if value is not None:
            _check_whole(name, value, 1, MOST)
    if shuffle is not None and not isinstance(shuffle, (bool, np.bool_)):
        raise ArgumentError(f"shuffle={shuffle!r} was given; it is True or False.")


def _check_whole(name: str, value: Any, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not least <= value <= most:
        raise ArgumentError(f"{name}={value!r} was given; it is a whole number from {least} to {most}.")
