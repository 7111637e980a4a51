"""A job whose module needs nothing."""

from __future__ import annotations

import sys


def loaded(number: int) -> set[str]:
    return set(sys.modules)
