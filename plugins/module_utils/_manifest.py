# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The manifest of a generation: the only sign that it is complete, and what went into it. Private to the collection."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ansible_collections.gpufleet.dflash.plugins.module_utils._files import read_regular

NOTES = ".dflash"  # the folder of a generation that holds its lock and, written last, its manifest
MANIFEST = "generation.json"
_KEYS = {"id": str, "created": float, "distributions": dict, "overlays": dict, "library_directories": list}
_ADVICE = "when nothing runs from the folder, remove it and deploy again"


class ManifestError(Exception):
    """A manifest that is there and cannot be used: nobody but a person may decide what becomes of its folder."""


def read_manifest(path: str) -> dict[str, Any] | None:
    """Return the manifest of the generation at path; None when there is none, so that it is not complete.

    Raises ManifestError when there is one that cannot be read or does not belong to this place.
    """
    place = Path(path, NOTES, MANIFEST)
    try:
        manifest = json.loads(read_regular(str(place)))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise ManifestError(f"the manifest cannot be read: {place}: {error}: {_ADVICE}") from error
    if not isinstance(manifest, dict) or any(not isinstance(manifest.get(key), kind) for key, kind in _KEYS.items()):
        raise ManifestError(f"not a manifest of a generation: {place}: {_ADVICE}")
    texts = [*manifest["library_directories"]]
    texts += [text for key in ("distributions", "overlays") for pair in manifest[key].items() for text in pair]
    if not all(isinstance(text, str) and "\0" not in text for text in texts):
        raise ManifestError(f"not a manifest of a generation: {place}: {_ADVICE}")
    if manifest["id"] != os.path.basename(os.path.normpath(path)):
        raise ManifestError(f"the manifest is of another generation, {manifest['id']}: {place}: {_ADVICE}")
    return manifest


def declared_overlays(path: str, site_packages: str) -> dict[str, str]:
    """Return {absolute path: SHA-256} of the files that were laid over a generation's packages on purpose."""
    try:
        overlays = (read_manifest(path) or {}).get("overlays", {})
    except ManifestError:  # somebody else's folder that happens to be called like ours
        return {}
    root = os.path.realpath(site_packages)
    return {os.path.join(root, name): str(digest) for name, digest in overlays.items()}


def is_generation(path: str) -> bool:
    """Whether the venv at path is a complete generation."""
    try:
        return read_manifest(path) is not None
    except ManifestError:
        return False
