"""A trace played over HTTP: against emulated engines, and against scripted answers."""

import asyncio
from time import monotonic

import pytest
from scripted_target import Target, serving
from starlette.responses import JSONResponse, StreamingResponse

from dispatcher.bench.fleets import fleet_named
from dispatcher.bench.live_client import LiveClient, LiveError
from dispatcher.bench.live_gauges import Gauges
from dispatcher.bench.live_play import LivePlayer
from dispatcher.bench.live_run import LiveOptions, measured
from dispatcher.bench.live_text import WORDS, Measure, Texts
from dispatcher.bench.policies import policies_named
from dispatcher.bench.report import figures
from dispatcher.bench.run import Setting, result_of
from dispatcher.bench.work import Work, prepared
from dispatcher.core.types import Outcome
from dispatcher.emulator.fleet import running_fleet
from dispatcher.emulator.settings import EmulatorSettings
from dispatcher.traces import PrefixPart, TraceCall, TraceWorkflow, write_trace

FAST = 100.0


def call(name, *parents, stage="s", prompt=60, output=4, **more):
    return TraceCall(name, stage, prompt, output, parents=parents, **more)


def workflow(*calls, name="w", arrival_s=0.0, **more):
    return TraceWorkflow(name, "app", arrival_s, calls, **more)


async def played(target_url, trace, *, limit_s=30.0, concurrency_limit=16, time_scale=FAST):
    client = LiveClient(
        target_url, api_key=None, concurrency_limit=concurrency_limit, limit_s=limit_s
    )
    try:
        await client.open(None)
        measure = await client.measure(Texts(Measure(), "m"))
        player = LivePlayer(
            client,
            Texts(measure, "r"),
            run="r",
            time_scale=time_scale,
            concurrency_limit=concurrency_limit,
            limit_s=limit_s,
        )
        return await player.play(trace), player
    finally:
        await client.close()


# --- against emulated engines -------------------------------------------------------------------


async def test_an_emulated_engine_sees_the_lengths_of_the_trace():
    shared = (PrefixPart("text", 640),)
    trace = [
        workflow(
            call("a", prompt=800, output=20, prefix=shared),
            call("b", "a", prompt=1200, output=30, prefix=shared),
            call("c", "a", prompt=9, output=1, streaming=True),
            call("d", "b", "c", prompt=2000, output=40, streaming=True, gap_s=1.0),
        ),
        workflow(call("a", prompt=700, output=20, prefix=shared), name="v", arrival_s=20.0),
    ]
    settings = EmulatorSettings(gpu="A100", time_scale=FAST, port=0)
    async with running_fleet([settings]) as (port,):
        found, player = await played(f"http://127.0.0.1:{port}/v1/", trace)
    assert player.problems.most() == []
    # the one prompt that is shorter than the template is not off by more than four tokens
    assert player.other_lengths == 0
    assert [w.ok for w in found.workflows] == [True, True]
    of = {(one.workflow_id, one.call_id): one for one in found.calls}
    wanted = {(w.workflow_id, c.call_id): c for w in trace for c in w.calls}
    assert {k: c.prompt_tokens for k, c in of.items()} == {
        k: c.prompt_tokens for k, c in wanted.items()
    }
    assert {k: c.output_tokens for k, c in of.items()} == {
        k: c.output_tokens for k, c in wanted.items()
    }
    # 640 shared tokens: the template's head and as many words; blocks of 16
    assert of["w", "a"].cached_tokens == 0
    assert 608 <= of["w", "b"].cached_tokens <= 640
    assert 608 <= of["v", "a"].cached_tokens <= 640
    last = of["w", "d"]
    assert last.sent_s >= max(of["w", "b"].ended_s, of["w", "c"].ended_s) + 1.0
    assert last.sent_s < last.first_token_s < last.ended_s
    assert of["w", "a"].first_token_s is None
    assert found.workflows[0].ended_s == last.ended_s
    assert of["v", "a"].sent_s >= 20.0


async def test_the_report_of_a_live_run_has_the_figures_of_a_simulated_one():
    work = Work(scenario="chess-1", count=4)
    settings = EmulatorSettings(gpu="A100", time_scale=FAST, max_num_seqs=8, port=0)
    async with running_fleet([settings]) as (port,):
        url = f"http://127.0.0.1:{port}"
        options = LiveOptions(
            url, "engine", time_scale=FAST, limit_s=60.0, warm_up=1, metrics=(url,)
        )
        told = []
        found, notes = await measured(
            work,
            fleet_named("A100", seats=8),
            0.2,
            [0, 1],
            options,
            on_workflow=lambda: told.append(1),
        )
    assert not [note for note in notes if "late" not in note]
    assert len(told) == 8
    assert [(one["policy"], one["rate"], one["seed"]) for one in found["results"]] == [
        ("engine", 0.2, 0),
        ("engine", 0.2, 1),
    ]
    calls = sum(len(w.calls) for w in prepared(work, fleet_named("A100"), 0.2, 0).trace)
    first = found["results"][0]
    assert (first["workflows"], first["failed"], first["calls"]) == (4, 0, calls)
    # so short a play may pass between two looks at the engine
    assert 0.0 <= first["utilisation"] <= 1.0
    assert 0.3 < first["prefix_hit_rate"] < 1.0
    assert first["latency_s"]["p50"] > 1.0  # of the trace's seconds, not real ones
    assert found["summary"][0]["seeds"] == 2
    assert found["configuration"]["model"] == "llama-3.1-8b"
    setting = Setting(work, fleet_named("A100"), policies_named("vllm")[0], 0.2, 0, warm=False)
    assert set(first) == set(result_of(setting))


# --- against scripted answers -------------------------------------------------------------------


async def test_without_tokenize_lengths_are_told_by_usage():
    async with serving(Target()) as target:
        found, _ = await played(target.url, [workflow(call("a", prompt=101, output=3))])
    assert found.calls[0].prompt_tokens == 101  # 7 + 2 x 47 words
    body = target.asked[-1].body
    assert (body["max_tokens"], body["ignore_eos"], body["model"]) == (3, True, "some-model")
    assert found.calls[0].instance == "one"
    assert found.calls[0].queue_s == 0.25 * FAST


async def test_headway_is_told_what_it_understands():
    one = workflow(
        call("a", stage="plän\n"),
        call("b", "a", stage="try", tool="sql", gap_s=0.5),
        call("c", "a", stage="try", tool="sql", gap_s=0.1),
        call("d", "b", "c", stage="end", slo_ttft_s=20.0, slo_tpot_s=1.0, streaming=True),
        slo_s=300.0,
        tenant="gold",
    )
    async with serving(Target()) as target:
        await played(target.url, [one])
    asked = [each.headers for each in target.asked[2:]]
    assert [each["x-headway-stage"] for each in asked] == ["pl%C3%A4n%0A", "try", "try", "end"]
    assert [each["x-headway-stage-width"] for each in asked] == ["1", "2", "2", "1"]
    assert [each.get("x-headway-tool") for each in asked] == [None, "sql", "sql", None]
    assert [each.get("x-headway-final") for each in asked] == [None, None, None, "1"]
    assert {each["x-headway-slo-ms"] for each in asked} == {"3000"}  # real ones
    assert {each["x-headway-workflow-id"] for each in asked} == {"r-w"}
    assert {each["x-headway-workflow"] for each in asked} == {"app"}
    assert {each["x-headway-tenant"] for each in asked} == {"gold"}
    assert (asked[3]["x-headway-slo-ttft-ms"], asked[3]["x-headway-slo-tpot-ms"]) == ("200", "10")


async def test_a_call_that_fails_ends_its_workflow_alone():
    def instead(asked):
        return JSONResponse({"no": 1}, 503) if asked.headers["x-headway-stage"] == "bad" else None

    trace = [
        workflow(call("a"), call("b", "a", stage="bad"), call("c", "b"), name="w"),
        workflow(call("a"), call("b", "a"), name="v"),
    ]
    async with serving(Target()) as target:
        client_sees = target.instead

        def after_measuring(asked):
            return instead(asked) if "x-headway-stage" in asked.headers else client_sees(asked)

        target.instead = after_measuring
        found, player = await played(target.url, trace)
    assert [(w.workflow_id, w.ok) for w in found.workflows] == [("w", False), ("v", True)]
    assert player.problems.most() == ['1 x HTTP 503: {"no":1}']
    assert sorted(c.outcome for c in found.calls) == [Outcome.ENGINE_ERROR, *[Outcome.OK] * 3]
    assert len(target.asked) == 2 + 4
    report = figures(found, {"w": 1.0, "v": 1.0}, slo_scale=1e9)
    assert (report["failed"], report["slo_met"]) == (1, 0.5)


async def test_a_stream_without_an_end_and_one_with_an_error_have_failed():
    trace = [workflow(call("a", streaming=True))]
    async with serving(Target(cut_after=2)) as target:
        _, player = await played(target.url, trace)
    assert player.problems.most() == ["1 x a stream that ended before its end mark"]

    def error(asked):
        if not asked.body.get("stream"):
            return None
        return StreamingResponse(iter(['data: {"error": {"message": "no"}}\n\n']))

    async with serving(Target(instead=error)) as target:
        _, player = await played(target.url, trace)
    assert "an error event" in player.problems.most()[0]


async def test_a_play_ends_at_its_limit_whatever_the_target_does():
    async with serving(Target()) as target:

        async def endless():
            await target.never.wait()
            yield b""

        target.instead = lambda asked: (
            StreamingResponse(endless()) if "x-headway-stage" in asked.headers else None
        )
        trace = [workflow(call("a")), workflow(call("a"), name="v", arrival_s=1e6)]
        found, player = await played(target.url, trace, limit_s=0.3)
    assert player.cut_short
    assert [w.ok for w in found.workflows] == [False, False]
    assert found.workflows[1].latency_s == 0.0


async def test_calls_beyond_the_limit_wait_here_and_the_wait_counts():
    waiting, most = 0, 0

    async with serving(Target()) as target:

        async def one_at_a_time():
            nonlocal waiting, most
            waiting += 1
            most = max(most, waiting)
            await asyncio.sleep(0)
            waiting -= 1
            yield b'{"usage": {"prompt_tokens": 60, "completion_tokens": 4}}'

        target.instead = lambda asked: (
            StreamingResponse(one_at_a_time()) if "x-headway-stage" in asked.headers else None
        )
        trace = [workflow(*(call(f"c{n}") for n in range(6)))]
        found, _ = await played(target.url, trace, concurrency_limit=1)
    assert most == 1
    first, last = found.calls[0], found.calls[-1]
    assert last.sent_s < first.ended_s


async def test_targets_that_cannot_be_measured_say_why(tmp_path):
    trace = tmp_path / "trace.jsonl"
    write_trace(trace, [workflow(call("a"))])
    work, fleet = Work(trace=trace, count=None), fleet_named("A100")
    nobody = LiveOptions("http://127.0.0.1:9", "nobody")
    with pytest.raises(LiveError, match=r"http://127.0.0.1:9 does not answer"):
        await measured(work, fleet, None, [0], nobody)
    with pytest.raises(LiveError, match="does not answer"):
        await measured(work, fleet, None, [0], LiveOptions("no url at all", "x"))
    refusing = Target(instead=lambda asked: JSONResponse({"error": "no"}, 401))
    async with serving(refusing) as target:
        with pytest.raises(LiveError, match=r"cannot tell lengths in tokens: HTTP 401"):
            await measured(work, fleet, None, [0], LiveOptions(target.url, "x"))
    async with serving(Target()) as target:
        options = LiveOptions(target.url, "x", metrics=(target.url,))
        with pytest.raises(LiveError, match=r"/metrics: no metrics"):
            await measured(work, fleet, None, [0], options)
        target.metrics = "headway_queue_depth 3.0\n"
        with pytest.raises(LiveError, match=r"no metrics of an engine: no vllm:num_requests_run"):
            await measured(work, fleet, None, [0], options)
        target.instead = lambda asked: (
            JSONResponse({}, 500) if "x-headway-stage" in asked.headers else None
        )
        with pytest.raises(LiveError, match=r"no workflow of seed 0 went well: 1 x HTTP 500"):
            await measured(work, fleet, None, [0], LiveOptions(target.url, "x"))


async def test_calls_of_other_lengths_are_counted():
    short = JSONResponse({"usage": {"prompt_tokens": 60, "completion_tokens": 2}})
    trace = [workflow(call("a", output=4), call("b", "a", output=2), call("c", prompt=200))]
    async with serving(Target()) as target:
        target.instead = lambda asked: short if "x-headway-stage" in asked.headers else None
        found, player = await played(target.url, trace)
    assert [w.ok for w in found.workflows] == [True]
    assert player.other_lengths == 2


async def test_gauges_integrate_what_runs_and_count_what_was_found():
    async with serving(Target(metrics='vllm:num_requests_running{engine="0"} 3.0\n')) as target:
        async with Gauges([target.url], every_s=0.001) as gauges:
            began_s = monotonic()
            while target.looks < 5:  # noqa: ASYNC110 - the test's own timeout bounds it
                await asyncio.sleep(0.001)
            target.metrics += "vllm:prefix_cache_queries_total 200.0\n"
            target.metrics += "vllm:prefix_cache_hits_total 50.0\n"
            whole_s = monotonic() - began_s
        (found,) = gauges.instances(seats=8, time_scale=2.0).values()
    # looks begin before and end after the moments noted here
    assert found.seat_s >= 3.0 * 2.0 * whole_s
    assert (found.seats, found.prefix_queries_tokens, found.prefix_hits_tokens) == (8, 200, 50)


# --- texts --------------------------------------------------------------------------------------


def test_prompts_share_what_the_trace_shares_and_nothing_else():
    texts = Texts(Measure(2.0, 10.0), "run")
    parts = (PrefixPart("all", 50), PrefixPart("mine", 90))
    longer = (PrefixPart("all", 50), PrefixPart("mine", 150))
    one = texts.prompt("w", call("a", prompt=110, prefix=parts)).split()
    two = texts.prompt("v", call("b", prompt=210, prefix=longer)).split()
    assert (len(one), len(two)) == (50, 100)
    assert one[:40] == two[:40]
    assert one[40:] != two[40:50]
    again = Texts(Measure(2.0, 10.0), "run")
    assert again.prompt("v", call("b", prompt=210, prefix=longer)).split() == two
    other_run = Texts(Measure(2.0, 10.0), "another")
    assert other_run.prompt("w", call("a", prompt=110, prefix=parts)).split()[:20] != one[:20]


def test_a_shared_part_may_reach_into_the_answer():
    texts = Texts(Measure(), "run")
    first = texts.prompt("w", call("a", prompt=20, output=30, prefix=(PrefixPart("talk", 50),)))
    then = texts.prompt("w", call("b", "a", prompt=60, prefix=(PrefixPart("talk", 50),)))
    assert len(first.split()) == 20
    assert then.startswith(first + " ")


def test_a_measure_is_the_line_through_two_prompts():
    assert Measure.between((16, 40), (256, 520)) == Measure(2.0, 8.0)
    assert Measure.between((16, 10), (256, 250)) == Measure(1.0, 0.0)
    assert Measure(2.0, 8.0).words(48) == 20
    assert Measure(2.0, 8.0).words(1) == 1
    with pytest.raises(ValueError, match="no more tokens"):
        Measure.between((16, 40), (256, 40))


def test_words_are_short_and_different():
    assert len(set(WORDS)) == len(WORDS) > 256
    assert all(word.isascii() and word.islower() and len(word) <= 6 for word in WORDS)
