# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A second generation from a warm cache against bare uv: time, and what it takes of the disk.

    python benchmarks/second_generation.py roles/cuda_runtime/files/locks/<lock>.txt

Prints ``name measured limit ok|over`` and ends with status 1 when a limit is exceeded. Without --cache the first run
fetches everything that the lock names. SSL_CERT_FILE names certificate authorities, where a proxy has its own.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(CHECKOUT / ".collections"))

from ansible_collections.gpufleet.dflash.plugins.module_utils import _build
from ansible_collections.gpufleet.dflash.plugins.module_utils._uv import installer_environment

TIME_LIMIT = 1.2  # of bare uv
DISK_LIMIT = 0.02  # of the first generation


def main() -> int:
    """Return 1 when a limit is exceeded."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("lock", type=Path)
    parser.add_argument("--python", default=sys.executable, help="the interpreter of the generations")
    parser.add_argument("--cache", type=Path, help="a cache of uv to use, on the file system of --folder")
    parser.add_argument("--folder", type=Path, default=CHECKOUT / ".cache", help="where to work")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="the best of so many (default 3)")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="second-", dir=options.folder))
    try:
        return _measure(options, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _measure(options: argparse.Namespace, folder: Path) -> int:
    root = folder / "root"
    (root / "cache").mkdir(parents=True)
    if options.cache:
        (root / "cache" / "uv").symlink_to(options.cache.resolve())
    uv = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
    given: dict[str, Any] = {
        **dict.fromkeys(("base", "index_url", "wheelhouse")),
        "ca_file": os.environ.get("SSL_CERT_FILE"),
        "root": str(root),
        "lock": options.lock.name,
        "lock_content": options.lock.read_text(),
        "uv": uv,
        "overlays": [],
        "python": options.python,
        "check_lock": False,
    }
    first = _generation(given, "first")
    size = sum(path.lstat().st_size for path in Path(first[1]).rglob("*") if not path.is_dir())
    ours, bare, taken = [], [], []
    for number in range(options.repeats):
        # One after the other, so that a machine that is busy for a while slows both.
        bare.append(_bare(uv, options, root, folder / f"bare{number}"))
        os.sync()
        free = shutil.disk_usage(root).free
        ours.append(_generation(given, f"second {number}")[0])
        os.sync()
        taken.append(max(0, free - shutil.disk_usage(root).free))
    rows = [
        ("second generation, time of bare uv", min(ours) / min(bare), TIME_LIMIT),
        ("second generation, disk of the first", min(taken) / size, DISK_LIMIT),
    ]
    print(f"bare uv {min(bare):.1f} s, second generation {min(ours):.1f} s; first generation {size / 1e9:.2f} GB")
    for name, measured, limit in rows:
        print(f"{name:<52} {measured:>8.3f} {limit:>8.3f} {'ok' if measured <= limit else 'over'}")
    return int(any(measured > limit for _name, measured, limit in rows))


def _generation(options: dict[str, Any], mark: str) -> tuple[float, str]:
    """Build one that differs by a small overlay; seconds and path."""
    wanted = {**options, "overlays": [{"dest": "mark.txt", "content": mark}]}
    started = time.monotonic()
    built = _build.run(_build.make_recipe(wanted), wanted, lambda line: None)
    return time.monotonic() - started, str(built["path"])


def _bare(uv: str, options: argparse.Namespace, root: Path, venv: Path) -> float:
    """What a person would type, with the same cache; seconds."""
    environment = installer_environment(str(root / "cache"), ca_file=os.environ.get("SSL_CERT_FILE"))
    install = ["pip", "install", "--no-deps", "--require-hashes", "--compile-bytecode", "-r", str(options.lock)]
    started = time.monotonic()
    for command in (["venv", "--python", options.python, str(venv)], [*install, "--python", f"{venv}/bin/python"]):
        subprocess.run([uv, "--no-config", "--quiet", *command], env=environment, check=True)
    seconds = time.monotonic() - started
    shutil.rmtree(venv)
    return seconds


if __name__ == "__main__":
    sys.exit(main())
