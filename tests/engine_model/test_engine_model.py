"""The engine model as a specification: requests in, who runs and who waits out."""

from __future__ import annotations

from functools import partial

import engine_cases
import pytest
from engine_cases import names, step

from dispatcher.core.gpu_profiles import A100_80G, L40, LLAMA_8B
from dispatcher.engine_model import (
    EngineModel,
    RequestState,
    Roofline,
    StepResult,
)


def make_engine(**overrides: object) -> EngineModel:
    """With room for longer requests, in the order of their priority."""
    settings = {"num_blocks": 64, "max_model_len": 256, "scheduling_policy": "priority"}
    return engine_cases.make_engine(**(settings | overrides))


make_request = partial(engine_cases.make_request, output=3)


def run(engine: EngineModel, limit: int = 10_000) -> list[StepResult]:
    results = []
    now_s = 0.0
    while engine.has_work:
        results.append(step(engine, now_s))
        now_s += results[-1].duration_s
        assert len(results) < limit, "the engine does not come to an end"
    return results


def test_a_request_gets_its_first_token_from_the_prefill_and_one_per_step_after():
    engine = make_engine()
    engine.add(make_request("a", prompt=10, output=3))
    results = run(engine)
    assert [names(r.emitted) for r in results] == [["a"], ["a"], ["a"]]
    assert [(r.prefill_tokens, r.decode_tokens) for r in results] == [(10, 0), (0, 1), (0, 1)]
    assert names(results[-1].finished) == ["a"]


def test_without_work_a_step_takes_no_time():
    assert step(make_engine()).duration_s == 0.0


def test_no_more_requests_run_than_there_are_seats():
    engine = make_engine(max_num_seqs=2)
    for name in "abc":
        engine.add(make_request(name, output=2))
    first = step(engine)
    assert (names(first.admitted), engine.running_count, engine.waiting_count) == (["a", "b"], 2, 1)
    assert names(step(engine).finished) == ["a", "b"]
    assert names(step(engine).admitted) == ["c"]


def test_a_long_prompt_is_prefilled_in_chunks_beside_decoding_requests():
    engine = make_engine(max_num_batched_tokens=16)
    engine.add(make_request("short", prompt=4, output=8))
    step(engine)
    engine.add(make_request("long", prompt=40, output=1))
    seen = [step(engine) for _ in range(3)]
    # 15 tokens are left beside the decoding one: 15 + 15 + 10.
    assert [(r.prefill_tokens, r.decode_tokens) for r in seen] == [(15, 1), (15, 1), (10, 1)]
    assert [names(r.emitted) for r in seen] == [["short"], ["short"], ["short", "long"]]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("priority", ["urgent", "early", "late", "lazy"]),
        ("fcfs", ["lazy", "early", "late", "urgent"]),
    ],
)
def test_waiting_requests_go_by_priority_then_arrival(policy: str, expected: list[str]):
    engine = make_engine(max_num_seqs=1, scheduling_policy=policy)
    for name, priority, arrival_s in (
        ("lazy", 9, 0.0),
        ("early", 5, 1.0),
        ("late", 5, 2.0),
        ("urgent", -3, 3.0),
    ):
        engine.add(make_request(name, priority=priority, arrival_s=arrival_s, output=1))
    assert [name for r in run(engine) for name in names(r.finished)] == expected


def test_a_waiting_request_never_evicts_one_that_runs():
    engine = make_engine(max_num_seqs=1)
    engine.add(make_request("running", priority=9, output=5))
    step(engine)
    engine.add(make_request("urgent", priority=-9))
    result = step(engine)
    assert (names(result.emitted), result.preempted) == (["running"], [])


@pytest.mark.parametrize(
    ("policy", "priorities", "victim"),
    [
        ("priority", (0, 7, 3), "b"),  # the least urgent
        ("priority", (7, 7, 3), "b"),  # of equals the one that arrived last
        ("priority", (9, 7, 3), "a"),
        ("fcfs", (0, 7, 3), "c"),  # whoever was admitted last
    ],
)
def test_without_a_free_block_the_victim_loses_everything_and_waits(
    policy: str, priorities: tuple[int, ...], victim: str
):
    # Three prompts fill six of eight blocks: the third request to grow finds none.
    engine = make_engine(num_blocks=8, max_model_len=16, scheduling_policy=policy)
    for place, (name, priority) in enumerate(zip("abc", priorities, strict=True)):
        engine.add(
            make_request(name, prompt=8, output=8, priority=priority, arrival_s=float(place))
        )
    step(engine)
    result = step(engine)
    assert names(result.preempted) == [victim]
    request = result.preempted[0]
    assert (request.state, request.computed, request.blocks) == (RequestState.WAITING, 0, 0)
    assert request.generated == 1, "tokens already given are kept and computed again"
    assert victim not in names(result.emitted)
    assert engine.preemptions == 1


def test_a_preempted_request_computes_prompt_and_output_again_and_finishes():
    engine = make_engine(num_blocks=4, max_model_len=16)
    engine.add(make_request("a", prompt=7, output=8, priority=0))
    engine.add(make_request("b", prompt=7, output=8, priority=1))
    results = run(engine)
    emitted = [name for r in results for name in names(r.emitted)]
    assert (emitted.count("a"), emitted.count("b")) == (8, 8)
    assert engine.preemptions > 0
    again = next(r for r in results if r.admitted and r.admitted[0].preemptions)
    # Everything but shared blocks is computed anew: the prompt and what had been generated.
    assert again.prefill_tokens >= 8


def test_a_waiting_request_is_admitted_only_when_its_whole_prompt_fits():
    engine = make_engine(num_blocks=8, max_model_len=32, max_num_batched_tokens=8)
    engine.add(make_request("a", prompt=16, output=4))
    step(engine)
    engine.add(make_request("b", prompt=24, output=1))
    for _ in range(2):
        assert step(engine).admitted == []


def test_full_prompt_blocks_are_found_again_and_the_last_token_is_always_computed():
    engine = make_engine()
    hashes = (11, 12, 13)
    engine.add(make_request("cold", prompt=12, output=1, hashes=hashes))
    assert step(engine).prefill_tokens == 12
    warm = make_request("warm", prompt=12, output=1, hashes=hashes)
    engine.add(warm)
    # The prompt is three full blocks; the third holds the token whose output is wanted.
    assert step(engine).prefill_tokens == 4
    assert warm.cached_tokens == 8
    assert (engine.prefix_queries_tokens, engine.prefix_hits_tokens) == (24, 8)


def test_a_later_turn_finds_prompt_and_answer_of_the_turn_before():
    engine = make_engine()
    engine.add(make_request("turn1", prompt=6, output=7, hashes=(1, 2, 3)))
    run(engine)
    turn2 = make_request("turn2", prompt=16, output=1, hashes=(1, 2, 3, 4))
    engine.add(turn2)
    step(engine)
    # 6 + 7 tokens, of which the last has no KV yet: 12 computed, three full blocks.
    assert turn2.cached_tokens == 12


def test_a_different_block_ends_the_match_even_when_later_ones_are_kept():
    engine = make_engine()
    engine.add(make_request("a", prompt=12, output=1, hashes=(1, 2, 3)))
    run(engine)
    other = make_request("b", prompt=12, output=1, hashes=(1, 9, 3))
    engine.add(other)
    step(engine)
    assert other.cached_tokens == 4


def test_the_least_recently_used_content_is_evicted_first():
    engine = make_engine(num_blocks=6, max_model_len=24)
    for name, hashes in (("old", (1, 2)), ("new", (3, 4))):
        engine.add(make_request(name, prompt=8, output=1, hashes=hashes))
        run(engine)
    engine.add(make_request("big", prompt=15, output=1))  # four blocks: two blank, two evicted
    run(engine)
    probes = {}
    for name, hashes in (("new", (3, 4, 99)), ("old", (1, 2, 98))):
        probe = make_request(f"probe-{name}", prompt=9, output=1, hashes=hashes)
        engine.add(probe)
        step(engine)
        probes[name] = probe.cached_tokens
    assert probes == {"new": 8, "old": 0}


def test_without_prefix_caching_nothing_is_found_again():
    engine = make_engine(enable_prefix_caching=False)
    for name in "ab":
        engine.add(make_request(name, prompt=12, output=1, hashes=(1, 2, 3)))
        assert step(engine).prefill_tokens == 12


@pytest.mark.parametrize("when", ["waiting", "prefilling", "decoding"])
def test_an_abort_frees_the_seat_and_every_block(when: str):
    engine = make_engine(max_num_seqs=1, max_num_batched_tokens=8)
    engine.add(make_request("x", prompt=24, output=50, hashes=(1, 2, 3, 4, 5, 6)))
    for _ in range({"waiting": 0, "prefilling": 1, "decoding": 5}[when]):
        step(engine)
    assert engine.abort("x")
    engine.validate()
    assert (engine.running_count, engine.waiting_count, engine.kv_usage) == (0, 0, 0.0)
    assert not engine.abort("x"), "it is gone"
    engine.add(make_request("next", output=1))
    assert names(step(engine).finished) == ["next"]


def test_aborted_requests_do_not_pile_up_in_the_waiting_heap():
    engine = make_engine(max_num_seqs=1)
    engine.add(make_request("runs", output=200))
    step(engine)
    for number in range(1000):
        engine.add(make_request(str(number)))
        engine.abort(str(number))
    assert len(engine._waiting) < 50


def test_an_answer_ends_at_the_context_limit():
    engine = make_engine(max_model_len=16)
    engine.add(make_request("a", prompt=10, output=100))
    assert sum(len(r.emitted) for r in run(engine)) == 6


@pytest.mark.parametrize(
    ("request_", "message"),
    [(("a", 4), "is in use"), (("b", 256), "no room for output")],
)
def test_what_cannot_be_served_is_refused(request_: tuple[str, int], message: str):
    engine = make_engine()
    engine.add(make_request("a"))
    with pytest.raises(ValueError, match=message):
        engine.add(make_request(request_[0], prompt=request_[1]))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs must be at least 1"),
        ({"max_num_batched_tokens": 3}, "at least max_num_seqs"),
        ({"num_blocks": 10}, "does not fit into the KV cache"),
        ({"scheduling_policy": "sjf"}, "fcfs or priority"),
    ],
)
def test_bad_launch_parameters_are_refused(overrides: dict[str, object], message: str):
    with pytest.raises(ValueError, match=message):
        make_engine(**overrides)


def test_iterations_cost_more_on_slower_memory_and_more_context():
    fast, slow = Roofline(A100_80G, LLAMA_8B), Roofline(L40, LLAMA_8B)
    assert slow.iteration_s(1, 1, 100, 100) > 2 * fast.iteration_s(1, 1, 100, 100)
    assert fast.iteration_s(8, 8, 80_000, 80_000) > 1.5 * fast.iteration_s(8, 8, 800, 800)


def test_decode_batches_cheaply_and_prefill_by_compute():
    timing = Roofline(A100_80G, LLAMA_8B)
    one, eight = timing.iteration_s(1, 1, 500, 500), timing.iteration_s(8, 8, 4000, 4000)
    assert eight < 1.2 * one
    # 2048 tokens: 2 * 8.03e9 * 2048 operations at 60 % of 312 TFLOPS.
    assert timing.iteration_s(1, 2048, 2048, 2048 * 1024) == pytest.approx(0.1757, rel=0.05)


def test_equal_calls_give_equal_results():
    def play() -> list[tuple[float, list[str]]]:
        engine = make_engine(num_blocks=16, max_model_len=64)
        for place in range(12):
            engine.add(make_request(str(place), prompt=5 + place, output=9, priority=place % 3))
        return [(r.duration_s, names(r.emitted)) for r in run(engine)]

    assert play() == play()
