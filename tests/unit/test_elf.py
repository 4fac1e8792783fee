# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The ELF reader against pyelftools on the host's own files, and against damaged and hostile ones.

``DFLASH_ELF_FILES`` sets how many of the host's files are compared (default 100), ``DFLASH_ELF_DAMAGED`` how
many damaged files are read (default 3000).
"""

from __future__ import annotations

import os
import random
import socket
import stat
import struct
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.elf_reading import as_pyelftools_reads, read_fields
from support.elf_writer import EM_386, EM_AARCH64, EM_X86_64, ET_EXEC, damage, write_elf

from ansible_collections.gpufleet.dflash.plugins.module_utils._elf import ElfError, NotElf, read_object

DAMAGED = int(os.environ.get("DFLASH_ELF_DAMAGED", "3000"))
SYSTEM_FOLDERS = ["/usr/lib", "/usr/bin", sysconfig.get_paths()["platlib"], sysconfig.get_paths()["stdlib"]]
COMPARED = int(os.environ.get("DFLASH_ELF_FILES", "100"))


def elf_files(folder: str) -> Iterator[str]:
    for parent, _folders, names in os.walk(folder):
        for name in sorted(names):
            path = os.path.join(parent, name)
            mode = os.lstat(path).st_mode
            if not stat.S_ISREG(mode) or not (".so" in name or mode & 0o111) or not os.access(path, os.R_OK):
                continue
            with open(path, "rb") as file:
                if file.read(4) == b"\x7fELF":
                    yield path


def test_pyelftools_reads_the_same_from_every_file_of_the_system() -> None:
    paths = [path for folder in SYSTEM_FOLDERS for path in elf_files(folder)]
    assert len(paths) > 100
    # The same ones each time; all would take minutes, most of them in pyelftools.
    for path in random.Random(1).sample(paths, min(COMPARED, len(paths))):
        expected = as_pyelftools_reads(path)
        assert read_fields(path, expected) == expected, path


WRITTEN: dict[str, dict[str, Any]] = {
    "nothing": {},
    "everything": {
        "soname": "libx.so.1",
        "needed": ["liba.so", "libb.so.2"],
        "rpath": "$ORIGIN",
        "runpath": "$ORIGIN/../lib:/opt",
        "flags_1": 0x800,
        "interpreter": "/lib/ld.so.1",
        "version_needs": {"liba.so": [("A_1", False), ("A_2", True)], "libb.so.2": [("B_1", False)]},
        "version_defs": ["libx.so.1", "X_1", "X_2"],
        "symbols": ["one", "two"],
    },
    "empty strings are present": {"soname": "", "rpath": "", "runpath": ""},
    "bytes that are no text": {"soname": os.fsdecode(b"lib\xff\xfe.so"), "needed": [os.fsdecode(b"\x80")]},
    "long names": {"soname": "x" * 5000, "needed": ["y" * 100000, "z"]},
    "a program": {"elf_type": ET_EXEC, "interpreter": "/lib64/ld-linux-x86-64.so.2"},
}
KINDS: dict[str, dict[str, Any]] = {
    "x86-64": {"bits": 64, "byteorder": "little", "machine": EM_X86_64},
    "aarch64": {"bits": 64, "byteorder": "little", "machine": EM_AARCH64},
    "i386": {"bits": 32, "byteorder": "little", "machine": EM_386},
    "mips": {"bits": 32, "byteorder": "big", "machine": 8},
    "s390x": {"bits": 64, "byteorder": "big", "machine": 22},
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("content", WRITTEN.values(), ids=WRITTEN)
def test_what_was_written_is_read(content: dict[str, Any], kind: dict[str, Any], tmp_path: Path) -> None:
    found = read_object(str(write_elf(tmp_path / "lib.so", **content, **kind)))
    assert (found.bits, found.byteorder, found.machine) == (kind["bits"], kind["byteorder"], kind["machine"])
    assert found.type == content.get("elf_type", 3)
    assert found.needed == tuple(content.get("needed", ()))
    for name in ("soname", "rpath", "runpath", "interpreter"):
        assert getattr(found, name) == content.get(name), name
    assert found.flags_1 == content.get("flags_1", 0)
    assert found.version_needs == {file: tuple(pairs) for file, pairs in content.get("version_needs", {}).items()}
    assert found.version_defs == tuple(content.get("version_defs", ()))
    assert (found.has_segments, found.has_dynamic, found.truncated) == (True, True, False)


def test_a_cut_off_file_is_truncated_even_if_its_dynamic_section_survives(tmp_path: Path) -> None:
    path = write_elf(tmp_path / "lib.so", soname="lib.so", with_dynamic=False)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert not read_object(str(write_elf(tmp_path / "whole.so"))).truncated
    assert read_object(str(path)).truncated


NOT_ELF = {
    "empty": b"",
    "one byte": b"\x7f",
    "magic only": b"\x7fELF",
    "text": b"INPUT(libx.so)\n" * 10,
    "zeros": bytes(4096),
}


@pytest.mark.parametrize("data", NOT_ELF.values(), ids=NOT_ELF)
def test_other_content_is_not_elf(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "lib.so"
    path.write_bytes(data)
    with pytest.raises(NotElf) as caught:
        read_object(str(path))
    assert str(caught.value) == f"{path}: {caught.value.reason}"


def test_what_is_no_regular_file_is_told_and_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        expected = {
            tmp_path: "is a directory",
            tmp_path / "pipe": "is a named pipe",
            tmp_path / "link": "is a named pipe",
            tmp_path / "socket": "is a socket",
            Path("/dev/zero"): "is a character device",
        }
        for path, reason in expected.items():
            with pytest.raises(NotElf) as caught:
                read_object(str(path))
            assert caught.value.reason == reason


def test_what_cannot_be_opened_is_the_systems_own_error(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("nowhere")
    for name, error in (("loop", OSError), ("dangling", FileNotFoundError), ("absent", FileNotFoundError)):
        with pytest.raises(error):
            read_object(str(tmp_path / name))
    with pytest.raises(NotElf):
        read_object(f"{tmp_path}/nul\0inside")


HOSTILE: dict[str, tuple[int, bytes]] = {
    "class": (4, b"\x03"),
    "byte order": (5, b"\x00"),
    "program headers beyond the file": (32, struct.pack("<Q", 1 << 40)),
    "program headers beyond all files": (32, struct.pack("<Q", (1 << 64) - 1)),
    "65535 program headers": (56, b"\xff\xff"),
    "size of a program header": (54, b"\x01\x00"),
}


@pytest.mark.parametrize("damage", HOSTILE.values(), ids=HOSTILE)
def test_a_lying_header_is_an_error_that_names_the_file(damage: tuple[int, bytes], tmp_path: Path) -> None:
    path = write_elf(tmp_path / "lib.so", soname="lib.so", needed=["liba.so"])
    data = bytearray(path.read_bytes())
    offset, value = damage
    data[offset : offset + len(value)] = value
    path.write_bytes(data)
    with pytest.raises(ElfError, match=f"^{path}: "):
        read_object(str(path))


def dynamic_entry(data: bytes | bytearray, tag: int) -> int:
    """Return where the value of a tag lies in a file that write_elf made."""
    needle = struct.pack("<Q", tag)
    return next(at for at in range(0, len(data) - 16, 8) if data[at : at + 8] == needle) + 8


VERNEED, VERNEEDNUM, VERDEF, VERDEFNUM, STRTAB = 0x6FFFFFFE, 0x6FFFFFFF, 0x6FFFFFFC, 0x6FFFFFFD, 5


@pytest.mark.parametrize("tag", [VERNEED, VERDEF, STRTAB], ids=["verneed", "verdef", "strtab"])
@pytest.mark.parametrize("address", [1 << 20, 1 << 63, (1 << 64) - 1])
def test_an_address_outside_every_segment_is_an_error(tag: int, address: int, tmp_path: Path) -> None:
    path = write_elf(tmp_path / "lib.so", version_needs={"a": [("A", False)]}, version_defs=["x"], soname="x")
    data = bytearray(path.read_bytes())
    at = dynamic_entry(data, tag)
    data[at : at + 8] = struct.pack("<Q", address)
    path.write_bytes(data)
    with pytest.raises(ElfError, match="no PT_LOAD"):
        read_object(str(path))


def test_an_endless_chain_of_version_records_ends(tmp_path: Path) -> None:
    path = write_elf(tmp_path / "lib.so", version_needs={"a": [("A", False)]}, version_defs=["x"])
    data = bytearray(path.read_bytes())
    for tag, following in ((VERNEED, 12), (VERDEF, 16)):
        record = struct.unpack_from("<Q", data, dynamic_entry(data, tag))[0]
        struct.pack_into("<I", data, record + following, 1)
    for tag in (VERNEEDNUM, VERDEFNUM):
        struct.pack_into("<Q", data, dynamic_entry(data, tag), (1 << 64) - 1)
    path.write_bytes(data + bytes(1 << 20))
    before = time.process_time()
    with pytest.raises(ElfError):
        read_object(str(path))
    assert time.process_time() - before < 2


def test_a_dynamic_section_without_end_is_an_error_and_costs_little(tmp_path: Path) -> None:
    size = 64 << 20
    path = write_elf(tmp_path / "lib.so")
    data = bytearray(path.read_bytes())
    tables = range(64, 64 + 3 * 56, 56)
    load, dynamic = (at for at in tables if struct.unpack_from("<I", data, at)[0] in (1, 2))
    start = len(data) + 8 & ~7
    struct.pack_into("<QQQQQ", data, load + 8, 0, 0, 0, size, size)
    struct.pack_into("<QQQQQ", data, dynamic + 8, start, start, start, size - start, size - start)
    with path.open("wb") as file:
        file.write(data.ljust(start, b"\0"))
        file.write(struct.pack("<QQ", 1, 0) * (1 << 16))
        file.truncate(size)
    before = time.process_time()
    with pytest.raises(ElfError, match="dynamic section has more than"):
        read_object(str(path))
    assert time.process_time() - before < 2


def test_damaged_files_give_an_object_or_an_elf_error_in_bounded_time(tmp_path: Path) -> None:
    originals = [
        write_elf(tmp_path / name, **WRITTEN["everything"], **kind).read_bytes() for name, kind in KINDS.items()
    ]
    target = tmp_path / "damaged.so"
    refused = 0
    for seed in range(DAMAGED):
        target.write_bytes(damage(originals[seed % len(originals)], seed))
        before = time.process_time()
        try:
            read_object(str(target))
        except ElfError as error:
            assert str(error).startswith(f"{target}: "), seed
            refused += 1
        assert time.process_time() - before < 1, seed
    # Neither all nor none: else the damage, not the reader, was tested.
    assert DAMAGED * 0.2 < refused < DAMAGED * 0.98
