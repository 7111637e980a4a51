"""The few numbers that scheduling wants from an engine's `/metrics`, by one scan over its bytes."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dispatcher.core.types import EngineGauges

SCRAPE_BYTES_MAX = 2 * 1024 * 1024
"""A page longer than this is cut; vLLM's is about 60 kB."""

_SAMPLE = re.compile(
    rb"^vllm:(num_requests_running|num_requests_waiting|kv_cache_usage_perc"
    rb"|gpu_cache_usage_perc|num_preemptions_total|prompt_tokens_total|generation_tokens_total)"
    rb"(?:\{[^\n]*\})?[ \t]+([^\s]+)",
    re.MULTILINE,
)
_OUTPUT = b"generation_tokens_total"
_CACHE_CONFIG = re.compile(rb"^vllm:cache_config_info\{([^\n]*)\}", re.MULTILINE)
_LABEL = re.compile(rb'(kv_cache_size_tokens|num_gpu_blocks|block_size)="(\d+)"')


@dataclass(frozen=True, slots=True)
class Scrape:
    """One look at an engine."""

    gauges: EngineGauges
    kv_capacity_tokens: int | None = None
    tokens_total: int | None = None
    """Prompt and output tokens since the engine started; none where it does not count them."""


def parse_scrape(page: bytes) -> Scrape:
    """Read a page; sums over the engines of a data-parallel server, the fullest KV cache.

    A number that cannot be read counts as absent; a page without any gives zeros, and `None` for
    tokens.
    """
    sums = {b"num_requests_running": 0.0, b"num_requests_waiting": 0.0, b"num_preemptions_total": 0}
    kv_usage = 0.0
    tokens: dict[bytes, int] = {}
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
        else:
            kv_usage = max(kv_usage, min(1.0, value))
    gauges = EngineGauges(
        running=int(sums[b"num_requests_running"]),
        waiting=int(sums[b"num_requests_waiting"]),
        kv_usage=kv_usage,
        preemptions_total=int(sums[b"num_preemptions_total"]),
        output_tokens_total=tokens.get(_OUTPUT),
    )
    return Scrape(gauges, _kv_capacity(page), sum(tokens.values()) if tokens else None)


def _kv_capacity(page: bytes) -> int | None:
    total = 0
    for labels in _CACHE_CONFIG.findall(page):
        found = {name: int(value) for name, value in _LABEL.findall(labels)}
        blocks = found.get(b"num_gpu_blocks", 0) * found.get(b"block_size", 0)
        total += found.get(b"kv_cache_size_tokens") or blocks
    return total or None
