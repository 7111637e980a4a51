"""Makes the modules of examples/text2sql importable, as running agent.py there does."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

AGENT_FOLDER = Path(__file__).parents[2] / "examples" / "text2sql"
sys.path.insert(0, str(AGENT_FOLDER))

import database as db  # noqa: E402 - found by the line above
import questions as qs  # noqa: E402


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory) -> db.Database:
    """The sample database, built once."""
    return db.build(tmp_path_factory.mktemp("text2sql") / "railway.sqlite")


@pytest.fixture(scope="session")
def asked() -> list[qs.Question]:
    """The committed questions."""
    return qs.load()
