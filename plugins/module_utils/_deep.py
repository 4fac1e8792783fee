# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What takes reading more than the dynamic sections: device code and names for dlopen. Private to the collection."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ansible_collections.gpufleet.dflash.plugins.module_utils._dlopen_names import dlopen_names
from ansible_collections.gpufleet.dflash.plugins.module_utils._elf import ElfError, ElfObject, read_image
from ansible_collections.gpufleet.dflash.plugins.module_utils._elf_sections import data_of
from ansible_collections.gpufleet.dflash.plugins.module_utils._fat_binary import Architectures, architectures_of
from ansible_collections.gpufleet.dflash.plugins.module_utils._loader import LoadError, Process
from ansible_collections.gpufleet.dflash.plugins.module_utils._paths import open_regular
from ansible_collections.gpufleet.dflash.plugins.module_utils._wheels import Installed

# Libraries that come in parts of one version and say so: cuDNN compares, NVRTC looks for its very own builtins.
# Others, such as NCCL, leave names to the host on purpose (plugins, drivers).
_IN_PARTS = frozenset({"libcudnn", "libnvrtc"})
_FAMILY = re.compile(r"lib[A-Za-z]+(?=[_.-])")


class HostSublibrary(NamedTuple):
    """A part of a wheel's library that no wheel brings, and what dlopen would take instead."""

    name: str
    wanted_by: str
    path: str
    rule: str


@dataclass
class DeepFacts:
    """``architectures`` and ``dlopens`` by object; ``capabilities`` of the host's GPUs, times ten; ``damaged`` has
    objects whose symbols cannot be read, with the reason.
    """

    architectures: dict[str, Architectures] = field(default_factory=dict)
    dlopens: dict[str, list[str]] = field(default_factory=dict)
    host_sublibraries: list[HostSublibrary] = field(default_factory=list)
    capabilities: Sequence[int] = ()
    damaged: Mapping[str, str] = field(default_factory=dict)


def look_deep(objects: Mapping[str, ElfObject], installed: Installed, process: Process) -> DeepFacts:
    """Read the data of every object. ``process`` is the predicted one after the plan; it may load more."""
    facts = DeepFacts()
    for path in objects:
        try:
            with open_regular(path) as stream:
                image = read_image(stream.fileno(), path)
                data = data_of(image)
                architectures = architectures_of(image, data)
                names = dlopen_names(image, data)
        except (ElfError, OSError):
            # The checks of files and the loader tell when it matters.
            continue
        if architectures:
            facts.architectures[path] = architectures
        if names:
            facts.dlopens[path] = names
    facts.host_sublibraries = _host_sublibraries(facts.dlopens, objects, installed, process)
    return facts


def _host_sublibraries(
    dlopens: Mapping[str, Sequence[str]], objects: Mapping[str, ElfObject], installed: Installed, process: Process
) -> list[HostSublibrary]:
    brought = {os.path.basename(path) for path in objects} | {each.soname for each in objects.values()}
    found = []
    for path, names in dlopens.items():
        family = _family(path)
        if family not in _IN_PARTS:
            continue
        for name in names:
            # cuDNN appends its major to the names that it has: libcudnn_graph.so, then .9.
            major = (objects[path].soname or os.path.basename(path)).rpartition(".so")[2]
            spellings = [name + major, name] if name.endswith(".so") and major else [name]
            if _family(name) != family or "%" in name or brought & set(spellings):
                continue
            located = _locate(process, path, spellings)
            if located is not None and not installed.owners(os.path.realpath(located[1])):
                found.append(HostSublibrary(located[0], path, located[1], located[2]))
    return found


def _locate(process: Process, caller: str, spellings: Sequence[str]) -> tuple[str, str, str] | None:
    """The first of these names that dlopen would find, its file and the rule."""
    try:
        loaded = process.dlopen(caller)
    except LoadError:
        return None
    for name in spellings:
        located = process.locate(name, loaded)
        if located is not None:
            return name, *located
    return None


def _family(path: str) -> str | None:
    match = _FAMILY.match(os.path.basename(path))
    return match[0] if match else None
