# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Byte code of a new generation: taken from a sibling where the source is the same file, else compiled.

Compiling is most of the time that a second generation takes, and byte code most of its disk. Private to the collection.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence


def link_compiled(site: str, sibling: str, tag: str) -> int:
    """Link the byte code of a sibling's sources that are hard links to the same file; returns how many.

    Byte code knows its source by time and size, which one file has only once, and Python corrects the path that is
    written in it when it is loaded.
    """
    linked = 0
    for folder, folders, names in os.walk(site):
        folders[:] = [name for name in folders if name != "__pycache__"]
        other = sibling + folder[len(site) :]
        compiled = os.path.join(folder, "__pycache__")
        sources = [name for name in names if name.endswith(".py")]
        made = not sources or os.path.isdir(compiled)
        for name in sources:
            code = f"__pycache__/{name[:-3]}.{tag}.pyc"
            try:
                if not os.path.samestat(os.lstat(f"{folder}/{name}"), os.lstat(f"{other}/{name}")):
                    continue
                if not made:
                    os.mkdir(compiled, 0o755)
                    made = True
                os.link(f"{other}/{code}", f"{folder}/{code}", follow_symlinks=False)
                linked += 1
            except OSError:
                # Compiled like any other: there is no such source or no byte code of it, or it has too many links.
                continue
    return linked


def compile_rest(python: str, folders: Sequence[str]) -> None:
    """Compile what has no byte code that fits; what does not compile is no module."""
    command = [python, "-I", "-m", "compileall", "-q", "-j", "0", *folders]
    subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, check=False)
