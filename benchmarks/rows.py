# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The rows that `make bench` prints, and what benchmarks share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Row:
    """One measured quantity with its limit, both in ``unit``. ``note`` says how it was come by."""

    name: str
    measured: float
    limit: float
    unit: str
    note: str = ""

    @property
    def verdict(self) -> str:
        """``ok`` or ``over``."""
        return "ok" if self.measured <= self.limit else "over"

    def as_text(self) -> str:
        """name measured limit verdict, in columns."""
        return (
            f"{self.name:<52} {shown(self.measured, self.unit):>12} {shown(self.limit, self.unit):>10} {self.verdict}"
        )


@dataclass
class Session:
    """What the benchmarks share: the venv they read, and what they leave for the report.

    ``tables``: title to rows of cells, the first of them the heading. ``series``: what is plotted.
    """

    venv: Path
    quick: bool
    repeats: int
    tables: dict[str, list[list[str]]] = field(default_factory=dict)
    series: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Keep what a reader of the rows must know, once."""
        if text not in self.notes:
            self.notes.append(text)


# Measures one thing: yields its rows, and leaves tables, series and notes in the session.
Benchmark = Callable[[Session], Iterator[Row]]


def shown(value: float, unit: str) -> str:
    """A quantity for people: three digits are more than a measurement is worth."""
    if unit == "B":
        return f"{value / 1e6:.1f} MB"
    if unit == "s":
        return f"{value:.3f} s" if value < 10 else f"{value:.1f} s"
    return f"{value:.2f} {unit}".rstrip()


def as_data(rows: list[Row], session: Session) -> dict[str, Any]:
    """Everything that was measured, for the report."""
    return {
        "rows": [{**asdict(row), "verdict": row.verdict} for row in rows],
        "tables": session.tables,
        "series": session.series,
        "notes": session.notes,
        "quick": session.quick,
    }
