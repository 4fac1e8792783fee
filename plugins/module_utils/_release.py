# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Releases: a generation with one instance's unit and health rules, named by their hash. Private to the collection."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import pwd
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ansible_collections.gpufleet.dflash.plugins.module_utils._files import (
    check_root,
    read_regular,
    write_atomically,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._health_spec import HealthSpec
from ansible_collections.gpufleet.dflash.plugins.module_utils._manifest import is_generation

SCHEMA = 1
UNIT_FOLDER = "/etc/systemd/system"
# In the text of a unit this stands for the release's own name, which is not known before the text is hashed.
RELEASE_MARK = "@release@"
SECRETS_FILE = "server.yaml"

_INSTANCE_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?\Z")
_RELEASE_NAME = re.compile(r"[0-9a-f]{16}\Z")
_USER_LINE = re.compile(r"^User=(\S+)$", re.MULTILINE)
_RELEASE_LINE = re.compile(r"^Environment=DFLASH_RELEASE=([0-9a-f]{16})$", re.MULTILINE)


class ReleaseError(Exception):
    """A release that cannot be staged or used; the text says what, where and what to do."""


class Instance(NamedTuple):
    """One engine service of a host: where its things are."""

    root: str
    name: str

    @classmethod
    def named(cls, root: str, name: str) -> Instance:
        """Return an instance after checking its name, which becomes part of paths and of the unit's name."""
        check_instance_name(name)
        return cls(check_root(root, ReleaseError), name)

    @property
    def folder(self) -> str:
        """The instance's own folder."""
        return os.path.join(self.root, "instances", self.name)

    @property
    def unit(self) -> str:
        """Name of the systemd unit."""
        return f"sglang-dflash-{self.name}.service"

    @property
    def unit_path(self) -> str:
        """Where systemd finds the unit."""
        return os.path.join(UNIT_FOLDER, self.unit)

    @property
    def history_path(self) -> str:
        """Where the history is kept."""
        return os.path.join(self.folder, "history.jsonl")

    @property
    def lock_path(self) -> str:
        """Held while the service is changed."""
        return os.path.join(self.folder, ".lock")

    @property
    def progress_path(self) -> str:
        """Where a running change writes its latest line of progress."""
        return os.path.join(self.folder, ".progress")

    def release_folder(self, release: str) -> str:
        """The folder of one release."""
        return os.path.join(self.folder, "releases", release)

    def secrets_path(self, release: str) -> str:
        """Where a release keeps what only root may read."""
        return os.path.join(self.release_folder(release), SECRETS_FILE)

    def installed_unit(self) -> str:
        """Return the text of the unit that systemd has; empty when there is none."""
        try:
            return read_regular(self.unit_path).decode("utf-8", errors="replace")
        except FileNotFoundError:
            return ""

    def staged_unit(self, release: str) -> str | None:
        """Return the text of a release's unit as it was staged; None when it is not there."""
        try:
            return read_regular(os.path.join(self.release_folder(release), self.unit)).decode("utf-8", errors="replace")
        except OSError:
            return None


class Release(NamedTuple):
    """What a release holds."""

    id: str
    unit: str  # text, with the release's name in it
    generation: str  # path
    engine: str
    health: dict[str, Any]
    validate: list[str]  # the command that judges the unit's arguments; empty: there is none
    hooks: dict[str, Any] = {}  # pre_stop and post_start
    secrets: dict[str, str] = {}  # settings that stand in a file of the service's own, in the engine's words


def make_release(
    unit: str,
    generation: str,
    engine: str,
    health: Mapping[str, Any],
    validate: Sequence[str] = (),
    hooks: Mapping[str, Any] | None = None,
    secrets: Mapping[str, str] | None = None,
) -> Release:
    """Return the release of these inputs, named by their hash. Secrets count, and cannot be guessed from the name."""
    if f"Environment=DFLASH_RELEASE={RELEASE_MARK}" not in unit.splitlines():
        raise ReleaseError(
            f"the unit does not name its release: it needs the line 'Environment=DFLASH_RELEASE={RELEASE_MARK}', "
            "by which a running process is recognised"
        )
    inputs = {
        "schema": SCHEMA,
        "unit": unit,
        "generation": generation,
        "engine": engine,
        "health": dict(health),
        "validate": list(validate),
        "hooks": dict(hooks or {}),
    }
    text = json.dumps(inputs, sort_keys=True).encode()
    if secrets:
        # Everybody on the host can read all other inputs and the name: trying out keys must be slow.
        text += _stretched(_secrets_text(secrets), hashlib.sha256(text).digest())
    digest = hashlib.sha256(text).hexdigest()[:16]
    return Release(
        digest,
        unit.replace(RELEASE_MARK, digest),
        generation,
        engine,
        dict(health),
        list(validate),
        dict(hooks or {}),
        dict(secrets or {}),
    )


@functools.lru_cache(maxsize=8)
def _stretched(secret: bytes, salt: bytes) -> bytes:
    return hashlib.pbkdf2_hmac("sha256", secret, salt, 600_000)


def _secrets_text(secrets: Mapping[str, str]) -> bytes:
    """Return the configuration file of the engine; JSON is YAML as well."""
    return (json.dumps(dict(secrets), sort_keys=True) + "\n").encode()


def health_spec(instance: Instance, release: Release) -> HealthSpec:
    """Return how a release is verified; raises ReleaseError for rules that this version does not know."""
    try:
        keys = {"api_key_file": instance.secrets_path(release.id)} if release.secrets else {}
        return HealthSpec.from_mapping({**release.health, "unit": instance.unit, "release": release.id, **keys})
    except (ValueError, TypeError) as error:
        raise ReleaseError(f"the health rules of release {release.id} cannot be used: {error}") from error


def release_of_unit(text: str) -> str | None:
    """Return the release that a unit's text belongs to; None when it is not one of ours."""
    found = _RELEASE_LINE.search(text)
    return found.group(1) if found else None


def check_instance_name(name: str) -> None:
    """Raise ReleaseError for what cannot name an instance; it becomes part of paths and of the unit's name."""
    if not _INSTANCE_NAME.match(name):
        raise ReleaseError(
            f"not a usable name for an instance: '{name}': use up to 40 lower-case letters, digits and dashes"
        )


def check_release_name(release: str) -> None:
    """Raise ReleaseError for what is not the name of a release, before it becomes part of a path."""
    if not _RELEASE_NAME.match(release):
        raise ReleaseError(f"not the name of a release: '{release}': it has 16 hexadecimal digits")


def is_staged(instance: Instance, release: str) -> bool:
    """Whether a release's folder is there; it is put in its place whole."""
    return os.path.exists(os.path.join(instance.release_folder(release), "release.json"))


def holds(instance: Instance, release: Release) -> bool:
    """Whether a release's folder holds just what the release is."""
    folder = instance.release_folder(release.id)
    try:
        return all(
            Path(folder, name).read_bytes() == content and os.stat(os.path.join(folder, name)).st_mode & 0o777 == mode
            for name, (content, mode) in _files(instance, release).items()
        ) and (not release.secrets or os.stat(os.path.join(folder, SECRETS_FILE)).st_uid == _reader(release.unit))
    except OSError:
        return False


def stage(instance: Instance, release: Release) -> None:
    """Put a release's folder in its place, whole or not at all; what is there and whole is left as it is."""
    if holds(instance, release):
        return
    place = instance.release_folder(release.id)
    parent = os.path.dirname(place)
    os.makedirs(parent, mode=0o755, exist_ok=True)
    partial = tempfile.mkdtemp(prefix=".new-", dir=parent)
    aside = f"{partial}-damaged"
    try:
        for name, (content, mode) in _files(instance, release).items():
            write_atomically(os.path.join(partial, name), content, mode)
        if release.secrets:
            os.chown(os.path.join(partial, SECRETS_FILE), _reader(release.unit), -1)
        os.chmod(partial, 0o755)
        if os.path.lexists(place):  # somebody has taken files away, or changed them
            os.rename(place, aside)
        os.rename(partial, place)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(aside, ignore_errors=True)


def _files(instance: Instance, release: Release) -> dict[str, tuple[bytes, int]]:
    """Return the files of a release's folder with their modes, by name."""
    description = {
        "schema": SCHEMA,
        "id": release.id,
        "instance": instance.name,
        "generation": release.generation,
        "engine": release.engine,
        "health": release.health,
        "validate": release.validate,
        "hooks": release.hooks,
        "secrets": sorted(release.secrets),
    }
    text = json.dumps(description, indent=2, sort_keys=True) + "\n"
    files = {instance.unit: (release.unit.encode(), 0o644), "release.json": (text.encode(), 0o644)}
    if release.secrets:
        files[SECRETS_FILE] = (_secrets_text(release.secrets), 0o400)
    return files


def _reader(unit: str) -> int:
    """Return the number of the account that a unit runs as, the only one besides root that may read its secrets."""
    name = _USER_LINE.search(unit)
    try:
        return pwd.getpwnam(name.group(1)).pw_uid if name else 0
    except KeyError as error:
        raise ReleaseError(f"the unit's user does not exist: {name and name.group(1)}: create it") from error


def read_release(instance: Instance, release: str) -> Release:
    """Return a staged release; raises ReleaseError when it, or the generation it needs, is not whole."""
    check_release_name(release)
    folder = instance.release_folder(release)
    try:
        description = json.loads(read_regular(os.path.join(folder, "release.json")))
        unit = read_regular(os.path.join(folder, instance.unit)).decode("utf-8")
        found = Release(
            str(description["id"]),
            unit,
            str(description["generation"]),
            str(description["engine"]),
            dict(description["health"]),
            [str(word) for word in description.get("validate", [])],
            dict(description.get("hooks") or {}),
            _read_secrets(instance, release) if description.get("secrets") else {},
        )
    except FileNotFoundError as error:
        known = ", ".join(sorted(staged_releases(instance))) or "none"
        raise ReleaseError(f"no such release: {folder}: staged for {instance.name}: {known}") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ReleaseError(f"a damaged release: {folder}: {error}: remove the folder and deploy again") from error
    pristine = unit.replace(release, RELEASE_MARK)
    if found.id != release or release_of_unit(unit) != release or found != _made(pristine, found):
        # Its name is the hash of what it was: a unit that somebody edited here has been judged by nobody.
        raise ReleaseError(f"a damaged release: {folder}: it is not what its name says: remove it and deploy again")
    health_spec(instance, found)
    if not is_generation(found.generation):
        raise ReleaseError(f"the generation of release {release} is gone: {found.generation}: deploy again to build it")
    return found


def _read_secrets(instance: Instance, release: str) -> dict[str, str]:
    found = json.loads(read_regular(instance.secrets_path(release)))
    return {str(name): str(value) for name, value in found.items()}


def _made(unit: str, found: Release) -> Release | None:
    try:
        return make_release(unit, *found[2:])
    except ReleaseError:
        return None


def instances_below(root: str) -> list[str]:
    """Return the names of the instances that have a folder."""
    try:
        return sorted(entry.name for entry in os.scandir(os.path.join(root, "instances")) if entry.is_dir())
    except OSError:
        return []


def staged_releases(instance: Instance) -> list[str]:
    """Return the names of the releases on disk."""
    try:
        names = os.listdir(os.path.join(instance.folder, "releases"))
    except OSError:
        return []
    return [name for name in names if _RELEASE_NAME.match(name) and is_staged(instance, name)]
