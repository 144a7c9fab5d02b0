"""Which rank this process is, from the environment that the launcher gave it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from portaloader.contract import Shard
from portaloader.errors import LaunchError


@dataclass(frozen=True)
class Launch:
    """One process among those that a launcher started."""

    shard: Shard = Shard(0, 1)
    local: Shard = Shard(0, 1)
    """Among the processes on this machine: the CUDA device, and the share of the processors."""
    launcher: str = "none"


@dataclass(frozen=True)
class _Variables:
    """The names of a launcher's environment variables."""

    launcher: str
    rank: str
    world: str
    local_rank: str
    local_world: str


# Open MPI and Slurm may themselves start torchrun, whose variables then are the inner ones: the first that is set counts.
_LAUNCHERS = (
    _Variables("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    _Variables("Paddle", "PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM", "PADDLE_LOCAL_RANK", "PADDLE_LOCAL_SIZE"),
    _Variables(
        "Open MPI",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    _Variables("MPI (PMI)", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    # A batch script has SLURM_NTASKS as well; only a step started by srun has a task's number and the step's size.
    _Variables("Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
)


def from_environment(environ: Mapping[str, str] | None = None) -> Launch:
    """The launch that the environment tells of; a process that nobody launched is the only one.

    Raises:
        LaunchError: a rank without a world size, or numbers that cannot be.
    """
    environ = os.environ if environ is None else environ
    for names in _LAUNCHERS:
        if names.rank in environ and names.world in environ:
            return _launch(names, environ)
    for names in _LAUNCHERS[:3]:  # a rank of the others is set without a job as well
        for present, absent in ((names.rank, names.world), (names.world, names.rank)):
            if present in environ:
                raise LaunchError(
                    f'shard="auto" was asked for, and the environment has {present}={environ[present]} but no {absent}. '
                    f"Set both, or give shard=(index, count)."
                )
    return Launch()


def _launch(names: _Variables, environ: Mapping[str, str]) -> Launch:
    rank, world = _number(names.rank, environ), _number(names.world, environ)
    if not 0 <= rank < world:
        raise LaunchError(
            f'shard="auto" was asked for, and {names.launcher} says {names.rank}={rank} of {names.world}={world}, '
            f"which cannot be. Give shard=(index, count)."
        )
    local = Shard(0, 1)
    if names.local_rank in environ:
        index = _number(names.local_rank, environ)
        digits = environ.get(names.local_world, "").split("(")[0].split(",")[0]
        count = int(digits) if digits.isdigit() else index + 1
        if not 0 <= index < count:
            raise LaunchError(
                f"{names.launcher} says {names.local_rank}={index} of {names.local_world}={count} on this machine, "
                f"which cannot be."
            )
        local = Shard(index, count)
    return Launch(Shard(rank, world), local, names.launcher)


def _number(name: str, environ: Mapping[str, str]) -> int:
    try:
        return int(environ[name])
    except ValueError as error:
        raise LaunchError(f"the environment has {name}={environ[name]!r}, which is not a whole number.") from error
