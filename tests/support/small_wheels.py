# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Real wheels of a few megabytes that show how real environments fail, in real venvs made by the real uv.

They are fetched once, by name, version and hash, into the checkout's .cache/wheels.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
WHEELS = CHECKOUT / ".cache" / "wheels"

# Requirement: sha256 of the wheel for x86-64 Linux. The last is the engine of the demonstration (34 MB).
PINS = {
    "cuda-toolkit==13.0.2": "b198824cf2f54003f50d64ada3a0f184b42ca0846c1c94192fa269ecd97a66eb",
    "nvidia-cuda-runtime==13.0.96": "7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548",
    "nvidia-cuda-runtime-cu12==12.8.90": "adade8dcbd0edf427b7204d480d6066d33902cab2a4707dcfc48a2d0fd44ab90",
    "nvidia-cufile==1.15.1.6": "08a3ecefae5a01c7f5117351c64f17c7c62efa5fffdbe24fc7d298da19cd0b44",
    "nvidia-cufile-cu12==1.13.1.3": "1d069003be650e131b21c932ec3d8969c1715379251f8d23a1860554b1cb24fc",
    "nvidia-nvtx==13.0.85": "4936d1d6780fbe68db454f5e72a42ff64d1fd6397df9f363ae786930fd5c1cd4",
    "nvidia-nvtx-cu11==11.8.86": "979f5b2aef5da164c5c53c64c85c3dfa61b8b4704f4f963bb568bf98fa8472e8",
    "nvidia-nvtx-cu12==12.8.90": "5b17e2001cc0d751a5bc2c6ec6d26ad95913324a4adb86788c944f8ce9ba441f",
    "torch-memory-saver==0.0.10": "786e18755a9af255ae692b0e19a62ff06861dbf55a19fa8545e62a100ab5a28f",
    "xllamacpp==2026.10.11549": "c54e7d13520ecc989c63dc99d55de3065e2f343a91f43f053d16b5e62077c261",
}
VERSIONS = dict(pin.split("==") for pin in PINS)


def uv() -> str:
    """Path of the uv that the checkout uses. Raises FileNotFoundError when there is none."""
    found = shutil.which("uv", path=str(CHECKOUT / ".venv" / "bin")) or shutil.which("uv")
    if found is None:
        raise FileNotFoundError("there is no uv in .venv/bin or on PATH: run tools/setup")
    return found


def fetch() -> Path:
    """The directory that holds all wheels of PINS, fetched when this checkout has not fetched these yet."""
    wanted = "".join(f"{pin} --hash=sha256:{digest}\n" for pin, digest in sorted(PINS.items()))
    stamp = WHEELS / "small.txt"
    if stamp.is_file() and stamp.read_text() == wanted:
        return WHEELS
    WHEELS.mkdir(parents=True, exist_ok=True)
    requirements = WHEELS / f"small.{os.getpid()}.txt"
    requirements.write_text(wanted)
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"),
        *(
            "--require-hashes",
            "--only-binary",
            ":all:",
            "--dest",
            str(WHEELS),
            "--requirement",
            str(requirements),
        ),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        requirements.unlink()
        raise RuntimeError(f"cannot fetch the small wheels: {WHEELS}: {done.stderr.strip()}")
    requirements.replace(stamp)
    return WHEELS


def environment() -> dict[str, str]:
    """The variables with which pip and uv, as a user types them, find the fetched wheels and nothing else."""
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(("UV_", "PIP_", "VIRTUAL_ENV"))},
        "PATH": f"{Path(uv()).parent}{os.pathsep}{os.environ['PATH']}",
        "UV_CACHE_DIR": str(CHECKOUT / ".cache" / "uv-tests"),
        "UV_FIND_LINKS": str(fetch()),
        "UV_NO_INDEX": "1",
        "UV_OFFLINE": "1",
        "UV_LINK_MODE": "copy",
        "PIP_FIND_LINKS": str(fetch()),
        "PIP_NO_INDEX": "1",
    }


def run(command: str | list[str]) -> str:
    """The output of a command line or list of words in that environment; AssertionError when it fails."""
    done = subprocess.run(
        command,
        shell=isinstance(command, str),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}"
    return done.stdout


def make_venv(path: Path, *distributions: str) -> Path:
    """A new venv with these distributions installed one after the other, as a host's history would."""
    run([uv(), "venv", "--quiet", "--python", sys.executable, str(path)])
    for name in distributions:
        install(path, name)
    return path


def install(venv: Path, name: str) -> None:
    """Install one distribution as ``uv pip install name==version`` does, without what it requires."""
    pin = f"{name}=={VERSIONS[name]}"
    run([uv(), "pip", "install", "--quiet", "--no-deps", "--python", f"{venv}/bin/python", pin])


def uninstall(venv: Path, name: str) -> None:
    """Uninstall one distribution as ``uv pip uninstall name`` does."""
    run([uv(), "pip", "uninstall", "--quiet", "--python", f"{venv}/bin/python", name])


def site_packages(venv: Path) -> Path:
    """The venv's site-packages."""
    (found,) = venv.glob("lib/python3.*/site-packages")
    return found
