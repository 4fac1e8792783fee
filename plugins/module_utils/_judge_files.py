# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judge files that are not what their distributions recorded. Private to the collection."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from ansible_collections.gpufleet.dflash.plugins.module_utils._findings import Facts, Problem
from ansible_collections.gpufleet.dflash.plugins.module_utils._repair import Repair
from ansible_collections.gpufleet.dflash.plugins.module_utils._wheels import (
    Distribution,
    is_code,
    is_incidental,
    is_shared_object,
    sha256_of,
)


def _relative(path: str, distribution: Distribution) -> str:
    return os.path.relpath(path, os.path.realpath(distribution.site_packages))


def clobbered(facts: Facts, repair: Repair) -> Iterator[Problem]:
    """Files that several distributions recorded with different content (pypa/pip#12313)."""
    groups: dict[tuple[str, ...], list[Any]] = {}
    for contested in facts.integrity.contested:
        # What a generation's recipe lays there settles whose bytes they are.
        if contested.path not in facts.declared and not is_incidental(_relative(contested.path, contested.losers[0])):
            names = tuple(sorted({owner.name for owner in (*contested.holders, *contested.losers)}))
            groups.setdefault(names, []).append(contested)
    for names, files in groups.items():
        code = [contested for contested in files if is_code(contested.path)]
        shown = code or files
        losers = tuple(dict.fromkeys(owner for contested in shown for owner in contested.losers))
        holders = tuple(dict.fromkeys(owner for contested in shown for owner in contested.holders))
        winner = " or ".join(owner.pin for owner in holders) or "no installed distribution"
        example = _relative(shown[0].path, losers[0])
        count = f"{len(shown)} file{'s' if len(shown) > 1 else ''}"
        yield Problem(
            "clobbered-file" if code else "shared-ownership",
            f"{count} of {' and '.join(owner.pin for owner in losers)} (such as {example}) "
            f"{'are' if len(shown) > 1 else 'is'} not as installed: what is on disk belongs to {winner}",
            repair.keep_one([d for d in facts.installed.distributions if d.name in names], facts.major_beside(names)),
            object=shown[0].path,
            distributions=names,
            paths=tuple(contested.path for contested in shown),
            evidence=f"sha256 differs from RECORD for {count}; uninstalling either deletes the files of both",
        )


def missing_payload(facts: Facts, repair: Repair) -> Iterator[Problem]:
    """Distributions that count as installed while their files are gone (sgl-project/sglang#31035)."""
    by_owner: dict[str, tuple[Distribution, list[str]]] = {}
    shared: dict[tuple[str, ...], dict[str, None]] = {}
    for path, owner in facts.integrity.missing:
        owners = facts.installed.owners(path)
        if len(owners) > 1 and len(facts.installed.digests(path)) == 1:
            shared.setdefault(tuple(sorted(each.path for each in owners)), {})[path] = None
        else:
            by_owner.setdefault(owner.path, (owner, []))[1].append(path)
    for owner, paths in by_owner.values():
        # Its reinstallation brings these back as well.
        paths += [path for owners in list(shared) if owner.path in owners for path in shared.pop(owners)]
        code = sorted((path for path in paths if is_code(path)), key=_libraries_first)
        shown = code or paths
        total = sum(not row.path.endswith(".pyc") for row in owner.files)
        yield Problem(
            "missing-payload",
            f"{owner.pin} counts as installed, but {len(paths)} of its {total} files are gone, such as "
            f"{_relative(shown[0], owner)}",
            repair.reinstall([owner]),
            object=shown[0],
            distributions=(owner.name,),
            paths=tuple(shown),
            evidence=f"{len(paths)} paths of {owner.path}/RECORD do not exist, {len(code)} of them code",
            # Images are slimmed by deleting headers and licences: untidy, but nothing fails to load.
            severity="" if code else "warning",
        )
    for together in shared.values():
        yield _shared_payload(facts, repair, list(together))


def _shared_payload(facts: Facts, repair: Repair, paths: list[str]) -> Problem:
    """Files that distributions share: each uninstall takes them from all others, one reinstallation returns them."""
    owners = facts.installed.owners(paths[0])
    code = [row for row in owners[0].files.rows_of(set(paths)) if is_code(row.path)]
    several = len(paths) > 1
    return Problem(
        "missing-payload",
        f"{f'{len(paths)} files' if several else 'a file'} that {len(owners)} distributions share "
        f"{'are' if several else 'is'} gone: {_relative(paths[0], owners[0])}",
        repair.reinstall([min(owners, key=lambda owner: (owner.size, owner.name))]),
        object=paths[0],
        distributions=tuple(owner.name for owner in owners),
        paths=tuple(paths),
        evidence=f"RECORD of {', '.join(owner.pin for owner in owners)}",
        # Without its empty __init__.py, nvidia is a namespace package, and everything in it is still found.
        severity="" if any(row.size != 0 for row in code) else "warning",
    )


def altered_files(facts: Facts, repair: Repair) -> Iterator[Problem]:
    """Files that changed since they were installed."""
    by_owner: dict[str, list[Any]] = {}
    for altered in facts.integrity.altered:
        if altered.path in facts.declared:
            continue
        by_owner.setdefault(altered.distribution.path, []).append(altered)
    for files in by_owner.values():
        owner = files[0].distribution
        several = len(files) > 1
        yield Problem(
            "altered-file",
            f"{len(files)} file{'s' if several else ''} of {owner.pin} {'are' if several else 'is'} not as its wheel "
            f"recorded {'them' if several else 'it'}, such as {_relative(files[0].path, owner)}",
            repair.reinstall([owner], altered=True),
            object=files[0].path,
            distributions=(owner.name,),
            paths=tuple(altered.path for altered in files),
            evidence=files[0].evidence,
        )


def changed_overlays(facts: Facts, repair: Repair) -> Iterator[Problem]:
    """Overlays of a generation that are not what its manifest says: somebody went on patching in place."""
    for path, expected in sorted(facts.declared.items()):
        try:
            actual = sha256_of(path)
        except OSError as error:
            actual = error.strerror or str(error)
        if actual != expected:
            yield Problem(
                "altered-file",
                f"{os.path.basename(path)}, an overlay of this generation, is not what was laid there",
                "put the change into the overlays of the deployment, so that it becomes a new generation",
                object=path,
                paths=(path,),
                evidence=f"the manifest says sha256 {expected[:16]}, the disk says {actual[:16]}",
            )


def broken_links(facts: Facts, repair: Repair) -> Iterator[Problem]:
    """Files that are links into a cache which has been pruned (astral-sh/uv#12003)."""
    by_owner: dict[str, tuple[Distribution, list[str]]] = {}
    for path, owner in facts.integrity.dangling:
        by_owner.setdefault(owner.path, (owner, []))[1].append(path)
    for owner, paths in by_owner.values():
        paths.sort(key=_libraries_first)
        target = _target(paths[0])
        yield Problem(
            "broken-link",
            f"{len(paths)} file{'s' if len(paths) > 1 else ''} of {owner.pin} link to nothing, such as "
            f"{_relative(paths[0], owner)}",
            repair.reinstall([owner]) + "; a venv must not link into a cache (uv: link mode hardlink or copy)",
            object=paths[0],
            distributions=(owner.name,),
            paths=tuple(paths),
            evidence=f"{paths[0]} -> {target}",
        )


def _libraries_first(path: str) -> tuple[bool, str]:
    return not is_shared_object(path), path


def _target(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return "?"
