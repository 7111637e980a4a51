"""Real vLLM engines as process groups: start, bounded wait, kill; models of two sizes."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).resolve().parents[2]
VENV = Path(os.environ.get("HEADWAY_VLLM_VENV", ROOT / ".venv-vllm"))
MODELS = ROOT / ".cache" / "vllm-models"
LOGS = ROOT / ".cache" / "vllm-logs"

#: Every engine serves this name, so that a gateway may send a call for it to any of them.
MODEL = "tiny"
MAX_MODEL_LEN = 2048

#: An engine needs 20-30 s to come up on two idle cores; several start beside each other.
START_LIMIT_S = 150.0
STOP_LIMIT_S = 10.0
POLL_S = 0.05


class EngineError(RuntimeError):
    """An engine did not start, or ended by itself; the message carries the end of its log."""


@dataclass(frozen=True)
class ModelShape:
    """The size of a random-weight model; depth and width decide how fast an engine runs it."""

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int

    def ensure(self) -> Path:
        """Write the model unless it is there; return its directory."""
        directory = MODELS / self.name
        command = [str(VENV / "bin/python"), str(Path(__file__).with_name("make_model.py"))]
        command += [str(directory), f"--hidden={self.hidden}", f"--layers={self.layers}"]
        command += [f"--heads={self.heads}", f"--kv-heads={self.kv_heads}"]
        made = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if made.returncode != 0:
            raise EngineError(f"make_model.py failed for {self.name}:\n{made.stderr[-2000:]}")
        return directory


FAST = ModelShape("fast", hidden=128, layers=2, heads=4, kv_heads=2)
SLOW = ModelShape("slow", hidden=512, layers=8, heads=8, kv_heads=4)


def free_port() -> int:
    """A loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(condition: Callable[[], object], what: str, limit_s: float) -> None:
    """Poll a condition until it holds; fail with its name when the limit has passed."""
    deadline_s = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"not within {limit_s:g} s: {what}")
        time.sleep(POLL_S)


def end_group(process: subprocess.Popen[bytes], *, gently: bool = False) -> None:
    """End a process with all its children; the process must lead its own group.

    Killing only the API server would leave vLLM's engine core running.
    """
    for number in (signal.SIGTERM, signal.SIGKILL) if gently else (signal.SIGKILL,):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=STOP_LIMIT_S)
    process.wait(timeout=STOP_LIMIT_S)


@dataclass
class Engine:
    """One ``vllm serve`` process group on a loopback port that it keeps over restarts."""

    shape: ModelShape
    max_num_seqs: int = 4
    names: tuple[str, ...] = (MODEL,)
    flags: tuple[str, ...] = ()
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        """Base URL, without ``/v1``."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        """Where the engine's output goes; a restart appends."""
        return LOGS / f"{self.shape.name}-{self.port}.log"

    def command(self) -> list[str]:
        """The ``vllm serve`` command line."""
        return [
            str(VENV / "bin/vllm"),
            "serve",
            str(self.shape.ensure()),
            *("--served-model-name", *self.names),
            *("--host", "127.0.0.1", "--port", str(self.port)),
            *("--distributed-executor-backend", "uni", "--enforce-eager"),
            *("--max-model-len", str(MAX_MODEL_LEN), "--max-num-seqs", str(self.max_num_seqs)),
            *("--kv-cache-memory-bytes", "64M", "--block-size", "32", "--enable-prefix-caching"),
            *("--scheduling-policy", "priority", "--enable-prompt-tokens-details"),
            "--enable-request-id-headers",
            *self.flags,
        ]

    def environment(self) -> dict[str, str]:
        """Offline, one compute thread, the CPU build's OpenMP runtime, stored responses."""
        dropped = {"VLLM_CPU_KVCACHE_SPACE", "VIRTUAL_ENV", "PYTHONPATH"}
        inherited = {name: value for name, value in os.environ.items() if name not in dropped}
        return inherited | {
            "PATH": f"{VENV / 'bin'}:{os.environ['PATH']}",
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "VLLM_ENABLE_RESPONSES_API_STORE": "1",
            "OMP_NUM_THREADS": "1",
            "LD_PRELOAD": str(VENV / "lib/libiomp5.so"),
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CACHE_ROOT": str(ROOT / ".cache/vllm"),
        }

    def start(self) -> None:
        """Start the process group and return at once; ``wait_healthy`` follows."""
        if not (VENV / "bin/vllm").exists():
            raise EngineError(f"no vLLM in {VENV}: use `make test-vllm`")
        if self.running:
            raise EngineError(f"{self.url} runs already")
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(),
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_healthy(self, limit_s: float = START_LIMIT_S) -> None:
        """Wait until ``/health`` says 200; fail with the log as soon as the process has ended."""

        def healthy() -> bool:
            if not self.running:
                raise EngineError(f"{self.url} ended by itself\n{self.log_tail()}")
            try:
                return httpx.get(f"{self.url}/health", timeout=5).status_code == 200
            except httpx.TransportError:
                return False

        try:
            wait_until(healthy, f"{self.url}/health says 200", limit_s)
        except TimeoutError as error:
            raise EngineError(f"{error}\n{self.log_tail()}") from error

    @property
    def running(self) -> bool:
        """Whether the API server's process lives."""
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        """SIGKILL to the whole group, at once: a machine that loses power."""
        if self.process is not None:
            end_group(self.process)
            self.process = None

    def core_pid(self) -> int:
        """The pid of the engine core, the child that holds the model."""
        assert self.process is not None
        children = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        for pid in (pid for path in children for pid in path.read_text().split()):
            title = Path(f"/proc/{pid}/cmdline").read_bytes()
            if b"EngineCore" in title:
                return int(pid)
        raise EngineError(f"{self.url} has no engine core process")

    def log_tail(self, characters: int = 3000) -> str:
        """The end of the engine's log."""
        return self.log.read_text(errors="replace")[-characters:]

    def metric(self, name: str) -> float:
        """The sum of a ``vllm:`` metric's samples, read from ``/metrics``."""
        text = httpx.get(f"{self.url}/metrics", timeout=5).text
        return metric_sum(text, f"vllm:{name}")


def metric_sum(text: str, name: str) -> float:
    """The sum over all label sets of one sample name in Prometheus' text format."""
    values = [
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name
    ]
    if not values:
        raise KeyError(name)
    return sum(values)


@contextlib.contextmanager
def running(*engines: Engine) -> Iterator[tuple[Engine, ...]]:
    """Start engines side by side, hand them out healthy, kill them at the end."""
    try:
        for engine in engines:
            engine.start()
        for engine in engines:
            engine.wait_healthy()
        yield engines
    finally:
        for engine in engines:
            engine.kill()
