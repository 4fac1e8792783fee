# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Generations: immutable venvs, named by the hash of all that went into them. Private to the collection."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Callable

from ansible_collections.gpufleet.dflash.plugins.module_utils import _space
from ansible_collections.gpufleet.dflash.plugins.module_utils._adopt import Choice, choose
from ansible_collections.gpufleet.dflash.plugins.module_utils._adopt_copy import copy_base
from ansible_collections.gpufleet.dflash.plugins.module_utils._bytecode import compile_rest, link_compiled
from ansible_collections.gpufleet.dflash.plugins.module_utils._catalogue import normalise
from ansible_collections.gpufleet.dflash.plugins.module_utils._files import exclusive, write_atomically
from ansible_collections.gpufleet.dflash.plugins.module_utils._lock import LockEntry, lock_digest, render_lock
from ansible_collections.gpufleet.dflash.plugins.module_utils._manifest import (
    MANIFEST,
    NOTES,
    ManifestError,
    is_generation,
    read_manifest,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._overlays import lay
from ansible_collections.gpufleet.dflash.plugins.module_utils._recipe import (
    SCHEMA,
    GenerationError,
    Recipe,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._usage import processes_in
from ansible_collections.gpufleet.dflash.plugins.module_utils._uv import Source, UvError, ensure_uv, run_uv
from ansible_collections.gpufleet.dflash.plugins.module_utils._wheels import library_path, read_installed, sha256_of

Progress = Callable[[str], None]


def manifests(root: str) -> list[dict[str, Any]]:
    """Return the manifests of the complete generations below root."""
    with contextlib.suppress(OSError):
        paths = [entry.path for entry in os.scandir(os.path.join(root, "venvs")) if is_generation(entry.path)]
        return list(filter(None, map(read_manifest, paths)))
    return []


def build(recipe: Recipe, source: Source, progress: Progress) -> dict[str, Any]:
    """Build the generation of a recipe unless it is complete, and return its manifest.

    Safe to interrupt at any point and to run twice at once: the manifest is the only sign of completeness and is
    written last; what stands there without one is the rest of an interrupted build and is built anew.
    """
    lock_file = os.path.join(recipe.root, "venvs", ".lock")
    try:
        for folder in ("", "cache", "tools", "venvs"):
            os.makedirs(os.path.join(recipe.root, folder), mode=0o755, exist_ok=True)
        with exclusive(lock_file, lambda who: progress(f"waiting for {who}")) as lock:
            manifest = read_manifest(recipe.path)
            if manifest:
                return manifest
            if os.path.lexists(recipe.path):
                _refuse_if_used(recipe.path)
                progress("removing an interrupted build")
                _remove(recipe.path)
            try:
                return _build(recipe, source._replace(lock=lock), progress)
            except BaseException:
                _remove(recipe.path)
                raise
    except ManifestError as error:
        raise GenerationError(str(error)) from error
    except UvError as error:
        raise _explained(recipe, str(error)) from error
    except TimeoutError as error:
        raise GenerationError(f"the generation cannot be built: {recipe.path}: {error}") from error
    except OSError as error:
        place = error.filename or recipe.path
        if _space.tells_of_a_full_disk(error.strerror or ""):
            raise GenerationError(_space.full(recipe.root)) from error
        raise GenerationError(f"the generation cannot be built: {place}: {error.strerror or error}") from error


def _explained(recipe: Recipe, words: str) -> GenerationError:
    """uv's words, after one line that says what to do where that is known."""
    if _space.tells_of_a_full_disk(words):
        return GenerationError(_space.full(recipe.root))
    wrong = re.search(r"[Hh]ash mismatch for `?([^`\s]+)`?", words)
    if wrong:
        words = (
            f"the file of {wrong.group(1)} is not the one whose hash the lock has: compile the lock anew if it was "
            f"replaced for a known reason; if nobody knows one, do not trust that index\n{words}"
        )
    return GenerationError(f"the generation cannot be built: {recipe.path}: {words}")


def _refuse_if_used(path: str) -> None:
    """Raise GenerationError when a process runs from a folder that no manifest calls complete."""
    who = processes_in([path]).get(path)
    if who:
        raise GenerationError(
            f"a process runs from a generation whose manifest is gone: {path}: {who}: stop it, then deploy again"
        )


def _remove(path: str) -> None:
    """Remove what stands at a generation's place, whatever it is; never what a link there points to."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


def _build(recipe: Recipe, source: Source, progress: Progress) -> dict[str, Any]:
    uv = source.uv or ensure_uv(os.path.join(recipe.root, "tools"), recipe.interpreter.path, source, progress)
    started = time.time()
    progress("making the venv")
    run_uv(uv, ["venv", "--no-project", "--python", recipe.interpreter.path, recipe.path], source)
    notes = Path(recipe.path, NOTES)
    notes.mkdir()
    if recipe.lock:
        (notes / "lock.txt").write_text(render_lock(recipe.lock), encoding="utf-8")
    choice = _adopt(recipe, progress)
    python = os.path.join(recipe.path, "bin", "python")
    _install(recipe, to_install(recipe, choice), uv, source, progress)
    site = site_packages(recipe.path)
    sibling = _sibling(recipe)
    if sibling or recipe.base:
        progress("compiling")
        if sibling:
            link_compiled(site, sibling, recipe.interpreter.tag)
        compile_rest(python, [site])
    for overlay in recipe.overlays:
        lay(overlay, recipe.root, site, python)
    installed = json.loads(run_uv(uv, ["pip", "list", "--python", python, "--format", "json"], source))
    distributions = {normalise(row["name"]): row["version"] for row in installed}
    if recipe.lock:
        _compare(recipe, distributions)
    manifest = {
        "schema": SCHEMA,
        "id": recipe.id,
        "created": started,
        "seconds": round(time.time() - started, 2),
        "lock_sha256": lock_digest(recipe.lock) if recipe.lock else None,
        "python": recipe.interpreter._asdict(),
        "distributions": distributions,
        "overlays": declared(recipe, site),
        "library_directories": [os.path.relpath(path, site) for path in library_path(read_installed([site]))],
        "wheels": sorted({digest.partition(":")[2] for entry in recipe.lock for digest in entry.hashes}),
        **_origin(recipe, choice),
    }
    # Everything is on disk before the manifest says so: it must survive a power cut right after.
    os.sync()
    text = json.dumps(manifest, indent=2, sort_keys=True) + "\n"
    write_atomically(str(notes / MANIFEST), text.encode())
    return manifest


def _sibling(recipe: Recipe) -> str | None:
    """The site-packages of the newest complete generation of the same Python."""
    made_for = (recipe.interpreter.path, recipe.interpreter.version)
    fitting = [
        manifest
        for manifest in manifests(recipe.root)
        if ((manifest.get("python") or {}).get("path"), (manifest.get("python") or {}).get("version")) == made_for
    ]
    if not fitting:
        return None
    newest = max(fitting, key=lambda manifest: manifest["created"])
    return site_packages(os.path.join(recipe.root, "venvs", newest["id"]))


def choice_of(recipe: Recipe) -> Choice:
    """Return what the recipe's lock makes of its base."""
    return choose(recipe.base, recipe.lock, recipe.interpreter.markers) if recipe.base else Choice(frozenset(), {}, ())


def to_install(recipe: Recipe, choice: Choice) -> tuple[LockEntry, ...]:
    """Return the entries of the lock that the base does not bring."""
    return tuple(entry for entry in recipe.lock if entry.name not in choice.kept)


def declared(recipe: Recipe, site: str) -> dict[str, str]:
    """Return {path: SHA-256} of the overlays that the generation has: the base's, where they stayed, and its own."""
    overlays = {}
    if recipe.base:
        # What the lock replaced is not the base's any more.
        overlays = {path: digest for path, digest in recipe.base.overlays.items() if _holds(site, path, digest)}
    overlays.update({overlay.path: overlay.digest for overlay in recipe.overlays})
    return overlays


def _holds(site: str, path: str, digest: str) -> bool:
    with contextlib.suppress(OSError):
        return sha256_of(os.path.join(site, path)) == digest
    return False


def _origin(recipe: Recipe, choice: Choice) -> dict[str, Any]:
    if not recipe.base:
        return {}
    return {
        "base": {
            "path": recipe.base.path,
            "identity": recipe.base.identity,
            "reinstalled": choice.reinstalled,
            "removed": list(choice.removed),
        }
    }


def _adopt(recipe: Recipe, progress: Progress) -> Choice:
    choice = choice_of(recipe)
    if recipe.base:
        copy_base(recipe.base, choice, recipe.path, progress)
    return choice


def _install(recipe: Recipe, entries: Sequence[LockEntry], uv: str, source: Source, progress: Progress) -> None:
    if not entries:
        return
    pins = Path(recipe.path, NOTES, "install.txt")
    pins.write_text(render_lock(tuple(entries), exact=True), encoding="utf-8")
    compiling = [] if _sibling(recipe) or recipe.base else ["--compile-bytecode"]
    with _watched(recipe, len(entries), progress) as heard:
        run_uv(
            uv,
            ["pip", "install", "--python", os.path.join(recipe.path, "bin", "python")]
            + ["--no-deps", "--require-hashes", *compiling]
            + [*(["--no-index"] if source.no_index else []), "-r", str(pins)],
            source,
            heard,
        )
    pins.unlink()


def site_packages(venv: str) -> str:
    """Return the site-packages folder of a venv that uv made."""
    found = sorted(Path(venv, "lib").glob("python3.*/site-packages"))
    if len(found) != 1:
        raise GenerationError(f"not one site-packages folder but {len(found)}: {venv}/lib: remove it and build again")
    return str(found[0])


def _compare(recipe: Recipe, distributions: dict[str, str]) -> None:
    """Hold what is installed against the lock: uv must not have added, skipped or exchanged anything."""
    pins = {(entry.name, entry.version) for entry in recipe.lock}
    strange = sorted(f"{name}=={version}" for name, version in distributions.items() if (name, version) not in pins)
    absent = sorted(entry.name for entry in recipe.lock if entry.marker is None and entry.name not in distributions)
    if strange or absent:
        raise GenerationError(
            f"what was installed is not what the lock says: {recipe.path}: "
            f"not in the lock: {', '.join(strange) or 'none'}; missing: {', '.join(absent) or 'none'}"
        )


@contextlib.contextmanager
def _watched(recipe: Recipe, expected: int, progress: Progress) -> Iterator[Progress]:
    """Say every second how far an installation is, and pass on what uv says between.

    uv is silent where it has no terminal, so this looks at what it does: bytes arriving on the file system, then
    distributions appearing in the venv.
    """
    done = threading.Event()
    there = len(list(Path(recipe.path, "lib").glob("python3.*/site-packages/*.dist-info")))
    free_before = shutil.disk_usage(recipe.root).free

    def look() -> None:
        started = time.monotonic()
        while not done.wait(1.0):
            count = len(list(Path(recipe.path, "lib").glob("python3.*/site-packages/*.dist-info"))) - there
            grown = max(0, free_before - shutil.disk_usage(recipe.root).free) / 1e6
            what = f"installed {count} of {expected}" if count else f"fetching {expected} distributions"
            progress(f"{what}, {grown:,.0f} MB so far, {time.monotonic() - started:.0f} s")

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield progress
    finally:
        done.set()
        watcher.join()
