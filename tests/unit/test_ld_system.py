# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What is read of the host's glibc against what glibc's own tools print."""

from __future__ import annotations

import random
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from support import elf_writer

from ansible_collections.gpufleet.dflash.plugins.module_utils import _ld_system
from ansible_collections.gpufleet.dflash.plugins.module_utils._ld_system import (
    LD_SO_CACHE,
    LoaderCache,
    System,
    UnsupportedLoader,
)

HOST = System.of_host()
X86_64_FLAGS = 0x0303
HOST_FLAGS = {elf_writer.EM_X86_64: X86_64_FLAGS, elf_writer.EM_AARCH64: 0x0A03}[HOST.machine]


@pytest.fixture(scope="module")
def diagnostics() -> dict[str, str]:
    if HOST.version < (2, 33):
        pytest.skip("ld.so --list-diagnostics came with glibc 2.33")
    text = subprocess.run([HOST.interpreter, "--list-diagnostics"], capture_output=True, text=True, check=True).stdout
    return {name: value.strip('"') for name, _, value in (line.partition("=") for line in text.splitlines())}


def test_version_directories_and_tokens_are_the_linkers_own(diagnostics: dict[str, str]) -> None:
    directories = [value for name, value in diagnostics.items() if name.startswith("path.system_dirs[")]
    assert list(HOST.default_dirs) == directories
    assert ".".join(map(str, HOST.version)) == diagnostics["version.version"]
    assert HOST.lib == diagnostics["dl_dst_lib"]
    assert HOST.platform == diagnostics["dl_platform"]


def test_hwcaps_are_those_that_the_linker_finds_active(diagnostics: dict[str, str]) -> None:
    names = diagnostics["dl_hwcaps_subdirs"].split(":")
    active = int(diagnostics["dl_hwcaps_subdirs_active"], 16)
    expected = [f"glibc-hwcaps/{name}/" for number, name in enumerate(names) if name and active >> number & 1]
    assert [prefix for prefix in HOST.subdirectories if prefix.startswith("glibc-hwcaps/")] == expected
    assert HOST.subdirectories[-1] == ""


def test_subdirectories_are_tried_in_the_linkers_order() -> None:
    finished = subprocess.run(
        [sys.executable, "-c", "import ctypes\ntry: ctypes.CDLL('libnowhere.so')\nexcept OSError: pass"],
        env={"LD_LIBRARY_PATH": "/nowhere", "LD_DEBUG": "libs"},
        capture_output=True,
        text=True,
        check=True,
    )
    paths = re.findall(r"search path=(\S+)\s+\(LD_LIBRARY_PATH\)", finished.stderr)
    tried = max((path.split(":") for path in paths), key=len)
    assert list(dict.fromkeys(tried)) == [f"/nowhere/{prefix}".rstrip("/") for prefix in HOST.subdirectories]


INTEL = "vendor_id : GenuineIntel\nflags : {}\n"
AMD = "vendor_id : AuthenticAMD\nflags : {}\n"
V2 = "cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3"
V3 = f"{V2} avx avx2 bmi1 bmi2 f16c fma abm movbe xsave"
V4 = f"{V3} avx512f avx512bw avx512cd avx512dq avx512vl"
NEW = ("glibc-hwcaps/x86-64-v4/", "glibc-hwcaps/x86-64-v3/", "glibc-hwcaps/x86-64-v2/")
PROCESSORS = {
    "an old CPU": ("x86_64", (2, 36), AMD.format("sse sse2"), "x86_64", ("tls/x86_64/x86_64/",)),
    "AMD with AVX2": ("x86_64", (2, 36), AMD.format(V3), "x86_64", (*NEW[1:], "tls/x86_64/x86_64/")),
    "Intel with AVX2": (
        "x86_64",
        (2, 36),
        INTEL.format(V3),
        "haswell",
        (*NEW[1:], "tls/haswell/x86_64/", "tls/haswell/"),
    ),
    "Intel with AVX-512": (
        "x86_64",
        (2, 36),
        INTEL.format(V4),
        "haswell",
        (*NEW, "tls/haswell/avx512_1/x86_64/"),
    ),
    "glibc 2.28": ("x86_64", (2, 28), INTEL.format(V4), "haswell", ("tls/haswell/avx512_1/x86_64/",)),
    "glibc 2.39": ("x86_64", (2, 39), INTEL.format(V4), "x86_64", (*NEW, "")),
    "aarch64": (
        "aarch64",
        (2, 34),
        "Features : fp asimd atomics\n",
        "aarch64",
        ("tls/aarch64/atomics/", "tls/aarch64/"),
    ),
    "aarch64, glibc 2.39": ("aarch64", (2, 39), "Features : fp asimd atomics\n", "aarch64", ("",)),
}


@pytest.mark.parametrize(
    ("architecture", "version", "cpuinfo", "platform", "first"), PROCESSORS.values(), ids=PROCESSORS
)
def test_a_processor_gives_its_platform_and_subdirectories(
    architecture: str, version: tuple[int, int], cpuinfo: str, platform: str, first: tuple[str, ...]
) -> None:
    processor = _ld_system._processor(architecture, version, cpuinfo)
    assert processor.platform == platform
    assert processor.subdirectories()[: len(first)] == first


def test_the_cache_holds_what_ldconfig_prints() -> None:
    ldconfig = shutil.which("ldconfig", path="/sbin:/usr/sbin")
    if ldconfig is None or not Path(LD_SO_CACHE).exists():
        pytest.skip("this host has no ld.so.cache")
    printed: dict[str, str] = {}
    for line in subprocess.run([ldconfig, "-p"], capture_output=True, text=True, check=True).stdout.splitlines():
        match = re.match(r"\t(\S+) \(libc6,(?:x86-64|AArch64)(?:, OS ABI: [^,)]*)?\) => (.*)", line)
        if match:
            printed.setdefault(match[1], match[2])
    assert len(printed) > 10
    for name, path in printed.items():
        assert HOST.cache.lookup(name) == path
    assert HOST.cache.lookup("libnowhere.so.1") is None


def cache_of(entries: list[tuple[str, str, int, int]], hwcaps: tuple[str, ...] = (), compat: bool = False) -> bytes:
    """Write a cache of (name, path, flags, hwcap) entries as ldconfig does."""
    header, entry_size = 48, 24
    strings = b""
    rows = b""
    base = header + entry_size * len(entries)

    def add(text: str) -> int:
        nonlocal strings
        strings += text.encode() + b"\0"
        return base + len(strings) - len(text) - 1

    for name, path, flags, hwcap in entries:
        rows += struct.pack("=iIIIQ", flags, add(name), add(path), 0, hwcap)
    names = [add(name) for name in hwcaps]
    strings += bytes(-(base + len(strings)) % 4)
    extension = base + len(strings)
    body = rows + strings
    if hwcaps:
        body += struct.pack("=II", 0xEAA42174, 1) + struct.pack("=IIII", 1, 0, extension + 24, 4 * len(names))
        body += struct.pack(f"={len(names)}I", *names)
    start = struct.pack(
        "=20sIIB3xI12x", b"glibc-ld.so.cache1.1", len(entries), len(strings), 2, extension if hwcaps else 0
    )
    old = b"ld.so-1.7.0\0" + struct.pack("=I", 1) + bytes(12) if compat else b""
    return old + bytes(-len(old) % 8) + start + body


NAMED = 1 << 62


def test_the_best_active_hwcap_wins_in_the_cache() -> None:
    data = cache_of(
        [
            ("liba.so", "/v4/liba.so", X86_64_FLAGS, NAMED | 2),
            ("liba.so", "/v2/liba.so", X86_64_FLAGS, NAMED | 0),
            ("liba.so", "/v3/liba.so", X86_64_FLAGS, NAMED | 1),
            ("liba.so", "/liba.so", X86_64_FLAGS, 0),
        ],
        ("x86-64-v2", "x86-64-v3", "x86-64-v4"),
    )
    active = {("x86-64-v3", "x86-64-v2"): "/v3/liba.so", ("x86-64-v2",): "/v2/liba.so", (): "/liba.so"}
    for hwcaps, path in active.items():
        assert LoaderCache(data, flags=X86_64_FLAGS, hwcaps=hwcaps).lookup("liba.so") == path


def test_entries_of_other_architectures_and_other_processors_do_not_count() -> None:
    haswell, tls = 1 << 48, 1 << 63
    entries = [
        ("liba.so", "/32/liba.so", 0x0003, 0),
        ("liba.so", "/haswell/liba.so", X86_64_FLAGS, haswell),
        ("liba.so", "/tls/liba.so", X86_64_FLAGS, tls),
        ("liba.so", "/liba.so", X86_64_FLAGS, 0),
    ]
    for legacy, path in ((0, "/liba.so"), (tls, "/tls/liba.so"), (haswell | tls, "/haswell/liba.so")):
        assert LoaderCache(cache_of(entries), flags=X86_64_FLAGS, legacy_hwcaps=legacy).lookup("liba.so") == path


def test_a_cache_in_the_compatible_form_is_read() -> None:
    data = cache_of([("liba.so", "/liba.so", X86_64_FLAGS, 0)], compat=True)
    assert LoaderCache(data, flags=X86_64_FLAGS).lookup("liba.so") == "/liba.so"


@pytest.mark.parametrize("data", [b"", b"text", b"ld.so-1.7.0\0", b"glibc-ld.so.cache1.1"], ids=repr)
def test_what_is_no_cache_is_an_empty_one(data: bytes) -> None:
    assert len(LoaderCache(data, flags=X86_64_FLAGS)) == 0


def test_damaged_caches_are_read_without_complaint() -> None:
    whole = cache_of(
        [(f"lib{n}.so", f"/lib/lib{n}.so", X86_64_FLAGS, NAMED | n % 2 if n % 3 else 0) for n in range(40)],
        ("a", "b"),
    )
    intact = len(LoaderCache(whole, flags=X86_64_FLAGS, hwcaps=("a",)))
    assert 0 < intact < 40
    for seed in range(2000):
        choice = random.Random(seed)
        data = bytearray(whole[: choice.choice([len(whole), choice.randrange(len(whole))])])
        for _ in range(choice.randrange(1, 8)):
            at = choice.randrange(max(1, len(data) - 4))
            data[at : at + 4] = struct.pack("<I", choice.choice([0, 1, 0xFFFFFFFF, choice.randrange(1 << 32)]))
        LoaderCache(bytes(data), flags=X86_64_FLAGS, hwcaps=("a",)).lookup("lib1.so")


def test_names_in_the_preload_file_are_separated_by_spaces_and_colons() -> None:
    text = b"# a comment\n/lib/liba.so libb.so:libc.so # more\n\n\tlibd.so"
    assert _ld_system._preload_names(text) == ("/lib/liba.so", "libb.so", "libc.so", "libd.so")


def test_a_host_without_cache_can_be_described() -> None:
    assert len(System.of_host(use_cache=False).cache) == 0


def test_what_glibc_does_not_load_is_told_with_a_reason(tmp_path: Path) -> None:
    elf_writer.write_elf(tmp_path / "static")
    elf_writer.write_elf(tmp_path / "i386", bits=32, machine=elf_writer.EM_386, interpreter="/lib/ld-linux.so.2")
    (tmp_path / "ld-musl.so").write_bytes(b"\x7fELF musl libc\0")
    elf_writer.write_elf(tmp_path / "musl", interpreter=f"{tmp_path}/ld-musl.so")
    (tmp_path / "script").write_text("#!/bin/sh\n")
    reasons = {
        "static": "static program",
        "i386": "32-bit little-endian programs of ELF machine 3 are not supported",
        "musl": "not glibc's dynamic linker",
        "script": "not an ELF file",
    }
    for name, reason in reasons.items():
        with pytest.raises(UnsupportedLoader, match=reason):
            System.of_host(str(tmp_path / name))
