# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The manifest of a generation: the only sign that it is complete, and what went into it. Private to the collection."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

NOTES = ".dflash"  # the folder of a generation that holds its lock and, written last, its manifest
MANIFEST = "generation.json"


def read_manifest(path: str) -> dict[str, Any] | None:
    """Return the manifest of the generation at path; None when it is not there or not complete."""
    try:
        manifest = json.loads(Path(path, NOTES, MANIFEST).read_text())
    except (OSError, ValueError):
        return None
    return manifest if isinstance(manifest, dict) and manifest.get("id") == os.path.basename(path) else None


def declared_overlays(path: str, site_packages: str) -> dict[str, str]:
    """Return {absolute path: SHA-256} of the files that were laid over a generation's packages on purpose."""
    overlays = (read_manifest(path) or {}).get("overlays")
    if not isinstance(overlays, dict):
        return {}
    root = os.path.realpath(site_packages)
    return {os.path.join(root, name): str(digest) for name, digest in overlays.items() if isinstance(name, str)}
