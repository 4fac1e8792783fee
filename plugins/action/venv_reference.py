# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The controller's side of venv_reference: asks the indexes, fetches what they do not have, writes the folder."""

from __future__ import annotations

import base64
import hashlib
import os
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ansible_collections.gpufleet.dflash.plugins.module_utils._lock import LockEntry
from ansible_collections.gpufleet.dflash.plugins.module_utils._lock_text import lock_text
from ansible_collections.gpufleet.dflash.plugins.module_utils._wheels import record_digest, sha256_of
from ansible_collections.gpufleet.dflash.plugins.modules.venv_reference import ARGUMENT_SPEC
from ansible_collections.gpufleet.dflash.plugins.plugin_utils import _reference_output as output
from ansible_collections.gpufleet.dflash.plugins.plugin_utils._detached import show_progress
from ansible_collections.gpufleet.dflash.plugins.plugin_utils._index_hashes import Indexes, Target
from ansible_collections.gpufleet.dflash.plugins.plugin_utils._wheel_writer import (
    holds,
    record_of,
    wheel_name,
    write_wheel,
)

_MODULE = "gpufleet.dflash.venv_reference"
# The module's options, less those that only this plugin gives it.
_ARGUMENT_SPEC = {name: spec for name, spec in ARGUMENT_SPEC.items() if name not in ("wheels", "read")}
# What the host has to know; addresses of indexes, with what they may carry, stay here.
_FOR_THE_HOST = ("venv", "leave_out", "contested", "verify")
# Bytes of content that one call of the module brings.
_PART = 8 << 20
# Where a distribution was installed from, when that cannot be the index.
_NEVER_IN_INDEX = {
    "editable": "it is editable: its files are in its source tree",
    "vcs": "it was built from a repository",
    "local": "it was installed from a file or folder of the host",
    "archive": "it was installed from an address of its own",
}


class ActionModule(ActionBase):
    """Read the host, ask the indexes, and make the folder hold the result."""

    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        self._vars = task_vars or {}
        _checked, options = self.validate_argument_spec(_ARGUMENT_SPEC, required_one_of=[("dest",)])
        self._options = options
        self._dest = self._folder(options["dest"])
        answer = self._call({})
        reference, host = answer["reference"], answer["host"]
        with tempfile.TemporaryDirectory(prefix="venv_reference-") as scratch:
            self._scratch = scratch
            try:
                return self._describe(reference, host, scratch)
            except OSError as error:
                raise AnsibleActionFail(
                    f"what was fetched cannot be kept on the controller: {error.filename or scratch}: "
                    f"{error.strerror}: make room, or set TMPDIR to a folder that has some"
                ) from error

    def _describe(self, reference: dict[str, Any], host: dict[str, Any], scratch: str) -> dict[str, Any]:
        folder = output.Folder(self._dest)
        options = self._options
        urls = [url for url in (options["index_url"], *options["extra_index_urls"]) if url]
        indexes = Indexes(urls, options["ca_file"], options["uv"])
        target = Target(reference["python"], host["machine"], host["glibc"])
        entries, missing = _look_up(indexes, reference["distributions"], target)
        rebuilt = self._rebuild(missing, folder, scratch)
        overlays = [one for one in reference["overlays"] if one["distribution"] not in rebuilt]
        differences = self._overlays(overlays, folder, entries, indexes, target, scratch)
        locked = [*entries.values(), *rebuilt.values()]
        not_in_index = [
            {key: value for key, value in row.items() if value is not None}
            for row in sorted(missing.values(), key=lambda row: row["name"])
        ]
        absent = [f"{row['name']}=={row['version']}" for row in not_in_index if row["name"] not in rebuilt]
        name = self._vars.get("inventory_hostname", "a host")
        header = [f"What {name} has in {options['venv']}. Made by lock_from_reference."]
        header += [f"Not here, for no index has it: {pin} (see not-in-index.yml)" for pin in absent]
        notes = reference["notes"]
        description = {"reference": name, "venv": options["venv"], "python": reference["python"], **host}
        description |= {"left_out": reference["left_out"], "notes": notes}
        description["variables"] = self._variables(bool(overlays), any(row["wheel"] for row in missing.values()))
        folder.add("lock.txt", lock_text(locked, header).encode())
        folder.add("overlays.yml", output.as_yaml([self._overlay_option(one["path"]) for one in overlays]))
        folder.add("overlays.diff", differences.encode())
        folder.add("host.yml", output.as_yaml(description))
        folder.add("not-in-index.yml", output.as_yaml(not_in_index))
        changes = folder.changes()
        if changes and not self._task.check_mode:
            folder.write()
        return {
            "changed": bool(changes),
            "diff": changes,
            "complete": not absent,
            "distributions": {entry.name: entry.version for entry in sorted(locked)},
            "left_out": reference["left_out"],
            "overlays": [one["path"] for one in overlays],
            "not_in_index": not_in_index,
            "notes": notes,
            "dest": self._dest,
            "msg": _summary(len(locked), overlays, reference["left_out"], absent),
            "warnings": [f"the lock is not complete, no index has {pin}: see not-in-index.yml" for pin in absent],
        }

    def _folder(self, dest: str) -> str:
        return os.path.abspath(os.path.expanduser(self._loader.path_dwim(dest)))

    def _overlay_option(self, path: str) -> dict[str, str]:
        return {"dest": path, "src": self._named(output.OVERLAYS, path)}

    def _named(self, *parts: str) -> str:
        """A file of the folder as variables name it: from the inventory's directory when it is below that."""
        place = os.path.join(self._dest, *parts)
        inventory = self._vars.get("inventory_dir")
        below = inventory and os.path.commonpath([os.path.abspath(inventory), place]) == os.path.abspath(inventory)
        return os.path.relpath(place, inventory) if below else place

    def _variables(self, overlays: bool, wheels: bool) -> dict[str, str]:
        """What an inventory says to deploy what is in the folder."""
        found = {"cuda_runtime_lock": self._named("lock.txt")}
        if wheels:
            found["cuda_runtime_local_wheels"] = self._named(output.WHEELHOUSE)
        if overlays:
            name = self._named("overlays.yml")
            place = f"'{name}'" if os.path.isabs(name) else f"inventory_dir ~ '/{name}'"
            lookup = f"lookup('ansible.builtin.file', {place}) | from_yaml"
            found["sglang_dflash_overlays"] = "{{ " + lookup + " }}"
        return found

    def _call(self, more: dict[str, Any]) -> dict[str, Any]:
        arguments = {name: self._options[name] for name in _FOR_THE_HOST}
        result: dict[str, Any] = self._execute_module(
            module_name=_MODULE, module_args={**arguments, **more}, task_vars=self._vars
        )
        if result.get("failed"):
            raise AnsibleActionFail(str(result.get("msg")), result=result)
        return result

    def _fetch(self, files: Sequence[Mapping[str, Any]], keeping: bool = False) -> Iterator[Path]:
        """Files of the host in their order, each held against its digest.

        Unless they are kept, each is gone when the next one is asked for.
        """
        total = sum(file["size"] for file in files)
        folder = tempfile.mkdtemp(dir=self._scratch)
        arrived = _Arrivals(folder, files)
        batch: list[dict[str, Any]] = []
        done = read = 0
        room = _PART
        for number, file in enumerate(files):
            offset = 0
            while offset < file["size"]:
                length = min(room, file["size"] - offset)
                batch.append({"file": number, "path": file["path"], "offset": offset, "length": length})
                offset, room, read = offset + length, room - length, read + length
                if not room:
                    arrived.add(batch, self._call({"read": [_wanted(part) for part in batch]})["parts"])
                    batch, room = [], _PART
                    words = f"reading {read / 1e6:,.0f} of {total / 1e6:,.0f} MB: {os.path.basename(file['path'])}"
                    show_progress(self._vars.get("inventory_hostname", ""), words)
                    while done < number:
                        yield from arrived.whole(done, keeping)
                        done += 1
        if batch:
            arrived.add(batch, self._call({"read": [_wanted(part) for part in batch]})["parts"])
        for number in range(done, len(files)):
            yield from arrived.whole(number, keeping)

    def _overlays(
        self,
        overlays: list[dict[str, Any]],
        folder: output.Folder,
        entries: Mapping[str, LockEntry],
        indexes: Indexes,
        target: Target,
        scratch: str,
    ) -> str:
        """Put the overlays into the folder and return their differences from the pristine files."""
        self._content: dict[str, Path] = {}
        wanted = []
        for one in overlays:
            place = folder.existing(f"{output.OVERLAYS}/{one['path']}")
            if place.is_file() and sha256_of(str(place)) == one["sha256"]:
                self._content[one["path"]] = place
            else:
                wanted.append({"path": one["file"], "sha256": one["sha256"], "size": one["size"], "name": one["path"]})
        for file, fetched in zip(wanted, self._fetch(wanted, keeping=True)):
            self._content[file["name"]] = fetched
        patched = {
            one["distribution"]
            for one in overlays
            if one["distribution"] in entries and output.text_of(self._content[one["path"]]) is not None
        }
        pristine = {}
        for name in sorted(patched) if self._options["pristine"] else ():
            place = Path(scratch, f"pristine-{name}")
            if indexes.install(entries[name], str(place), target):
                pristine[name] = place
        differences = []
        for one in overlays:
            folder.add(f"{output.OVERLAYS}/{one['path']}", self._content[one["path"]])
            before = _pristine(one, pristine.get(one["distribution"]))
            differences.append(output.overlay_diff(one, before, self._content[one["path"]]))
        return "".join(differences)

    def _rebuild(self, missing: dict[str, dict[str, Any]], folder: output.Folder, scratch: str) -> dict[str, LockEntry]:
        """Make wheels of what no index has, when that is asked for, and note in ``missing`` what became of each."""
        entries: dict[str, LockEntry] = {}
        if not self._options["build_missing"] or not missing:
            return entries
        for described in self._call({"wheels": sorted(missing)})["wheels"]:
            row = missing[described["name"]]
            if described["reason"]:
                row["todo"] = described["reason"]
                continue
            name = output.checked_path(wheel_name(described))
            if "/" in name:
                raise AnsibleActionFail(f"the host names a wheel that cannot be written: {name!r}: nothing was written")
            place = folder.existing(f"{output.WHEELHOUSE}/{name}")
            if not holds(record_of(str(place), described["dist_info"]), described):
                place = Path(scratch, name)
                with open(place, "w+b") as stream:
                    write_wheel(stream, described, self._fetch)
            folder.add(f"{output.WHEELHOUSE}/{name}", place)
            digest = sha256_of(str(place))
            row.update(wheel=f"{output.WHEELHOUSE}/{name}", sha256=digest)
            entries[row["name"]] = LockEntry(row["name"], row["version"], None, (f"sha256:{digest}",))
        return entries


class _Arrivals:
    """Files that come in parts, each part after the one before it."""

    def __init__(self, folder: str, files: Sequence[Mapping[str, Any]]) -> None:
        self._folder, self._files = Path(folder), files
        self._digests: dict[int, Any] = {}

    def add(self, batch: Sequence[Mapping[str, Any]], parts: Sequence[str]) -> None:
        """Append the answer of the host to a batch of parts."""
        for part, text in zip(batch, parts):
            data = zlib.decompress(base64.b64decode(text))
            with open(self._folder / str(part["file"]), "ab") as stream:
                stream.write(data)
            self._digests.setdefault(part["file"], hashlib.sha256()).update(data)

    def whole(self, number: int, keeping: bool) -> Iterator[Path]:
        """Yield a file that is complete. Raises AnsibleActionFail when it is not the one that was asked for."""
        path = self._folder / str(number)
        path.touch()  # an empty file has no parts
        if self._digests.pop(number, hashlib.sha256()).hexdigest() != self._files[number]["sha256"]:
            raise AnsibleActionFail(
                f"a file changed while it was read: {self._files[number]['path']}: run it again when nobody works there"
            )
        yield path
        if not keeping:
            path.unlink()


def _wanted(part: Mapping[str, Any]) -> dict[str, Any]:
    return {key: part[key] for key in ("path", "offset", "length")}


def _look_up(
    indexes: Indexes, distributions: Iterable[Mapping[str, Any]], target: Target
) -> tuple[dict[str, LockEntry], dict[str, dict[str, Any]]]:
    """What the indexes have of the distributions, and what they do not have, with the reason."""
    missing: dict[str, dict[str, Any]] = {}
    known = {one["name"]: one for one in distributions}
    asked = {}
    for name, one in known.items():
        kind = one["source"]["kind"]
        if kind in _NEVER_IN_INDEX and (kind == "editable" or "sha256" not in one["source"]):
            missing[name] = _row(one, _NEVER_IN_INDEX[kind])
        else:
            asked[name] = one["version"]
    found = indexes.find(asked, target)
    entries = dict(found.entries)
    for name, reason in found.absent.items():
        missing[name] = _row(known[name], reason)
    for name in list(entries):
        source = known[name]["source"]
        # A file of the same name and version that is not among those of the index is another build.
        if source["kind"] in _NEVER_IN_INDEX and f"sha256:{source['sha256']}" not in entries[name].hashes:
            missing[name] = _row(known[name], f"{_NEVER_IN_INDEX[source['kind']]}; the index has others of its version")
            del entries[name]
    return entries, missing


def _row(one: Mapping[str, Any], reason: str) -> dict[str, Any]:
    source = one["source"]
    return {
        "name": one["name"],
        "version": one["version"],
        "reason": reason,
        "source": source["kind"],
        "url": source.get("url"),
        "commit": source.get("commit"),
        "wheel": None,
        "sha256": None,
        "todo": None,
    }


def _pristine(overlay: Mapping[str, Any], folder: Path | None) -> Path | None:
    """The file as its distribution has it; None when that is not the one that the host's RECORD has."""
    place = folder and folder / output.checked_path(overlay["path"])
    if not place or not place.is_file():
        return None
    return place if record_digest(sha256_of(str(place))) in overlay["recorded"] else None


def _summary(
    locked: int, overlays: Sequence[Mapping[str, Any]], left_out: Mapping[str, str], absent: Sequence[str]
) -> str:
    parts = [f"{locked} distributions", f"{len(overlays)} overlays"]
    parts += [f"left out: {', '.join(left_out)}"] if left_out else []
    parts += [f"not complete, no index has {', '.join(absent)}"] if absent else []
    return "; ".join(parts)
