# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The controller's side of cuda_wheel_facts: reads the lock that the environment is compared with."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase

from ansible_collections.gpufleet.dflash.plugins.plugin_utils._controller_files import with_lock


class ActionModule(ActionBase):
    """Run the module with the lock's text."""

    _supports_check_mode = True
    _supports_async = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        task_vars = task_vars or {}
        arguments = with_lock(self, dict(self._task.args), task_vars)
        return self._execute_module(
            module_name="gpufleet.dflash.cuda_wheel_facts",
            module_args=arguments,
            task_vars=task_vars,
            wrap_async=self._task.async_val,
        )
