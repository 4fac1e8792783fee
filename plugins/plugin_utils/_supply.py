# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What venv_generation does on the controller about wheels: judge the lock, fetch, copy. Private to the collection."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Callable

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ansible_collections.gpufleet.dflash.plugins.module_utils import _space
from ansible_collections.gpufleet.dflash.plugins.module_utils._uv import UV_HASHES, UV_VERSION
from ansible_collections.gpufleet.dflash.plugins.module_utils._wheel_store import store_of
from ansible_collections.gpufleet.dflash.plugins.plugin_utils._index import (
    Indexes,
    PackageIndexError,
    default_index,
)
from ansible_collections.gpufleet.dflash.plugins.plugin_utils._lock_check import Checked, Pin, Target, check
from ansible_collections.gpufleet.dflash.plugins.plugin_utils._transfer import copy_wheels
from ansible_collections.gpufleet.dflash.plugins.plugin_utils._wheelhouse import WheelhouseError, fetch

_UV_PIN = Pin("uv", UV_VERSION, UV_HASHES)


class Supply:
    """The wheels of one plan: where they come from, whether they can work, and how they get to the host."""

    def __init__(self, action: ActionBase, options: Mapping[str, Any], plan: Mapping[str, Any]) -> None:
        self._action, self._options, self._plan = action, options, plan
        self._cache = os.path.expanduser(str(options.get("wheel_cache") or "~/.cache/gpufleet.dflash"))
        self._target = Target(plan["python"])
        self._indexes: Indexes | None = None
        self.making = _flag(options.get("make_wheelhouse"), False)
        self.checking = _flag(options.get("check_lock"), True)

    def check(self, applicable: Mapping[str, str]) -> Checked:
        """Judge what of the lock is to be installed; raises AnsibleActionFail with everything that is wrong."""
        pins = [
            Pin(name, version, tuple(hashes))
            for name, version, _marker, hashes in self._plan["install"]
            if applicable.get(name) == version
        ]
        if self.making and self._plan["needs_uv"]:
            pins.append(_UV_PIN)
        if not self.making and (self._options.get("wheelhouse") or _flag(self._options.get("no_index"), False)):
            return Checked([], [], {}, {}, "the wheels come from a folder of the host")
        if not self._address():
            return Checked([], [], {}, {}, "no index is known on the controller: give index_url")
        done = check(pins, self._target, self._open(), self._cache, self._plan["driver"], self._plan["overlays"])
        if done.errors and self.checking:
            raise AnsibleActionFail("the lock cannot work on this host: " + "\n".join(done.errors))
        if self.making and len(done.files) < len(pins):
            lacking = [pin.text for pin in pins if pin.text not in done.files]
            raise AnsibleActionFail(
                f"the wheels cannot be fetched on the controller: {', '.join(lacking[:5])}: "
                + (done.skipped or "; ".join(done.errors))
            )
        return done

    def refuse_shortage(self, done: Checked) -> None:
        """Fail when what the indexes tell of the sizes does not fit on the host's disk."""
        space = self._plan["space"]
        sizes = {pin: known.contents.size for pin, known in done.wheels.items() if pin != _UV_PIN.text}
        need = _space.Need(*space["need"]).plus(_space.need_of(sizes, sizes, self._plan["present"]))
        if self.making:
            stored = set(self._plan["stored"])
            there = [file.size or 0 for file in done.files.values() if not _digests(file.hashes) & stored]
            need = need.plus(_space.Need(sum(there), len(there)))
        words = _space.shortage(str(self._options.get("root") or "/opt/dflash"), need, _space.Room(*space["room"]))
        if words:
            raise AnsibleActionFail(words)

    def bring(self, done: Checked, progress: Callable[[str], None]) -> dict[str, int]:
        """Fetch what the controller lacks and copy what the host lacks."""
        hashes = {f"{row[0]}=={row[1]}": tuple(row[3]) for row in self._plan["install"]}
        hashes[_UV_PIN.text] = UV_HASHES
        wanted = {pin: (file, hashes[pin]) for pin, file in done.files.items()}
        try:
            wheels = fetch(wanted, self._open(), self._cache, progress)
        except WheelhouseError as error:
            raise AnsibleActionFail(str(error)) from error
        root = os.path.dirname(os.path.dirname(str(self._plan["path"])))
        lacking = [wheel for wheel in wheels if wheel.sha256 not in self._plan["stored"]]
        return copy_wheels(self._action, lacking, store_of(root), progress)

    def _address(self) -> str | None:
        given = self._options.get("index_url")
        if given:
            return str(given)
        try:
            return default_index()
        except PackageIndexError:
            return None

    def _open(self) -> Indexes:
        if self._indexes is None:
            extra = self._options.get("extra_index_urls") or []
            urls = [self._address() or "", *([extra] if isinstance(extra, str) else extra)]
            try:
                self._indexes = Indexes([str(url) for url in urls])
            except PackageIndexError as error:
                raise AnsibleActionFail(str(error)) from error
        return self._indexes


def _digests(hashes: tuple[str, ...]) -> set[str]:
    return {text.partition(":")[2] for text in hashes}


def _flag(value: Any, default: bool) -> bool:
    """An option as the module will read it; what is no boolean is left to the module to refuse."""
    if value is None:
        return default
    return str(value).strip().lower() in ("1", "true", "yes", "on", "y", "t")
