"""What an engine keeps of prompts, in which order it forgets, and what it can be told to keep."""

from __future__ import annotations

import math

import pytest
from engine_cases import make_engine, make_request, names, serve, step

from dispatcher.engine_model import EngineModel, Residency

SESSION = (1, 2, 3)


def fill(engine: EngineModel, first: int, now_s: float = 0.0) -> tuple[int, ...]:
    """Let a prompt of eleven full blocks and a part of one come and go; return its hashes."""
    hashes = tuple(range(first, first + 11))
    serve(engine, make_request(f"fill-{first}", prompt=47, hashes=hashes), now_s)
    return hashes


def engine_that_preserves(**overrides: object) -> EngineModel:
    return make_engine(enable_preserve=True, **overrides)


def test_residency_says_how_much_is_kept_and_what_goes_first():
    engine = make_engine()
    serve(engine, make_request("a", prompt=12, hashes=SESSION))
    assert engine.residency(SESSION) == Residency(3, 0, free_before=13, offloaded=0)
    serve(engine, make_request("b", prompt=8, hashes=(4, 5)))
    # eleven blank ones, then the last blocks of each, the older prompt first: 3, 2, 1, 5, 4
    assert engine.residency(SESSION).free_before == 11
    assert engine.residency((4, 5)).free_before == 14
    assert engine.residency((1, 9, 3)) == Residency(1, 0, 13, 0)
    assert engine.residency((9,)) == Residency(0, 0, None, 0)


def test_what_a_request_holds_is_not_in_eviction_order():
    engine = make_engine()
    engine.add(make_request("a", prompt=12, output=9, hashes=SESSION))
    step(engine)
    assert engine.residency(SESSION) == Residency(3, 3, None, 0)


@pytest.mark.parametrize(("preserves", "kept"), [(True, 3), (False, 0)])
def test_preserved_blocks_outlive_others_that_came_later(preserves: bool, kept: int):
    engine = engine_that_preserves()
    serve(engine, make_request("a", prompt=12, hashes=SESSION))
    if preserves:
        assert engine.preserve("session", SESSION, 10.0) == 3
        assert (engine.preserved_blocks, engine.kv_usage) == (3, 3 / 16)
    for first in (10, 30, 50):
        fill(engine, first)
    engine.validate()
    assert engine.residency(SESSION).resident == kept
    assert engine.preserves_dropped == 0


def test_a_preserve_expires_with_the_first_iteration_at_its_moment():
    engine = engine_that_preserves()
    serve(engine, make_request("a", prompt=12, hashes=SESSION))
    engine.preserve("session", SESSION, until_s=5.0)
    assert engine.next_expiry_s == 5.0
    serve(engine, make_request("b"), now_s=4.9)
    assert engine.residency(SESSION).held == 3
    serve(engine, make_request("c"), now_s=5.0)
    assert engine.residency(SESSION).held == 0
    assert engine.next_expiry_s == math.inf


def test_what_is_given_up_goes_as_if_it_had_just_been_used():
    engine = engine_that_preserves()
    serve(engine, make_request("a", prompt=12, hashes=SESSION))
    engine.preserve("session", SESSION, math.inf)
    later = fill(engine, 10)
    assert engine.release("session")
    assert not engine.release("session"), "nothing is held for it any more"
    blank = 16 - 3 - len(later)
    assert engine.residency(later).free_before == blank
    assert engine.residency(SESSION).free_before == blank + len(later)


def test_running_requests_take_the_largest_preserve_before_they_take_from_each_other():
    engine = engine_that_preserves()
    serve(engine, make_request("s", prompt=4, hashes=(9,)))
    serve(engine, make_request("l", prompt=12, hashes=SESSION))
    engine.preserve("small", (9,), math.inf)
    engine.preserve("large", SESSION, math.inf)
    # ten and six blocks when the second one ends, and twelve are left
    engine.add(make_request("a", prompt=20, output=27))
    engine.add(make_request("b", prompt=4, output=20))
    left = []
    while engine.has_work:
        assert step(engine).preempted == []
        left.append((engine.residency(SESSION).held, engine.residency((9,)).held))
    assert left[0] == (3, 1)
    assert (0, 1) in left, "the large one goes first"
    assert engine.preserves_dropped == 2


def test_of_equals_the_longest_paused_session_is_dropped_first():
    engine = engine_that_preserves()
    serve(engine, make_request("a", prompt=12, hashes=SESSION))
    serve(engine, make_request("b", prompt=12, hashes=(4, 5, 6)))
    for session, hashes in (("first", (4, 5, 6)), ("second", SESSION)):
        engine.preserve(session, hashes, math.inf)
    engine.add(make_request("c", prompt=43, output=5))
    while engine.has_work:
        step(engine)
    assert engine.preserves_dropped == 1
    assert (engine.residency((4, 5, 6)).held, engine.residency(SESSION).held) == (0, 3)


def test_a_waiting_request_takes_preserved_blocks_only_where_nothing_runs():
    engine = engine_that_preserves()
    hashes = tuple(range(1, 9))
    serve(engine, make_request("paused", prompt=32, hashes=hashes))
    engine.preserve("session", hashes, math.inf)
    engine.add(make_request("runs", output=3))
    step(engine)
    engine.add(make_request("big", prompt=40))
    assert [names(step(engine).admitted) for _ in range(2)] == [[], []]
    assert (engine.running_count, engine.preserves_dropped) == (0, 0)
    assert names(step(engine).admitted) == ["big"]
    assert engine.preserves_dropped == 1


def test_a_session_that_goes_on_takes_its_blocks_over():
    engine = engine_that_preserves()
    serve(engine, make_request("turn1", prompt=12, hashes=SESSION))
    engine.preserve("session", SESSION, 100.0)
    for first in (10, 30):
        fill(engine, first)
    turn2 = make_request("turn2", prompt=17, output=2, hashes=(*SESSION, 4), session="session")
    engine.add(turn2)
    assert engine.preserved_blocks == 3, "it keeps them while it waits"
    step(engine)
    assert turn2.cached_tokens == 12
    assert (engine.preserved_blocks, engine.next_expiry_s) == (0, math.inf)
    assert engine.residency(SESSION).held == 3


def test_blocks_that_two_sessions_share_are_kept_until_both_have_gone():
    engine = engine_that_preserves()
    serve(engine, make_request("a", prompt=12, hashes=SESSION))
    serve(engine, make_request("b", prompt=12, hashes=(1, 7, 8)))
    engine.preserve("one", SESSION, 1.0)
    engine.preserve("two", (1, 7, 8), 2.0)
    assert (engine.preserved_blocks, engine.next_expiry_s) == (5, 1.0)
    assert engine.expire(1.5) == 1
    engine.validate()
    assert (engine.residency(SESSION).held, engine.next_expiry_s) == (1, 2.0)
    engine.release("two")
    assert engine.residency(SESSION).held == 0


def test_a_second_preserve_takes_the_place_of_the_first():
    engine = engine_that_preserves()
    serve(engine, make_request("a", prompt=12, hashes=SESSION))
    engine.preserve("session", SESSION, 1.0)
    assert engine.preserve("session", (*SESSION, 77), 9.0) == 3, "up to the first miss"
    engine.validate()
    assert (engine.preserved_blocks, engine.next_expiry_s) == (3, 9.0)
    assert engine.preserve("session", (88,), 9.0) == 0, "nothing of it is there"
    assert (engine.preserved_blocks, engine.next_expiry_s) == (0, math.inf)


def test_an_engine_of_today_cannot_preserve():
    with pytest.raises(ValueError, match="without enable_preserve"):
        make_engine().preserve("session", SESSION, 1.0)


def test_an_engine_that_starts_anew_has_forgotten_what_was_preserved():
    engine = engine_that_preserves()
    serve(engine, make_request("a", prompt=12, hashes=SESSION))
    engine.preserve("session", SESSION, 1.0)
    engine.reset_prefix_cache()
    engine.validate()
    assert (engine.residency(SESSION).resident, engine.next_expiry_s) == (0, math.inf)


def test_only_what_nobody_holds_is_discarded():
    engine = engine_that_preserves()
    serve(engine, make_request("a", prompt=12, hashes=SESSION))
    engine.preserve("session", SESSION[:1], math.inf)
    assert engine.discard((*SESSION, 99)) == 2
    engine.validate()
    assert engine.residency(SESSION) == Residency(1, 1, None, 0)


def test_a_changed_token_limit_holds_from_the_next_iteration_on():
    engine = make_engine()
    engine.set_token_limit(8)
    engine.add(make_request("a", prompt=40))
    assert [step(engine).prefill_tokens for _ in range(2)] == [8, 8]
    engine.set_token_limit(20)
    assert step(engine).prefill_tokens == 20
    assert engine.token_limit == 20


@pytest.mark.parametrize("tokens", [0, 65])
def test_a_token_limit_lies_between_one_and_what_was_launched_with(tokens: int):
    with pytest.raises(ValueError, match=f"from 1 to 64, not {tokens}"):
        make_engine().set_token_limit(tokens)


def test_with_fewer_tokens_than_requests_those_admitted_last_wait():
    engine = make_engine()
    for name in "abc":
        engine.add(make_request(name, output=9))
    step(engine)
    engine.set_token_limit(2)
    assert engine.alike_run() is None
    assert names(step(engine).emitted) == ["a", "b"]
    engine.set_token_limit(64)
    assert names(step(engine).emitted) == ["a", "b", "c"]


def test_while_tokens_last_for_running_requests_only_they_go_on_alike():
    engine = make_engine()
    for name in "ab":
        engine.add(make_request(name, output=9))
    step(engine)
    engine.set_token_limit(2)
    engine.add(make_request("c"))
    run = engine.alike_run()
    assert run is not None and run.count == 8
    assert step(engine).admitted == []
