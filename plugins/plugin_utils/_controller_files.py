# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files of the controller that a module on the host needs: where, and what is in them. Private to the collection."""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path
from typing import Any, NamedTuple

from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.plugins.action import ActionBase

from ansible_collections.gpufleet.dflash.plugins.module_utils._paths import open_regular
from ansible_collections.gpufleet.dflash.plugins.module_utils._wheel_store import OVERLAY

# A larger text is copied like any other file: arguments of a module are held in memory several times on their way.
_TEXT_LIMIT = 1 << 18
_CHUNK = 1 << 20
# How a file begins that stands for a large one of a repository.
_POINTER = "version https://git-lfs.github.com/spec/"


class HashedFile(NamedTuple):
    """A file of the controller that goes into a host's store, where it is called ``stored_as``, or as it is here."""

    sha256: str
    path: str
    stored_as: str = ""

    @property
    def name(self) -> str:
        """Its file name."""
        return os.path.basename(self.path)

    @property
    def size(self) -> int:
        """Its size in bytes."""
        return os.path.getsize(self.path)


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


def with_overlays(
    action: ActionBase, arguments: dict[str, Any], task_vars: dict[str, Any]
) -> tuple[dict[str, Any], list[HashedFile]]:
    """Return the arguments without ``src`` in ``overlays``, and the files that have to get into the host's store.

    A short text stands in ``content``, exactly as it is in the file; of every other file the module gets the hash.
    Raises AnsibleActionFail for a file that cannot be read.
    """
    overlays = arguments.get("overlays")
    if not isinstance(overlays, list) or not all(isinstance(overlay, dict) for overlay in overlays):
        return arguments, []  # the module says what is wrong with them
    changed, files = [], []
    for overlay in overlays:
        if not isinstance(overlay.get("src"), str):
            changed.append(overlay)
            continue
        path = find(action, overlay["src"], "an overlay", task_vars)
        text, digest, size = _read(path, "an overlay")
        if text is not None and text.startswith(_POINTER):
            raise AnsibleActionFail(
                f"an overlay is a pointer of Git LFS and not the file: {path}: fetch the files (git lfs pull)"
            )
        if text is None:
            files.append(HashedFile(digest, path, OVERLAY))
        content = {"sha256": digest, "size": size} if text is None else {"content": text}
        changed.append({**{key: value for key, value in overlay.items() if key != "src"}, **content})
    return {**arguments, "overlays": changed}, files


def find(action: ActionBase, name: str, what: str, task_vars: dict[str, Any], folder: bool = False) -> str:
    """The path of a file, or of a folder, looked for beside the inventory first, then as a task's ``files``.

    ``what`` names it in the message. Raises AnsibleActionFail.
    """
    inventory = task_vars.get("inventory_dir") or ""
    beside = [Path(inventory, place, name) for place in ("files", "") if inventory]
    there = [path for path in beside if (path.is_dir() if folder else path.is_file())]
    try:
        return str(there[0] if there else action._find_needle("files", name))
    except AnsibleError as error:
        places = ", ".join(str(path.parent) for path in beside)
        raise AnsibleActionFail(
            f"{what} is not there: {name}: looked in {places or 'no inventory directory'}, in files of the "
            "playbook and the roles: put it there, or give its whole path"
        ) from error


def read_text(action: ActionBase, name: str, what: str, task_vars: dict[str, Any]) -> str:
    """The text of a file that ``find`` finds. Raises AnsibleActionFail."""
    path = find(action, name, what, task_vars)
    try:
        return Path(path).read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise AnsibleActionFail(f"{what} cannot be read on the controller: {name}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise AnsibleActionFail(f"{what} is not a text file: {name}: byte {error.start} is not UTF-8") from error


def sha256_of(path: str, what: str) -> str:
    """The SHA-256 (hex) of a file. ``what`` names it in the message. Raises AnsibleActionFail."""
    return _read(path, what)[1]


def _read(path: str, what: str) -> tuple[str | None, str, int]:
    """The text of a file, its SHA-256 and its size; None for the text of what is long, or no text."""
    digest = hashlib.sha256()
    size, start = 0, b""
    try:
        with open_regular(path) as stream:
            while chunk := stream.read(_CHUNK):
                start = start or chunk
                size += len(chunk)
                digest.update(chunk)
    except OSError as error:
        raise AnsibleActionFail(f"{what} cannot be read on the controller: {path}: {error.strerror}") from error
    text = None
    if size <= _TEXT_LIMIT and b"\0" not in start:
        with contextlib.suppress(UnicodeDecodeError):
            text = start.decode()
    return text, digest.hexdigest(), size
