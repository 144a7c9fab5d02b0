"""Rank and world from the environment of each launcher."""

import pytest

from portaloader.contract import Shard
from portaloader.errors import LaunchError
from portaloader.launch import Launch, from_environment

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
PADDLE = {"PADDLE_TRAINER_ID": "5", "PADDLE_TRAINERS_NUM": "8", "PADDLE_LOCAL_RANK": "1", "PADDLE_LOCAL_SIZE": "4"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
}
PMI = {"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"}
SLURM = {
    "SLURM_PROCID": "5",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
    "SLURM_NTASKS": "8",
}
LAUNCHERS = {"torchrun": TORCHRUN, "Paddle": PADDLE, "Open MPI": OPEN_MPI, "MPI (PMI)": PMI, "Slurm": SLURM}


@pytest.fixture(params=LAUNCHERS)
def launcher(request):
    return request.param


def first(environ):
    """The name of the variable that holds the rank."""
    return next(iter(environ))


def test_rank_and_world(launcher):
    assert from_environment(LAUNCHERS[launcher]) == Launch(Shard(5, 8), Shard(1, 4), launcher)


def test_without_local_variables(launcher):
    environ = dict(list(LAUNCHERS[launcher].items())[:2])
    assert from_environment(environ) == Launch(Shard(5, 8), Shard(0, 1), launcher)


def test_local_rank_alone_counts_itself(launcher):
    environ = dict(list(LAUNCHERS[launcher].items())[:3])
    assert from_environment(environ).local == Shard(1, 2)


def test_a_process_that_nobody_launched_is_alone():
    assert from_environment({"HOME": "/", "LOCAL_RANK": "1"}) == Launch(Shard(0, 1), Shard(0, 1), "none")


def test_the_process_environment_is_read(monkeypatch):
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    assert from_environment().shard == Shard(5, 8)


@pytest.mark.parametrize("outer", [OPEN_MPI, PMI, SLURM], ids=["Open MPI", "PMI", "Slurm"])
def test_torchrun_within_another_launcher_counts(outer):
    inner = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    assert from_environment({**outer, **inner}) == Launch(Shard(0, 2), Shard(0, 2), "torchrun")


def test_a_batch_script_of_slurm_is_no_rank():
    """It has the job's variables; only srun starts tasks."""
    assert from_environment({"SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}).shard == Shard(0, 1)


@pytest.mark.parametrize(("tasks", "count"), [("4", 4), ("4(x2)", 4), ("4,3", 4), ("2(x3),1", 2)])
def test_tasks_per_node_as_slurm_writes_them(tasks, count):
    assert from_environment({**SLURM, "SLURM_STEP_TASKS_PER_NODE": tasks}).local == Shard(1, count)


@pytest.mark.parametrize(("present", "absent"), [("RANK", "WORLD_SIZE"), ("WORLD_SIZE", "RANK")])
def test_half_of_a_launch(present, absent):
    with pytest.raises(LaunchError, match=rf"{present}=1 but no {absent}. Set both, or give shard=\(index, count\)"):
        from_environment({present: "1"})


def test_half_of_a_launch_within_a_whole_one():
    assert from_environment({"WORLD_SIZE": "4", **OPEN_MPI}).launcher == "Open MPI"


@pytest.mark.parametrize("rank", ["8", "9", "-1"])
def test_rank_that_is_not_below_the_world(launcher, rank):
    environ = {**LAUNCHERS[launcher], first(LAUNCHERS[launcher]): rank}
    with pytest.raises(LaunchError, match=rf"{first(environ)}={rank} of .*=8, which cannot be. Give shard="):
        from_environment(environ)


def test_world_of_none(launcher):
    rank, world, *_ = LAUNCHERS[launcher]
    with pytest.raises(LaunchError, match=f"{world}=0, which cannot be"):
        from_environment({rank: "0", world: "0"})


@pytest.mark.parametrize("value", ["", "two", "1.5"])
def test_rank_that_is_no_number(launcher, value):
    environ = {**LAUNCHERS[launcher], first(LAUNCHERS[launcher]): value}
    with pytest.raises(LaunchError, match=f"{first(environ)}={value!r}, which is not a whole number"):
        from_environment(environ)


@pytest.mark.parametrize("value", ["-1", "x"])
def test_local_rank_that_cannot_be(launcher, value):
    name = list(LAUNCHERS[launcher])[2]
    with pytest.raises(LaunchError, match=name):
        from_environment({**LAUNCHERS[launcher], name: value})
