# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Device code, names for dlopen, sections and GPUs, with pyelftools as the oracle on the host's own files.

``DFLASH_DEEP_DAMAGED`` sets how many damaged files are read (default 1500).
"""

from __future__ import annotations

import os
import re
import struct
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from support.device_code import LTO, PTX, SASS, compile_library, fat_binary, without_section_headers
from support.elf_writer import damage

from ansible_collections.gpufleet.dflash.plugins.module_utils import _compute_capability
from ansible_collections.gpufleet.dflash.plugins.module_utils._compute_capability import (
    CapabilityError,
    capabilities_of,
    capability_text,
    host_capabilities,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._dlopen_names import dlopen_names
from ansible_collections.gpufleet.dflash.plugins.module_utils._elf import ElfError, read_image
from ansible_collections.gpufleet.dflash.plugins.module_utils._elf_sections import data_of
from ansible_collections.gpufleet.dflash.plugins.module_utils._fat_binary import Architectures, architectures_of

DAMAGED = int(os.environ.get("DFLASH_DEEP_DAMAGED", "1500"))
SYSTEM = Path("/usr/lib") / f"{os.uname().machine}-linux-gnu"


def read(path: Path) -> tuple[Architectures | None, list[str]]:
    with path.open("rb") as file:
        image = read_image(file.fileno(), str(path))
        data = data_of(image)
        return architectures_of(image, data), dlopen_names(image, data)


def system_libraries() -> list[Path]:
    found = [path for path in sorted(SYSTEM.glob("lib*.so.*")) if path.is_file() and not path.is_symlink()]
    return [path for path in found if path.read_bytes()[:4] == b"\x7fELF"][:60]


# --- fat binaries --------------------------------------------------------------------------------------


@pytest.mark.parametrize("stripped", [False, True], ids=["sections", "stripped"])
@pytest.mark.parametrize("section", [".nv_fatbin", "__nv_relfatbin", ".ldata"])
def test_architectures_of_fat_binaries(section: str, stripped: bool, tmp_path: Path) -> None:
    fat = fat_binary([(SASS, 75), (SASS, 90), (PTX, 90)]) + fat_binary([(SASS, 120), (LTO, 75)])
    path = compile_library(tmp_path / "lib.so", fat=fat, section=section)
    if stripped:
        without_section_headers(path)

    found, _names = read(path)

    assert found is not None
    assert found.as_dict() == {"sass": [75, 90, 120], "ptx": [90]}
    assert found.size == 4 * 90


def test_padding_between_fat_binaries_and_what_is_none(tmp_path: Path) -> None:
    """A short and a long gap, a header that promises more than there is, an entry that is too long."""
    wrong = fat_binary([(SASS, 61)])
    too_long = wrong[:8] + (1 << 40).to_bytes(8, "little") + wrong[16:]
    entry_too_long = wrong[:24] + (1 << 40).to_bytes(8, "little") + wrong[32:]
    fat = fat_binary([(SASS, 80)]) + bytes(40) + fat_binary([(SASS, 86)]) + b"x" * 3_000_000 + fat_binary([(PTX, 90)])
    path = compile_library(tmp_path / "lib.so", fat=too_long + entry_too_long + fat)

    found, _names = read(path)

    assert found is not None
    # The first header counts as none, so that the entries behind it are looked through as bytes.
    assert found.as_dict() == {"sass": [80, 86], "ptx": [90]}


def test_a_library_without_device_code_has_no_architectures(tmp_path: Path) -> None:
    assert read(compile_library(tmp_path / "lib.so", source="int x;"))[0] is None


@pytest.mark.parametrize(
    ("sass", "ptx", "capability", "runs"),
    [
        ([75], [], 75, True),
        ([80], [], 86, True),
        ([86], [], 80, False),
        ([80, 90], [], 100, False),
        ([100], [], 103, True),
        ([120], [], 121, True),
        ([120], [], 103, False),
        ([75], [75], 120, True),
        ([], [90], 89, False),
        ([], [], 90, False),
    ],
)
def test_what_runs_on_a_gpu(sass: Sequence[int], ptx: Sequence[int], capability: int, runs: bool) -> None:
    assert Architectures(frozenset(sass), frozenset(ptx)).runs_on(capability) is runs


# --- names for dlopen ----------------------------------------------------------------------------------


@pytest.mark.parametrize("stripped", [False, True], ids=["sections", "stripped"])
def test_names_for_dlopen_are_whole_strings(stripped: bool, tmp_path: Path) -> None:
    strings = [
        "libcudnn_graph.so",
        "libnvrtc.so.13",
        "libnvrtc.so.%d",
        "libnvrtc-builtins.so.13.0",
        "cannot load libnot.so.1",
        "/opt/libnot2.so",
        "libnot3.so is missing",
        "libnot4.sox",
        "libself.so.1",
        "libc.so.6",
    ]
    path = compile_library(
        tmp_path / "lib.so", strings=strings, options=["-Wl,-soname,libself.so.1", "-Wl,--no-as-needed", "-lc"]
    )
    if stripped:
        without_section_headers(path)

    assert read(path)[1] == ["libcudnn_graph.so", "libnvrtc-builtins.so.13.0", "libnvrtc.so.%d", "libnvrtc.so.13"]


def test_the_hosts_libraries_have_the_names_and_sections_that_pyelftools_sees() -> None:
    seen = 0
    for path in system_libraries():
        with path.open("rb") as file:
            elf = ELFFile(file)
            expected: set[str] = set()
            sections = []
            for section in elf.iter_sections():
                if section["sh_type"] != "SHT_PROGBITS" or not section["sh_flags"] & 2 or not section["sh_size"]:
                    continue
                sections.append((section.name, section["sh_offset"], section["sh_size"]))
                if re.match(r"(\.l?rodata|\.data\.rel\.ro|\.data)(\.|$)", section.name):
                    texts = re.findall(
                        rb"(?:\A|(?<=\0))lib[\w+.-]{1,100}?\.so(?:\.[\w%.]{1,16})?(?=\0)", section.data()
                    )
                    expected |= {text.decode() for text in texts}
            image = read_image(file.fileno(), str(path))
            data = data_of(image)
            assert [(each.name, each.offset, each.size) for each in data] == sections, path
            names = dlopen_names(image, data)
        assert set(names) == expected - {*image.object.needed, image.object.soname}, path
        seen += len(names)
    assert seen > 0


# --- damaged files -------------------------------------------------------------------------------------


def test_sections_that_lie_over_each_other_are_read_once(tmp_path: Path) -> None:
    path = compile_library(tmp_path / "lib.so", strings=["libfirst.so"])
    data = bytearray(path.read_bytes()) + bytes(16 << 20)
    names = len(data)
    data += b"\0.rodata\0"
    table = len(data)
    rodata = struct.pack("<IIQQQQIIQQ", 1, 1, 2, 0, 0, 16 << 20, 0, 0, 1, 0)
    data += bytes(64) + struct.pack("<IIQQQQIIQQ", 0, 3, 0, 0, names, 9, 0, 0, 1, 0) + 60_000 * rodata
    struct.pack_into("<Q", data, 40, table)
    struct.pack_into("<HHH", data, 58, 64, 60_002, 1)
    path.write_bytes(data)
    start = time.process_time()

    assert read(path) == (None, ["libfirst.so"])

    assert time.process_time() - start < 5


def test_holes_of_a_terabyte_are_not_read(tmp_path: Path) -> None:
    path = without_section_headers(compile_library(tmp_path / "lib.so", strings=["libfirst.so"]))
    data = bytearray(path.read_bytes())
    (headers,) = struct.unpack_from("<Q", data, 32)
    for offset in range(headers, headers + 56 * data[56], 56):
        if data[offset] == 1:
            struct.pack_into("<Q", data, offset + 32, 1 << 40)
    path.write_bytes(data)
    os.truncate(path, 1 << 40)

    assert read(path) == (None, [])


def test_damaged_files_are_read_or_refused_in_bounded_time(tmp_path: Path) -> None:
    fat = fat_binary([(SASS, 75), (PTX, 90)]) * 20
    whole = compile_library(tmp_path / "whole.so", fat=fat, strings=["liba.so.1", "libb.so"]).read_bytes()
    table = int.from_bytes(whole[40:48], "little")
    fat_at = whole.find(fat)
    path = tmp_path / "damaged.so"
    outcomes = {"read": 0, "different": 0, "refused": 0}
    expected = None
    begin = time.process_time()
    for seed in range(DAMAGED):
        # Each third hits the section headers, the fat binaries, or the beginning.
        start = (table, fat_at, 0)[seed % 3]
        path.write_bytes(whole[:start] + damage(whole[start : start + 4096], seed) + whole[start + 4096 :])
        try:
            found = read(path)
        except ElfError as error:
            assert error.path == str(path)
            outcomes["refused"] += 1
            continue
        expected = expected or read(tmp_path / "whole.so")
        outcomes["read" if found == expected else "different"] += 1
    assert min(outcomes.values()) > DAMAGED // 50, outcomes
    assert time.process_time() - begin < DAMAGED * 0.05


# --- the host's GPUs -----------------------------------------------------------------------------------


def test_compute_capabilities_are_read_and_refused() -> None:
    assert capabilities_of(["12.0", " 9.0", "9.0"]) == [90, 120]
    assert capability_text(121) == "12.1"
    for text in ("9", "9.0.1", "sm_90", "", "９.0x"):
        with pytest.raises(CapabilityError, match=r"compute_capabilities"):
            capabilities_of([text])


@pytest.mark.parametrize(
    ("script", "capabilities"),
    [
        ("echo 9.0; echo 12.0; echo 9.0", [90, 120]),
        ("echo '[N/A]'; echo 8.6", [86]),
        ("echo 'NVIDIA-SMI has failed' ; exit 9", []),
        ("echo 9.0; exit 1", []),
        ("printf '\\377\\376'", []),
        ("sleep 60", []),
    ],
    ids=["three", "one unknown", "no driver", "failed", "no text", "hangs"],
)
def test_the_drivers_program_is_asked(
    script: str, capabilities: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n[ $1 = --query-gpu=compute_cap ] || exit 3\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(_compute_capability, "_TIMEOUT", 2.0)

    assert host_capabilities(str(program)) == capabilities


def test_a_program_that_cannot_run_is_no_gpu(tmp_path: Path) -> None:
    assert host_capabilities(str(tmp_path / "nothing")) == []
