# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A reference host as they grow: a venv on this machine with leftovers, patches and a wheel of its own making."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from support import small_wheels
from support.local_index import LocalIndex
from support.playbook import PROJECT, environment

HOST = "gpu-a01"
ENGINE = {
    "engine/__init__.py": "",
    "engine/spec_info.py": "ALGORITHMS = ['EAGLE']\n\n\ndef supported():\n    return ALGORITHMS\n",
    "engine/server_args.py": "DEFAULT_PORT = 30000\n",
}


class ReferenceHost:
    """A venv, the index that it came from, and an inventory whose one host it stands for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.index = LocalIndex(folder / "index")
        self.index.add("engine", "0.5.11", ENGINE)
        for name in ("nvidia-nvtx-cu11", "nvidia-nvtx-cu12", "nvidia-cuda-runtime"):
            (wheel,) = small_wheels.fetch().glob(f"{name.replace('-', '_')}-*.whl")
            self.index.add_wheel(wheel)
        self.venv = folder / "venv"
        self.inventory = folder / "inventory" / "hosts.yml"
        self.inventory.parent.mkdir()
        variables = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
        self.inventory.write_text(yaml.safe_dump({"all": {"hosts": {HOST: variables}}}))
        self.uv("venv", "--python", sys.executable, str(self.venv))

    @property
    def site(self) -> Path:
        """The venv's site-packages."""
        return small_wheels.site_packages(self.venv)

    @property
    def out(self) -> Path:
        """Where the playbook writes by default."""
        return self.inventory.parent / "reference" / HOST

    def uv(self, *arguments: str) -> None:
        """Run uv with the host's index."""
        variables = {**small_wheels.environment(), "UV_DEFAULT_INDEX": self.index.url}
        for name in ("UV_FIND_LINKS", "UV_NO_INDEX", "UV_OFFLINE"):
            del variables[name]
        done = subprocess.run(
            [small_wheels.uv(), "--no-config", *arguments], env=variables, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr

    def install(self, *requirements: str) -> None:
        """Install one after the other, as a host's history would."""
        for requirement in requirements:
            self.uv("pip", "install", "--no-deps", "--python", str(self.venv / "bin" / "python"), requirement)

    def patch(self) -> None:
        """Patch one of the engine's sources and add another."""
        source = self.site / "engine" / "spec_info.py"
        source.write_text(source.read_text().replace("['EAGLE']", "['EAGLE', 'DFLASH']"))
        (self.site / "engine" / "dflash_worker.py").write_text("WORKER = 'dflash'\n")

    def playbook(self, name: str) -> Path:
        """A playbook of the collection."""
        return PROJECT / "playbooks" / name

    def play(self, playbook: Path, *arguments: str, inventory: Path | None = None, **variables: Any) -> dict[str, Any]:
        """Run a playbook; the results of its tasks by their names, and ``failed``: what it said when it failed."""
        done = subprocess.run(
            [
                *(str(Path(sys.executable).parent / "ansible-playbook"), "-i", str(inventory or self.inventory)),
                *("--extra-vars", json.dumps(variables), "--diff", *arguments, str(playbook)),
            ],
            env={
                **{name: value for name, value in environment().items() if not name.startswith(("UV_", "PIP_"))},
                "UV_CACHE_DIR": str(small_wheels.CHECKOUT / ".cache" / "uv-tests"),
            },
            cwd=PROJECT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        self.said = done.stdout + done.stderr
        assert "{" in done.stdout, self.said
        told = json.loads(done.stdout[done.stdout.index("{") :])
        results: dict[str, Any] = {}
        for play in told["plays"]:
            for task in play["tasks"]:
                for result in task["hosts"].values():
                    results[task["task"]["name"]] = result
                    if result.get("failed"):
                        results["failed"] = str(result.get("msg"))
        assert done.returncode == 0 or "failed" in results, self.said
        return results

    def describe(self, *arguments: str, **variables: Any) -> dict[str, Any]:
        """Run lock_from_reference; the result of the task that does the work, or what it failed with."""
        given = {
            "dflash_hosts": HOST,
            "dflash_venv": str(self.venv),
            "dflash_become": False,
            "controller_uv": small_wheels.uv(),
            "cuda_runtime_index_url": self.index.url,
        }
        results = self.play(self.playbook("lock_from_reference.yml"), *arguments, **{**given, **variables})
        return results if "failed" in results else results["Read the venv, ask the index, write lock and overlays"]

    def deploy(self, imports: Sequence[str] = ("engine.spec_info",)) -> dict[str, Any]:
        """Build a generation of what was written down; the drift of its facts from the reference's."""
        overlays = "{{ lookup('ansible.builtin.file', inventory_dir ~ '/reference/gpu-a01/overlays.yml') | from_yaml }}"
        facts = {"imports": list(imports), "verify": "hash"}
        variables = yaml.safe_load((self.out / "host.yml").read_text())["variables"]
        assert variables.get("sglang_dflash_overlays", overlays) == overlays
        wheels = variables.get("cuda_runtime_local_wheels")
        tasks = [
            {
                "name": "build",
                "gpufleet.dflash.venv_generation": {
                    "root": str(self.folder / "opt"),
                    "lock": variables["cuda_runtime_lock"],
                    "overlays": overlays,
                    **({"local_wheels": wheels} if wheels else {}),
                    "index_url": self.index.url,
                    "python": sys.executable,
                    "uv": small_wheels.uv(),
                },
                "register": "made",
            },
            {"gpufleet.dflash.cuda_wheel_facts": {"venv": "{{ made.path }}", **facts}, "register": "copy"},
            {"gpufleet.dflash.cuda_wheel_facts": {"venv": str(self.venv), **facts}, "register": "original"},
            {
                "name": "compare",
                "ansible.builtin.set_fact": {
                    "drift": "{{ copy | gpufleet.dflash.drift(original) }}",
                    "facts": "{{ copy }}",
                },
            },
        ]
        playbook = self.folder / "deploy.yml"
        playbook.write_text(yaml.safe_dump([{"hosts": HOST, "gather_facts": False, "tasks": tasks}]))
        results = self.play(playbook)
        assert "failed" not in results, results["failed"]
        answer: dict[str, Any] = results["compare"]["ansible_facts"]
        return {**answer, "made": results["build"]}


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    """{path: (inode, content)} of all files below a folder."""
    return {
        str(path.relative_to(folder)): (path.stat().st_ino, path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file() and os.path.basename(path.parent) != "__pycache__"
    }
