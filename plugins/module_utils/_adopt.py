# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An existing venv as the base of a generation: what it is, and what of it stays. Private to the collection.

The base is only read. What a lock replaces is not copied in the first place, rather than copied and uninstalled: an
uninstall deletes what others own too (pypa/pip#12313).
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ansible_collections.gpufleet.dflash.plugins.module_utils._lock import LockEntry
from ansible_collections.gpufleet.dflash.plugins.module_utils._manifest import (
    NOTES,
    ManifestError,
    read_manifest,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._paths import canonical, open_regular, read_start
from ansible_collections.gpufleet.dflash.plugins.module_utils._recipe import Base, GenerationError
from ansible_collections.gpufleet.dflash.plugins.module_utils._requirements import marker_applies
from ansible_collections.gpufleet.dflash.plugins.module_utils._venv import Venv, VenvError, open_venv
from ansible_collections.gpufleet.dflash.plugins.module_utils._versions import same_version
from ansible_collections.gpufleet.dflash.plugins.module_utils._wheel_archive import is_contested
from ansible_collections.gpufleet.dflash.plugins.module_utils._wheels import (
    Distribution,
    Installed,
    is_code,
    read_installed,
    record_digest,
    sha256_of,
)

# What a venv brings along by itself: the generation has its own.
_OWN_TOP = frozenset({"pyvenv.cfg", "lib64", NOTES, ".gitignore", ".lock", "CACHEDIR.TAG"})
_OWN_SCRIPT = re.compile(r"(python[\d.]*t?|pypy[\d.]*|(de)?activate(\..*|_this\.py)?|pydoc\.bat)\Z")
_TEXT_LIMIT = 1 << 20
_SHELL_LINE = re.compile(rb"""'''exec' ["']?([^"']+)["']? "\$0" "\$@"\Z""")
# Written by installers with the time of the installation in it, which is no content.
_VOLATILE = ("uv_cache.json",)
# Rows of RECORD that differ with the place of the venv (scripts) or with how it was installed.
_UNSTEADY_ROW = re.compile(rb"\A[\"]?(/|\.\./)|\.pyc,|/uv_cache\.json,")
_OTHER = "the lock has another version"
_EDITABLE = re.compile(r".*\.(pth|egg-link)\Z|_?_editable_.*\.py\Z")


class Member(NamedTuple):
    """One file or link of a base: its path below the base, and what lstat says."""

    path: str
    status: os.stat_result


class Choice(NamedTuple):
    """What a lock makes of a base. ``reinstalled`` says why, by name; the others are names."""

    kept: frozenset[str]
    reinstalled: dict[str, str]
    removed: tuple[str, ...]


def read_base(path: str) -> Base:
    """Return what the venv at path is; raises GenerationError for one that no generation can start from."""
    venv = _open(path)
    try:
        manifest = read_manifest(venv.path) or {}
    except ManifestError:
        manifest = {}
    (site,) = venv.site_packages
    installed = read_installed([site])
    _refuse_what_points_into(venv, site)
    identity = _identity(venv, installed)
    overlays = {
        name: digest
        for name, digest in manifest.get("overlays", {}).items()
        if _digest_or_none(os.path.join(site, name)) == digest
    }
    return Base(venv.path, identity, _interpreter(venv), site, installed.versions, overlays)


def members(base: str) -> Iterator[Member]:
    """Everything of a base that a generation takes over, sorted; raises GenerationError for what is no file."""
    pending = [""]
    while pending:
        folder = pending.pop()
        with os.scandir(os.path.join(base, folder)) as entries:
            found = sorted(entries, key=lambda entry: entry.name, reverse=True)
        for entry in reversed(found):
            path = os.path.join(folder, entry.name)
            if _is_own(folder, entry.name):
                continue
            status = entry.stat(follow_symlinks=False)
            if stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
                yield Member(path, status)
            elif not stat.S_ISDIR(status.st_mode):
                raise GenerationError(f"neither a file nor a link nor a folder: {entry.path}: remove it from the base")
        folders = [entry.name for entry in found if entry.is_dir(follow_symlinks=False)]
        pending += [os.path.join(folder, name) for name in folders if not _is_own(folder, name)]


def names_of(base: str) -> list[bytes]:
    """The paths by which the files of a venv may name it: as it is called, and where it once stood."""
    names = {base}
    try:
        text = read_start(os.path.join(base, "bin", "activate"), _TEXT_LIMIT)
    except OSError:
        text = ""
    for quoted in re.findall(r"^\s*(?:export )?VIRTUAL_ENV=[\"']?([^\"'\n]+)[\"']?\s*$", text, re.MULTILINE):
        if os.path.isabs(quoted) and len(quoted.strip("/")) > 0 and "$" not in quoted:
            names.add(quoted.rstrip("/"))
    # The longest first: one may be the beginning of another.
    return [os.fsencode(name) for name in sorted(names, key=len, reverse=True)]


def renamed(data: bytes, names: Sequence[bytes], new: bytes) -> bytes:
    """A text in which a base is called something else; another folder whose name begins like it is not meant."""
    for name in names:
        data = re.sub(re.escape(name) + rb"(?![\w\x80-\xff-]|\.\w)", lambda found: new, data)
    return data


def plain_shebang(data: bytes) -> bytes:
    """A script that calls its interpreter through the shell, as installers write it for long paths, without that."""
    lines = data.split(b"\n", 3)
    called = _SHELL_LINE.match(lines[1]) if len(lines) == 4 else None
    if called and lines[0] == b"#!/bin/sh" and lines[2] == b"' '''":
        return b"#!" + called.group(1) + b"\n" + lines[3]
    return data


def choose(base: Base, lock: Sequence[LockEntry], markers: Mapping[str, str]) -> Choice:
    """Return what stays of a base under a lock; without a lock everything does.

    A distribution stays when the lock pins its very version, none of its code is missing, and what it shares with
    others holds its own content. A file that was changed on purpose, and that nobody else claims, is kept.
    """
    installed = read_installed([base.site_packages])
    if not lock:
        return Choice(frozenset(installed.versions), {}, ())
    kept: set[str] = set()
    reinstalled: dict[str, str] = {}
    removed: list[str] = []
    by_name: dict[str, list[Distribution]] = {}
    for distribution in installed.distributions:
        by_name.setdefault(distribution.name, []).append(distribution)
    for name, copies in sorted(by_name.items()):
        entries = [entry for entry in lock if entry.name == name]
        applying = [e for e in entries if e.marker is None or marker_applies(e.marker, markers) is not False]
        why = _why_not(copies, applying, installed)
        if not applying:
            removed.append(name)
        elif why:
            reinstalled[name] = why
        else:
            kept.add(name)
        if (why or not applying) and not any(copy.files for copy in copies):
            raise GenerationError(
                f"{name} has no list of its files, so that it cannot be left out: {copies[0].path}: "
                "reinstall it in the base from a wheel, or pin its version in the lock"
            )
    return Choice(frozenset(kept), reinstalled, tuple(removed))


def dropped_paths(base: Base, choice: Choice) -> tuple[frozenset[str], frozenset[str]]:
    """Return the absolute paths that are not copied, and the folders in which nobody's files are not either."""
    installed = read_installed([base.site_packages])
    going = {d.name for d in installed.distributions if d.name not in choice.kept}
    staying_paths = {row.path for d in installed.distributions if d.name not in going for row in d.files}
    gone_folders: set[str] = set()
    paths: set[str] = set()
    for distribution in installed.distributions:
        if distribution.name not in going:
            continue
        for row in distribution.files:
            if row.path not in staying_paths:
                paths.add(row.path)
                gone_folders.add(os.path.dirname(row.path))
        gone_folders.add(canonical(distribution.path))
    site = os.path.realpath(base.site_packages)
    # A reinstallation of the same version keeps what people added beside it; another version does not.
    staying_folders = {os.path.dirname(path) for path in staying_paths}
    for name in choice.reinstalled:
        same = [d for d in installed.distributions if d.name == name and choice.reinstalled[name] != _OTHER]
        staying_folders.update(os.path.dirname(row.path) for d in same for row in d.files)
    folders = {folder for folder in gone_folders - staying_folders if folder.startswith(site + "/")}
    folders |= {canonical(d.path) for d in installed.distributions if d.name in going}
    return frozenset(paths), frozenset(folders)


def _why_not(copies: Sequence[Distribution], entries: Sequence[LockEntry], installed: Installed) -> str:
    """Why a distribution of the base is not what the lock asks for; empty when it is."""
    if len(copies) > 1:
        return "it is installed more than once"
    (distribution,) = copies
    if not any(same_version(distribution.version, entry.version) for entry in entries):
        return _OTHER
    if len({entry.version for entry in entries}) > 1:
        return "a marker of the lock decides"
    for row in distribution.files:
        if is_code(row.path) and not os.path.exists(row.path):
            return f"{os.path.basename(row.path)} is missing"
        inside = row.path[len(os.path.realpath(distribution.site_packages)) + 1 :]
        shared = is_contested(inside) and len({owner.name for owner in installed.owners(row.path)}) > 1
        if shared and row.digest and _digest_or_none(row.path, in_record=True) != row.digest:
            return f"{os.path.basename(row.path)} holds what another distribution brought"
    return ""


def _open(path: str) -> Venv:
    try:
        venv = open_venv(os.path.realpath(path))
        configuration = read_start(os.path.join(venv.path, "pyvenv.cfg"), _TEXT_LIMIT)
    except VenvError as error:
        raise GenerationError(f"the base cannot be used: {error}") from error
    except OSError as error:
        raise GenerationError(f"the base cannot be read: {error.filename}: {error.strerror}") from error
    if len(venv.site_packages) != 1:
        raise GenerationError(
            f"the base keeps packages in two places, lib and lib64: {venv.path}: a generation has one: "
            "reinstall its packages into a new venv first"
        )
    if re.search(r"^\s*include-system-site-packages\s*=\s*true\s*$", configuration, re.MULTILINE | re.IGNORECASE):
        raise GenerationError(
            f"the base also uses the packages of the operating system's Python: {venv.path}: they change with every "
            "update: list them in a lock instead"
        )
    return venv


def _interpreter(venv: Venv) -> str:
    if not venv.python.startswith(venv.path + "/"):
        return venv.python
    # Made with --copies: the interpreter that it was copied from is at home.
    for line in read_start(os.path.join(venv.path, "pyvenv.cfg"), _TEXT_LIMIT).splitlines():
        key, _sep, value = line.partition("=")
        if key.strip().lower() == "home":
            return os.path.join(value.strip(), f"python{venv.feature_version}")
    raise GenerationError(f"the base does not say which Python it is made of: {venv.path}/pyvenv.cfg: name no base")


def _refuse_what_points_into(venv: Venv, site: str) -> None:
    """A generation would go on importing from the base through such a line, whatever becomes of the base."""
    names = [os.fsdecode(name) for name in names_of(venv.path)]
    for name in sorted(os.listdir(site)):
        if not _EDITABLE.match(name):
            continue
        try:
            lines = read_start(os.path.join(site, name), _TEXT_LIMIT).splitlines()
        except OSError as error:
            raise GenerationError(f"the base cannot be read: {site}/{name}: {error.strerror}") from error
        for line in lines:
            if any(base + "/" in line + "/" for base in names):
                raise GenerationError(
                    f"the base imports from itself by its own path: {site}/{name}: '{line.strip()[:80]}': "
                    "install that distribution from a wheel first"
                )


def editable_paths(site: str) -> list[str]:
    """Folders outside that ``.pth`` files and editable installations add, which no generation can hold."""
    found = []
    for name in sorted(os.listdir(site)):
        if not name.endswith((".pth", ".egg-link")):
            continue
        for line in read_start(os.path.join(site, name), _TEXT_LIMIT).splitlines():
            if os.path.isabs(line.strip()):
                found.append(line.strip())
    return found


def _is_own(folder: str, name: str) -> bool:
    if not folder:
        return name in _OWN_TOP
    return folder == "bin" and bool(_OWN_SCRIPT.match(name)) or name.startswith("~") and folder.endswith("-packages")


def _identity(venv: Venv, installed: Installed) -> str:
    """The hash of a base's content, the same wherever it stands and whenever it was installed.

    Byte code follows from the sources. A RECORD counts without the rows of scripts, which name the venv's own path.
    """
    names = names_of(venv.path)
    recorded = _recorded(installed)
    digest = hashlib.sha256()
    for path, status in sorted(members(venv.path)):
        if path.endswith((".pyc", *_VOLATILE)):
            continue
        place = f"{venv.path}/{path}"
        try:
            if stat.S_ISLNK(status.st_mode):
                content = "link " + _relative_target(os.readlink(place), names)
            else:
                content = f"{status.st_mode & 0o100} " + _content(place, status, recorded.get(place), names)
        except OSError as error:
            raise GenerationError(f"the base cannot be read: {place}: {error.strerror}") from error
        digest.update(f"{path!r} {content}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _recorded(installed: Installed) -> dict[str, tuple[str, int, float]]:
    """{path: digest, size and time of its RECORD} of the files below site-packages that one distribution claims."""
    found = {}
    shared = installed.shared()
    for distribution in installed.distributions:
        try:
            written = os.stat(os.path.join(distribution.path, "RECORD")).st_mtime
        except OSError:
            continue
        site = os.path.realpath(distribution.site_packages) + "/"
        for row in distribution.files:
            if row.digest and row.size is not None and row.path.startswith(site) and row.path not in shared:
                found[row.path] = (row.digest, row.size, written)
    return found


def _relative_target(target: str, names: Sequence[bytes]) -> str:
    for name in map(os.fsdecode, names):
        if target.startswith(name + "/"):
            return "@base@" + target[len(name) :]
    return target


def _content(
    place: str, status: os.stat_result, recorded: tuple[str, int, float] | None, names: Sequence[bytes]
) -> str:
    """The digest of a file: RECORD's where size and time say that it is as it was installed, as git and rsync do."""
    if recorded and status.st_size == recorded[1] and status.st_mtime <= recorded[2]:
        return recorded[0]
    if recorded or status.st_size > _TEXT_LIMIT:
        return record_digest(sha256_of(place))
    with open_regular(place) as stream:
        data = stream.read(_TEXT_LIMIT + 1)
    if place.endswith(".dist-info/RECORD"):
        data = b"\n".join(row for row in data.splitlines() if not _UNSTEADY_ROW.search(row))
    elif b"\0" not in data[:4096]:
        data = renamed(plain_shebang(data), names, b"@base@")
    return record_digest(hashlib.sha256(data).hexdigest())


def _digest_or_none(path: str, in_record: bool = False) -> str | None:
    try:
        found = sha256_of(path)
    except OSError:
        return None
    return record_digest(found) if in_record else found
