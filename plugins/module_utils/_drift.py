# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The difference between what is installed and what a lock says. Private to the collection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ansible_collections.gpufleet.dflash.plugins.module_utils._lock import LockEntry
from ansible_collections.gpufleet.dflash.plugins.module_utils._requirements import marker_applies, marker_environment
from ansible_collections.gpufleet.dflash.plugins.module_utils._versions import fulfils_pin
from ansible_collections.gpufleet.dflash.plugins.module_utils._wheels import Distribution

# What venv and virtualenv put into an environment themselves; no lock of a service lists them.
_SEEDED = frozenset({"pip", "setuptools", "wheel"})


@dataclass
class Drift:
    """``missing`` are pins of which no version is installed, ``wrong`` pairs of what is installed and the pin.

    ``unjudged`` are pins whose marker cannot be evaluated, for want of the ``packaging`` library as a rule.
    """

    missing: list[LockEntry] = field(default_factory=list)
    wrong: list[tuple[Distribution, LockEntry]] = field(default_factory=list)
    extra: list[Distribution] = field(default_factory=list)
    unjudged: list[LockEntry] = field(default_factory=list)

    def as_dict(self) -> dict[str, list[str]]:
        """The part of the module's result."""
        return {
            "missing": [entry.pin for entry in self.missing],
            "different": [f"{found.pin}, locked {entry.version}" for found, entry in self.wrong],
            "extra": [distribution.pin for distribution in self.extra],
            "unjudged": [entry.pin for entry in self.unjudged],
        }


def compare(
    entries: Sequence[LockEntry], distributions: Sequence[Distribution], site_packages: Sequence[str], version: str
) -> Drift:
    """Compare a lock with the distributions of the venv's own site-packages; ``version`` is its Python's."""
    drift = Drift()
    installed: dict[str, Distribution] = {}
    for distribution in distributions:
        if distribution.site_packages in site_packages:
            installed.setdefault(distribution.name, distribution)
    chosen = _applicable(entries, marker_environment(version), drift)
    for name, entry in chosen.items():
        found = installed.get(name)
        if found is None:
            drift.missing.append(entry)
        elif not fulfils_pin(found.version, entry.version):
            drift.wrong.append((found, entry))
    known = {*chosen, *(entry.name for entry in drift.unjudged), *_SEEDED}
    drift.extra = [found for name, found in sorted(installed.items()) if name not in known]
    return drift


def _applicable(entries: Sequence[LockEntry], environment: Mapping[str, str], drift: Drift) -> dict[str, LockEntry]:
    """{name: entry} of what the lock installs for this Python on this machine."""
    chosen: dict[str, LockEntry] = {}
    for entry in entries:
        applies = True if entry.marker is None else marker_applies(entry.marker, environment)
        if applies is None:
            drift.unjudged.append(entry)
        elif applies:
            chosen[entry.name] = entry
    return chosen
