# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From what was measured to text, docs/performance.md and its plots."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.measure import CACHE, CHECKOUT
from benchmarks.rows import Row, shown
from benchmarks.venvs import tools

_PAGE = CHECKOUT / "docs" / "performance.md"
_PICTURES = CHECKOUT / "docs" / "images"
_BEGIN, _END = "<!-- measured: begin -->", "<!-- measured: end -->"


def as_text(tables: Mapping[str, list[list[str]]]) -> str:
    """The tables in columns, for a terminal."""
    lines = []
    for title, cells in tables.items():
        widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
        lines += [title, *("  " + "  ".join(c.ljust(w) for c, w in zip(row, widths)).rstrip() for row in cells), ""]
    return "\n".join(lines)


def write(data: Mapping[str, Any]) -> None:
    """Put the tables between the marks of docs/performance.md and draw the plots beside it."""
    before, _begin, rest = _PAGE.read_text(encoding="utf-8").partition(_BEGIN)
    _old, _end, after = rest.partition(_END)
    _PAGE.write_text(f"{before}{_BEGIN}\n{_as_markdown(data)}{_END}{after}", encoding="utf-8")
    _PICTURES.mkdir(parents=True, exist_ok=True)
    draw = [str(tools() / "bin" / "python"), str(Path(__file__).parent / "workers" / "draw.py")]
    subprocess.run([*draw, str(CACHE / "results.json"), str(_PICTURES)], check=True)


def machine() -> str:
    """The machine in words: nothing that would identify it."""
    processor = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    system = platform.freedesktop_os_release().get("PRETTY_NAME", "Linux")
    name = processor.group(1).strip() if processor else platform.machine()
    return (
        f"{os.cpu_count()} cores ({name}), {memory:.0f} GB of memory, {system}, "
        f"glibc {platform.libc_ver()[1]}, Python {platform.python_version()}"
    )


def _as_markdown(data: Mapping[str, Any]) -> str:
    rows = [["what", "measured", "limit", "", "how"]]
    for measured in data["rows"]:
        row = Row(*(measured[key] for key in ("name", "measured", "limit", "unit", "note")))
        rows.append([row.name, shown(row.measured, row.unit), shown(row.limit, row.unit), row.verdict, row.note])
    parts = [f"Measured on: {machine()}.\n", _table(rows)]
    parts += [f"{note}\n" for note in data["notes"]]
    parts += [f"### {title}\n\n{_table(cells)}" for title, cells in data["tables"].items()]
    return "\n".join(parts)


def _table(cells: list[list[str]]) -> str:
    heading, *rows = ["| " + " | ".join(row) + " |" for row in cells]
    return "\n".join([heading, "|" + "---|" * len(cells[0]), *rows]) + "\n"
