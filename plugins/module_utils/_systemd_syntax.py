# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The text formats of systemd: unit files, quoted words, environment files, specifiers.

Private to the collection. The rules are those of systemd.syntax(7), systemd.exec(5) and systemd.unit(5);
where the pages are silent, what systemd 252 does. The tests hold every function against the real parser.
"""

from __future__ import annotations

import os
import platform
import pwd
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from ansible_collections.gpufleet.dflash.plugins.module_utils._paths import open_regular

WHITESPACE = " \t\n\r"

_SIMPLE_ESCAPES = {
    "a": "\a",
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
    "\\": "\\",
    '"': '"',
    "'": "'",
    "s": " ",
}
_NUMERIC_ESCAPES = {"x": (2, 16), "u": (4, 16), "U": (8, 16)}
# Bytes. No honest file of these kinds comes near it, and /proc/sys refuses reads of 4 MiB with ENOMEM.
_TEXT_LIMIT = 1024 * 1024
_ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


class UnitSyntaxError(ValueError):
    """A value that systemd would refuse to parse."""


def read_text(path: str) -> str:
    """Return a file as text; bytes that are not UTF-8 survive as surrogates. Raises OSError.

    /dev/null is how an administrator says "nothing"; any other special file is refused, as a FIFO would never end.
    """
    if os.path.realpath(path) == os.devnull:
        return ""
    with open_regular(path) as stream:
        return stream.read(_TEXT_LIMIT).decode("utf-8", errors="surrogateescape")


def assignments(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield (section, key, value) of a unit file in order; a backslash at the end of a line continues it."""
    section = ""
    pending = ""
    lines = text.lstrip("\ufeff").replace("\r\n", "\n").split("\n")
    for number, raw in enumerate(lines):
        last = number == len(lines) - 1
        # A comment between continued lines is skipped and the continuation goes on after it.
        if raw.lstrip(WHITESPACE)[:1] in ("#", ";") and raw.strip(WHITESPACE):
            if not last:
                continue
            raw = ""
        line = pending + raw
        pending = ""
        if _ends_in_escape(line):
            line = line[:-1] + " "
            if not last:
                pending = line
                continue
        line = line.strip(WHITESPACE)
        if line.startswith("["):
            section = line[1:-1] if line.endswith("]") else ""
        elif "=" in line:
            key, value = line.split("=", 1)
            yield section, key.strip(WHITESPACE), value.strip(WHITESPACE)


def _ends_in_escape(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def split_words(value: str) -> Iterator[str]:
    """Yield the words of a quoted list; raises UnitSyntaxError for an unknown escape or an open quote."""
    position = 0
    end = len(value)
    while True:
        while position < end and value[position] in WHITESPACE:
            position += 1
        if position == end:
            return
        word: list[str] = []
        quote = ""
        while position < end:
            char = value[position]
            if char == "\\":
                text, position = _unescape(value, position + 1)
                word.append(text)
                continue
            position += 1
            if quote:
                if char == quote:
                    quote = ""
                else:
                    word.append(char)
            elif char in "\"'":
                quote = char
            elif char in WHITESPACE:
                break
            else:
                word.append(char)
        if quote:
            raise UnitSyntaxError(f"unbalanced quote {quote} in {value!r}")
        yield _rejoin_bytes("".join(word))


def _unescape(value: str, position: int) -> tuple[str, int]:
    """Decode the escape after a backslash; return its text and the position behind it."""
    char = value[position : position + 1]
    if char in _SIMPLE_ESCAPES and char:
        return _SIMPLE_ESCAPES[char], position + 1
    if char in _NUMERIC_ESCAPES and char:
        width, base = _NUMERIC_ESCAPES[char]
        digits = value[position + 1 : position + 1 + width]
        after = position + 1 + width
    else:
        width, base = 3, 8
        digits = value[position : position + width]
        after = position + width
    try:
        if len(digits) < width or not digits.isalnum():
            raise ValueError
        code = int(digits, base)
        if code == 0 or (char not in ("u", "U") and code > 0xFF):
            raise ValueError
        if char in ("u", "U"):
            text = chr(code)
            text.encode("utf-8")
        else:
            text = bytes([code]).decode("utf-8", "surrogateescape")
    except (ValueError, OverflowError):
        raise UnitSyntaxError(f"unknown escape \\{value[position : position + 3]} in {value!r}") from None
    return text, after


def _rejoin_bytes(text: str) -> str:
    """Let bytes that were written as separate escapes form the UTF-8 characters that they encode."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")


def valid_assignment(name: str, value: str) -> bool:
    """Tell whether systemd accepts this environment assignment: a name, and text that is UTF-8."""
    if not valid_name(name):
        return False
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def valid_name(name: str) -> bool:
    """Tell whether this can be the name of an environment variable."""
    return _ENVIRONMENT_NAME.match(name) is not None


def environment_file(text: str) -> Iterator[tuple[str, str]]:
    """Yield (name, value) of an environment file; shell-like quoting, no expansion (systemd.exec(5))."""
    position = 0
    end = len(text)
    while position < end:
        char = text[position]
        if char in WHITESPACE:
            position += 1
        elif char in "#;":
            position = _skip_comment(text, position)
        else:
            stop = position
            while stop < end and text[stop] not in "=\n\r":
                stop += 1
            if stop == end or text[stop] != "=":
                position = stop + 1
                continue
            name = text[position:stop].rstrip(WHITESPACE)
            value, position = _file_value(text, stop + 1)
            yield name, value


def _skip_comment(text: str, position: int) -> int:
    while position < len(text) and text[position] not in "\n\r":
        # A backslash hides the line end: the comment goes on.
        position += 2 if text[position] == "\\" else 1
    return position


def _file_value(text: str, position: int) -> tuple[str, int]:
    """Read one value from behind its equals sign; return it and the position behind its line."""
    value: list[str] = []
    kept = 0  # length of the value that trailing whitespace must not be cut from
    quoted = ""
    started = False  # inside an unquoted run, where quotes are ordinary characters
    end = len(text)
    while position < end:
        char = text[position]
        position += 1
        if quoted:
            if char == quoted:
                quoted = ""
                started = False
                kept = len(value)
            elif char == "\\" and quoted == '"':
                escaped = text[position : position + 1]
                position += 1
                if escaped in '"\\`$':
                    value.append(escaped)  # nothing at the end of the file
                elif escaped != "\n":
                    value += ["\\", escaped]
            else:
                value.append(char)
        elif char in "\n\r":
            break
        elif char == "\\":
            started = True
            if position < end:
                if text[position] not in "\n\r":
                    value.append(text[position])
                position += 1
            kept = len(value)
        elif char in "\"'" and not started:
            quoted = char
        elif char in WHITESPACE and not started:
            continue
        else:
            started = True
            value.append(char)
            if char not in WHITESPACE:
                kept = len(value)
    if not quoted:
        del value[kept:]
    return "".join(value), position


def specifiers(unit: str, fragment: str) -> dict[str, str]:
    """Return what each ``%`` specifier of a system unit stands for, as far as the host's files tell."""
    stem = unit.rsplit(".", 1)[0]
    prefix, _at, instance = stem.partition("@")
    last = prefix.rsplit("-", 1)[-1]
    root = pwd.getpwuid(0)
    release = read_variables("/etc/os-release") or read_variables("/usr/lib/os-release")
    unescaped = unescape_name(instance or prefix)
    host = platform.node()
    return {
        "%": "%",
        "n": unit,
        "N": stem,
        "p": prefix,
        "P": unescape_name(prefix),
        "i": instance,
        "I": unescape_name(instance),
        "j": last,
        "J": unescape_name(last),
        "f": unescaped if unescaped.startswith("/") else "/" + unescaped,
        "y": os.path.realpath(fragment),
        "Y": str(Path(os.path.realpath(fragment)).parent),
        "u": root.pw_name,
        "U": "0",
        "g": "root",
        "G": "0",
        "h": root.pw_dir,
        "s": root.pw_shell or "/bin/sh",
        "t": "/run",
        "S": "/var/lib",
        "C": "/var/cache",
        "L": "/var/log",
        "E": "/etc",
        "T": "/tmp",
        "V": "/var/tmp",
        "d": f"/run/credentials/{unit}",
        "H": host,
        "l": host.split(".", 1)[0],
        "q": read_variables("/etc/machine-info").get("PRETTY_HOSTNAME") or host,
        "v": platform.release(),
        "m": _first_line("/etc/machine-id"),
        "b": _first_line("/proc/sys/kernel/random/boot_id").replace("-", ""),
        "a": {"x86_64": "x86-64", "aarch64": "arm64"}.get(platform.machine(), platform.machine()),
        "o": release.get("ID", ""),
        "w": release.get("VERSION_ID", ""),
        "W": release.get("VARIANT_ID", ""),
        "B": release.get("BUILD_ID", ""),
        "M": release.get("IMAGE_ID", ""),
        "A": release.get("IMAGE_VERSION", ""),
    }


def expand(value: str, known: Mapping[str, str]) -> str:
    """Replace the specifiers of a value; raises UnitSyntaxError for a letter that is none."""

    def replacement(match: re.Match[str]) -> str:
        letter = match.group(1)
        if letter not in known and letter.isascii() and letter.isalnum():
            raise UnitSyntaxError(f"unknown specifier %{letter} in {value!r}")
        return known.get(letter, match.group(0))

    return re.sub(r"%(.)", replacement, value, flags=re.DOTALL)


def unescape_name(text: str) -> str:
    """Undo the escaping of unit names: ``-`` is ``/`` and ``\\xNN`` is that byte (systemd-escape(1))."""
    plain = re.sub(r"\\x([0-9a-fA-F]{2})", lambda m: f"\0{m.group(1)}", text).replace("-", "/")
    return re.sub(r"\0(..)", lambda m: chr(int(m.group(1), 16)), plain)


def read_variables(path: str) -> dict[str, str]:
    """Return what an environment file sets; empty where it cannot be read."""
    try:
        return dict(environment_file(read_text(path)))
    except OSError:
        return {}


def _first_line(path: str) -> str:
    try:
        return read_text(path).split("\n", 1)[0]
    except OSError:
        return ""


def assigned(settings: Iterable[tuple[str, str]], key: str) -> list[str]:
    """Return what is assigned to a directive; an empty assignment forgets what came before it."""
    values: list[str] = []
    for name, value in settings:
        if name == key:
            values = [*values, value] if value else []
    return values


def split_all(values: Iterable[str], notes: list[str]) -> list[str]:
    """Return the words of several values; a note says where systemd stops reading one."""
    return [word for value in values for word in _words_noted(value, notes)]


def _words_noted(value: str, notes: list[str]) -> Iterator[str]:
    # What stands before a syntax error counts, as it does for systemd.
    try:
        yield from split_words(value)
    except UnitSyntaxError as error:
        notes.append(f"systemd ignores the rest of a line: {error}")
