# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filter that turns an instance into an engine's command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Callable

from ansible.errors import AnsibleFilterError

from ansible_collections.gpufleet.dflash.plugins.plugin_utils._engine_arguments import OptionError, engine_arguments


def _arguments(
    instance: Any, engine: Mapping[str, Any], version: str, flags: Mapping[str, str] | None = None
) -> list[str]:
    if not isinstance(instance, Mapping) or not isinstance(engine, Mapping):
        raise AnsibleFilterError("engine_arguments takes an instance and the description of an engine, two mappings")
    options = {name: dict(option) for name, option in engine["options"].items()}
    for name, flag in (flags or {}).items():
        options.setdefault(name, {})["flag"] = flag
    try:
        return engine_arguments(instance, options, str(engine["distribution"]), str(version))
    except OptionError as error:
        raise AnsibleFilterError(str(error)) from error


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Callable[..., list[str]]]:
        return {"engine_arguments": _arguments}
