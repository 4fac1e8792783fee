# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Modules that code in .pth files makes importable, which nobody sees without running it. Private to the collection."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence

from ansible_collections.gpufleet.dflash.plugins.module_utils._paths import read_start
from ansible_collections.gpufleet.dflash.plugins.module_utils._wheels import Installed

# Real lines have a hundred characters, finders some thousand.
_LIMIT = 64 * 1024
_MODULE = re.compile(r"\bimport\s+(\w+)")
# A folder in a string, by itself or in a path.
_WORD = re.compile(r"(?<=['\"/])[^'\"/]+(?=['\"/])")


def may_provide(name: str, installed: Installed, site_packages: Sequence[str]) -> bool:
    """Whether code in a .pth file seems to make this module importable.

    nvidia-cutlass-dsl puts a folder of its own on sys.path that way, editable installations put a finder there whose
    file names their packages.
    """
    top = name.split(".")[0]
    folders = _folders_with(top, installed)
    for directory in site_packages:
        for line in _code(directory):
            if not folders.isdisjoint(_WORD.findall(line)):
                return True
            if any(re.search(rf"['\"]{re.escape(top)}['\"]", text) for text in _imported(line, directory)):
                return True
    return False


def _folders_with(top: str, installed: Installed) -> set[str]:
    """The names of the folders in which a distribution has this module."""
    found = set()
    for directory in installed.directories():
        folder, base = os.path.split(directory)
        if base == top:
            found.add(os.path.basename(folder))
        if installed.owners(f"{directory}/{top}.py"):
            found.add(base)
    return found - {"site-packages"}


def _code(directory: str) -> Iterator[str]:
    try:
        names = sorted(name for name in os.listdir(directory) if name.endswith(".pth"))
    except OSError:
        return
    for name in names:
        try:
            lines = read_start(os.path.join(directory, name), _LIMIT).splitlines()
        except OSError:
            continue
        yield from (line for line in lines if line.startswith(("import ", "import\t")))


def _imported(line: str, directory: str) -> Iterator[str]:
    """The texts of the modules that a line imports from the directory that it lies in."""
    for name in dict.fromkeys(_MODULE.findall(line)):
        try:
            yield read_start(os.path.join(directory, f"{name}.py"), _LIMIT)
        except OSError:
            continue
