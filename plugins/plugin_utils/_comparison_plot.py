# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A comparison of instances as a table of text and as a plot in SVG. Private to the collection."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape

COLORS = ("#7a869a", "#1f6feb")
_LEFT, _RIGHT, _TOP = 64, 24, 84
_HEIGHT = 280  # of the plotting area
_BAR, _GAP, _BETWEEN_HOSTS = 64, 20, 56
_FOOT = 124
_TEXT = 'font-family="DejaVu Sans, Verdana, Helvetica, Arial, sans-serif"'
_HEADER = ("host", "instance", "release", "tokens/s", "low", "high", "accept length", "ratio")

Comparison = Mapping[str, Any]


def table(compared: Mapping[str, Comparison]) -> str:
    """Return the comparisons of hosts as a table, a line for each instance."""
    rows = [_HEADER]
    for host, result in compared.items():
        for number, instance in enumerate(result["instances"]):
            rate, length = instance["tokens_per_second"], instance["accept_length"]
            ratio = result["ratio"]
            rows.append(
                (
                    host,
                    instance["name"],
                    instance["release"],
                    f"{rate['median']:.1f}",
                    f"{rate['low']:.1f}",
                    f"{rate['high']:.1f}",
                    f"{length:.2f}" if length else "-",
                    f"{ratio['median']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})" if number else "1",
                )
            )
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADER))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
    return "\n".join(lines)


def plot(compared: Mapping[str, Comparison]) -> str:
    """Return the comparisons as an SVG: a bar for each median, a whisker from the lowest to the highest turn."""
    top = max(
        (float(one["tokens_per_second"]["high"]) for result in compared.values() for one in result["instances"]),
        default=0.0,
    )
    step = _step(top)
    ceiling = step * max(1, math.ceil(top / step))
    per_host = 2 * _BAR + _GAP
    width = max(640, _LEFT + _RIGHT + len(compared) * per_host + (len(compared) + 1) * _BETWEEN_HOSTS)
    height = _TOP + _HEIGHT + _FOOT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        _label(_LEFT, 30, "Tokens per second", 18, weight="bold", anchor="start"),
        _label(_LEFT, 52, _subtitle(compared), 12, color="#57606a", anchor="start"),
    ]
    for number in range(round(ceiling / step) + 1):
        value = number * step
        y = _y(value, ceiling)
        color = "#d0d7de" if number else "#57606a"
        parts.append(f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{width - _RIGHT}" y2="{y:.1f}" stroke="{color}"/>')
        parts.append(_label(_LEFT - 8, y + 4, f"{value:g}", 12, color="#57606a", anchor="end"))
    free = (width - _LEFT - _RIGHT - len(compared) * per_host) / (len(compared) + 1)
    for place, (host, result) in enumerate(compared.items()):
        x = _LEFT + free + place * (per_host + free)
        for number, instance in enumerate(result["instances"]):
            parts += _bar(x + number * (_BAR + _GAP), instance, COLORS[number % 2], ceiling)
        ratio = result["ratio"]
        middle = x + per_host / 2
        parts.append(_label(middle, _TOP + _HEIGHT + 62, f"{ratio['median']:.2f} times as fast", 14, weight="bold"))
        spread = f"{ratio['low']:.2f} to {ratio['high']:.2f} in {result['rounds']} rounds"
        parts.append(_label(middle, _TOP + _HEIGHT + 82, spread, 12, color="#57606a"))
        parts.append(_label(middle, _TOP + _HEIGHT + 104, host, 13, limit=24))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _bar(x: float, instance: Mapping[str, Any], color: str, ceiling: float) -> list[str]:
    rate = instance["tokens_per_second"]
    top, low, high = (_y(float(rate[key]), ceiling) for key in ("median", "low", "high"))
    middle = x + _BAR / 2
    length = instance["accept_length"]
    return [
        f'<rect x="{x:.1f}" y="{top:.1f}" width="{_BAR}" height="{_TOP + _HEIGHT - top:.1f}" fill="{color}"/>',
        f'<path d="M{middle:.1f} {high:.1f}V{low:.1f}M{middle - 8:.1f} {high:.1f}h16M{middle - 8:.1f} {low:.1f}h16" '
        'stroke="#24292f" stroke-width="1.5" fill="none"/>',
        _label(middle, high - 8, f"{float(rate['median']):.0f}", 13, weight="bold"),
        _label(middle, _TOP + _HEIGHT + 18, str(instance["name"]), 13, limit=12),
        _label(
            middle, _TOP + _HEIGHT + 36, f"accepts {length:.2f}" if length else "no drafts", 11, color="#57606a"
        ),
    ]  # fmt: skip


def _subtitle(compared: Mapping[str, Comparison]) -> str:
    probe: Mapping[str, Any] = next((result["probe"] for result in compared.values()), {})
    return (
        f"{probe.get('requests')} requests of {probe.get('tokens')} tokens, {probe.get('concurrency')} at once; "
        "bars are medians, whiskers lowest and highest"
    )


def _y(value: float, ceiling: float) -> float:
    return _TOP + _HEIGHT * (1 - value / ceiling)


def _step(top: float) -> float:
    """Return a distance of grid lines that is 1, 2 or 5 times a power of ten and gives four to ten of them."""
    if top <= 0:
        return 1.0
    power = 10 ** math.floor(math.log10(top / 4))
    return float(max(factor * power for factor in (1, 2, 5) if factor * power <= top / 4))


def _label(
    x: float,
    y: float,
    text: str,
    size: int,
    *,
    color: str = "#24292f",
    weight: str = "normal",
    anchor: str = "middle",
    limit: int = 100,
) -> str:
    shown = escape(text if len(text) <= limit else text[: limit - 3] + "...")
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" {_TEXT} font-size="{size}" font-weight="{weight}" fill="{color}" '
        f'text-anchor="{anchor}">{shown}</text>'
    )


def checked(compared: Any) -> dict[str, Comparison]:
    """Return comparisons by host; ValueError for what is none."""
    if not isinstance(compared, Mapping) or not compared:
        raise ValueError("it takes a mapping of hosts to results of sglang_benchmark, at least one")
    for host, result in compared.items():
        if (
            not isinstance(result, Mapping)
            or not isinstance(result.get("instances"), Sequence)
            or "ratio" not in result
        ):
            raise ValueError(f"{host}: not a result of sglang_benchmark")
    return {str(host): result for host, result in compared.items()}
