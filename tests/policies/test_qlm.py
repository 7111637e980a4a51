"""QLM: groups in the order in which they formed, until one would be late; then by deadline."""

from __future__ import annotations

import math

import pytest
from core_world import FlatTracker, World
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_fakes import fake_call, fake_fleet, fake_instance

from dispatcher.core.errors import BadParameterError
from dispatcher.core.ports import Policy
from dispatcher.core.types import PLAIN_SEAT, InstanceId
from dispatcher.core.workflow_types import StageBudget
from policies.qlm import Qlm
from policies.round_robin import RoundRobin
from policies.seats import SeatAdmission


def qlm(**params):
    return Policy("qlm", RoundRobin(), Qlm(**params), SeatAdmission())


class Deadlines(FlatTracker):
    """A workflow's SLO is the first number in its name, seconds."""

    def budget(self, call_id, work_s, now_s):
        workflow = self.live[call_id]
        deadline_s = self.started[workflow] + float(workflow.split()[0])
        return StageBudget(now_s, deadline_s - now_s, 1.0, 1.0, deadline_s)


def world():
    """Every call is thought to give 100 tokens and to take 1.1 s."""
    built = World(qlm(), tracker=Deadlines())
    built.up("i", seats=1)
    return built


def queued(backlog_s, *calls, in_flight=(), slo_ratio=1.25, now_s=0.0):
    """Calls in the queue of an engine that is so far behind, all told."""
    instance = fake_instance("i", backlog_s=backlog_s)
    for call in in_flight:
        instance.start(call)
    queue = Qlm(slo_ratio=slo_ratio).queue(instance, fake_fleet(instance))
    for call in calls:
        queue.push(call, now_s)
    return queue


def drained(queue, now_s=0.0):
    names = []
    while len(queue):
        call = queue.select(PLAIN_SEAT, now_s)
        names.append(call.spec.call_id)
        queue.remove(call.spec.call_id)
    return names


def first(queue, now_s=0.0):
    return queue.select(PLAIN_SEAT, now_s).spec.call_id


# --- in the coordinator ---


def test_groups_keep_their_order_while_nobody_would_be_late():
    run = world()
    run.arrive("running", workflow="50 s")
    run.arrive("relaxed", workflow="90 s")
    run.arrive("pressing", workflow="30 s")
    run.arrive("relaxed too", workflow="89 s")
    assert run.sent(run.end("running")) == [("relaxed", "i")]
    assert run.sent(run.end("relaxed")) == [("relaxed too", "i")], "a group goes as a whole"
    assert run.sent(run.end("relaxed too")) == [("pressing", "i")]


def test_groups_are_reordered_when_one_would_be_late():
    run = world()
    run.arrive("running", workflow="50 s")
    for number in range(5):
        run.arrive(f"relaxed-{number}", workflow=f"90 s, {number}")
    for number in range(2):
        # 6.6 s are ahead of them
        run.arrive(f"pressing-{number}", workflow=f"4 s, {number}")
    assert run.sent(run.end("running")) == [("pressing-0", "i")]
    assert run.sent(run.end("pressing-0")) == [("pressing-1", "i")]
    assert run.sent(run.end("pressing-1")) == [("relaxed-0", "i")]


def test_time_alone_reorders_groups():
    run = world()
    run.arrive("running", workflow="50 s")
    run.arrive("relaxed", workflow="90 s")
    run.arrive("pressing", workflow="15 s")
    assert run.sent(run.end("running", after_s=14.5)) == [("pressing", "i")]


def test_queues_are_judged_one_by_one():
    run = world()
    run.up("other", seats=1)
    for name in ("i", "other"):
        run.arrive(f"running at {name}", workflow="50 s", pinned_to=InstanceId(name))
        run.arrive(f"relaxed at {name}", workflow="90 s", pinned_to=InstanceId(name))
    run.arrive("long", workflow="91 s", pinned_to=InstanceId("i"))
    for name in ("i", "other"):
        run.arrive(f"pressing at {name}", workflow="2.8 s", pinned_to=InstanceId(name))
    # through in 3.3 s at the one, in 2.2 s at the other
    assert run.sent(run.end("running at i")) == [("pressing at i", "i")]
    assert run.sent(run.end("running at other")) == [("relaxed at other", "other")]


# --- the estimate ---


def calls(*figures):
    """(name, SLO in seconds, output tokens), arriving in this order at 0."""
    return [
        fake_call(name, number, deadline_s=slo_s, output_tokens=tokens)
        for number, (name, slo_s, tokens) in enumerate(figures, 1)
    ]


def test_the_wait_is_outstanding_tokens_over_throughput():
    # 1,000 tokens in 10 s; the pressing group is through after all of them
    figures = ("relaxed", 90.0, 600.0), ("pressing", 10.0, 400.0)
    assert first(queued(10.0, *calls(*figures))) == "relaxed"
    assert first(queued(10.001, *calls(*figures))) == "pressing"


def test_only_what_is_ahead_counts():
    # in order of arrival the pressing one is through after 4 s of the 10 s
    figures = ("pressing", 5.0, 400.0), ("relaxed", 90.0, 600.0)
    early = queued(10.0, *calls(*figures))
    assert drained(early) == ["pressing", "relaxed"]
    late = queued(10.0, *calls(("relaxed", 90.0, 600.0), ("pressing", 5.0, 400.0)))
    assert drained(late) == ["pressing", "relaxed"]


def test_what_is_in_flight_is_ahead_of_everybody():
    running = fake_call("running", 0, output_tokens=900.0)
    running.generated_tokens = 400
    waiting = calls(("relaxed", 90.0, 100.0), ("pressing", 9.9, 150.0), ("later", 900.0, 250.0))
    # 1,000 tokens in 13.3 s: 750 of them until the pressing group is through
    assert first(queued(13.3, *waiting, in_flight=[running])) == "pressing"
    assert first(queued(13.1, *waiting, in_flight=[running])) == "relaxed"


def test_a_groups_most_pressing_member_speaks_for_it():
    waiting = calls(("other", 300.0, 500.0), ("relaxed", 99.0, 250.0), ("pressing", 90.0, 250.0))
    queue = queued(95.0, *waiting)
    assert drained(queue) == ["relaxed", "pressing", "other"], "in one group, by arrival"


def test_a_workflow_that_is_late_already_goes_before_those_that_are_not():
    waiting = calls(("relaxed", 90.0, 100.0), ("late", 5.0, 100.0))
    assert first(queued(1.0, *waiting, now_s=6.0), now_s=6.0) == "late"


def test_the_order_is_the_groups_own_again_once_that_makes_nobody_late():
    waiting = calls(("relaxed", 90.0, 600.0), ("pressing", 9.0, 300.0), ("relaxed 2", 90.0, 100.0))
    queue = queued(10.0, *waiting)
    assert first(queue) == "pressing"
    queue.remove("pressing")
    assert first(queue) == "relaxed"


# --- groups ---


def test_slos_that_are_nearly_equal_share_a_group():
    waiting = calls(("a", 90.0, 1.0), ("b", 100.0, 1.0), ("c", 300.0, 1.0), ("a too", 91.0, 1.0))
    assert drained(queued(0.0, *waiting)) == ["a", "b", "a too", "c"]
    assert drained(queued(0.0, *waiting, slo_ratio=1.05)) == ["a", "a too", "b", "c"]


def test_models_are_groups_of_their_own():
    one = fake_call("one", 1, model="m")
    other = fake_call("other", 2, model="n")
    again = fake_call("again", 3, model="m")
    assert drained(queued(0.0, one, other, again)) == ["one", "again", "other"]


def test_a_group_keeps_its_place_until_it_is_empty():
    early, other = fake_call("early", 1, deadline_s=30.0), fake_call("other", 2, deadline_s=90.0)
    queue = queued(0.0, early, other, fake_call("late", 3, deadline_s=30.0))
    queue.remove("early")
    assert first(queue) == "late"
    queue.remove("late")
    queue.push(fake_call("again", 4, deadline_s=30.0), 0.0)
    assert first(queue) == "other"


def test_inside_a_group_the_clients_priority_goes_before_arrival():
    plain, keen = fake_call("plain", 1), fake_call("keen", 2, client_priority=-1)
    assert drained(queued(0.0, plain, keen)) == ["keen", "plain"]


def test_a_new_deadline_moves_a_call_to_another_group():
    moved, stays, other = calls(("moved", 30.0, 1.0), ("stays", 30.0, 1.0), ("other", 90.0, 1.0))
    queue = queued(0.0, moved, other, stays)
    moved.budget = fake_call("x", deadline_s=90.0).budget
    queue.refresh(moved, 0.0)
    assert drained(queue) == ["moved", "other", "stays"]


def test_however_slos_differ_there_are_few_groups():
    queue = queued(1.0)
    slos_s = [0.0, -5.0, math.inf, *(1.01**n for n in range(-500, 3_000))]
    for number, slo_s in enumerate(slos_s):
        queue.push(fake_call(f"c{number}", number, deadline_s=slo_s), 0.0)
    assert len(queue._groups) <= 1 + math.log(1e6 / 0.1) / math.log(1.25)
    drained(queue)
    assert not queue._groups
    assert not queue._entries


@pytest.mark.parametrize("ratio", [1.0, 0.5, math.inf, math.nan])
def test_a_ratio_that_cannot_be_is_refused(ratio):
    with pytest.raises(BadParameterError, match="above 1"):
        Qlm(slo_ratio=ratio)


# --- held calls, and what is shown ---


def test_held_calls_go_by_least_remaining_time():
    queue = Qlm().queue(None, fake_fleet(fake_instance("i")))
    for call in calls(("relaxed", 900.0, 1.0), ("pressing", 90.0, 1.0)):
        queue.push(call, 0.0)
    assert drained(queue) == ["pressing", "relaxed"]


def test_keys_tell_the_order_of_the_groups():
    ordering, instance = Qlm(), fake_instance("i", backlog_s=10.0)
    fleet = fake_fleet(instance)
    relaxed, pressing = calls(("relaxed", 90.0, 500.0), ("pressing", 9.0, 500.0))
    queue = ordering.queue(instance, fleet)
    for call in (relaxed, pressing):
        queue.push(call, 0.0)
    assert ordering.key(pressing, instance, fleet, 0.0) == (0.0, 0.0)
    assert ordering.key(relaxed, instance, fleet, 0.0) == (1.0, 0.0)
    assert ordering.key(relaxed, None, fleet, 0.0) == (90.0, 0.0)
    absent = fake_call("absent", 3)
    assert ordering.key(absent, instance, fleet, 0.0) == (2.0, 0.0)


# --- the whole, against a scan ---

FIGURES = st.lists(
    st.tuples(
        st.sampled_from([4.0, 30.0, 31.0, 200.0]),
        st.integers(1, 900),
        st.sampled_from("mn"),
    ),
    min_size=1,
    max_size=12,
)


def scan(waiting, formed, running, backlog_s, now_s):
    """The next call, worked out from the definition with nothing kept but who formed a group."""
    groups = {}
    for call in sorted(waiting, key=lambda c: c.sequence):
        slo_s = call.budget.deadline_s - call.placement.workflow_started_s
        name = (call.spec.model, math.floor(math.log(slo_s) / math.log(1.25)))
        groups.setdefault(name, []).append(call)
    for name in [name for name in formed if name not in groups]:
        del formed[name]
    for name, members in groups.items():
        formed.setdefault(name, members[0].sequence)
    order = sorted(groups, key=formed.__getitem__)
    tokens = {n: sum(c.length.expected_tokens for c in m) for n, m in groups.items()}
    left_s = {n: min(c.budget.deadline_s for c in m) - now_s for n, m in groups.items()}
    total = running.length.expected_tokens + sum(tokens.values())
    through = running.length.expected_tokens
    for name in order:
        through += tokens[name]
        if backlog_s * through / total > left_s[name]:
            return groups[min(order, key=left_s.__getitem__)][0]
    return groups[order[0]][0]


@settings(deadline=None)
@given(FIGURES, st.floats(0.0, 300.0), st.floats(0.0, 40.0))
def test_the_queue_is_the_definition(figures, backlog_s, now_s):
    running = fake_call("running", 0, output_tokens=300.0)
    waiting = [
        fake_call(f"c{n}", n, arrived_s=float(n), deadline_s=n + slo_s, output_tokens=t, model=m)
        for n, (slo_s, t, m) in enumerate(figures, 1)
    ]
    queue = queued(backlog_s, *waiting, in_flight=[running])
    formed = {}
    while waiting:
        expected = scan(waiting, formed, running, backlog_s, now_s)
        assert queue.select(PLAIN_SEAT, now_s) is expected
        queue.remove(expected.spec.call_id)
        waiting.remove(expected)
