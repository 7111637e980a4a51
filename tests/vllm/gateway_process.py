"""The gateway as its users start it: ``headway serve --config FILE``, a process of its own."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import yaml
from drive import samples, total
from engines import Engine, end_group, free_port, wait_until

START_LIMIT_S = 60.0


@dataclass
class Gateway:
    """One gateway process before some engines, each with the same seats and key."""

    directory: Path
    engines: dict[str, Engine]
    seats: int | str = 4
    api_key: str | None = None
    expect_up: bool = True
    policy: str = "hexgen-flow"
    settings: dict[str, object] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        """Base URL, without ``/v1``."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        """Where the gateway's output goes."""
        return self.directory / f"gateway-{self.port}.log"

    def write_configuration(self) -> Path:
        """The YAML file that the process is started with."""
        path = self.directory / f"gateway-{self.port}.yaml"
        engines = [
            {"id": name, "url": engine.url, "seats": self.seats, "api_key": self.api_key}
            for name, engine in self.engines.items()
        ]
        path.write_text(
            yaml.safe_dump(
                {
                    "server": {"host": "127.0.0.1", "port": self.port},
                    "policy": {"name": self.policy},
                    "engines": engines,
                    "store": {"path": str(self.directory / f"gateway-{self.port}.sqlite")},
                    **self.settings,
                }
            )
        )
        return path

    def start(self) -> None:
        """Start the process; wait until it sees every engine up, or (`expect_up`) just answers."""
        command = [str(Path(sys.executable).with_name("headway")), "serve"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--config", str(self.write_configuration())],
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        ready = self.sees_all_engines if self.expect_up else self.answers
        wait_until(ready, f"{self.url}: {ready.__name__}", START_LIMIT_S)

    def answers(self) -> bool:
        """Whether it serves at all; raises when the process has ended."""
        return bool(self._metrics())

    def sees_all_engines(self) -> bool:
        """Whether ``headway_engine_up`` is 1 for each engine; raises when the process has ended."""
        text = self._metrics()
        lines = [line for line in text.splitlines() if line.startswith("headway_engine_up{")]
        return len(lines) == len(self.engines) and all(float(x.split()[-1]) == 1 for x in lines)

    def _metrics(self) -> str:
        assert self.process is not None
        if self.process.poll() is not None:
            raise RuntimeError(f"the gateway ended by itself\n{self.log.read_text()[-3000:]}")
        try:
            return httpx.get(f"{self.url}/metrics", timeout=5).text
        except httpx.TransportError:
            return ""

    def kill(self) -> None:
        """SIGTERM, then SIGKILL, to the process and its children."""
        if self.process is not None:
            end_group(self.process, gently=True)
            self.process = None

    async def gauge(self, http: httpx.AsyncClient, name: str, instance: str | None = None) -> float:
        """A ``headway_`` gauge, of one instance or summed over all."""
        labels = {"instance": instance} if instance else {}
        return await total(http, self.url, f"headway_{name}", **labels)

    async def is_empty(self, http: httpx.AsyncClient) -> bool:
        """Whether nothing is queued or in flight."""
        waiting = await samples(http, self.url, "headway_queue_depth")
        flying = await samples(http, self.url, "headway_in_flight")
        assert waiting and flying, "the gauges are missing"
        return all(value == 0 for _, value in waiting + flying)
