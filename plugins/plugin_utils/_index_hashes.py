# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask package indexes, on the controller, for the hashes of exact versions. Private to the collection.

uv does the asking: it knows indexes' formats, proxies, credentials in addresses and in netrc files.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from ansible.errors import AnsibleActionFail

from ansible_collections.gpufleet.dflash.plugins.module_utils._lock import LockEntry, LockError, read_lock
from ansible_collections.gpufleet.dflash.plugins.module_utils._uv import (
    Source,
    UvError,
    ensure_uv,
    installer_environment,
    without_credentials,
)

_ABSENT = re.compile(r"not found in the package registry|there is no version of|was not found in the provided package")
_NO_WHEEL = re.compile(
    r"no wheels? with a matching|has no usable wheels|no usable wheels|has no wheels|no-build|--no-build"
)
# The newest glibc that uv has a name for.
_NEWEST_GLIBC = 40


class Target(NamedTuple):
    """What the wheels have to fit: the reference's Python, machine and glibc."""

    python: str
    machine: str
    glibc: str | None

    @property
    def platform(self) -> str:
        """The target as uv names it."""
        minor = int(self.glibc.split(".")[1]) if self.glibc else 17
        return f"{self.machine}-manylinux_2_{min(max(minor, 17), _NEWEST_GLIBC)}"


class Found(NamedTuple):
    """Lock entries of what the indexes have, and {name: why not} of the rest."""

    entries: dict[str, LockEntry]
    absent: dict[str, str]


class Indexes:
    """The indexes of a task, in the order in which they are asked."""

    def __init__(self, urls: Sequence[str], ca_file: str | None, uv: str | None) -> None:
        self._urls: list[str | None] = list(urls) or [None]
        self._ca_file = ca_file
        self._uv = uv or _uv(ca_file)

    def find(self, pins: Mapping[str, str], target: Target) -> Found:
        """The hashes of {name: version}, of all files that the first index with just that version has.

        Raises AnsibleActionFail when an index cannot be asked.
        """
        entries: dict[str, LockEntry] = {}
        reasons: dict[str, str] = {}
        for number, _url in enumerate(self._urls):
            for name, entry in self._search(
                number, {n: v for n, v in pins.items() if n not in entries}, target, reasons
            ):
                entries[name] = entry
        return Found(entries, {name: reasons[name] for name in pins if name not in entries})

    def install(self, entry: LockEntry, folder: str, target: Target) -> bool:
        """Unpack the wheel of an entry into a folder, checked by its hash; False when no index gives it."""
        lock = f"{entry.pin} {' '.join(f'--hash={digest}' for digest in entry.hashes)}\n"
        for number, _url in enumerate(self._urls):
            arguments = ["pip", "install", "--quiet", "--no-deps", "--require-hashes", "--only-binary", ":all:"]
            arguments += ["--target", folder, "--link-mode", "copy", *_target(target), "-r", "-"]
            if self._run(number, arguments, lock).returncode == 0:
                return True
        return False

    def _search(
        self, number: int, pins: Mapping[str, str], target: Target, reasons: dict[str, str]
    ) -> Iterator[tuple[str, LockEntry]]:
        """Ask one index for many at once; where that fails, for halves of them: one that is absent spoils the whole."""
        if not pins:
            return
        arguments = ["pip", "compile", "-", "--quiet", "--no-deps", "--generate-hashes", "--no-header", "--no-annotate"]
        arguments += ["--no-emit-index-url", "--no-emit-find-links", "--only-binary", ":all:", *_target(target)]
        done = self._run(number, arguments, "".join(f"{name}=={version}\n" for name, version in pins.items()))
        if done.returncode == 0:
            for name, line in _lines(done.stdout).items():
                if name in pins and line.split()[0].partition("==")[2] == pins[name]:
                    yield name, _entry(line, f"index {number + 1}")
                elif name in pins:
                    # ==2.11.0 accepts 2.11.0+cu130, which is another build.
                    reasons[name] = f"the index has {line.split()[0]}, another build"
        elif len(pins) > 1:
            items = list(pins.items())
            for half in (items[: len(items) // 2], items[len(items) // 2 :]):
                yield from self._search(number, dict(half), target, reasons)
        else:
            (name,) = pins
            words = done.stderr.strip()
            if _NO_WHEEL.search(words):
                reasons[name] = f"the index has no wheel of it for Python {target.python} on {target.platform}"
            elif _ABSENT.search(words):
                reasons[name] = "the index does not have this version"
            else:
                said = " / ".join(line.strip() for line in words.splitlines()[:4])
                raise AnsibleActionFail(f"the index cannot be asked for {name}: {self._hide(said)}")

    def _run(self, number: int, arguments: list[str], text: str) -> subprocess.CompletedProcess[str]:
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "VIRTUAL_ENV"))
        }
        url = self._urls[number]
        configuration = []
        if url is not None:
            # The indexes that were given are the whole list, whatever this controller is set up with.
            environment = {n: v for n, v in environment.items() if not re.match(r"UV_.*(INDEX|FIND_LINKS|OFFLINE)", n)}
            environment["UV_DEFAULT_INDEX"] = url
            configuration = ["--no-config"]
        if self._ca_file:
            environment["SSL_CERT_FILE"] = self._ca_file
        environment["UV_PYTHON_DOWNLOADS"] = "never"
        return subprocess.run(
            [self._uv, *configuration, *arguments, "--python", sys.executable],
            env=environment,
            input=text,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )

    def _hide(self, text: str) -> str:
        """Text without credentials, in the form that they have in an address and as they are."""
        for url in self._urls:
            parts = urlsplit(url or "")
            for secret in (parts.password, parts.username):
                if secret:
                    text = text.replace(secret, "***").replace(unquote(secret), "***")
        return without_credentials(text)


def _target(target: Target) -> list[str]:
    return ["--python-version", target.python, "--python-platform", target.platform]


def _lines(text: str) -> dict[str, str]:
    """{name: logical line} of a compiled requirements file."""
    lines = text.replace("\\\n", " ").splitlines()
    return {line.partition("==")[0].strip(): line for line in lines if "==" in line.split("--hash")[0]}


def _entry(line: str, where: str) -> LockEntry:
    try:
        (entry,) = read_lock(line + "\n", where)
    except LockError as error:
        raise AnsibleActionFail(f"an index without usable hashes: {error}") from error
    return entry._replace(marker=None)


def _uv(ca_file: str | None) -> str:
    """The uv on PATH or beside Ansible, or the collection's own."""
    found = shutil.which("uv") or shutil.which("uv", path=os.path.dirname(sys.executable))
    if found:
        return found
    home = Path.home() / ".cache" / "gpufleet.dflash"
    try:
        home.mkdir(parents=True, exist_ok=True)
        source = Source(installer_environment(str(home), None, ca_file), None)
        return ensure_uv(str(home), sys.executable, source, lambda line: None)
    except (UvError, OSError) as error:
        raise AnsibleActionFail(
            f"there is no uv on the controller and it cannot be fetched: {error}: install uv, or name it with uv"
        ) from error
