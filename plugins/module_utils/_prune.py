# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Remove generations that nobody uses, and what only they needed of the cache. Private to the collection."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Callable, NamedTuple

from ansible_collections.gpufleet.dflash.plugins.module_utils._files import check_root, exclusive
from ansible_collections.gpufleet.dflash.plugins.module_utils._manifest import ManifestError, read_manifest
from ansible_collections.gpufleet.dflash.plugins.module_utils._recipe import GenerationError
from ansible_collections.gpufleet.dflash.plugins.module_utils._usage import (
    ReleaseUse,
    UsageError,
    processes_in,
    releases,
    units_with,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._uv import (
    Source,
    UvError,
    installer_environment,
    known_uv,
    run_uv,
)

_NAME = re.compile(r"[a-z]+-\d+t?-[0-9a-f]{16}\Z")
_ASIDE = re.compile(r"\.removed-")

Progress = Callable[[str], None]


class Removal(NamedTuple):
    """What goes and what stays: {name of a generation: why}, oldest first; ``releases`` go with their generation."""

    removed: dict[str, str]
    kept: dict[str, str]
    releases: tuple[ReleaseUse, ...]
    leftovers: tuple[str, ...]  # folders of removals that were cut off

    @property
    def changed(self) -> bool:
        """Whether there is anything to remove."""
        return bool(self.removed or self.leftovers)


def plan_removal(root: str, generation: str | None, keep: int | None) -> Removal:
    """Return what removing one generation, or all but the newest ``keep``, would do; nothing is written.

    Raises GenerationError when a generation that was named is in use, or is no generation.
    """
    root = check_root(root, GenerationError)
    try:
        return _plan(root, generation, keep)
    except OSError as error:
        raise GenerationError(
            f"it cannot be told what is there: {error.filename or root}: {error.strerror}: see what stands there"
        ) from error


def _plan(root: str, generation: str | None, keep: int | None) -> Removal:
    venvs = os.path.join(root, "venvs")
    if generation is not None:
        return _plan_one(root, _named(venvs, generation))
    if keep is None or keep < 0:
        raise GenerationError(f"keep is a number of generations, 0 or more: {keep}")
    names, leftovers = _standing(venvs)
    created = {name: _created(os.path.join(venvs, name)) for name in names}
    complete = sorted((n for n in names if created[n] is not None), key=lambda name: (created[name], name))
    newest = complete[len(complete) - keep :] if keep else []
    used, gone = _uses(root, names, keep)
    removed: dict[str, str] = {}
    kept: dict[str, str] = {}
    for name in [*sorted(set(names) - set(complete)), *complete]:
        if name in used:
            kept[name] = used[name]
        elif name in newest:
            kept[name] = f"it is one of the {keep} newest"
        else:
            removed[name] = "nobody uses it" if created[name] is not None else "its build was interrupted"
    return Removal(removed, kept, _folders(gone, venvs, removed), leftovers)


def remove(root: str, generation: str | None, keep: int | None, progress: Progress) -> Removal:
    """Do what plan_removal says, and return what was done. Nobody builds meanwhile."""
    root = check_root(root, GenerationError)
    if not plan_removal(root, generation, keep).changed:
        return plan_removal(root, generation, keep)
    venvs = os.path.join(root, "venvs")
    try:
        with exclusive(os.path.join(venvs, ".lock"), lambda holder: progress(f"waiting for {holder}")) as lock:
            plan = plan_removal(root, generation, keep)
            before = _manifests(venvs)
            for name in list(plan.removed):
                progress(f"removing {name}")
                why = _remove_one(root, name, keep)
                if why:
                    plan = _without(plan, os.path.join(venvs, name), why, generation is not None)
            for release in plan.releases:
                shutil.rmtree(release.folder, ignore_errors=True)
            for name in plan.leftovers:
                shutil.rmtree(os.path.join(venvs, name), ignore_errors=True)
            gone = [before[name] for name in plan.removed if name in before]
            _clean_cache(root, gone, list(_manifests(venvs).values()), lock)
            return plan
    except TimeoutError as error:
        raise GenerationError(str(error)) from error
    except OSError as error:
        raise GenerationError(f"cannot be removed: {error.filename or venvs}: {error.strerror}") from error


def described(root: str, plan: Removal) -> dict[str, Any]:
    """The part of the module's result that says what a removal is."""
    venvs = os.path.join(root, "venvs")
    before = [*plan.kept, *plan.removed, *plan.leftovers]
    return {
        "changed": plan.changed,
        "removed": [{"id": name, "path": os.path.join(venvs, name), "why": why} for name, why in plan.removed.items()],
        "kept": [{"id": name, "path": os.path.join(venvs, name), "why": why} for name, why in plan.kept.items()],
        "diff": {
            "before_header": venvs,
            "before": "".join(f"{name}\n" for name in sorted(before)),
            "after_header": venvs,
            "after": "".join(f"{name}\n" for name in sorted(plan.kept)),
        },
    }


def _plan_one(root: str, name: str) -> Removal:
    path = os.path.join(root, "venvs", name)
    leftovers = _standing(os.path.dirname(path))[1]
    if not os.path.lexists(path):
        return Removal({}, {}, (), leftovers)
    used, gone = _uses(root, [name], None)
    if name in used:
        raise GenerationError(f"the generation is in use: {path}: {used[name]}: deploy another one first")
    return Removal({name: "it was named"}, {}, _folders(gone, os.path.dirname(path), [name]), leftovers)


def _named(venvs: str, generation: str) -> str:
    """The name of a generation that is given by name or by path."""
    name = os.path.basename(os.path.normpath(generation))
    place = os.path.dirname(os.path.normpath(generation))
    if not _NAME.match(name) or (place and os.path.realpath(place) != os.path.realpath(venvs)):
        raise GenerationError(
            f"not a generation: {generation}: give its name, or its path below {venvs}; nothing else is removed"
        )
    return name


def _standing(venvs: str) -> tuple[list[str], tuple[str, ...]]:
    """Names of what is or was to become a generation, and of what removals that were cut off left behind."""
    try:
        names = sorted(os.listdir(venvs))
    except FileNotFoundError:
        return [], ()
    return [name for name in names if _NAME.match(name)], tuple(name for name in names if _ASIDE.match(name))


def _created(path: str) -> float | None:
    """When a generation was completed; None for the rest of an interrupted build."""
    try:
        manifest = read_manifest(path)
    except ManifestError:
        return float("-inf")
    return manifest["created"] if manifest else None


def _uses(root: str, names: Iterable[str], going_back: int | None) -> tuple[dict[str, str], list[ReleaseUse]]:
    """{name: why} of the generations that must stay, and the releases that do not keep theirs."""
    venvs = os.path.join(root, "venvs")
    paths = {os.path.join(venvs, name): name for name in names}
    used = {paths[path]: f"a process runs from it: {who}" for path, who in processes_in(list(paths)).items()}
    gone = []
    try:
        for release in releases(root, going_back):
            if not release.why:
                gone.append(release)
            elif os.path.realpath(release.generation) in paths:
                used.setdefault(paths[os.path.realpath(release.generation)], release.why)
    except UsageError as error:
        # Without that file nobody knows which generation it needs: it may be any of them.
        return dict.fromkeys(names, f"a release may use it: {error}"), []
    for name, unit in units_with(list(paths.values())).items():
        used.setdefault(name, f"{unit} names it")
    for path, name in paths.items():
        with contextlib.suppress(ManifestError):
            read_manifest(path)
            continue
        used.setdefault(name, "its manifest cannot be read: only a person may decide about it")
    return used, gone


def _folders(gone: Iterable[ReleaseUse], venvs: str, removed: Iterable[str]) -> tuple[ReleaseUse, ...]:
    going = {os.path.join(venvs, name) for name in removed}
    return tuple(release for release in gone if os.path.realpath(release.generation) in going)


def _without(plan: Removal, path: str, why: str, named: bool) -> Removal:
    """A plan without a generation that came into use while the plan was carried out."""
    if named:
        raise GenerationError(f"the generation is in use: {path}: {why}: deploy another one first")
    name = os.path.basename(path)
    return plan._replace(
        removed={other: reason for other, reason in plan.removed.items() if other != name},
        kept={**plan.kept, name: why},
        releases=tuple(release for release in plan.releases if os.path.realpath(release.generation) != path),
    )


def _remove_one(root: str, name: str, keep: int | None) -> str:
    """Remove a generation, or say why it stays.

    It loses its name first: a removal that is cut off leaves nothing half there, and whoever switches to it from now
    on finds it gone before anything is touched. Whoever did so before shows in the history.
    """
    venvs = os.path.join(root, "venvs")
    path = os.path.join(venvs, name)
    if os.path.islink(path) or not os.path.isdir(path):
        os.unlink(path)
        return ""
    aside = os.path.join(venvs, f".removed-{name}")
    shutil.rmtree(aside, ignore_errors=True)
    os.rename(path, aside)
    # The kernel tells paths as they are now: a process that started from it in between is seen under the new one.
    started = {path: f"a process runs from it: {who}" for path, who in processes_in([aside]).items()}
    why = started.get(aside) or _uses(root, [name], keep)[0].get(name, "")
    if why:
        os.rename(aside, path)
    else:
        shutil.rmtree(aside)
    return why


def _manifests(venvs: str) -> dict[str, dict[str, Any]]:
    found = {}
    for name in _standing(venvs)[0]:
        with contextlib.suppress(ManifestError):
            manifest = read_manifest(os.path.join(venvs, name))
            if manifest:
                found[name] = manifest
    return found


def _clean_cache(root: str, gone: list[dict[str, Any]], left: list[dict[str, Any]], lock: int) -> None:
    """Take out of uv's cache, and of the files that were copied here, what no generation has any more.

    Without that a removal frees next to nothing: the files of a generation are hard links to the cache.
    """
    staying = {pin for manifest in left for pin in _pins(manifest)}
    hashes = {digest for manifest in left for digest in _copied(manifest)}
    cache = os.path.join(root, "cache")
    for manifest in gone:
        for name, version in set(_pins(manifest)) - staying:
            # Of the public index in one folder, of others one folder deeper, by the hash of their address.
            for place in ("*", "*/*"):
                for pointer in Path(cache, "uv").glob(f"wheels-v*/{place}/{name}/{version}-*"):
                    with contextlib.suppress(OSError):
                        pointer.unlink()
        for digest in _copied(manifest) - hashes:
            if re.fullmatch(r"[0-9a-f]{64}", digest):
                shutil.rmtree(os.path.join(root, "wheels", digest), ignore_errors=True)
    uv = known_uv(os.path.join(root, "tools"))
    if gone and uv:
        source = Source(installer_environment(cache), uv, lock=lock)
        with contextlib.suppress(UvError):
            run_uv(uv, ["cache", "prune"], source)


def _pins(manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    return list(manifest["distributions"].items())


def _copied(manifest: Mapping[str, Any]) -> set[str]:
    """The hashes of what a generation may have in the store: wheels and overlays."""
    return {str(digest) for digest in (*manifest.get("wheels", []), *manifest["overlays"].values())}
