# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A folder for generations, an index with wheels, and the options of venv_generation."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ansible_collections.gpufleet.dflash.plugins.module_utils import _build
from ansible_collections.gpufleet.dflash.plugins.module_utils._recipe import Recipe
from support.local_index import LocalIndex

UV = str(Path(sys.executable).with_name("uv"))


class Site:
    """A root for generations, an index with wheels, and the options of the module."""

    def __init__(self, folder: Path, index: LocalIndex | None = None) -> None:
        self.index = index or LocalIndex(folder / "index")
        self.root = folder / "root"
        self.lock = self.index.add("first-thing", "1.0", {"first_thing.py": "VALUE = 1\n"})
        self.lock += self.index.add("second-thing", "2.0", {"second_thing/__init__.py": "VALUE = 2\n"})

    def options(self, **changes: Any) -> dict[str, Any]:
        options: dict[str, Any] = {
            "root": str(self.root),
            "lock": "test.txt",
            "lock_content": self.lock,
            "overlays": [],
            "python": sys.executable,
            "index_url": self.index.url,
            "ca_file": None,
            "uv": UV,
        }
        return {**options, **changes}

    def recipe(self, **changes: Any) -> Recipe:
        return _build.make_recipe(self.options(**changes))

    def plan(self, **changes: Any) -> dict[str, Any]:
        options = self.options(**changes)
        return _build.plan(_build.make_recipe(options), options)

    def build(self, **changes: Any) -> dict[str, Any]:
        options = self.options(**changes)
        return _build.run(_build.make_recipe(options), options, lambda line: None)
