# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Units are read as systemd reads them: systemd itself is the oracle."""

from __future__ import annotations

import os
import pwd
import random
from pathlib import Path

import pytest
from support import systemd_oracle

from ansible_collections.gpufleet.dflash.plugins.module_utils import _systemd_syntax, _unit
from ansible_collections.gpufleet.dflash.plugins.module_utils._unit import UnitError

needs_systemd = pytest.mark.skipif(systemd_oracle.MISSING, reason="systemd's own parsers are not installed")


def write_unit(folder: Path, body: str, name: str = "engine.service") -> Path:
    path = folder / name
    path.write_text(f"[Unit]\nDescription=test\n[Service]\nExecStart=/bin/true\n{body}\n", encoding="utf-8")
    return path


def compare(folder: Path, name: str = "engine.service") -> _unit.UnitEnvironment:
    """Assert that our reading of a unit equals systemd's, and return it."""
    ours = _unit.read_unit(name, [str(folder), *_unit.UNIT_DIRECTORIES])
    theirs = systemd_oracle.unit_dump(folder, name)
    block = "\n".join(f"{key}={value}" for key, value in ours.environment.items())
    assert sorted(block.split("\n")) == sorted("\n".join(theirs.get("Environment", [""])).split("\n"))
    assert ours.user == theirs.get("User", [None])[0]
    assert ours.group == theirs.get("Group", [None])[0]
    assert f"{ours.umask:04o}" == theirs["UMask"][0]
    assert (ours.working_directory or "/") == theirs["WorkingDirectory"][0]
    return ours


@needs_systemd
@pytest.mark.parametrize(
    "body",
    [
        pytest.param("Environment=A=1", id="plain"),
        pytest.param("Environment=A=1 B=2 A=3", id="later wins"),
        pytest.param('Environment="A=word1 word2" B=word3 "C=$word 5 6"', id="manual page's example"),
        pytest.param("Environment='A=x \"y\" z'", id="single quotes keep double ones"),
        pytest.param('Environment=A="x y"z', id="quotes inside a word"),
        pytest.param("Environment=A=1\nEnvironment=\nEnvironment=B=2", id="empty assignment resets"),
        pytest.param('Environment="A=a\\tb" B=\\x41\\101\\u00e9 C=a\\sb D=\\"q\\"', id="escapes"),
        pytest.param("Environment=A=\\xc3\\xa9", id="a character from two bytes"),
        pytest.param("Environment=A=\\xff B=1", id="a byte that is not UTF-8"),
        pytest.param("Environment=A=1 B=\\q C=2", id="unknown escape ends the line"),
        pytest.param('Environment=A=1 "B=2', id="open quote ends the line"),
        pytest.param("Environment=A=\\x00 B=1", id="NUL is refused"),
        pytest.param("Environment=A=\\x4", id="short hexadecimal escape"),
        pytest.param("Environment=A=\\400", id="octal escape above a byte"),
        pytest.param("Environment=A=\\ud800", id="surrogate code point"),
        pytest.param("Environment=A=\\U0001F600", id="long code point"),
        pytest.param("Environment=1A=x B-C=y =z D E=1", id="bad names are skipped"),
        pytest.param("Environment=A=x\\x01y B=1", id="control characters are taken"),
        pytest.param("Environment=A=a\\nb", id="a newline is allowed"),
        pytest.param("Environment=A=1 \\\n  B=2 \\\n# comment\n; comment\n  C=3", id="continued over comments"),
        pytest.param('Environment="A=1\\\n  2"', id="continuation inside quotes"),
        pytest.param("Environment=A=1\\\\", id="an escaped backslash does not continue"),
        pytest.param("Environment=A=%n:%N:%p:%i:%j:%%:%t:%S:%C:%L:%E:%T:%V:%u:%U", id="specifiers"),
        pytest.param("Environment=A=%m:%b:%H:%v:%o:%w:%a:%g:%f:%l", id="host specifiers"),
        pytest.param(
            "Environment=A=%h:%s",
            id="the manager's home and shell",
            marks=pytest.mark.skipif(os.geteuid() != 0, reason="the oracle answers for the caller"),
        ),
        pytest.param("Environment=A=%k B=100% C=%", id="unknown specifiers"),
        pytest.param("Environment = A=1 \n  Environment=B=2", id="spaces around"),
        pytest.param("Environment=A=", id="empty value"),
        pytest.param("Environment=LD_LIBRARY_PATH=/a/lib:/b/lib PATH=/x", id="search paths"),
        pytest.param("User=daemon\nGroup=%p\nGroup=sys\nUMask=0077\nWorkingDirectory=/tmp", id="identity"),
        pytest.param("User=daemon\nUser=\nGroup=sys\nGroup=", id="identity reset"),
        pytest.param("WorkingDirectory=/tmp\nWorkingDirectory=", id="directory reset"),
        pytest.param("[Install]\nEnvironment=A=1\n[Service]\nEnvironment=B=2", id="sections"),
        pytest.param("Environment=A=1\r", id="carriage return"),
    ],
)
def test_reads_what_systemd_reads(tmp_path: Path, body: str) -> None:
    write_unit(tmp_path, body)
    compare(tmp_path)


@needs_systemd
def test_random_values_are_read_as_systemd_reads_them(tmp_path: Path) -> None:
    random.seed(20261130)
    pieces = [
        "A=",
        "B=",
        "x",
        " ",
        " ",
        '"',
        "'",
        "\\",
        "\\t",
        "\\s",
        "\\x41",
        "\\",
        "\n",
        "#",
        ";",
        "%",
        "%%",
        "=",
        "é",
    ]
    for _round in range(100):
        lines = ["Environment=" + "".join(random.choices(pieces, k=random.randrange(1, 14))) for _line in range(6)]
        write_unit(tmp_path, "\n".join(lines))
        try:
            compare(tmp_path)
        except AssertionError as error:
            raise AssertionError(f"differs from systemd for {lines!r}") from error


@needs_systemd
def test_drop_ins_apply_in_the_order_of_systemd(tmp_path: Path) -> None:
    write_unit(tmp_path, "Environment=A=unit B=unit C=unit D=unit E=unit", "dflash-engine@.service")
    layout = {
        "dflash-engine@.service.d/10-a.conf": "Environment=A=template B=template",
        "dflash-engine@one.service.d/20-b.conf": "Environment=B=instance",
        "dflash-engine@one.service.d/10-a.conf": "Environment=A=instance I=%i:%I:%p:%j:%f",
        "dflash-@one.service.d/30-c.conf": "Environment=P=prefix-instance",
        "dflash-@.service.d/40-c.conf": "Environment=Q=prefix-template",
        "dflash-.service.d/05-c.conf": "Environment=C=prefix\nUser=daemon",
        "service.d/90-d.conf": "Environment=D=type",
        "service.d/20-b.conf": "Environment=B=type",
        "dflash-engine@one.service.d/99-no.txt": "Environment=E=ignored",
    }
    for relative, body in layout.items():
        path = tmp_path / relative
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"[Service]\n{body}\n", encoding="utf-8")
    (tmp_path / "dflash-engine@one.service.d/40-masked.conf").symlink_to("/dev/null")
    ours = compare(tmp_path, "dflash-engine@one.service")
    assert ours.environment["I"] == "one:one:dflash-engine:engine:/one"
    assert (ours.environment["A"], ours.environment["D"], ours.environment["E"]) == (
        "instance",
        "type",
        "unit",
    )


@needs_systemd
def test_of_drop_ins_with_one_name_the_same_one_counts_as_for_systemd(tmp_path: Path) -> None:
    write_unit(tmp_path, "", "a-b-c@i.service")
    stems = ["a-b-c@i", "a-b-c@", "a-b-@i", "a-b-@", "a-b-", "a-@i", "a-@", "a-"]
    places = [tmp_path / f"{stem}.service.d" for stem in stems] + [tmp_path / "service.d"]
    for place in places:
        place.mkdir()
        (place / "x.conf").write_text(f"[Service]\nEnvironment=FROM={place.name}\n", encoding="utf-8")
    for _place in places:
        winner = compare(tmp_path, "a-b-c@i.service").environment["FROM"]
        (tmp_path / winner / "x.conf").unlink()
    assert compare(tmp_path, "a-b-c@i.service").environment == {}


@needs_systemd
@pytest.mark.parametrize(
    "text",
    [
        pytest.param("A=plain text  \nB=2", id="trailing blanks go"),
        pytest.param("A=\"double \\\" quoted\\n x\" tail\nB='single \\' x'", id="quotes"),
        pytest.param('A=a\\\nb\nB="c\\\nd"', id="continuation"),
        pytest.param("A=\"several\nlines\"\nB='and\nmore'", id="quotes over lines"),
        pytest.param(" A = spaced \nB=\t x", id="spaces around"),
        pytest.param("A=a'b'c\"d\"", id="quotes inside a word"),
        pytest.param("A=back\\slash\\\\x\\ ", id="backslashes"),
        pytest.param("A=a # not a comment\n# comment\n; comment\nB=2", id="comments"),
        pytest.param("# comment goes on \\\nA=1\nB=2", id="continued comment"),
        pytest.param("no equals sign\nA=1", id="line without a value"),
        pytest.param("A='a' 'b'  \"c\" ", id="several quoted parts"),
        pytest.param("A=1\r\nB=2\r\n", id="carriage returns"),
        pytest.param("A='no end", id="open quote"),
        pytest.param("A=ends in \\", id="backslash at the end"),
        pytest.param("1A=bad\nB C=bad\nexport D=1\nE=1", id="bad names"),
        pytest.param("A=1\nA=\nB=''", id="empty values"),
        pytest.param("A=é\nB='日本'", id="UTF-8"),
    ],
)
def test_environment_files_are_read_as_systemd_reads_them(tmp_path: Path, text: str) -> None:
    check_environment_file(tmp_path, text)


@needs_systemd
def test_random_environment_files_are_read_as_systemd_reads_them(tmp_path: Path) -> None:
    random.seed(11302026)
    pieces = ["A=", "B=", "x", "y", " ", "\t", '"', "'", "\\", "\\\\", "\n", "\n", "\r", "#", ";", "="]
    for _round in range(250):
        check_environment_file(tmp_path, "A=" + "".join(random.choices(pieces, k=random.randrange(1, 18))))


def check_environment_file(folder: Path, text: str) -> None:
    host = systemd_oracle.environment_file("", folder)
    theirs = {key: value for key, value in systemd_oracle.environment_file(text, folder).items() if key not in host}
    pairs = _systemd_syntax.environment_file(text)
    # In environment.d an assignment of nothing is skipped; in EnvironmentFile= it is a value like any other.
    ours = {key: value for key, value in pairs if value and _systemd_syntax.valid_assignment(key, value)}
    assert ours == theirs, text


def test_environment_files_override_the_unit_and_may_be_patterns(tmp_path: Path) -> None:
    (tmp_path / "a.env").write_text("A=file\nKEY=a b\n", encoding="utf-8")
    (tmp_path / "b.env").write_text("A=second\n", encoding="utf-8")
    path = write_unit(
        tmp_path,
        f"EnvironmentFile={tmp_path}/nothing-before-the-reset\nEnvironmentFile=\nEnvironmentFile={tmp_path}/*.env\n"
        f"EnvironmentFile=-{tmp_path}/absent\nEnvironment=A=unit B=unit",
    )
    assert _unit.read_unit(str(path)).environment == {"A": "second", "B": "unit", "KEY": "a b"}


def test_an_absent_environment_file_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    path = write_unit(tmp_path, f"EnvironmentFile={tmp_path}/keys.env")
    with pytest.raises(UnitError, match=r"would not start: .*/keys\.env .*engine\.service\): create it"):
        _unit.read_unit(str(path))


def test_a_special_file_in_the_place_of_an_environment_file_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "keys.env")
    with pytest.raises(UnitError, match="is not a regular file"):
        _unit.read_unit(str(write_unit(tmp_path, f"EnvironmentFile={tmp_path}/keys.env")))
    assert _unit.read_unit(str(write_unit(tmp_path, "EnvironmentFile=/dev/null"))).environment == {}


def test_a_fifo_in_the_place_of_a_drop_in_does_not_hang(tmp_path: Path) -> None:
    path = write_unit(tmp_path, "Environment=A=1")
    folder = tmp_path / f"{path.name}.d"
    folder.mkdir()
    os.mkfifo(folder / "10-keys.conf")
    with pytest.raises(UnitError, match=r"10-keys\.conf: is not a regular file"):
        _unit.read_unit(str(path))


def test_a_malformed_environment_file_is_noted_without_its_values(tmp_path: Path) -> None:
    (tmp_path / "keys.env").write_text("export API_KEY=sk-secret\nOK=1\n", encoding="utf-8")
    unit = _unit.read_unit(str(write_unit(tmp_path, f"EnvironmentFile={tmp_path}/keys.env")))
    assert unit.environment == {"OK": "1"}
    assert "export API_KEY" in unit.notes[0]
    assert "sk-secret" not in str(unit.notes)


def test_the_process_gets_systemds_own_variables_and_unset_is_last(tmp_path: Path) -> None:
    entry = pwd.getpwuid(1)
    path = write_unit(
        tmp_path,
        f"User={entry.pw_name}\nStateDirectory=engine other\nEnvironment=A=1 B=2 C=3\n"
        "UnsetEnvironment=A B=2 C=other LOGNAME",
    )
    unit = _unit.read_unit(str(path))
    environment = _unit.process_environment(unit, "0" * 32)
    assert environment["USER"] == entry.pw_name
    assert environment["HOME"] == entry.pw_dir
    assert environment["STATE_DIRECTORY"] == "/var/lib/engine:/var/lib/other"
    assert environment["C"] == "3"
    assert environment["PATH"].startswith("/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin")
    assert not {"A", "B", "LOGNAME", "SHELL"} & set(environment)
    assert not set(os.environ) - {"PATH", "HOME", "USER", "SHELL", "LANG"} & set(environment)


def test_limits_and_start_command(tmp_path: Path) -> None:
    path = write_unit(
        tmp_path,
        "LimitNOFILE=1024:524288\nLimitMEMLOCK=infinity\nLimitSTACK=8M\nLimitCPU=1h\n"
        "ExecStart=\nExecStart=-/bin/x -m y",
    )
    unit = _unit.read_unit(str(path))
    assert unit.limits == {
        "LimitNOFILE": (1024, 524288),
        "LimitMEMLOCK": (_unit.INFINITY, _unit.INFINITY),
        "LimitSTACK": (8 << 20, 8 << 20),
    }
    assert unit.exec_start == "-/bin/x -m y"
    assert unit.notes == ("LimitCPU=1h is not applied by this check: it reads plain numbers and sizes",)


def test_a_name_is_found_in_the_first_directory_and_a_link_by_its_target(tmp_path: Path) -> None:
    first, second = tmp_path / "etc", tmp_path / "usr"
    first.mkdir()
    second.mkdir()
    write_unit(second, "Environment=FROM=usr", "real.service")
    (first / "alias.service").symlink_to(second / "real.service")
    (second / "real.service.d").mkdir()
    (second / "real.service.d" / "a.conf").write_text("[Service]\nEnvironment=DROP=in\n", encoding="utf-8")
    directories = [str(first), str(second)]
    assert _unit.read_unit("alias", directories).environment == {"FROM": "usr", "DROP": "in"}
    write_unit(first, "Environment=FROM=etc", "real.service")
    assert _unit.read_unit("real.service", directories).environment["FROM"] == "etc"


@pytest.mark.parametrize(
    ("prepare", "name", "message"),
    [
        pytest.param(lambda folder: None, "gone", r"there is no such unit: gone\.service", id="absent"),
        pytest.param(
            lambda folder: (folder / "m.service").symlink_to("/dev/null"),
            "m",
            "the unit is masked",
            id="masked",
        ),
        pytest.param(lambda folder: (folder / "m.service").touch(), "m", "the unit is masked", id="empty"),
        pytest.param(lambda folder: (folder / "d.service").mkdir(), "d", "cannot read the unit", id="directory"),
        pytest.param(
            lambda folder: (folder / "s.socket").write_text("[Socket]\n"),
            "s.socket",
            "no .Service.",
            id="socket",
        ),
        pytest.param(lambda folder: None, "a/b.service", "neither a unit name", id="relative path"),
    ],
)
def test_unusable_units_are_named_errors(tmp_path: Path, prepare, name: str, message: str) -> None:  # type: ignore[no-untyped-def]
    prepare(tmp_path)
    with pytest.raises(UnitError, match=message):
        _unit.read_unit(name, [str(tmp_path)])
