# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Load modules and libraries in the interpreter that runs this, and report every step at once.

Private to the collection. Its text is handed to the interpreter of the venv under test, so it uses nothing
but the standard library and imports nothing of the collection. One JSON object a line goes to a descriptor of
its own: what is being loaded is written first, so that a dead interpreter leaves the name of its killer. Each
line begins with a secret of this run, without which nobody believes it.
"""

from __future__ import annotations

import ctypes
import errno
import importlib
import json
import os
import re
import stat
import sys
import time

# typing is not imported in the process under test: a service's imports may not find it imported already.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

# The environment of a traceback can be huge; what an operator reads is its end.
LONGEST_TEXT = 4000
LONGEST_VERSION = 200


def first_blocked(path: str) -> str | None:
    """Return the first directory on the way to a path that this process may not enter.

    The path itself when it may not be read, None when nothing is in the way. Symbolic links are followed
    one by one, as the kernel does.
    """
    pending = [part for part in path.split("/") if part][::-1]
    here = "/"
    links = 0
    while pending:
        part = pending.pop()
        if part == "..":
            here = os.path.dirname(here)
            continue
        step = os.path.join(here, part)
        try:
            status = os.lstat(step)
        except PermissionError:
            return here
        except (OSError, ValueError):
            return None
        if stat.S_ISLNK(status.st_mode):
            links += 1
            if links > 40:
                return None
            target = os.readlink(step)
            pending += [part for part in target.split("/") if part not in ("", ".")][::-1]
            here = "/" if target.startswith("/") else here
        else:
            here = step
    return None if os.access(here, os.R_OK | (os.X_OK if os.path.isdir(here) else 0)) else here


def is_on_noexec(path: str) -> bool:
    """Tell whether the file system that holds a path forbids execution, as this process sees it."""
    try:
        return bool(os.statvfs(path).f_flag & os.ST_NOEXEC)
    except OSError:
        return False


class Reporter:
    """Writes events to a descriptor; a forked child must not speak for its parent, and ends instead."""

    def __init__(self, descriptor: int, secret: str) -> None:
        self._descriptor = descriptor
        self._secret = secret.encode("ascii")
        self._process = os.getpid()
        os.set_inheritable(descriptor, False)

    def await_answer(self) -> None:
        """Wait until the supervisor has seen what there is to see of the living process."""
        try:
            os.read(self._descriptor, 1)
        except OSError:
            return

    def send(self, event: str, **fields: object) -> None:
        if os.getpid() != self._process:
            os._exit(0)
        # The newline in front ends whatever the loaded code may have written to this descriptor.
        line = b"\n" + self._secret + json.dumps(dict(fields, event=event)).encode("ascii") + b"\n"
        while line:
            line = line[os.write(self._descriptor, line) :]


def words_of(error: BaseException) -> str:
    """Return an error's text; the __str__ of a foreign class may fail itself."""
    try:
        return str(error)
    except BaseException as failure:
        return f"(its text cannot be had: {type(failure).__name__})"


def describe(error: BaseException) -> dict[str, object]:
    """Return an error's type, words, chain (outermost first) and the file that was being loaded."""
    import traceback

    chain: list[str] = []
    path = None
    current: BaseException | None = error
    while current is not None and len(chain) < 20:
        chain.append(f"{type(current).__name__}: {words_of(current)}"[:LONGEST_TEXT])
        path = getattr(current, "path", None) or path
        current = current.__cause__ or current.__context__
    where = [f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in traceback.extract_tb(error.__traceback__)]
    # The first frames are this file and importlib: of no use to a reader.
    where = [line for line in where if not line.startswith(("<string>", "<frozen", importlib.__file__))]
    return {
        "type": type(error).__name__,
        "message": words_of(error)[:LONGEST_TEXT],
        "chain": chain,
        "path": path if isinstance(path, str) else None,
        "at": where[-3:],
    }


def unexecutable(message: str) -> list[str]:
    """Return the existing paths of a message that lie where nothing may be executed."""
    paths = sorted(set(re.findall(r"/[^\s:'\"]+", message)))
    return [path for path in paths if os.path.exists(path) and is_on_noexec(path)]


def blocked_places(message: str) -> list[str]:
    """Return what this user may not enter or read among the places that modules and libraries come from."""
    places = [entry for entry in sys.path if entry]
    places += re.split("[:;]", os.environ.get("LD_LIBRARY_PATH", ""))
    places += re.findall(r"/[^\s:'\"]+", message)
    found = (first_blocked(os.path.abspath(place)) for place in places if place)
    return sorted({place for place in found if place is not None})


def version_of(name: str, module: object) -> str | None:
    """Return a module's version: its own word, or that of the distribution of the same name."""
    version = getattr(module, "__version__", None)
    if isinstance(version, str):
        return str(version)[:LONGEST_VERSION]
    try:
        from importlib import metadata

        return metadata.version(name.partition(".")[0])
    except Exception:
        return None


def load_module(name: str) -> dict[str, object]:
    module = importlib.import_module(name)
    origin = getattr(module, "__file__", None)
    if origin is None and hasattr(module, "__path__"):
        # A package directory that Python may not enter looks like a namespace package to it: all is well.
        for directory in module.__path__:
            if not os.access(directory, os.R_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), directory)
    return {"version": version_of(name, module), "path": origin if isinstance(origin, str) else None}


def load_library(name: str) -> dict[str, object]:
    library = ctypes.CDLL(name)
    return {"path": library_path(library._handle)}


class _LinkMap(ctypes.Structure):
    _fields_ = [("l_addr", ctypes.c_void_p), ("l_name", ctypes.c_char_p)]


def library_path(handle: int) -> str | None:
    """Return the path under which the loader found a library: dlinfo(3) with RTLD_DI_LINKMAP."""
    try:
        dlinfo = ctypes.CDLL(None).dlinfo
    except AttributeError:
        return None
    dlinfo.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
    link_map = ctypes.POINTER(_LinkMap)()
    if dlinfo(handle, 2, ctypes.byref(link_map)) != 0 or not link_map:
        return None
    name = link_map.contents.l_name
    return os.fsdecode(name) if name else None


def mapped_files() -> list[str]:
    """Return the shared objects that are mapped into this process, in the kernel's spelling."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape", newline="\n") as maps:
        fields = (line.rstrip("\n").split(None, 5) for line in maps)
        paths = {entry[5] for entry in fields if len(entry) == 6 and ".so" in entry[5]}
    # The kernel escapes line ends here, and nothing else.
    unescaped = (path.replace("\\012", "\n") for path in paths)
    return sorted(path.encode("utf-8", "surrogateescape").decode("utf-8", "replace") for path in unescaped)


def examine_torch(torch: Any) -> dict[str, object]:
    """Return what torch says about itself and its GPUs, each of which has to multiply two small matrices."""
    import warnings

    version, cuda = str(torch.__version__)[:LONGEST_VERSION], torch.version.cuda
    found: dict[str, object] = {"version": version, "cuda": str(cuda) if cuda else None, "error": None}
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        found["is_available"] = available = bool(torch.cuda.is_available())
        found["device_count"] = count = int(torch.cuda.device_count()) if available else 0
        devices = [_examine_device(torch, number) for number in range(count)]
        if not available and torch.version.cuda:
            # is_available() says no more than False; what stands in the way, the initialisation says.
            try:
                torch.cuda.init()
            except Exception as error:
                found["error"] = f"{type(error).__name__}: {words_of(error)}"[:LONGEST_TEXT]
    if not available and warned:
        texts = dict.fromkeys(words_of(entry.message) for entry in warned)  # type: ignore[arg-type]
        found["error"] = "\n".join([*filter(None, [found["error"]]), *texts])[:LONGEST_TEXT]  # type: ignore[list-item]
    found["devices"] = devices
    return found


def _examine_device(torch: Any, number: int) -> dict[str, object]:
    properties = torch.cuda.get_device_properties(number)
    device: dict[str, object] = {
        "name": str(properties.name),
        "capability": f"{properties.major}.{properties.minor}",
        "memory": int(properties.total_memory),
        "product": "ok",
    }
    try:
        ones = torch.ones((64, 64), device=f"cuda:{number}")
        total = float((ones @ ones).sum().item())
    except Exception as error:
        device["product"] = f"{type(error).__name__}: {words_of(error)}"[:LONGEST_TEXT]
    else:
        if total != 64.0**3:
            device["product"] = f"wrong: the sum is {total:g}, not {64**3}"
    return device


def take_channel() -> int:
    """Return the supervisor's socket, moved away from standard input, which becomes empty."""
    channel = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return channel


def load_all(request: dict[str, Any], reporter: Reporter) -> None:
    """Do the imports, the look at torch and the loads that are asked for, in this order."""
    work: list[tuple[str, str, Callable[[str], dict[str, object]]]] = []
    work += [("import", name, load_module) for name in request["imports"]]
    if "torch" in request["imports"]:
        work += [("torch", "torch", lambda name: examine_torch(sys.modules[name]) if name in sys.modules else {})]
    work += [("dlopen", name, load_library) for name in request["dlopen"]]
    for kind, name, load in work:
        reporter.send("begin", kind=kind, name=name)
        start = time.monotonic()
        try:
            outcome = dict(load(name), ok=True)
        except BaseException as error:  # SystemExit is an answer too
            described = describe(error)
            words = " ".join(described["chain"])  # type: ignore[arg-type]
            outcome = {
                "ok": False,
                "error": described,
                "blocked": blocked_places(words),
                "noexec": unexecutable(words),
            }
        reporter.send("done", kind=kind, name=name, seconds=round(time.monotonic() - start, 3), **outcome)


def main(request: dict[str, Any]) -> None:
    """Load what the request asks for; ``request`` is what came with this text."""
    import faulthandler

    reporter = Reporter(take_channel(), request.pop("secret"))
    # Prints the Python frames of a crash, and of a hang that the supervisor ends with SIGABRT.
    faulthandler.enable()
    sys.argv = [""]
    # -c puts the current directory first; a service does that only when it starts with -m or -c.
    if request["current_directory_on_path"]:
        sys.path.insert(0, "")
    # Says that the unit's settings were applied; the service would not have it.
    marked = os.environ.pop(request["mark"], None) is not None
    reporter.send(
        "interpreter",
        version=".".join(str(part) for part in sys.version_info[:3]),
        prefix=sys.prefix,
        base_prefix=sys.base_prefix,
        executable=sys.executable,
        path=sys.path,
        marked=marked,
    )
    load_all(request, reporter)
    reporter.send("maps", paths=mapped_files())
    reporter.send("end")
    reporter.await_answer()
    # The service would go on: what destructors and exit handlers do at the end is not its concern.
    os._exit(0)


if __name__ == "__main__":
    main(globals()["ORDER"])  # the bootstrap leaves it here
