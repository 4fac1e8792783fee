# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The whole of sglang_inputs: it judges variables on the controller, and asks no host."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from ansible.plugins.action import ActionBase

from ansible_collections.gpufleet.dflash.plugins.plugin_utils._controller_files import read_text
from ansible_collections.gpufleet.dflash.plugins.plugin_utils._inputs import (
    PREFIXES,
    ROLE_LISTS,
    ROLE_MAPPINGS,
    instance_mistakes,
    lock_mistakes,
    near_misses,
    variable_mistakes,
)

_ROLES = Path(__file__).resolve().parents[2] / "roles"
_ARGUMENT_SPEC = {
    "instances": {"type": "raw"},
    "absent": {"type": "raw"},
    "protect_home": {"type": "bool", "default": True},
    "lock": {"type": "raw"},
    "distribution": {"type": "str"},
    "engine": {"type": "str"},
}


class ActionModule(ActionBase):
    """Refuse what cannot work, with all mistakes at once."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        task_vars = task_vars or {}
        _validation, options = self.validate_argument_spec(argument_spec=_ARGUMENT_SPEC)
        given = {
            name: self._templar.template(task_vars[name]) for name in (*ROLE_LISTS, *ROLE_MAPPINGS) if name in task_vars
        }
        mistakes = variable_mistakes(given)
        if "instances" in self._task.args:
            host = str(task_vars.get("inventory_hostname", "the host"))
            mistakes += instance_mistakes(options["instances"], options["absent"], options["protect_home"], host)
            result["warnings"] = near_misses((name for name in task_vars if name.startswith(PREFIXES)), _known())
        if "lock" in self._task.args:
            mistakes += self._lock_mistakes(options, task_vars)
        if mistakes:
            result.update(failed=True, msg="\n".join(mistakes))
        return {"changed": False, **result}

    def _lock_mistakes(self, options: dict[str, Any], task_vars: dict[str, Any]) -> list[str]:
        lock = options["lock"]
        if not isinstance(lock, str) or not lock.strip():
            return ["set cuda_runtime_lock to a lock, such as locks/cu13-torch2.11-sglang0.5.11.txt"]
        text = read_text(self, lock, "the lock", task_vars)
        return lock_mistakes(text, lock, options["distribution"], options["engine"] or "")


def _known() -> Iterator[str]:
    """Yield the names of the variables that the roles document."""
    for path in sorted(_ROLES.glob("*/meta/argument_specs.yml")):
        for entry in yaml.safe_load(path.read_text(encoding="utf-8"))["argument_specs"].values():
            yield from entry.get("options", {})
