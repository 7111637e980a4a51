"""What engines say of their KV caches, and what the gateway believes of them, as users see it."""

from __future__ import annotations

from typing import Any

import pytest
from gateway_harness import Running, answer, emulated, gateway, scripted
from prometheus_client.parser import text_string_to_metric_families
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dispatcher.config import EngineSettings
from dispatcher.core.types import EngineGauges
from dispatcher.gateway.fleet.engine import Engine, Served
from dispatcher.gateway.fleet.scrape import PrefixCache, Scrape, parse_scrape
from dispatcher.gateway.upstream import EnginePool
from policies.context_handling import ContextHandling
from policies.context_waste import Handling

CONFIG = (
    b'vllm:cache_config_info{block_size="16",cache_dtype="block_size=\\"9\\"",engine="0",'
    b'kv_cache_size_tokens="1584",mamba_block_size="7",num_gpu_blocks="100"} 1.0\n'
)
PREFIX = (
    b'vllm:prefix_cache_queries_total{engine="0"} 100.0\n'
    b'vllm:prefix_cache_queries_total{engine="1"} 20.0\n'
    b'vllm:prefix_cache_hits_total{engine="0"} 64.0\n'
)


def test_a_scrape_reads_the_kv_cache_and_what_it_spared() -> None:
    scrape = parse_scrape(CONFIG + PREFIX)
    assert (scrape.kv_capacity_tokens, scrape.kv_block_tokens) == (1584, 16)
    assert scrape.prefix_cache == PrefixCache(queried_tokens=120, found_tokens=64)


@pytest.mark.parametrize(
    ("page", "capacity_tokens", "block_tokens"),
    [
        (CONFIG.replace(b'kv_cache_size_tokens="1584",', b""), 1600, 16),
        (CONFIG + CONFIG.replace(b'engine="0"', b'engine="1"'), 3168, 16),
        # of a data-parallel server every line has the blocks of all ranks
        (2 * CONFIG.replace(b'kv_cache_size_tokens="1584",', b""), 1600, 16),
        (CONFIG.replace(b'"16"', b'"None"').replace(b'"1584"', b'"None"'), None, None),
        (CONFIG.replace(b'"1584"', b'"' + b"9" * 40 + b'"'), 1600, 16),
        (b"", None, None),
    ],
)
def test_capacity_where_it_is_told_in_blocks_twice_or_not_at_all(
    page: bytes, capacity_tokens: int | None, block_tokens: int | None
) -> None:
    scrape = parse_scrape(page)
    assert (scrape.kv_capacity_tokens, scrape.kv_block_tokens) == (capacity_tokens, block_tokens)
    assert scrape.prefix_cache is None


def test_several_ranks_hold_what_their_usage_and_capacity_make_together() -> None:
    usage = b'vllm:kv_cache_usage_perc{engine="%d"} %.1f\n'
    page = CONFIG + CONFIG.replace(b'engine="0"', b'engine="1"') + usage % (0, 0.8)
    scrape = parse_scrape(page + usage % (1, 0.2))
    assert scrape.kv_capacity_tokens is not None
    held_tokens = scrape.gauges.kv_usage * scrape.kv_capacity_tokens
    assert held_tokens == pytest.approx(0.8 * 1584 + 0.2 * 1584)


def offloading(size: str, backend: str = "native") -> bytes:
    said = f'kv_offloading_backend="{backend}",kv_offloading_size="{size}",mamba'
    return CONFIG.replace(b"mamba", said.encode())


@pytest.mark.parametrize(
    ("page", "offload_bytes"),
    [
        (offloading("64.0"), 64 * 2**30),
        (offloading("0.5") + offloading("0.5").replace(b'engine="0"', b'engine="1"'), 2**30),
        (offloading("1e-3"), round(1e-3 * 2**30)),
        (offloading("None"), 0),
        # the server that it goes to has a size of its own
        (offloading("64.0", "lmcache"), 0),
        (offloading("6.4.0"), 0),
        (offloading("1e300"), 0),
        (CONFIG, 0),
        (PREFIX, None),
    ],
)
def test_a_scrape_reads_the_room_of_the_offload_tier(page: bytes, offload_bytes: int) -> None:
    assert parse_scrape(page).offload_bytes == offload_bytes


def an_engine(**settings: Any) -> Engine:
    url = "http://127.0.0.1:9"
    pool = EnginePool(url, connect_timeout_s=1.0, head_timeout_s=None)
    engine = Engine(EngineSettings(id="e", url=url, **settings), pool)
    engine.served = Served(("m",), 4096)
    return engine


PROFILE = {
    "prefill": {"per_token_s": 1e-4, "fixed_s": 0.01},
    "decode": {"base_s": 0.02, "per_running_s": 0, "per_kv_token_s": 0},
    "kv_capacity_tokens": 5000,
}


def test_what_an_engine_says_of_itself_holds_until_it_says_something_else() -> None:
    engine = an_engine(profile=PROFILE)
    assert engine.spec().kv_capacity_tokens == 5000
    assert engine.note(Scrape(EngineGauges(), 1600, kv_block_tokens=16))
    assert engine.spec().kv_capacity_tokens == 1600
    silent = Scrape(EngineGauges())
    assert not engine.note(silent)
    assert (engine.spec().kv_capacity_tokens, engine.kv_block_tokens) == (1600, 16)
    assert engine.note(Scrape(EngineGauges(), 3200, kv_block_tokens=32))
    assert (engine.spec().kv_capacity_tokens, engine.kv_block_tokens) == (3200, 32)


def test_an_engine_that_says_nothing_has_what_its_gpu_has_room_for() -> None:
    assert an_engine().spec().kv_capacity_tokens is None
    room_tokens = an_engine(gpu="A100-80G", size="8b").spec().kv_capacity_tokens
    assert room_tokens is not None
    assert room_tokens > 100_000


def test_the_offload_tier_is_as_configured_else_as_the_engine_says() -> None:
    engine = an_engine(kv_bytes_per_token=131_072)
    assert engine.spec().offload_tokens is None
    assert engine.note(parse_scrape(offloading("2.0")))
    assert engine.spec().offload_tokens == 2 * 2**30 // 131_072
    assert not engine.note(parse_scrape(PREFIX))
    assert engine.spec().offload_tokens == 16_384
    assert engine.note(parse_scrape(offloading("None")))
    assert engine.spec().offload_tokens is None
    for size, tokens in ((1.0, 8_192), (0, None)):
        own = an_engine(kv_bytes_per_token=131_072, offload_gib=size)
        own.note(parse_scrape(offloading("2.0")))
        assert own.spec().offload_tokens == tokens
    unknown = an_engine()
    unknown.note(parse_scrape(offloading("2.0")))
    assert unknown.spec().offload_tokens is None


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"offload_gib": 64}, "kv_bytes_per_token or size"),
        ({"offload_gib": -1, "size": "8b"}, "greater than or equal to 0"),
        ({"offload_gib": "much", "size": "8b"}, "number"),
    ],
)
def test_a_tier_whose_tokens_nothing_tells_is_refused(
    settings: dict[str, Any], expected: str
) -> None:
    with pytest.raises(ValidationError, match=expected):
        an_engine(**settings)


@pytest.mark.parametrize(
    ("offload_blocks", "tokens", "handling"),
    [(800, 12_800, Handling.SWAP), (0, None, Handling.DISCARD)],
)
async def test_what_an_engine_says_of_its_offload_tier_lets_sessions_go_there(
    offload_blocks: int, tokens: int | None, handling: Handling
) -> None:
    async with (
        emulated(1, kv_blocks=400, offload_blocks=offload_blocks) as urls,
        gateway(urls, policy={"name": "augserve"}) as running,
    ):
        assert (await of_engine(running))["offload_tokens"] == tokens
        fleet = running.gateway.coordinator.fleet
        [instance] = fleet
        # too long a pause to keep the KV cache for
        assert ContextHandling().choose(4000.0, 3600.0, instance, fleet) is handling


async def of_engine(running: Running) -> dict[str, Any]:
    [state] = (await running.http.get("/admin/engines")).json()
    return dict(state)


async def of_queues(running: Running) -> dict[str, Any]:
    return dict((await running.http.get("/admin/queues")).json()["instances"]["e0"])


async def samples(running: Running, name: str) -> dict[str, float]:
    page = (await running.http.get("/metrics")).text
    return {
        sample.labels.get("kind", ""): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == name
    }


async def test_capacity_and_hits_of_an_engine_are_shown() -> None:
    async with (
        emulated(1, kv_blocks=400, block_size=32) as urls,
        gateway(urls) as running,
    ):
        headers = {"x-headway-workflow-id": "w"}
        for _ in range(2):
            given = await running.chat("long " * 400, max_tokens=2, headers=headers)
            assert given.status_code == 200
        usage = given.json()["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        prompts = 2 * usage["prompt_tokens"]
        await running.until_empty()
        [engine] = running.gateway.fleet.engines
        await running.until(lambda: engine.prefix_cache and engine.prefix_cache.found_tokens)
        shown = await of_engine(running)
        assert (shown["kv_capacity_tokens"], shown["kv_block_tokens"]) == (400 * 32, 32)
        assert shown["engine_says"]["prefix_cache"]["found_tokens"] == cached > 300
        [instance] = running.gateway.coordinator.fleet
        assert instance.spec.kv_capacity_tokens == 400 * 32
        told = (await of_queues(running))["prompt_tokens"]
        assert told == shown["prompt_tokens"]
        assert (told["total"], told["cached"]) == (prompts, cached)
        counted = await samples(running, "headway_prompt_tokens_total")
        assert counted.pop("expected_cached") == pytest.approx(told["expected_cached"], abs=1.0)
        assert counted == {"all": prompts, "cached": cached}
        assert await samples(running, "headway_kv_capacity_tokens") == {"": 400 * 32}


async def test_what_is_expected_of_a_cache_is_held_against_what_it_had() -> None:
    async with emulated(1) as urls, gateway(urls) as running:
        # the first workflow teaches how much of a session is found again
        for number in range(2):
            headers = {"x-headway-workflow-id": f"w{number}"}
            for turn in range(3):
                text = f"{number} " + "long " * 400 * (turn + 1)
                await running.chat(text, max_tokens=2, headers=headers)
                await running.until_empty()
        told = (await of_queues(running))["prompt_tokens"]
        assert told["cached"] > 0
        assert 0.3 * told["cached"] < told["expected_cached"] < 1.3 * told["cached"]


def asking_for_a_tool() -> dict[str, Any]:
    call = {"id": "c", "type": "function", "function": {"name": "run_sql", "arguments": "{}"}}
    choice = {"index": 0, "message": {"tool_calls": [call]}, "finish_reason": "tool_calls"}
    return {**answer(), "choices": [choice]}


async def test_a_session_that_waits_for_its_tool_is_paused_until_it_comes_back() -> None:
    async def handler(request: Request, body: dict[str, Any]) -> Response:
        return JSONResponse(asking_for_a_tool() if body.get("tools") else answer())

    async with scripted(handler) as (engine,), gateway([engine.url]) as running:
        for _ in range(8):
            running.gateway.tracker.tools.learn("run_sql", 3600.0)
        headers = {"x-headway-workflow-id": "w"}
        await running.chat(tools=[{"type": "function"}], headers=headers)
        await running.until_empty()
        shown, queues = await of_engine(running), await of_queues(running)
        for told in (shown, queues):
            assert (told["paused_sessions"], told["paused_tokens"]) == (1, 9)
            assert told["in_flight_tokens"] == 0
        assert await samples(running, "headway_paused_sessions") == {"": 1}
        assert await samples(running, "headway_paused_tokens") == {"": 9}
        await running.chat(headers=headers)
        await running.until_empty()
        assert (await of_engine(running))["paused_sessions"] == 0


async def test_an_engine_that_was_never_seen_has_no_cache_to_show() -> None:
    async with gateway(["http://127.0.0.1:9"], expect_up=0) as running:
        shown = await of_engine(running)
        assert shown["kv_capacity_tokens"] is None
        assert shown["paused_sessions"] is None
        assert shown["engine_says"] is None
