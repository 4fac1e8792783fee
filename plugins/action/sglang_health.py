# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The controller's side of sglang_health: shows its progress where that is asked for."""

from __future__ import annotations

import secrets
import sys
from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean

from ansible_collections.gpufleet.dflash.plugins.plugin_utils._detached import DetachedAction

_MODULE = "gpufleet.dflash.sglang_health"
# Asked when this file is loaded, in the main process: those that run actions have no terminal.
_ON_TERMINAL = sys.stderr.isatty()


class ActionModule(DetachedAction):
    """Run the module, watched from here or not."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        task_vars = task_vars or {}
        arguments = dict(self._task.args)
        arguments.pop("progress_file", None)
        wanted = arguments.get("progress")
        if not (wanted and boolean(wanted, strict=False)):
            return self._execute_module(module_name=_MODULE, module_args=arguments, task_vars=task_vars)
        # A name that nobody can foresee: the file is made by root in a folder of root's.
        arguments["progress_file"] = f"/run/.dflash-watch-{secrets.token_hex(8)}"
        # One line that is renewed where a person looks at one host; else a line for each change.
        self.in_place = _ON_TERMINAL and len(task_vars.get("ansible_play_batch") or []) == 1
        with self._task_field("check_mode", False):  # it changes nothing, and Ansible starts no such work in check mode
            return self.run_detached(_MODULE, arguments, task_vars, arguments["progress_file"])
