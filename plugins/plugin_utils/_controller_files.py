# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read files of the controller that a module on the host needs the text of. Private to the collection."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.plugins.action import ActionBase


def with_lock(action: ActionBase, arguments: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments with the text of ``lock`` in ``lock_content``.

    Raises AnsibleActionFail for a lock that cannot be read, or is given twice.
    """
    if not isinstance(arguments.get("lock"), str):
        return arguments
    if arguments.get("lock_content") is not None:
        raise AnsibleActionFail("lock and lock_content exclude each other: give one of them")
    return {
        **arguments,
        "lock_content": read_text(action, arguments["lock"], "the lock", task_vars),
        # Only for messages: what the file is called, not where it lies on somebody's controller.
        "lock": os.path.basename(arguments["lock"]),
    }


def read_text(action: ActionBase, name: str, what: str, task_vars: dict[str, Any]) -> str:
    """The text of a file, looked for beside the inventory first, then as a task's ``files``.

    ``what`` names it in the message. Raises AnsibleActionFail.
    """
    inventory = task_vars.get("inventory_dir") or ""
    beside = [Path(inventory, folder, name) for folder in ("files", "") if inventory]
    try:
        path = next((path for path in beside if path.is_file()), None) or action._find_needle("files", name)
        return Path(path).read_bytes().decode("utf-8-sig")
    except AnsibleError as error:
        places = ", ".join(str(path.parent) for path in beside)
        raise AnsibleActionFail(
            f"{what} is not there: {name}: looked in {places or 'no inventory directory'}, in files of the "
            "playbook and the roles: put it there, or give its whole path"
        ) from error
    except OSError as error:
        raise AnsibleActionFail(f"{what} cannot be read on the controller: {name}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise AnsibleActionFail(f"{what} is not a text file: {name}: byte {error.start} is not UTF-8") from error
