"""What was learned, kept in one SQLite file across restarts."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

import orjson

from dispatcher.core.ports import Learned
from workflows.tracker import Tracker

log = logging.getLogger("headway.store")

FORMAT = 1
_BUSY_S = 2.0


@runtime_checkable
class Bulky(Protocol):
    """Learned, and so much of it that putting it into words is for a thread."""

    def snapshot(self) -> Callable[[], Mapping[str, object]]:
        """Called in any thread, gives what `dump` would give now."""


class TrackerState:
    """The workflow tracker as something that is put away with the time of day beside it.

    Deadlines go on while nothing runs, so what is read needs to know how long ago it was written.
    """

    def __init__(
        self, tracker: Tracker, clock: Callable[[], float], time_of_day: Callable[[], float]
    ) -> None:
        self._tracker = tracker
        self._clock = clock
        self._time_of_day = time_of_day

    def dump(self) -> Mapping[str, object]:
        """A snapshot, and when it was taken (seconds since 1970)."""
        return {
            "saved_at_s": self._time_of_day(),
            "tracker": self._tracker.snapshot(self._clock()),
        }

    def load(self, state: Mapping[str, object]) -> None:
        """Take a snapshot over. Raises `KeyError`, `ValueError`."""
        saved_at_s, snapshot = state["saved_at_s"], state["tracker"]
        if not isinstance(saved_at_s, int | float) or not isinstance(snapshot, dict):
            raise ValueError("expected a snapshot and the time of it")
        down_s = max(0.0, self._time_of_day() - saved_at_s)
        self._tracker.restore(snapshot, self._clock(), down_s)


class Store:
    """Named states in one table, each a JSON text.

    A file that cannot be used is said so and left alone: the gateway starts cold and saves
    nothing, rather than overwrite what somebody may want to look at.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._usable = True

    async def load(self, parts: Mapping[str, Learned]) -> list[str]:
        """Give each part what was saved under its name; the names that were found and taken."""
        try:
            saved = await asyncio.to_thread(self._read)
        except (sqlite3.Error, OSError, ValueError) as error:
            self._usable = False
            log.warning(
                "store %s cannot be used (%s): starting cold, saving nothing", self._path, error
            )
            return []
        taken = []
        for name, part in parts.items():
            if name not in saved:
                continue
            try:
                part.load(orjson.loads(saved[name]))
            except (KeyError, ValueError, TypeError) as error:
                log.warning("store %s: %s is not as expected (%r)", self._path, name, error)
                continue
            taken.append(name)
        return taken

    async def save(self, parts: Mapping[str, Learned]) -> bool:
        """Save all parts at once; False where the file cannot be written (said in the log)."""
        if not self._usable:
            return False
        bulky = [(n, part.snapshot()) for n, part in parts.items() if isinstance(part, Bulky)]
        others = [(n, _json(p.dump())) for n, p in parts.items() if not isinstance(p, Bulky)]
        try:
            await asyncio.to_thread(self._write, others, bulky)
        except (sqlite3.Error, OSError) as error:
            log.warning("store %s: not saved: %s", self._path, error)
            return False
        return True

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=_BUSY_S)
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, FORMAT):
                raise ValueError(f"written by another version (format {version}, ours {FORMAT})")
            connection.execute(
                "CREATE TABLE IF NOT EXISTS learned (name TEXT PRIMARY KEY, state BLOB NOT NULL)"
            )
            connection.execute(f"PRAGMA user_version={FORMAT}")
            connection.commit()
        except BaseException:
            connection.close()
            raise
        return connection

    def _read(self) -> dict[str, bytes]:
        connection = self._open()
        try:
            return dict(connection.execute("SELECT name, state FROM learned"))
        finally:
            connection.close()

    def _write(
        self,
        rows: list[tuple[str, bytes]],
        bulky: list[tuple[str, Callable[[], Mapping[str, object]]]],
    ) -> None:
        rows = [*rows, *((name, _json(words())) for name, words in bulky)]
        connection = self._open()
        try:
            with connection:
                connection.executemany("INSERT OR REPLACE INTO learned VALUES (?, ?)", rows)
        finally:
            connection.close()


def _json(state: Mapping[str, object]) -> bytes:
    return orjson.dumps(state, option=orjson.OPT_NON_STR_KEYS)
