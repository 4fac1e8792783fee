# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Draw the plots of docs/performance.md: RESULTS FOLDER. Runs in the tools' venv."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt

_OWN, _OTHER, _LIMIT, _INK = "#0072b2", "#8c959f", "#d55e00", "#24292f"
# The same picture from the same numbers, so that a new one is a change to look at.
mpl.rcParams.update(
    {
        "svg.hashsalt": "gpufleet.dflash",
        "font.family": "sans-serif",
        "font.size": 11,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": "#8c959f",
        "axes.labelcolor": _INK,
        "text.color": _INK,
        "xtick.color": _INK,
        "ytick.color": _INK,
        "axes.titlelocation": "left",
        "figure.constrained_layout.use": True,
    }
)


def draw_growth(series: dict[str, Any], folder: Path) -> None:
    """Two log-log panels with a line of slope one for the eye."""
    figure, panels = plt.subplots(1, 2, figsize=(9, 3.6))
    titles = (("files", "RECORD rows"), ("objects", "shared objects"))
    for axes, (key, title) in zip(panels, titles):
        counts, seconds = series[key]["counts"], series[key]["seconds"]
        linear = [seconds[-1] * count / counts[-1] for count in counts]
        axes.loglog(counts, linear, color=_OTHER, linewidth=1.2, linestyle="--", label="linear")
        axes.loglog(counts, seconds, color=_OWN, linewidth=2, marker="o", markersize=6, label="cuda_wheel_facts")
        axes.set_xticks(counts, [f"{count:,}" for count in counts])
        axes.minorticks_off()
        axes.set_title(title)
        axes.grid(color="#d0d7de", linewidth=0.6)
        axes.yaxis.set_major_formatter(lambda value, _position: f"{value:g}")
    panels[0].set_ylabel("CPU seconds beyond an empty venv")
    panels[0].legend(frameon=False, loc="upper left")
    save(figure, folder / "growth")


def draw_readers(series: dict[str, float], folder: Path) -> None:
    """CPU of the readers of the same objects, the longest at the bottom."""
    names, seconds = zip(*sorted(series.items(), key=lambda item: item[1]))
    figure, axes = plt.subplots(figsize=(9, 2.6))
    colours = [_OWN if name == "cuda_wheel_facts" else _OTHER for name in names]
    bars = axes.barh(names, seconds, color=colours, height=0.62)
    axes.bar_label(bars, [f"{taken:.3f} s" for taken in seconds], padding=5)
    axes.invert_yaxis()
    axes.set_xlim(0, max(seconds) * 1.12)
    axes.set_xlabel("CPU seconds, start of the program included")
    axes.tick_params(axis="y", length=0)
    save(figure, folder / "elf-reading")


def save(figure: Any, stem: Path) -> None:
    """As SVG for the page, and as PNG for a look when asked."""
    figure.savefig(f"{stem}.svg", metadata={"Date": None, "Creator": None})
    if "--png" in sys.argv:
        figure.savefig(f"{stem}.png", dpi=110)


series = json.loads(Path(sys.argv[1]).read_text())["series"]
target = Path(sys.argv[2])
draw_growth(series["growth"], target)
draw_readers(series["readers"], target)
