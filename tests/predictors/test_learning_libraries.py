"""Serving does not load the learning libraries: they cost a second and 100 MB."""

from __future__ import annotations

import subprocess
import sys

import pytest

_HEAVY = ("numpy", "scipy", "sklearn", "quantile_forest", "joblib")


@pytest.mark.parametrize(
    "module",
    [
        "dispatcher.cli",
        "dispatcher.gateway.app",
        "dispatcher.catalog",
    ],
)
def test_that_importing_what_serves_loads_none_of_them(module: str) -> None:
    program = f"import sys, {module}\nprint(*(m for m in {_HEAVY!r} if m in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, [], "")
