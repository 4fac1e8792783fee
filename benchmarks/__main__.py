# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""python -m benchmarks: measure, print one row for each limit, and end with an error if one is over."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from benchmarks import check_overhead, report, second_generation, venvs
from benchmarks.facts import elf_reading, growth, module_process, prediction, symbols
from benchmarks.measure import CACHE
from benchmarks.rows import Benchmark, Row, Session, as_data

# All there are, in the order in which they run.
BENCHMARKS: dict[str, Benchmark] = {
    "facts": module_process.measure,
    "elf": elf_reading.measure,
    "prediction": prediction.measure,
    "symbols": symbols.measure,
    "growth": growth.measure,
    "check": check_overhead.measure,
    "generation": second_generation.measure,
}


def main() -> int:
    """Return 1 when a row is over its limit."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small wheels and /usr/lib instead of SGLang's 8 GB")
    parser.add_argument("--only", action="append", choices=sorted(BENCHMARKS), help="only these, may be repeated")
    parser.add_argument("--venv", type=Path, help="measure this venv, made from requirements/sglang.txt, as it is")
    parser.add_argument("--repeats", type=int, default=7, metavar="N", help="the best of so many runs (default 7)")
    parser.add_argument("--docs", action="store_true", help="write docs/performance.md and its plots as well")
    options = parser.parse_args()
    if options.docs and (options.quick or options.only):
        parser.error("--docs describes a complete run: leave out --quick and --only")
    venv = options.venv or (venvs.small() if options.quick else venvs.sglang())
    session = Session(venv.absolute(), options.quick, options.repeats)
    rows: list[Row] = []
    for name, measure in BENCHMARKS.items():
        if not options.only or name in options.only:
            print(f"measuring {name}", file=sys.stderr, flush=True)
            rows += measure(session)
    data = as_data(rows, session)
    CACHE.mkdir(parents=True, exist_ok=True)
    (CACHE / "results.json").write_text(json.dumps(data, indent=1) + "\n")
    if options.docs:
        report.write(data)
    for note in session.notes:
        print(note)
    print(report.as_text(session.tables))
    for row in rows:
        print(row.as_text())
    return int(any(row.verdict == "over" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
