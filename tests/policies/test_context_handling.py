"""What is done about contexts while tools run: decided once, carried out with what there is."""

from __future__ import annotations

from types import SimpleNamespace as Fake

import pytest
from policy_fakes import FakeSession, fake_call, fake_fleet, fake_instance

from dispatcher.core.types import InstanceId, WorkflowId
from policies import context_handling
from policies.context_handling import ContextHandling
from policies.context_waste import Handling
from policies.handled_routing import HandledRouting
from policies.least_backlog import LeastBacklog

# the fakes take 0.5 ms per prompt token and 20 ms per iteration


def session(workflow="w", instance="here", context=1_000, gap_s=1.0, **fields):
    return FakeSession(WorkflowId(workflow), InstanceId(instance), context, gap_s=gap_s, **fields)


def busy(tokens=1_000, name="here", **fields):
    """An instance with so many tokens in flight."""
    here = fake_instance(name, **fields)
    here.start(fake_call("other", prompt_tokens=tokens))
    return here


# --- the choice -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gap_s", "expected"),
    [
        # computing a thousand tokens again holds them and the other thousand for half a second
        (0.9, Handling.PRESERVE),
        (1.0, Handling.PRESERVE),
        (1.1, Handling.DISCARD),
        (None, Handling.DISCARD),
    ],
)
def test_a_context_is_kept_where_its_tool_is_shorter_than_computing_it_again_costs(gap_s, expected):
    fleet = fake_fleet(busy())
    assert ContextHandling().of(session(gap_s=gap_s), fleet) is expected


@pytest.mark.parametrize(
    ("offload_tokens", "expected"),
    [(None, Handling.PRESERVE), (999, Handling.PRESERVE), (1_000, Handling.SWAP)],
)
def test_it_is_swapped_only_where_there_is_room_for_it(offload_tokens, expected):
    # moved out and in within an iteration each: 40 token seconds
    fleet = fake_fleet(busy(offload_tokens=offload_tokens))
    assert ContextHandling().of(session(gap_s=0.5), fleet) is expected


def test_moving_takes_an_iteration_per_so_many_tokens():
    here = busy(tokens=20_000, offload_tokens=10**6)
    fleet = fake_fleet(here)
    # 2 x 0.02 x 20,000 = 800 in one iteration, against 0.9 x 1,000
    assert ContextHandling(swap_tokens=1_000).choose(1_000, 0.9, here, fleet) is Handling.SWAP
    assert ContextHandling(swap_tokens=999).choose(1_000, 0.9, here, fleet) is Handling.PRESERVE


def test_it_stands_until_the_sessions_next_call_has_ended():
    here = busy()
    fleet, handling = fake_fleet(here), ContextHandling()
    paused = session(gap_s=0.9)
    assert handling.of(paused, fleet) is Handling.PRESERVE
    here.in_flight.clear()  # nobody would wait for it to be computed again
    paused.live, paused.tool = 1, None
    assert handling.of(paused, fleet) is Handling.PRESERVE
    paused.ended_s = 7.0
    assert handling.of(paused, fleet) is Handling.DISCARD


def test_nothing_can_be_kept_at_an_engine_that_is_gone():
    assert ContextHandling().of(session(instance="gone", gap_s=0.0), fake_fleet(busy())) is (
        Handling.DISCARD
    )


def test_decisions_are_forgotten(monkeypatch):
    monkeypatch.setattr(context_handling, "KEPT", 2)
    here = busy()
    fleet, handling = fake_fleet(here), ContextHandling()
    paused = [session(name, gap_s=0.9) for name in "abc"]
    for one in paused:
        handling.of(one, fleet)
    here.in_flight.clear()
    # the oldest is decided anew
    assert [handling.of(one, fleet).value for one in reversed(paused)] == [
        "preserve", "preserve", "discard",
    ]  # fmt: skip


# --- room that is kept ----------------------------------------------------------------------------


def test_room_is_kept_for_what_is_preserved_and_away():
    here = busy()
    fleet = fake_fleet(
        here,
        busy(name="elsewhere"),
        sessions=[
            session("short", context=600, gap_s=0.1),
            session("shorter", context=300, gap_s=0.05),
            session("long", context=5_000, gap_s=60.0),
            session("back", context=7_000, gap_s=0.1, live=1),
            session("done", context=7_000, gap_s=None, tool=None),
            session("there", instance="elsewhere", context=9_000, gap_s=0.1),
        ],
    )
    assert ContextHandling().reserved_tokens(here, fleet, 0.0) == 900.0


def test_it_is_free_when_the_session_comes_back():
    here = busy()
    away = session(context=600, gap_s=0.1)
    fleet, handling = fake_fleet(here, sessions=[away]), ContextHandling()
    assert handling.reserved_tokens(here, fleet, 0.0) == 600.0
    away.live = 1
    assert handling.reserved_tokens(here, fleet, 0.1) == 0.0


def test_who_is_listed_stands_for_all_who_are_paused():
    here = busy()
    kept, given_up = session("a", context=300, gap_s=0.1), session("b", context=100, gap_s=60.0)
    fleet = fake_fleet(here)
    fleet.paused = lambda instance: [kept, given_up]
    fleet.paused_tokens = lambda instance: 4_000.0
    assert ContextHandling().reserved_tokens(here, fleet, 0.0) == 3_000.0


def test_looking_is_spared_while_nothing_has_changed():
    here = busy()
    fleet, handling = (
        fake_fleet(here, sessions=[session(context=600, gap_s=0.1)]),
        ContextHandling(),
    )
    looks = []
    listed = fleet.paused

    def paused(instance):
        looks.append(instance)
        return listed(instance)

    fleet.paused_tokens, fleet.paused = (lambda instance: 600.0), paused
    for now_s in (0.0, 0.1, 0.9):
        assert handling.reserved_tokens(here, fleet, now_s) == 600.0
    assert len(looks) == 1
    handling.reserved_tokens(here, fleet, 1.0)
    assert len(looks) == 2


# --- where it goes --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gap_s", "weight", "expected"),
    [
        (0.5, 1.0, "here"),  # 0.5 s of prefill spared there, and 0.4 s more to wait
        (0.5, 0.5, "idle"),
        (0.5, 0.0, "idle"),
        (60.0, 1.0, "idle"),  # given up
    ],
)
def test_what_was_to_be_kept_draws_its_session_back(gap_s, weight, expected):
    here, idle = busy(backlog_s=0.4), fake_instance("idle")
    back = session(gap_s=gap_s, live=1)
    fleet = fake_fleet(here, idle, sessions=[back])
    idle_first = Fake(late_binding=False, route=lambda *_: InstanceId("idle"))
    routing = HandledRouting(idle_first, weight, ContextHandling())
    call = fake_call("c", workflow="w", prompt_tokens=1_200)
    assert routing.route(call, [here, idle], fleet, 0.0) == expected


def test_others_go_where_the_routing_says_and_bind_as_it_does():
    here, idle = fake_instance("here", backlog_s=9.0), fake_instance("idle")
    routing = HandledRouting(LeastBacklog(late_binding=True), 1.0, ContextHandling())
    assert routing.late_binding
    assert routing.route(fake_call("new"), [here, idle], fake_fleet(here, idle), 0.0) == "idle"
