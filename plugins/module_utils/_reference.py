# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What has to be known of a venv that works to make another one like it. Private to the collection.

The rule for files that several distributions claim with different content: a lock is installed in no particular order,
so a lock that holds both gives one content or the other. What the reference loads is what is on its disk. So

- a distribution that has no code of its own left on the disk, and that nobody requires, is left out;
- where that does not settle whose bytes are on the disk, the operator does: by leaving one out, or by laying the
  present content over whatever the installation leaves there. Nothing of the kind happens unasked.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.gpufleet.dflash.plugins.module_utils._catalogue import normalise
from ansible_collections.gpufleet.dflash.plugins.module_utils._integrity import Contested, Integrity, check_files
from ansible_collections.gpufleet.dflash.plugins.module_utils._payload import source_of
from ansible_collections.gpufleet.dflash.plugins.module_utils._requirements import marker_applies, marker_environment
from ansible_collections.gpufleet.dflash.plugins.module_utils._venv import Venv, open_venv
from ansible_collections.gpufleet.dflash.plugins.module_utils._wheels import (
    Distribution,
    Installed,
    is_code,
    is_incidental,
    read_installed,
    record_digest,
    sha256_of,
)

# What an environment tool puts at the top of site-packages itself.
_TOOLS_OWN = frozenset({"_virtualenv.py", "_virtualenv.pth", "distutils-precedence.pth"})
# The engines' launchers, which the role lays into each generation: the copy gets its own.
_COLLECTIONS_OWN = frozenset({"dflash_llama_cpp_server.py", "dflash_sglang_server.py"})
_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)[^;]*(?:;(.*))?", re.DOTALL)
_EXTRA = re.compile(r"\bextra\b")


class ReferenceVenvError(Exception):
    """A venv that no lock can reproduce as it is; the text says why and what to do."""


@dataclass(frozen=True)
class Overlay:
    """A file that no distribution of an index brings. ``path`` is below ``root``, a site-packages."""

    root: str
    path: str
    sha256: str
    size: int
    distribution: str | None  # whose file it was; None: added
    recorded: tuple[str, ...] = ()  # digests that RECORD has for it, as spelled there
    resembles: str | None = None  # an installed distribution's file with the same content

    def as_dict(self) -> dict[str, Any]:
        """The overlay as the module returns it."""
        return {
            **{name: value for name, value in vars(self).items() if name != "root"},
            "recorded": list(self.recorded),
            "change": "altered" if self.distribution else "added",
        }


@dataclass
class Reference:
    """A venv, sorted into what a lock can say and what it cannot."""

    venv: Venv
    installed: Installed
    kept: list[Distribution]
    left_out: dict[str, str]  # {pin: why}
    overlays: list[Overlay]
    notes: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """The reference as the module returns it; ``file`` is an overlay's path below the venv."""
        top = os.path.realpath(self.venv.path)
        return {
            "python": self.venv.version,
            "distributions": [
                {"name": found.name, "version": found.version, "source": source_of(found)} for found in self.kept
            ],
            "left_out": self.left_out,
            "overlays": [
                {**overlay.as_dict(), "file": os.path.relpath(os.path.join(overlay.root, overlay.path), top)}
                for overlay in self.overlays
            ],
            "notes": self.notes,
        }


def read_reference(
    path: str, leave_out: Collection[str] = (), contested: str = "refuse", verify: str = "hash"
) -> Reference:
    """Read the venv at ``path``. Raises ReferenceVenvError, VenvError.

    ``leave_out``: distributions that the copy shall not have. ``contested``: ``overlay`` lays the present content over
    files whose content an installation would not settle, ``refuse`` raises for them.
    """
    venv = open_venv(path)
    installed = read_installed(venv.site_packages)
    integrity = check_files(installed, verify)
    kept, left_out = _sort_out(venv, installed, integrity, {normalise(name) for name in leave_out})
    names = {distribution.name for distribution in kept}
    unsettled = [found for found in integrity.contested if not _is_settled(found, names, venv)]
    if unsettled and contested == "refuse":
        raise ReferenceVenvError(_choices(unsettled, venv))
    reference = Reference(venv, installed, kept, left_out, [])
    reference.overlays = _overlays(reference, integrity, unsettled)
    reference.notes += _notes(reference, integrity)
    return reference


def _sort_out(
    venv: Venv, installed: Installed, integrity: Integrity, leave_out: Collection[str]
) -> tuple[list[Distribution], dict[str, str]]:
    """The distributions that the lock names, sorted, and those that it does not, with the reason."""
    first = {distribution.name: distribution for distribution in reversed(installed.distributions)}
    unknown = sorted(name for name in leave_out if name not in first)
    if unknown:
        raise ReferenceVenvError(
            f"leave_out names what is not installed: {', '.join(unknown)}: {venv.path}: take it out of leave_out"
        )
    left_out = {first[name].pin: "leave_out names it" for name in leave_out}
    kept = {name: distribution for name, distribution in first.items() if name not in leave_out}
    lost: dict[str, set[str]] = {}
    for path, owner in (*integrity.missing, *integrity.dangling):
        lost.setdefault(owner.name, set()).add(path)
    for found in integrity.contested:
        for loser in found.losers:
            lost.setdefault(loser.name, set()).add(found.path)
    contested = {found.path: found for found in integrity.contested}
    for name in sorted(set(lost) & set(kept)):
        distribution = kept[name]
        if name in _required(kept.values(), venv) or not _has_nothing_left(
            distribution, lost[name], [path for path in contested if path not in lost[name]], installed, kept
        ):
            continue
        taken = sorted({owner.name for path in lost[name] & set(contested) for owner in contested[path].holders})
        how = f"what is in their place is of {' and '.join(taken)}" if taken else "they are gone"
        left_out[distribution.pin] = f"no code on the disk is its own, and nothing requires it: {how}"
        del kept[name]
    return [kept[name] for name in sorted(kept)], dict(sorted(left_out.items()))


def _has_nothing_left(
    distribution: Distribution, lost: Collection[str], won: Collection[str], installed: Installed, kept: Collection[str]
) -> bool:
    """Whether all code of a distribution is lost, or is there as well without it: another one has the same."""
    code = [row.path for row in distribution.files if is_code(row.path)]
    return any(path in lost for path in code) and all(
        path in lost
        or (
            path not in won
            and any(owner is not distribution and owner.name in kept for owner in installed.owners(path))
        )
        for path in code
    )


def _required(distributions: Iterable[Distribution], venv: Venv) -> set[str]:
    """Names that one of these requires; what only an extra asks for counts, for somebody may have asked for it."""
    environment = marker_environment(venv.version)
    found = set()
    for distribution in distributions:
        for text in distribution.requires:
            match = _REQUIREMENT.match(text)
            marker = match[2] if match else None
            if match and (marker is None or _EXTRA.search(marker) or marker_applies(marker, environment) is not False):
                found.add(normalise(match[1]))
    return found


def _relative(path: str, venv: Venv) -> tuple[str, str]:
    """(site-packages, path below it) of a file; the first is empty for one that is in none."""
    for directory in venv.site_packages:
        root = os.path.realpath(directory)
        if path.startswith(root + "/"):
            return root, path[len(root) + 1 :]
    return "", path


def _is_settled(found: Contested, kept: Collection[str], venv: Venv) -> bool:
    """Whether an installation of what is kept leaves the content that is on the disk, or it does not matter."""
    losers, holders = ([owner for owner in owners if owner.name in kept] for owners in (found.losers, found.holders))
    path = _relative(found.path, venv)[1]
    # Where nobody's content is on the disk, that is an overlay like any other.
    return not losers or not holders or is_incidental(path) or not is_code(path)


def _choices(unsettled: list[Contested], venv: Venv) -> str:
    groups: dict[tuple[str, ...], list[Contested]] = {}
    for found in unsettled:
        groups.setdefault(tuple(owner.pin for owner in (*found.holders, *found.losers)), []).append(found)
    lines = []
    for pins, files in groups.items():
        holders = " and ".join(owner.pin for owner in files[0].holders)
        names = " or ".join(pin.split("==")[0] for pin in pins)
        shown = _relative(files[0].path, venv)[1]
        losers = " and ".join(owner.name for owner in files[0].losers)
        lines.append(
            f"a lock cannot tell whose {len(files)} file{'s' if len(files) > 1 else ''} such as {shown} there will be, "
            f"those of {' or '.join(pins)}: {venv.path}: the disk has those of {holders}: name {names} in leave_out "
            f"(without {losers}, these files stay the same), or set contested to overlay, which lays the present files "
            "over what is installed"
        )
    return "\n".join(lines)


def _overlays(reference: Reference, integrity: Integrity, unsettled: list[Contested]) -> list[Overlay]:
    installed, venv = reference.installed, reference.venv
    names = {distribution.name for distribution in reference.kept}
    altered = [(found.path, found.distribution) for found in integrity.altered if found.distribution.name in names]
    nobodys = [found for found in integrity.contested if not found.holders or found in unsettled]
    altered += [(found.path, loser) for found in nobodys for loser in found.losers[:1] if loser.name in names]
    digests: dict[str, str] = {}
    for owner in installed.distributions:
        for row in owner.files:
            if row.digest and row.size and is_code(row.path):
                digests.setdefault(row.digest, f"{owner.pin} {_relative(row.path, venv)[1]}")
    found = []
    places: list[tuple[str, Distribution | None]] = [*altered, *((path, None) for path in _added(reference))]
    for path, distribution in places:
        root, relative = _relative(path, venv)
        if not root or distribution is None and (os.path.islink(path) or not os.path.isfile(path)):
            reference.notes.append(f"not reproduced: {path}: it is outside site-packages, or no regular file")
            continue
        try:
            sha256, size = sha256_of(path), os.path.getsize(path)
        except OSError as error:
            raise ReferenceVenvError(f"an overlay cannot be read: {path}: {error.strerror or error}") from error
        recorded = tuple(sorted(digest for digest in installed.digests(path) if digest))
        resembles = digests.get(record_digest(sha256)) if size else None
        found.append(
            Overlay(root, relative, sha256, size, distribution.name if distribution else None, recorded, resembles)
        )
    return sorted(found, key=lambda overlay: overlay.path)


def _added(reference: Reference) -> Iterator[str]:
    """Files inside the packages of what is kept that nobody owns, less what Python and tools write there."""
    owned = {row.path for distribution in reference.installed.distributions for row in distribution.files}
    folders: set[str] = set()
    for distribution in reference.kept:
        for row in distribution.files:
            root, relative = _relative(row.path, reference.venv)
            top, slash, _rest = relative.partition("/")
            if root and slash and not top.endswith((".dist-info", ".egg-info")) and top != "__pycache__":
                folders.add(os.path.join(root, top))
    for folder in sorted(folders):
        for directory, below, files in os.walk(folder):
            below[:] = sorted(name for name in below if name != "__pycache__")
            for name in sorted(files):
                path = os.path.join(directory, name)
                if path not in owned and not name.endswith((".pyc", ".pyo")):
                    yield path


def _notes(reference: Reference, integrity: Integrity) -> Iterator[str]:
    """What the copy will have otherwise, one sentence each."""
    names = {distribution.name for distribution in reference.kept}
    gone: dict[str, int] = {}
    for _path, owner in (*integrity.missing, *integrity.dangling):
        if owner.name in names:
            gone[owner.pin] = gone.get(owner.pin, 0) + 1
    for pin, count in sorted(gone.items()):
        yield f"restored: {count} file{'s' if count > 1 else ''} of {pin} that the reference lacks"
    for found in integrity.contested:
        losers = [owner for owner in found.losers if owner.name in names]
        if losers and not any(owner.name in names for owner in found.holders) and found.holders:
            path = _relative(found.path, reference.venv)[1]
            yield f"changed: {path} will be that of {losers[0].pin}, for {found.holders[0].pin} is left out"
    for path, owner, reason in integrity.unreadable:
        yield f"not compared: {path} of {owner.pin}: {reason}"
    for damage in reference.installed.damages:
        yield f"damaged: {damage.path} {damage.reason}"
    owned = {row.path for distribution in reference.installed.distributions for row in distribution.files}
    for directory in reference.venv.site_packages:
        root = os.path.realpath(directory)
        for name in sorted(os.listdir(root)):
            path = os.path.join(root, name)
            known = path in owned or name in _TOOLS_OWN or name in _COLLECTIONS_OWN
            if name.endswith((".pth", ".py", ".so")) and not known:
                yield f"not reproduced: {path}: nobody owns it and it is in no package"
    roots = tuple(os.path.realpath(directory) + "/" for directory in reference.venv.site_packages)
    outside = [path for path in reference.venv.import_path if not (os.path.realpath(path) + "/").startswith(roots)]
    if outside:
        yield f"not reproduced: modules outside the venv, on its import path: {', '.join(outside)}"
