# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make a wheel of an installed distribution's files. Private to the collection.

Source of the format: PyPA specification "Binary distribution format". Equal files give an equal wheel.
"""

from __future__ import annotations

import csv
import hashlib
import io
import re
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from ansible_collections.gpufleet.dflash.plugins.module_utils._wheels import record_digest

_EPOCH = (1980, 1, 1, 0, 0, 0)
# The first line of a script names the venv that it was installed into; installers put theirs for "#!python".
_SHEBANG = re.compile(rb"\A#!(?:\S*/)?python[\d.]*(w?)[^\n]*|\A#!/bin/sh\n'''exec' [^\n]*\n' '''")


def wheel_name(description: Mapping[str, Any]) -> str:
    """The file name of a distribution's wheel: name, version and tags, sets of tags joined by dots."""
    stem = str(description["dist_info"]).removesuffix(".dist-info")
    columns = zip(*(tag.split("-") for tag in description["tags"]))
    return "-".join([stem, *(".".join(sorted(set(column))) for column in columns)]) + ".whl"


def record_of(path: str, dist_info: str) -> str | None:
    """The RECORD of a wheel; None when there is no such wheel."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.read(f"{dist_info}/RECORD").decode()
    except (OSError, KeyError, ValueError, zipfile.BadZipFile):
        return None


def write_wheel(
    stream: BinaryIO,
    description: Mapping[str, Any],
    read: Callable[[Sequence[Mapping[str, Any]]], Iterable[Path]],
) -> str:
    """Write a wheel with the described files, which ``read`` gives one after the other. Returns the wheel's SHA-256."""
    dist_info = description["dist_info"]
    rows = []
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        files = _ordered(description["files"], dist_info)
        for file, source in zip(files, read(files)):
            member = _member(file["place"], file["executable"])
            if ".data/scripts/" in file["place"]:
                content = _SHEBANG.sub(rb"#!python\1", source.read_bytes(), count=1)
                archive.writestr(member, content)
                rows.append((file["place"], hashlib.sha256(content).hexdigest(), len(content)))
            else:
                rows.append((file["place"], *_add(archive, member, source)))
        archive.writestr(_member(f"{dist_info}/RECORD", False), record_text(rows, dist_info))
    stream.seek(0)
    digest = hashlib.sha256()
    while chunk := stream.read(1 << 20):
        digest.update(chunk)
    return digest.hexdigest()


def _add(archive: zipfile.ZipFile, member: zipfile.ZipInfo, source: Path) -> tuple[str, int]:
    """Put a file into a wheel, however large it is; returns its SHA-256 and size."""
    digest = hashlib.sha256()
    member.file_size = source.stat().st_size
    with open(source, "rb") as reader, archive.open(member, "w") as writer:
        while chunk := reader.read(1 << 20):
            digest.update(chunk)
            writer.write(chunk)
    return digest.hexdigest(), member.file_size


def record_text(rows: Sequence[tuple[str, str, int]], dist_info: str) -> str:
    """A RECORD of (path, SHA-256, size)."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for path, sha256, size in rows:
        writer.writerow([path, f"sha256={record_digest(sha256)}", size])
    writer.writerow([f"{dist_info}/RECORD", "", ""])
    return text.getvalue()


def holds(record: str | None, description: Mapping[str, Any]) -> bool:
    """Whether a wheel with this RECORD holds the described files; scripts count by their name."""
    if record is None:
        return False
    rows = {row[0]: row[1:] for row in csv.reader(io.StringIO(record)) if len(row) == 3}
    rows.pop(f"{description['dist_info']}/RECORD", None)
    described = {file["place"]: file for file in description["files"]}
    return set(rows) == set(described) and all(
        ".data/scripts/" in place
        or row == [f"sha256={record_digest(described[place]['sha256'])}", str(described[place]["size"])]
        for place, row in rows.items()
    )


def _ordered(files: Sequence[Mapping[str, Any]], dist_info: str) -> list[Mapping[str, Any]]:
    """Metadata last, as the specification recommends."""
    return sorted(files, key=lambda file: (file["place"].startswith(f"{dist_info}/"), file["place"]))


def _member(name: str, executable: bool) -> zipfile.ZipInfo:
    member = zipfile.ZipInfo(name, _EPOCH)
    member.compress_type = zipfile.ZIP_DEFLATED
    member.create_system = 3
    member.external_attr = (0o100755 if executable else 0o100644) << 16
    return member
