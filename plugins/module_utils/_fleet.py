# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a fleet's report says of one host, from what the facts module returned for it. Private to the collection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.gpufleet.dflash.plugins.module_utils._facts_drift import FactsError, drift, facts_of_one

_LOCK_KINDS = ("missing", "different", "extra", "unjudged")


def fleet_entry(result: Mapping[str, Any], reference: Mapping[str, Any] | None) -> dict[str, Any]:
    """``line`` for people and ``entry`` for the report: facts by venv, drift, or why there are none."""
    if not isinstance(result.get("venvs"), Mapping):
        unreachable = bool(result.get("unreachable"))
        reason = " ".join(str(result.get("msg", "no reason given")).split())
        verdict = "unreachable" if unreachable else "unread"
        nothing: dict[str, Any] = {"verdict": verdict, "error": reason, "venvs": {}, "drift": None}
        return {"line": f"{verdict}: {reason}", "entry": nothing}
    venvs = result["venvs"]
    difference, words = _drift(result, reference)
    verdicts = {facts["verdict"] for facts in venvs.values()}
    entry = {
        "verdict": next((level for level in ("error", "warning") if level in verdicts), "ok"),
        "error": None,
        "venvs": venvs,
        "drift": difference,
    }
    parts = [str(result["msg"]), *words, *(_lock_words(facts.get("lock")) for facts in venvs.values())]
    return {"line": "; ".join(part for part in parts if part), "entry": entry}


def _drift(result: Mapping[str, Any], reference: Mapping[str, Any] | None) -> tuple[dict[str, Any] | None, list[str]]:
    if reference is None:
        return None, []
    try:
        found = drift(facts_of_one(result, "the host's facts"), facts_of_one(reference, "the reference's facts"))
    except FactsError as error:
        return None, [f"not compared: {error}"]
    return found, [found["summary"] if found["same"] else f"differs from the reference: {found['summary']}"]


def _lock_words(difference: Mapping[str, Any] | None) -> str:
    if difference is None:
        return ""
    counts = [f"{len(difference[kind])} {kind}" for kind in _LOCK_KINDS if difference.get(kind)]
    return f"lock: {', '.join(counts)}" if counts else "as the lock says"
