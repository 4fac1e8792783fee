# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Judge device code and what is loaded behind the linker's back. Private to the collection."""

from __future__ import annotations

import os
from collections.abc import Iterator

from ansible_collections.gpufleet.dflash.plugins.module_utils._catalogue import cuda_major_of
from ansible_collections.gpufleet.dflash.plugins.module_utils._compute_capability import capability_text
from ansible_collections.gpufleet.dflash.plugins.module_utils._fat_binary import Architectures
from ansible_collections.gpufleet.dflash.plugins.module_utils._findings import Facts, Problem
from ansible_collections.gpufleet.dflash.plugins.module_utils._repair import Repair

# Objects with less device code than this part of their distribution's largest do not decide for it: a helper
# may carry code for any GPU, and kernels for one generation of GPUs stand beside those for another.
_SUBSTANTIAL = 0.1
# A distribution with code for so many major compute capabilities is meant for every GPU.
_GENERAL = 3


def unsupported_architectures(facts: Facts, repair: Repair) -> Iterator[Problem]:
    """Distributions whose loaded objects have nothing to run on a GPU of the host (pytorch/pytorch#167244).

    NVIDIA's own libraries are left out: what they lack they compile, or the library that uses them lacks it too.
    So are kernels for one or two generations of GPUs, which their package chooses or leaves (torchao's for 9.0).
    """
    if facts.deep is None:
        return
    compiled: dict[str, dict[str, Architectures]] = {}
    for loaded in facts.loaded:
        architectures = facts.deep.architectures.get(loaded.path)
        for owner in facts.owners(loaded.path) if architectures else ():
            if architectures and not cuda_major_of(owner.name):
                compiled.setdefault(owner.name, {})[loaded.path] = architectures
    for name, objects in compiled.items():
        largest = max(each.size for each in objects.values())
        deciding = {path: each for path, each in objects.items() if each.size >= largest * _SUBSTANTIAL}
        majors = {arch // 10 for each in deciding.values() for arch in each.sass | each.ptx}
        if name != "torch" and len(majors) < _GENERAL:
            continue
        lacking = [
            capability
            for capability in facts.deep.capabilities
            if not any(each.runs_on(capability) for each in deciding.values())
        ]
        if lacking:
            yield _unsupported(facts, repair, name, deciding, lacking)


def _unsupported(
    facts: Facts, repair: Repair, name: str, objects: dict[str, Architectures], lacking: list[int]
) -> Problem:
    pin = next(owner.pin for path in objects for owner in facts.owners(path) if owner.name == name)
    path = max(objects, key=lambda path: objects[path].size)
    sass = sorted({arch for each in objects.values() for arch in each.sass})
    ptx = sorted({arch for each in objects.values() for arch in each.ptx})
    gpus = " and ".join(capability_text(capability) for capability in lacking)
    code = [f"sm_{arch}" for arch in sass] + [f"compute_{arch}" for arch in ptx]
    some_run = facts.deep is not None and len(lacking) < len(set(facts.deep.capabilities))
    return Problem(
        "architecture-unsupported",
        f"{pin} has no code for this host's GPU of compute capability {gpus}, only {', '.join(code)}",
        repair.another_build(name, f"a build of {name} for compute capability {gpus}")
        + ("; or keep the service off that GPU with CUDA_VISIBLE_DEVICES" if some_run else ""),
        object=path,
        distributions=(name,),
        paths=tuple(objects),
        evidence=f"fat binaries of {os.path.basename(path)}: {', '.join(code)}",
        # With another GPU in the host it may never run on this one.
        severity="warning" if some_run else "",
    )


def host_sublibraries(facts: Facts, repair: Repair) -> Iterator[Problem]:
    """Parts of a wheel's library that only the host has, of another version therefore (pytorch/pytorch#188892)."""
    for found in facts.deep.host_sublibraries if facts.deep else ():
        owners = facts.owners(found.wanted_by)
        pins = ", ".join(owner.pin for owner in owners)
        by_path = found.rule == "ld_library_path"
        directory = os.path.dirname(found.path)
        yield Problem(
            "host-sublibrary",
            f"{os.path.basename(found.wanted_by)} of {pins} loads {found.name} when it is first used; no wheel brings "
            f"that, so {found.path} of this host is taken, which is of another version",
            f"take {directory} out of LD_LIBRARY_PATH"
            if by_path
            else f"remove the host's package that owns {found.path} (Debian and Ubuntu: dpkg -S {found.path}), or put "
            f"a version of {' or '.join(owner.name for owner in owners)} that brings it into the lock",
            object=found.wanted_by,
            soname=found.name,
            distributions=tuple(owner.name for owner in owners),
            paths=(found.path,),
            evidence=f"{found.wanted_by} names {found.name}; the loader finds {found.path} by {found.rule}",
        )
