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
_OFFLOADED = re.compile(rb'(?<!\w)kv_offloading_size="(\d[\d.e+-]{0,30})"')
_NATIVE = b'kv_offloading_backend="native"'
"""Of another backend the size says nothing: a server of its own holds what is offloaded."""


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
    """KV cache, of all ranks of a data-parallel server together."""
    tokens_total: int | None = None
    """Prompt and output tokens since the engine started; none where it does not count them."""
    kv_block_tokens: int | None = None
    """Tokens of one KV block: a prefix is found in whole blocks."""
    prefix_cache: PrefixCache | None = None
    offload_bytes: int | None = None
    """Host memory for what falls out of the KV cache, of all ranks together; 0: none, or not
    vLLM's own; `None`: the page says nothing of the KV cache."""


@dataclass(frozen=True, slots=True)
class _KvCache:
    """What the page says of the KV cache."""

    capacity_tokens: int | None = None
    block_tokens: int | None = None
    offload_bytes: int | None = None


def parse_scrape(page: bytes) -> Scrape:
    """Read a page; sums over the ranks of a data-parallel server.

    Of the KV caches' usage the mean: capacity is that of all ranks together, each of which has an
    equal part of it, so that both make what all of them hold.

    A number that cannot be read counts as absent; a page without any gives zeros, and `None` for
    what is not a gauge.
    """
    sums = {b"num_requests_running": 0.0, b"num_requests_waiting": 0.0, b"num_preemptions_total": 0}
    usages: list[float] = []
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
            usages.append(min(1.0, value))
    gauges = EngineGauges(
        running=int(sums[b"num_requests_running"]),
        waiting=int(sums[b"num_requests_waiting"]),
        kv_usage=sum(usages) / len(usages) if usages else 0.0,
        preemptions_total=int(sums[b"num_preemptions_total"]),
        output_tokens_total=tokens.get(_OUTPUT),
    )
    kv_cache = _kv_cache(page)
    return Scrape(
        gauges,
        kv_cache.capacity_tokens,
        tokens_total=sum(tokens.values()) if tokens else None,
        kv_block_tokens=kv_cache.block_tokens,
        prefix_cache=PrefixCache(cache[_QUERIED], cache[_FOUND]) if len(cache) == 2 else None,
        offload_bytes=kv_cache.offload_bytes,
    )


def _kv_cache(page: bytes) -> _KvCache:
    """From a line for each rank.

    `kv_cache_size_tokens` is of that rank, and so is the size of its offload tier; `num_gpu_blocks`
    every line has of all ranks together.
    """
    lines = _CACHE_CONFIG.findall(page)
    if not lines:
        return _KvCache()
    told = in_blocks = block = 0
    offload_gib = 0.0
    for labels in lines:
        found = {name: int(value) for name, value in _LABEL.findall(labels)}
        block = found.get(b"block_size", 0)
        told += found.get(b"kv_cache_size_tokens", 0)
        in_blocks = max(in_blocks, found.get(b"num_gpu_blocks", 0) * block)
        offload_gib += _offloaded_gib(labels)
    return _KvCache(told or in_blocks or None, block or None, round(offload_gib * 2**30))


def _offloaded_gib(labels: bytes) -> float:
    """What vLLM's own offloading has at one rank; one that cannot be read counts as none."""
    size = _OFFLOADED.search(labels)
    if size is None or _NATIVE not in labels:
        return 0.0
    try:
        gib = float(size[1])
    except ValueError:
        return 0.0
    return gib if gib < 1e9 else 0.0
