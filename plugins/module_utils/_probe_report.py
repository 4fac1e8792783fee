# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a report of the probe looks like. Private to the collection.

The probed code runs in the probe's own process: what wants to can find the secret there and report what it likes. A
report may lie; it must not be one that nobody can read.
"""

from __future__ import annotations

_MAYBE_TEXT = (str, type(None))
# No system call takes a path with a NUL.
_PATH = "a path"
_MAYBE_PATH = "a path, or null"
_NUMBER = (int, float)
_ERROR = {"type": str, "message": str, "chain": [str], "path": _MAYBE_PATH}
_ATTEMPT = {"kind": str, "name": str}
_DEVICE = {"name": str, "capability": str, "memory": int, "product": str}
_TORCH = {
    "version": str,
    "cuda": _MAYBE_TEXT,
    "error": _MAYBE_TEXT,
    "is_available": bool,
    "device_count": int,
    "devices": [_DEVICE],
}
_SHAPES: dict[str, object] = {
    "begin": _ATTEMPT,
    "interpreter": {"version": str, "prefix": str, "base_prefix": str, "marked": bool},
    "maps": {"paths": [_PATH]},
    "setup": {"step": str, "subject": str, "reason": _MAYBE_TEXT},
    "end": {},
}
_DONE = {**_ATTEMPT, "ok": bool, "seconds": _NUMBER}
_LOADED = {**_DONE, "path": _MAYBE_PATH}
_FAILED = {**_DONE, "error": _ERROR, "blocked": [_PATH], "noexec": [_PATH]}


def is_report(event: object) -> bool:
    """Whether the event is one that the probe sends, complete and of the right types."""
    kind = event.get("event") if isinstance(event, dict) else None
    if not isinstance(event, dict) or not isinstance(kind, str):
        return False
    if kind != "done":
        return kind in _SHAPES and _fits(event, _SHAPES[kind])
    if event.get("ok") is not True:
        return _fits(event, _FAILED)
    if event.get("kind") == "torch":
        # No version: there is no torch after an import of that name.
        return _fits(event, {**_DONE, **_TORCH} if "version" in event else _DONE)
    return _fits(event, {**_LOADED, "version": _MAYBE_TEXT} if event.get("kind") == "import" else _LOADED)


def _fits(value: object, shape: object) -> bool:
    if shape in (_PATH, _MAYBE_PATH):
        return isinstance(value, str) and "\0" not in value or value is None and shape == _MAYBE_PATH
    if isinstance(shape, dict):
        return isinstance(value, dict) and all(key in value and _fits(value[key], shape[key]) for key in shape)
    if isinstance(shape, list):
        return isinstance(value, list) and all(_fits(each, shape[0]) for each in value)
    return isinstance(value, shape)  # type: ignore[arg-type]
