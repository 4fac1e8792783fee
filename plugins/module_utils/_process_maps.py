# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files that living processes have mapped, and whether they are those on disk.

Private to the collection. Source: proc(5). A process that ends while it is read has no maps, which is no fault.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_DELETED = " (deleted)"
_LINE = re.compile(r"([0-9a-f]+-[0-9a-f]+) \S+ \S+ \S+ (\d+) +(/.*)", re.DOTALL)
_CONTROL_GROUPS = ("/sys/fs/cgroup", "/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified")


@dataclass(frozen=True)
class Mapping:
    """One mapped file of one process; ``state`` is ``same`` as on disk, ``replaced`` or ``deleted``."""

    pid: int
    path: str
    state: str


def members_of_group(control_group: str) -> list[int]:
    """Return the processes of a control group and of those below it."""
    found: set[int] = set()
    for root in _CONTROL_GROUPS:
        for directory, _below, files in os.walk(root + control_group):
            if "cgroup.procs" in files:
                with contextlib.suppress(OSError):
                    words = Path(directory, "cgroup.procs").read_text().split()
                    found.update(int(word) for word in words if word != "0")
    return sorted(found)


def descendants(pid: int) -> list[int]:
    """Return a process and all that descend from it, as far as their parents live."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                # The command name stands in parentheses and may hold anything, parentheses included.
                fields = Path(f"/proc/{entry}/stat").read_text(errors="replace").rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(entry))
    found = [pid]
    for member in found:
        found += [child for child in children.get(member, []) if child not in found]
    return found


def mapped_by(pid: int) -> list[Mapping]:
    """Return the files that a process has mapped, each once. Raises PermissionError; empty when it has ended."""
    try:
        text = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="surrogateescape")
    except (FileNotFoundError, ProcessLookupError):
        return []
    found: dict[str, Mapping] = {}
    for addresses, inode, name in _files(text):
        if name not in found:
            path = name[: -len(_DELETED)] if name.endswith(_DELETED) else name
            found[name] = Mapping(pid, path, _state(pid, addresses, inode, name))
    return list(found.values())


def _files(text: str) -> Iterator[tuple[str, int, str]]:
    # Not splitlines(), which also splits at what a file's name may hold.
    for line in text.split("\n"):
        match = _LINE.fullmatch(line)
        if match:
            # The kernel escapes line ends here, and nothing else.
            yield match.group(1), int(match.group(2)), match.group(3).replace("\\012", "\n")


def _state(pid: int, addresses: str, inode: int, name: str) -> str:
    path = name[: -len(_DELETED)] if name.endswith(_DELETED) else name
    root = _view_of(pid)
    if path != name:
        mapped = _identity(f"/proc/{pid}/map_files/{addresses}")
        if mapped is not None and _identity(root + name) == mapped:
            return "same"  # somebody called a file so
        return "replaced" if _identity(root + path) is not None else "deleted"
    on_disk = _identity(root + path)
    if on_disk is None:
        # Out of reach is not gone: what is gone is marked by the kernel.
        return "same"
    mapped = _identity(f"/proc/{pid}/map_files/{addresses}")
    # The numbers in maps are of the file system below an overlay or a subvolume: only the inode can be compared.
    differs = mapped != on_disk if mapped is not None else on_disk[1] != inode
    return "replaced" if differs else "same"


def _view_of(pid: int) -> str:
    """Return where the process's own files are: its unit may have mounts of its own. Ours, where that is closed."""
    root = f"/proc/{pid}/root"
    return root if _identity(f"{root}/") is not None else ""


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino
