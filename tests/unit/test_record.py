# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reading a RECORD: what it says, told one row at a time by Python's csv, and the digest of its content."""

from __future__ import annotations

import csv
import hashlib
import io
import os
import random
from pathlib import Path

import pytest

from ansible_collections.gpufleet.dflash.plugins.module_utils._record import Record, Row, read_record

A, B = "A" * 43, "b-_" * 14 + "0"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return tmp_path / "venv" / "lib" / "python3.11" / "site-packages"


def write(site: Path, text: str) -> str:
    file = site / "foo-1.0.dist-info" / "RECORD"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text.encode())
    return str(file)


def read(site: Path, text: str) -> tuple[Record, str]:
    return read_record(write(site, text), str(site))


def one_by_one(site: Path, text: str) -> list[Row]:
    """The rows as csv has them, each path made absolute by itself."""
    rows = []
    for path, digest, size in csv.reader(io.StringIO(text)):
        directory, name = os.path.split(os.path.normpath(site / path))
        sha256 = digest[7:] if digest.startswith("sha256=") else None
        rows.append(Row(f"{os.path.realpath(directory)}/{name}", sha256, int(size) if size else None))
    return rows


ODD = (
    f'"a, ""b"".py",sha256={A},3\n',
    "foo/md5.py,md5=abc,4\n",
    f"../../../bin/tool,sha256={A},5\n",
    f"/elsewhere/x.so,sha256={B},6\n",
    f"foo/../bar//./x.py,sha256={B},7\n",
    "foo/unknown.py,,\n",
    f"foo/\u00fc.py,sha256={A},\n",
    f"top.py,sha256={A},8\n",
    "..foo/x.py,,9\n",
)


@pytest.mark.parametrize("seed", range(8))
def test_every_row_is_read_as_csv_reads_it(site: Path, seed: int) -> None:
    """Plain rows are read many at once, in pieces of 64 KiB: odd ones anywhere among them must not matter."""
    choose = random.Random(seed)
    lines = [f"foo/d{number // 9}/f{number}.py,sha256={choose.choice((A, B))},{number}\n" for number in range(3000)]
    for line in ODD * 3:
        lines.insert(choose.randrange(len(lines)), line)
    text = "".join(lines)

    record, reason = read(site, text)

    assert reason == ""
    assert list(record) == one_by_one(site, text)
    assert len(record) == len(lines)
    wanted = {row.path for row in choose.sample(list(record), 50)}
    assert list(record.rows_of(wanted)) == [row for row in record if row.path in wanted]
    assert record.total_size == sum(row.size or 0 for row in record)


@pytest.mark.parametrize(
    "line",
    [
        "no comma",
        "a,b",
        "a,b,c,d",
        ",,1",
        "a,sha256=short,1",
        f"a,sha256={'@' * 43},1",
        "a,,-1",
        "a,,1x",
        f"a,,{'1' * 19}",
    ],
)
def test_a_line_that_is_no_row_is_counted_and_the_others_are_read(site: Path, line: str) -> None:
    good = f"foo/x.py,sha256={A},1\n" * 2000

    record, reason = read(site, f"{good}{line}\n\n{good}")

    assert reason == "has 1 unreadable line(s), the first is line 2001"
    assert len(record) == 4000


def test_ends_of_lines_of_other_systems_and_no_end_at_all(site: Path) -> None:
    record, reason = read(site, f"foo/x.py,sha256={A},1\r\nfoo/y.py,,2\rfoo/z.py,,3")

    assert reason == ""
    assert [row.path for row in record] == [f"{site}/foo/{name}.py" for name in "xyz"]


@pytest.mark.parametrize("text", ["foo/x.py,,1\n" * 9000 + "foo/\0.py,,1\n", "foo/x.py,,1\n" + "a" * 70_000])
def test_what_is_no_text_is_refused_wherever_it_is(site: Path, text: str) -> None:
    with pytest.raises(ValueError, match="is not text"):
        read(site, text)


def content(*lines: tuple[str, str]) -> str:
    """The digest that hosts compare: of path and recorded digest, sorted."""
    return hashlib.sha256("".join(f"{path}\0{digest}\n" for path, digest in sorted(lines)).encode()).hexdigest()


def test_the_content_is_what_a_package_has_in_every_venv(site: Path) -> None:
    record, _reason = read(
        site,
        f"foo/y.py,sha256={B},1\n"
        f"foo/x.py,sha256={A},1\n"
        "foo/__pycache__/x.cpython-311.pyc,,\n"
        f"../../../bin/tool,sha256={A},1\n"
        "foo-1.0.dist-info/RECORD,,\n"
        f"foo-1.0.dist-info/INSTALLER,sha256={A},2\n"
        f"foo-1.0.dist-info/METADATA,sha256={A},2\n"
        f"foo/./sub//INSTALLER,sha256={B},2\n"
        "top.py,,\n",
    )
    lines = (("foo-1.0.dist-info/METADATA", A), ("foo/sub/INSTALLER", B), ("foo/y.py", B), ("top.py", "None"))

    assert record.content == content(*lines, ("foo/x.py", A))
    assert record.content_with({f"{site}/foo/x.py": "missing"}) == content(*lines, ("foo/x.py", "missing"))
    assert record.content_with({f"{site}/bar/x.py": "missing"}) == record.content
    assert Record().content == content()


def test_the_content_does_not_depend_on_the_order_of_the_rows(site: Path) -> None:
    lines = [f"foo/d{number % 7}/f{number}.py,sha256={A},{number}\n" for number in range(2500)]

    contents = {read(site, "".join(order))[0].content for order in (lines, lines[::-1])}

    assert len(contents) == 1
