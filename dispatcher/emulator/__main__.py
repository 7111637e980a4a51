"""Run a fleet of emulated engines as somebody's child process.

`python -m dispatcher.emulator '[{"gpu": "A100-80G", "port": 0}]'` takes a JSON list of settings as
its argument or as the first line of its standard input, prints one line,
`{"event": "ready", "ports": [...]}`, once all engines listen, and ends on SIGTERM, on SIGINT, or
when its standard input closes, so that it never outlives its parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import threading

import uvloop
from pydantic import TypeAdapter, ValidationError

from dispatcher.emulator.fleet import serve_fleet
from dispatcher.emulator.settings import EmulatorSettings

_STDIN = 0
_FLEET = TypeAdapter(list[EmulatorSettings])


def _announce(ports: list[int]) -> None:
    sys.stdout.write(json.dumps({"event": "ready", "ports": ports}) + "\n")
    sys.stdout.flush()


def _watch_stdin(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    """Set `stop` when standard input closes; a thread, since it may be a file or /dev/null."""
    while os.read(_STDIN, 4096):
        pass
    with contextlib.suppress(RuntimeError):  # the loop has ended by itself
        loop.call_soon_threadsafe(stop.set)


async def _main(fleet: list[EmulatorSettings]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    threading.Thread(target=_watch_stdin, args=(loop, stop), daemon=True).start()
    await serve_fleet(fleet, stop=stop, on_ready=_announce)


def main() -> int:
    """Return the exit status: 2 for settings that cannot be used."""
    raw = sys.argv[1] if len(sys.argv) > 1 else sys.stdin.readline()
    try:
        fleet = _FLEET.validate_json(raw)
    except ValidationError as error:
        sys.stderr.write(f"emulator settings: {error}\n")
        return 2
    if not fleet:
        sys.stderr.write("emulator settings: the list of engines is empty\n")
        return 2
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_main(fleet))
    except (OSError, ValueError) as error:
        sys.stderr.write(f"emulator: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
