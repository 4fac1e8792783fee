# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files below a host's root directory, read without trust in any of them. Private to the collection.

Everything that is known about a host's driver is read through this, so that the tests can show it the recorded
tree of another host.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from ansible_collections.gpufleet.dflash.plugins.module_utils._paths import read_start

# The largest honest file that is read whole: /proc/modules and /proc/devices have a few KiB.
_LIMIT = 1024 * 1024


@dataclass(frozen=True)
class HostFiles:
    """A host's files; ``root`` is what stands for ``/``."""

    root: str = "/"

    def path(self, path: str) -> str:
        """Where an absolute path of the host is here."""
        return os.path.join(self.root, path.lstrip("/"))

    def inside(self, path: str) -> str:
        """The host's own name of a path that `path` gave."""
        root = self.root.rstrip("/")
        return path[len(root) :] if root and path.startswith(root + "/") else path

    def text(self, path: str, limit: int = _LIMIT) -> str | None:
        """The start of a text file; None when it is not there, is no regular file, or may not be read."""
        try:
            return read_start(self.path(path), limit)
        except (OSError, ValueError):
            return None

    def word(self, path: str) -> str:
        """A file of /proc or /sys that holds one value; empty when it cannot be read."""
        return (self.text(path, 4096) or "").strip()

    def names(self, path: str) -> list[str]:
        """The names in a directory, sorted; none when there is no such directory."""
        try:
            return sorted(os.listdir(self.path(path)))
        except OSError:
            return []

    def exists(self, path: str) -> bool:
        """Whether there is such a file, link or directory."""
        return os.path.lexists(self.path(path))

    def target(self, path: str) -> str:
        """The last part of what a link points to; empty for what is no link."""
        try:
            return os.path.basename(os.readlink(self.path(path)))
        except OSError:
            return ""
