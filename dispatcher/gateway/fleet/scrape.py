"""The few numbers that scheduling wants from an engine's `/metrics`, by one scan over its bytes."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dispatcher.core.types import EngineGauges

SCRAPE_BYTES_MAX = 2 * 1024 * 1024
"""A page longer than this is cut; vLLM's is about 60 kB."""

_SAMPLE = re.compile(
    rb"^vllm:(num_requests_running|num_requests_waiting|kv_cache_usage_perc"
    rb"|gpu_cache_usage_perc|num_preemptions_total|prompt_tokens_total|generation_tokens_total"
    rb"|prefix_cache_queries_total|prefix_cache_hits_total)"
    rb"(?:\{[^\n]*\})?[ \t]+([^\s]+)",
    re.MULTILINE,
)
_OUTPUT = b"generation_tokens_total"
_QUERIED, _FOUND = b"prefix_cache_queries_total", b"prefix_cache_hits_total"
_CACHE_CONFIG = re.compile(rb"^vllm:cache_config_info\{([^\n]*)\}", re.MULTILINE)
_LABEL = re.compile(rb'(?<!\w)(kv_cache_size_tokens|num_gpu_blocks|block_size)="(\d{1,15})"')


@dataclass(frozen=True, slots=True)
class PrefixCache:
    """What an engine says of its prefix cache, since it started."""

    queried_tokens: int
    """Prompt tokens looked for."""
    found_tokens: int


@dataclass(frozen=True, slots=True)
class Scrape:
    """One look at an engine."""

    gauges: EngineGauges
    kv_capacity_tokens: int | None = None
    """KV cache, of all engines of a data-parallel server together."""
    tokens_total: int | None = None
    """Prompt and output tokens since the engine started; none where it does not count them."""
    kv_block_tokens: int | None = None
    """Tokens of one KV block: a prefix is found in whole blocks."""
    prefix_cache: PrefixCache | None = None


def parse_scrape(page: bytes) -> Scrape:
    """Read a page; sums over the engines of a data-parallel server, the fullest KV cache.

    A number that cannot be read counts as absent; a page without any gives zeros, and `None` for
    what is not a gauge.
    """
    sums = {b"num_requests_running": 0.0, b"num_requests_waiting": 0.0, b"num_preemptions_total": 0}
    kv_usage = 0.0
    tokens: dict[bytes, int] = {}
    cache: dict[bytes, int] = {}
    for name, text in _SAMPLE.findall(page):
        try:
            value = float(text)
        except ValueError:
            continue
        if not 0 <= value < 1e15:
            continue
        if name in sums:
            sums[name] += value
        elif name in (_OUTPUT, b"prompt_tokens_total"):
            tokens[name] = tokens.get(name, 0) + int(value)
        elif name in (_QUERIED, _FOUND):
            cache[name] = cache.get(name, 0) + int(value)
        else:
            kv_usage = max(kv_usage, min(1.0, value))
    gauges = EngineGauges(
        running=int(sums[b"num_requests_running"]),
        waiting=int(sums[b"num_requests_waiting"]),
        kv_usage=kv_usage,
        preemptions_total=int(sums[b"num_preemptions_total"]),
        output_tokens_total=tokens.get(_OUTPUT),
    )
    capacity_tokens, block_tokens = _kv_cache(page)
    return Scrape(
        gauges,
        capacity_tokens,
        tokens_total=sum(tokens.values()) if tokens else None,
        kv_block_tokens=block_tokens,
        prefix_cache=PrefixCache(cache[_QUERIED], cache[_FOUND]) if len(cache) == 2 else None,
    )


def _kv_cache(page: bytes) -> tuple[int | None, int | None]:
    """Capacity and block, in tokens."""
    total = block = 0
    for labels in _CACHE_CONFIG.findall(page):
        found = {name: int(value) for name, value in _LABEL.findall(labels)}
        block = found.get(b"block_size", 0)
        total += found.get(b"kv_cache_size_tokens") or found.get(b"num_gpu_blocks", 0) * block
    return total or None, block or None
