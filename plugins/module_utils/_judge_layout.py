# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judge how the pieces of an environment lie beside each other. Private to the collection."""

from __future__ import annotations

import os
from collections.abc import Iterator

from ansible_collections.gpufleet.dflash.plugins.module_utils._catalogue import cuda_major_of
from ansible_collections.gpufleet.dflash.plugins.module_utils._findings import Facts, Problem
from ansible_collections.gpufleet.dflash.plugins.module_utils._paths import read_start
from ansible_collections.gpufleet.dflash.plugins.module_utils._repair import Repair
from ansible_collections.gpufleet.dflash.plugins.module_utils._wheels import Distribution, is_shared_object

# Libraries that only a CUDA build of torch has.
_CUDA_BUILD = frozenset({"libtorch_cuda.so", "libc10_cuda.so"})
# They look whether their CUDA part loads, and do without it where it does not.
_CONTENT_WITHOUT = frozenset({"torchao"})
# The wheels of one project: their public versions must be equal, or they refuse to work together.
_COMPANIONS = (("flashinfer-python", "flashinfer-cubin", "flashinfer-jit-cache"),)
# One package under its old and its new name.
_RENAMED = (("sgl-kernel", "sglang-kernel"),)


def wrong_variant(facts: Facts, repair: Repair) -> Iterator[Problem]:
    """A torch without CUDA beside code for a CUDA torch (astral-sh/uv#15446)."""
    if not facts.torch_without_cuda:
        return
    wanting: dict[str, tuple[Distribution, list[str]]] = {}
    for path, found in facts.objects.items():
        if _CUDA_BUILD.isdisjoint(found.needed):
            continue
        for owner in facts.owners(path):
            if owner.name != "torch" and owner.name not in _CONTENT_WITHOUT:
                wanting.setdefault(owner.name, (owner, []))[1].append(path)
    if not wanting:
        return
    torch = next((d for d in facts.installed.distributions if d.name == "torch"), None)
    paths = [path for _owner, files in wanting.values() for path in files]
    yield Problem(
        "wrong-variant",
        f"{torch.pin if torch else 'torch'} is a build without CUDA, and {' and '.join(sorted(wanting))} "
        f"need{'s' if len(wanting) == 1 else ''} one with it",
        repair.another_build("torch", "a build of torch for the CUDA of the others"),
        object=paths[0],
        soname=next((name for name in facts.objects[paths[0]].needed if name in _CUDA_BUILD), None),
        distributions=("torch", *sorted(wanting)),
        paths=tuple(paths),
        evidence="torch/version.py says cuda = None",
    )


def split_site(facts: Facts, repair: Repair) -> Iterator[Problem]:
    """lib and lib64 are two directories, and what looks for its neighbour finds none (pytorch/pytorch#165812)."""
    if len(facts.venv.site_packages) < 2:
        return
    holding: dict[str, list[Distribution]] = {}
    for distribution in facts.installed.distributions:
        if distribution.site_packages in facts.venv.site_packages and any(
            is_shared_object(row.path) for row in distribution.files
        ):
            holding.setdefault(distribution.site_packages, []).append(distribution)
    cuda = [d for found in holding.values() for d in found if cuda_major_of(d.name)]
    if len(holding) < 2 or not cuda:
        return
    apart = next((d for found in holding.values() for d in found if d.site_packages != cuda[0].site_packages), cuda[-1])
    here, there = (os.path.relpath(d.site_packages, facts.venv.path) for d in (apart, cuda[0]))
    yield Problem(
        "split-site",
        f"lib and lib64 are two directories here: what looks beside itself from {apart.name} in {here} does not find "
        f"{cuda[0].name} in {there}",
        "build a venv whose lib64 is a link to lib (uv venv, python -m venv) and install the same lock there",
        distributions=(apart.name, cuda[0].name),
        paths=tuple(holding),
        evidence=f"{os.path.join(facts.venv.path, 'lib64')} is no link",
    )


def namespace_shadow(facts: Facts, repair: Repair) -> Iterator[Problem]:
    """A regular package in one directory hides the parts of a namespace package in others."""
    for name in ("nvidia", "cuda"):
        parts = [os.path.join(entry, name) for entry in facts.import_path]
        regular = next((part for part in parts if os.path.isfile(os.path.join(part, "__init__.py"))), None)
        if regular is None or _shares_its_name(os.path.join(regular, "__init__.py")):
            continue
        hidden = {
            part: [d for d in facts.installed.distributions if _owns_below(d, part)]
            for part in parts
            if os.path.realpath(part) != os.path.realpath(regular) and os.path.isdir(part)
        }
        owners = [owner for found in hidden.values() for owner in found]
        if owners:
            init = os.path.join(regular, "__init__.py")
            names = [owner.name for owner in owners]
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            yield Problem(
                "namespace-shadow",
                f"{init} makes {name} a package of its own: import {name}.<component> does not find "
                f"{', '.join(names[:3])}{more}",
                f"install everything of {name} into one site-packages, or take {os.path.dirname(regular)} out of the "
                "import path",
                object=init,
                distributions=tuple(names),
                paths=tuple(part for part, found in hidden.items() if found),
                evidence=f"on the import path, {regular} has an __init__.py",
            )


def _shares_its_name(init: str) -> bool:
    """Whether the package extends itself over the import path by hand, as before PEP 420."""
    try:
        text = read_start(init, 64 * 1024)
    except OSError:
        return False
    return "extend_path" in text or "declare_namespace" in text


def _owns_below(distribution: Distribution, directory: str) -> bool:
    prefix = os.path.realpath(directory) + "/"
    return any(row.path.startswith(prefix) for row in distribution.files)


def companion_mismatch(facts: Facts, repair: Repair) -> Iterator[Problem]:
    """Wheels that belong together, of different versions or under two names (NVIDIA-NeMo/Export-Deploy#679)."""
    versions = facts.installed.versions
    for names in _COMPANIONS:
        present = {name: versions[name] for name in names if name in versions}
        # A local tag such as +cu130 tells the build, not the version.
        if len({version.partition("+")[0] for version in present.values()}) > 1:
            leader, *_others = present
            public = present[leader].partition("+")[0]
            others = [name for name in present if present[name].partition("+")[0] != public]
            yield Problem(
                "companion-mismatch",
                f"{' and '.join(f'{name} {version}' for name, version in present.items())} belong together, and differ",
                repair.add([f"{name}=={public}" for name in others[:1]]),
                distributions=tuple(present),
                evidence="; ".join(f"{d.path}/METADATA" for d in facts.installed.distributions if d.name in present),
            )
    contested = {owner.name for found in facts.integrity.contested for owner in (*found.holders, *found.losers)}
    for old, new in _RENAMED:
        # Where their files are compared, clobbered-file says it with more detail.
        if old in versions and new in versions and not {old, new} <= contested:
            yield Problem(
                "companion-mismatch",
                f"{old} {versions[old]} and {new} {versions[new]} are one package under two names: the last one "
                "installed has replaced files of the other",
                repair.keep_one([d for d in facts.installed.distributions if d.name in (old, new)], None),
                distributions=(old, new),
                evidence="both own the package sgl_kernel",
            )


def orphan_files(facts: Facts, repair: Repair) -> Iterator[Problem]:
    """Libraries in the directories of NVIDIA's wheels that no distribution owns (sgl-project/sglang#23295)."""
    # Where a RECORD cannot be read, nobody knows whose a file is.
    if not all(distribution.files for distribution in facts.installed.distributions):
        return
    orphans = [path for path in facts.unowned_libraries if path not in facts.declared]
    if orphans:
        yield Problem(
            "orphan-file",
            f"{len(orphans)} librar{'ies' if len(orphans) > 1 else 'y'} in the directories of NVIDIA's wheels "
            f"belong{'' if len(orphans) > 1 else 's'} to no distribution, such as "
            f"{os.path.relpath(orphans[0], facts.venv.path)}",
            "if nobody put them there on purpose: build a new environment, or remove the files after a look at "
            "who uses them (resolution)",
            object=orphans[0],
            paths=tuple(orphans),
            evidence="no RECORD lists them: an uninstall was interrupted, or they were copied there",
        )
