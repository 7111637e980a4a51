"""What an engine does beside answering: seats, order, cache, hang-ups, metrics, scripted texts."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from emulated import CHAT, chat_body, engine, events, metric
from prometheus_client.parser import text_string_to_metric_families
from pydantic import ValidationError

from dispatcher.emulator import EmulatorSettings

RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
# Slow enough that it never ends by itself within a test.
ENDLESS = chat_body(max_tokens=100_000)


async def until(client: httpx.AsyncClient, name: str, value: float) -> None:
    """Return once a metric has this value; each look at it waits for the engine's answer."""
    while await metric(client, name) != value:
        pass


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_hangs_up_frees_its_seat(stream: bool):
    async with engine(time_scale=1, max_num_seqs=1) as client:
        call = asyncio.create_task(client.post(CHAT, json={**ENDLESS, "stream": stream}))
        await until(client, RUNNING, 1)
        queued = asyncio.create_task(client.post(CHAT, json=ENDLESS))
        await until(client, WAITING, 1)
        call.cancel()
        await until(client, WAITING, 0)  # the queued one got the seat
        queued.cancel()
        await until(client, RUNNING, 0)
        assert await metric(client, "vllm:kv_cache_usage_perc") == 0
        assert (await client.post(CHAT, json=chat_body())).status_code == 200


async def test_a_queued_client_that_hangs_up_leaves_the_queue():
    async with engine(time_scale=1, max_num_seqs=1) as client:
        running = asyncio.create_task(client.post(CHAT, json=ENDLESS))
        await until(client, RUNNING, 1)
        queued = asyncio.create_task(client.post(CHAT, json=ENDLESS))
        await until(client, WAITING, 1)
        queued.cancel()
        await until(client, WAITING, 0)
        assert await metric(client, RUNNING) == 1
        running.cancel()


@pytest.mark.parametrize(
    ("policy", "expected"), [("priority", ["urgent", "lazy"]), ("fcfs", ["lazy", "urgent"])]
)
async def test_priority_orders_what_waits_where_the_engine_was_launched_so(
    policy: str, expected: list[str]
):
    async with engine(time_scale=20, max_num_seqs=1, scheduling_policy=policy) as client:
        ended: list[str] = []

        async def call(name: str, priority: int) -> None:
            await client.post(CHAT, json=chat_body(priority=priority, max_tokens=2))
            ended.append(name)

        running = asyncio.create_task(client.post(CHAT, json=ENDLESS))
        await until(client, RUNNING, 1)
        lazy = asyncio.create_task(call("lazy", 5))
        await until(client, WAITING, 1)
        urgent = asyncio.create_task(call("urgent", -5))
        await until(client, WAITING, 2)
        running.cancel()
        await asyncio.gather(lazy, urgent)
    assert ended == expected


@pytest.mark.parametrize(
    "path", [CHAT, "/v1/completions", "/v1/responses", "/v1/messages"], ids=lambda path: path[4:]
)
async def test_the_priority_header_wins_over_the_body(path: str):
    async with engine(time_scale=20, max_num_seqs=1) as client:
        ended: list[str] = []

        async def call(name: str, header: str, in_body: int) -> None:
            body = chat_body(priority=in_body, max_tokens=2, max_output_tokens=2)
            body |= {"prompt": "x", "input": "x"}
            await client.post(path, json=body, headers={"x-vllm-priority": header})
            ended.append(name)

        running = asyncio.create_task(client.post(CHAT, json=ENDLESS))
        await until(client, RUNNING, 1)
        calls = []
        for name, header, in_body in [("last", "5", -9), ("first", "-5", 9), ("middle", "?", 0)]:
            calls.append(asyncio.create_task(call(name, header, in_body)))
            await until(client, WAITING, len(calls))
        running.cancel()
        await asyncio.gather(*calls)
    assert ended == ["first", "middle", "last"]


async def test_a_prompt_seen_before_is_cached(client: httpx.AsyncClient):
    body = chat_body("word " * 200)
    cold = (await client.post(CHAT, json=body)).json()["usage"]
    warm = (await client.post(CHAT, json=body)).json()["usage"]
    full = (cold["prompt_tokens"] - 1) // 16 * 16
    assert cold["prompt_tokens_details"]["created_cache_tokens"] >= full
    assert warm["prompt_tokens_details"]["cached_tokens"] == full
    assert await metric(client, "vllm:prefix_cache_hits_total") == full


async def test_what_fell_into_host_memory_comes_back_from_there():
    # 40 blocks: the second prompt evicts the first one's
    small = {"kv_blocks": 40, "max_model_len": 600, "max_num_seqs": 4}
    first, second = (chat_body(f"{word} " * 400) for word in ("one", "two"))
    async with engine(**small, offload_blocks=100) as client:
        cold = (await client.post(CHAT, json=first)).json()["usage"]
        full = (cold["prompt_tokens"] - 1) // 16 * 16
        assert 320 < full < 600
        await client.post(CHAT, json=second)
        warm = (await client.post(CHAT, json=first)).json()["usage"]
        assert warm["prompt_tokens_details"]["cached_tokens"] == full
        near = await metric(client, "vllm:prefix_cache_hits_total")
        far = await metric(client, "vllm:external_prefix_cache_hits_total")
        assert near + far >= full > near
        assert await metric(client, "vllm:prompt_tokens_cached_total") == near + far
        asked = await metric(client, "vllm:prefix_cache_queries_total")
        assert await metric(client, "vllm:external_prefix_cache_queries_total") == asked - near
    async with engine(**small) as client:
        for body in (first, second, first):
            usage = (await client.post(CHAT, json=body)).json()["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] < full
        assert await metric(client, "vllm:external_prefix_cache_queries_total") == 0


async def test_answers_depend_on_body_and_seed_only():
    async def answer(seed: int, **fields: Any) -> str:
        async with engine(seed=seed) as client:
            response = await client.post(CHAT, json=chat_body(max_tokens=2000, **fields))
        content: str = response.json()["choices"][0]["message"]["content"]
        return content

    body = {"ignore_eos": False}
    first = await answer(1, **body)
    assert first == await answer(1, **body, priority=7, user="u", metadata={"a": 1})
    assert first != await answer(2, **body)
    assert first != await answer(1, **body, temperature=0.5)


async def test_min_tokens_lengthen_and_max_tokens_cut_an_answer(client: httpx.AsyncClient):
    async def completion_tokens(**fields: Any) -> int:
        response = await client.post(CHAT, json=chat_body(ignore_eos=False, **fields))
        count: int = response.json()["usage"]["completion_tokens"]
        return count

    assert await completion_tokens(max_tokens=5000, min_tokens=4000) == 4001
    assert await completion_tokens(max_tokens=3) == 3


def write_script(path: Path, script: dict[str, Any]) -> Path:
    path.write_text(json.dumps(script))
    return path


async def test_scripted_replies_by_pattern(tmp_path: Path):
    script = {
        "replies": [
            {
                "pattern": r"rows of (?P<table>\w+)",
                "texts": ['SELECT count(*) FROM {table}; -- {"not": "{a} name"}'],
            },
            {"pattern": "pad me", "texts": ["done"], "min_tokens": 50},
        ],
        "default": ["default text"],
    }
    async with engine(replies=write_script(tmp_path / "r.json", script)) as client:

        async def say(text: str, **fields: Any) -> tuple[str, str, int]:
            body = chat_body(text, ignore_eos=False, max_tokens=200, **fields)
            answer = (await client.post(CHAT, json=body)).json()
            [choice] = answer["choices"]
            tokens = answer["usage"]["completion_tokens"]
            return choice["message"]["content"], choice["finish_reason"], tokens

        text, reason, _ = await say("How many\nrows of singer?")
        assert text == 'SELECT count(*) FROM singer; -- {"not": "{a} name"}'
        assert reason == "stop"
        text, _, tokens = await say("pad me")
        assert text.endswith("done")
        assert 50 <= tokens <= 56
        assert (await say("anything"))[0] == "default text"
        streamed = await client.post(
            CHAT, json=chat_body("anything", ignore_eos=False, stream=True)
        )
        pieces = [e["choices"][0]["delta"]["content"] for e in events(streamed.text)]
        assert "".join(pieces) == "default text"


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ({"replies": [{"pattern": "(", "texts": ["x"]}]}, "not a regular expression"),
        ({"replies": [{"pattern": "x", "texts": []}]}, "at least 1 item"),
        ({"answers": []}, "answers"),
    ],
)
async def test_a_bad_replies_file_is_refused(tmp_path: Path, script: dict[str, Any], message: str):
    path = write_script(tmp_path / "bad.json", script)
    with pytest.raises(ValueError, match=message):
        async with engine(replies=path):
            pass


async def test_metrics_parse_and_count(client: httpx.AsyncClient):
    for _ in range(3):
        await client.post(CHAT, json=chat_body())
    text = (await client.get("/metrics")).text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert {
        *("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"),
        *("vllm:num_requests_waiting_by_reason", "vllm:cache_config_info", "vllm:prompt_tokens"),
        *("vllm:prompt_tokens_cached", "vllm:generation_tokens", "vllm:prefix_cache_queries"),
        *("vllm:prefix_cache_hits", "vllm:request_success", "vllm:num_preemptions"),
        *("vllm:external_prefix_cache_queries", "vllm:external_prefix_cache_hits"),
        *("vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds"),
        *("vllm:request_time_per_output_token_seconds", "vllm:e2e_request_latency_seconds"),
        *("vllm:request_queue_time_seconds", "vllm:request_inference_time_seconds"),
        *("vllm:request_prefill_time_seconds", "vllm:request_decode_time_seconds"),
        *("vllm:request_prompt_tokens", "vllm:request_generation_tokens"),
        "vllm:iteration_tokens_total",
    } <= set(families)
    samples = {
        (sample.name, sample.labels.get("finished_reason")): sample
        for family in families.values()
        for sample in family.samples
    }
    assert samples["vllm:generation_tokens_total", None].value == 12
    assert samples["vllm:request_success_total", "length"].value == 3
    assert samples["vllm:time_to_first_token_seconds_count", None].value == 3
    assert samples["vllm:inter_token_latency_seconds_count", None].value == 9
    labels = samples["vllm:num_requests_running", None].labels
    assert labels == {"engine": "0", "model_name": "tiny"}


async def test_control_routes(client: httpx.AsyncClient):
    assert (await client.get("/health")).content == b""
    assert (await client.post("/ping")).status_code == 200
    assert (await client.get("/version")).json() == {"version": "0.32.0"}
    assert (await client.get("/load")).json() == {"server_load": 0}
    body = {"model": "tiny", "prompt": "SELECT name", "return_token_strs": True}
    answer = (await client.post("/tokenize", json=body)).json()
    assert (answer["count"], answer["token_strs"]) == (3, ["", "SELECT", " name"])
    back = await client.post("/detokenize", json={"tokens": answer["tokens"]})
    assert back.json() == {"prompt": "SELECT name"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gpu": "B300"}, "unknown GPU 'B300'"),
        ({"size": "405b"}, "unknown model size '405b'"),
        ({"size": "70b"}, "use more GPUs"),
        ({"time_scale": 0}, "greater than 0"),
        ({"seats": 8}, "seats"),
        ({"kv_blocks": 4, "max_model_len": 100}, "does not fit into the KV cache"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], message: str):
    with pytest.raises(ValidationError, match=message):
        EmulatorSettings(**settings)
