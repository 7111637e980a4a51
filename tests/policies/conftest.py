"""Puts the views of the conformance kit and the driver of the core's tests within reach."""

from __future__ import annotations

import sys
from pathlib import Path

_TESTS = Path(__file__).parents[1]
for _shared in ("conformance", "core"):
    if str(_TESTS / _shared) not in sys.path:
        sys.path.insert(0, str(_TESTS / _shared))
