# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A folder of the controller with wheels that no index needs to have. Private to the collection."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ansible.errors import AnsibleActionFail

from ansible_collections.gpufleet.dflash.plugins.module_utils._lock import LockEntry
from ansible_collections.gpufleet.dflash.plugins.module_utils._recipe import GenerationError
from ansible_collections.gpufleet.dflash.plugins.module_utils._wheel_store import wheels_of
from ansible_collections.gpufleet.dflash.plugins.plugin_utils._controller_files import sha256_of
from ansible_collections.gpufleet.dflash.plugins.plugin_utils._index import IndexFile
from ansible_collections.gpufleet.dflash.plugins.plugin_utils._lock_check import Pin

_WHAT = "a wheel of local_wheels"


def wheels_in(folder: str, pins: Sequence[Pin], besides: Sequence[Pin] = ()) -> dict[str, list[IndexFile]]:
    """Return {pin: files} of the wheels in a folder whose hashes the pins have; ``url`` is the path of the file.

    Raises AnsibleActionFail for a folder or a wheel that cannot be read, and for a pin of which the folder has wheels,
    but none with a hash of the lock. ``besides`` are pins that are in no lock; of these that is no error.
    """
    entries = [LockEntry(pin.name, pin.version, None, pin.hashes) for pin in (*pins, *besides)]
    try:
        named = wheels_of(folder, entries, "the folder of local_wheels")
    except GenerationError as error:
        raise AnsibleActionFail(str(error)) from error
    found = {}
    for pin in (*pins, *besides):
        files = [_described(path) for path in named.get(pin.text, [])]
        locked = [file for file in files if set(file.hashes) & set(pin.hashes)]
        if files and not locked and pin not in besides:
            raise AnsibleActionFail(
                f"{_WHAT} is not the one that the lock has: {files[0].url}: it has {files[0].hashes[0]}, {pin.text} "
                "has another hash in the lock: take it away, or write lock and wheels anew (lock_from_reference)"
            )
        if locked:
            found[pin.text] = locked
    return found


def _described(path: str) -> IndexFile:
    digest = sha256_of(path, _WHAT)
    return IndexFile(os.path.basename(path), path, (f"sha256:{digest}",), os.path.getsize(path), None, None)
