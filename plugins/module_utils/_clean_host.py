# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Would it load on a host without this one's system CUDA? The same loads with a loader that has no ld.so.cache.

Private to the collection. What lies in the loader's default directories is still found: it is in every
installation of the same operating system, or a package put it there.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gpufleet.dflash.plugins.module_utils import _catalogue
from ansible_collections.gpufleet.dflash.plugins.module_utils._check_request import on_a_clean_host
from ansible_collections.gpufleet.dflash.plugins.module_utils._load_errors import Place, problem
from ansible_collections.gpufleet.dflash.plugins.module_utils._mapped import inward
from ansible_collections.gpufleet.dflash.plugins.module_utils._probe_end import attempt_of
from ansible_collections.gpufleet.dflash.plugins.module_utils._probe_request import ProbeRequest
from ansible_collections.gpufleet.dflash.plugins.module_utils._venv import Venv


def on(probe: ProbeRequest, venv: Venv) -> ProbeRequest:
    """Return the same probe for a host without ld.so.cache. Raises CheckError."""
    return on_a_clean_host(probe, venv)


def add(
    result: dict[str, Any],
    entries: Mapping[str, Sequence[Mapping[str, Any]]],
    place: Place,
    venv: Venv,
    libraries: Sequence[Mapping[str, Any]],
) -> None:
    """Add what the second probe found; a load that only this host makes possible is an error."""
    result["clean_host"] = {
        "ok": all(entry["ok"] for option in entries.values() for entry in option),
        "imports": list(entries["imports"]),
        "dlopen": list(entries["dlopen"]),
    }
    for kind, option, key in (("import", "imports", "name"), ("dlopen", "dlopen", "soname")):
        for here, there in zip(result[option], entries[option]):
            if here["ok"] and not there["ok"]:
                result["ok"] = False
                result["problems"].append(
                    _only_here(attempt_of(kind, here[key]), str(there["error"]), place, libraries)
                )


def _only_here(attempt: str, words: str, place: Place, libraries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    outside = [library for library in libraries if library["distribution"] is None]
    names = [os.path.basename(library["path"]) for library in outside]
    soname = next((name for name in names if name.partition(".so")[0] in words), None)
    found = problem(
        "resolved-outside-venv",
        f"{attempt} works here only because of this host's own libraries: without them, {words}",
        inward(soname, place) if soname else "add what the error names to the lock and build the environment anew",
        soname=soname,
        distributions=_catalogue.distributions_of(soname) if soname else [],
        paths=[library["path"] for library in outside],
        evidence=words,
    )
    return {**found, "severity": "error"}
