# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a command and write what it took as JSON. A process of its own, and a small one: the peak memory that the kernel
tells of a child begins at its parent's.

Usage: python -I -S launch.py RESULT COMMAND [ARGUMENT...]
"""

from __future__ import annotations

import json
import os
import sys
import time


def main() -> int:
    """Write RESULT and return the command's exit status."""
    target, command = sys.argv[1], sys.argv[2:]
    began = time.perf_counter()
    pid = os.posix_spawnp(command[0], command, os.environ)
    # Left as a zombie until its counters are read; they include those of its own children that it waited for.
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    wall = time.perf_counter() - began
    with open(f"/proc/{pid}/io", encoding="ascii") as stream:
        counters = dict(line.split(": ") for line in stream.read().splitlines())
    _pid, status, usage = os.wait4(pid, 0)
    taken = {
        "wall": wall,
        "cpu": usage.ru_utime + usage.ru_stime,
        "rss": usage.ru_maxrss * 1024,
        "read_from_disk": int(counters["read_bytes"]),
        "read": int(counters["rchar"]),
    }
    with open(target, "w", encoding="ascii") as stream:
        json.dump(taken, stream)
    return os.waitstatus_to_exitcode(status) & 0xFF


if __name__ == "__main__":
    sys.exit(main())
