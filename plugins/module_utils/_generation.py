# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Generations: immutable venvs, named by the hash of all that went into them. Private to the collection."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, Callable, NamedTuple

from ansible_collections.gpufleet.dflash.plugins.module_utils._catalogue import normalise
from ansible_collections.gpufleet.dflash.plugins.module_utils._files import exclusive, write_atomically
from ansible_collections.gpufleet.dflash.plugins.module_utils._lock import (
    LockEntry,
    lock_digest,
    render_lock,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._manifest import (
    MANIFEST,
    NOTES,
    ManifestError,
    is_generation,
    read_manifest,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._uv import Source, UvError, ensure_uv, run_uv
from ansible_collections.gpufleet.dflash.plugins.module_utils._wheels import library_path, read_installed

SCHEMA = 1
Progress = Callable[[str], None]

# What tells one interpreter from another, and the values that PEP 508 markers are evaluated with.
_INSPECT = """
import json, os, platform, sys, sysconfig
v = sys.implementation.version
full = "%d.%d.%d" % v[:3] + ("" if v.releaselevel == "final" else v.releaselevel[0] + str(v.serial))
print(json.dumps({
    "path": os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable),
    "version": platform.python_version(),
    "platform": sysconfig.get_platform(),
    "tag": sys.implementation.cache_tag,
    "markers": {
        "implementation_name": sys.implementation.name, "implementation_version": full, "os_name": os.name,
        "platform_machine": platform.machine(), "platform_release": platform.release(),
        "platform_system": platform.system(), "platform_version": platform.version(),
        "python_full_version": platform.python_version(),
        "platform_python_implementation": platform.python_implementation(),
        "python_version": ".".join(platform.python_version_tuple()[:2]), "sys_platform": sys.platform,
    },
}))
"""


class GenerationError(Exception):
    """A generation that cannot be built; the text says what, where and what to do."""


class Interpreter(NamedTuple):
    """The Python a generation is made for."""

    path: str
    version: str
    platform: str
    tag: str
    markers: dict[str, str]


class Overlay(NamedTuple):
    """One file laid into site-packages after the lock is installed."""

    path: str  # relative to site-packages
    content: bytes

    @property
    def digest(self) -> str:
        """SHA-256 of the content, in hex."""
        return hashlib.sha256(self.content).hexdigest()


class Recipe(NamedTuple):
    """All that goes into a generation."""

    root: str
    lock: tuple[LockEntry, ...]
    overlays: tuple[Overlay, ...]
    interpreter: Interpreter

    @property
    def id(self) -> str:
        """The name of the generation: Python's tag and 16 digits of the hash of its inputs."""
        inputs = {
            "schema": SCHEMA,
            "lock": lock_digest(self.lock),
            "overlays": {overlay.path: overlay.digest for overlay in self.overlays},
            "python": [self.interpreter.path, self.interpreter.version, self.interpreter.platform],
        }
        digest = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()
        return f"{self.interpreter.tag}-{digest[:16]}"

    @property
    def path(self) -> str:
        """Where the generation stands on the host."""
        return os.path.join(self.root, "venvs", self.id)


def inspect_interpreter(python: str) -> Interpreter:
    """Return what python is; raises GenerationError when it does not run or is too old."""
    try:
        process = subprocess.run(
            [python, "-I", "-c", _INSPECT],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=60,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise GenerationError(f"the interpreter does not answer within 60 s: {python}: name another one") from error
    except OSError as error:
        raise GenerationError(f"the interpreter cannot be run: {python}: {error.strerror}") from error
    try:
        interpreter = Interpreter(**json.loads(process.stdout))
        version = tuple(map(int, str(interpreter.version).split(".")[:2]))
    except (ValueError, TypeError) as error:
        words = process.stderr.strip().splitlines() or ["it printed nothing"]
        raise GenerationError(f"not a usable Python interpreter: {python}: {words[-1]}") from error
    if version < (3, 9):
        raise GenerationError(
            f"Python {interpreter.version} is too old: {python}: name a newer one (3.9 at least) with the option python"
        )
    return interpreter


def check_overlay_path(path: str) -> str:
    """Return an overlay's path below site-packages, normalised; raises GenerationError when it leaves it."""
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or not pure.parts or "\0" in path:
        raise GenerationError(f"an overlay's dest is a path below site-packages: '{path}'")
    return str(pure)


def newest_manifest(root: str) -> dict[str, Any] | None:
    """Return the manifest of the generation that was completed last below root; None when there is none."""
    with contextlib.suppress(OSError):
        paths = [entry.path for entry in os.scandir(os.path.join(root, "venvs")) if is_generation(entry.path)]
        return max(filter(None, map(read_manifest, paths)), key=lambda manifest: manifest["created"], default=None)
    return None


def build(recipe: Recipe, source: Source, progress: Progress) -> dict[str, Any]:
    """Build the generation of a recipe unless it is complete, and return its manifest.

    Safe to interrupt at any point and to run twice at once: the manifest is the only sign of completeness and is
    written last; what stands there without one is the rest of an interrupted build and is built anew.
    """
    lock_file = os.path.join(recipe.root, "venvs", ".lock")
    try:
        for folder in ("", "cache", "tools", "venvs"):
            os.makedirs(os.path.join(recipe.root, folder), mode=0o755, exist_ok=True)
        waiting = "waiting for another build on this host"
        with exclusive(lock_file, lambda: progress(waiting)) as lock:
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
    except (UvError, TimeoutError) as error:
        raise GenerationError(f"the generation cannot be built: {recipe.path}: {error}") from error
    except OSError as error:
        place = error.filename or recipe.path
        raise GenerationError(f"the generation cannot be built: {place}: {error.strerror or error}") from error


def _refuse_if_used(path: str) -> None:
    """Raise GenerationError when a process runs from a folder that no manifest calls complete."""
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            command = Path("/proc", entry, "cmdline").read_bytes().split(b"\0")
            maps = Path("/proc", entry, "maps").read_bytes()
            if any(word.startswith(os.fsencode(path) + b"/") for word in command) or os.fsencode(path) + b"/" in maps:
                name = os.fsdecode(b" ".join(command))[:80]
                raise GenerationError(
                    f"a process runs from a generation whose manifest is gone: {path}: PID {entry} ({name}): "
                    "stop it, then deploy again"
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
    lock_file = notes / "lock.txt"
    lock_file.write_text(render_lock(recipe.lock), encoding="utf-8")
    python = os.path.join(recipe.path, "bin", "python")
    with _watched(recipe, progress) as heard:
        run_uv(
            uv,
            ["pip", "install", "--python", python, "--no-deps", "--require-hashes", "--compile-bytecode"]
            + ["-r", str(lock_file)],
            source,
            heard,
        )
    site = site_packages(recipe.path)
    for overlay in recipe.overlays:
        _lay(overlay, site, python)
    installed = json.loads(run_uv(uv, ["pip", "list", "--python", python, "--format", "json"], source))
    distributions = {normalise(row["name"]): row["version"] for row in installed}
    _compare(recipe, distributions)
    manifest = {
        "schema": SCHEMA,
        "id": recipe.id,
        "created": started,
        "seconds": round(time.time() - started, 2),
        "lock_sha256": lock_digest(recipe.lock),
        "python": recipe.interpreter._asdict(),
        "distributions": distributions,
        "overlays": {overlay.path: overlay.digest for overlay in recipe.overlays},
        "library_directories": [os.path.relpath(path, site) for path in library_path(read_installed([site]))],
    }
    # Everything is on disk before the manifest says so: it must survive a power cut right after.
    os.sync()
    text = json.dumps(manifest, indent=2, sort_keys=True) + "\n"
    write_atomically(str(notes / MANIFEST), text.encode())
    return manifest


def site_packages(venv: str) -> str:
    """Return the site-packages folder of a venv that uv made."""
    found = sorted(Path(venv, "lib").glob("python3.*/site-packages"))
    if len(found) != 1:
        raise GenerationError(f"not one site-packages folder but {len(found)}: {venv}/lib: remove it and build again")
    return str(found[0])


def _lay(overlay: Overlay, site: str, python: str) -> None:
    place = os.path.join(site, overlay.path)
    os.makedirs(os.path.dirname(place), mode=0o755, exist_ok=True)
    # A new inode: the file that it replaces may be hard-linked to the cache and to other generations.
    write_atomically(place, overlay.content)
    if place.endswith(".py"):
        compiled = subprocess.run(
            [python, "-I", "-m", "compileall", "-q", "-f", place], capture_output=True, text=True, check=False
        )
        if compiled.returncode:
            words = (compiled.stdout + compiled.stderr).strip().splitlines() or ["no reason given"]
            raise GenerationError(f"an overlay does not compile: {overlay.path}: {words[-1]}")


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
def _watched(recipe: Recipe, progress: Progress) -> Iterator[Progress]:
    """Say every second how far an installation is, and pass on what uv says between.

    uv is silent where it has no terminal, so this looks at what it does: bytes arriving on the file system, then
    distributions appearing in the venv.
    """
    done = threading.Event()
    expected = len(recipe.lock)
    free_before = shutil.disk_usage(recipe.root).free

    def look() -> None:
        started = time.monotonic()
        while not done.wait(1.0):
            count = len(list(Path(recipe.path, "lib").glob("python3.*/site-packages/*.dist-info")))
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
