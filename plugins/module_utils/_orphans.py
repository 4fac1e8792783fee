# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Processes of an engine that outlived their server, and keep its GPU memory and its ports.

This module is private to the collection: it can change at any time.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ansible_collections.gpufleet.dflash.plugins.module_utils._liveness import title

# SGLang names its schedulers and detokenizers so, followed by C(_TP0) and the like.
PREFIX = "sglang::"
_QUERY = ("--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits")


@dataclass(frozen=True)
class Orphan:
    """A process that no server owns. C(gpu_memory): MiB that it holds, None where nvidia-smi does not tell."""

    pid: int
    name: str
    unit: str  # the service or scope that it belongs to; empty for none
    gpu_memory: int | None = None

    def to_mapping(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def words(self) -> str:
        """The orphan in a few words."""
        held = f", {self.gpu_memory} MiB of GPU memory" if self.gpu_memory else ""
        return f"{self.pid} ({self.name}{held})"


def find_orphans(ours: Sequence[int] = (), proc: Path = Path("/proc")) -> list[Orphan]:
    """Return the engine's processes whose parent has died, apart from those that belong to the unit itself.

    A server's children are adopted by PID 1, or by another reaper, when it dies. A scheduler whose parent is a server,
    in a container or somebody's session, is no orphan.
    """
    found = []
    for entry in proc.iterdir():
        if not entry.name.isdigit() or int(entry.name) in ours:
            continue
        pid = int(entry.name)
        name = title(pid, proc)
        if name.startswith(PREFIX) and _adopted(pid, proc):
            found.append(Orphan(pid, name, _unit_of(pid, proc)))
    if not found:
        return []
    memory = _gpu_memory()
    return [Orphan(one.pid, one.name, one.unit, memory.get(one.pid)) for one in sorted(found, key=lambda o: o.pid)]


def remedy(orphans: Sequence[Orphan]) -> str:
    """Return what to do about them."""
    return (
        "they serve nobody: end them with kill -9 "
        + " ".join(str(one.pid) for one in orphans)
        + ", look with nvidia-smi whether the memory is free, and start the service again"
    )


def _adopted(pid: int, proc: Path) -> bool:
    parent = _parent(pid, proc)
    if parent is None:
        return False
    if parent == 1:
        return True
    # A reaper of a session (systemd --user, containerd-shim) is a child of PID 1 and no Python.
    return Path(title(parent, proc)).name in ("systemd", "(systemd)", "containerd-shim-runc-v2", "conmon")


def _parent(pid: int, proc: Path) -> int | None:
    try:
        return int((proc / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return None


def _unit_of(pid: int, proc: Path) -> str:
    try:
        rows = (proc / str(pid) / "cgroup").read_text().splitlines()
    except OSError:
        return ""
    parts = [part for row in rows for part in row.split("/") if part.endswith((".service", ".scope"))]
    return parts[-1] if parts else ""


def _gpu_memory() -> dict[int, int]:
    """Return MiB by process, as far as the driver tells."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return {}
    try:
        done = subprocess.run([tool, *_QUERY], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    found = {}
    for row in done.stdout.splitlines():
        pid, _comma, memory = row.partition(",")
        with contextlib.suppress(ValueError):
            found[int(pid)] = int(memory)
    return found
