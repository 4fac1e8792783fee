# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judge an uninstall before anybody types it. Private to the collection."""

from __future__ import annotations

import os
from collections.abc import Iterator

from ansible_collections.gpufleet.dflash.plugins.module_utils._findings import Facts, Problem
from ansible_collections.gpufleet.dflash.plugins.module_utils._removal import Failure, Removal
from ansible_collections.gpufleet.dflash.plugins.module_utils._repair import Repair
from ansible_collections.gpufleet.dflash.plugins.module_utils._wheels import is_code, is_shared_object


def uninstall_would_break(facts: Facts, repair: Repair) -> Iterator[Problem]:
    """Files of others that an uninstall deletes, and what then cannot be loaded (sgl-project/sglang#31035)."""
    removal = facts.removal
    if removal is None:
        return
    curable = [failure for failure in removal.failures if failure.curable]
    if removal.losses:
        yield _losses(facts, repair, removal, curable)
    lasting = [failure for failure in removal.failures if not failure.curable]
    if lasting:
        yield _failing(removal, lasting)
    elif removal.unmet:
        yield _unmet(removal)


def _losses(facts: Facts, repair: Repair, removal: Removal, failures: list[Failure]) -> Problem:
    lost = list(dict.fromkeys(path for paths in removal.losses.values() for path in paths))
    shown = sorted(lost, key=lambda path: (not is_shared_object(path), not is_code(path), path))
    pins = {owner.name: owner.pin for owner in facts.installed.distributions}
    counted = " and ".join(f"{len(paths)} of {pins[name]}" for name, paths in removal.losses.items())
    return Problem(
        "uninstall-would-break",
        f"uninstalling {_names(removal)} deletes files of what stays: {counted}, such as "
        f"{os.path.relpath(shown[0], os.path.realpath(facts.venv.path))}",
        f"keep {_names(removal)}, or remove in this order: {repair.uninstall([d.name for d in removal.going])}",
        object=shown[0],
        soname=next((failure.soname for failure in failures if failure.soname), None),
        distributions=(*(d.name for d in removal.going), *removal.losses),
        paths=tuple(shown),
        evidence=_evidence(failures) or f"RECORD of each lists these {len(lost)} files",
        # Headers and licences: untidy, but nothing fails to load.
        severity="" if failures or any(is_code(path) for path in lost) else "warning",
    )


def _failing(removal: Removal, failures: list[Failure]) -> Problem:
    targets = ", ".join(failure.target for failure in failures)
    return Problem(
        "uninstall-would-break",
        f"after uninstalling {_names(removal)}, {targets} cannot be loaded any more: {failures[0].words}",
        f"keep {_names(removal)}, or take {targets} out of the service first",
        object=next((failure.object for failure in failures if failure.object), None),
        soname=next((failure.soname for failure in failures if failure.soname), None),
        distributions=tuple(d.name for d in removal.going),
        paths=tuple(dict.fromkeys(failure.object for failure in failures if failure.object)),
        evidence="; ".join(filter(None, [_evidence(failures), _requirements(removal)])),
    )


def _unmet(removal: Removal) -> Problem:
    return Problem(
        "uninstall-would-break",
        f"uninstalling {_names(removal)} takes what others require: {_requirements(removal)}",
        f"keep {_names(removal)}, or remove what requires it too",
        distributions=(
            *(d.name for d in removal.going),
            *dict.fromkeys(owner.name for unmet in removal.unmet for owner in unmet.required_by),
        ),
        evidence="; ".join(f"Requires-Dist of {unmet.required_by[0].path}/METADATA" for unmet in removal.unmet),
    )


def _requirements(removal: Removal) -> str:
    return ", ".join(
        f"{owner.name} requires {unmet.requirement}" for unmet in removal.unmet for owner in unmet.required_by
    )


def _names(removal: Removal) -> str:
    return " and ".join(distribution.name for distribution in removal.going)


def _evidence(failures: list[Failure]) -> str:
    return "; ".join(f"{failure.target}: {failure.words}" for failure in failures)
