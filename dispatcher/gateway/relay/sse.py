"""Cutting a byte stream into server-sent events without touching a byte."""

from __future__ import annotations

import re

#: A stream without an event's end for this long is not held back any more.
MAX_TAIL_BYTES = 1024 * 1024

_BLANK_LINE = re.compile(rb"\r?\n\r?\n")


class EventSplitter:
    """Holds back an incomplete event, gives out whole ones; nothing is added, lost or reordered."""

    __slots__ = ("tail",)

    def __init__(self) -> None:
        #: The incomplete event that waits for its end; at most `MAX_TAIL_BYTES` and one read.
        self.tail = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the events that are complete now, each with its blank line.

        A piece that outgrows `MAX_TAIL_BYTES` is given out as it is, as if it were an event.
        """
        held = len(self.tail)
        if held:
            data = self.tail + data
        elif data.endswith(b"\n\n") and data.find(b"\n\n") == len(data) - 2 and b"\r" not in data:
            return [data]  # One whole event, as most come; the pattern takes its time.
        events: list[bytes] = []
        start = 0
        # The longest blank line has four bytes, so what was held needs no second look before that.
        for match in _BLANK_LINE.finditer(data, max(0, held - 3)):
            end = match.end()
            events.append(data[start:end])
            start = end
        self.tail = data[start:] if start else data
        if len(self.tail) > MAX_TAIL_BYTES:
            events.append(self.tail)
            self.tail = b""
        return events

    def flush(self) -> bytes:
        """Return what is held; the stream is over."""
        tail, self.tail = self.tail, b""
        return tail
