# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is inside a wheel, read from the directory of its archive. Private to the collection."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Collection, Mapping
from pathlib import PurePosixPath
from typing import BinaryIO, NamedTuple

from ansible_collections.gpufleet.dflash.plugins.module_utils._wheels import is_code, is_incidental

# No honest wheel has more; an archive that says so is not read on.
_FILE_LIMIT = 500_000
# The folders of a wheel's .data that an installer lays into site-packages.
_SITE_SCHEMES = ("purelib", "platlib")


class WheelFiles(NamedTuple):
    """The files that a wheel puts into site-packages: {path: (bytes, CRC-32)}."""

    files: dict[str, tuple[int, int]]

    @property
    def size(self) -> tuple[int, int]:
        """What it takes on a disk: bytes in blocks of 4 KiB, and files."""
        return sum(-(-size // 4096) * 4096 for size, _crc in self.files.values()), len(self.files)


def read_wheel(stream: BinaryIO) -> WheelFiles:
    """Return what a wheel holds. Raises ValueError for what is no archive that can be read."""
    try:
        with zipfile.ZipFile(stream) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, OSError, EOFError) as error:
        raise ValueError(f"is not a readable wheel: {error}") from error
    if len(entries) > _FILE_LIMIT:
        raise ValueError(f"lists {len(entries)} files")
    return WheelFiles({_place(e.filename): (e.file_size, e.CRC) for e in entries if not e.is_dir()})


def is_contested(path: str) -> bool:
    """Whether it matters whose content a path below site-packages has: it is code that somebody imports or loads."""
    return is_code(path) and not is_incidental(path)


def clashes(wheels: Mapping[str, WheelFiles], settled: Collection[str] = ()) -> dict[tuple[str, str], list[str]]:
    """Return {two pins: paths} of the code that both bring with different content.

    ``settled`` are paths at which it does not matter, because something is laid over them.
    """
    owners: dict[str, tuple[str, tuple[int, int]]] = {}
    found: dict[tuple[str, str], list[str]] = {}
    for pin in sorted(wheels):
        for path, content in wheels[pin].files.items():
            first, same = owners.setdefault(path, (pin, content))
            if same != content and path not in settled and is_contested(path):
                found.setdefault((first, pin), []).append(path)
    return found


def _place(name: str) -> str:
    parts = PurePosixPath(name).parts
    if len(parts) > 2 and parts[0].endswith(".data"):
        scheme = parts[1]
        return os.path.join(*parts[2:]) if scheme in _SITE_SCHEMES else os.path.join("..", scheme, *parts[2:])
    return name
