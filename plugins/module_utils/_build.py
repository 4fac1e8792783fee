# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the module venv_generation does with its options. Private to the collection."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from ansible_collections.gpufleet.dflash.plugins.module_utils._files import check_root
from ansible_collections.gpufleet.dflash.plugins.module_utils._generation import (
    GenerationError,
    Overlay,
    Progress,
    Recipe,
    build,
    check_overlay_path,
    inspect_interpreter,
    newest_manifest,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._lock import LockError, read_lock
from ansible_collections.gpufleet.dflash.plugins.module_utils._manifest import ManifestError, read_manifest
from ansible_collections.gpufleet.dflash.plugins.module_utils._uv import Source, installer_environment


def make_recipe(options: Mapping[str, Any]) -> Recipe:
    """Return the recipe that a module's options describe; raises GenerationError."""
    try:
        lock = read_lock(options["lock_content"], options["lock"] or "lock_content")
    except LockError as error:
        raise GenerationError(str(error)) from error
    overlays = sorted(
        Overlay(check_overlay_path(overlay["dest"]), overlay["content"].encode()) for overlay in options["overlays"]
    )
    twice = [one.path for one, other in zip(overlays, overlays[1:]) if one.path == other.path]
    if twice:
        raise GenerationError(f"two overlays have one dest: {twice[0]}: keep one of them")
    root = check_root(options["root"], GenerationError)
    interpreter = inspect_interpreter(options["python"] or sys.executable)
    return Recipe(root, lock, tuple(overlays), interpreter)


def plan(recipe: Recipe) -> dict[str, Any]:
    """Return what building a recipe would do, without writing anything.

    The controller evaluates the environment markers of the lock: the library for it need not be on the host.
    """
    manifest = _manifest(recipe)
    newest = newest_manifest(recipe.root)
    return {
        "changed": manifest is None,
        "manifest": manifest,
        "before": newest and _content(newest),
        "requirements": [[entry.name, entry.version, entry.marker] for entry in recipe.lock],
        "overlays": {overlay.path: overlay.digest for overlay in recipe.overlays},
        "progress_file": progress_file(recipe),
        **_identity(recipe),
    }


def run(recipe: Recipe, options: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Build a recipe's generation and return its manifest and identity; raises GenerationError."""
    source = Source(
        installer_environment(os.path.join(recipe.root, "cache"), options["index_url"], options["ca_file"]),
        options["uv"],
        options["index_url"],
    )
    existed = _manifest(recipe)
    manifest = build(recipe, source, progress)
    return {"changed": existed is None, "manifest": manifest, **_identity(recipe)}


def _manifest(recipe: Recipe) -> dict[str, Any] | None:
    try:
        return read_manifest(recipe.path)
    except ManifestError as error:
        raise GenerationError(str(error)) from error


def progress_file(recipe: Recipe) -> str:
    """Where a running build writes its latest line of progress."""
    return os.path.join(recipe.root, "venvs", f".{recipe.id}.progress")


def _identity(recipe: Recipe) -> dict[str, Any]:
    python = recipe.interpreter
    library = f"lib/python{'.'.join(python.version.split('.')[:2])}/site-packages"
    return {
        "id": recipe.id,
        "path": recipe.path,
        "site_packages": os.path.join(recipe.path, library),
        "python": python._asdict(),
    }


def _content(manifest: Mapping[str, Any]) -> dict[str, Any]:
    return {key: manifest[key] for key in ("id", "distributions", "overlays")}
