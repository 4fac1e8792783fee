# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What goes into a generation, and the name that follows from it. Private to the collection."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from typing import NamedTuple

from ansible_collections.gpufleet.dflash.plugins.module_utils._lock import LockEntry, lock_digest

SCHEMA = 1

# What tells one interpreter from another, and the values that PEP 508 markers are evaluated with.
_INSPECT = """
import json, os, platform, sys, sysconfig
v = sys.implementation.version
full = "%d.%d.%d" % v[:3] + ("" if v.releaselevel == "final" else v.releaselevel[0] + str(v.serial))
print(json.dumps({
    "path": os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable),
    "version": platform.python_version(),
    "platform": sysconfig.get_platform(),
    "tag": sys.implementation.cache_tag,
    "libc": " ".join(platform.libc_ver()).strip(),
    "markers": {
        "implementation_name": sys.implementation.name, "implementation_version": full, "os_name": os.name,
        "platform_machine": platform.machine(), "platform_release": platform.release(),
        "platform_system": platform.system(), "platform_version": platform.version(),
        "python_full_version": platform.python_version(),
        "platform_python_implementation": platform.python_implementation(),
        "python_version": ".".join(platform.python_version_tuple()[:2]), "sys_platform": sys.platform,
    },
}))
"""


class GenerationError(Exception):
    """A generation that cannot be built; the text says what, where and what to do."""


class Interpreter(NamedTuple):
    """The Python a generation is made for."""

    path: str
    version: str
    platform: str
    tag: str
    libc: str  # "glibc 2.36"; empty where Python cannot tell
    markers: dict[str, str]


class Overlay(NamedTuple):
    """One file laid into site-packages after the lock is installed."""

    path: str  # relative to site-packages
    digest: str  # SHA-256 of the content, in hex
    content: bytes | None  # None: the file lies in the store
    size: int  # bytes; 0 where nobody said it


class Base(NamedTuple):
    """A venv of the host that a generation starts from; it is read and never touched."""

    path: str  # without links
    identity: str  # SHA-256 (hex) of its content, wherever it stands
    python: str  # the interpreter behind it
    site_packages: str
    distributions: dict[str, str]
    overlays: dict[str, str]  # {path below site-packages: SHA-256} that a generation declares


class Recipe(NamedTuple):
    """All that goes into a generation."""

    root: str
    lock: tuple[LockEntry, ...]
    overlays: tuple[Overlay, ...]
    interpreter: Interpreter
    base: Base | None = None

    @property
    def id(self) -> str:
        """The name of the generation: Python's tag and 16 digits of the hash of its inputs."""
        inputs: dict[str, object] = {
            "schema": SCHEMA,
            "lock": lock_digest(self.lock),
            "overlays": {overlay.path: overlay.digest for overlay in self.overlays},
            "python": [self.interpreter.path, self.interpreter.version, self.interpreter.platform],
        }
        if self.base:
            inputs["base"] = self.base.identity
        digest = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()
        return f"{self.interpreter.tag}-{digest[:16]}"

    @property
    def path(self) -> str:
        """Where the generation stands on the host."""
        return os.path.join(self.root, "venvs", self.id)


def inspect_interpreter(python: str) -> Interpreter:
    """Return what python is; raises GenerationError when it does not run or is too old."""
    try:
        process = subprocess.run(
            [python, "-I", "-c", _INSPECT],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=60,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise GenerationError(f"the interpreter does not answer within 60 s: {python}: name another one") from error
    except OSError as error:
        raise GenerationError(f"the interpreter cannot be run: {python}: {error.strerror}") from error
    try:
        interpreter = Interpreter(**json.loads(process.stdout))
        version = tuple(map(int, str(interpreter.version).split(".")[:2]))
    except (ValueError, TypeError) as error:
        words = process.stderr.strip().splitlines() or ["it printed nothing"]
        raise GenerationError(f"not a usable Python interpreter: {python}: {words[-1]}") from error
    if version < (3, 9):
        raise GenerationError(
            f"Python {interpreter.version} is too old: {python}: name a newer one (3.9 at least) with the option python"
        )
    return interpreter
