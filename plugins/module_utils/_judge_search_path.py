# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judge where the loader is told to look. Private to the collection."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from ansible_collections.gpufleet.dflash.plugins.module_utils._findings import Facts, Problem
from ansible_collections.gpufleet.dflash.plugins.module_utils._repair import Repair
from ansible_collections.gpufleet.dflash.plugins.module_utils._search_paths import WeakElement


def insecure(facts: Facts, repair: Repair) -> Iterator[Problem]:
    """Directories that are not the same for every process, or that everybody may write to (infiniflow/ragflow#4466)."""
    for weak in facts.weak_library_path:
        yield Problem(
            "insecure-search-path",
            f"the LD_LIBRARY_PATH {_where(facts)} {weak.reason}",
            _correct(facts),
            paths=(weak.element,) if weak.element else (),
            evidence=f"LD_LIBRARY_PATH={weak.value}",
        )
    by_directory: dict[str, list[WeakElement]] = {}
    for weak in facts.weak_run_paths:
        by_directory.setdefault(weak.directory, []).append(weak)
    for directory, found in by_directory.items():
        first = found[0]
        owners = facts.owners(first.object or "")
        more = f" (and of {len(found) - 1} more)" if len(found) > 1 else ""
        yield Problem(
            "insecure-search-path",
            f"the {first.variable} of {os.path.basename(first.object or '')}{more} {first.reason}",
            f"chmod o-w {directory}" if os.path.isdir(directory) else "use a build without that path in it",
            object=first.object,
            distributions=tuple(owner.name for owner in owners),
            paths=tuple(weak.object for weak in found if weak.object),
            evidence=f"{first.variable}={first.value}",
        )


def stale_cache(facts: Facts, repair: Repair) -> Iterator[Problem]:
    """Libraries that the loader does not find, or finds elsewhere, until somebody runs ldconfig."""
    for stale in facts.stale_names:
        directory = os.path.dirname(stale.file)
        state = f"does not lead to {stale.file}" if stale.listed is None else f"leads to {stale.listed}, which is gone"
        if stale.loaded is None:
            message = (
                f"{stale.soname} is not found, although {directory} has it: ld.so.cache is out of date, it {state}"
            )
            fix = "run ldconfig as root (in an image: as the last step that installs libraries)"
        else:
            message = (
                f"{stale.soname} is {stale.loaded} until somebody runs ldconfig, and {stale.file} from then on: "
                f"ld.so.cache is out of date, it {state}"
            )
            fix = "run ldconfig as root and look at the facts again, or remove the copy that is not wanted"
        owners = facts.owners(stale.needed_by or "")
        yield Problem(
            "stale-cache",
            message,
            fix,
            object=None if stale.needed_by == facts.venv.python else stale.needed_by,
            soname=stale.soname,
            distributions=tuple(owner.name for owner in owners),
            paths=tuple(path for path in (stale.file, stale.loaded) if path),
            evidence=f"ldconfig would take {stale.file}; the loader reads /etc/ld.so.cache only",
        )


def absent_directories(facts: Facts, repair: Repair) -> Iterator[Problem]:
    """Directories of LD_LIBRARY_PATH that are not there."""
    for entry in re.split("[:;]", facts.ld_library_path) if facts.ld_library_path else ():
        if entry.startswith("/") and not os.path.isdir(entry):
            yield Problem(
                "environment-malformed",
                f"the LD_LIBRARY_PATH {_where(facts)} names {entry}, which is not a directory",
                _correct(facts),
                paths=(entry,),
                evidence=f"LD_LIBRARY_PATH={facts.ld_library_path}",
            )


def ignored_lines(facts: Facts, repair: Repair) -> Iterator[Problem]:
    """Lines of the unit that systemd ignores."""
    for message, fix in facts.unit_ignored:
        yield Problem("environment-malformed", message, fix)


def _where(facts: Facts) -> str:
    return f"of {facts.unit}" if facts.unit else "given"


def _correct(facts: Facts) -> str:
    return "correct the Environment= line of the unit" if facts.unit else "correct the list of directories"
