# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Load modules and libraries of a venv as a service will, and say what came of it.

Private to the collection. A request becomes a probe's request (who, where, with which environment), the
probe's reports become results, and what failed becomes problems.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ansible_collections.gpufleet.dflash.plugins.module_utils import _clean_host, _cuda_wanted
from ansible_collections.gpufleet.dflash.plugins.module_utils._check_request import (
    CheckError,
    CheckRequest,
    Subject,
    subject_of,
    validate,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._load_errors import (
    Failure,
    Place,
    Problem,
    explain,
    problem,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._mapped import (
    Owners,
    cuda_libraries,
    duplicates,
    foreign_modules,
    outside,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._probe_end import (
    TAIL,
    attempt_of,
    death,
    untried,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._probe_process import run_probe
from ansible_collections.gpufleet.dflash.plugins.module_utils._probe_request import ProbeOutcome, ProbeRequest
from ansible_collections.gpufleet.dflash.plugins.module_utils._sandbox import SandboxError
from ansible_collections.gpufleet.dflash.plugins.module_utils._sandbox_causes import CAUSE, name_cause, setup_failure
from ansible_collections.gpufleet.dflash.plugins.module_utils._unit import ignored_lines
from ansible_collections.gpufleet.dflash.plugins.module_utils._venv import Venv, open_venv
from ansible_collections.gpufleet.dflash.plugins.module_utils._wheels import Installed, read_installed

# Ansible ships modules as text: what is compiled while the probe loads costs no time.
if TYPE_CHECKING:
    from ansible_collections.gpufleet.dflash.plugins.module_utils._prediction import Prediction

__all__ = ["CheckError", "CheckRequest", "check", "summary"]


@dataclass
class _Surroundings:
    """What is read while the probe loads: the venv's distributions, and what the loader should do."""

    venv: Venv
    subject: Subject
    request: CheckRequest
    installed: Installed = field(default_factory=lambda: Installed([], []))
    prediction: Prediction | None = None
    torch_cuda: str | None = None

    def read(self) -> None:
        if self.prediction is not None:
            return
        from ansible_collections.gpufleet.dflash.plugins.module_utils._plan_torch import torch_cuda_in
        from ansible_collections.gpufleet.dflash.plugins.module_utils._prediction import predict

        self.torch_cuda = torch_cuda_in(self.venv.import_path)
        self.installed = read_installed(self.venv.import_path)
        directory = self.subject.probe.working_directory
        imports, dlopen = self.request.imports, self.request.dlopen
        self.prediction = predict(self.venv, self.subject.environment, directory, imports, dlopen)

    @property
    def place(self) -> Place:
        path = self.subject.environment.get("LD_LIBRARY_PATH", "")
        return Place(
            venv=self.venv.path,
            installed=self.installed,
            library_path=tuple(filter(None, re.split("[:;]", path))),
            whose=self.subject.whose,
            user=self.subject.user,
            python_version=self.venv.version,
            torch_cuda=self.torch_cuda,
        )


def check(request: CheckRequest) -> dict[str, Any]:
    """Load everything and return the module's result.

    Raises CheckError, UnitError or VenvError when the request itself is impossible; whatever the probed code
    does is a result.
    """
    validate(request)
    venv = open_venv(request.venv)
    subject = subject_of(request, venv)
    around = _Surroundings(venv, subject, request)
    subject, outcome = _run(subject, subject.probe, around)
    around.read()
    result = _result(request, around, subject, outcome)
    if request.clean_host:
        clean = _clean_host.on(subject.probe, venv)
        _subject, clean_outcome = _run(subject, clean, around)
        _clean_host.add(result, entries_of(request, clean_outcome), around.place, venv, result["libraries"])
    _cuda_wanted.judge(request, result, around.place, subject.unit)
    unit = subject.unit
    if unit is not None:
        result["unit"] = {"name": unit.name, "path": unit.path, "drop_ins": list(unit.drop_ins)}
        result["problems"] += [problem("environment-malformed", *words) for words in ignored_lines(unit)]
    result["problems"] = _merged(result["problems"])
    return result


def _run(subject: Subject, probe: ProbeRequest, around: _Surroundings) -> tuple[Subject, ProbeOutcome]:
    """Run a probe in its sandbox; as our own child where systemd does not make the process."""
    try:
        return subject, run_probe(probe, around.read)
    except SandboxError as error:
        plain = subject.without_sandbox(str(error))
        return plain, run_probe(replace(plain.probe, command=probe.command), around.read)


def summary(request: CheckRequest, result: Mapping[str, Any]) -> str:
    """Return one message for a result that is not ok: what, where, why, and what to do."""
    loads = [*result["imports"], *result["dlopen"]]
    failed = [entry.get("name") or entry["soname"] for entry in loads if not entry["ok"]]
    errors = [entry for entry in result["problems"] if entry["severity"] == "error"]
    what = "the interpreter did not reach its end"
    if failed:
        what = f"cannot load {', '.join(failed)}"
    elif result["end"]["how"] == "finished":
        what = "everything can be loaded, and something is wrong"
    where = f"in {request.venv} as user {result['user']}"
    if request.unit is not None:
        where += f" (unit {result['unit']['name']})"
    causes = "; ".join(f"{entry['message']}: {entry['fix']}" for entry in errors[:3])
    more = f"; and {len(errors) - 3} more in `problems`" if len(errors) > 3 else ""
    return f"{what}: {where}: {causes}{more}"


def _result(request: CheckRequest, around: _Surroundings, subject: Subject, outcome: ProbeOutcome) -> dict[str, Any]:
    place, owners = around.place, Owners(around.installed)
    entries = entries_of(request, outcome)
    for entry in entries["dlopen"]:
        owned = owners.of(entry["path"])
        entry["distribution"] = owned[0].name if owned else None
    trace = outcome.trace.by_real_path() if outcome.trace else {}
    mapped: list[str] | None = next((event["paths"] for event in outcome.events if event["event"] == "maps"), None)
    libraries = cuda_libraries(owners, mapped or [], trace)
    problems = [
        *_failures(request, around, subject, outcome),
        *foreign_modules(entries["imports"], around.venv, place, subject.probe.working_directory),
        *outside(libraries, around.venv, place),
        *duplicates(libraries),
    ]
    different = None
    if mapped is not None and around.prediction is not None:
        problems += around.prediction.judged(around.installed, libraries)
        different = around.prediction.differences(libraries, owners)
    interpreter = next((event for event in outcome.events if event["event"] == "interpreter"), {})
    everything = [*entries["imports"], *entries["dlopen"]]
    return {
        "ok": outcome.end == "finished" and all(entry["ok"] for entry in everything),
        "end": {"how": outcome.end, "status": outcome.status},
        "interpreter": {key: interpreter.get(key) for key in ("version", "prefix", "base_prefix")},
        "imports": entries["imports"],
        "dlopen": entries["dlopen"],
        "torch": _torch(outcome),
        "libraries": [library.as_dict() for library in libraries],
        "differences": different,
        "processes_left": outcome.left,
        "user": place.user,
        "ld_library_path": list(place.library_path),
        "sandbox": subject.probe.sandbox is not None,
        "sandbox_reason": subject.unsandboxed,
        "stdout": outcome.stdout[-TAIL:],
        "stderr": outcome.stderr[-TAIL:],
        "problems": problems,
    }


def _torch(outcome: ProbeOutcome) -> dict[str, Any] | None:
    event = next((e for e in outcome.events if e["event"] == "done" and e["kind"] == "torch"), None)
    if event is None or (event["ok"] and "version" not in event):
        return None
    if not event["ok"]:
        return {
            **dict.fromkeys(("version", "cuda")),
            "is_available": False,
            "device_count": 0,
            "devices": [],
            "error": "\n".join(event["error"]["chain"]),
        }
    return {key: event[key] for key in ("version", "cuda", "is_available", "device_count", "devices", "error")}


def _failures(request: CheckRequest, around: _Surroundings, subject: Subject, outcome: ProbeOutcome) -> list[Problem]:
    """Return the problems of what was not loaded, with the directive that is the cause where it is known."""
    place = around.place
    unit = subject.unit if subject.probe.sandbox is not None else None
    if unit is not None:
        refused = setup_failure(outcome, place, unit)
        if refused is not None:
            unexplained = refused["paths"] and CAUSE not in refused["message"]
            return [_closed(refused, place, subject) if unexplained else refused]
    done, suspect = _progress(outcome)
    died = death(outcome, place, suspect, request.timeout)
    found = [(died, ())] if died else []
    for kind, names in (("import", request.imports), ("dlopen", request.dlopen)):
        for name in names:
            event = done.get((kind, name))
            if event is not None and not event["ok"]:
                noexec = tuple(event.get("noexec", ()))
                found += [(entry, noexec) for entry in explain(_failure(kind, name, event), place)]
    if unit is None:
        return [entry for entry, _noexec in found]
    searched = (*around.venv.site_packages, *place.library_path)
    return [name_cause(entry, unit, noexec, outcome.words, searched) for entry, noexec in found]


def _closed(refused: Problem, place: Place, subject: Subject) -> Problem:
    """Return which step of a path is closed, where no directive explains why systemd cannot start the process."""
    probe = replace(subject.without_sandbox("").probe, imports=(), dlopen=(), trace=False)
    died = death(run_probe(probe), place, None, probe.timeout)
    return died if died is not None and died["kind"] == "access-denied" else refused


def _progress(
    outcome: ProbeOutcome,
) -> tuple[dict[tuple[str, str], dict[str, Any]], tuple[str, str] | None]:
    """Return what is done, and what the interpreter was at when it ended."""
    done = {(event["kind"], event["name"]): event for event in outcome.events if event["event"] == "done"}
    begun = [(event["kind"], event["name"]) for event in outcome.events if event["event"] == "begin"]
    return done, next((key for key in reversed(begun) if key not in done), None)


def entries_of(request: CheckRequest, outcome: ProbeOutcome) -> dict[str, list[dict[str, Any]]]:
    """Return what came of each import and each dlopen, in order."""
    done, suspect = _progress(outcome)
    entries: dict[str, list[dict[str, Any]]] = {"imports": [], "dlopen": []}
    for kind, option in (("import", "imports"), ("dlopen", "dlopen")):
        for name in getattr(request, option):
            event = done.get((kind, name))
            entry = _entry(kind, name, event)
            if event is None:
                entry["error"] = untried(outcome, suspect, (kind, name))
            entries[option].append(entry)
    return entries


def _entry(kind: str, name: str, event: dict[str, Any] | None) -> dict[str, Any]:
    entry: dict[str, Any] = {"name" if kind == "import" else "soname": name}
    event = event or {"ok": False}
    error = event.get("error")
    entry["ok"] = bool(event["ok"])
    entry["path"] = event.get("path")
    if kind == "import":
        entry["version"] = event.get("version")
    entry["seconds"] = event.get("seconds")
    entry["error_type"] = error["type"] if error else None
    entry["error"] = error["message"] if error else None
    return entry


def _failure(kind: str, name: str, event: dict[str, Any]) -> Failure:
    error = event["error"]
    return Failure(attempt_of(kind, name), "\n".join(error["chain"]), error["path"], event.get("blocked", ()))


def _merged(problems: Sequence[Problem]) -> list[Problem]:
    """Return the problems, errors first; one that several loads run into is listed once."""
    kept: dict[tuple[Any, ...], Problem] = {}
    for entry in sorted(problems, key=lambda one: one["severity"] != "error"):
        where = tuple(entry["paths"]) if entry["kind"] == "access-denied" else entry["message"]
        key = (entry["kind"], entry["soname"] or where)
        kept.setdefault(key, entry)
    return list(kept.values())
