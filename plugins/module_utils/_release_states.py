# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the module sglang_release does for each of its states. Private to the collection."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from typing import Any, Callable

from ansible_collections.gpufleet.dflash.plugins.module_utils._exports import Exports
from ansible_collections.gpufleet.dflash.plugins.module_utils._gate import Gate
from ansible_collections.gpufleet.dflash.plugins.module_utils._history import History
from ansible_collections.gpufleet.dflash.plugins.module_utils._hooks import HookError, hooks_of
from ansible_collections.gpufleet.dflash.plugins.module_utils._progress import progress_to
from ansible_collections.gpufleet.dflash.plugins.module_utils._release import (
    Instance,
    Release,
    ReleaseError,
    check_release_name,
    health_spec,
    holds,
    instances_below,
    is_staged,
    make_release,
    release_of_unit,
    stage,
    staged_releases,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._remove import leftovers, remove_instance
from ansible_collections.gpufleet.dflash.plugins.module_utils._sandbox_paths import hidden_paths
from ansible_collections.gpufleet.dflash.plugins.module_utils._switch import Switch, SwitchError, stop_timeout
from ansible_collections.gpufleet.dflash.plugins.module_utils._switch_plan import describe
from ansible_collections.gpufleet.dflash.plugins.module_utils._systemd import Systemd
from ansible_collections.gpufleet.dflash.plugins.module_utils._validate import user_exists, validate_arguments

Result = dict[str, Any]


def staged(options: Mapping[str, Any], check_mode: bool) -> Result:
    """Put a release in its place. The diff is against the unit that systemd has."""
    instance = Instance.named(options["root"], options["name"])
    release = make_release(
        options["unit"],
        options["generation"],
        options["engine"],
        options["health"],
        options["validate"],
        _hooks(options),
        _secrets(options),
    )
    health_spec(instance, release)
    Exports.from_options(options)  # only looks for the folders: what is missing there would stop the switch
    history = History(instance.history_path)
    if not history.is_verified(release.id):
        _refuse_hidden(release, instance)
    # In check mode the user may be among what a run would make first.
    present = (user_exists(release.unit) or not check_mode) and holds(instance, release)
    # In check mode the generation or the user may be among what a run would make first.
    if not present and (not check_mode or (os.path.isdir(release.generation) and user_exists(release.unit))):
        validate_arguments(release.validate, release.unit, instance.unit)
    if not present and not check_mode:
        stage(instance, release)
    installed = instance.installed_unit()
    result: Result = {
        "changed": not present,
        "release": release.id,
        "unit": instance.unit,
        "unit_file": os.path.join(instance.release_folder(release.id), instance.unit),
        "verified": history.is_verified(release.id),
    }
    if installed != release.unit:
        result["diff"] = {
            "before_header": f"{instance.unit} of {release_of_unit(installed) or 'no release'}",
            "before": installed,
            "after_header": f"{instance.unit} of {release.id}",
            "after": release.unit,
        }
    return result


def _refuse_hidden(release: Release, instance: Instance) -> None:
    """Raise ReleaseError for a model or another path of the command that the unit's sandbox hides."""
    for path, real in hidden_paths(release.unit, release.validate[1:]):
        where = path if path == real else f"{path}, which leads to {real},"
        raise ReleaseError(
            f"{where} cannot be seen by {instance.unit}, whose sandbox hides /home, /root and /run/user: nothing was "
            "touched: keep it elsewhere, such as /srv, or set sglang_dflash_protect_home: false"
        )


def _hooks(options: Mapping[str, Any]) -> dict[str, Any]:
    hooks = {moment: given for moment, given in (options["hooks"] or {}).items() if given}
    unknown = sorted(set(hooks) - {"pre_stop", "post_start"})
    if unknown:
        raise ReleaseError(f"unknown moment of hooks: {unknown[0]}: there are pre_stop and post_start")
    try:
        for moment in hooks:
            hooks_of(hooks, moment)
    except HookError as error:
        raise ReleaseError(str(error)) from error
    return hooks


def _secrets(options: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    for name, value in (options["secrets"] or {}).items():
        if value is None or value == "":
            continue
        # HTTP headers carry nothing else unharmed.
        if not isinstance(value, str) or not value.isprintable() or not value.isascii():
            raise ReleaseError(f"not a usable secret: secrets.{name}: give one line of ASCII text, in quotes")
        found[name] = value
    return found


def active(options: Mapping[str, Any], check_mode: bool) -> Result:
    """Make the instance run a release."""
    instance = Instance.named(options["root"], options["name"])
    return _switch(instance, options["release"], options, check_mode, rollback=False)


def previous(options: Mapping[str, Any], check_mode: bool) -> Result:
    """Go back to the release verified before, or to a named one."""
    instance = Instance.named(options["root"], options["name"])
    release = options["release"] or Switch(instance, _silent).previous()
    staged_here = staged_releases(instance)
    if release not in staged_here:
        raise ReleaseError(f"no such release of {instance.name}: {release}: {_choice(instance, staged_here)}")
    return _switch(instance, release, options, check_mode, rollback=True)


def _choice(instance: Instance, names: Sequence[str]) -> str:
    """Return in words which of the releases on disk somebody can go back to, the one verified last first."""
    history, installed = History(instance.history_path), release_of_unit(instance.installed_unit())
    verified = [name for name in history.verified_releases() if name in names]
    marks = {name: "verified" if name in verified else "not verified" for name in [*verified, *sorted(names)]}
    listed = [f"{name} ({mark}{', installed now' if name == installed else ''})" for name, mark in marks.items()]
    if not listed:
        return "none is on this host: deploy one"
    return f"use one of {', '.join(listed)}; {instance.history_path} tells when each of them ran"


def absent(options: Mapping[str, Any], check_mode: bool) -> Result:
    """Take the instance off the host."""
    instance = Instance.named(options["root"], options["name"])
    systemd = Systemd()
    found = leftovers(instance, systemd)
    # The instance's own folder goes: progress is told beside it.
    progress_file = os.path.join(os.path.dirname(instance.folder), f".removing-{instance.name}")
    result: Result = {"changed": bool(found), "unit": instance.unit, "removed": found, "progress_file": progress_file}
    if found:
        result["diff"] = {"before": "".join(f"{path}\n" for path in found), "after": ""}
    near = [] if found else difflib.get_close_matches(instance.name, instances_below(instance.root), 1, 0.8)
    if near:
        # What was removed by an earlier run is named for good in some inventories: only what looks mistyped is told.
        result["warnings"] = [f"there is nothing of {instance.name} to take away; there is {near[0]}: check the name"]
    if found and not check_mode:
        text = instance.installed_unit()
        systemd.timeout = max(systemd.timeout, 60 + stop_timeout(text))
        with progress_to(progress_file) as progress:
            remove_instance(instance, systemd, progress)
    return result


def _switch(instance: Instance, release: str, options: Mapping[str, Any], check_mode: bool, rollback: bool) -> Result:
    check_release_name(release)
    gate, exports, warnings = _beside(options, rollback)
    switch = Switch(instance, _silent)
    try:
        plan, report = switch.plan(release)
    except SwitchError as error:
        return _failure(error)
    result: Result = {
        "changed": plan.changed,
        "release": release,
        "unit": instance.unit,
        "verified": not plan.changed or not check_mode,
        "reasons": list(plan.reasons),
        "progress_file": instance.progress_path,
        "warnings": warnings,
    }
    if report:
        result["health"] = report.to_mapping()
    if plan.changed:
        result["diff"] = describe(plan, switch.observe(), switch.history.is_verified)
    if not plan.changed:
        written = exports.refresh(instance, dry=check_mode) if exports else []
        if written:
            paths = "".join(f"{path}\n" for path in written)
            result = {
                **result,
                "changed": True,
                "diff": {"before": "", "after": f"files for Prometheus, written or removed:\n{paths}"},
            }
        return {**result, "exports": written}
    if check_mode:
        if is_staged(instance, release):
            switch.validate(release)
        return {**result, "exports": []}
    with progress_to(instance.progress_path) as progress:
        try:
            report = Switch(instance, progress, gate=gate).activate(release, rollback)
        except SwitchError as error:
            _export(exports, instance, progress)
            return {**_failure(error), "changed": True, "diff": result["diff"]}
        return {**result, "health": report.to_mapping(), "exports": _export(exports, instance, progress)}


def _beside(options: Mapping[str, Any], rollback: bool) -> tuple[Gate, Exports | None, list[str]]:
    """Return how to measure and what to tell Prometheus; mistakes in either stop a deploy, and no way back."""
    warnings = []
    try:
        gate = Gate.from_options(options["probe"], options["max_regression"])
    except ValueError as error:
        if not rollback:
            raise ReleaseError(str(error)) from error
        gate = Gate()
        warnings.append(f"nothing is measured: {error}")
    try:
        exports: Exports | None = Exports.from_options(options)
    except ReleaseError as error:
        if not rollback:
            raise
        exports = None
        warnings.append(f"Prometheus is not told: {error}")
    return gate, exports, warnings


def _export(exports: Exports | None, instance: Instance, progress: Callable[[str], None]) -> list[str]:
    """Write the files for Prometheus after a switch; what became of the service matters more than they do."""
    try:
        return exports.refresh(instance) if exports else []
    except OSError as error:
        progress(f"{error.filename}: {error.strerror}: not told to Prometheus")
        return []


def _failure(error: SwitchError) -> Result:
    return {
        "failed": True,
        "msg": str(error),
        "changed": False,
        "failed_health": error.failed.to_mapping() if error.failed else None,
        "restored_health": error.restored.to_mapping() if error.restored else None,
    }


def _silent(_line: str) -> None:
    """Progress that nobody watches: planning is quick."""


STATES: dict[str, Callable[[Mapping[str, Any], bool], Result]] = {
    "staged": staged,
    "active": active,
    "previous": previous,
    "absent": absent,
}
