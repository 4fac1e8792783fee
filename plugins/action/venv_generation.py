# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The controller's side of venv_generation: reads the lock and the overlays, shows the plan, watches the build."""

from __future__ import annotations

import os
from typing import Any

from ansible.errors import AnsibleActionFail

from ansible_collections.gpufleet.dflash.plugins.module_utils._catalogue import library_directories
from ansible_collections.gpufleet.dflash.plugins.plugin_utils._controller_files import read_text, with_lock
from ansible_collections.gpufleet.dflash.plugins.plugin_utils._detached import DetachedAction, show_progress
from ansible_collections.gpufleet.dflash.plugins.plugin_utils._supply import Supply

_MODULE = "gpufleet.dflash.venv_generation"


class ActionModule(DetachedAction):
    """Plan on the host, evaluate markers here, build detached."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        task_vars = task_vars or {}
        arguments = self._with_contents(dict(self._task.args), task_vars)
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
            facts = self._supply(plan, expected, arguments, task_vars)
            if not self._task.check_mode:
                result = self.run_detached(_MODULE, arguments, task_vars, plan["progress_file"])
                if result.get("failed"):
                    return result
        return {**_complete(plan, expected, result), **facts}

    def _supply(
        self, plan: dict[str, Any], expected: dict[str, str], arguments: dict[str, Any], task_vars: dict[str, Any]
    ) -> dict[str, Any]:
        """Judge what is to be installed and, for a host without a network, bring the wheels there."""
        facts: dict[str, Any] = {"warnings": list(plan["advice"])}
        supply = Supply(self, arguments, plan)
        wanted = plan["install"] or (supply.making and plan["needs_uv"])
        if not wanted or not (supply.checking or supply.making):
            return facts
        host = task_vars.get("inventory_hostname", "")
        done = supply.check(expected)
        supply.refuse_shortage(done)
        facts["warnings"] += done.warnings
        facts["lock_check"] = {
            "pins": len(done.files),
            "wheels": len(done.wheels),
            "bytes": sum(known.contents.size[0] for known in done.wheels.values()),
            "skipped": done.skipped,
        }
        if supply.making and not self._task.check_mode:
            facts["copied"] = supply.bring(done, lambda line: show_progress(host, line))
        return facts

    def _with_contents(self, arguments: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        """Put the text of each file on the controller into the arguments for the host."""
        arguments = with_lock(self, arguments, task_vars)
        overlays = arguments.get("overlays")
        if isinstance(overlays, list) and all(isinstance(overlay, dict) for overlay in overlays):
            arguments["overlays"] = [
                {
                    "dest": overlay.get("dest"),
                    "content": read_text(self, overlay["src"], "an overlay", task_vars),
                }
                if isinstance(overlay.get("src"), str)
                else overlay
                for overlay in overlays
            ]
        return arguments


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
