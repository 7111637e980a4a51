"""Programs of `benchmarks/` run against real engines; what they measured."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from engines import ROOT, Engine

LIMIT_S = 240.0


def played(program: str, directory: Path, engines: tuple[Engine, ...], *options: str) -> Any:
    """The document that a program writes; its own output goes to the test's."""
    file = directory / f"{program}.json"
    command = [sys.executable, str(ROOT / "benchmarks" / f"{program}.py"), "--json", str(file)]
    for engine in engines:
        command += ["--engine", engine.url]
    done = subprocess.run(
        [*command, *options], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    sys.stdout.write(done.stdout)
    assert file.exists(), done.stderr[-3000:]
    return json.loads(file.read_text())
