"""Where results come from: versions, commit, seeds and date.

The date is in a file of its own, ``provenance.json``, since ``result.json`` has the same bytes however often a run was
stopped.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

import coalmine

_PACKAGES = ("numpy", "scipy", "torch", "dp-accounting")


@lru_cache(maxsize=1)
def environment() -> Mapping[str, str]:
    """Return the versions of Python and the main packages, and the platform."""
    versions = {name: metadata.version(name) for name in _PACKAGES}
    return {"python": sys.version.split()[0], "platform": f"{platform.system()}-{platform.machine()}", **versions}


def provenance(seeds: Mapping[str, int] | None = None) -> dict[str, Any]:
    """Return date, versions, commit where it is known, and seeds of results that are complete now."""
    commit = _installed_commit() or _checked_out_commit(Path(coalmine.__file__).parents[2])
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "coalmine": coalmine.__version__,
        **({} if commit is None else {"commit": commit}),
        **environment(),
        "seeds": dict(seeds or {}),
    }


def _installed_commit() -> str | None:
    """Return the commit that pip installed coalmine from, if that was a repository."""
    with suppress(metadata.PackageNotFoundError, ValueError, AttributeError):
        origin = json.loads(metadata.distribution("coalmine").read_text("direct_url.json") or "{}")
        commit = origin.get("vcs_info", {}).get("commit_id")
        return None if commit is None else str(commit)
    return None


def _checked_out_commit(root: Path) -> str | None:
    """Return the commit that is checked out in ``root``, with "-dirty" if files differ from it."""
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
        return done.stdout.strip() or None
    return None
