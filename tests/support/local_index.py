# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A package index in a folder, with small wheels made for a test; uv and pip read it like any other."""

from __future__ import annotations

import base64
import hashlib
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path


class LocalIndex:
    """Wheels of a test, by name, and the lock lines that pin them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hashes: dict[str, str] = {}

    @property
    def url(self) -> str:
        """Address of the index."""
        return self.folder.as_uri()

    def add(self, name: str, version: str, files: Mapping[str, str | bytes]) -> str:
        """Make a wheel that holds these files and return its lock line."""
        project = self.folder / name
        project.mkdir(parents=True, exist_ok=True)
        stem = f"{name.replace('-', '_')}-{version}"
        wheel = project / f"{stem}-py3-none-any.whl"
        content = {path: text.encode() if isinstance(text, str) else text for path, text in files.items()}
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode()
        content.setdefault(f"{stem}.dist-info/METADATA", metadata)
        content[f"{stem}.dist-info/WHEEL"] = b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        spelled = {path: f'"{path}"' if "," in path else path for path in content}
        rows = [f"{spelled[path]},sha256={_digest(data)},{len(data)}" for path, data in content.items()]
        content[f"{stem}.dist-info/RECORD"] = "\n".join([*rows, f"{stem}.dist-info/RECORD,,", ""]).encode()
        with zipfile.ZipFile(wheel, "w") as archive:
            for path, data in content.items():
                archive.writestr(path, data)
        return self._list(wheel)

    def add_wheel(self, wheel: Path) -> str:
        """Take in a wheel that is there and return its lock line."""
        project = self.folder / wheel.name.split("-")[0].replace("_", "-").lower()
        project.mkdir(parents=True, exist_ok=True)
        return self._list(Path(shutil.copy(wheel, project)))

    def _list(self, wheel: Path) -> str:
        project = wheel.parent
        name, version = project.name, wheel.name.split("-")[1]
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        links = [
            f'<a href="{path.name}#sha256={hashlib.sha256(path.read_bytes()).hexdigest()}">{path.name}</a>'
            for path in sorted(project.glob("*.whl"))
        ]
        (project / "index.html").write_text("<!DOCTYPE html><html><body>" + "".join(links) + "</body></html>")
        return f"{name}=={version} --hash=sha256:{digest}\n"


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
