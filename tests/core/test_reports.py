"""What the coordinator says of itself."""

from __future__ import annotations

import json

import pytest
from core_world import ByKey, FlatTracker, World, policy

from dispatcher.core import reports
from dispatcher.core.types import CallId, Slo, WorkflowId
from dispatcher.core.workflow_types import WorkflowDeclaration


def declaration(slo_s: float | None = None) -> WorkflowDeclaration:
    return WorkflowDeclaration(WorkflowId("w"), "chat", slo_s=slo_s)


class Unknown(FlatTracker):
    """Knows no structure, but a default deadline."""

    def remaining_work_s(self, workflow_id, work_s):
        return 0.0

    def explain(self, workflow_id):
        return {"slo_s": 5.0, "elapsed_s": 2.0}


def test_a_quote_is_the_work_after_the_least_backlog():
    world = World()
    world.up("busy", seats=1)
    world.arrive("a")
    world.up("idle", seats=1)
    quote = reports.quote(world.coordinator, declaration(slo_s=2.0))
    # 101 ms of prefill and 100 tokens of 10 ms
    assert quote.details == {"work_s": pytest.approx(1.101), "backlog_s": 0.0}
    assert quote.feasible
    assert not reports.quote(world.coordinator, declaration(slo_s=1.0)).feasible


def test_a_quote_counts_one_usual_call_where_nothing_is_known():
    world = World(tracker=Unknown())
    world.up("i", seats=1)
    assert reports.quote(world.coordinator, declaration()).details["work_s"] > 1.0


def test_a_quote_is_held_against_the_deadline_that_holds():
    world = World(tracker=Unknown())
    world.up("i", seats=1)
    world.lengths.tokens = 400.0
    quote = reports.quote(world.coordinator, declaration(slo_s=60.0))
    assert quote.earliest_finish_s > 3.0
    assert not quote.feasible, "the workflow runs already, with 3 s left"


def test_nothing_is_feasible_where_nothing_is_up():
    quote = reports.quote(World().coordinator, declaration())
    assert (quote.feasible, quote.earliest_finish_s) == (False, float("inf"))


def test_queues_are_listed_most_pressing_first():
    world = World(policy(ordering=ByKey(key=lambda call: (call.placement.deadline_s,))))
    world.up("i", seats=1)
    for name, slo_s in (("running", 9.0), ("later", 60.0), ("sooner", 1.0)):
        world.arrive(name, slo=Slo(end_to_end_s=slo_s))
    listed = reports.queues(world.coordinator, world.now_s)
    instance = listed["instances"]["i"]
    assert [call["call_id"] for call in instance["waiting"]] == ["sooner", "later"]
    assert [call["call_id"] for call in instance["in_flight"]] == ["running"]
    json.dumps(listed)


def test_long_queues_are_keyed_and_listed_in_part(monkeypatch):
    monkeypatch.setattr(reports, "LISTED_CALLS_MAX", 2)
    keyed = []
    world = World(policy(ordering=ByKey(key=lambda call: (keyed.append(call.call_id) or 0.0,))))
    world.up("i", seats=1)
    for name in ("running", "first", "second", "third"):
        world.arrive(name)
    keyed.clear()
    instance = reports.queues(world.coordinator, world.now_s)["instances"]["i"]
    assert [call["call_id"] for call in instance["waiting"]] == ["first", "second"]
    assert instance["waiting_calls"] == 3
    assert keyed == ["first", "second"]


def test_a_call_is_explained_while_it_waits_and_after():
    world = World()
    world.up("i", seats=1)
    world.arrive("running")
    world.arrive("waiting")
    waiting = reports.explain_call(world.coordinator, CallId("waiting"), world.now_s)
    assert (waiting["state"], waiting["instance_id"]) == ("queued", "i")
    world.end("running")
    ended = reports.explain_call(world.coordinator, CallId("running"), world.now_s)
    assert ended["state"] == "ended"
    assert reports.explain_call(world.coordinator, CallId("nobody"), world.now_s) is None
