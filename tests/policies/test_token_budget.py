"""Admission by tokens: the budget, what is kept of it, the bucket, and what gauges say."""

from __future__ import annotations

import random

import pytest
from core_world import World
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_fakes import FakeSession, fake_call, fake_fleet, fake_instance

from dispatcher import catalog
from dispatcher.core import events as ev
from dispatcher.core.ports import Admit, Defer
from dispatcher.core.types import AttemptId, EngineGauges, InstanceId, Outcome, Usage, WorkflowId
from dispatcher.registry import PolicyServices
from dispatcher.simulator import simulate, simulated_engine
from dispatcher.traces import TraceCall, TraceWorkflow
from policies.context_handling import ContextHandling
from policies.kv_books import KvBooks
from policies.token_budget import TokenBudget, needed_tokens

# the fakes take 0.5 ms per prompt token and 20 ms per iteration
CAPACITY = 10_000


def there(*prompts, seats=50, capacity=CAPACITY, streaming=True, **fields):
    """An instance with these prompts in flight; their answers count for nothing."""
    here = fake_instance("i", seats=seats, kv_capacity_tokens=capacity, **fields)
    for number, tokens in enumerate(prompts):
        call = fake_call(f"r{number}", prompt_tokens=tokens, output_tokens=0.0, streaming=streaming)
        here.start(call)
    return here


def admitted(admission, instance, prompt_tokens, output_tokens=100.0, now_s=0.0, **spec):
    call = fake_call("c", prompt_tokens=prompt_tokens, output_tokens=output_tokens, **spec)
    return admission.admit(call, "", instance, now_s)


def looking(fleet, *events, now_s=0.0):
    """Books that have seen these events."""
    books = KvBooks()
    for event in (ev.Tick(), *events):
        books.observe(event, fleet, now_s)
    return books


# --- the budget -----------------------------------------------------------------------------------


def test_a_call_goes_where_its_tokens_fit_to_the_end():
    admission, here = TokenBudget(KvBooks(), share=0.9), there(6_000)
    assert admitted(admission, here, 2_900) == Admit("")
    assert admitted(admission, here, 2_901) == Defer(0.25)
    assert admitted(admission, here, 2_000, output_tokens=1_001.0) == Defer(0.25)


def test_every_prompt_and_sequence_needs_room():
    call = fake_call("c", prompt_tokens=100, output_tokens=50.0, prompts=2, seats=6)
    assert needed_tokens(call) == 2 * 100 + 6 * 50
    call.generated_tokens = 6 * 80
    assert needed_tokens(call) == 2 * 100 + 6 * 80


def test_seats_decide_first():
    admission = TokenBudget(KvBooks())
    assert admission.open_seats(there(10, seats=1), 0.0) == ()
    assert admitted(admission, there(10, seats=2), 10, seats=2) == Defer()


def test_an_empty_engine_takes_whatever_comes():
    admission = TokenBudget(KvBooks(), target_tokens=1.0)
    assert admitted(admission, there(), 10 * CAPACITY) == Admit("")


@pytest.mark.parametrize(
    "admission", [TokenBudget(KvBooks(), share=None), TokenBudget(KvBooks(), share=0.1)]
)
def test_without_a_share_or_a_capacity_seats_alone_decide(admission):
    capacity = None if admission.share else CAPACITY
    assert admitted(admission, there(9_999, capacity=capacity), 9_999) == Admit("")


def test_room_is_kept_for_sessions_that_are_away_up_to_a_part():
    here = there(1_000)
    sessions = [
        FakeSession(WorkflowId(name), InstanceId("i"), 3_000, gap_s=0.1) for name in ("a", "b")
    ]
    books = looking(fake_fleet(here, sessions=sessions))
    handling = ContextHandling()
    admission = TokenBudget(books, share=1.0, handling=handling, most_reserved=0.7)
    assert admission.reserved_tokens(here, 0.0) == 6_000.0
    assert admitted(admission, here, 2_900) == Admit("")
    assert admitted(admission, here, 2_901) == Defer(0.25)
    less = TokenBudget(books, share=1.0, handling=handling, most_reserved=0.3)
    assert admitted(less, here, 5_900) == Admit("")
    assert admitted(less, here, 5_901) == Defer(0.25)
    # one has come back: what was kept for it is there for it
    sessions[0].live = 1
    assert admitted(admission, here, 5_900) == Admit("")


def test_an_engine_that_has_left_the_fleet_keeps_nothing():
    here = there(1_000)
    books = looking(fake_fleet())
    admission = TokenBudget(books, handling=ContextHandling(), target_tokens=100.0)
    assert admission.reserved_tokens(here, 0.0) == 0.0
    assert admitted(admission, here, 100) == Admit("")


# --- the bucket -----------------------------------------------------------------------------------


def sent(here, number, tokens):
    """A call goes out, and its event."""
    call = fake_call(f"s{number}", prompt_tokens=tokens, output_tokens=0.0, streaming=True)
    attempt = here.start(call)
    return attempt, ev.Dispatched(call, attempt.attempt_id, InstanceId("i"))


def test_the_limit_follows_free_memory_between_its_bounds():
    def limit(*prompts, **fields):
        admission = TokenBudget(KvBooks(), target_tokens=1_000.0, **fields)
        return admission.batch_tokens(there(*prompts))

    assert limit(1_000) == 1_250.0
    assert limit(9_200) == 800.0
    assert limit(9_900) == 250.0
    assert limit(12_000) == 250.0
    assert limit(9_200, beta_low=0.9) == 900.0
    assert TokenBudget(KvBooks(), target_tokens=1_000.0).batch_tokens(
        there(9_999, capacity=None)
    ) == 1_250.0  # fmt: skip


def test_paused_contexts_count_as_free_by_gamma():
    here = there(8_000)
    away = FakeSession(WorkflowId("a"), InstanceId("i"), 1_800)
    books = looking(fake_fleet(here, sessions=[away]))
    limits = [
        TokenBudget(books, target_tokens=2_000.0, gamma=gamma).batch_tokens(here)
        for gamma in (1.0, 0.5, 0.0)
    ]
    assert limits == [2_000.0, 1_100.0, 500.0]


def test_prompts_go_out_as_fast_as_the_engine_reads_them():
    here = there(seats=100, capacity=10**6)
    fleet = fake_fleet(here)
    books = looking(fleet)
    admission = TokenBudget(books, target_tokens=800.0, share=1.0)  # 1,000 tokens in 0.5 s
    _, first = sent(here, 1, 1_500)
    books.observe(first, fleet, 10.0)
    # up to two iterations' worth may be under way
    assert admitted(admission, here, 500, now_s=10.0) == Admit("")
    _, second = sent(here, 2, 700)
    books.observe(second, fleet, 10.0)
    assert admitted(admission, here, 1, now_s=10.0) == Defer(pytest.approx(10.1))
    assert admitted(admission, here, 1, now_s=10.05) == Defer(pytest.approx(10.1))
    assert admitted(admission, here, 1, now_s=10.1001) == Admit("")


def test_a_long_prompt_is_looked_at_again_soon():
    here = there(seats=100, capacity=10**6)
    fleet = fake_fleet(here)
    books = looking(fleet)
    _, event = sent(here, 1, 50_000)
    books.observe(event, fleet, 0.0)
    assert admitted(TokenBudget(books, target_tokens=800.0), here, 1) == Defer(0.25)


def test_what_has_been_read_leaves_the_bucket():
    here = there(seats=100, capacity=10**6)
    fleet = fake_fleet(here)
    books = looking(fleet)
    attempts = []
    for number, tokens in enumerate((3_000, 4_000)):
        attempt, event = sent(here, number, tokens)
        attempts.append(attempt.attempt_id)
        books.observe(event, fleet, 0.0)
    assert books.level(InstanceId("i"), 1_000.0, 1.0) == 6_000.0
    books.observe(ev.FirstToken(attempts[0]), fleet, 1.0)
    assert books.level(InstanceId("i"), 1_000.0, 1.0) == 4_000.0
    books.observe(ev.AttemptEnded(attempts[0], Outcome.OK), fleet, 1.0)
    assert books.level(InstanceId("i"), 1_000.0, 1.0) == 4_000.0
    books.observe(ev.AttemptEnded(attempts[1], Outcome.CANCELLED), fleet, 1.0)
    assert books.level(InstanceId("i"), 1_000.0, 1.0) == 0.0


def test_an_engine_that_lets_nobody_wait_has_an_empty_bucket():
    here = there(seats=100, capacity=10**6)
    fleet = fake_fleet(here)
    books = looking(fleet)
    _, event = sent(here, 1, 5_000)
    books.observe(event, fleet, 0.0)
    books.observe(ev.InstanceObserved(InstanceId("i"), EngineGauges(waiting=1)), fleet, 0.0)
    assert books.level(InstanceId("i"), 1_000.0, 0.0) == 5_000.0
    books.observe(ev.InstanceObserved(InstanceId("i"), EngineGauges(waiting=0)), fleet, 0.0)
    assert books.level(InstanceId("i"), 1_000.0, 0.0) == 0.0


def test_cached_prompts_fill_no_bucket():
    here = there(seats=100, capacity=10**6)
    fleet = fake_fleet(here, sessions=[FakeSession(WorkflowId("w"), InstanceId("i"), 900)])
    books = looking(fleet)
    call = fake_call("c", workflow="w", prompt_tokens=1_000)
    books.observe(ev.Dispatched(call, AttemptId(1), InstanceId("i")), fleet, 0.0)
    assert books.level(InstanceId("i"), 1.0, 0.0) == 100.0


def test_nothing_leaks_before_it_is_poured():
    here = there(seats=100, capacity=10**6)
    fleet = fake_fleet(here)
    books = looking(fleet)
    for number, at_s in enumerate((0.0, 60.0)):
        _, event = sent(here, number, 1_000)
        books.observe(event, fleet, at_s)
        assert books.level(InstanceId("i"), 100.0, at_s + 2.0) == 800.0


# --- what gauges say ------------------------------------------------------------------------------


def read(books, fleet, kv_usage, preemptions=0, now_s=0.0):
    gauges = EngineGauges(waiting=1, kv_usage=kv_usage, preemptions_total=preemptions)
    books.observe(ev.InstanceObserved(InstanceId("i"), gauges), fleet, now_s)


def begun(here):
    for attempt in here.in_flight.values():
        attempt.first_token_s = 0.0
    return here


def test_prompts_that_share_their_beginning_count_as_the_engine_counts_them():
    here = begun(there(4_000, 4_000))
    fleet, books = fake_fleet(here), KvBooks()
    assert books.used_tokens(here) == 8_000.0
    for _ in range(60):
        read(books, fleet, kv_usage=0.5)
    assert books.used_tokens(here) == pytest.approx(5_000.0, rel=1e-3)
    assert admitted(TokenBudget(books, share=1.0), here, 4_800) == Admit("")
    for _ in range(60):
        read(books, fleet, kv_usage=0.01)
    assert books.used_tokens(here) == pytest.approx(800.0, rel=1e-2), "no less than a tenth"


def test_an_engine_that_says_nothing_of_its_cache_is_taken_at_our_count():
    here = begun(there(4_000, 4_000))
    fleet, books = fake_fleet(here), KvBooks()
    for _ in range(60):
        read(books, fleet, kv_usage=0.0)
    assert books.used_tokens(here) == 8_000.0


def test_a_gauge_says_nothing_of_prompts_that_are_being_read():
    here = there(4_000, 4_000, 1_000)
    fleet, books = fake_fleet(here), KvBooks()
    next(iter(here.in_flight.values())).first_token_s = 0.0
    read(books, fleet, kv_usage=0.1)
    assert books.used_tokens(here) == 9_000.0
    for attempt in list(here.in_flight.values())[:2]:
        attempt.first_token_s = 0.0
    read(books, fleet, kv_usage=0.425)  # half of what is counted of 8,000 and half of 1,000
    assert books.used_tokens(here) == pytest.approx(9_000 * (1 - 0.2 * 0.5))


def test_calls_that_do_not_stream_have_begun_after_twice_their_prefill():
    here = there(4_000, streaming=False)
    fleet, books = fake_fleet(here), KvBooks()
    read(books, fleet, kv_usage=0.2, now_s=4.0)
    assert books.used_tokens(here) == 4_000.0
    read(books, fleet, kv_usage=0.2, now_s=4.1)
    assert books.used_tokens(here) == pytest.approx(4_000 * 0.9)


def test_engines_that_preempt_are_given_less_for_a_while():
    here = there(1_000, capacity=None)
    fleet, books = fake_fleet(here), KvBooks()
    read(books, fleet, 0.0, preemptions=40, now_s=0.0)
    assert books.margin(here) == 1.0, "what it did before it was known"
    read(books, fleet, 0.0, preemptions=41, now_s=1.0)
    assert books.margin(here) == pytest.approx(0.95)
    read(books, fleet, 0.0, preemptions=42, now_s=10.0)
    assert books.margin(here) == pytest.approx(0.95), "the first cut has not shown yet"
    read(books, fleet, 0.0, preemptions=43, now_s=11.0)
    assert books.margin(here) == pytest.approx(0.95**2)
    read(books, fleet, 0.0, preemptions=43, now_s=21.0)
    assert books.margin(here) == pytest.approx(0.95**2 + 0.01)
    for step in range(30):
        read(books, fleet, 0.0, preemptions=44 + step, now_s=40.0 + 10.0 * step)
    assert books.margin(here) == 0.8
    read(books, fleet, 0.0, preemptions=0, now_s=1e6)  # it has begun anew
    assert books.margin(here) == 1.0


def test_a_margin_narrows_the_budget():
    here = there(1_000)
    fleet, books = fake_fleet(here), KvBooks()
    admission = TokenBudget(books, share=1.0)
    for preemptions in (0, 1):
        read(books, fleet, 0.0, preemptions=preemptions)
    assert admitted(admission, here, 8_400) == Admit("")
    assert admitted(admission, here, 8_401) == Defer(0.25)


def test_books_are_kept_of_engines_in_the_fleet_only():
    books = KvBooks()
    for number in range(20):
        here = fake_instance(f"i{number}")
        event = ev.InstanceObserved(here.spec.instance_id, EngineGauges())
        books.observe(event, fake_fleet(here), 0.0)
    assert len(books._books) == 1


# --- in the coordinator ---------------------------------------------------------------------------


def budget_world(policy="vllm", capacity=1_000, seats=64, **params):
    services = PolicyServices(random.Random(0))
    built = catalog.build_policy(policy, {"kv_share": 1.0, **params}, services)
    assert built.reads_gauges
    world = World(built, observers=catalog.observers(services))
    world.up("i", seats=seats, kv_capacity_tokens=capacity)
    return world


def test_a_call_waits_for_room_and_goes_when_it_is_there():
    world = budget_world()
    # prompts of 100, answers of 100 of which half counts while they come
    for number in range(7):
        world.arrive(f"c{number}")
    assert len(world.out) == 6
    assert world.where("c6") is None
    assert world.wake_s == pytest.approx(world.now_s + 0.25)
    assert world.sent(world.post(ev.Tick(), after_s=0.25)) == []
    assert world.sent(world.end("c0", after_s=1.0)) == [("c6", "i")]


def test_a_call_that_never_fits_goes_when_the_engine_is_empty():
    world = budget_world()
    world.arrive("small")
    world.arrive("huge", prompt_tokens=50_000)
    world.arrive("behind it")
    assert world.where("huge") is None
    assert world.sent(world.end("small", after_s=1.0)) == [("huge", "i")]
    assert world.sent(world.end("huge", after_s=1.0)) == [("behind it", "i")]


def test_room_that_the_gauge_finds_is_used_without_any_call_ending():
    world = budget_world()
    for number in range(7):
        world.arrive(f"c{number}", streaming=True)
    for number in range(6):
        world.post(ev.FirstToken(world.attempt_of(f"c{number}")))
    gauges = EngineGauges(running=6, waiting=1, kv_usage=0.1)
    for _ in range(3):
        world.post(ev.InstanceObserved(InstanceId("i"), gauges), after_s=0.05)
    assert world.where("c6") is None, "it is asked again when it said"
    assert world.sent(world.post(ev.Tick(), after_s=0.25)) == [("c6", "i")]


def test_a_call_that_gathers_seats_elsewhere_keeps_no_room_empty():
    world = budget_world("least-backlog", capacity=3_000)
    world.up("j", seats=64, kv_capacity_tokens=3_000)
    for name, tokens in (("a", 2_000), ("b", 2_000), ("c", 500), ("d", 500)):
        world.arrive(name, prompt_tokens=tokens)
    world.arrive("gathers", prompt_tokens=2_500, seats=4)
    assert [i.queued for i in world.coordinator.fleet] == [1, 0]
    for number in range(20):
        world.arrive(f"c{number}", prompt_tokens=50)
    leaves = next(name for name in "cd" if world.where(name) == "j")
    # 2,350 are left there, and each of these counts 100, the last one 150: room for six
    assert len(world.sent(world.end(leaves, after_s=1.0))) == 6


def away_at_a_tool():
    """A session whose context of 1,000 tokens is worth keeping, beside 4,500 in flight of 8,000.

    Its tool takes 5 s in the median, which wastes 5,000 token seconds; computing it anew takes one
    second of it and the others: 5,500.
    """
    world = budget_world("infercept", capacity=8_000)
    world.arrive("others", prompt_tokens=4_450)
    world.arrive("turn 1", "s", prompt_tokens=900)
    world.end("turn 1", tool="search", after_s=1.0, usage=Usage(900, 100))
    world.arrive("stranger", prompt_tokens=2_450)
    assert world.where("stranger") is None
    return world


def test_room_is_kept_until_the_tool_has_taken_longer_than_nine_times_out_of_ten():
    world = away_at_a_tool()
    assert world.sent(world.post(ev.Tick(), after_s=8.9)) == []
    assert world.sent(world.post(ev.Tick(), after_s=0.25)) == [("stranger", "i")]


def test_a_session_comes_back_to_its_room_past_those_who_wait_for_it():
    world = away_at_a_tool()
    assert world.sent(world.arrive("turn 2", "s", prompt_tokens=1_050)) == [("turn 2", "i")]
    assert world.where("stranger") is None
    assert world.sent(world.end("turn 2", after_s=1.0)) == [("stranger", "i")]


def test_nothing_is_kept_where_none_may_be():
    world = budget_world("infercept", capacity=8_000, most_reserved=0.0)
    world.arrive("others", prompt_tokens=4_450)
    world.arrive("turn 1", "s", prompt_tokens=900)
    world.end("turn 1", tool="search", after_s=1.0, usage=Usage(900, 100))
    assert world.sent(world.arrive("stranger", prompt_tokens=2_450)) == [("stranger", "i")]


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["arrive", "end", "tick"]), st.integers(1, 900)), max_size=60
    ),
    st.sampled_from(["vllm", "augserve", "infercept", "least-backlog", "hexgen-flow"]),
)
def test_the_budget_holds_and_everything_runs(steps, policy):
    """Whatever comes: no more in flight than the budget unless alone, and nothing is left over."""
    capacity = 1_500
    world = budget_world(policy, capacity=capacity, seats=16)
    for number, (step, size) in enumerate(steps):
        if step == "arrive":
            world.arrive(f"c{number}", f"w{number % 3}", prompt_tokens=size)
        elif step == "end" and world.out:
            call_id = world.in_flight()[size % len(world.out)]
            tool = "search" if size % 2 else None
            world.end(call_id, after_s=0.1, tool=tool, usage=Usage(size, 20))
        else:
            world.post(ev.Tick(), after_s=size / 100.0)
        (instance,) = world.coordinator.fleet
        assert len(world.out) <= 1 or instance.in_flight_tokens <= capacity
    for _ in range(10 * len(steps) + 10):
        if world.out:
            world.end(world.in_flight()[0], after_s=0.3)
        elif world.waiting_clients:
            world.post(ev.Tick(), after_s=0.3)
    assert not world.waiting_clients


# --- under a flood --------------------------------------------------------------------------------


def flood(seed, count=160):
    rng = random.Random(seed)
    arrived_s, trace = 0.0, []
    for number in range(count):
        arrived_s += rng.expovariate(20.0)
        prompt, output = rng.randint(1_500, 3_000), 1 + int(rng.gammavariate(2.0, 300.0))
        call = TraceCall("c", "s", prompt, min(output, 4_095 - prompt), streaming=True)
        trace.append(TraceWorkflow(f"w{number}", "flood", arrived_s, (call,)))
    return trace


def test_an_engine_that_is_flooded_stops_preempting_and_is_as_fast():
    trace = flood(1)
    tokens = sum(call.output_tokens for workflow in trace for call in workflow.calls)
    preempted, rate = [], []
    for share in (None, 0.95):
        engine = simulated_engine("e", "H100", size="13b", seats=256)
        played = simulate(trace, [engine], policy="vllm", params={"kv_share": share}).played
        preempted.append(played.instances["e"].preemptions)
        rate.append(tokens / max(workflow.ended_s for workflow in played.workflows))
    assert preempted[0] >= 10
    assert preempted[1] <= preempted[0] / 5
    assert rate[1] >= 0.98 * rate[0]
