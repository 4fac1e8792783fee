# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files laid over the packages of a generation. Private to the collection.

Short texts come along with the options; what is long or no text lies in the store of the host, where the controller
put it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from ansible_collections.gpufleet.dflash.plugins.module_utils import _space
from ansible_collections.gpufleet.dflash.plugins.module_utils._files import (
    replacing,
    share_blocks,
    write_atomically,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._paths import open_regular
from ansible_collections.gpufleet.dflash.plugins.module_utils._recipe import GenerationError, Overlay
from ansible_collections.gpufleet.dflash.plugins.module_utils._wheel_store import overlay_in_store
from ansible_collections.gpufleet.dflash.plugins.module_utils._wheels import sha256_of

_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
_CHUNK = 1 << 20
_BLOCK = 4096


def read_overlays(options: Sequence[Mapping[str, Any]]) -> tuple[Overlay, ...]:
    """Return what the module's option says, sorted by path; raises GenerationError for what cannot be laid."""
    overlays = sorted(map(_read, options), key=lambda overlay: overlay.path)
    there = {overlay.path for overlay in overlays}
    for one, other in zip(overlays, overlays[1:]):
        if one.path == other.path:
            raise GenerationError(f"two overlays have one dest: {one.path}: keep one of them")
    for path in sorted(there):
        for parent in map(str, PurePosixPath(path).parents):
            if parent in there:
                raise GenerationError(
                    f"an overlay's dest is a file and a folder at once: {parent} and {path}: keep one of them"
                )
    return tuple(overlays)


def _read(option: Mapping[str, Any]) -> Overlay:
    path = _checked_path(option["dest"])
    if option.get("content") is not None:
        content = option["content"].encode()
        return Overlay(path, hashlib.sha256(content).hexdigest(), content, len(content))
    digest = option.get("sha256")
    if digest is None:
        raise GenerationError(
            f"the file of an overlay is on the controller: {path}: {option.get('src')}: run the module as a task of "
            "Ansible, whose action plugin brings it"
        )
    if not _SHA256.match(digest):
        raise GenerationError(f"an overlay's sha256 is 64 hexadecimal digits in lower case: {path}: '{digest}'")
    return Overlay(path, digest, None, max(0, option.get("size") or 0))


def _checked_path(path: str) -> str:
    """An overlay's path below site-packages, normalised; raises GenerationError when it leaves it."""
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or not pure.parts or "\0" in path:
        raise GenerationError(f"an overlay's dest is a path below site-packages: '{path}'")
    return str(pure)


def need_of(overlays: Sequence[Overlay], root: str) -> _space.Need:
    """Return what the overlays take that do not come along as text: in the generation and, once, in the store."""
    laid = {overlay.path: overlay for overlay in overlays if overlay.content is None}
    kept = {overlay.digest: overlay for overlay in laid.values() if not _lies_in_store(root, overlay)}
    counted = [*kept.values(), *([] if _space.shares_blocks(root, root) else laid.values())]
    blocks = sum(-(-_size(root, overlay) // _BLOCK) * _BLOCK for overlay in counted)
    return _space.Need(blocks, len(laid) + len(kept))


def whole_in_store(overlays: Sequence[Overlay], root: str) -> list[str]:
    """Return the hashes of the overlays whose file in the store is what its name says; this reads the files."""
    found = set()
    for digest in {overlay.digest for overlay in overlays if overlay.content is None}:
        with contextlib.suppress(OSError):
            if sha256_of(overlay_in_store(root, digest)) == digest:
                found.add(digest)
    return sorted(found)


def refuse_absent(overlays: Sequence[Overlay], root: str) -> None:
    """Raise GenerationError when an overlay is not on the host, before anything is built."""
    for overlay in overlays:
        if overlay.content is None and not _lies_in_store(root, overlay):
            raise _absent(overlay, root)


def lay(overlay: Overlay, root: str, site: str, python: str) -> None:
    """Put an overlay into site-packages, always as a file of its own, and compile it if it is a source."""
    place = os.path.join(site, overlay.path)
    os.makedirs(os.path.dirname(place), mode=0o755, exist_ok=True)
    # A new inode: the file that it replaces may be hard-linked to the cache and to other generations.
    if overlay.content is None:
        _copy_from_store(overlay, root, place)
    else:
        write_atomically(place, overlay.content)
    if place.endswith(".py"):
        compiled = subprocess.run(
            [python, "-I", "-m", "compileall", "-q", "-f", place], capture_output=True, text=True, check=False
        )
        if compiled.returncode:
            words = (compiled.stdout + compiled.stderr).strip().splitlines() or ["no reason given"]
            raise GenerationError(f"an overlay does not compile: {overlay.path}: {words[-1]}")


def _copy_from_store(overlay: Overlay, root: str, place: str) -> None:
    """Copy a stored file, sharing its blocks where that is possible, and verify what was laid."""
    stored = overlay_in_store(root, overlay.digest)
    digest = hashlib.sha256()
    try:
        reader = open_regular(stored)
    except FileNotFoundError as error:
        raise _absent(overlay, root) from error
    with reader, replacing(place) as writer:
        shared = share_blocks(reader.fileno(), writer.fileno())
        source = writer if shared else reader
        while chunk := source.read(_CHUNK):
            digest.update(chunk)
            if not shared:
                writer.write(chunk)
        if digest.hexdigest() != overlay.digest:
            raise GenerationError(
                f"the stored file of an overlay is not what its name says: {stored}: {overlay.path}: run again, and it "
                "is copied anew"
            )


def _absent(overlay: Overlay, root: str) -> GenerationError:
    return GenerationError(
        f"the file of an overlay is not on the host: {overlay.path}: {overlay_in_store(root, overlay.digest)}: give it "
        "with src in a task of Ansible, whose action plugin copies it there"
    )


def _lies_in_store(root: str, overlay: Overlay) -> bool:
    return os.path.isfile(overlay_in_store(root, overlay.digest))


def _size(root: str, overlay: Overlay) -> int:
    with contextlib.suppress(OSError):
        return os.path.getsize(overlay_in_store(root, overlay.digest))
    return overlay.size
