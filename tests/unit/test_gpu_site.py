# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The playbook for hosts with GPUs, as far as it goes without one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.playbook import PROJECT, environment

SITE = PROJECT / "tests" / "gpu" / "site.yml"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """ansible-playbook with the site, for one host that is not there."""
    return subprocess.run(
        [str(Path(sys.executable).parent / "ansible-playbook"), "-i", "gpu-a01.example.net,", *arguments, str(SITE)],
        env=environment("ansible.builtin.default"),
        cwd=PROJECT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def test_it_can_be_read_to_its_end() -> None:
    done = run("--list-tasks")
    assert done.returncode == 0, done.stderr
    assert "Deploy the same with its drafter" in SITE.read_text()
    # Both deploys are in it, with the tasks of the roles.
    assert done.stdout.count("Stage what each instance should run") == 2
    assert "Take the instance away, unless it shall stay" in done.stdout


def test_without_models_it_says_what_it_needs_and_touches_no_host() -> None:
    done = run("--extra-vars", "dflash_hosts=all")
    assert done.returncode != 0
    assert "gpu_model and gpu_draft_model, as in -e gpu_model=/srv/models/Qwen3-8B" in " ".join(done.stdout.split())
    assert "UNREACHABLE" not in done.stdout
