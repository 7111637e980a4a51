"""A tool agent over two real engines with prefix caching: its calls go back to where they began."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from benchmark_programs import played
from engines import SLOW, Engine, running

AGENTS, TURNS = 6, 6
SEATS = 6
#: of 32 tokens: enough for half of the agents at a time, not for all of them
KV_BLOCKS = 150


@pytest.fixture(scope="module")
def alike() -> Iterator[tuple[Engine, Engine]]:
    """Two engines of one speed that call tools when told to."""
    flags = ("--num-gpu-blocks-override", str(KV_BLOCKS))
    flags += ("--enable-auto-tool-choice", "--tool-call-parser", "pythonic")
    # a model that says noise would put blanks into its JSON for ever
    json = {"backend": "xgrammar", "disable_any_whitespace": True}
    flags += ("--structured-outputs-config", orjson.dumps(json).decode())
    pair = (
        Engine(SLOW, max_num_seqs=SEATS, flags=flags),
        Engine(SLOW, max_num_seqs=SEATS, flags=flags),
    )
    with running(*pair):
        yield pair


def later(play: dict[str, Any]) -> list[dict[str, Any]]:
    return [call for call in play["each"] if call["turn"]]


def test_second_and_later_calls_land_where_their_prefix_is(
    alike: tuple[Engine, Engine], tmp_path: Path
) -> None:
    document = played(
        "tool_agent",
        tmp_path,
        alike,
        "--tools",
        *("--agents", str(AGENTS), "--turns", str(TURNS), "--seats", str(SEATS)),
        *("--first-words", "500", "--result-words", "80", "--output", "24"),
        *("--pause-s", "0.3", "--affinity", "1000"),
    )
    off = [play for play in document["plays"] if not play["affinity"]]
    on = [play for play in document["plays"] if play["affinity"]]
    for play in off + on:
        assert len(later(play)) == AGENTS * (TURNS - 1)
        assert play["tools_asked_for"] == AGENTS * TURNS
        assert {call["served"]["tool"] for call in play["each"]} == {"look_up"}
    for play in on:
        assert [call for call in later(play) if not call["at_home"]] == []
    least, most = min(play["hit_rate"] for play in on), max(play["hit_rate"] for play in off)
    assert least > 0.8
    assert least > most + 0.05
    # which tool ran was seen in the answers: no header named it
    assert [row["tool"] for row in document["gateway"]["tools"]] == ["look_up"]
    for engine in document["gateway"]["engines"]:
        assert (engine["kv_capacity_tokens"], engine["kv_block_tokens"]) == (32 * KV_BLOCKS, 32)
        told = engine["prompt_tokens"]
        assert told["cached"] == pytest.approx(told["expected_cached"], rel=0.5)
        assert engine["engine_says"]["prefix_cache"]["found_tokens"] >= 0.9 * told["cached"]
