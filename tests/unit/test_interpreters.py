# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What runs on hosts runs on every Python from 3.9 on, with the standard library alone."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
MODULE_UTILS = sorted(path.stem for path in (PROJECT / "plugins" / "module_utils").glob("*.py"))

_IMPORT = """
import importlib, sys
sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[1])
for name in sys.argv[2:]:
    importlib.import_module("ansible_collections.gpufleet.dflash.plugins.module_utils." + name)
strange = {name.partition(".")[0] for name in sys.modules} & {"ansible", "packaging", "elftools", "yaml"}
assert not strange, strange
"""


def interpreters() -> list[str]:
    """This Python, and the others from 3.9 on that this machine has (on PATH, or below pyenv's versions)."""
    found = {os.path.realpath(sys.executable)}
    for minor in range(9, 15):
        on_path = shutil.which(f"python3.{minor}")
        candidates = [Path(on_path)] if on_path else []
        candidates += (Path.home() / ".pyenv" / "versions").glob(f"3.{minor}.*/bin/python")
        for candidate in candidates:
            # A shim that stands for no installed version fails.
            if subprocess.run([candidate, "-c", ""], capture_output=True, check=False).returncode == 0:
                found.add(os.path.realpath(candidate))
    return sorted(found)


@pytest.mark.parametrize("python", interpreters(), ids=lambda path: Path(path).name)
def test_every_file_for_hosts_imports_without_anything_installed(python: str) -> None:
    command = [python, "-I", "-S", "-c", _IMPORT, str(PROJECT / ".collections"), *MODULE_UTILS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_python_that_is_too_old_is_told_so() -> None:
    text = (PROJECT / "plugins" / "module_utils" / "_python.py").read_text()
    program = "import sys; sys.version_info = (3, 8, 18, 'final', 0); exec(sys.argv[1])"
    done = subprocess.run([sys.executable, "-I", "-c", program, text], capture_output=True, text=True, check=False)
    assert (done.returncode, json.loads(done.stdout)) == (
        1,
        {
            "failed": True,
            "msg": "needs Python 3.9 or newer on the host, this is 3.8.18: set ansible_python_interpreter",
        },
    )


@pytest.mark.parametrize("module", sorted((PROJECT / "plugins" / "modules").glob("*.py")), ids=lambda path: path.stem)
def test_each_module_looks_at_the_python_first(module: Path) -> None:
    """Anything else of the collection fails to import on an older one."""
    imports = [node for node in ast.parse(module.read_text()).body if isinstance(node, ast.ImportFrom)]
    ours = [node for node in imports if (node.module or "").startswith("ansible_collections.gpufleet")]
    # sglang_inputs runs on the controller alone: nothing of it is sent to a host.
    assert [alias.name for node in ours[:1] for alias in node.names] == (
        [] if module.stem == "sglang_inputs" else ["_python"]
    )
