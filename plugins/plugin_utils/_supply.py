# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What venv_generation does on the controller about files: judge the lock, fetch, copy. Private to the collection."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Callable

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ansible_collections.gpufleet.dflash.plugins.module_utils import _space
from ansible_collections.gpufleet.dflash.plugins.module_utils._uv import UV_HASHES, UV_VERSION
from ansible_collections.gpufleet.dflash.plugins.module_utils._wheel_store import lacking_message, store_of
from ansible_collections.gpufleet.dflash.plugins.plugin_utils._controller_files import HashedFile
from ansible_collections.gpufleet.dflash.plugins.plugin_utils._index import (
    Indexes,
    IndexFile,
    PackageIndexError,
    default_index,
)
from ansible_collections.gpufleet.dflash.plugins.plugin_utils._local_wheels import wheels_in
from ansible_collections.gpufleet.dflash.plugins.plugin_utils._lock_check import Checked, Pin, Target, check
from ansible_collections.gpufleet.dflash.plugins.plugin_utils._transfer import copy_files
from ansible_collections.gpufleet.dflash.plugins.plugin_utils._wheelhouse import WheelhouseError, fetch

_UV_PIN = Pin("uv", UV_VERSION, UV_HASHES)


class Supply:
    """What one plan needs on its host: where it comes from, whether it can work, and how it gets there."""

    def __init__(
        self,
        action: ActionBase,
        options: Mapping[str, Any],
        plan: Mapping[str, Any],
        overlays: Sequence[HashedFile],
        local_wheels: str | None,
    ) -> None:
        self._action, self._options, self._plan = action, options, plan
        self._cache = os.path.expanduser(str(options.get("wheel_cache") or "~/.cache/gpufleet.dflash"))
        self._target = Target(plan["python"])
        self._overlays, self._folder = overlays, local_wheels
        self._local: dict[str, list[IndexFile]] = {}
        self._indexes: Indexes | None = None
        self._making = _flag(options.get("make_wheelhouse"), False)
        self._checking = _flag(options.get("check_lock"), True)

    @property
    def judges(self) -> bool:
        """Whether there are wheels to be installed that somebody wants to know about beforehand."""
        wanted = self._plan["install"] or (self._making and self._plan["needs_uv"])
        return bool(wanted) and (self._checking or self._making)

    @property
    def brings(self) -> bool:
        """Whether there may be files to copy to the host."""
        return self._making or bool(self._overlays) or self._folder is not None

    def check(self, applicable: Mapping[str, str]) -> Checked:
        """Judge what of the lock is to be installed; raises AnsibleActionFail with everything that is wrong."""
        pins = [
            Pin(name, version, tuple(hashes))
            for name, version, _marker, hashes in self._plan["install"]
            if applicable.get(name) == version
        ]
        installer = [_UV_PIN] if self._plan["needs_uv"] else []
        if self._folder is not None:
            self._local = wheels_in(self._folder, pins, installer)
        if self._making or any(self._target.rank(file.name) is not None for file in self._local.get(_UV_PIN.text, ())):
            pins += installer
        indexes, why_none = self._asked() if pins else (None, "")
        if indexes is None and not self._local:
            return self._without_gaps(Checked([], [], {}, {}, why_none))
        driver, overlays = self._plan["driver"], self._plan["overlays"]
        done = check(pins, self._target, indexes, self._cache, driver, overlays, self._local)
        if indexes is None and len(done.files) < len(pins):
            done = done._replace(skipped=why_none)
        if done.errors and self._checking:
            raise AnsibleActionFail("the lock cannot work on this host: " + "\n".join(done.errors))
        if self._making and len(done.files) < len(pins):
            lacking = [pin.text for pin in pins if pin.text not in done.files]
            raise AnsibleActionFail(
                f"the wheels cannot be fetched on the controller: {', '.join(lacking[:5])}: "
                + (done.skipped or "; ".join(done.errors))
            )
        return self._without_gaps(done)

    def _without_gaps(self, done: Checked) -> Checked:
        """Refuse what the host lacks when it asks no index and nothing here can be copied there."""
        lacking = [pin for pin in self._plan["lacking"] if pin not in done.files]
        if lacking:
            raise AnsibleActionFail(lacking_message(lacking, self._options.get("wheelhouse"), True))
        return done

    def refuse_shortage(self, done: Checked) -> None:
        """Fail when what is known of the sizes of wheels does not fit on the host's disk."""
        space = self._plan["space"]
        there = {_UV_PIN.text, *self._plan["on_host"]}
        sizes = {pin: known.contents.size for pin, known in done.wheels.items() if pin not in there}
        need = _space.Need(*space["need"]).plus(_space.need_of(sizes, sizes, self._plan["present"]))
        stored = set(self._plan["stored"])
        copied = [
            file.size or 0
            for pin, file in done.files.items()
            if (self._making or self._is_local(pin, file)) and not _digests(file.hashes) & stored
        ]
        need = need.plus(_space.Need(sum(copied), len(copied)))
        words = _space.shortage(str(self._options.get("root") or "/opt/dflash"), need, _space.Room(*space["room"]))
        if words:
            raise AnsibleActionFail(words)

    def bring(self, done: Checked, progress: Callable[[str], None]) -> dict[str, int]:
        """Fetch what the controller lacks and copy what the host lacks; returns how many files and bytes were sent."""
        local = {pin: file for pin, file in done.files.items() if self._is_local(pin, file)}
        files = [HashedFile(min(_digests(file.hashes)), file.url) for file in local.values()]
        if self._making:
            hashes = {f"{row[0]}=={row[1]}": tuple(row[3]) for row in self._plan["install"]}
            hashes[_UV_PIN.text] = UV_HASHES
            wanted = {pin: (file, hashes[pin]) for pin, file in done.files.items() if pin not in local}
            try:
                files += fetch(wanted, self._open(), self._cache, progress) if wanted else []
            except WheelhouseError as error:
                raise AnsibleActionFail(str(error)) from error
        root = os.path.dirname(os.path.dirname(str(self._plan["path"])))
        lacking = [file for file in (*files, *self._overlays) if file.sha256 not in self._plan["stored"]]
        return copy_files(self._action, lacking, store_of(root), progress)

    def _is_local(self, pin: str, file: IndexFile) -> bool:
        return file in self._local.get(pin, ())

    def _asked(self) -> tuple[Indexes | None, str]:
        """The indexes that are asked; why none is."""
        if not self._making and (self._options.get("wheelhouse") or _flag(self._options.get("no_index"), False)):
            return None, "the wheels come from a folder of the host"
        if not self._making and not self._checking:
            return None, "check_lock is not set"
        if not self._address():
            return None, "no index is known on the controller: give index_url"
        return self._open(), ""

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
