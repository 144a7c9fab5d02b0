"""Makes the ``Pipeline`` of somebody's ``@pipeline_def`` function, with this rank's shard filled in."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from portaloader.contract import Shard
from portaloader.dali import check_gpu, import_dali, keep_in_forks
from portaloader.errors import ArgumentError, PipelineError


def is_dali(pipeline: Any) -> bool:
    """Whether this is a ``@pipeline_def`` function or a ``Pipeline`` of DALI's. Does not import DALI."""
    return getattr(pipeline, "_is_pipeline_def", False) or (
        "nvidia.dali" in sys.modules and isinstance(pipeline, sys.modules["nvidia.dali"].Pipeline)
    )


@dataclass(frozen=True)
class Asked:
    """Arguments of ``nvidia.dali.Pipeline``; None: nobody said."""

    batch_size: int | None
    num_threads: int | None
    seed: int | None
    prefetch_queue_depth: int | None
    device_id: int | Literal["auto"] | None = "auto"
    """None is the CPU here, and "auto" that nobody said."""

    def given(self) -> dict[str, Any]:
        """Those that somebody said."""
        said = {name: value for name, value in vars(self).items() if value is not None and name != "device_id"}
        return said if self.device_id == "auto" else {**said, "device_id": self.device_id}


def make_pipeline(pipeline: Any, arguments: Mapping[str, Any], shard: Shard, asked: Asked, otherwise: Asked) -> Any:
    """The built ``Pipeline``.

    Args:
        pipeline: the function, or a pipeline, built or not, that nothing has run yet.
        arguments: of the function. Its ``shard_id`` and ``num_shards`` are filled in where it has such parameters.
        shard: this rank's.
        asked: by the user.
        otherwise: for what neither was asked for nor stands at the decorator.

    Raises:
        ArgumentError: the arguments do not fit, or the pipeline cannot be used.
    """
    dali = import_dali()
    if isinstance(pipeline, dali.Pipeline):
        made = pipeline
        if arguments:
            raise ArgumentError(
                f"the arguments {', '.join(arguments)} were given; a Pipeline is made, and takes none any more."
            )
        found = {name: getattr(made, name) for name in ("num_threads", "seed", "prefetch_queue_depth", "device_id")}
        for name, value in asked.given().items():
            has = found.get(name, made.max_batch_size)
            if has != value:
                asked_for = f"{name}={value}" if name != "device_id" else f"device={'cpu' if value is None else value!r}"
                raise ArgumentError(f"{asked_for} was asked for; the pipeline was made with {name}={has}.")
    else:
        known = inspect.signature(pipeline).parameters
        filled = {"shard_id": shard.index, "num_shards": shard.count}
        arguments = {**{name: value for name, value in filled.items() if name in known}, **arguments}
        constructor = set(inspect.signature(dali.Pipeline).parameters) - set(known)
        decorated = inspect.getclosurevars(pipeline).nonlocals.get("pipeline_kwargs", {})
        settings = {**{name: value for name, value in otherwise.given().items() if name not in decorated}, **asked.given()}
        try:
            inspect.signature(pipeline).bind(**{k: v for k, v in arguments.items() if k not in constructor})
        except TypeError as error:
            takes = ", ".join(known) or "none"
            raise ArgumentError(f"the pipeline {pipeline.__name__}(): {error}. It takes: {takes}.") from error
        made = pipeline(**arguments, **settings)
    if made._api_type is not None:
        raise ArgumentError(
            "the pipeline runs elsewhere already (its run(), or an iterator); make another one for the loader."
        )
    if made.device_id is not None:
        check_gpu(made.device_id)
    if not made.exec_dynamic:
        raise ArgumentError("the pipeline was made with exec_dynamic=False, and overwrites its batches; leave that out.")
    try:
        made.build()
        keep_in_forks(made)
    except Exception as error:
        raise PipelineError(f"DALI cannot build the pipeline: {error}") from error
    return made
