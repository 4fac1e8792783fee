# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Predicting what imports load, against tools that resolve libraries, and all of them against the real process."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import CACHE, CHECKOUT, CommandError, Taken, best, environment, run
from benchmarks.rows import Row, Session, shown
from benchmarks.venvs import site_packages, tools

_SECONDS = 0.3
_WORKERS = CHECKOUT / "benchmarks" / "workers"
_MODULES = "torch,sgl_kernel"
# What can be compared on every host: sgl_kernel does not load without a driver.
_COMPARED = "torch"
# Second-level dependencies, which the loader searches in LD_LIBRARY_PATH first.
_SHADOWED = ("nvidia/cu13/lib/libnvJitLink.so.13", "nvidia/cudnn/lib/libcudnn_graph.so.9")
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class _Peer:
    """A tool that resolves what a library needs; ``parse`` takes the files out of what it prints."""

    name: str
    program: str
    command: list[str]
    parse: Callable[[str], set[str]]


def measure(session: Session) -> Iterator[Row]:
    """Time of the prediction, and who names the files that a real process maps."""
    if session.quick:
        return
    site = site_packages(session.venv)
    predict = [sys.executable, str(_WORKERS / "predict.py"), str(session.venv), _MODULES, ""]
    taken = best(predict, session.repeats)
    complete = _compared(_predicted(predict, site), _mapped(session.venv, site, _MODULES, ""))
    note = f"CPU {taken.cpu:.3f} s; equals the process: {complete}"
    yield Row("prediction: import torch; import sgl_kernel", taken.wall, _SECONDS, "s", note)
    predict[-2] = _COMPARED
    taken = best(predict, session.repeats)
    roots = sorted((site / "torch").glob("_C.*.so"))
    heading = ["tool", "CPU", "peak memory", "equals the process", "as well with another LD_LIBRARY_PATH"]
    table = [heading]
    shadow = _shadow(site)
    mapped = [_mapped(session.venv, site, _COMPARED, path) for path in ("", shadow)]
    predicted = [_predicted([*predict[:-1], path], site) for path in ("", shadow)]
    verdicts = [_compared(answer, real) for answer, real in zip(predicted, mapped)]
    table.append(["cuda_wheel_facts", shown(taken.cpu, "s"), shown(float(taken.rss), "B"), *verdicts])
    for peer in _peers(roots):
        table.append(_peer_cells(peer, site, mapped, shadow, session.repeats))
    session.tables[f"What import torch maps ({len(mapped[0])} files of CUDA and PyTorch)"] = table


def _peer_cells(peer: _Peer, site: Path, mapped: list[set[str]], shadow: str, repeats: int) -> list[str]:
    if shutil.which(peer.program) is None:
        return [peer.name, "not installed", "", "", ""]
    output = CACHE / "peer.txt"
    verdicts = []
    try:
        taken: Taken = best(peer.command, min(repeats, 3), output)
        for library_path, real in zip(("", shadow), mapped):
            run(["env", f"LD_LIBRARY_PATH={library_path}", *peer.command], output)
            found = peer.parse(_ESCAPES.sub("", output.read_text(errors="replace")))
            verdicts.append(_compared(_within(found, site), real))
    except CommandError as error:
        return [peer.name, f"fails: {str(error).splitlines()[-1][:80]}", "", "", ""]
    return [peer.name, shown(taken.cpu, "s"), shown(float(taken.rss), "B"), *verdicts]


def _peers(roots: list[Path]) -> list[_Peer]:
    paths = [str(root) for root in roots]
    # Each tool's exit status tells of libraries that are not found, as the driver's on a host without one.
    tolerant = ["sh", "-c", '"$@" || :', "sh"]
    lddtree = [str(tools() / "bin" / "python"), str(_WORKERS / "resolve_lddtree.py"), *paths]
    roots_too = {str(root) for root in roots}

    def arrows(text: str) -> set[str]:
        return roots_too | set(re.findall(r"=> (/\S+)", text))

    def absolute(text: str) -> set[str]:
        return roots_too | set(re.findall(r"(/\S+\.so\S*)", text))

    return [
        _Peer("ldd -r", "ldd", [*tolerant, "ldd", "-r", *paths], arrows),
        _Peer("libtree", "libtree", [*tolerant, "libtree", "-p", "-vvv", *paths], absolute),
        _Peer("auditwheel lddtree", lddtree[0], lddtree, absolute),
    ]


def _shadow(site: Path) -> str:
    """A directory with copies of libraries: links would be the same files to the loader."""
    folder = CACHE / "shadow"
    folder.mkdir(parents=True, exist_ok=True)
    for name in _SHADOWED:
        source, target = site / name, folder / Path(name).name
        if source.exists() and not (target.exists() and target.stat().st_size == source.stat().st_size):
            shutil.copyfile(source, target)
    return str(folder)


def _predicted(command: list[str], site: Path) -> set[str]:
    done = subprocess.run(command, env=environment(), stdout=subprocess.PIPE, text=True, check=True)
    return _within(set(json.loads(done.stdout)["loaded"]), site)


def _mapped(venv: Path, site: Path, modules: str, library_path: str) -> set[str]:
    command = [str(venv / "bin" / "python"), "-B", str(_WORKERS / "import_really.py"), modules]
    variables = {name: value for name, value in environment().items() if not name.startswith("PYTHON")}
    if library_path:
        variables["LD_LIBRARY_PATH"] = library_path
    done = subprocess.run(
        command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True
    )
    return _within(set(done.stdout.split("\n")), site)


def _within(paths: set[str], site: Path) -> set[str]:
    """Those of CUDA and PyTorch, wherever they are: interpreters and what else they import differ between hosts."""
    places = tuple(f"{site.resolve()}/{name}/" for name in ("torch", "nvidia", "sgl_kernel"))
    real = {str(Path(path).resolve()) for path in paths if path}
    cuda = re.compile(r"/(libcu|libnv|libnccl|libtorch|libc10)[^/]*$")
    return {path for path in real if path.startswith(places) or cuda.search(path)}


def _compared(answer: set[str], real: set[str]) -> str:
    missed, extra = len(real - answer), len(answer - real)
    return "yes" if not missed and not extra else f"no: {missed} missed, {extra} that are not mapped"
