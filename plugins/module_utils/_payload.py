# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a distribution came from, and one digest of what it put on the disk. Private to the collection.

A version does not tell two builds apart: a wheel built here and the one of an index have the same name and version.
Source of the format: PyPA specification "Recording the Direct URL Origin of installed distributions".
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any

from ansible_collections.gpufleet.dflash.plugins.module_utils._files import read_regular
from ansible_collections.gpufleet.dflash.plugins.module_utils._integrity import Integrity
from ansible_collections.gpufleet.dflash.plugins.module_utils._uv import without_credentials
from ansible_collections.gpufleet.dflash.plugins.module_utils._wheels import Distribution, Installed, record_digest

# Digits of a payload's digest: two builds of one version are told apart, and a summary stays small.
_DIGITS = 10
_LIMIT = 1 << 20
# Query and fragment of an address: a token as often as not.
_QUERY = re.compile(r"[?#].*", re.DOTALL)


def source_of(distribution: Distribution) -> dict[str, str]:
    """Where a distribution was installed from, with ``kind``: index, archive, local, editable, vcs, egg or unknown.

    ``url`` has no credentials; ``sha256`` is the digest of the archive where the installer noted it.
    """
    if distribution.path.endswith(".egg-info"):
        return {"kind": "egg"}
    path = os.path.join(distribution.path, "direct_url.json")
    try:
        noted = json.loads(read_regular(path, _LIMIT))
    except FileNotFoundError:
        return {"kind": "index"}
    except (OSError, ValueError, RecursionError):
        return {"kind": "unknown"}
    url = noted.get("url") if isinstance(noted, dict) else None
    if not isinstance(url, str):
        return {"kind": "unknown"}
    found = {"kind": "archive", "url": _QUERY.sub("", without_credentials(url))}
    directory, vcs, archive = (noted.get(key) for key in ("dir_info", "vcs_info", "archive_info"))
    if isinstance(directory, dict):
        found["kind"] = "editable" if directory.get("editable") is True else "local"
    elif isinstance(vcs, dict):
        found["kind"] = "vcs"
        if isinstance(vcs.get("commit_id"), str):
            found["commit"] = vcs["commit_id"][:64]
    elif url.startswith("file:"):
        found["kind"] = "local"
    digest = _archive_digest(archive) if isinstance(archive, dict) else None
    return {**found, "sha256": digest} if digest else found


def sources(installed: Installed) -> dict[str, dict[str, str]]:
    """{name: source} of the distributions that did not come from an index."""
    found: dict[str, dict[str, str]] = {}
    for distribution in installed.distributions:
        source = source_of(distribution)
        if source["kind"] != "index":
            found.setdefault(distribution.name, source)
    return dict(sorted(found.items()))


def payloads(installed: Installed, integrity: Integrity, altered: Mapping[str, str | None]) -> dict[str, str]:
    """{name: digest} of what each distribution has on the disk: its RECORD, less what was found otherwise there.

    ``altered`` is {path: SHA-256 or None}. Scripts and byte-compiled files do not count: they differ from venv to venv.
    """
    differing: dict[str, str] = {path: str(sha256 and record_digest(sha256)) for path, sha256 in altered.items()}
    differing.update({path: "missing" for path, _owner in (*integrity.missing, *integrity.dangling)})
    differing.update({contested.path: contested.digest for contested in integrity.contested})
    spoilt = {owner for path in differing for owner in installed.owners(path)}
    found: dict[str, str] = {}
    for distribution in installed.distributions:
        record = distribution.files
        content = record.content_with(differing) if distribution in spoilt else record.content
        found.setdefault(distribution.name, content[:_DIGITS])
    return dict(sorted(found.items()))


def _archive_digest(archive: Mapping[str, Any]) -> str | None:
    hashes = archive.get("hashes")
    digest = hashes.get("sha256") if isinstance(hashes, dict) else None
    if digest is None and str(archive.get("hash", "")).startswith("sha256="):
        digest = str(archive["hash"])[len("sha256=") :]
    return digest.lower() if isinstance(digest, str) and re.fullmatch(r"[0-9A-Fa-f]{64}", digest) else None
