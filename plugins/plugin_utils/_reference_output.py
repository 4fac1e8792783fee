# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files that describe a reference host: their text, and how they get into a folder. Private to the collection."""

from __future__ import annotations

import difflib
import filecmp
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import yaml
from ansible.errors import AnsibleActionFail

from ansible_collections.gpufleet.dflash.plugins.module_utils._files import write_atomically

OVERLAYS, WHEELHOUSE = "overlays", "wheelhouse"
_MADE = "# Made by lock_from_reference. A change here is lost when it runs again.\n"
# Longer texts are not compared line by line: in the task's own diff, and in overlays.diff.
_SHOWN_LIMIT = 1 << 20
_TEXT_LIMIT = 8 << 20


def as_yaml(content: Any) -> bytes:
    """Content as YAML for version control: keys in their order, lines not folded."""
    # Ansible marks where its strings come from; YAML takes plain ones.
    plain = json.loads(json.dumps(content))
    text = yaml.safe_dump(plain, sort_keys=False, default_flow_style=False, allow_unicode=True, width=1000)
    return f"---\n{_MADE}{text}".encode()


def checked_path(path: str) -> str:
    """A path that a host gave, which must not lead out of the folder that it is for."""
    pure = PurePosixPath(path)
    if not path or pure.is_absolute() or ".." in pure.parts or "\0" in path or "\n" in path:
        raise AnsibleActionFail(f"the host names a file that cannot be written: {path!r}: nothing was written")
    return str(pure)


def as_text(content: bytes) -> str | None:
    """Content as text; None when it is none."""
    try:
        return None if b"\0" in content else content.decode()
    except UnicodeDecodeError:
        return None


def text_of(path: Path) -> str | None:
    """The text in a file; None when it is none, or too long to be looked at by lines."""
    return as_text(path.read_bytes()) if path.stat().st_size <= _TEXT_LIMIT else None


def overlay_diff(overlay: Mapping[str, Any], before: Path | None, after: Path) -> str:
    """The unified diff of an overlay; ``before`` is the pristine file, None when it cannot be had."""
    path = overlay["path"]
    owner = f" of {overlay['distribution']}" if overlay["distribution"] else ""
    seen = f"# {path}: the same as {overlay['resembles']}\n" if overlay["resembles"] else ""
    text = text_of(after)
    if overlay["change"] == "added":
        old: str | None = ""
    else:
        old = None if before is None else text_of(before)
    if text is None or (old is None and before is not None):
        facts = f"{overlay['change']}, {overlay['size']:,} bytes, sha256 {overlay['sha256']}"
        return f"{seen}# {path}{owner}: binary files differ: {facts}\n"
    if old is None:
        return f"{seen}# {path}{owner}: altered, sha256 {overlay['sha256']}; the pristine file was not fetched\n"
    first = "/dev/null" if overlay["change"] == "added" else f"a/{path}"
    lines = difflib.unified_diff(old.splitlines(True), text.splitlines(True), first, f"b/{path}")
    return seen + "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


class Folder:
    """What a folder shall hold, and the difference from what it holds.

    What an earlier run wrote into overlays and wheelhouse, as its index files tell, and is not among them is stale;
    whatever else is there is somebody's.
    """

    def __init__(self, dest: str) -> None:
        self._dest = Path(dest)
        self._files: dict[str, bytes | Path] = {}
        self._earlier = [
            *(f"{OVERLAYS}/{row.get('dest')}" for row in self._index("overlays.yml")),
            *(str(row["wheel"]) for row in self._index("not-in-index.yml") if row.get("wheel")),
        ]

    def add(self, path: str, content: bytes | Path) -> None:
        """A file by its path below the folder, its content or a file that has it."""
        self._files[checked_path(path)] = content

    def existing(self, path: str) -> Path:
        """Where a file is, or would be."""
        return self._dest / checked_path(path)

    def changes(self) -> list[dict[str, str]]:
        """One entry of a task's diff for each file that is not as it shall be."""
        found = []
        for path, content in sorted(self._files.items()):
            place = self._dest / path
            if place.is_symlink() or not _same(place, content):
                before, after = _shown(place), _shown(content)
                header = {"before_header": str(place), "after_header": str(place)}
                found.append({**header, "before": before, "after": after})
        for stale in self._stale():
            header = {"before_header": str(stale), "after_header": "(removed)"}
            found.append({**header, "before": _shown(stale), "after": ""})
        return found

    def write(self) -> None:
        """Make the folder hold what it shall hold. Raises AnsibleActionFail."""
        try:
            for path, content in sorted(self._files.items()):
                place = self._dest / path
                if not place.is_symlink() and _same(place, content):
                    continue
                place.parent.mkdir(parents=True, exist_ok=True)
                if isinstance(content, bytes):
                    write_atomically(str(place), content)
                else:
                    partial = place.with_name(f".new-{place.name}")
                    shutil.copyfile(content, partial)
                    os.replace(partial, place)
            for stale in self._stale():
                stale.unlink()
            for name in (OVERLAYS, WHEELHOUSE):
                _remove_empty(self._dest / name)
        except OSError as error:
            raise AnsibleActionFail(
                f"cannot be written: {error.filename or self._dest}: {error.strerror}: name another folder with dest"
            ) from error

    def _index(self, name: str) -> list[Mapping[str, Any]]:
        """The rows of an index file of an earlier run."""
        try:
            text = (self._dest / name).read_text(encoding="utf-8")
            rows = yaml.safe_load(text) if _MADE in text else []
        except (OSError, ValueError, yaml.YAMLError):
            return []
        return [row for row in rows or [] if isinstance(row, dict)]

    def _stale(self) -> list[Path]:
        places = [self._dest / checked_path(path) for path in self._earlier if path not in self._files]
        return sorted(place for place in places if place.is_file() or place.is_symlink())


def _same(place: Path, content: bytes | Path) -> bool:
    try:
        if isinstance(content, bytes):
            return place.is_file() and place.stat().st_size == len(content) and place.read_bytes() == content
        return place.is_file() and filecmp.cmp(place, content, shallow=False)
    except OSError:
        return False


def _shown(content: bytes | Path) -> str:
    if isinstance(content, Path):
        if not content.is_file():
            return ""
        size = content.stat().st_size
        content = content.read_bytes() if size <= _SHOWN_LIMIT else b""
    else:
        size = len(content)
    text = as_text(content) if size <= _SHOWN_LIMIT else None
    return f"({size} bytes that are not shown)\n" if text is None else text


def _remove_empty(root: Path) -> None:
    folders: Sequence[Path] = sorted((path for path in root.rglob("*") if path.is_dir()), reverse=True)
    for folder in (*folders, root):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
