# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Open a virtual environment from its files, executing nothing in it. Private to the collection."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field

from ansible_collections.gpufleet.dflash.plugins.module_utils._paths import read_start

# A venv's configuration is a dozen lines; anything larger is not one.
_CONFIGURATION_LIMIT = 64 * 1024


class VenvError(Exception):
    """What was given is not a usable venv. The message says what is wrong, where, and what to do."""


@dataclass(frozen=True)
class Venv:
    """One virtual environment.

    ``python`` is the real interpreter behind bin/python (a base installation's: it decides ``$ORIGIN`` and
    the loader). ``site_packages`` are the venv's own; ``import_path`` is where Python looks for modules, in
    order: those, the directories that ``.pth`` files add, and the base's site-packages when the venv includes
    them.
    """

    path: str
    python: str
    version: str
    site_packages: tuple[str, ...]
    import_path: tuple[str, ...] = field(default=())

    @property
    def feature_version(self) -> str:
        """Major and minor version, as in ``python3.11``."""
        return ".".join(self.version.split(".")[:2])

    @property
    def standard_library(self) -> tuple[str, ...]:
        """Directories of the base interpreter's standard library, its extension modules' last; empty where there
        are none.
        """
        prefix = os.path.dirname(os.path.dirname(self.python))
        name = f"python{self.feature_version}"
        found = [os.path.join(prefix, lib, name) for lib in ("lib", "lib64")]
        found = [directory for directory in found if os.path.isfile(os.path.join(directory, "os.py"))]
        compiled = [os.path.join(prefix, lib, name, "lib-dynload") for lib in ("lib", "lib64")]
        return tuple(dict.fromkeys((*found, *filter(os.path.isdir, compiled if found else ()))))


def open_venv(path: str) -> Venv:
    """Read the venv at ``path``. Raises VenvError for what is not a venv, or is one that cannot run."""
    path = os.path.abspath(path)
    configuration = _read_configuration(path)
    python = _interpreter(path)
    site_packages = _site_packages(path)
    if not site_packages:
        raise VenvError(f"the venv has no lib/pythonX.Y/site-packages: {path}: build it anew")
    feature = re.match(r"python(\d+\.\d+)", os.path.basename(os.path.dirname(site_packages[0])))
    version = _version(configuration) or (feature.group(1) if feature else "")
    if feature and ".".join(version.split(".")[:2]) != feature.group(1):
        raise VenvError(
            f"the venv was made for Python {version}, its packages are for {feature.group(1)}: {path}: build it anew"
        )
    import_path = list(site_packages)
    for directory in site_packages:
        import_path += _path_lines(directory)
    if configuration.get("include-system-site-packages", "false").lower() == "true":
        import_path += _base_site_packages(configuration.get("home", ""), version)
    return Venv(path, python, version, tuple(site_packages), tuple(dict.fromkeys(import_path)))


def _read_configuration(path: str) -> dict[str, str]:
    file = os.path.join(path, "pyvenv.cfg")
    try:
        text = read_start(file, _CONFIGURATION_LIMIT)
    except FileNotFoundError:
        where = "there is no such directory" if not os.path.isdir(path) else "it has no pyvenv.cfg"
        raise VenvError(
            f"not a virtual environment: {path}: {where}; give the directory that holds bin/python"
        ) from None
    except OSError as error:
        raise VenvError(f"cannot read the venv's configuration: {file}: {error.strerror}") from None
    pairs = (line.partition("=") for line in text.splitlines())
    return {key.strip().lower(): value.strip() for key, separator, value in pairs if separator}


def _version(configuration: dict[str, str]) -> str:
    # venv writes version, uv and virtualenv write version_info (virtualenv as 3.11.2.final.0).
    for key in ("version_info", "version"):
        found = re.match(r"\d+\.\d+(\.\d+)?", configuration.get(key, ""))
        if found:
            return found.group()
    return ""


def _interpreter(path: str) -> str:
    link = os.path.join(path, "bin", "python")
    python = os.path.realpath(link)
    if not os.path.lexists(link):
        raise VenvError(f"the venv has no interpreter: {link}: build the venv anew")
    if not os.path.isfile(python):
        raise VenvError(
            f"the venv's interpreter is gone: {link} -> {python}: install that Python or build the venv anew"
        )
    return python


def _site_packages(path: str) -> list[str]:
    """The venv's own site-packages: two where lib64 is a directory of its own (pytorch/pytorch#165812)."""
    found: dict[str, str] = {}
    for lib in ("lib", "lib64"):
        try:
            names = sorted(os.listdir(os.path.join(path, lib)))
        except OSError:
            continue
        for name in names:
            directory = os.path.join(path, lib, name, "site-packages")
            if re.fullmatch(r"python\d+\.\d+t?", name) and os.path.isdir(directory):
                found.setdefault(os.path.realpath(directory), directory)
    return list(found.values())


def _path_lines(directory: str) -> list[str]:
    """Directories that ``.pth`` files add. Their ``import`` lines are code, which is never executed."""
    added = []
    try:
        names = sorted(name for name in os.listdir(directory) if name.endswith(".pth") and not name.startswith("."))
    except OSError:
        return []
    for name in names:
        try:
            lines = read_start(os.path.join(directory, name), _CONFIGURATION_LIMIT).splitlines()
        except OSError:
            continue
        for line in lines:
            line = line.rstrip()
            if not line or line.startswith(("#", "import ", "import\t")) or "\0" in line:
                continue
            target = os.path.normpath(os.path.join(directory, line))
            if os.path.isdir(target):
                added.append(target)
    return added


def _base_site_packages(home: str, version: str) -> list[str]:
    prefix = os.path.dirname(home.rstrip("/"))
    feature = ".".join(version.split(".")[:2])
    candidates = [
        # Debian's order: pip's, then apt's.
        os.path.join(prefix, "local", "lib", f"python{feature}", "dist-packages"),
        os.path.join(prefix, "lib", f"python{feature}", "site-packages"),
        os.path.join(prefix, "lib", "python3", "dist-packages"),
    ]
    return [directory for directory in candidates if home and os.path.isdir(directory)]
