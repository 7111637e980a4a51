"""The parts that need no sockets: store, quotas, scrapes, the guard, model sizes."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Mapping
from pathlib import Path

import pytest

from dispatcher.config import TenantSettings
from dispatcher.core.types import EngineGauges, LengthEstimate
from dispatcher.gateway.errors import ApiError
from dispatcher.gateway.fleet.engine import size_of
from dispatcher.gateway.fleet.looks import LookFailed, read_models
from dispatcher.gateway.fleet.scrape import parse_scrape
from dispatcher.gateway.metrics import Coverage
from dispatcher.gateway.parsing.hints import HeaderBag
from dispatcher.gateway.store import Store
from dispatcher.gateway.tenants import Tenants


class Part:
    def __init__(self, value: int = 0) -> None:
        self.value = value

    def dump(self) -> Mapping[str, object]:
        return {"value": self.value}

    def load(self, state: Mapping[str, object]) -> None:
        value = state["value"]
        if not isinstance(value, int):
            raise ValueError("value: expected a number")
        self.value = value


async def test_what_was_saved_is_taken_up_again(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    assert await Store(path).save({"a": Part(1), "b": Part(2)})
    first, third = Part(), Part(3)
    assert await Store(path).load({"a": first, "c": third}) == ["a"]
    assert (first.value, third.value) == (1, 3)


@pytest.mark.parametrize("content", [b"not a database, by any means" * 100, b"SQLite format 3\0x"])
async def test_a_corrupted_file_is_said_and_left_alone(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "store.sqlite"
    path.write_bytes(content)
    store = Store(path)
    with caplog.at_level(logging.WARNING):
        assert await store.load({"a": Part()}) == []
    assert "starting cold" in caplog.text
    assert not await store.save({"a": Part(1)})
    assert path.read_bytes() == content


async def test_a_state_of_another_shape_is_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "store.sqlite"
    await Store(path).save({"a": Part("x"), "b": Part(2)})  # type: ignore[arg-type]
    taken = Part()
    assert await Store(path).load({"a": Part(), "b": taken}) == ["b"]
    assert taken.value == 2
    assert "a is not as expected" in caplog.text


async def test_a_locked_file_does_not_stop_the_gateway(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dispatcher.gateway.store._BUSY_S", 0.05)
    path = tmp_path / "store.sqlite"
    store = Store(path)
    await store.save({"a": Part(1)})
    other = sqlite3.connect(path)
    try:
        other.execute("BEGIN EXCLUSIVE")
        assert not await store.save({"a": Part(2)})
        assert "not saved" in caplog.text
    finally:
        other.close()
    assert await store.save({"a": Part(3)})


def test_tokens_a_minute_refill_steadily() -> None:
    tenants = Tenants([TenantSettings(name="t", api_key="k", tokens_per_minute=60)])
    tenant = tenants.get("t")
    assert tenant is not None
    tenant.enter(0.0)
    tenant.leave()
    tenant.charge(90, 0.0)
    with pytest.raises(ApiError) as caught:
        tenant.enter(10.0)
    assert dict(caught.value.headers)[b"retry-after"] == b"21"
    tenant.enter(31.0)
    assert tenant.in_flight == 1


def test_keys_may_change_and_what_is_in_use_is_kept() -> None:
    tenants = Tenants([TenantSettings(name="t", api_key="old")])
    bag = HeaderBag([(b"authorization", b"Bearer old")])
    tenants.identify(bag).enter(0.0)
    tenants.reload([TenantSettings(name="t", api_key="new", max_in_flight=1)])
    with pytest.raises(ApiError):
        tenants.identify(bag)
    again = tenants.identify(HeaderBag([(b"x-api-key", b"new")]))
    with pytest.raises(ApiError, match="calls at once"):
        again.enter(0.0)


def test_without_tenants_a_header_may_name_one() -> None:
    tenants = Tenants([])
    bag = HeaderBag([(b"x-headway-tenant", b"acme")])
    assert tenants.terms_for(tenants.identify(bag), bag).name == "acme"
    keyed = Tenants([TenantSettings(name="t", api_key="k")])
    both = HeaderBag([(b"x-api-key", b"k"), (b"x-headway-tenant", b"acme")])
    assert keyed.terms_for(keyed.identify(both), both).name == "t"


PAGE = b"""# HELP vllm:num_requests_running x
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 9.0
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 0.5
vllm:num_preemptions_total{engine="0"} 4.0
vllm:cache_config_info{block_size="16",num_gpu_blocks="100",cache_dtype="a b"} 1.0
other_total 7
"""


def test_a_scrape_reads_what_it_needs() -> None:
    scrape = parse_scrape(PAGE)
    assert scrape.gauges == EngineGauges(5, 1, 0.375, 4)
    assert scrape.kv_capacity_tokens == 1600


@pytest.mark.parametrize("page", [b"", b"\xff\x00", b"vllm:num_requests_running NaN\n", PAGE[:90]])
def test_a_scrape_of_anything_is_bounded(page: bytes) -> None:
    assert parse_scrape(page).gauges == EngineGauges()


def test_models_of_an_engine() -> None:
    served = read_models(b'{"data": [{"id": "a", "max_model_len": 10}, {"id": "b"}]}')
    assert (served.models, served.max_model_len) == (("a", "b"), 10)
    for page in (b"", b"{}", b'{"data": []}', b'{"data": [1]}', b"[]"):
        with pytest.raises(LookFailed):
            read_models(page)


@pytest.mark.parametrize(
    ("name", "size"),
    [("llama-3.1-8b", "8b"), ("meta/Llama-2-13b-hf", "13b"), ("Qwen2.5-72B", "70b"), ("x", "8b")],
)
def test_the_size_in_a_models_name(name: str, size: str) -> None:
    assert size_of((name,)) == size


def test_coverage_forgets_what_is_long_ago() -> None:
    coverage = Coverage(window=2)
    for tokens in (100, 5, 5):
        coverage.learn(LengthEstimate(10.0, ((0.5, 10.0),)), tokens)
    assert coverage.shares()[0.5] == 1.0
    coverage.learn(LengthEstimate(10.0), 100)
    assert coverage.shares()[0.5] == 1.0
