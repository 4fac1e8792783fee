# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The controller's side of sglang_release: shows the plan, then watches the switch, which does not depend on it."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleConnectionFailure

from ansible_collections.gpufleet.dflash.plugins.plugin_utils._detached import DetachedAction

_MODULE = "gpufleet.dflash.sglang_release"


class ActionModule(DetachedAction):
    """Plan on the host, then switch detached."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        task_vars = task_vars or {}
        arguments = dict(self._task.args)
        if arguments.get("state", "active") == "staged":
            return self._execute_module(module_name=_MODULE, module_args=arguments, task_vars=task_vars)
        try:
            result = self.plan_module(_MODULE, arguments, task_vars)
        except AnsibleConnectionFailure as error:
            # A host that is lost while it is its turn is a failure: Ansible would go on with the next one.
            return {"failed": True, "msg": f"the host cannot be reached when it is its turn: {error}"}
        if result.get("changed") and not result.get("failed") and not self._task.check_mode:
            result = self.run_detached(_MODULE, arguments, task_vars, result["progress_file"])
        result.pop("progress_file", None)
        return result
