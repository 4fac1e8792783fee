# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files that tell Prometheus of an instance: metrics for node_exporter's textfile collector, and a target to scrape.

What they say follows from the installed release and its history alone, so that writing them again changes nothing.
This module is private to the collection: it can change at any time.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from ansible_collections.gpufleet.dflash.plugins.module_utils._files import read_regular, write_atomically
from ansible_collections.gpufleet.dflash.plugins.module_utils._history import FAILED, VERIFIED, History
from ansible_collections.gpufleet.dflash.plugins.module_utils._release import (
    Instance,
    Release,
    ReleaseError,
    health_spec,
    read_release,
    release_of_unit,
)

# What has been written, in the instance's folder: an option that is taken away must not leave a file behind.
RECORD = "exports.json"
_METRICS_FLAG = re.compile(r'^ExecStart=.*[ "]--enable-metrics(?:[ "]|$)', re.MULTILINE)


@dataclass(frozen=True)
class Exports:
    """Where the files are wanted; empty: nowhere."""

    textfile_dir: str = ""
    scrape_dir: str = ""

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Exports:
        """Return the exports of a module's options; raises ReleaseError for a folder that is not there."""
        given = {name: str(options.get(name) or "") for name in ("textfile_dir", "scrape_dir")}
        for name, folder in given.items():
            if folder and not (os.path.isabs(folder) and os.path.isdir(folder)):
                raise ReleaseError(
                    f"no such folder: {name}: {folder}: install what reads it, such as node_exporter, or correct it"
                )
        return cls(**given)

    def refresh(self, instance: Instance, dry: bool = False) -> list[str]:
        """Write what is not as it should be, and remove what is not wanted any more; return those paths.

        C(dry): only say which. Raises OSError.
        """
        wanted = self._wanted(instance)
        stale = [path for path in recorded(instance) if path not in wanted and os.path.lexists(path)]
        changed = [path for path, text in wanted.items() if _content(path) != text]
        if dry or not (stale or changed or set(recorded(instance)) != set(wanted)):
            return sorted(changed + stale)
        # The record first: whatever happens then, nothing is left that nobody knows of.
        record = json.dumps({"paths": sorted({*wanted, *stale})}) + "\n"
        write_atomically(os.path.join(instance.folder, RECORD), record.encode())
        for path in changed:
            write_atomically(path, wanted[path].encode())
        for path in stale:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        if stale:
            record = json.dumps({"paths": sorted(wanted)}) + "\n"
            write_atomically(os.path.join(instance.folder, RECORD), record.encode())
        return sorted(changed + stale)

    def _wanted(self, instance: Instance) -> dict[str, str]:
        installed = release_of_unit(instance.installed_unit())
        try:
            release = read_release(instance, installed or "")
        except ReleaseError:
            return {}  # nothing is installed, or something that nobody can vouch for
        found = {}
        if self.textfile_dir:
            text = metrics(instance, release, History(instance.history_path))
            found[os.path.join(self.textfile_dir, _name(instance, "prom"))] = text
        target = scrape_target(instance, release)
        if self.scrape_dir and target:
            text = json.dumps([target], indent=2, sort_keys=True) + "\n"
            found[os.path.join(self.scrape_dir, _name(instance, "json"))] = text
        return found


def recorded(instance: Instance) -> list[str]:
    """Return the paths that were written for an instance."""
    try:
        paths = json.loads(read_regular(os.path.join(instance.folder, RECORD)))["paths"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []
    names = (_name(instance, "prom"), _name(instance, "json"))
    # Whoever can write the record must not gain the removal of other files by it.
    return [path for path in paths if isinstance(path, str) and os.path.basename(path) in names] if paths else []


def metrics(instance: Instance, release: Release, history: History) -> str:
    """Return the text for the textfile collector."""
    of_release = [event for event in history.events if event.release == release.id]
    verified = [event for event in of_release if event.event == VERIFIED]
    numbers = next((event for event in reversed(verified) if event.tokens_per_second), None)
    last = verified[-1] if verified else None
    label = f'instance_name="{instance.name}"'
    info = (
        f'{label},release="{release.id}",generation="{os.path.basename(release.generation)}",engine="{release.engine}"'
    )
    rows: list[tuple[str, str, str, str, float | None]] = [
        ("dflash_release_info", "gauge", "The release that is installed.", info, 1),
        (
            "dflash_release_verified",
            "gauge",
            "Whether the last verification of the installed release passed.",
            label,
            int(history.is_verified(release.id)),
        ),
        (
            "dflash_release_verified_timestamp_seconds",
            "gauge",
            "When the installed release was last verified.",
            label,
            last.seconds if last else None,
        ),
        (
            "dflash_activation_failures_total",
            "counter",
            "Releases of this instance that did not become healthy.",
            label,
            sum(event.event == FAILED for event in history.events),
        ),
        (
            "dflash_accept_length",
            "gauge",
            "Mean tokens that one verification yielded, when the release was last verified.",
            label,
            last.accept_length if last else None,
        ),
        (
            "dflash_tokens_per_second",
            "gauge",
            "Tokens per second of the built-in probe or benchmark, when the release was last measured.",
            label,
            numbers.tokens_per_second if numbers else None,
        ),
    ]
    return "".join(
        f"# HELP {name} {text}\n# TYPE {name} {kind}\n{name}{{{labels}}} {value:.12g}\n"
        for name, kind, text, labels, value in rows
        if value is not None
    )


def scrape_target(instance: Instance, release: Release) -> dict[str, Any] | None:
    """Return a group of Prometheus's file_sd for the engine's own metrics; None where it has none."""
    if release.engine == "sglang" and not _METRICS_FLAG.search(release.unit):
        return None
    labels = {"__metrics_path__": "/metrics", "instance_name": instance.name, "engine": release.engine}
    return {"targets": [urlsplit(health_spec(instance, release).url).netloc], "labels": labels}


def _name(instance: Instance, extension: str) -> str:
    return f"dflash_{instance.name}.{extension}"


def _content(path: str) -> str | None:
    try:
        return read_regular(path).decode("utf-8", errors="replace")
    except OSError:
        return None
