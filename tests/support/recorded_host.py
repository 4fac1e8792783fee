# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The recorded files of hosts with NVIDIA GPUs, as a tree that cuda_host_facts reads in place of ``/``.

/proc, /sys and the logs are in the documented formats of several drivers; programs are scripts that print what was
recorded; libraries are real ELF files; device nodes are real ones, made with mknod(2).
"""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpufleet.dflash.plugins.module_utils._findings import Problem
from ansible_collections.gpufleet.dflash.plugins.module_utils._host_files import HostFiles
from ansible_collections.gpufleet.dflash.plugins.module_utils._host_gather import (
    HostFacts,
    HostRequest,
    gather_host,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._host_problems import judge_host
from ansible_collections.gpufleet.dflash.plugins.module_utils._ld_system import System
from support.elf_writer import write_elf

LOGS = Path(__file__).resolve().parents[1] / "fixtures" / "nvidia_smi"
# A node opens only if a driver has its number. That of /dev/null does on every kernel, so the recorded
# /proc/devices gives NVIDIA's drivers the number of the memory devices, of which minor 3 is /dev/null.
MAJOR = 1
NULL = 3
_KERNEL = "6.8.0-85-generic"
_CAPABILITY = {
    "V100": "7.0",
    "A100": "8.0",
    "4090": "8.9",
    "H100": "9.0",
    "B200": "10.0",
    "5090": "12.0",
    "GB10": "12.1",
}


class RecordedHost:
    """A tree below ``root``; every method adds to it. The host has no GPU until one is added."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("/proc/sys/kernel/osrelease", f"{_KERNEL}\n")
        self.write("/proc/meminfo", "MemTotal:       263842620 kB\nMemFree:        1024 kB\n")
        self.write("/proc/cpuinfo", "processor : 0\nflags\t\t: fpu vme de\n")
        self.write("/etc/os-release", 'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 24.04.3 LTS"\n')
        self.write("/sys/class/dmi/id/sys_vendor", "Supermicro\n")
        self.directory("/sys/devices/system/node/node0")
        self.directory("/sys/devices/system/node/node1")
        self.directory("/dev/shm")

    # --- files -------------------------------------------------------------------------------------------

    def path(self, name: str) -> Path:
        return self.root / name.lstrip("/")

    def write(self, name: str, text: str | bytes) -> Path:
        path = self.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    def directory(self, name: str) -> Path:
        self.path(name).mkdir(parents=True, exist_ok=True)
        return self.path(name)

    def program(self, name: str, script: str) -> Path:
        path = self.write(name, f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path

    def node(self, name: str, major: int = MAJOR, minor: int = NULL, mode: int = 0o666) -> None:
        """A character device; skips the test where nobody may make one."""
        path = self.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        try:
            os.mknod(path, 0o020000 | mode, os.makedev(major, minor))
            path.chmod(mode)
        except PermissionError:
            pytest.skip("device nodes can be made by root only")

    # --- the kernel's side ---------------------------------------------------------------------------------

    def pci(self, address: str, *, kind: str = "0x030200", driver: str = "nvidia", vendor: str = "0x10de") -> None:
        device = self.directory(f"/sys/bus/pci/devices/{address}")
        (device / "vendor").write_text(vendor + "\n")
        (device / "class").write_text(kind + "\n")
        (device / "numa_node").write_text("1\n")
        if driver:
            (device / "driver").symlink_to(f"../../../../bus/pci/drivers/{driver}")

    def kernel_module(self, version: str, *, open_module: bool = True, majors: Sequence[str] | None = None) -> None:
        """The loaded driver; ``majors`` are lines of /proc/devices."""
        flavour = "Open Kernel Module for x86_64" if open_module else "x86_64 Kernel Module"
        self.write(
            "/proc/driver/nvidia/version",
            f"NVRM version: NVIDIA UNIX {flavour}  {version}  Release Build  (dvs-builder@U22-I3-AF02-26-3)  "
            "Tue Sep 23 10:02:18 UTC 2025\nGCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04)\n",
        )
        self.write("/proc/driver/nvidia/params", "ModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileMode: 438\n")
        lines = majors or [f"{MAJOR} nvidia-frontend", f"{MAJOR} nvidia-uvm", "237 nvidia-caps"]
        body = "".join(f"{line:>3}\n" for line in ["  1 mem", "  5 /dev/tty", *lines])
        self.write("/proc/devices", f"Character devices:\n{body}\nBlock devices:\n  7 loop\n259 blkext\n")
        self.write("/proc/modules", "nvidia_uvm 2150400 0 - Live 0x0\nnvidia 13516800 2 nvidia_uvm, Live 0x0\n")

    def proc_gpu(
        self, address: str, name: str, minor: int, uuid: str = "GPU-????????-????-????-????-????????????"
    ) -> None:
        self.write(
            f"/proc/driver/nvidia/gpus/{address}/information",
            f"Model: \t\t {name}\nIRQ:   \t\t 121\nGPU UUID: \t {uuid}\nVideo BIOS: \t 96.00.74.00.0d\n"
            f"Bus Type: \t PCIe\nDMA Size: \t 52 bits\nBus Location: \t {address}\nDevice Minor: \t {minor}\n"
            "GPU Excluded:\t No\n",
        )

    def gpus_of(self, log: str, **pci: Any) -> None:
        """The bus, the driver's list and the nodes of the GPUs of a recorded log."""
        text = (LOGS / log).read_text()
        for number, (domain, rest, name) in enumerate(
            re.findall(r'<gpu id="0{4}(\w{4}):(.+?)">\s*<product_name>(.+?)<', text)
        ):
            address = f"{domain}:{rest}".lower()
            self.pci(address, **pci)
            self.proc_gpu(address, name, number)
            self.node(f"/dev/nvidia{number}")
        self.node("/dev/nvidiactl")
        self.node("/dev/nvidia-uvm")

    # --- the libraries' side -------------------------------------------------------------------------------

    @property
    def libraries(self) -> Path:
        return self.path("/usr/lib/x86_64-linux-gnu")

    def library(self, name: str, version: str, directory: Path | None = None) -> Path:
        """``libcuda`` or ``libnvidia-ml`` of a driver: the file of that version, and the link of the soname."""
        file = (directory or self.libraries) / f"{name}.so.{version}"
        write_elf(file, soname=f"{name}.so.1", symbols=["cuInit", "nvmlInit_v2"])
        link = file.with_name(f"{name}.so.1")
        link.unlink(missing_ok=True)
        link.symlink_to(file.name)
        return file

    def driver(self, version: str, **options: Any) -> None:
        """Kernel module and libraries of one driver."""
        self.kernel_module(version, **options)
        self.library("libcuda", version)
        self.library("libnvidia-ml", version)

    def smi(self, log: str | Path, changes: Sequence[tuple[str, str]] = ()) -> None:
        """nvidia-smi that prints a recorded log, each of ``changes`` made once, and knows compute capabilities."""
        text = (LOGS / log).read_text()
        for old, new in changes:
            assert old in text, old
            text = text.replace(old, new, 1)
        recorded = self.write("/var/recorded.xml", text)
        rows = []
        for name, uuid in re.findall(r"<product_name>(.+?)</product_name>.*?<uuid>(.+?)</uuid>", text, re.S):
            rows.append(f"{uuid}, {next((value for word, value in _CAPABILITY.items() if word in name), '[N/A]')}")
        capabilities = self.write("/var/capabilities.csv", "\n".join(rows) + "\n")
        self.program(
            "/usr/bin/nvidia-smi",
            f'case "$*" in "-q -x") exec cat {recorded};;\n'
            f'"--query-gpu=uuid,compute_cap --format=csv,noheader") exec cat {capabilities};;\n*) exit 2;; esac',
        )

    def whole(self, log: str, version: str, **options: Any) -> RecordedHost:
        """A host in order, of a recorded log."""
        self.driver(version, **options)
        self.gpus_of(log)
        self.smi(log)
        return self

    def kernel_log(self, *messages: str) -> None:
        """What /dev/kmsg gives: priority, sequence, microseconds and flags before each message."""
        records = [f"3,{1000 + n},{5_000_000 + n},-;{message}\n" for n, message in enumerate(messages)]
        self.write("/dev/kmsg", "".join(["6,1,0,-;Linux version 6.8.0\n", *records]))

    # --- what the code makes of it -------------------------------------------------------------------------

    def facts(self, **request: Any) -> HostFacts:
        system = System.of_host(os.path.realpath(sys.executable), use_cache=False)
        system = dataclasses.replace(system, default_dirs=(f"{self.libraries}/", *system.default_dirs))
        return gather_host(HostRequest(**request), HostFiles(str(self.root)), system)

    def problems(self, **request: Any) -> list[Problem]:
        return judge_host(self.facts(**request))
