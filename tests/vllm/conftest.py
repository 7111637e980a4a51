"""Fixtures: two real engines of unequal speed, engines to kill, gateways before them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from drive import eventually
from engines import FAST, MODEL, SLOW, Engine, running
from gateway_process import Gateway

HERE = Path(__file__).parent
#: Covers the start of the engines, which happens inside the first test that asks for them.
TEST_LIMIT_S = 300


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark everything here, before pytest deselects by marker, so that no test can forget it."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.vllm)
            item.add_marker(pytest.mark.timeout(TEST_LIMIT_S))


@pytest.fixture(scope="session")
def engine_pair() -> Iterator[tuple[Engine, Engine]]:
    """A fast and a slow engine with four seats each; the fast one also answers to ``tiny-fast``."""
    fast = Engine(FAST, names=(MODEL, f"{MODEL}-fast"))
    slow = Engine(SLOW, names=(MODEL, f"{MODEL}-slow"))
    with running(fast, slow):
        yield fast, slow


@pytest.fixture
def fast_engine(engine_pair: tuple[Engine, Engine]) -> Engine:
    """About 4 ms a token."""
    return engine_pair[0]


@pytest.fixture
def slow_engine(engine_pair: tuple[Engine, Engine]) -> Engine:
    """About 11 ms a token: a full answer of 1,900 tokens holds its seat for 20 s."""
    return engine_pair[1]


@pytest.fixture
def spawn_engine() -> Iterator[Callable[..., Engine]]:
    """Start further engines that the test may kill; the options are those of ``Engine``."""
    with ExitStack() as stack:

        def spawn(**options: object) -> Engine:
            engine = Engine(**{"shape": FAST, **options})  # type: ignore[arg-type]
            stack.enter_context(running(engine))
            return engine

        yield spawn


@pytest_asyncio.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    """An HTTP client with room for every stream that a test holds open."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(timeout=60, limits=limits) as client:
        yield client


@pytest.fixture
def start_gateway(tmp_path: Path) -> Iterator[Callable[..., Gateway]]:
    """Start gateways; the options are those of ``Gateway``."""
    with ExitStack() as stack:

        def start(**options: object) -> Gateway:
            gateway = Gateway(directory=tmp_path, **options)  # type: ignore[arg-type]
            stack.callback(gateway.kill)
            gateway.start()
            return gateway

        yield start


@pytest_asyncio.fixture
async def gateway(
    engine_pair: tuple[Engine, Engine],
    start_gateway: Callable[..., Gateway],
    http: httpx.AsyncClient,
) -> AsyncIterator[Gateway]:
    """A gateway over both engines with as many seats as they have; each test leaves it empty."""
    fast, slow = engine_pair
    process = start_gateway(engines={"fast": fast, "slow": slow}, seats=4)
    yield process
    await eventually(lambda: process.is_empty(http), "the gateway is empty")
