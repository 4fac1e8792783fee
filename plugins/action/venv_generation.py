# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The controller's side of venv_generation: reads the lock and the overlays, shows the plan, watches the build."""

from __future__ import annotations

import os
from typing import Any

from ansible.errors import AnsibleActionFail

from ansible_collections.gpufleet.dflash.plugins.module_utils._catalogue import library_directories
from ansible_collections.gpufleet.dflash.plugins.plugin_utils._controller_files import (
    find,
    with_lock,
    with_overlays,
)
from ansible_collections.gpufleet.dflash.plugins.plugin_utils._detached import DetachedAction, show_progress
from ansible_collections.gpufleet.dflash.plugins.plugin_utils._supply import Supply

_MODULE = "gpufleet.dflash.venv_generation"


class ActionModule(DetachedAction):
    """Plan on the host, evaluate markers here, build detached."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        task_vars = task_vars or {}
        arguments = with_lock(self, dict(self._task.args), task_vars)
        arguments, overlays = with_overlays(self, arguments, task_vars)
        arguments, local_wheels = self._with_local_wheels(arguments, task_vars)
        plan = self.plan_module(_MODULE, arguments, task_vars)
        if plan.get("failed"):
            return plan
        if "requirements" not in plan:  # state: absent
            if plan.get("changed") and not self._task.check_mode:
                return self._execute_module(module_name=_MODULE, module_args=arguments, task_vars=task_vars)
            return plan
        expected = _expected(plan)
        facts: dict[str, Any] = {}
        result = plan
        if plan["changed"]:
            supply = Supply(self, arguments, plan, overlays, local_wheels)
            facts = self._supply(supply, plan, expected, task_vars)
            if not self._task.check_mode:
                result = self.run_detached(_MODULE, arguments, task_vars, plan["progress_file"])
                if result.get("failed"):
                    return result
        return {**_complete(plan, expected, result), **facts}

    def _supply(
        self, supply: Supply, plan: dict[str, Any], expected: dict[str, str], task_vars: dict[str, Any]
    ) -> dict[str, Any]:
        """Judge what is to be installed, and bring to the host what it cannot get by itself."""
        facts: dict[str, Any] = {"warnings": list(plan["advice"])}
        if not supply.judges and not supply.brings:
            return facts
        done = supply.check(expected)
        supply.refuse_shortage(done)
        if supply.judges:
            facts["warnings"] += done.warnings
            facts["lock_check"] = {
                "pins": len(done.files),
                "wheels": len(done.wheels),
                "bytes": sum(known.contents.size[0] for known in done.wheels.values()),
                "skipped": done.skipped,
            }
        if supply.brings and not self._task.check_mode:
            host = task_vars.get("inventory_hostname", "")
            facts["copied"] = supply.bring(done, lambda line: show_progress(host, line))
        return facts

    def _with_local_wheels(
        self, arguments: dict[str, Any], task_vars: dict[str, Any]
    ) -> tuple[dict[str, Any], str | None]:
        """Return the arguments, and where the folder of ``local_wheels`` is."""
        name = arguments.get("local_wheels")
        if not isinstance(name, str) or not name:
            return arguments, None
        folder = find(self, name, "the folder of local_wheels", task_vars, folder=True)
        # The host need not know where it lies on somebody's controller.
        return {**arguments, "local_wheels": os.path.basename(os.path.normpath(name))}, folder


def _expected(plan: dict[str, Any]) -> dict[str, str]:
    """Return {name: version} of what the generation will hold."""
    if plan["requirements"] or "base" not in plan:
        return _applicable(plan)
    return dict(plan["base"]["distributions"])


def _applicable(plan: dict[str, Any]) -> dict[str, str]:
    """Return {name: version} of the lock's entries that the host's Python installs."""
    # Ansible itself needs this library on the controller; only its own import test has to do without.
    from packaging import markers as pep508  # pylint: disable=import-outside-toplevel

    unusable = (pep508.InvalidMarker, pep508.UndefinedComparison, pep508.UndefinedEnvironmentName)

    chosen = {}
    for name, version, marker in plan["requirements"]:
        try:
            if marker is None or pep508.Marker(marker).evaluate(dict(plan["python"]["markers"])):
                chosen[name] = version
        except unusable as error:
            message = str(error).splitlines()[0]
            raise AnsibleActionFail(
                f"the marker of {name} in the lock cannot be read: '{marker}': {message}"
            ) from error
    return chosen


def _complete(plan: dict[str, Any], expected: dict[str, str], result: dict[str, Any]) -> dict[str, Any]:
    """Return the task's result: one form for a plan, a build and an environment that was there."""
    manifest = result.get("manifest")
    site = plan["site_packages"]
    directories = manifest["library_directories"] if manifest else library_directories(expected)
    python = {key: value for key, value in plan["python"].items() if key != "markers"}
    answer = {
        "changed": plan["changed"],
        "id": plan["id"],
        "path": plan["path"],
        "site_packages": site,
        "python": python,
        "distributions": manifest["distributions"] if manifest else expected,
        "library_path": [os.path.join(site, directory) for directory in directories],
        "seconds": manifest["seconds"] if manifest and plan["changed"] else 0.0,
        "invocation": result.get("invocation"),
    }
    if "base" in plan and plan["changed"]:
        answer["adopted"] = {
            "path": plan["base"]["path"],
            "reinstalled": plan["reinstalled"],
            "removed": plan["removed"],
        }
    if plan["changed"]:
        after = {"id": plan["id"], "distributions": expected, "overlays": plan["overlays"]}
        answer["diff"] = {
            "before_header": "newest generation",
            "before": _listing(plan["before"]),
            "after_header": plan["path"],
            "after": _listing(after),
        }
    return answer


def _listing(content: dict[str, Any] | None) -> str:
    if not content:
        return ""
    lines = [f"generation {content['id']}"]
    lines += [f"{name}=={version}" for name, version in sorted(content["distributions"].items())]
    lines += [f"overlay {path} sha256:{digest[:16]}" for path, digest in sorted(content["overlays"].items())]
    return "\n".join(lines) + "\n"
