# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the NVIDIA driver has written to the kernel log since the boot. Private to the collection.

The messages and their meaning: NVIDIA's "XID Errors" and its catalog; /dev/kmsg is Documentation/ABI/testing/dev-kmsg.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ansible_collections.gpufleet.dflash.plugins.module_utils._command import is_program, run_bounded
from ansible_collections.gpufleet.dflash.plugins.module_utils._host_files import HostFiles
from ansible_collections.gpufleet.dflash.plugins.module_utils._host_kernel import address_of

_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)[^)]*\): (\d{1,4})\b,? ?(.*)")
_LOST = re.compile(r"NVRM: GPU (?:at PCI:)?([0-9a-fA-F:.]+\w): ?(GPU has fallen off the bus.*)")
# A GPU that is lost while the driver loads is told in three lines.
_NAMED = re.compile(r"NVRM: The NVIDIA GPU ([0-9a-fA-F:.]+)")
_NOT_RESPONDING = "fallen off the bus and is not responding"
_BYTES = 32 * 1024 * 1024
_SECONDS = 3.0
# Xids kept; a GPU in trouble writes thousands, of a few kinds.
_KEPT = 200
# The longest record that the kernel gives out.
_RECORD = 8192

# After these the GPU does not work before it was reset or the host restarted, as NVIDIA's catalog says. Others,
# such as 13, 31, 43 and 45, are what a program that has a fault leaves behind.
FATAL_XIDS: Mapping[int, str] = {
    46: "the GPU stopped processing",
    48: "an uncorrected memory error (double bit ECC)",
    62: "the GPU's internal micro-controller halted",
    64: "a faulty row or page of memory could not be taken out of use",
    74: "an NVLink error",
    79: "the GPU has fallen off the bus",
    95: "an uncontained memory error",
    109: "a context switch did not end",
    110: "a security fault",
    119: "the GPU's system processor (GSP) did not answer",
    120: "the GPU's system processor (GSP) failed",
    136: "the training of an NVLink failed",
    140: "an unrecovered memory error",
    143: "the GPU could not be initialised",
}


@dataclass(frozen=True)
class Xid:
    """Messages of one number about one GPU: how many, and the text of the last."""

    address: str
    number: int
    count: int
    text: str

    @property
    def meaning(self) -> str | None:
        """What is wrong, for those after which the GPU does not work; None for others."""
        return FATAL_XIDS.get(self.number)


@dataclass(frozen=True)
class KernelLog:
    """``source`` is the file or program that the log was read with, None when there was no way to read it."""

    source: str | None
    xids: tuple[Xid, ...] = ()


def read_kernel_log(files: HostFiles) -> KernelLog:
    """Read the messages of this boot, from the kernel's own memory or else from the journal."""
    text = _kmsg(files.path("/dev/kmsg"))
    if text is not None:
        return KernelLog("/dev/kmsg", parse_xids(text.replace("\\x0a", "\n").splitlines()))
    program = files.path("/usr/bin/journalctl")
    if is_program(program):
        options = [
            "--dmesg",
            "--boot",
            "--quiet",
            "--no-pager",
            "--output=cat",
            "--grep=NVRM: (Xid|GPU)",
            "--lines=2000",
        ]
        answer = run_bounded([program, *options], timeout=5.0)
        # journalctl ends with 1 when no line fits.
        if answer.status == 0 or answer.status == 1 and not answer.errors.strip():
            return KernelLog("journalctl", parse_xids(answer.output.splitlines()))
    return KernelLog(None)


def parse_xids(lines: Iterable[str]) -> tuple[Xid, ...]:
    """The Xids in lines of the kernel log, by GPU and number."""
    found: dict[tuple[str, int], Xid] = {}
    named = ""
    for line in lines:
        if "NVRM" not in line:
            continue
        name = _NAMED.search(line)
        named = address_of(name[1]) if name else named
        match, lost = _XID.search(line), _LOST.search(line)
        if match:
            key, text = (address_of(match[1]), int(match[2])), match[3]
        elif lost:
            key, text = (address_of(lost[1]), 79), lost[2]
        elif named and _NOT_RESPONDING in line:
            key, text = (named, 79), _NOT_RESPONDING
        else:
            continue
        known = found.pop(key, None)
        if known is None and len(found) >= _KEPT:
            continue
        # What follows an Xid in other words is the same event.
        count = (known.count if known else 0) + (1 if match or not known else 0)
        clean = "".join(letter for letter in text.strip()[:300] if letter.isprintable())
        found[key] = Xid(*key, count, clean)
    return tuple(sorted(found.values(), key=lambda xid: (xid.address, xid.number)))


def _kmsg(path: str) -> str | None:
    """All records that are there now. Each read of the device gives one; at the end it would wait for the next."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    data = bytearray()
    deadline = time.monotonic() + _SECONDS
    try:
        while len(data) < _BYTES and time.monotonic() < deadline:
            try:
                record = os.read(descriptor, _RECORD)
            except OSError as error:
                # The record was overwritten before it was read: the next read gives the oldest that is left.
                if error.errno == errno.EPIPE:
                    continue
                if error.errno == errno.EAGAIN:
                    break
                return None
            if not record:
                break
            data += record
    finally:
        os.close(descriptor)
    return data.decode("utf-8", errors="replace")
