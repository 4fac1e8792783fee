# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Copy large files to a host in pieces: what arrived is not sent again. Private to the collection."""

from __future__ import annotations

import os
import shlex
import tempfile
import time
from collections.abc import Sequence
from typing import Any, Callable

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ansible_collections.gpufleet.dflash.plugins.plugin_utils._controller_files import HashedFile

_PIECE = 32 << 20  # bytes sent at once: what an interruption costs, and how often progress is told

Progress = Callable[[str], None]


def copy_files(action: ActionBase, files: Sequence[HashedFile], store: str, progress: Progress) -> dict[str, int]:
    """Copy files into a host's store, where each gets its name once its hash is verified.

    Returns how many files and bytes were sent. Raises AnsibleActionFail.
    """
    files = list({file.sha256: file for file in files}.values())
    total = sum(file.size for file in files)
    sent = 0
    if not files:
        return {"files": 0, "bytes": 0}
    folder = action._make_tmp_path()
    try:
        for number, file in enumerate(files, 1):
            sent += _Copy(action, file, store, folder, progress, f"{number} of {len(files)} files", total).run()
    finally:
        action._remove_tmp_path(folder, force=True)
    return {"files": len(files), "bytes": sent}


class _Copy:
    """One file on its way to a host."""

    def __init__(
        self, action: ActionBase, file: HashedFile, store: str, folder: str, progress: Progress, what: str, total: int
    ) -> None:
        self._action, self._file, self._progress = action, file, progress
        self._place = os.path.join(store, file.sha256)
        self._piece = action._connection._shell.join_path(folder, "piece")
        self._what = f"copying {what} ({total / 1e6:,.0f} MB)"

    def run(self) -> int:
        """Send what is missing, verify, and give the file its name; returns the bytes that were sent."""
        sent = 0
        for _attempt in range(2):
            sent += self._send()
            if self._settle():
                return sent
        raise AnsibleActionFail(
            f"a file does not arrive as it was sent: {self._file.name}: see whether somebody changes it here, the "
            "host's disk, and the connection"
        )

    def _send(self) -> int:
        part = shlex.quote(os.path.join(self._place, "part"))
        answer = self._run(
            f"umask 022 && mkdir -p {shlex.quote(self._place)} && touch {part} && wc -c < {part}", "cannot be written"
        )
        there = int(answer) if answer.isdigit() else 0
        size, begun, told = self._file.size, there, time.monotonic()
        if there > size:
            self._run(f": > {part}", "cannot be written")
            there = begun = 0
        with open(self._file.path, "rb") as stream:
            stream.seek(there)
            while there < size:
                data = stream.read(_PIECE)
                if not data:
                    break
                with tempfile.NamedTemporaryFile(prefix="dflash-") as piece:
                    piece.write(data)
                    piece.flush()
                    self._action._transfer_file(piece.name, self._piece)
                # The size is checked by the same command: a piece that is there in part would shift all that follows.
                self._run(
                    f"cat {shlex.quote(self._piece)} >> {part} && "
                    f'{{ [ "$(wc -c < {part})" -eq {there + len(data)} ] || '
                    "{ echo another run copies it as well, run again >&2; exit 1; }; }",
                    "cannot be written",
                )
                there += len(data)
                if time.monotonic() - told > 1 or there == size:
                    told = time.monotonic()
                    self._progress(f"{self._what}: {self._file.name}, {there / 1e6:,.0f} of {size / 1e6:,.0f} MB")
        return there - begun

    def _settle(self) -> bool:
        """Verify what arrived; a wrong file is removed, so that the next attempt begins anew.

        What is verified has a name that no other run appends to.
        """
        part = shlex.quote(os.path.join(self._place, "part"))
        named = shlex.quote(os.path.join(self._place, self._file.stored_as or self._file.name))
        answer = self._run(
            f'right() {{ [ "$(sha256sum < "$1" | cut -d" " -f1)" = {self._file.sha256} ]; }}; '
            f"if [ -f {named} ] && right {named}; then rm -f {part}; echo right; "
            f"elif mv {part} {part}.$$ && right {part}.$$; "
            f"then sync {part}.$$ 2>/dev/null; mv {part}.$$ {named} && echo right; else rm -f {part}.$$; fi",
            "cannot be written",
        )
        return "right" in answer

    def _run(self, command: str, what: str) -> str:
        answer: dict[str, Any] = self._action._low_level_execute_command(command, executable="/bin/sh")
        if answer.get("rc"):
            words = (str(answer.get("stderr") or answer.get("stdout")).strip().splitlines() or ["no reason given"])[-1]
            if "No space left" in words:
                words = "the disk is full: make room, or choose another root"
            raise AnsibleActionFail(f"a file {what} on the host: {self._place}: {words}")
        return str(answer.get("stdout", "")).strip()
