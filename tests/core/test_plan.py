"""Steps, shards and the last batch: each sample once, equal steps on every rank, and a resume that loses nothing."""

import json
from collections import Counter
from unittest import mock

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import portaloader.plan.epoch
from portaloader.contract import Shard
from portaloader.errors import ArgumentError, PlanError
from portaloader.plan import Plan

RULES = ("partial", "drop", "pad", "wrap")
EPOCHS = 3

sizes = st.integers(1, 60)
rank_counts = st.integers(1, 5)
batch_sizes = st.integers(1, 7)
seeds = st.integers(0, 2**64 - 1)
thorough = settings(deadline=None, max_examples=150, derandomize=True)


def possible(rule, remaining, size, ranks, batch_size):
    """Whether the rule can be kept, straight from its words."""
    if rule == "partial":
        # Some number of steps in which every rank gets 1 to batch_size samples each time.
        return any(steps * ranks <= remaining <= steps * ranks * batch_size for steps in range(1, remaining + 1))
    return rule == "pad" or size >= ranks * batch_size


def plans_of(size, ranks, batch_size, rule, shuffle=True, seed=0):
    """One plan for each rank."""
    return [Plan(size, batch_size, shuffle, seed, rule, Shard(rank, ranks)) for rank in range(ranks)]


@st.composite
def deals(draw, rules=RULES):
    """Plans of all ranks that the rule allows."""
    size, ranks, batch_size, rule = draw(sizes), draw(rank_counts), draw(batch_sizes), draw(st.sampled_from(rules))
    assume(possible(rule, size, size, ranks, batch_size))
    return plans_of(size, ranks, batch_size, rule, draw(st.booleans()), draw(seeds))


def run(plans, number=0, start=None):
    """One epoch of all ranks: for each step the rows of each rank, and where the next epoch begins."""
    epochs = [plan.epoch(number, start) for plan in plans]
    assert len({(epoch.steps, epoch.carry, epoch.start) for epoch in epochs}) == 1
    return [[epoch.rows(step) for epoch in epochs] for step in range(epochs[0].steps)], epochs[0].carry


def stream(steps, *, only_valid=False):
    """The (epoch, id) pairs of all ranks, in the order of their positions."""
    pairs = []
    for rows in steps:
        for turn in range(max(map(len, rows))):
            pairs += [
                (int(r.epochs[turn]), int(r.ids[turn])) for r in rows if turn < len(r) and (r.valid[turn] or not only_valid)
            ]
    return pairs


def whole(plan, epoch):
    """An epoch as it should be: each sample once, in the plan's order."""
    return [(epoch, i) for i in plan.order(epoch, np.arange(plan.size)).tolist()]


@thorough
@given(deals())
def test_rows_are_int64_and_bool(plans):
    for rows in run(plans)[0][-1]:
        assert rows.ids.dtype == rows.epochs.dtype == np.int64
        assert rows.valid.dtype == np.bool_
        assert rows.ids.shape == rows.epochs.shape == rows.valid.shape == (len(rows),)


@thorough
@given(deals(rules=("partial", "pad")))
def test_each_sample_comes_once_in_each_epoch(plans):
    for epoch in range(EPOCHS):
        steps, carry = run(plans, epoch)
        assert carry == 0
        assert stream(steps, only_valid=True) == whole(plans[0], epoch)


@thorough
@given(deals(rules=("drop",)))
def test_drop_gives_each_sample_at_most_once_and_leaves_less_than_a_step(plans):
    for epoch in range(EPOCHS):
        pairs = stream(run(plans, epoch)[0])
        assert pairs == whole(plans[0], epoch)[: len(pairs)]
        assert plans[0].size - len(pairs) < plans[0].global_batch


@thorough
@given(deals(rules=("wrap",)))
def test_wrap_is_one_line_of_epochs(plans):
    pairs, start = [], 0
    for epoch in range(EPOCHS):
        assert plans[0].epoch(epoch).start == start
        steps, carry = run(plans, epoch, start)
        pairs, start = pairs + stream(steps), carry
    line = [pair for epoch in range(EPOCHS + 1) for pair in whole(plans[0], epoch)]
    assert pairs == line[: len(pairs)]
    assert len(pairs) == EPOCHS * plans[0].size + start


@thorough
@given(deals())
def test_every_batch_has_samples_and_ranks_differ_by_at_most_one(plans):
    steps, _ = run(plans)
    assert steps
    for rows in steps:
        lengths = [len(r) for r in rows]
        assert min(lengths) >= 1
        assert max(lengths) <= plans[0].batch_size
        assert max(lengths) - min(lengths) <= 1
    totals = [sum(map(len, of_rank)) for of_rank in zip(*steps, strict=True)]
    assert max(totals) - min(totals) <= 1


@thorough
@given(deals(rules=("drop", "pad", "wrap")))
def test_full_shapes(plans):
    for epoch in range(EPOCHS):
        assert {len(r) for rows in run(plans, epoch)[0] for r in rows} == {plans[0].batch_size}


@thorough
@given(deals(rules=("partial",)))
def test_partial_makes_no_more_steps_than_it_must(plans):
    plan = plans[0]
    steps, _ = run(plans)
    assert len(steps) == -(-plan.size // plan.global_batch)
    assert all(len(r) == plan.batch_size for rows in steps[:-2] for r in rows)


@thorough
@given(deals())
def test_valid_marks_all_but_the_padding(plans):
    padding = 0
    for rows in (r for step in run(plans)[0] for r in step):
        padding += np.count_nonzero(~rows.valid)
        assert rows.ids.min() >= 0
        assert rows.ids.max() < plans[0].size
    expected = -plans[0].size % plans[0].global_batch if plans[0].last_batch == "pad" else 0
    assert padding == expected


@thorough
@given(deals(), rank_counts, batch_sizes, st.integers(0, EPOCHS - 1), st.data())
def test_resume_on_other_ranks_with_another_batch_size(plans, ranks, batch_size, number, data):
    old = plans[0].epoch(number)
    assume(old.steps)
    position = old.position(data.draw(st.integers(0, old.steps - 1)))
    rule, size = old.plan.last_batch, old.plan.size
    assume(possible(rule, size, size, ranks, batch_size))
    others = plans_of(size, ranks, batch_size, rule, old.plan.shuffle, old.plan.seed)
    if not possible(rule, size - position, size, ranks, batch_size):
        with pytest.raises(PlanError):
            others[0].epoch(number, position)
        return
    pairs = stream(run(others, number, position)[0], only_valid=True)
    due = whole(old.plan, number)[position:]
    if rule == "drop":
        assert pairs == due[: len(pairs)]
        assert len(due) - len(pairs) < others[0].global_batch
    elif rule == "wrap":
        assert pairs == (due + whole(old.plan, number + 1))[: len(pairs)]
        assert len(pairs) >= len(due)
    else:
        assert pairs == due


@thorough
@given(deals())
def test_what_was_seen_after_a_step_is_the_beginning_of_the_epoch(plans):
    """So a position is a state: it does not matter how many ranks made the steps."""
    epoch = plans[0].epoch(0)
    steps, _ = run(plans)
    for done in range(epoch.steps):
        assert stream(steps[:done]) == whole(plans[0], 0)[: epoch.position(done)]


@thorough
@given(deals())
def test_a_step_is_a_function_of_its_number(plans):
    epoch = plans[-1].epoch(1)
    backwards = [epoch.rows(step).ids.tolist() for step in reversed(range(epoch.steps))]
    assert backwards[::-1] == [plans[-1].epoch(1).rows(step).ids.tolist() for step in range(epoch.steps)]


@thorough
@given(deals(), st.integers(1, 20), st.integers(0, 30))
def test_batches_are_the_rows_of_every_step(plans, planned_together, done):
    with mock.patch.object(portaloader.plan.epoch, "_PLANNED_TOGETHER", planned_together):
        for plan in plans:
            epoch = plan.epoch(3)
            again = plan.epoch(3, epoch.position(min(done, epoch.steps - 1)))
            batches = list(again.batches())
            assert len(batches) == again.steps
            for step, rows in enumerate(batches):
                for name in ("ids", "epochs", "valid"):
                    np.testing.assert_array_equal(getattr(rows, name), getattr(again.rows(step), name), strict=True)


@pytest.mark.parametrize("rule", RULES)
def test_plan_error_exactly_where_it_is_impossible(rule):
    for size in range(1, 41):
        for ranks in range(1, 6):
            for batch_size in range(1, 6):
                try:
                    Plan(size, batch_size, last_batch=rule, shard=Shard(0, ranks))
                except PlanError:
                    refused = True
                else:
                    refused = False
                assert refused != possible(rule, size, size, ranks, batch_size), (size, ranks, batch_size)


@pytest.mark.parametrize(("rule", "remedy"), [("partial", "fewer ranks"), ("drop", "smaller batch_size"), ("wrap", '"pad"')])
def test_plan_error_tells_numbers_and_remedy(rule, remedy):
    with pytest.raises(PlanError, match=f"3 samples for 4 ranks with batch_size=2.*{remedy}"):
        Plan(3, 2, last_batch=rule, shard=Shard(0, 4))


def test_an_epoch_that_is_done_has_no_steps():
    for rule in RULES:
        assert Plan(10, 2, last_batch=rule, shard=Shard(0, 5)).epoch(0, 10).steps == 0


def test_unshuffled_is_the_order_of_the_source():
    plan = Plan(7, 3, shuffle=False)
    assert [plan.epoch(4).rows(step).ids.tolist() for step in range(3)] == [[0, 1, 2], [3, 4, 5], [6]]


def test_shuffled_epochs_and_seeds_differ():
    orders = [tuple(Plan(50, 50, seed=seed).epoch(epoch).rows(0).ids.tolist()) for seed in range(5) for epoch in range(5)]
    assert len(set(orders)) == 25
    assert {tuple(sorted(order)) for order in orders} == {tuple(range(50))}


def test_ranks_take_turns_within_a_step():
    steps, _ = run(plans_of(10, 2, 3, "partial", shuffle=False))
    assert [[r.ids.tolist() for r in rows] for rows in steps] == [[[0, 2, 4], [1, 3, 5]], [[6, 8], [7, 9]]]


def test_partial_leaves_one_sample_for_each_rank_of_the_last_step():
    steps, _ = run(plans_of(9, 4, 2, "partial", shuffle=False))
    assert [[r.ids.tolist() for r in rows] for rows in steps] == [[[0, 4], [1], [2], [3]], [[5], [6], [7], [8]]]


def test_padding_repeats_the_beginning_and_belongs_to_the_epoch():
    rows = Plan(2, 5, shuffle=False, last_batch="pad").epoch(3).rows(0)
    assert rows.ids.tolist() == [0, 1, 0, 1, 0]
    assert rows.valid.tolist() == [True, True, False, False, False]
    assert rows.epochs.tolist() == [3] * 5


def test_the_tail_of_wrap_belongs_to_the_next_epoch():
    rows = Plan(5, 3, shuffle=False, last_batch="wrap").epoch(0).rows(1)
    assert rows.ids.tolist() == [3, 4, 0]
    assert rows.epochs.tolist() == [0, 0, 1]
    assert Counter(rows.valid.tolist()) == {True: 3}


@pytest.mark.parametrize("kind", [np.int8, np.int32, np.int64, np.uint8])
def test_numpy_integers_are_integers(kind):
    plan = Plan(1000, kind(100), seed=kind(3), last_batch="pad", shard=Shard(kind(1), kind(4)))
    epoch, same = plan.epoch(1), Plan(1000, 100, seed=3, last_batch="pad", shard=Shard(1, 4)).epoch(1)
    assert epoch.steps == same.steps == 3
    assert epoch.rows(2).ids.tolist() == same.rows(2).ids.tolist()
    assert json.dumps(epoch.position(1)) == "400"


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        ({"batch_size": 0}, "batch_size=0 .* at least 1"),
        ({"batch_size": -1}, "batch_size=-1 .* at least 1"),
        ({"batch_size": "8"}, "batch_size='8' is not a whole number; give one of at least 1"),
        ({"batch_size": 2.0}, "batch_size=2.0 is not a whole number"),
        ({"batch_size": True}, "batch_size=True is not a whole number"),
        ({"last_batch": "keep"}, "'keep' is not a rule; there are 'partial', 'drop', 'pad', 'wrap'"),
        ({"last_batch": None}, "there are 'partial'"),
        ({"seed": "a"}, "seed='a' is not a whole number"),
        ({"seed": True}, "seed=True is not a whole number"),
    ],
)
def test_bad_argument(arguments, remedy):
    with pytest.raises(ArgumentError, match=remedy):
        Plan(10, **{"batch_size": 2, **arguments})


@pytest.mark.parametrize("shard", [(3, 2), (0, 0), (2, 2), (-1, 2), (0, -1), ("0", 2), (0.0, 2), (False, 1)])
def test_bad_shard(shard):
    with pytest.raises(ArgumentError, match=r"0 <= index < count. The first of two ranks is shard=\(0, 2\)"):
        Shard(*shard)
