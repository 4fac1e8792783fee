# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Wheels that are on the host already: a wheelhouse of somebody's own, and the store of those that were copied here.

The store is ``<root>/wheels/<sha256>/<file>``. A file gets its name there only after its hash was verified. Private to
the collection.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator, Sequence

from ansible_collections.gpufleet.dflash.plugins.module_utils._catalogue import normalise
from ansible_collections.gpufleet.dflash.plugins.module_utils._lock import LockEntry
from ansible_collections.gpufleet.dflash.plugins.module_utils._paths import open_regular
from ansible_collections.gpufleet.dflash.plugins.module_utils._recipe import GenerationError
from ansible_collections.gpufleet.dflash.plugins.module_utils._versions import same_version
from ansible_collections.gpufleet.dflash.plugins.module_utils._wheel_archive import WheelFiles, clashes, read_wheel

_SHA256 = re.compile(r"[0-9a-f]{64}\Z")


def store_of(root: str) -> str:
    """The folder of the store below root."""
    return os.path.join(root, "wheels")


def stored(root: str, hashes: Iterable[str]) -> dict[str, str]:
    """Return {sha256: path} of the wheels of the store that have one of these hashes (``sha256:<hex>``)."""
    found = {}
    for digest in (text.partition(":")[2] for text in hashes):
        if not _SHA256.match(digest):
            continue
        with contextlib.suppress(OSError):
            names = [name for name in os.listdir(os.path.join(store_of(root), digest)) if name.endswith(".whl")]
            if names:
                found[digest] = os.path.join(store_of(root), digest, min(names))
    return found


@contextlib.contextmanager
def gathered(root: str, name: str, hashes: Iterable[str]) -> Iterator[str]:
    """Yield a folder with links to the stored wheels of a lock, as installers want to find them; it goes at the end.

    Each run has one of its own, which it holds locked: what others of the same lock do leaves it alone, and the folder
    of a run that was killed is known by its lock being free.
    """
    os.makedirs(store_of(root), mode=0o755, exist_ok=True)
    for left in os.listdir(store_of(root)):
        if left.startswith(".for-"):
            _remove_unless_held(os.path.join(store_of(root), left))
    # Under another name until it is locked.
    made = tempfile.mkdtemp(prefix=".new-", dir=store_of(root))
    os.chmod(made, 0o755)
    held = os.open(made, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(held, fcntl.LOCK_EX)
    folder = os.path.join(store_of(root), f".for-{name}-{os.path.basename(made)[5:]}")
    os.rename(made, folder)
    try:
        for path in stored(root, hashes).values():
            os.link(path, os.path.join(folder, os.path.basename(path)))
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


def _remove_unless_held(folder: str) -> None:
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(handle)


def wheels_of(folder: str, entries: Sequence[LockEntry]) -> dict[str, list[str]]:
    """Return {pin: paths} of the wheels in a folder that are of a lock's versions, by their file names.

    Raises GenerationError for a folder that cannot be read.
    """
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".whl"))
    except OSError as error:
        raise GenerationError(f"the wheelhouse cannot be read: {folder}: {error.strerror}") from error
    by_name: dict[str, list[tuple[str, str]]] = {}
    for name in names:
        parts = name.split("-")
        if len(parts) >= 5:
            by_name.setdefault(normalise(parts[0]), []).append((parts[1], os.path.join(folder, name)))
    found = {}
    for entry in entries:
        paths = [path for version, path in by_name.get(entry.name, []) if same_version(version, entry.version)]
        if paths:
            found[entry.pin] = paths
    return found


def contents(wheels: dict[str, list[str]]) -> dict[str, WheelFiles]:
    """Return {pin: files} of those wheels of which there is just one; raises GenerationError for a damaged one."""
    found = {}
    for pin, paths in wheels.items():
        if len(paths) == 1:
            try:
                with open_regular(paths[0]) as stream:
                    found[pin] = read_wheel(stream)
            except (OSError, ValueError) as error:
                words = error.strerror if isinstance(error, OSError) else error
                raise GenerationError(f"a damaged wheel: {paths[0]}: {words}: fetch it again") from error
    return found


def clash_messages(wheels: dict[str, WheelFiles], overlays: Collection[str] = ()) -> list[str]:
    """One line for each two pins that bring code to one path with different content, unless an overlay settles it."""
    return [
        f"{one} and {other} both bring {paths[0]}"
        + (f" and {len(paths) - 1} more files" if len(paths) > 1 else "")
        + ", with different content: whichever is installed last wins: keep one of the two in the lock"
        for (one, other), paths in clashes(wheels, overlays).items()
    ]
