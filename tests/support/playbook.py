# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the collection's playbooks against the booted test hosts and read what they did."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import yaml

PROJECT = Path(__file__).parents[2]
INVENTORY = PROJECT / "molecule" / "inventory.yml"
# What runs on the controller alone; every other action is at least one module on the host.
CONTROLLER_ONLY = {"assert", "debug", "include_vars", "sglang_inputs", "validate_argument_spec", "set_fact"}


class Step(NamedTuple):
    """What one task did on one host, or one item of its loop."""

    task: str
    action: str
    label: str
    changed: bool
    diff: Any
    message: str


class Run(NamedTuple):
    """A finished run of ansible-playbook."""

    status: int
    steps: list[Step]
    failures: list[str]
    failed_results: list[dict[str, Any]]
    stats: dict[str, dict[str, int]]
    stderr: str

    @property
    def changes(self) -> list[Step]:
        """The steps that changed something."""
        return [step for step in self.steps if step.changed]


def instances(**changes: Any) -> list[dict[str, Any]]:
    """Return the inventory's instance with some of its values changed."""
    inventory = yaml.safe_load(INVENTORY.read_text())
    (instance,) = inventory["dflash"]["vars"]["sglang_dflash_instances"]
    return [{**instance, **changes}]


def command(playbook: str, host: str, *arguments: str, inventory: Path | None = None, **variables: Any) -> list[str]:
    """Return the command line that runs a playbook of the collection on one host; by default one of INVENTORY."""
    extra = json.dumps({"dflash_hosts": host, **variables})
    python_bin = Path(sys.executable).parent
    path = PROJECT / "playbooks" / playbook
    return [
        str(python_bin / "ansible-playbook"),
        "-i",
        str(inventory or INVENTORY),
        "--extra-vars",
        extra,
        *arguments,
        str(path),
    ]


def environment(callback: str = "ansible.posix.json") -> dict[str, str]:
    """Return the environment for ansible-playbook."""
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")},
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "ANSIBLE_CONFIG": str(PROJECT / "ansible.cfg"),
        "ANSIBLE_COLLECTIONS_PATH": str(PROJECT / ".collections"),
        "ANSIBLE_STDOUT_CALLBACK": callback,
    }


def task(host: str, module: str, options: dict[str, Any], inventory: Path | None = None) -> list[str]:
    """Return the command line that runs one module of the collection on one host."""
    ansible = str(Path(sys.executable).parent / "ansible")
    words = ["-m", f"gpufleet.dflash.{module}", "-a", json.dumps(options)]
    return [ansible, host, "-i", str(inventory or INVENTORY), *words]


def result_of(host: str, module: str, options: dict[str, Any], inventory: Path | None = None) -> dict[str, Any]:
    """Run one module of the collection on one host and return its result, also that of a failure."""
    with tempfile.TemporaryDirectory() as report:
        done = subprocess.run(
            [*task(host, module, options, inventory), "--tree", report],
            env=environment("ansible.builtin.minimal"),
            cwd=PROJECT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        path = Path(report, host)
        assert path.exists(), done.stdout + done.stderr
        result: dict[str, Any] = json.loads(path.read_text())
        return result


def run(playbook: str, host: str, *arguments: str, inventory: Path | None = None, **variables: Any) -> Run:
    """Run a playbook to its end."""
    process = subprocess.run(
        command(playbook, host, "--diff", *arguments, inventory=inventory, **variables),
        env=environment(),
        cwd=PROJECT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    start = process.stdout.find("\n{") + 1 if not process.stdout.startswith("{") else 0
    try:
        told = json.loads(process.stdout[start:])
    except ValueError:
        raise AssertionError(f"{playbook}: {process.stdout}\n{process.stderr}") from None
    steps: list[Step] = []
    failed: list[dict[str, Any]] = []
    for play in told["plays"]:
        for task in play["tasks"]:
            for result in task["hosts"].values():
                if result.get("skipped"):
                    continue
                for one in result.get("results") or [result]:
                    if not isinstance(one, dict) or one.get("skipped"):
                        continue
                    label = str(one.get("_ansible_item_label") or "")
                    action = result["action"].rpartition(".")[2]
                    steps.append(
                        Step(
                            task["task"]["name"],
                            action,
                            label,
                            bool(one.get("changed")),
                            one.get("diff"),
                            str(one.get("msg", "")),
                        )
                    )
                    if one.get("failed"):
                        failed.append(one)
    failures = [str(one.get("msg", "")) for one in failed]
    return Run(process.returncode, steps, failures, failed, told["stats"], process.stderr)


def start(playbook: str, host: str, **variables: Any) -> subprocess.Popen[bytes]:
    """Start a playbook in a session of its own, so that all of it can be killed at once."""
    return subprocess.Popen(
        command(playbook, host, **variables),
        env=environment("ansible.builtin.default"),
        cwd=PROJECT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
