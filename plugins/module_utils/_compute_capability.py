# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which compute capabilities a host's GPUs have. Private to the collection."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable

_QUERY = ("--query-gpu=compute_cap", "--format=csv,noheader")
# It loads the driver's library and answers in a second or two; a driver in trouble lets it hang.
_TIMEOUT = 20.0
_CAPABILITY = re.compile(r"(\d{1,2})\.(\d)")


class CapabilityError(ValueError):
    """A compute capability that is none; the text says what is wrong, where, and what to do."""


def capabilities_of(texts: Iterable[str]) -> list[int]:
    """Compute capabilities such as ``9.0``, times ten and sorted. Raises CapabilityError."""
    found = set()
    for text in texts:
        match = _CAPABILITY.fullmatch(text.strip())
        if match is None:
            raise CapabilityError(f"no compute capability: compute_capabilities: {text!r}: write it as '9.0'")
        found.add(int(match[1]) * 10 + int(match[2]))
    return sorted(found)


def host_capabilities(program: str | None = None) -> list[int]:
    """What the driver's own nvidia-smi says; empty without it, without a GPU, or when it does not answer."""
    program = program or shutil.which("nvidia-smi")
    if program is None:
        return []
    try:
        process = subprocess.Popen(
            [program, *_QUERY], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
    except OSError:
        return []
    try:
        output, _errors = process.communicate(timeout=_TIMEOUT)
    except (subprocess.TimeoutExpired, ValueError):
        # One that hangs in the kernel does not die: nobody waits for it.
        process.kill()
        return []
    lines = [line for line in output.splitlines() if _CAPABILITY.fullmatch(line.strip())]
    return capabilities_of(lines) if process.returncode == 0 else []


def capability_text(capability: int) -> str:
    """As NVIDIA writes it: 120 is ``12.0``."""
    return f"{capability // 10}.{capability % 10}"
