# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a host's glibc knows before it loads anything. Private to the collection.

All of it is read from files (the dynamic linker itself, /proc/cpuinfo, ld.so.cache), nothing is executed.
glibc 2.33 and later print the same with ``ld.so --list-diagnostics``, which the tests compare with.
"""

from __future__ import annotations

import os
import re
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ansible_collections.gpufleet.dflash.plugins.module_utils._elf import ElfError, ElfObject, read_object

LD_SO_CACHE = "/etc/ld.so.cache"
LD_SO_CONF = "/etc/ld.so.conf"
LD_SO_PRELOAD = "/etc/ld.so.preload"
CPUINFO = "/proc/cpuinfo"


class _Architecture(NamedTuple):
    """An architecture by uname's name, with its libraries' flags in ld.so.cache (ldconfig.h of glibc)."""

    name: str
    cache_flags: int


# By e_machine, what CUDA wheels exist for; both are 64 bit and little endian.
_ARCHITECTURES = {
    62: _Architecture("x86_64", 0x0303),
    183: _Architecture("aarch64", 0x0A03),
}

_FIRST_WITH_GLIBC_HWCAPS = (2, 33)
_FIRST_WITHOUT_LEGACY_HWCAPS = (2, 37)

# The levels of the x86-64 psABI in /proc/cpuinfo's words; sysdeps/x86_64/dl-hwcaps_subdirs.c of glibc.
_X86_64_V2 = frozenset({"cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"})
_X86_64_V3 = _X86_64_V2 | frozenset({"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"})
_X86_64_V4 = _X86_64_V3 | frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"})
_X86_64_LEVELS = (("x86-64-v4", _X86_64_V4), ("x86-64-v3", _X86_64_V3), ("x86-64-v2", _X86_64_V2))

# What made glibc before 2.37 call an Intel CPU "haswell", and give it the hwcap avx512_1;
# sysdeps/x86/cpu-features.c.
_HASWELL = frozenset({"avx2", "fma", "bmi1", "bmi2", "abm", "movbe", "popcnt"})
_XEON_PHI = frozenset({"avx512cd", "avx512er", "avx512pf"})
_AVX512_1 = frozenset({"avx512cd", "avx512bw", "avx512dq", "avx512vl"})

# The bits of the older hwcaps in an entry of ld.so.cache; sysdeps/*/dl-procinfo.h.
_CACHE_LEGACY_BITS = {
    "x86_64": 1 << 1,
    "avx512_1": 1 << 2,
    "atomics": 1 << 8,
    "haswell": 1 << 48,
    "xeon_phi": 1 << 49,
    "tls": 1 << 63,
}


class UnsupportedLoader(Exception):  # noqa: N818
    """The program's dynamic linker is not a glibc that this code can predict; the text names it and why."""


class LoaderCache:
    """/etc/ld.so.cache in the format "glibc-ld.so.cache1.1", as one architecture sees it.

    A damaged file or entry is treated as the linker treats it: as not there.
    """

    _MAGIC = b"glibc-ld.so.cache1.1"
    _OLD_MAGIC = b"ld.so-1.7.0"
    _HEADER = struct.Struct("=20sIIBxxxI12x")
    _ENTRY = struct.Struct("=iIIIQ")
    _EXTENSION_MAGIC = 0xEAA42174
    _TAG_HWCAPS = 1
    # In the upper half of an entry's hwcap: its lower half is the number of a glibc-hwcaps subdirectory.
    _NAMED_HWCAP = 1 << 30

    def __init__(
        self, data: bytes = b"", *, flags: int = 0, hwcaps: Sequence[str] = (), legacy_hwcaps: int = 0
    ) -> None:
        self._data = data
        self._paths: dict[str, tuple[int, str]] = {}  # name: rank of its directory, path
        self._start = self._find_start()
        if self._start is not None:
            self._read(flags, hwcaps, legacy_hwcaps)

    def lookup(self, name: str) -> str | None:
        """Return the path that the cache gives for a library's bare name, None where it has none."""
        found = self._paths.get(name)
        return found[1] if found else None

    def __len__(self) -> int:
        return len(self._paths)

    def _find_start(self) -> int | None:
        start = 0
        if self._data.startswith(self._OLD_MAGIC) and len(self._data) >= 16:
            # The old format comes first in a "compat" cache; the new one follows, aligned.
            (count,) = struct.unpack_from("=I", self._data, 12)
            start = (16 + 12 * count + 7) & ~7
        return start if self._data.startswith(self._MAGIC, start) else None

    def _read(self, flags: int, hwcaps: Sequence[str], legacy_hwcaps: int) -> None:
        start = self._start or 0
        if start + self._HEADER.size > len(self._data):
            return
        _magic, count, _strings, _byteorder, extensions = self._HEADER.unpack_from(self._data, start)
        ranks = self._rank_hwcaps(extensions, hwcaps)
        first = start + self._HEADER.size
        count = min(count, (len(self._data) - first) // self._ENTRY.size)
        entries = self._data[first : first + count * self._ENTRY.size]
        plain = len(hwcaps) + 1
        for kind, key, value, _os_version, hwcap in self._ENTRY.iter_unpack(entries):
            if kind != flags:
                continue
            if hwcap >> 32 & ~0x3FF == self._NAMED_HWCAP:
                rank = ranks.get(hwcap & 0xFFFFFFFF)
            else:
                rank = None if hwcap & ~legacy_hwcaps else plain
            name, path = self._string(key), self._string(value)
            if rank is not None and name and path and rank < self._paths.get(name, (plain + 1, ""))[0]:
                self._paths[name] = (rank, path)

    def _rank_hwcaps(self, extensions: int, hwcaps: Sequence[str]) -> dict[int, int]:
        """Return each active name's rank in ``hwcaps`` (0 is best) by the name's number in the cache."""
        try:
            names = [self._string(offset) for offset in self._hwcap_names(extensions)]
        except struct.error:  # an offset outside the file
            return {}
        return {number: hwcaps.index(name) for number, name in enumerate(names) if name in hwcaps}

    def _hwcap_names(self, extensions: int) -> tuple[int, ...]:
        """Return the offsets of the subdirectories' names from the cache's extension for them."""
        magic, count = struct.unpack_from("=II", self._data, extensions)
        if not extensions or magic != self._EXTENSION_MAGIC:
            return ()
        for number in range(min(count, 16)):
            at = extensions + 8 + 16 * number
            tag, _flags, offset, size = struct.unpack_from("=IIII", self._data, at)
            if tag == self._TAG_HWCAPS and size <= 4096:
                return struct.unpack_from(f"={size // 4}I", self._data, offset)
        return ()

    def _string(self, offset: int) -> str | None:
        offset += self._start or 0
        end = self._data.find(b"\0", offset)
        return os.fsdecode(self._data[offset:end]) if end >= 0 else None


@dataclass(frozen=True)
class System:
    """A host's glibc: where it looks and what its tokens mean.

    ``default_dirs`` end in a slash. ``subdirectories`` are the prefixes tried in each directory, best first,
    the last is empty. ``lib`` and ``platform`` replace $LIB and $PLATFORM. ``preload`` are the names in
    /etc/ld.so.preload. ``ld_so_conf`` is what the cache is made of, None for a made-up cache.
    """

    interpreter: str
    machine: int
    version: tuple[int, int]
    default_dirs: tuple[str, ...]
    subdirectories: tuple[str, ...]
    lib: str
    platform: str
    cache: LoaderCache = field(repr=False)
    preload: tuple[str, ...] = ()
    ld_so_conf: str | None = None
    # Objects by device, inode, size and times: what one prediction has read, the next need not read again.
    objects: dict[tuple[int, ...], ElfObject] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of_host(cls, executable: str | None = None, *, use_cache: bool = True) -> System:
        """Return this host's glibc as ``executable`` (default: the running Python) would get it.

        ``use_cache=False`` describes a host whose ld.so.cache is empty. Raises UnsupportedLoader, OSError.
        """
        program, architecture = _program(os.path.realpath(executable or sys.executable))
        interpreter = program.interpreter or ""
        image = _read_bytes(interpreter)
        version = _glibc_version(image, interpreter)
        default_dirs = _default_dirs(image, interpreter)
        processor = _processor(architecture.name, version)
        return cls(
            interpreter=interpreter,
            machine=program.machine,
            version=version,
            default_dirs=default_dirs,
            subdirectories=processor.subdirectories(),
            # glibc's $LIB is the last part of its own library directory, the first default one.
            lib=re.sub(r"^/(usr/(?=lib))?", "", default_dirs[0]).rstrip("/"),
            platform=processor.platform,
            cache=LoaderCache(
                _read_bytes(LD_SO_CACHE, missing=b"") if use_cache else b"",
                flags=architecture.cache_flags,
                hwcaps=processor.hwcaps,
                legacy_hwcaps=processor.legacy_bits(),
            ),
            preload=_preload_names(_read_bytes(LD_SO_PRELOAD, missing=b"")),
            ld_so_conf=LD_SO_CONF if use_cache else None,
        )


def _program(path: str) -> tuple[ElfObject, _Architecture]:
    try:
        program = read_object(path)
    except ElfError as error:
        raise UnsupportedLoader(str(error)) from None
    if not program.interpreter:
        raise UnsupportedLoader(f"{path}: is a static program: no dynamic linker loads its libraries")
    architecture = _ARCHITECTURES.get(program.machine)
    if architecture is None or (program.bits, program.byteorder) != (64, "little"):
        kind = f"{program.bits}-bit {program.byteorder}-endian programs of ELF machine {program.machine}"
        raise UnsupportedLoader(f"{path}: {kind} are not supported")
    return program, architecture


def _read_bytes(path: str, missing: bytes | None = None) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        if missing is None:
            raise
        return missing


def _glibc_version(image: bytes, path: str) -> tuple[int, int]:
    match = re.search(rb"ld\.so \([^)\n]*\) \w+ release version (\d+)\.(\d+)", image) or re.search(
        rb"GNU C Library[^\n]* (?:release )?version (\d+)\.(\d+)", image
    )
    if not match:
        raise UnsupportedLoader(f"{path}: is not glibc's dynamic linker, or too old to tell its version")
    return int(match[1]), int(match[2])


def _default_dirs(image: bytes, path: str) -> tuple[str, ...]:
    """The trusted directories lie in the linker as adjacent strings that begin and end with a slash."""
    for match in re.finditer(rb"\0((?:/(?:[\w.+-]+/)+\0)+)", image):
        directories = tuple(os.fsdecode(name) for name in match[1].split(b"\0") if name)
        if any("lib" in name for name in directories):
            return directories
    raise UnsupportedLoader(f"{path}: holds no list of default directories")


@dataclass(frozen=True)
class _Processor:
    """What glibc derives from the CPU: $PLATFORM, the active glibc-hwcaps (best first) and the older hwcaps.

    ``legacy`` is None where they are not used any more, from glibc 2.37 on.
    """

    platform: str
    hwcaps: tuple[str, ...]
    legacy: tuple[str, ...] | None

    def subdirectories(self) -> tuple[str, ...]:
        named = [f"glibc-hwcaps/{name}/" for name in self.hwcaps]
        return (*named, *self._legacy_subdirectories(), "")

    def legacy_bits(self) -> int:
        """Return the hwcap bits that an entry of ld.so.cache may have and count."""
        names = {*self.legacy, self.platform, "tls"} if self.legacy is not None else set()
        return sum(_CACHE_LEGACY_BITS.get(name, 0) for name in names)

    def _legacy_subdirectories(self) -> list[str]:
        """Every combination of the names, in the order of _dl_important_hwcaps in glibc 2.36, without the
        empty one.
        """
        if self.legacy is None:
            return []
        names = [*self.legacy, self.platform, "tls"]
        combinations = [
            "".join(f"{name}/" for index, name in reversed(list(enumerate(names))) if not left_out >> index & 1)
            for left_out in range((1 << len(names)) - 1)
        ]
        return list(dict.fromkeys(combinations))


def _processor(architecture: str, version: tuple[int, int], cpuinfo: str | None = None) -> _Processor:
    """Return what glibc of ``version`` makes of the CPU; ``cpuinfo`` is the text of /proc/cpuinfo, by default
    the host's.
    """
    if cpuinfo is None:
        cpuinfo = os.fsdecode(_read_bytes(CPUINFO, missing=b""))
    vendor, features = _cpu(cpuinfo)
    hwcaps: tuple[str, ...] = ()
    if architecture == "x86_64" and version >= _FIRST_WITH_GLIBC_HWCAPS:
        hwcaps = tuple(name for name, needed in _X86_64_LEVELS if needed <= features)
    if version >= _FIRST_WITHOUT_LEGACY_HWCAPS:
        return _Processor(architecture, hwcaps, None)
    if architecture == "aarch64":
        return _Processor(architecture, hwcaps, ("atomics",) if "atomics" in features else ())
    if vendor != "GenuineIntel":
        return _Processor(architecture, hwcaps, ("x86_64",))
    if features >= _XEON_PHI:
        return _Processor("xeon_phi", hwcaps, ("x86_64",))
    legacy = ("x86_64", "avx512_1") if features >= _AVX512_1 else ("x86_64",)
    return _Processor("haswell" if features >= _HASWELL else architecture, hwcaps, legacy)


def _cpu(cpuinfo: str) -> tuple[str, frozenset[str]]:
    """Return the first CPU's vendor and its feature flags, as the kernel names them."""
    vendor = ""
    for line in cpuinfo.splitlines():
        name, _colon, value = line.partition(":")
        name = name.strip()
        if name == "vendor_id":
            vendor = value.strip()
        elif name in ("flags", "Features"):
            return vendor, frozenset(value.split())
    return vendor, frozenset()


def _preload_names(data: bytes) -> tuple[str, ...]:
    """The words of /etc/ld.so.preload; a # begins a comment, and spaces and colons separate."""
    text = re.sub(r"#[^\n]*", "", os.fsdecode(data))
    return tuple(name for name in re.split(r"[\s:]+", text) if name)
