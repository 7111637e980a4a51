"""The sample database: a regional railway, the same on every machine for the same seed."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import random
import re
import sqlite3
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

SCHEMA_PATH = Path(__file__).parent / "data" / "schema.sql"
DATA_SEED = 2024
MAX_ROWS = 2000
MAX_QUERY_S = 5.0
PREVIEW_ROWS = 5
SAMPLE_ROWS = 5
READING = (
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
)

T = TypeVar("T")
Row = tuple[object, ...]


def _words(text: str) -> list[str]:
    return text.split()


FIRST_NAMES = _words(
    "Ada Bela Cyrus Dara Edda Femi Greta Hugo Ines Jonas Kira Liam Maya Nils Olga Pavel Quinn "
    "Rosa Sami Tilda Uma Viktor Wanda Xavi Yara Zeno"
)
SURNAMES = _words(
    "Abbott Bryce Calder Dorsey Ekman Falk Grange Hale Irwin Jarvis Kemp Lund Marsh Novak Orton "
    "Price Quill Rowe Stroud Thorne Ulrich Vance Weller Yates Zimmer"
)
TOWNS = _words(
    "Wendmoor Wendmoor Wendmoor Aldersea Brackwater Cormford Dunlow Eskholm Fennick Hartley "
    "Inverlea Keldbridge Larchmont Oakhaven"
)
MODELS = (("Heron 4", 220, 160), ("Plover 2", 96, 120), ("Osprey 6", 410, 200), ("Wren", 68, 100))


class Dice:
    """Draws that need nothing but `Random.random`, whose sequence Python promises to keep."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def below(self, bound: int) -> int:
        """A whole number from 0 to `bound` - 1."""
        return int(self._random.random() * bound)

    def between(self, low: int, high: int) -> int:
        """A whole number from `low` to `high`, both included."""
        return low + self.below(high - low + 1)

    def pick(self, items: Sequence[T]) -> T:
        """One of `items`, which must not be empty."""
        return items[self.below(len(items))]

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self._random.random() < probability

    def day(self, first: str, days: int) -> str:
        """A day in the `days` days from `first` on, 'YYYY-MM-DD'."""
        start = datetime.date.fromisoformat(first)
        return (start + datetime.timedelta(days=self.below(days))).isoformat()

    def name(self) -> str:
        """A first name and a surname."""
        return f"{self.pick(FIRST_NAMES)} {self.pick(SURNAMES)}"


@dataclasses.dataclass(frozen=True)
class QueryResult:
    """What running one query gave: rows, or the database's error."""

    columns: tuple[str, ...] = ()
    rows: tuple[Row, ...] = ()
    error: str | None = None

    @property
    def usable(self) -> bool:
        """True if the query ran and gave at least one row."""
        return self.error is None and bool(self.rows)

    @property
    def trouble(self) -> str:
        """Why the query needs a correction, '' if it does not."""
        if self.error is not None:
            return self.error
        return "" if self.rows else "the query ran but returned no rows"

    def preview(self) -> str:
        """The first rows as text, numbers rounded, for prompts."""
        if self.error is not None:
            return f"error: {self.error}"
        shown = [" | ".join(_cell(value) for value in row) for row in self.rows[:PREVIEW_ROWS]]
        return "\n".join([f"{len(self.rows)} rows", *shown])

    def same_as(self, other: QueryResult) -> bool:
        """True if both ran and gave the same rows, in whatever order (execution accuracy)."""
        if self.error is not None or other.error is not None:
            return False
        return Counter(map(_rounded, self.rows)) == Counter(map(_rounded, other.rows))


class Database:
    """Read-only access to the built file. Every query opens a connection of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with contextlib.closing(sqlite3.connect(path)) as connection:
            rows = connection.execute(
                "SELECT name, sql FROM sqlite_master WHERE type = 'table' ORDER BY rowid"
            ).fetchall()
        #: table name -> its CREATE TABLE statement with the comments
        self.tables: dict[str, str] = dict(rows)

    def run(self, sql: str) -> QueryResult:
        """Run one query; an error, too many rows or too much time is in the result, not raised."""
        connection = sqlite3.connect(f"file:{self.path}?mode=ro", uri=True)
        end_s = time.monotonic() + MAX_QUERY_S
        connection.set_authorizer(_only_reading)
        connection.set_progress_handler(lambda: time.monotonic() > end_s, 10_000)
        try:
            cursor = connection.execute(sql)
            rows = cursor.fetchmany(MAX_ROWS)
            columns = tuple(item[0] for item in cursor.description or ())
            return QueryResult(columns, tuple(rows))
        except (sqlite3.Error, sqlite3.Warning) as error:
            return QueryResult(error=str(error))
        finally:
            connection.close()

    def describe(self, columns: dict[str, list[str]] | None = None) -> str:
        """The schema as SQL with comments.

        Args:
            columns: table -> the columns to keep. Keys are kept always; a table that is left out
                is left out of the text. None keeps everything.
        """
        if columns is None:
            return "\n\n".join(f"{sql};" for sql in self.tables.values())
        parts = []
        for table, sql in self.tables.items():
            if table in columns:
                parts.append(_keep_columns(sql, set(columns[table])))
        return "\n\n".join(parts)

    def samples(self, columns: dict[str, list[str]]) -> str:
        """The first rows of each table, so that a model sees what values look like."""
        parts = []
        for table, names in columns.items():
            result = self.run(f"SELECT {', '.join(names)} FROM {table} LIMIT {SAMPLE_ROWS}")
            rows = [" | ".join(_cell(value) for value in row) for row in result.rows]
            parts.append("\n".join([f"{table}: {' | '.join(names)}", *rows]))
        return "\n\n".join(parts)

    def columns_of(self, table: str) -> list[str]:
        """The column names of a table, in order."""
        return re.findall(r"^  ([a-z_]+) ", self.tables[table], re.M)


def build(path: Path, seed: int = DATA_SEED) -> Database:
    """Create the database file at `path` and fill it.

    Schema, lines and stations come from `data/schema.sql`, everything else is drawn from `seed`.
    """
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(SCHEMA_PATH.read_text(encoding="utf-8"))
        for table, rows in _generate(Dice(seed), connection).items():
            marks = ", ".join("?" * len(rows[0]))
            connection.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
    return Database(path)


def _only_reading(action: int, *_: str | None) -> int:
    """SQLite's authorizer: SQL written by a model may read, and nothing else (no ATTACH)."""
    return sqlite3.SQLITE_OK if action in READING else sqlite3.SQLITE_DENY


def _generate(dice: Dice, connection: sqlite3.Connection) -> dict[str, list[Row]]:
    stops: dict[int, list[int]] = {}
    for line, station in connection.execute("SELECT line_id, station_id FROM line_stops"):
        stops.setdefault(line, []).append(station)
    staff = _staff(dice)
    drivers = [number for number, person in enumerate(staff, 1) if person[2] == "driver"]
    mechanics = [number for number, person in enumerate(staff, 1) if person[2] == "mechanic"]
    units = _units(dice)
    services = _services(dice, drivers, [int(str(unit[2])) for unit in units])
    customers: list[Row] = [
        (
            number,
            dice.name(),
            dice.pick(TOWNS),
            dice.between(1942, 2008),
            dice.pick(("none", "none", "none", "half-fare", "half-fare", "annual", "student")),
            dice.day("2016-01-01", 3100),
        )
        for number in range(1, 241)
    ]
    return {
        "units": units,
        "staff": staff,
        "services": services,
        "delays": _delays(dice, services, stops),
        "customers": customers,
        "tickets": _tickets(dice, stops),
        "repairs": _repairs(dice, mechanics),
        "complaints": _complaints(dice, services),
    }


def _units(dice: Dice) -> list[Row]:
    rows: list[Row] = []
    for number in range(1, 25):
        model, seats, speed = dice.pick(MODELS)
        depot = dice.pick((1, 7, 12, 18))
        rows.append((number, model, seats, dice.between(1994, 2022), speed, depot))
    return rows


def _staff(dice: Dice) -> list[Row]:
    base_eur = {"driver": 3400, "conductor": 2700, "dispatcher": 3600, "mechanic": 3000}
    rows: list[Row] = []
    for number in range(1, 71):
        role = dice.pick(("driver", "driver", "driver", "conductor", "dispatcher", "mechanic"))
        hired = dice.day("2001-01-01", 8300)
        pay = base_eur[role] + 25 * (2024 - int(hired[:4])) + 10 * dice.below(60)
        rows.append((number, dice.name(), role, hired, dice.between(1, 26), pay))
    return rows


def _services(dice: Dice, drivers: list[int], seats: list[int]) -> list[Row]:
    rows: list[Row] = []
    for number in range(1, 1301):
        line = dice.pick((1, 1, 2, 3, 4, 4, 4, 5, 5, 6, 6, 7, 7, 8))
        unit = dice.between(1, len(seats))
        status = "completed"
        if dice.chance(0.09):
            status = dice.pick(("shortened", "cancelled"))
        capacity = seats[unit - 1]
        on_board = 0 if status == "cancelled" else dice.between(capacity // 10, capacity * 11 // 10)
        departs = f"{dice.between(5, 22):02d}:{dice.pick(('00', '15', '30', '45'))}"
        day = dice.day("2024-01-01", 366)
        rows.append((number, line, unit, dice.pick(drivers), day, departs, status, on_board))
    return rows


def _delays(dice: Dice, services: list[Row], stops: dict[int, list[int]]) -> list[Row]:
    causes = ("signal", "signal", "weather", "crew", "crowding", "vehicle", "vehicle", "trespass")
    rows: list[Row] = []
    for service in services:
        while service[6] != "cancelled" and dice.chance(0.38):
            station = dice.pick(stops[int(str(service[1]))])
            minutes = 2 + dice.below(12) + (dice.below(45) if dice.chance(0.2) else 0)
            rows.append((len(rows) + 1, service[0], station, minutes, dice.pick(causes)))
    return rows


def _tickets(dice: Dice, stops: dict[int, list[int]]) -> list[Row]:
    rows: list[Row] = []
    for number in range(1, 1901):
        served = stops[dice.between(1, 8)]
        start = dice.pick(served)
        end = dice.pick([station for station in served if station != start])
        travel_class = 1 if dice.chance(0.15) else 2
        price = dice.between(18, 260) * 10 * (2 if travel_class == 1 else 1)
        channel = dice.pick(("app", "app", "app", "web", "machine", "machine", "counter"))
        day = dice.day("2024-01-01", 366)
        rows.append((number, dice.between(1, 215), start, end, day, price, channel, travel_class))
    return rows


def _repairs(dice: Dice, mechanics: list[int]) -> list[Row]:
    kinds = ("brakes", "doors", "doors", "engine", "interior", "wheels")
    rows: list[Row] = []
    for number in range(1, 151):
        started = dice.day("2023-01-01", 720)
        days = dice.between(1, 24)
        finished = datetime.date.fromisoformat(started) + datetime.timedelta(days=days)
        open_job = dice.chance(0.08)
        rows.append(
            (
                number,
                dice.between(1, 22),
                dice.pick(mechanics),
                started,
                None if open_job else finished.isoformat(),
                dice.pick(kinds),
                dice.between(4, 190) * 100,
            )
        )
    return rows


def _complaints(dice: Dice, services: list[Row]) -> list[Row]:
    topics = ("delay", "delay", "delay", "cleanliness", "staff", "price", "crowding")
    rows: list[Row] = []
    for number in range(1, 221):
        service = dice.pick(services) if dice.chance(0.7) else None
        filed = str(service[4]) if service else dice.day("2024-01-01", 366)
        topic, resolved = dice.pick(topics), int(dice.chance(0.62))
        about = service[0] if service else None
        rows.append((number, dice.between(1, 240), about, filed, topic, resolved))
    return rows


def _keep_columns(sql: str, keep: set[str]) -> str:
    kept = []
    for line in sql.splitlines():
        match = re.match(r"  ([a-z_]+) ", line)
        is_key = "PRIMARY KEY" in line or "REFERENCES" in line
        if match is None or is_key or match[1] in keep:
            kept.append(line)
    return "\n".join(kept) + ";"


def _cell(value: object) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _rounded(row: Row) -> Row:
    return tuple(round(value, 4) if isinstance(value, float) else value for value in row)
