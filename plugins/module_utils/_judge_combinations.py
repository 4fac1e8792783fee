# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judge what is sound by itself but does not go together. Private to the collection."""

from __future__ import annotations

import os
from collections.abc import Iterator

from ansible_collections.gpufleet.dflash.plugins.module_utils._catalogue import cuda_major_of, real_name
from ansible_collections.gpufleet.dflash.plugins.module_utils._findings import Facts, Problem
from ansible_collections.gpufleet.dflash.plugins.module_utils._path_code import may_provide
from ansible_collections.gpufleet.dflash.plugins.module_utils._provider import requirement
from ansible_collections.gpufleet.dflash.plugins.module_utils._repair import Repair
from ansible_collections.gpufleet.dflash.plugins.module_utils._requirements import Unmet, demand
from ansible_collections.gpufleet.dflash.plugins.module_utils._wheels import Distribution, library_path


def unmet_requirements(facts: Facts, repair: Repair) -> Iterator[Problem]:
    """Requirements that are not met, and modules of the plan that are not there."""
    for unmet in facts.unmet:
        by = ", ".join(owner.pin for owner in unmet.required_by)
        state = f"{unmet.name} {unmet.installed} is installed" if unmet.installed else "it is not installed"
        yield Problem(
            "unmet-requirement",
            f"{by} requires {unmet.requirement}, but {state}",
            repair.add([_installable(facts, unmet)]),
            distributions=(*(owner.name for owner in unmet.required_by), unmet.name),
            evidence=f"Requires-Dist of {unmet.required_by[0].path}/METADATA",
        )
    for name in facts.absent_modules if facts.modules_expected else ():
        if may_provide(name, facts.installed, facts.venv.site_packages):
            continue
        yield Problem(
            "unmet-requirement",
            f"the plan imports {name}, but no installed distribution has that module",
            f"install the distribution that provides {name}, or leave it out of imports",
            evidence=f"looked in {', '.join(facts.venv.import_path)}",
        )


def _installable(facts: Facts, unmet: Unmet) -> str:
    """The requirement, or for the name of an empty placeholder that of the distribution with the libraries."""
    real = real_name(unmet.name) == unmet.name
    return demand(unmet.name, facts.unmet) if real else requirement(facts, unmet.name, None)


def mixed_majors(facts: Facts, repair: Repair) -> Iterator[Problem]:
    """Libraries of two CUDA majors in one process, judged by the owners of the files that are loaded."""
    reached: dict[int, dict[str, str]] = {}
    for loaded in facts.loaded:
        # A file of several owners (cuDNN for 12 and 13) tells no major; clobbered-file reports it.
        owners = facts.owners(loaded.path)
        majors = {cuda_major_of(owner.name) for owner in owners}
        major = majors.pop() if len(majors) == 1 else None
        if major is not None:
            reached.setdefault(major, {})[loaded.path] = owners[0].name
    if len(reached) < 2:
        return
    names = tuple(dict.fromkeys(name for _major, files in sorted(reached.items()) for name in files.values()))
    listed = "; ".join(
        f"CUDA {major}: {', '.join(dict.fromkeys(files.values()))}" for major, files in sorted(reached.items())
    )
    paths = tuple(path for _major, files in sorted(reached.items()) for path in files)
    yield Problem(
        "mixed-cuda-majors",
        f"one process loads libraries of CUDA {' and '.join(str(major) for major in sorted(reached))}",
        repair.without(
            [name for major, files in reached.items() if major != facts.cuda_major for name in files.values()]
        )
        if facts.cuda_major in reached
        else repair.keep_major(
            {major: list(dict.fromkeys(files.values())) for major, files in sorted(reached.items())}
        ),
        object=paths[0],
        distributions=names,
        paths=paths,
        evidence=listed,
    )


def duplicate_sonames(facts: Facts, repair: Repair) -> Iterator[Problem]:
    """One soname from two of NVIDIA's distributions, in two places."""
    # Only NVIDIA's own distributions, and what a search path reaches: triton, cutlass and others bundle copies for
    # themselves that are opened by path.
    searched = set(library_path(facts.installed))
    by_soname: dict[str, dict[str, Distribution]] = {}
    for path, found in facts.objects.items():
        owners = [owner for owner in facts.owners(path) if cuda_major_of(owner.name)]
        if found.soname and owners and os.path.dirname(path) in searched:
            by_soname.setdefault(found.soname, {})[path] = owners[0]
    pairs: dict[tuple[str, ...], dict[str, list[str]]] = {}
    for soname, paths in by_soname.items():
        names = tuple(sorted({owner.name for owner in paths.values()}))
        if len(names) > 1:
            pairs.setdefault(names, {})[soname] = sorted(paths)
    loaded = {item.path for item in facts.loaded} | {os.path.realpath(item.path) for item in facts.loaded}
    for names, sonames in pairs.items():
        files = [path for found in sonames.values() for path in found]
        used = [path for path in files if path in loaded]
        yield Problem(
            "duplicate-soname",
            f"{' and '.join(names)} both provide {', '.join(sonames)}: the search order decides which is loaded",
            repair.keep_one(
                [d for d in facts.installed.distributions if d.name in names], facts.cuda_major, restore=False
            ),
            object=used[0] if used else files[0],
            soname=next(iter(sonames), None),
            distributions=names,
            paths=tuple(files),
            evidence=f"the plan loads {', '.join(used)}" if used else "the plan loads none of them",
        )


def malformed(facts: Facts, repair: Repair) -> Iterator[Problem]:
    """Damaged book-keeping, a distribution installed twice."""
    for damage in facts.installed.damages:
        owner = next((d for d in facts.installed.distributions if damage.path.startswith(d.path + "/")), None)
        yield Problem(
            "environment-malformed",
            f"{os.path.relpath(damage.path, facts.venv.path)} {damage.reason}"
            + (f": {owner.pin} can be neither verified nor uninstalled" if owner else ""),
            repair.replace(owner) if owner else "restore the file, or build a new generation",
            object=damage.path,
            distributions=(owner.name,) if owner else (),
            paths=(damage.path,),
        )
    copies: dict[str, list[Distribution]] = {}
    for distribution in facts.installed.distributions:
        if distribution.site_packages in facts.venv.site_packages:
            copies.setdefault(distribution.name, []).append(distribution)
    for name, found in copies.items():
        if len(found) > 1:
            yield Problem(
                "environment-malformed",
                f"{name} is installed {len(found)} times: {', '.join(copy.version for copy in found)}",
                f"remove {', '.join(copy.path for copy in found[1:])}, then: {repair.reinstall(found[:1])}",
                distributions=(name,),
                paths=tuple(copy.path for copy in found),
                evidence="an installation was interrupted, or two tools installed it",
            )
