# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files that are on the host already: a wheelhouse of somebody's own, and the store of what was copied here.

The store is ``<root>/wheels/<sha256>/<file>``: wheels under their names, and overlays that are no short text under one
name, whatever they are called in the generations that have them. A file gets its name there only after its hash was
verified. Private to the collection.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Container, Iterable, Iterator, Sequence

from ansible_collections.gpufleet.dflash.plugins.module_utils._catalogue import normalise
from ansible_collections.gpufleet.dflash.plugins.module_utils._lock import LockEntry
from ansible_collections.gpufleet.dflash.plugins.module_utils._paths import open_regular
from ansible_collections.gpufleet.dflash.plugins.module_utils._recipe import GenerationError
from ansible_collections.gpufleet.dflash.plugins.module_utils._versions import same_version
from ansible_collections.gpufleet.dflash.plugins.module_utils._wheel_archive import WheelFiles, clashes, read_wheel

OVERLAY = "overlay"
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")


def store_of(root: str) -> str:
    """The folder of the store below root."""
    return os.path.join(root, "wheels")


def overlay_in_store(root: str, digest: str) -> str:
    """Where the file of an overlay lies in the store, or would."""
    return os.path.join(store_of(root), digest, OVERLAY)


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
            with contextlib.suppress(FileExistsError):  # two builds under one name: either has a hash of the lock
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


def wheels_of(folder: str, entries: Sequence[LockEntry], what: str = "the wheelhouse") -> dict[str, list[str]]:
    """Return {pin: paths} of the wheels in a folder that are of a lock's versions, by their file names.

    ``what`` names the folder in the message. Raises GenerationError for a folder that cannot be read.
    """
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".whl"))
    except OSError as error:
        raise GenerationError(f"{what} cannot be read: {folder}: {error.strerror}") from error
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


def lacking_message(lacking: Sequence[str], folder: str | None, local: bool) -> str:
    """Say that no index is asked and these pins have no wheel in the wheelhouse of the host, nor on the controller."""
    places = [*(["the wheelhouse"] if folder else []), *(["local_wheels"] if local else [])]
    missing = f"{places[0]} has no" if len(places) == 1 else "neither the wheelhouse nor local_wheels has a"
    more = f" and {len(lacking) - 5} more" if len(lacking) > 5 else ""
    where = f": {folder}" if folder else ""
    return (
        f"{missing} wheel of {', '.join(lacking[:5])}{more}{where}: put them there, or let make_wheelhouse fetch them"
    )


def clash_messages(wheels: dict[str, WheelFiles], settled: Container[str] = ()) -> list[str]:
    """One line for each two pins that bring code to one path with different content.

    ``settled`` are the paths of overlays: what is laid over both decides whose content counts.
    """
    return [
        f"{one} and {other} both bring {paths[0]}"
        + (f" and {len(paths) - 1} more files" if len(paths) > 1 else "")
        + ", with different content: whichever is installed last wins: keep one of the two in the lock"
        for (one, other), paths in clashes(wheels, settled).items()
    ]
