# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters on what cuda_wheel_facts returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Callable

from ansible.errors import AnsibleFilterError

from ansible_collections.gpufleet.dflash.plugins.module_utils import _facts_drift, _fleet, _lock_text
from ansible_collections.gpufleet.dflash.plugins.module_utils._facts_drift import FactsError, facts_of_one
from ansible_collections.gpufleet.dflash.plugins.module_utils._lock import LockError


def drift(facts: Any, reference: Any) -> dict[str, Any]:
    """The difference between the facts of two venvs."""
    try:
        return _facts_drift.drift(facts_of_one(facts, "the facts"), facts_of_one(reference, "the reference's facts"))
    except FactsError as error:
        raise AnsibleFilterError(str(error)) from error


def lock(facts: Any, hashes: Any = None, leave_out: Any = ()) -> str:
    """The text of a lock with what the facts say is installed."""
    if hashes is not None and not isinstance(hashes, Mapping):
        raise AnsibleFilterError("hashes is a dictionary of names and their digests")
    if isinstance(leave_out, str) or not all(isinstance(name, str) for name in leave_out):
        raise AnsibleFilterError("leave_out is a list of names")
    try:
        return _lock_text.lock_of_facts(facts_of_one(facts, "the facts"), hashes, leave_out)
    except (FactsError, LockError) as error:
        raise AnsibleFilterError(str(error)) from error


def fleet_entry(result: Any, reference: Any = None) -> dict[str, Any]:
    """One host's line and entry in the report of a fleet."""
    if not isinstance(result, Mapping) or not isinstance(reference, (Mapping, type(None))):
        raise AnsibleFilterError("a registered result of cuda_wheel_facts is needed")
    return _fleet.fleet_entry(result, reference)


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"drift": drift, "fleet_entry": fleet_entry, "lock": lock}
