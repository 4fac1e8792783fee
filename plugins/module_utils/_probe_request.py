# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a probe is asked, and what comes of it. Private to the collection."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible_collections.gpufleet.dflash.plugins.module_utils._load_trace import Trace
from ansible_collections.gpufleet.dflash.plugins.module_utils._sandbox import Sandbox

# The first thing that the interpreter runs: its order comes as one line. Whatever is imported before the current
# directory is off the path could be a file of the working directory. No dollar and no percent sign: systemd would
# expand them.
BOOTSTRAP = (
    "import sys; sys.path[:1] == [''] and sys.path.pop(0); import json; "
    "ORDER = json.loads(sys.stdin.buffer.readline()); exec(compile(ORDER.pop('text'), '<string>', 'exec'))"
)

# A variable that the probe removes from its environment: it tells that systemd applied the unit's settings.
MARK = "GPUFLEET_DFLASH_CHECK"


@dataclass(frozen=True)
class Identity:
    """Numeric user, group and supplementary groups of a process."""

    uid: int
    gid: int
    groups: tuple[int, ...]


@dataclass(frozen=True)
class ProbeRequest:
    """What to load and as what kind of process; ``timeout`` in seconds. No ``identity``: as the caller.

    ``command`` starts the interpreter. With a ``sandbox``, systemd makes the process, and what is said of the
    identity, the directory, the umask and the limits is in the sandbox.
    """

    python: str
    command: tuple[str, ...]
    imports: Sequence[str]
    dlopen: Sequence[str]
    environment: Mapping[str, str]
    invocation: str
    timeout: float
    identity: Identity | None = None
    working_directory: str = "/"
    working_directory_optional: bool = False
    current_directory_on_path: bool = False
    umask: int = 0o022
    limits: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    sandbox: Sandbox | None = None
    trace: bool = False


@dataclass
class ProbeOutcome:
    """How a probe ended: ``end`` is finished, exited, killed, timeout or not-started; ``status`` its number.

    ``events`` are the probe's reports in order, ``stdout`` and ``stderr`` the end of its output, ``left`` the
    command lines of processes that outlived it (they have been killed), ``words`` what systemd said about it.
    """

    end: str
    status: int
    events: list[dict[str, Any]]
    stdout: str
    stderr: str
    left: list[str]
    trace: Trace | None = None
    words: str = ""


def command_line_of(pid: int) -> str:
    """Return the command line of a process, shortened; empty when it is gone."""
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
        return " ".join("-c ..." if word == BOOTSTRAP else word for word in words if word)[:200]
    return ""
