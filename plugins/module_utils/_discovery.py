# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find virtual environments below directories. Private to the collection."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

# A hundred thousand directories take a few seconds; beyond this somebody has named the root of a data disk.
DIRECTORY_LIMIT = 500_000
# Never held a venv that a service runs from, and are large or no files at all.
_SKIPPED = frozenset({"proc", "sys", "dev", ".git", "node_modules", "site-packages", "dist-packages", "__pycache__"})
_CACHE_TAG = "CACHEDIR.TAG"


@dataclass
class Discovery:
    """The venvs found, sorted, and in words what could not be looked at."""

    venvs: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def find_venvs(roots: Sequence[str], limit: int = DIRECTORY_LIMIT) -> Discovery:
    """Look for directories with a ``pyvenv.cfg``, at most ``limit`` directories in all.

    Stays on the file system of each root, follows no link, enters no directory twice (bind mounts can make a
    loop), and looks neither into a venv nor into what calls itself a cache.
    """
    found = Discovery()
    seen: set[tuple[int, int]] = set()
    venvs: set[str] = set()
    for root in roots:
        path = os.path.abspath(root)
        try:
            status = os.stat(path)
            os.listdir(path)
        except OSError as error:
            found.notes.append(f"cannot look for virtual environments: {root}: {error.strerror}")
            continue
        complete = _search(os.path.realpath(path), status.st_dev, limit, seen, venvs)
        if not complete:
            found.notes.append(
                f"the search for virtual environments ended after {limit} directories: {root}: "
                "name the directories below it"
            )
            break
    found.venvs = sorted(venvs)
    return found


def _search(root: str, device: int, limit: int, seen: set[tuple[int, int]], venvs: set[str]) -> bool:
    """Whether everything was looked at before ``limit`` directories were entered."""
    queue = deque([root])
    while queue:
        directory = queue.popleft()
        try:
            status = os.lstat(directory)
            identity = (status.st_dev, status.st_ino)
            if status.st_dev != device or identity in seen:
                continue
            if len(seen) >= limit:
                return False
            seen.add(identity)
            with os.scandir(directory) as entries:
                names = {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries}
        except OSError:  # gone meanwhile, or closed to this user: others are not
            continue
        if names.get("pyvenv.cfg") is False and ("bin" in names or "lib" in names):
            venvs.add(directory)
        elif _CACHE_TAG not in names:
            queue.extend(
                os.path.join(directory, name) for name, is_dir in names.items() if is_dir and name not in _SKIPPED
            )
    return True
