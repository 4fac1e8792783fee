# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whatever the loaded code does, the check ends in time with a result that has a name."""

from __future__ import annotations

import json
import os
import pwd
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import probe_venv
from support.probe_venv import AS_ROOT, NOBODY, ProbeVenv, check, kept_out, kinds, write_unit

from ansible_collections.gpufleet.dflash.plugins.module_utils import _check_request, _library_check, _probe_process
from ansible_collections.gpufleet.dflash.plugins.module_utils._library_check import CheckError, CheckRequest
from ansible_collections.gpufleet.dflash.plugins.module_utils._process_maps import descendants

needs_root = pytest.mark.skipif(not AS_ROOT, reason="only root can become another user")


@pytest.fixture
def folder() -> Iterator[Path]:
    with probe_venv.public_directory() as directory:
        yield directory


@pytest.fixture
def venv(folder: Path) -> ProbeVenv:
    return ProbeVenv(folder / "venv")


def living(marker: str) -> list[str]:
    """Command lines of live processes that hold a marker."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and entry.name != str(os.getpid()):
            try:
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                text = (entry / "cmdline").read_bytes().decode(errors="replace")
                text += (entry / "environ").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if marker in text and state != "Z":
                found.append(text)
    return found


def test_a_good_environment_has_no_problem_and_stays_as_it_was(venv: ProbeVenv) -> None:
    venv.module("engine", "__version__ = '1.2'\nprint('hello\\n{\"event\": \"end\"}')")
    before = sorted(str(path) for path in venv.path.rglob("*"))
    result = check(venv, "engine", "json")
    assert result["ok"] and result["problems"] == []
    assert [(entry["name"], entry["ok"], entry["error"]) for entry in result["imports"]] == [
        ("engine", True, None),
        ("json", True, None),
    ]
    assert result["imports"][0]["version"] == "1.2"
    assert result["imports"][0]["path"] == str(venv.site / "engine.py")
    assert result["interpreter"]["prefix"] == str(venv.path)
    assert result["stdout"].startswith("hello")
    assert sorted(str(path) for path in venv.path.rglob("*")) == before


@pytest.mark.parametrize(
    ("source", "kind", "words"),
    [
        pytest.param("import ctypes; ctypes.string_at(0)", "interpreter-died", "killed by SIGSEGV", id="segfault"),
        pytest.param("import os; os.abort()", "interpreter-died", "killed by SIGABRT", id="abort"),
        pytest.param("import os; os.kill(os.getpid(), 4)", "interpreter-died", "killed by SIGILL", id="bad opcode"),
        pytest.param("import os; os.kill(os.getpid(), 9)", "interpreter-died", "killed by SIGKILL", id="killed"),
        pytest.param("import os; os._exit(3)", "interpreter-died", "exited with status 3", id="_exit"),
        pytest.param("import os; os._exit(0)", "interpreter-died", "exited with status 0", id="_exit zero"),
        pytest.param(
            "import ctypes; ctypes.CDLL(None).exit(4)",
            "interpreter-died",
            "exited with status 4",
            id="C exit",
        ),
        pytest.param("import os; os.closerange(3, 256)", "interpreter-died", "exited with status", id="closes all"),
    ],
)
def test_a_dead_interpreter_is_a_result(venv: ProbeVenv, source: str, kind: str, words: str) -> None:
    venv.module("before", "")
    path = venv.module("killer", "\n\n" + source)
    result = check(venv, "before", "killer", "json")
    before, killer, after = result["imports"]
    assert not result["ok"]
    assert kinds(result) == [kind]
    assert words in killer["error"]
    assert "`import killer` ends the interpreter" in result["problems"][0]["message"]
    if "SEGV" in words or "ABRT" in words:
        assert f"{path}:3" in result["problems"][0]["message"]
    assert before["ok"]
    assert after["error"] == "not tried: the interpreter ended in `import killer`"


@pytest.mark.parametrize(
    ("source", "type_name"),
    [
        pytest.param("import sys; sys.exit('no GPU')", "SystemExit", id="sys.exit"),
        pytest.param("raise KeyboardInterrupt", "KeyboardInterrupt", id="interrupt"),
        pytest.param("def f(): f()\nf()", "RecursionError", id="recursion"),
        pytest.param("syntax error here", "SyntaxError", id="syntax"),
        pytest.param("raise ValueError('\\udcff \\x00')", "ValueError", id="text that is not Unicode"),
        pytest.param("raise ValueError('/no\\x00path')", "ValueError", id="a path that is none"),
    ],
)
def test_an_exception_of_any_kind_does_not_stop_the_rest(venv: ProbeVenv, source: str, type_name: str) -> None:
    venv.module("broken", source)
    result = check(venv, "broken", "json")
    assert result["imports"][0]["error_type"] == type_name
    assert result["imports"][1]["ok"]
    assert kinds(result) == ["import-failed"]
    json.dumps(result).encode("utf-8")


@pytest.mark.parametrize(
    "source",
    [
        pytest.param("import time\ntime.sleep(600)", id="sleeps"),
        pytest.param("import ctypes\nctypes.PyDLL(None).sleep(600)", id="holds the GIL"),
        pytest.param("import signal, time\nsignal.signal(6, signal.SIG_IGN); time.sleep(600)", id="ignores SIGABRT"),
    ],
)
def test_a_hang_ends_at_the_time_limit_and_shows_where(venv: ProbeVenv, source: str) -> None:
    path = venv.module("sleeper", source)
    start = time.monotonic()
    result = check(venv, "sleeper", "json", timeout=1)
    assert time.monotonic() - start < 6
    assert kinds(result) == ["load-timeout"]
    assert "`import sleeper` hangs: it was not done after 1 s" in result["problems"][0]["message"]
    if "SIG_IGN" not in source:
        assert f"{path}:2" in result["problems"][0]["message"]
    assert result["imports"][0]["error"] == "still not loaded at the time limit"
    assert living(str(venv.path)) == []


def test_an_exception_without_a_text_is_a_result(venv: ProbeVenv) -> None:
    venv.module("broken", "class E(Exception):\n    def __str__(self): raise KeyError\nraise E")
    result = check(venv, "broken", "json")
    assert result["imports"][0]["error"] == "(its text cannot be had: KeyError)"
    assert result["imports"][1]["ok"]


@pytest.mark.parametrize("descriptor", ["1", "2", "any"])
def test_what_looks_like_a_report_forges_no_result(venv: ProbeVenv, descriptor: str) -> None:
    venv.module(
        "forger",
        "import json, os\n"
        "lines = [{'event': 'done', 'kind': 'import', 'name': 'absent', 'ok': True, 'seconds': 0},\n"
        "         {'event': 'maps', 'paths': ['/libcudart.so.1']}, {'event': 'end'}]\n"
        "text = ''.join('\\n' + json.dumps(line) + '\\n' for line in lines).encode()\n"
        f"for descriptor in range(0, 64) if {descriptor!r} == 'any' else [int({descriptor!r})]:\n"
        "    try:\n        os.write(descriptor, text)\n    except (OSError, ValueError):\n        pass\n",
    )
    result = check(venv, "forger", "absent")
    assert not result["ok"] and result["libraries"] == []
    assert [entry["ok"] for entry in result["imports"]] == [True, False]
    assert kinds(result) == ["import-failed"]


# What the code under test can do to its own process: find the secret of the reports, and send some.
STEAL = (
    "import sys\nframe = sys._getframe()\n"
    "while 'reporter' not in frame.f_locals:\n    frame = frame.f_back\n"
    "send = frame.f_locals['reporter'].send\n"
)


@pytest.mark.parametrize(
    "forged",
    [
        "'done'",
        "'done', kind=5, name=[1], ok='x'",
        "'done', kind='import', name='thief', ok=False",
        "'done', kind='import', name='thief', ok=False, seconds=0, blocked=[], noexec=[], error={'chain': 5}",
        "'done', kind='import', name='thief', ok=True, seconds='x', path=7, version={}",
        "'done', kind='torch', name='torch', ok=True, seconds=0, version='1'",
        "'maps', paths=5",
        "'maps', paths=['/libcudart.so.1\\0']",
        "'maps', paths=[None]",
        "'begin'",
        "'setup'",
        "'interpreter', marked=3",
        "'unheard of'",
    ],
)
def test_reports_of_another_form_are_none(venv: ProbeVenv, forged: str) -> None:
    venv.module("thief", f"{STEAL}send({forged})\n")

    result = check(venv, "thief", "json")

    assert result["ok"], result["problems"]
    assert [entry["path"] is not None for entry in result["imports"]] == [True, True]


def test_reports_without_end_take_no_memory(venv: ProbeVenv) -> None:
    venv.module("thief", f"{STEAL}for _number in range(30_000):\n    send('begin', kind='import', name='other')\n")

    assert not check(venv, "thief")["ok"]


def test_a_version_is_short(venv: ProbeVenv) -> None:
    venv.module("long", "__version__ = '9' * 1_000_000")

    assert check(venv, "long")["imports"][0]["version"] == "9" * 200


def test_words_of_an_error_do_not_rule_the_terminal(venv: ProbeVenv) -> None:
    venv.module(
        "broken", "raise ImportError('lib\\x1b[31m.so: cannot open shared object file: No such file or directory')"
    )

    (problem,) = check(venv, "broken")["problems"]

    assert "lib\\x1b[31m.so is nowhere" in problem["message"]
    assert "\x1b" not in problem["message"] + problem["evidence"] + problem["fix"]


FORKS = {
    "a daemon without a session and an environment": (
        "import os, time\nready, told = os.pipe()\nif os.fork() == 0:\n    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        os.write(told, b'.')\n        os.execve('/bin/sleep', ['sleep', '600'], {})\n"
        "    os._exit(0)\nos.read(ready, 1)\ntime.sleep(0.2)"
    ),
    "a daemon that holds the pipes": ("import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(600)"),
    "a daemon twice removed": (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n"
        "    if os.fork() == 0:\n        time.sleep(600)\n    os._exit(0)"
    ),
    "a program": "import subprocess\nsubprocess.Popen(['sleep', '600'], start_new_session=True)",
}


@pytest.mark.parametrize("source", FORKS.values(), ids=FORKS)
def test_what_forks_holds_nobody_up_and_does_not_stay(venv: ProbeVenv, source: str) -> None:
    venv.module("forker", source)
    marker = f"MARK={os.urandom(8).hex()}"
    start = time.monotonic()
    result = check(venv, "forker", environment=dict([marker.split("=")]))
    assert time.monotonic() - start < 10
    assert result["ok"]
    assert len(result["processes_left"]) == 1
    assert living(marker) == []
    assert all(_is_dead(pid) for pid in descendants(os.getpid())[1:])


def _is_dead(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_a_child_that_returns_from_the_import_has_no_say(venv: ProbeVenv) -> None:
    venv.module("forker", "import os, time\nif os.fork() == 0:\n    time.sleep(0.2)\n    raise ValueError('child')")
    venv.module("slow", "import time\ntime.sleep(0.6)")
    result = check(venv, "forker", "slow")
    assert result["ok"], result["problems"]


def test_floods_and_noise_on_every_descriptor_do_no_harm(venv: ProbeVenv) -> None:
    venv.module(
        "noisy",
        "import os, sys\n"
        "for descriptor in range(1, 30):\n"
        '    try:\n        os.write(descriptor, b\'{"event": "done"\')\n    except OSError:\n        pass\n'
        "print('x' * 8_000_000)\nprint('y' * 8_000_000, file=sys.stderr)\nprint('the end')",
    )
    result = check(venv, "noisy", "json")
    assert result["ok"], result
    assert result["stdout"].endswith("the end\n")
    assert len(result["stdout"]) <= 4000 and len(result["stderr"]) <= 4000


def test_a_python_that_does_not_start_is_a_result(venv: ProbeVenv) -> None:
    result = check(venv, "json", environment={"PYTHONHOME": "/nonexistent"})
    assert kinds(result) == ["interpreter-died"]
    assert "Python does not start" in result["problems"][0]["message"]
    assert "PYTHONHOME" in result["problems"][0]["fix"]
    assert result["imports"][0]["error"] == "not tried: the interpreter did not get that far"


def test_the_process_is_the_units(venv: ProbeVenv, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """User, groups, directory, umask, limits and the whole environment: as the unit says, and no more."""
    monkeypatch.setenv("LEAK", "from Ansible")
    venv.module(
        "engine",
        "import json, os, resource\n"
        "print(json.dumps([os.getuid(), os.getgid(), os.getgroups(), os.getcwd(), os.umask(0),"
        " dict(os.environ), resource.getrlimit(resource.RLIMIT_NOFILE),"
        " resource.getrlimit(resource.RLIMIT_CORE)[0], os.getsid(0) == os.getpid()]))",
    )
    entry = pwd.getpwnam(NOBODY) if AS_ROOT else pwd.getpwuid(os.geteuid())
    unit = write_unit(
        folder,
        f"User={entry.pw_name}",
        f"WorkingDirectory={folder}",
        "UMask=0027",
        "LimitNOFILE=512:1024",
        'Environment="A=1 2"',
        "UnsetEnvironment=LANG",
    )
    result = check(venv, "engine", unit=unit)
    assert result["ok"] and result["user"] == entry.pw_name
    uid, gid, groups, cwd, umask, environment, files, core, leader = json.loads(result["stdout"])
    assert (uid, gid, cwd, umask, files, core) == (
        entry.pw_uid,
        entry.pw_gid,
        str(folder),
        0o027,
        [512, 1024],
        0,
    )
    assert sorted(groups) == sorted(os.getgrouplist(entry.pw_name, entry.pw_gid)) or not AS_ROOT
    assert leader
    assert environment.pop("A") == "1 2"
    assert len(environment.pop("INVOCATION_ID")) == 32
    assert environment.pop("USER") == environment.pop("LOGNAME") == entry.pw_name
    locale = {name for name in environment if name.startswith(("LANG", "LC_"))}
    assert set(environment) - locale <= {"PATH", "PYTHONDONTWRITEBYTECODE", "HOME", "SHELL"}
    assert result["unit"] == {"name": "engine.service", "path": unit, "drop_ins": []}


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        pytest.param("{venv}/bin/python -m engine.server", True, id="-m"),
        pytest.param("{venv}/bin/python -u -m engine.server", True, id="-u -m"),
        pytest.param("{venv}/bin/python -P -m engine.server", False, id="-P -m"),
        pytest.param("{venv}/bin/python /opt/server.py -m", False, id="a script"),
        pytest.param("{venv}/bin/engine -m", False, id="a program"),
    ],
)
def test_the_working_directory_is_searched_only_when_the_service_does(
    venv: ProbeVenv, folder: Path, start: str, expected: bool
) -> None:
    (folder / "strays").mkdir()
    (folder / "strays" / "engine.py").write_text("")
    me = pwd.getpwuid(os.geteuid()).pw_name
    unit = write_unit(
        folder,
        f"User={me}",
        f"WorkingDirectory={folder}/strays",
        "ExecStart=",
        "ExecStart=" + start.format(venv=venv.path),
    )
    result = check(venv, "engine", unit=unit)
    assert result["ok"] is expected
    # What it finds there is worth a warning: it shadows the venv.
    assert kinds(result) == (["resolved-outside-venv"] if expected else ["import-failed"])


@needs_root
def test_a_venv_below_a_closed_directory_names_the_directory(folder: Path) -> None:
    closed = folder / "closed"
    closed.mkdir()
    venv = ProbeVenv(closed / "deep" / "venv")
    closed.chmod(0o700)
    result = check(venv, "json", user=NOBODY)
    assert kinds(result) == ["access-denied"]
    assert result["problems"][0]["message"] == (
        f"user nobody cannot enter {closed}, which is on the way to {venv.path}/bin/python: "
        "the service would fail with status 203/EXEC"
    )
    assert result["end"]["how"] == "not-started"


@pytest.mark.parametrize("kind", ["package", "module", "site"])
def test_what_the_user_may_not_read_is_named(venv: ProbeVenv, kind: str) -> None:
    """A package that may not be entered imports as an empty namespace package: that is no success."""
    (venv.site / "engine").mkdir()
    (venv.site / "engine" / "__init__.py").write_text("")
    closed = {
        "package": venv.site / "engine",
        "module": venv.site / "engine" / "__init__.py",
        "site": venv.site,
    }[kind]
    user, options, mode = kept_out()
    closed.chmod(0o000 if kind == "module" else mode)
    result = check(venv, "engine", **options)
    assert not result["ok"]
    assert "access-denied" in kinds(result)
    denied = next(entry for entry in result["problems"] if entry["kind"] == "access-denied")
    verb = "read" if kind == "module" else "enter"
    assert denied["message"] == f"user {user} cannot {verb} {closed}, so `import engine` fails"


def test_a_working_directory_that_is_closed_or_absent_is_named(venv: ProbeVenv, folder: Path) -> None:
    user, _options, mode = kept_out()
    closed = folder / "closed"
    (closed / "work").mkdir(parents=True)
    closed.chmod(mode)
    result = check(venv, "json", unit=write_unit(folder, f"User={user}", f"WorkingDirectory={closed}/work"))
    assert (
        f"user {user} cannot enter {closed}, which is on the way to the working directory"
        in result["problems"][0]["message"]
    )
    assert "200/CHDIR" in result["problems"][0]["message"]
    absent = check(venv, "json", unit=write_unit(folder, f"User={user}", f"WorkingDirectory={folder}/absent"))
    assert f"cannot change to {folder}/absent: No such file or directory" in absent["problems"][0]["message"]
    assert check(venv, "json", unit=write_unit(folder, f"User={user}", f"WorkingDirectory=-{folder}/absent"))["ok"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param({"user": "no-such-user"}, "there is no user no-such-user", id="user"),
        pytest.param({"group": "no-such-group"}, "there is no group no-such-group", id="group"),
        pytest.param({"timeout": 0}, "timeout must be more than 0", id="timeout"),
        pytest.param({"imports": ()}, "nothing to load", id="nothing"),
        pytest.param({"environment": {"A=B": "1"}}, "not the name of an environment variable", id="name"),
        pytest.param({"environment": {"A": True}}, "A: True: put the value into quotes", id="a YAML yes"),
        pytest.param({"environment": {"A": "x\0"}}, "NUL", id="NUL"),
        pytest.param({"timeout": float("nan")}, "timeout must be more than 0", id="a timeout that is no number"),
        pytest.param({"imports": ("",)}, "not the name of anything: imports: ''", id="an empty import"),
        pytest.param({"imports": ("a\0b",)}, "not the name of anything: imports", id="NUL in an import"),
        pytest.param({"dlopen": (" ",)}, "not the name of anything: dlopen", id="an empty library"),
        pytest.param({"venv": "a\0b"}, "not a usable value: venv", id="NUL in the venv"),
        pytest.param({"venv": ""}, "venv is missing", id="no venv"),
        pytest.param({"user": "a\0b"}, "not a usable value: user", id="NUL in the user"),
        pytest.param({"user": "²"}, "there is no user ²", id="a digit that is no number"),
        pytest.param({"user": "9" * 30}, "there is no user 9", id="a huge number"),
        pytest.param({"user": "root", "group": "²"}, "there is no group ²", id="a group that is no number"),
        pytest.param({"user": "root", "group": "9" * 30}, "there is no group 9", id="a huge group"),
        pytest.param({"require_cuda": True}, "add torch to it", id="GPUs without torch"),
        pytest.param({"device_count": -1}, "cannot be negative", id="a negative number of GPUs"),
    ],
)
def test_impossible_requests_are_named(venv: ProbeVenv, options: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckError, match=message):
        _library_check.check(CheckRequest(**{"venv": str(venv.path), "imports": ("json",), **options}))


def test_only_root_becomes_another_user() -> None:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if AS_ROOT:
                os.setuid(65534)
            _check_request.identity_of("daemon", None, ())
        except CheckError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    text = os.read(read, 1000).decode()
    os.close(read)
    assert text.endswith("cannot run the check as user daemon: set become: true on the task")


def test_the_check_costs_little_beside_the_load(venv: ProbeVenv) -> None:
    """Half a second at most beyond the import: measured against the bare interpreter doing the same."""
    venv.module("slow", "import time; time.sleep(0.3)")
    timings = []
    for _try in range(3):
        start = time.monotonic()
        assert check(venv, "slow")["ok"]
        timings.append(time.monotonic() - start - 0.3)
    assert min(timings) < 0.5


def test_limits_that_may_not_be_raised_are_met_as_closely_as_is_allowed() -> None:
    assert _probe_process._lower(100, 50) == 50
    assert _probe_process._lower(-1, 50) == 50
    assert _probe_process._lower(100, -1) == 100
