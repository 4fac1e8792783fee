# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Copy a base into a new generation and make it stand on its own. Private to the collection."""

from __future__ import annotations

import csv
import errno
import hashlib
import io
import os
import shutil
import stat
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Callable

from ansible_collections.gpufleet.dflash.plugins.module_utils._adopt import (
    Choice,
    Member,
    dropped_paths,
    members,
    names_of,
    plain_shebang,
    read_base,
    renamed,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._files import read_regular, share_blocks, write_atomically
from ansible_collections.gpufleet.dflash.plugins.module_utils._manifest import is_generation
from ansible_collections.gpufleet.dflash.plugins.module_utils._paths import canonical
from ansible_collections.gpufleet.dflash.plugins.module_utils._recipe import Base, GenerationError
from ansible_collections.gpufleet.dflash.plugins.module_utils._wheels import record_digest

Progress = Callable[[str], None]

_SHEBANG_LIMIT = 127  # execve(2): what the kernel reads of the first line
_TEXT_LIMIT = 1 << 20


def copy_base(base: Base, choice: Choice, destination: str, progress: Progress) -> None:
    """Copy what stays of a base into the new venv at destination, and repair what names the base's path.

    Raises GenerationError when the base changes meanwhile: a mixture of two states is no copy of either.
    """
    paths, folders = dropped_paths(base, choice)
    # Only a generation is never changed: a file of any other venv that somebody edits in place would change here too.
    copier = _Copier(linking=is_generation(base.path))
    rewritten = []
    names = names_of(base.path)
    with_progress = _told(list(members(base.path)), progress)
    for member in with_progress:
        source = os.path.join(base.path, member.path)
        if _is_dropped(canonical(source), paths, folders):
            continue
        place = os.path.join(destination, member.path)
        os.makedirs(os.path.dirname(place), mode=0o755, exist_ok=True)
        if stat.S_ISLNK(member.status.st_mode):
            _copy_link(source, place, base.path, names, destination, copier)
        elif _may_name_base(member) and any(name in read_regular(source) for name in names):
            _rewrite(source, place, names, destination)
            rewritten.append(place)
        else:
            copier.copy(source, place)
    _update_records(destination, base, names, rewritten)
    if read_base(base.path).identity != base.identity:
        raise GenerationError(f"the base changed while it was copied: {base.path}: see who works on it, and run again")


class _Copier:
    """Copies files in the cheapest way that keeps both sides apart: sharing blocks, else byte by byte."""

    def __init__(self, linking: bool) -> None:
        self._linking = linking
        self._cloning = True

    def copy(self, source: str, place: str) -> None:
        """Copy one regular file with its time and those of its permissions that a generation has."""
        if self._linking:
            try:
                os.link(source, place, follow_symlinks=False)
                return
            except OSError as error:
                if error.errno not in (errno.EXDEV, errno.EMLINK, errno.EPERM):
                    raise
                self._linking = error.errno == errno.EMLINK
        with (
            open(os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as reader,
            open(place, "xb") as writer,
        ):
            status = os.fstat(reader.fileno())
            self._cloning = self._cloning and share_blocks(reader.fileno(), writer.fileno())
            if not self._cloning:
                shutil.copyfileobj(reader, writer, 1 << 20)
            os.fchmod(writer.fileno(), _mode(status.st_mode))
        os.utime(place, ns=(status.st_mtime_ns, status.st_mtime_ns))


def _mode(mode: int) -> int:
    """Nobody but root writes into a generation, and nothing in it runs as somebody else."""
    return 0o755 if mode & 0o100 else 0o644


def _told(found: Sequence[Member], progress: Progress) -> Iterator[Member]:
    """Yield what is to be copied, and say every second how far that is."""
    total = sum(member.status.st_size for member in found)
    done, told = 0, 0.0
    for member in found:
        if time.monotonic() - told >= 1:
            told = time.monotonic()
            progress(f"copying the base: {done / 1e6:,.0f} of {total / 1e6:,.0f} MB")
        yield member
        done += member.status.st_size


def _is_dropped(path: str, paths: frozenset[str], folders: frozenset[str]) -> bool:
    if path in paths:
        return True
    folder, name = os.path.split(path)
    if os.path.basename(folder) == "__pycache__":
        # Byte code goes with its source, whether RECORD lists it (pip) or not (uv).
        return os.path.join(os.path.dirname(folder), name.split(".")[0] + ".py") in paths
    return folder in folders


def _may_name_base(member: Member) -> bool:
    """Whether a file may be a script or a description with the venv's path in it: nothing in a package may."""
    top = member.path.split("/", 1)[0]
    return top not in ("lib", "lib64", "include") and member.status.st_size <= _TEXT_LIMIT


def _copy_link(source: str, place: str, base: str, names: Sequence[bytes], destination: str, copier: _Copier) -> None:
    target = os.fsencode(os.readlink(source))
    for name in names:
        if target.startswith(name + b"/"):
            os.symlink(os.fsencode(destination) + target[len(name) :], os.fsencode(place))
            return
    outside = os.path.realpath(source)
    if outside.startswith(base + "/"):
        os.symlink(target, os.fsencode(place))
    elif os.path.isfile(outside) and _may_read(source, outside):
        copier.copy(outside, place)  # as uv links into its cache when it is asked to: the cache may go
    else:
        # Where it led to from the base, and not to what is found that many folders above the generation.
        os.symlink(target if os.path.isabs(target) else os.fsencode(outside), os.fsencode(place))


def _may_read(link: str, target: str) -> bool:
    """Whether who made a link may have what it leads to copied: a copy can be read by everybody, unlike /etc/shadow."""
    return os.lstat(link).st_uid in (0, os.stat(target).st_uid)


def _rewrite(source: str, place: str, names: Sequence[bytes], destination: str) -> None:
    """Copy a small file with the base's path replaced; what is no text is copied as it is."""
    data = read_regular(source)
    new = os.fsencode(destination)
    if b"\0" not in data:
        data = renamed(plain_shebang(data), names, new)
        line, _newline, rest = data.partition(b"\n")
        if line.startswith(b"#!" + new) and (len(line) > _SHEBANG_LIMIT or b" " in new):
            # As pip and uv write it: the shell reads the whole line, and Python takes it for a text.
            command = line[2:].strip()
            data = b"#!/bin/sh\n'''exec' \"" + command + b'" "$0" "$@"\n\' \'\'\'\n' + rest
    status = os.stat(source)
    write_atomically(place, data, _mode(status.st_mode))


def _update_records(destination: str, base: Base, names: Sequence[bytes], rewritten: Sequence[str]) -> None:
    """Let each RECORD say what its scripts are now, so that they count as whole."""
    changed = {canonical(path) for path in rewritten}
    site = os.path.join(destination, os.path.relpath(base.site_packages, base.path))
    prefixes = [os.fsdecode(name) + "/" for name in names]
    for record in sorted(Path(site).glob("*.dist-info/RECORD")):
        rows = list(csv.reader(io.StringIO(read_regular(str(record), 256 << 20).decode("utf-8", "surrogateescape"))))
        new = [_new_row(row, site, destination, prefixes, changed) for row in rows]
        if new != rows:
            text = io.StringIO()
            csv.writer(text, lineterminator="\n").writerows(new)
            write_atomically(str(record), text.getvalue().encode("utf-8", "surrogateescape"))


def _new_row(row: list[str], site: str, destination: str, prefixes: Sequence[str], changed: set[str]) -> list[str]:
    if len(row) != 3 or not row[0].startswith(("/", "../")):
        return row
    path = row[0]
    for prefix in prefixes:
        if path.startswith(prefix):
            path = os.path.relpath(os.path.join(destination, path[len(prefix) :]), site)
            break
    place = canonical(os.path.join(site, path))
    if place in changed and row[1]:
        data = read_regular(place)
        return [path, "sha256=" + record_digest(hashlib.sha256(data).hexdigest()), str(len(data))]
    return [path, *row[1:]]
