"""An engine that speaks vLLM's HTTP API over the engine model: no GPU, made-up text, real times.

`create_app` is one engine as an ASGI application, `serve_fleet` runs several on ports of their own,
`running_fleet` does so while a block lasts, `run_fleet` blocks. `python -m dispatcher.emulator`
runs a fleet as a child process.
"""

from dispatcher.emulator.app import create_app
from dispatcher.emulator.fleet import run_fleet, running_fleet, serve_fleet
from dispatcher.emulator.settings import EmulatorSettings

__all__ = ["EmulatorSettings", "create_app", "run_fleet", "running_fleet", "serve_fleet"]
