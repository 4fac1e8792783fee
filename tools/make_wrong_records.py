#!/usr/bin/env python3
# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make plugins/module_utils/_wrong_records_data.py: files of published wheels that their own RECORD has wrong.

uv tells where all wheels of the releases below are; each is fetched whole and every file in it hashed. What a wheel
was found to have is kept in .cache/wrong-records: a published wheel never changes.
"""

from __future__ import annotations

import argparse
import base64
import csv
import difflib
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

import tomllib

CHECKOUT = Path(__file__).resolve().parents[1]
DATA = CHECKOUT / "plugins" / "module_utils" / "_wrong_records_data.py"
CACHE = CHECKOUT / ".cache" / "wrong-records"

# All releases of the distributions of which one was met with a wrong RECORD; vllm 0.33 pins pynvvideocodec 2.0.4.
_VERSIONS = {
    "pynvvideocodec": (
        *("1.0.2", "2.0.0", "2.0.1", "2.0.2", "2.0.3", "2.0.4", "2.0.5", "2.1.0"),
        *("2.2.0", "2.2.1", "2.2.2", "2.2.3", "2.2.4"),
    ),
}
RELEASES = tuple(f"{name}=={version}" for name, versions in _VERSIONS.items() for version in versions)

_DATA_SCHEME = re.compile(r"[^/]+\.data/(purelib|platlib)/")
_HEADER = '''\
# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What published wheels really have where their own RECORD is wrong. Private to the collection.

Written by tools/wrong_records from the wheels themselves; do not edit it.
"""

from __future__ import annotations

# In place of a digest: RECORD lists a file that the wheel does not have.
NOT_IN_WHEEL = ""

# {distribution==version: {path below site-packages: digests of the published file, as RECORD spells them}}
# There are several where wheels for several systems share the path.
'''


class RecordsError(Exception):
    """The data cannot be made; the text says why."""


def wrong_rows(archive: zipfile.ZipFile) -> dict[str, str]:
    """{path below site-packages: the file's digest, empty for none} of a wheel's rows that are wrong."""
    (record,) = (name for name in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/RECORD", name))
    rows = {row[0]: row[1] for row in csv.reader(io.StringIO(archive.read(record).decode())) if row}
    found = {}
    for path, recorded in rows.items():
        # Files of other data schemes, such as scripts, are installed elsewhere, and their rows are written anew.
        installed = _DATA_SCHEME.sub("", path)
        if recorded and ".data/" not in installed:
            actual = _digest(archive, path)
            if recorded != f"sha256={actual}":
                found[installed] = actual
    return found


def _digest(archive: zipfile.ZipFile, path: str) -> str:
    digest = hashlib.sha256()
    try:
        with archive.open(path) as stream:
            while chunk := stream.read(1 << 20):
                digest.update(chunk)
    except KeyError:
        return ""
    return base64.urlsafe_b64encode(digest.digest()).decode().rstrip("=")


def wheels_of(release: str) -> Iterator[str]:
    """The addresses of all wheels of a release. Raises RecordsError."""
    with tempfile.TemporaryDirectory() as directory:
        wanted = Path(directory, "requirements.in")
        wanted.write_text(f"{release}\n")
        command = [
            "uv",
            "pip",
            "compile",
            "--quiet",
            "--no-header",
            "--no-deps",
            "--universal",
            "--python-version",
            "3.10",
        ]
        command += ["--only-binary", ":all:", "--format", "pylock.toml", str(wanted)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RecordsError(f"uv cannot resolve {release}: {done.stderr.strip()}")
    for package in tomllib.loads(done.stdout)["packages"]:
        for wheel in package.get("wheels", []):
            url = wheel.get("url") or Path(wheel["path"]).as_uri()
            if "linux" in os.path.basename(urlsplit(url).path):
                yield url


def published(url: str) -> dict[str, str]:
    """What ``wrong_rows`` finds in the wheel at an address."""
    kept = CACHE / f"{unquote(os.path.basename(urlsplit(url).path))}.json"
    if not kept.is_file():
        with tempfile.TemporaryFile() as file:
            with urllib.request.urlopen(url, timeout=120) as answer:
                shutil.copyfileobj(answer, file)
            with zipfile.ZipFile(file) as archive:
                found = wrong_rows(archive)
        CACHE.mkdir(parents=True, exist_ok=True)
        partial = kept.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(found))
        partial.rename(kept)
        print(f"read {kept.stem}", file=sys.stderr, flush=True)
    rows: dict[str, str] = json.loads(kept.read_text())
    return rows


def make() -> str:
    """The text of the data module. Raises RecordsError."""
    return render({release: _merged(map(published, wheels_of(release))) for release in RELEASES})


def _merged(wheels: Iterable[Mapping[str, str]]) -> dict[str, set[str]]:
    """The rows of all wheels of a release together."""
    merged: dict[str, set[str]] = {}
    for rows in wheels:
        for path, digest in rows.items():
            merged.setdefault(path, set()).add(digest)
    return merged


def render(found: Mapping[str, Mapping[str, set[str]]]) -> str:
    """The data module's text."""
    lines = [_HEADER, "SHIPPED: dict[str, dict[str, tuple[str, ...]]] = {\n"]
    for release, rows in found.items():
        if not rows:
            continue
        lines.append(f'    "{release}": {{\n')
        for path, digests in sorted(rows.items()):
            lines += [
                f'        "{path}": (\n',
                *(f'            "{digest}",\n' for digest in sorted(digests)),
                "        ),\n",
            ]
        lines.append("    },\n")
    return "".join([*lines, "}\n"])


def report(files: Iterable[str]) -> int:
    """Print what is wrong in wheels on disk; 1 if anything is."""
    wrong = 0
    for file in files:
        with zipfile.ZipFile(file) as archive:
            rows = wrong_rows(archive)
        wrong += len(rows)
        for path, digest in sorted(rows.items()):
            what = (
                f"has the digest {digest}, another than RECORD says" if digest else "is in RECORD and not in the wheel"
            )
            print(f"{os.path.basename(file)}: {path} {what}")
    return int(wrong > 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="rewrite the data module")
    parser.add_argument("--check", action="store_true", help="say what differs from it; exit with 1 if anything does")
    parser.add_argument("wheels", nargs="*", metavar="FILE.whl", help="say what is wrong in these")
    options = parser.parse_args()
    if bool(options.wheels) + options.write + options.check != 1:
        parser.error("give wheels, --check or --write")
    try:
        if options.wheels:
            return report(options.wheels)
        made = make()
    except (RecordsError, OSError, ValueError, zipfile.BadZipFile) as error:
        print(f"wrong_records: {error}", file=sys.stderr)
        return 2
    there = DATA.read_text() if DATA.is_file() else ""
    if options.write:
        DATA.write_text(made)
        return 0
    sys.stdout.writelines(
        difflib.unified_diff(there.splitlines(True), made.splitlines(True), "as it is", "from the wheels", n=1)
    )
    return int(there != made)


if __name__ == "__main__":
    sys.exit(main())
