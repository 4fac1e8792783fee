# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters that show what sglang_benchmark found."""

from __future__ import annotations

from typing import Any, Callable

from ansible.errors import AnsibleFilterError

from ansible_collections.gpufleet.dflash.plugins.plugin_utils import _comparison_plot


def _table(compared: Any) -> str:
    try:
        return _comparison_plot.table(_comparison_plot.checked(compared))
    except (ValueError, KeyError, TypeError) as error:
        raise AnsibleFilterError(f"comparison_table: {error}") from error


def _plot(compared: Any) -> str:
    try:
        return _comparison_plot.plot(_comparison_plot.checked(compared))
    except (ValueError, KeyError, TypeError) as error:
        raise AnsibleFilterError(f"comparison_plot: {error}") from error


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Callable[..., str]]:
        return {"comparison_table": _table, "comparison_plot": _plot}
