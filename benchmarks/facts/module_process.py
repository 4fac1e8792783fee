# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The whole process of the module: as its file, and packed as Ansible sends it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measure import CACHE, CHECKOUT, Taken, best, can_drop_caches, run
from benchmarks.rows import Row, Session, shown

_MODULE = "ansible_collections.gpufleet.dflash.plugins.modules.cuda_wheel_facts"
_SECONDS, _COLD_SECONDS, _MEMORY = 0.6, 1.5, 40e6


def measure(session: Session) -> Iterator[Row]:
    """Time, memory and bytes read of one module call, warm and cold."""
    CACHE.mkdir(parents=True, exist_ok=True)
    imports = [] if session.quick else ["torch", "sgl_kernel"]
    arguments: dict[str, object] = {"venv": str(session.venv), "imports": imports}
    file = CACHE / "arguments.json"
    file.write_text(json.dumps({"ANSIBLE_MODULE_ARGS": {**arguments, "_ansible_remote_tmp": str(CACHE)}}))
    command = [sys.executable, "-m", _MODULE, str(file)]
    warm = best(command, session.repeats)
    yield Row("facts: whole module process, warm", warm.wall, _SECONDS, "s", f"CPU {warm.cpu:.3f} s")
    yield Row("facts: peak memory", float(warm.rss), _MEMORY, "B")
    table = [["process", "wall", "CPU", "peak memory", "read from disk", "read"], _cells("module, warm", warm)]
    if can_drop_caches():
        cold = best(command, 3, cold=True)
        yield Row("facts: whole module process, cold", cold.wall, _COLD_SECONDS, "s", f"CPU {cold.cpu:.3f} s")
        table.append(_cells("module, cold", cold))
    else:
        session.note("Cold rows need root, to empty the page cache: they are left out.")
    packed = best(_packed("gpufleet.dflash.cuda_wheel_facts", arguments), session.repeats)
    empty = best(_packed("ansible.builtin.ping", {}), session.repeats)
    yield Row(
        "facts: as Ansible sends it, beyond ansible.builtin.ping",
        packed.wall - empty.wall,
        _SECONDS,
        "s",
        "Ansible packs source text, which the host compiles at each call",
    )
    table += [_cells("module as Ansible sends it, warm", packed), _cells("ansible.builtin.ping likewise", empty)]
    session.tables["One call of cuda_wheel_facts"] = table


def _cells(name: str, taken: Taken) -> list[str]:
    amounts = [shown(float(amount), "B") for amount in (taken.rss, taken.read_from_disk, taken.read)]
    return [name, shown(taken.wall, "s"), shown(taken.cpu, "s"), *amounts]


def _packed(name: str, arguments: dict[str, object]) -> list[str]:
    """The command that runs what Ansible would copy to a host for this call."""
    file = CACHE / f"{name}.packed.py"
    run([sys.executable, str(CHECKOUT / "benchmarks" / "workers" / "pack.py"), name, json.dumps(arguments)], file)
    return [str(Path(sys.executable)), str(file)]
