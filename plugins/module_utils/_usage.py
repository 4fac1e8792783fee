# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who uses a folder: running processes, and releases of instances. Private to the collection."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ansible_collections.gpufleet.dflash.plugins.module_utils import _release
from ansible_collections.gpufleet.dflash.plugins.module_utils._files import read_regular
from ansible_collections.gpufleet.dflash.plugins.module_utils._history import ACTIVATING, FAILED, History
from ansible_collections.gpufleet.dflash.plugins.module_utils._release import (
    Instance,
    ReleaseError,
    release_of_unit,
    staged_releases,
)


class UsageError(Exception):
    """It cannot be told who uses what; the text says why."""


class ReleaseUse(NamedTuple):
    """A release that needs a generation, and why it must stay; ``why`` is empty for one that nobody goes back to."""

    folder: str
    generation: str
    why: str


def processes_in(paths: Sequence[str]) -> dict[str, str]:
    """Return {path: who} for the folders that a running process is executed from, has mapped or stands in."""
    prefixes = {path: os.fsencode(path) + b"/" for path in paths}
    found: dict[str, str] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        words, texts = _traces(entry)
        for path, prefix in prefixes.items():
            if path not in found and any(prefix in text for text in texts):
                name = os.fsdecode(b" ".join(words))[:80].strip()
                found[path] = f"PID {entry} ({name})"
    return found


def _traces(pid: str) -> tuple[list[bytes], list[bytes]]:
    """The command line of a process, and the texts in which a folder that it uses would appear."""
    words: list[bytes] = []
    texts: list[bytes] = []
    with contextlib.suppress(OSError):
        words = Path("/proc", pid, "cmdline").read_bytes().split(b"\0")
        # A word that merely mentions a path is no use of it: the program and what an interpreter runs are.
        texts += [word + b"/" for word in words[:2] if word.startswith(b"/")]
    with contextlib.suppress(OSError):
        texts.append(Path("/proc", pid, "maps").read_bytes())
    for link in ("exe", "cwd"):
        with contextlib.suppress(OSError):
            texts.append(os.fsencode(os.readlink(f"/proc/{pid}/{link}")) + b"/")
    return words, texts


def units_with(names: Sequence[str]) -> dict[str, str]:
    """Return {name: unit} of the folder names that stand in the path of a unit of this host.

    Whatever became of the releases: the unit may be of an instance below another root, or come by another path.
    """
    found: dict[str, str] = {}
    for place in sorted(Path(_release.UNIT_FOLDER).glob("*.service")):
        with contextlib.suppress(OSError):
            text = read_regular(str(place)).decode("utf-8", errors="replace")
            for name in names:
                if f"/{name}/" in text:
                    found.setdefault(name, place.name)
    return found


def releases(root: str, going_back: int | None) -> Iterator[ReleaseUse]:
    """Yield every staged release below root.

    A release stays when its unit is installed, when nobody has tried it yet, or when it was verified and can be
    gone back to: ``going_back`` of these an instance, the ones verified last; None for all. While an instance is
    being switched all of these stay, for the way back is not known yet. Raises UsageError.
    """
    try:
        names = sorted(os.listdir(os.path.join(root, "instances")))
    except FileNotFoundError:
        return
    for name in names:
        try:
            instance = Instance.named(root, name)
        except ReleaseError:
            continue
        yield from _of_instance(instance, going_back)


def _of_instance(instance: Instance, going_back: int | None) -> Iterator[ReleaseUse]:
    try:
        history = History(instance.history_path)
        installed = release_of_unit(instance.installed_unit())
    except OSError as error:
        raise UsageError(f"cannot be read: {error.filename}: {error.strerror}") from error
    switching = bool(history.events) and history.events[-1].event == ACTIVATING
    verified = history.verified_releases()[: None if switching else going_back]
    last = {event.release: event.event for event in history.events}
    for release in sorted(staged_releases(instance)):
        folder = instance.release_folder(release)
        place = os.path.join(folder, "release.json")
        try:
            generation = json.loads(read_regular(place))["generation"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise UsageError(f"cannot be read: {place}: {error}") from error
        why = ""
        if release == installed:
            why = f"{instance.name} runs it (release {release})"
        elif release in verified:
            why = f"{instance.name} can go back to it (release {release})"
        elif release not in last:
            why = f"it is staged for {instance.name} (release {release})"
        elif last[release] != FAILED and not history.is_verified(release):
            why = f"{instance.name} was being switched to it (release {release})"
        yield ReleaseUse(folder, os.path.normpath(str(generation)), why)
