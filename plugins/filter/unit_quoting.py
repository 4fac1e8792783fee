# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters that write values into systemd units."""

from __future__ import annotations

from typing import Any, Callable

from ansible.errors import AnsibleFilterError

from ansible_collections.gpufleet.dflash.plugins.module_utils._systemd_quote import (
    quote_argument,
    quote_assignment,
)


def _checked(quote: Callable[[str], str], value: Any) -> str:
    if isinstance(value, (dict, list)) or value is None:
        raise AnsibleFilterError(f"one text or number is needed for a systemd unit, not {value!r}")
    try:
        return quote(str(value))
    except ValueError as error:
        raise AnsibleFilterError(str(error)) from error


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Callable[[Any], str]]:
        return {
            "unit_argument": lambda value: _checked(quote_argument, value),
            "unit_assignment": lambda value: _checked(quote_assignment, value),
        }
