"""Where figures come from: the version, and the commit where the source is a checkout."""

from __future__ import annotations

import subprocess
from functools import lru_cache
from pathlib import Path

from dispatcher.gateway.about import VERSION

_GIT_LIMIT_S = 10.0
_ROOT = Path(__file__).resolve().parents[2]


@lru_cache(maxsize=1)
def commit() -> str | None:
    """Hash of the checkout this runs from, `+` after it where files differ; `None`: no checkout."""
    if not (_ROOT / ".git").exists():
        return None
    head = _git("rev-parse", "HEAD")
    if head is None:
        return None
    changed = _git("status", "--porcelain", "--untracked-files=no")
    return head + ("+" if changed else "")


def provenance() -> dict[str, str | None]:
    """Version and commit, as plain JSON values."""
    return {"version": VERSION, "commit": commit()}


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(  # noqa: S603 - fixed words
            ["git", "-C", str(_ROOT), *arguments],  # noqa: S607 - whichever git there is
            capture_output=True,
            text=True,
            timeout=_GIT_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
