"""Queries as a model gets them wrong: made from the right one, and checked on the database.

`wrong` gives queries that run but answer something else; `failing` gives queries that the
database refuses, or that return nothing, so that the agent has to correct them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from database import Database

#: A column as it stands in the schema -> what one might think it is called.
MISNAMED = {
    "minutes": "delay_minutes",
    "full_name": "name",
    "price_cents": "price",
    "cost_eur": "cost_total",
    "run_on": "service_date",
    "bought_on": "sold_on",
    "hired_on": "hire_date",
    "opened_year": "year_opened",
    "length_km": "length",
    "km_from_start": "distance_km",
    "depot_id": "depot_station",
    "from_station_id": "start_station_id",
    "to_station_id": "end_station_id",
    "monthly_pay_eur": "salary",
    "parking_spaces": "parking",
    "platforms": "platform_count",
    "topic": "category",
    "town": "city",
    "kind": "type",
    "card": "card_type",
    "model": "train_model",
    "status": "state",
    "cause": "reason",
    "station_id": "stop_id",
    "line_id": "route_id",
}


def failing(sql: str, database: Database, count: int) -> list[str]:
    """`count` queries made from `sql` that need a correction, as different as can be had.

    Raises:
        ValueError: not enough could be made; write the question otherwise.
    """
    return _checked(sql, _failing(sql), count, lambda made: not database.run(made).usable)


def wrong(sql: str, database: Database, count: int) -> list[str]:
    """`count` queries made from `sql` that run and return rows, but other rows.

    Raises:
        ValueError: not enough could be made; write the question otherwise.
    """
    right = database.run(sql)

    def differs(made: str) -> bool:
        result = database.run(made)
        return result.usable and not result.same_as(right)

    return _checked(sql, _wrong(sql), count, differs)


def _checked(sql: str, made: Iterator[str], count: int, fits: Callable[[str], bool]) -> list[str]:
    found: list[str] = []
    for candidate in made:
        if candidate != sql and candidate not in found and fits(candidate):
            found.append(candidate)
        if len(found) == count:
            return found
    raise ValueError(f"only {len(found)} of {count} variants fit: {sql}")


def _failing(sql: str) -> Iterator[str]:
    for column, other in MISNAMED.items():
        renamed = re.sub(rf"\b{column}\b", other, sql)
        if renamed != sql:
            yield renamed
            break
    table = re.search(r"\bFROM ([a-z_]+)", sql)
    if table is not None:
        yield sql.replace(f"FROM {table[1]}", f"FROM {table[1].rstrip('s')}", 1)
    yield re.sub(r"strftime\('%m', ([a-z_.]+)\)", r"MONTH(\1)", sql)
    yield re.sub(r"julianday\(([a-z_.]+)\) - julianday\(([a-z_.]+)\)", r"DATEDIFF(\1, \2)", sql)
    yield re.sub(r"\bAVG\(", "AVERAGE(", sql, count=1)
    yield re.sub(r"(?<== )'([a-z])", lambda match: f"'{match[1].upper()}", sql, count=1)
    if ")" in sql:
        yield sql[: sql.rindex(")")] + sql[sql.rindex(")") + 1 :]
    joined = re.search(r" JOIN [a-z_]+( AS [a-z]+)", sql)
    if joined is not None:
        yield sql[: joined.start(1)] + sql[joined.end(1) :]
    columns = sorted((name for name in MISNAMED if re.search(rf"\b{name}\b", sql)), reverse=True)
    for column in columns:
        yield re.sub(rf"\b{column}\b", MISNAMED[column], sql, count=1)
    yield sql.replace(" WHERE ", " WHERE WHERE ", 1)
    yield sql.replace("SELECT ", "SELECT TOP 10 ", 1)
    yield sql.replace(" FROM ", ", FROM ", 1)


def _wrong(sql: str) -> Iterator[str]:
    yield sql.replace("COUNT(DISTINCT ", "COUNT(", 1)
    yield sql.replace(" LEFT JOIN ", " JOIN ")
    # One condition forgotten: the first of several, the last of several, or the only one.
    yield re.sub(r"WHERE (?:(?! AND |WHERE ).)+ AND (?!')", "WHERE ", sql, count=1)
    yield re.sub(r"(WHERE .+) AND (?:(?! AND ).)+?(?= GROUP BY| ORDER BY|$)", r"\1", sql, count=1)
    yield sql.replace(" DESC", "", 1)
    yield re.sub(r" HAVING .+?(?= ORDER BY|$)", "", sql, count=1)
    yield re.sub(r" WHERE [^()]+?(?= GROUP BY| ORDER BY|$)", "", sql, count=1)
    yield sql.replace("AVG(", "MAX(", 1)
    yield sql.replace("SUM(", "MAX(", 1)
    yield sql.replace(" >= ", " > ", 1)
    yield sql.replace(" < ", " <= ", 1)
    yield sql.replace(" > ", " >= ", 1)
    yield re.sub(r"LIMIT (\d+)", lambda match: f"LIMIT {int(match[1]) + 1}", sql)
    yield re.sub(r" GROUP BY .+$", "", sql)
    yield sql.replace("SUM(", "COUNT(", 1)
    yield sql.replace("100.0 * ", "", 1)
    yield sql.replace(" NOT IN ", " IN ", 1)
