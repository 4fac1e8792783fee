# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the module venv_generation does with its options. Private to the collection."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gpufleet.dflash.plugins.module_utils import _prune, _space
from ansible_collections.gpufleet.dflash.plugins.module_utils._adopt import (
    Choice,
    editable_paths,
    members,
    read_base,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._files import check_root
from ansible_collections.gpufleet.dflash.plugins.module_utils._generation import (
    Progress,
    build,
    choice_of,
    manifests,
    to_install,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._host_kernel import driver_version
from ansible_collections.gpufleet.dflash.plugins.module_utils._lock import LockEntry, LockError, read_lock
from ansible_collections.gpufleet.dflash.plugins.module_utils._manifest import (
    ManifestError,
    is_generation,
    read_manifest,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._overlays import (
    need_of,
    read_overlays,
    refuse_absent,
    whole_in_store,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._privilege import NEEDS_ROOT, lacks_root, may_write_below
from ansible_collections.gpufleet.dflash.plugins.module_utils._recipe import (
    GenerationError,
    Recipe,
    inspect_interpreter,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._requirements import marker_applies
from ansible_collections.gpufleet.dflash.plugins.module_utils._uv import UV_HASHES, Source, installer_environment
from ansible_collections.gpufleet.dflash.plugins.module_utils._wheel_store import (
    clash_messages,
    contents,
    gathered,
    lacking_message,
    stored,
    wheels_of,
)


def make_recipe(options: Mapping[str, Any]) -> Recipe:
    """Return the recipe that a module's options describe; raises GenerationError."""
    lock: tuple[LockEntry, ...] = ()
    if options["lock_content"] is not None:
        try:
            lock = read_lock(options["lock_content"], options["lock"] or "lock_content")
        except LockError as error:
            raise GenerationError(str(error)) from error
    overlays = read_overlays(options["overlays"])
    root = check_root(options["root"], GenerationError)
    base = read_base(options["base"]) if options.get("base") else None
    interpreter = inspect_interpreter(options["python"] or (base.python if base else sys.executable))
    if base:
        feature = ".".join(interpreter.version.split(".")[:2])
        if f"/python{feature}/" not in f"{base.site_packages}/":
            raise GenerationError(
                f"the base is of another Python than {feature}: {base.path}: leave the option python away"
            )
    return Recipe(root, lock, overlays, interpreter, base)


def plan(recipe: Recipe, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what building a recipe would do, without writing anything; raises GenerationError for what cannot work.

    The controller evaluates the environment markers of the lock: the library for it need not be on the host.
    """
    manifest = _manifest(recipe)
    everything = manifests(recipe.root)
    newest = max(everything, key=lambda found: found["created"], default=None)
    result = {
        "changed": manifest is None,
        "manifest": manifest,
        "before": newest and _content(newest),
        "requirements": [[entry.name, entry.version, entry.marker] for entry in recipe.lock],
        "overlays": {
            **(recipe.base.overlays if recipe.base and not recipe.lock else {}),
            **{overlay.path: overlay.digest for overlay in recipe.overlays},
        },
        "progress_file": progress_file(recipe),
        "advice": [],
        **_identity(recipe),
    }
    if recipe.base:
        result["base"] = {"path": recipe.base.path, "distributions": recipe.base.distributions}
    if manifest is None:
        _refuse_without_root(recipe.root)
        result.update(_needs(recipe, options, everything, planning=True))
        result["stored"] += whole_in_store(recipe.overlays, recipe.root)
    return result


def run(recipe: Recipe, options: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Build a recipe's generation and return its manifest and identity; raises GenerationError."""
    existed = _manifest(recipe)
    if existed is None:
        _refuse_without_root(recipe.root)
        refuse_absent(recipe.overlays, recipe.root)
        _refuse_shortage(recipe, _needs(recipe, options, manifests(recipe.root), planning=False)["space"])
    with contextlib.ExitStack() as stack:
        houses = [options["wheelhouse"]] if options.get("wheelhouse") else []
        hashes = [*(digest for entry in recipe.lock for digest in entry.hashes), *UV_HASHES]
        # Whoever brought them: what is here already need not be fetched, and an index may not have it.
        if existed is None and (options.get("make_wheelhouse") or stored(recipe.root, hashes)):
            try:
                houses.append(stack.enter_context(gathered(recipe.root, recipe.id, hashes)))
            except OSError as error:
                raise GenerationError(f"cannot be written: {error.filename}: {error.strerror}") from error
        extra = options.get("extra_index_urls") or []
        source = Source(
            installer_environment(
                os.path.join(recipe.root, "cache"),
                options["index_url"],
                options["ca_file"],
                extra,
                houses,
                bool(options.get("no_index") or options.get("make_wheelhouse")),
            ),
            options["uv"],
            (options["index_url"] or "", *extra),
        )
        manifest = build(recipe, source, progress)
    return {"changed": existed is None, "manifest": manifest, **_identity(recipe)}


def absent(options: Mapping[str, Any], check_mode: bool, progress: Progress) -> dict[str, Any]:
    """Remove a generation, or all that are too many; in check mode say what would be removed."""
    root = check_root(options["root"], GenerationError)
    arguments = (root, options["generation"], options["keep"])
    done = _prune.plan_removal(*arguments) if check_mode else _prune.remove(*arguments, progress)
    return _prune.described(root, done)


def _needs(
    recipe: Recipe, options: Mapping[str, Any], everything: Sequence[Mapping[str, Any]], planning: bool
) -> dict[str, Any]:
    """What a build will take and have: for the controller, which knows the sizes of what the index has.

    While it is planned, the controller may still bring wheels that are lacking.
    """
    choice = choice_of(recipe)
    entries = to_install(recipe, choice)
    present = {f"{name}=={version}" for found in everything for name, version in found["distributions"].items()}
    on_host = _on_host(options, entries)
    lacking = _lacking(recipe, options, entries, on_host)
    if lacking and not (planning and options.get("local_wheels")):
        raise GenerationError(lacking_message(lacking, options.get("wheelhouse"), bool(options.get("local_wheels"))))
    sizes = _sizes(recipe, options, on_host)
    need = _space.need_of(sizes, [entry.pin for entry in entries], present)
    base = _base_need(recipe, choice) if recipe.base else _space.Need(0, 0)
    need = need.plus(base).plus(need_of(recipe.overlays, recipe.root))
    space = {"need": list(need), "room": list(_space.room_at(recipe.root))}
    _refuse_shortage(recipe, space)
    answer: dict[str, Any] = {
        "space": space,
        "install": [[entry.name, entry.version, entry.marker, list(entry.hashes)] for entry in entries],
        "present": sorted(present),
        "on_host": sorted(on_host),
        "lacking": lacking,
        "stored": sorted(stored(recipe.root, [*(d for entry in recipe.lock for d in entry.hashes), *UV_HASHES])),
        "needs_uv": not options["uv"],
        "driver": options.get("driver") or driver_version(),
    }
    if recipe.base:
        answer["reinstalled"] = choice.reinstalled
        answer["removed"] = list(choice.removed)
        outside = editable_paths(recipe.base.site_packages)
        if outside:
            answer["advice"] = [
                f"the base imports from {', '.join(outside)}, which is no part of the generation and may change: "
                f"{recipe.base.path}"
            ]
    return answer


def _refuse_without_root(root: str) -> None:
    if lacks_root() and not may_write_below(root):
        raise GenerationError(f"{root} cannot be written: {NEEDS_ROOT}")


def _refuse_shortage(recipe: Recipe, space: Mapping[str, Any]) -> None:
    words = _space.shortage(recipe.root, _space.Need(*space["need"]), _space.Room(*space["room"]))
    if words:
        raise GenerationError(words)


def _on_host(options: Mapping[str, Any], entries: Sequence[LockEntry]) -> dict[str, list[str]]:
    """{pin: paths} of the wheels of the wheelhouse that somebody put on the host."""
    return wheels_of(options["wheelhouse"], entries) if options.get("wheelhouse") else {}


def _lacking(
    recipe: Recipe, options: Mapping[str, Any], entries: Sequence[LockEntry], found: Mapping[str, list[str]]
) -> list[str]:
    """Pins that neither a wheelhouse of the host nor what was copied here can give, where no index is asked."""
    if not options.get("no_index") or not (options.get("wheelhouse") or options.get("local_wheels")):
        return []
    markers = recipe.interpreter.markers
    return [
        entry.pin
        for entry in entries
        if entry.pin not in found
        and not stored(recipe.root, entry.hashes)
        and (entry.marker is None or marker_applies(entry.marker, markers))
    ]


def _sizes(recipe: Recipe, options: Mapping[str, Any], found: dict[str, list[str]]) -> dict[str, tuple[int, int]]:
    """Sizes of the wheels of a wheelhouse; raises GenerationError for those that cannot be installed together."""
    files = contents(found)
    if options.get("check_lock", True):
        wrong = clash_messages(files, {overlay.path for overlay in recipe.overlays})
        if wrong:
            raise GenerationError("the lock cannot work: " + "; ".join(wrong))
    return {pin: wheel.size for pin, wheel in files.items()}


def _base_need(recipe: Recipe, choice: Choice) -> _space.Need:
    if recipe.base is None or _space.shares_blocks(recipe.base.path, recipe.root):
        return _space.Need(0, 0)
    kept = not choice.removed and not choice.reinstalled
    if is_generation(recipe.base.path) or not kept:
        return _space.Need(0, 0)  # linked, or fewer files than there are: no lower bound that is worth the work
    sizes = [m.status.st_size for m in members(recipe.base.path) if stat.S_ISREG(m.status.st_mode)]
    return _space.Need(sum(sizes), len(sizes))


def _manifest(recipe: Recipe) -> dict[str, Any] | None:
    try:
        return read_manifest(recipe.path)
    except ManifestError as error:
        raise GenerationError(str(error)) from error


def progress_file(recipe: Recipe) -> str:
    """Where a running build writes its latest line of progress."""
    return os.path.join(recipe.root, "venvs", f".{recipe.id}.progress")


def _identity(recipe: Recipe) -> dict[str, Any]:
    python = recipe.interpreter
    library = f"lib/python{'.'.join(python.version.split('.')[:2])}/site-packages"
    return {
        "id": recipe.id,
        "path": recipe.path,
        "site_packages": os.path.join(recipe.path, library),
        "python": python._asdict(),
    }


def _content(manifest: Mapping[str, Any]) -> dict[str, Any]:
    return {key: manifest[key] for key in ("id", "distributions", "overlays")}
