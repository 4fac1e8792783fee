# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judge the difference from a lock. Private to the collection."""

from __future__ import annotations

from collections.abc import Iterator

from ansible_collections.gpufleet.dflash.plugins.module_utils._findings import Facts, Problem
from ansible_collections.gpufleet.dflash.plugins.module_utils._repair import Repair
from ansible_collections.gpufleet.dflash.plugins.module_utils._versions import local_tag


def lock_drift(facts: Facts, repair: Repair) -> Iterator[Problem]:
    """What is not installed, what is in another version or build, and what the lock does not know."""
    drift = facts.drift
    if drift is None:
        return
    if drift.missing:
        pins = [entry.pin for entry in drift.missing]
        yield Problem(
            "lock-drift",
            f"the lock has {_listed(pins)}, and {'they are' if len(pins) > 1 else 'it is'} not installed",
            repair.install_pins(pins, []),
            distributions=tuple(entry.name for entry in drift.missing),
            evidence=", ".join(pins),
        )
    if drift.wrong:
        pairs = [f"{found.pin} is installed, the lock has {entry.version}" for found, entry in drift.wrong]
        builds = [entry.name for found, entry in drift.wrong if _other_build(found.version, entry.version)]
        more = f"; of {', '.join(builds)} only the build differs" if builds else ""
        yield Problem(
            "lock-drift",
            f"{_listed(pairs)}{more}",
            repair.install_pins([entry.pin for _found, entry in drift.wrong], [found for found, _entry in drift.wrong]),
            distributions=tuple(found.name for found, _entry in drift.wrong),
            paths=tuple(found.path for found, _entry in drift.wrong),
            evidence="; ".join(pairs),
        )
    if drift.extra:
        yield Problem(
            "lock-drift",
            f"the lock does not have {_listed([found.pin for found in drift.extra])}",
            repair.without([found.name for found in drift.extra]),
            distributions=tuple(found.name for found in drift.extra),
            paths=tuple(found.path for found in drift.extra),
            evidence=", ".join(found.pin for found in drift.extra),
        )


def _other_build(installed: str, pinned: str) -> bool:
    return installed.partition("+")[0] == pinned.partition("+")[0] and local_tag(installed) != local_tag(pinned)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
