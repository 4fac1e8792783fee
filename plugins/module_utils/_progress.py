# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The line of progress that a long module leaves for the controller to show. Private to the collection."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Callable


@contextlib.contextmanager
def progress_to(path: str) -> Iterator[Callable[[str], None]]:
    """Yield a function that makes a line the whole content of the file at path; the file goes at the end.

    Progress is a courtesy: when it cannot be written, the work goes on.
    """

    def tell(line: str) -> None:
        with contextlib.suppress(OSError):
            os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
            temporary = f"{path}.{os.getpid()}"
            with open(temporary, "w", encoding="utf-8") as stream:
                # The second line is for the controller: whether anybody is still at work here.
                stream.write(f"{' '.join(line.split())}\n{os.getpid()} {started}\n")
            os.replace(temporary, path)

    with open("/proc/self/stat", encoding="ascii", errors="replace") as stat:
        started = stat.read().rpartition(")")[2].split()[19]  # proc(5): a PID is used again, with another start time
    try:
        tell("at work")
        yield tell
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)
