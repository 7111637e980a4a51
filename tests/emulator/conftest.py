"""One engine for all tests that only read it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import emulated
import httpx
import pytest


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with emulated.engine() as client:
        yield client
