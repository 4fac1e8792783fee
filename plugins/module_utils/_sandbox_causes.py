# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which directive of a unit stands behind a load that failed in its sandbox, and what to change.

Private to the collection. A directive is named only when the unit has it and the failure is of the kind that it
causes; what fits none is told as it is.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, Callable

from ansible_collections.gpufleet.dflash.plugins.module_utils._load_errors import Place, Problem, problem
from ansible_collections.gpufleet.dflash.plugins.module_utils._probe_request import ProbeOutcome
from ansible_collections.gpufleet.dflash.plugins.module_utils._systemd import SETUP_FAILURES
from ansible_collections.gpufleet.dflash.plugins.module_utils._systemd_syntax import (
    UnitSyntaxError,
    assigned,
    expand,
    specifiers,
    split_all,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._unit import UnitEnvironment

# How a message introduces the directive that is to blame.
CAUSE = ": the cause is "
_YES = ("1", "yes", "y", "true", "t", "on")
_HOMES = ("/home", "/root", "/run/user")
# By systemd's name of the step that failed: the directives that it carries out.
_OF_STEP = {
    "USER": ("User",),
    "GROUP": ("Group", "SupplementaryGroups"),
    "CHROOT": ("RootDirectory", "RootImage"),
    "CHDIR": ("WorkingDirectory",),
    "NAMESPACE": ("ReadWritePaths", "ReadOnlyPaths", "InaccessiblePaths", "ExecPaths", "NoExecPaths", "BindPaths",
                  "BindReadOnlyPaths", "RootDirectory", "RootImage", "TemporaryFileSystem"),
    "CAPABILITIES": ("CapabilityBoundingSet", "AmbientCapabilities", "SecureBits"),
    "SECCOMP": ("SystemCallFilter", "SystemCallArchitectures", "RestrictNamespaces", "MemoryDenyWriteExecute"),
    "ADDRESS_FAMILIES": ("RestrictAddressFamilies",),
    "NETWORK": ("PrivateNetwork", "NetworkNamespacePath"),
    "CREDENTIALS": ("LoadCredential", "SetCredential", "LoadCredentialEncrypted", "ImportCredential"),
    "NUMA_POLICY": ("NUMAPolicy", "NUMAMask"),
    "CPUAFFINITY": ("CPUAffinity",),
    "SETSCHEDULER": ("CPUSchedulingPolicy", "CPUSchedulingPriority"),
    "PAM": ("PAMName",),
    "RUNTIME_DIRECTORY": ("RuntimeDirectory",),
    "STATE_DIRECTORY": ("StateDirectory",),
    "CACHE_DIRECTORY": ("CacheDirectory",),
    "LOGS_DIRECTORY": ("LogsDirectory",),
    "CONFIGURATION_DIRECTORY": ("ConfigurationDirectory",),
}  # fmt: skip


class Directives:
    """What the directives of a unit say, as far as a cause can be read off them."""

    def __init__(self, unit: UnitEnvironment) -> None:
        self._settings = unit.settings
        self._known = specifiers(unit.name, unit.path)

    def has(self, key: str) -> bool:
        return bool(assigned(self._settings, key))

    def last(self, key: str) -> str:
        return (assigned(self._settings, key) or [""])[-1]

    def is_on(self, key: str) -> bool:
        return self.last(key).lower() in _YES

    def paths(self, key: str) -> list[str]:
        """Return the paths of a list, as the process sees them: of a bind mount the destination."""
        found = []
        for word in split_all(assigned(self._settings, key), []):
            try:
                path = expand(word, self._known).lstrip("-+")
            except UnitSyntaxError:
                continue
            parts = path.split(":")
            found.append((parts[1] if "Bind" in key and len(parts) > 1 else parts[0]).rstrip("/") or "/")
        return found

    def covering(self, key: str, path: str) -> str | None:
        """Return the longest path of a list that a path lies in."""
        return max((entry for entry in self.paths(key) if _within(path, entry)), key=len, default=None)

    def hiding(self, path: str) -> str | None:
        """Return the directive that takes a path out of the process's sight."""
        for spelling in dict.fromkeys((path, os.path.realpath(path))):
            shown = self.covering("BindPaths", spelling) or self.covering("BindReadOnlyPaths", spelling)
            if shown is None and (found := self._hiding(spelling)):
                return found
        return None

    def _hiding(self, path: str) -> str | None:
        home = self.last("ProtectHome").lower()
        if (home in _YES or home == "tmpfs") and any(_within(path, entry) for entry in _HOMES):
            return f"ProtectHome={home}"
        for key in ("InaccessiblePaths", "InaccessibleDirectories", "TemporaryFileSystem"):
            entry = self.covering(key, path)
            if entry is not None:
                return f"{key}={entry}"
        if self.is_on("PrivateTmp") and any(_within(path, entry) for entry in ("/tmp", "/var/tmp")):
            return "PrivateTmp=yes"
        if self.is_on("PrivateDevices") and _within(path, "/dev"):
            return "PrivateDevices=yes"
        root = self.last("RootDirectory").rstrip("/")
        return f"RootDirectory={root}" if root and not os.path.lexists(root + path) else None

    def forbids_execution(self, path: str) -> str | None:
        """Return the NoExecPaths= that a path lies in; the longer path of two lists counts."""
        for spelling in dict.fromkeys((path, os.path.realpath(path))):
            no, yes = self.covering("NoExecPaths", spelling), self.covering("ExecPaths", spelling)
            if no is not None and (yes is None or len(yes) < len(no)):
                return f"NoExecPaths={no}"
        return None


def _within(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _paths_in(text: str) -> Iterator[str]:
    yield from dict.fromkeys(re.findall(r"/[^\s:'\"()]+", text))


def _unmappable(directives: Directives, words: str, noexec: Sequence[str]) -> tuple[str, str] | None:
    for path in noexec:
        cause = directives.forbids_execution(path)
        if cause:
            return cause, f"add the directory of the venv to ExecPaths=, or take {cause} out"
    if directives.is_on("MemoryDenyWriteExecute") and not noexec:
        return _no_written_code()
    return None


def _no_written_code() -> tuple[str, str]:
    return (
        "MemoryDenyWriteExecute=yes",
        "set MemoryDenyWriteExecute=no: code that is written at run time (compilers, ctypes callbacks) needs such "
        "memory, and so does a library with an executable stack or a writable code segment",
    )


def _not_permitted(directives: Directives, words: str, noexec: Sequence[str]) -> tuple[str, str] | None:
    if directives.is_on("MemoryDenyWriteExecute"):
        return _no_written_code()
    if directives.has("SystemCallFilter"):
        value = directives.last("SystemCallFilter")
        return f"SystemCallFilter={value}", "allow the system call that the code needs (strace -f shows which)"
    return None


def _no_memory(directives: Directives, words: str, noexec: Sequence[str]) -> tuple[str, str] | None:
    for key in ("LimitAS", "LimitDATA", "MemoryMax"):
        if directives.has(key) and directives.last(key) != "infinity":
            return f"{key}={directives.last(key)}", f"raise {key}="
    return _no_written_code() if directives.is_on("MemoryDenyWriteExecute") else None


def _read_only(directives: Directives, words: str, noexec: Sequence[str]) -> tuple[str, str] | None:
    for key in ("ProtectSystem", "ProtectHome", "ReadOnlyPaths", "ProtectKernelTunables", "ProtectControlGroups"):
        value = directives.last(key)
        if value and value.lower() not in ("no", "false", "0", "off", "n", "f"):
            fix = "let it write below CacheDirectory= or StateDirectory= (HOME, XDG_CACHE_HOME), or add ReadWritePaths="
            return f"{key}={value}", fix
    return None


def _limit(key: str) -> Callable[[Directives, str, Sequence[str]], tuple[str, str] | None]:
    def rule(directives: Directives, words: str, noexec: Sequence[str]) -> tuple[str, str] | None:
        return (f"{key}={directives.last(key)}", f"change {key}=") if directives.has(key) else None

    return rule


_RULES: tuple[tuple[str, Callable[[Directives, str, Sequence[str]], tuple[str, str] | None]], ...] = (
    (r"failed to map segment|cannot enable executable stack|memory protection|make segment writable", _unmappable),
    (r"Read-only file system", _read_only),
    (r"Address family not supported", _limit("RestrictAddressFamilies")),
    (r"Too many open files", _limit("LimitNOFILE")),
    (r"can't start new thread|Resource temporarily unavailable", _limit("TasksMax")),
    (r"can't start new thread|Resource temporarily unavailable", _limit("LimitNPROC")),
    (r"Cannot allocate memory|MemoryError", _no_memory),
    (r"Operation not permitted", _not_permitted),
    (r"killed by SIGSYS", _limit("SystemCallFilter")),
    (r"killed by SIGXCPU", _limit("LimitCPU")),
    (r"\boom-kill\b", _limit("MemoryMax")),
)


def name_cause(
    found: Problem,
    unit: UnitEnvironment,
    noexec: Sequence[str] = (),
    more: str = "",
    searched: Sequence[str] = (),
) -> Problem:
    """Return the problem with the directive that is its likely cause; the same where none is.

    ``noexec`` are the paths that lie where the process may execute nothing; ``more`` is what else was said;
    ``searched`` are the directories in which modules and libraries are looked for.
    """
    directives = Directives(unit)
    words = "\n".join((found["message"], found["evidence"], more))
    cause = next(
        (known for pattern, rule in _RULES if re.search(pattern, words) and (known := rule(directives, words, noexec))),
        None,
    )
    if cause is None and found["kind"] in ("access-denied", "missing-library", "import-failed"):
        for path in (*found["paths"], *_paths_in(found["evidence"]), *searched):
            hidden = directives.hiding(path) if os.path.lexists(path) else None
            if hidden:
                cause = hidden, f"keep it where the service may see it, or change {hidden.partition('=')[0]}="
                break
    if cause is None:
        return found
    return {**found, "message": f"{found['message']}{CAUSE}{cause[0]} of {unit.name}", "fix": cause[1]}


def setup_failure(outcome: ProbeOutcome, place: Place, unit: UnitEnvironment) -> Problem | None:
    """Return why systemd did not get as far as the interpreter, None when it did."""
    started = any(event["event"] == "interpreter" for event in outcome.events)
    step = SETUP_FAILURES.get(outcome.status, "") if outcome.end == "exited" else ""
    nothing = outcome.words.startswith("resources")
    if started or not (step or nothing):
        return None
    directives = Directives(unit)
    python = f"{place.venv}/bin/python"
    status = f"the service would fail with status {outcome.status}/{step}" if step else "the service would not start"
    where = python if step == "EXEC" else unit.working_directory or "/"
    cause = _cause_of_step(directives, step, where, outcome.words)
    evidence = outcome.words.partition("\n")[2] or outcome.stderr[-1000:]
    details: dict[str, Any] = {"evidence": evidence}
    if step in ("EXEC", "CHDIR"):
        details["paths"] = [where]
    kind = "access-denied" if step in ("EXEC", "CHDIR", "NAMESPACE") else "interpreter-died"
    message = (
        f"systemd cannot start {python} in the sandbox of {unit.name}{f'{CAUSE}{cause}' if cause else ''}: {status}"
    )
    fix = f"correct {cause.partition('=')[0]}= in the unit" if cause else f"look into the journal of {unit.name}"
    if step in ("EXEC", "CHDIR") and cause:
        fix += f", so that {where} can be reached"
    if step == "NAMESPACE" and cause:
        fix += ": create the path, or write a minus in front of it if it may be absent"
    return problem(kind, message, fix, **details)


def _cause_of_step(directives: Directives, step: str, where: str, words: str) -> str | None:
    if step in ("EXEC", "CHDIR"):
        found = directives.hiding(where)
        return found or (directives.forbids_execution(where) if step == "EXEC" else None)
    keys = [key for key in _OF_STEP.get(step, ()) if directives.has(key)]
    if step == "NAMESPACE":
        for path in _paths_in(words.replace("/run/systemd/unit-root", "")):
            for key in keys:
                if path in directives.paths(key):
                    return f"{key}={path}"
    return f"{keys[0]}={directives.last(keys[0])}" if keys else None
