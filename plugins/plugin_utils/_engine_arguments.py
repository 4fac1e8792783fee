# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From what an instance wants to the words that its engine, in its version, understands. Private to the collection.

An engine's description is data (``roles/sglang_dflash/vars/engines``): for each option of an instance the flag, which
may depend on the engine's version. A fork with flags of its own is described by other data, not by other code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.gpufleet.dflash.plugins.module_utils._versions import release_of


class OptionError(Exception):
    """An instance that this engine cannot be told about; the text says what, where and what to do."""


def engine_arguments(
    instance: Mapping[str, Any], options: Mapping[str, Mapping[str, Any]], distribution: str, version: str
) -> list[str]:
    """Return the engine's arguments for an instance, in the order of the engine's options, its own words last.

    An option has ``flag`` and may have ``needs`` (another option), ``default`` (which counts where what it needs is
    there) and ``repeated`` (a list, with the flag for each element). ``flag`` is a text, or a list of ``{since, before,
    flag}`` of which the first that fits the version counts. An absent or empty value gives no argument, and a boolean
    its flag or nothing.
    """
    words: list[str] = []
    for name, option in options.items():
        value = instance.get(name)
        needed = option.get("needs")
        if _is_empty(value) and (needed is None or instance.get(needed)):
            value = option.get("default")
        if _is_empty(value) or value is False:
            continue
        if needed is not None and not instance.get(needed):
            raise OptionError(f"{name} has no meaning without {needed}: instance {_name(instance)}: give both or none")
        flag = _flag(name, option["flag"], distribution, version, _name(instance))
        words += [flag] if value is True else _words(name, flag, value, option, _name(instance))
    return words + [str(word) for word in instance.get("arguments") or []]


def _is_empty(value: Any) -> bool:
    return value is None or value == "" or value == []


def _words(name: str, flag: str, value: Any, option: Mapping[str, Any], instance: str) -> list[str]:
    if isinstance(value, (list, tuple)) and option.get("repeated"):
        # With an equals sign: a value may begin with a dash.
        return [f"{flag}={item}" for item in value]
    if isinstance(value, (Mapping, list, tuple)):
        raise OptionError(f"{name} is not one value: instance {instance}: give a text or a number")
    return [flag, str(value)]


def _flag(name: str, spellings: Any, distribution: str, version: str, instance: str) -> str:
    if isinstance(spellings, str):
        return spellings
    ours = release_of(version)
    if ours is None:
        raise OptionError(
            f"{distribution} has a version that cannot be compared: {version}: name the flag in "
            f"sglang_dflash_flags.{name}"
        )
    for spelling in spellings:
        since, before = (release_of(str(spelling[word])) if word in spelling else None for word in ("since", "before"))
        if (since is None or ours >= since) and (before is None or ours < before):
            return str(spelling["flag"])
    known = ", ".join(
        " ".join(f"{word} {spelling[word]}" for word in ("since", "before") if word in spelling)
        for spelling in spellings
    )
    raise OptionError(
        f"{distribution} {version} has no {name}: instance {instance}: known {known}; leave it out, use one of those, "
        f"or name the flag in sglang_dflash_flags.{name}"
    )


def _name(instance: Mapping[str, Any]) -> str:
    return str(instance.get("name", "without a name"))
