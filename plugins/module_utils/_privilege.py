# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a module may do what it is asked for. Private to the collection."""

from __future__ import annotations

import os

NEEDS_ROOT = "this needs root on the host: leave become on (ansible_become, --become)"


def lacks_root() -> bool:
    """Whether this process runs as another user than root."""
    return os.geteuid() != 0


def may_write_below(folder: str) -> bool:
    """Whether this process may write into a folder, or make it where it is not there yet."""
    while not os.path.lexists(folder) and os.path.dirname(folder) != folder:
        folder = os.path.dirname(folder)
    return os.access(folder, os.W_OK | os.X_OK)


def may_read_environment(pid: int) -> bool:
    """Whether this user may see what a process was started with; also where there is no such process."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as stream:
            stream.read(1)
    except PermissionError:
        return False
    except OSError:
        pass  # it has ended
    return True
