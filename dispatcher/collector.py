"""How seldom Python's cycle collector runs while calls come and go.

A call leaves next to no cycles behind, yet the objects of all that are under way set the collector
off all the time: a sixth of a short request's cost, and pauses of tens of milliseconds when it goes
through all modules, too.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

GATEWAY_OBJECTS = 10_000
"""That have come without going, before a gateway looks for cycles among them."""
SIMULATION_OBJECTS = 500_000
"""The same of a simulation, where much stays until its end."""


@contextmanager
def seldom_collecting(objects: int) -> Iterator[None]:
    """Look for cycles only when so many objects have come without going.

    Example:
        >>> with seldom_collecting(GATEWAY_OBJECTS):
        ...     gc.get_threshold()[0]
        10000
    """
    before = gc.get_threshold()
    gc.set_threshold(objects, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def leave_out_what_is_here() -> None:
    """What has been made by now is here to stay: no collection goes through it any more."""
    gc.collect()
    gc.freeze()
