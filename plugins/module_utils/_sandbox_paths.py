# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a unit's sandbox hides. Private to the collection."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

# What ProtectHome= makes empty for a service (systemd.exec(5)).
HIDDEN_HOMES = ("/home/", "/root/", "/run/user/")

_HIDES = re.compile(r"^ProtectHome=(?:yes|true|on|1|tmpfs)\s*$", re.MULTILINE)


def hidden_paths(unit: str, words: Iterable[str]) -> list[tuple[str, str]]:
    """Return the paths among the words of a command that a unit's text hides, each with where it leads to.

    A word may be an option with a path after an equals sign.
    """
    if not _HIDES.search(unit):
        return []
    found = []
    for word in words:
        path = word.partition("=")[2] if word.startswith("-") else word
        if path.startswith("/"):
            real = os.path.realpath(path)
            if path.startswith(HIDDEN_HOMES) or f"{real}/".startswith(HIDDEN_HOMES):
                found.append((path, real))
    return found
