"""The check in a unit's sandbox, on a host that systemd booted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import playbook
from support.booted_host import UNIT, BootedHost
from support.probe_venv import library

MODULE = "cuda_library_check"
VENV = "/opt/check/venv"
SITE = f"{VENV}/lib/python3.11/site-packages"
UNIT_FILE = "/opt/check/engine.service"

# What an engine's modules do when they are imported.
MODULES = {
    "engine": "import json, os\nprint(json.dumps(dict(os.environ)))\nprint(open('/proc/self/status').read())",
    "writes": f"open('{VENV}/note', 'w')",
    "maps_writable_code": "import mmap\nmmap.mmap(-1, 4096, prot=7)",
    "opens_a_socket": "import socket\nsocket.socket()",
    "lowers_its_priority": "import os\nos.setpriority(0, 0, 5)",
    "reads_a_home": "open('/root/weights')",
    "leaves_a_process": "import subprocess\nsubprocess.Popen(['sleep', '600'], start_new_session=True)",
    "hangs": "import time\ntime.sleep(600)",
    "crashes": "import ctypes\nctypes.string_at(0)",
}


@pytest.fixture(scope="module")
def booted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BootedHost]:
    host = BootedHost("ct129")
    host.run(f"mkdir -p {VENV}/bin {SITE}; ln -sf /usr/bin/python3 {VENV}/bin/python; touch /root/weights")
    host.write(f"{VENV}/pyvenv.cfg", "home = /usr/bin\nversion = 3.11.2\n")
    for name, source in MODULES.items():
        host.write(f"{SITE}/{name}.py", source + "\n")
    folder = tmp_path_factory.mktemp("libraries")
    for name, options in (("libplain.so", ()), ("libstack.so", ("-z", "execstack"))):
        host.copy(library(folder / name, "int value(void) { return 1; }", *options), f"{SITE}/{name}")
    yield host
    host.run("rm -rf /opt/check /root/weights")


def check(host: BootedHost, *directives: str, **options: Any) -> dict[str, Any]:
    """The module's result for a unit with these directives, on the host."""
    host.write(UNIT_FILE, "\n".join(["[Service]", f"ExecStart={VENV}/bin/python -m engine", *directives, ""]))
    return run_module(host, venv=VENV, unit=UNIT_FILE, require=False, **options)


def run_module(host: BootedHost, **options: Any) -> dict[str, Any]:
    """What one task with the module gives."""
    return playbook.result_of(host.name, MODULE, options)


def left_behind(host: BootedHost) -> str:
    """Units, drop-ins and processes of checks."""
    return host.run(
        "systemctl list-units --all --no-legend 'gpufleetcheck*'; ls -d /run/systemd/*/gpufleetcheck* 2>/dev/null;"
        " pgrep -a sleep",
        check=False,
    )


def test_the_process_is_the_units_in_every_respect(booted: BootedHost) -> None:
    """The same unit, started by systemd itself, says the same of itself."""
    directives = [
        "User=dflash",
        "WorkingDirectory=/opt/check",
        "UMask=0027",
        "LimitNOFILE=700:800",
        "NoNewPrivileges=yes",
        "CapabilityBoundingSet=CAP_CHOWN CAP_KILL",
        "CapabilityBoundingSet=~CAP_KILL",
        "SystemCallFilter=@system-service",
        "SystemCallFilter=~@privileged",
        "PrivateTmp=yes",
        "ProtectSystem=strict",
        'Environment="SECRET=a\\"b $c %%n" UNIT=%n ROOT=%S',
        "UnsetEnvironment=LANG",
        "StateDirectory=check-%p",
        "NotADirective=yes",
    ]
    text = ["[Service]", "Type=oneshot", f"ExecStart={VENV}/bin/python -m engine", *directives]
    text += ["StandardOutput=truncate:/opt/check/told", ""]
    booted.write("/run/systemd/system/engine.service", "\n".join(text))
    booted.run("systemctl start engine.service")
    service = booted.run("cat /opt/check/told")
    booted.run("rm /run/systemd/system/engine.service; rmdir /var/lib/check-engine")
    before = booted.run("ls -A /var/lib /run /run/systemd/system /etc/systemd/system")
    result = check(booted, *directives, imports=["engine"])
    assert result["ok"] and result["sandbox"] is True and result["sandbox_reason"] is None, result
    assert _told(result["stdout"]) == _told(service)
    assert "CapBnd:\t0000000000000001" in result["stdout"]
    assert result["stdout"].count('"SECRET": "a\\"b $c %n"') == 1
    assert booted.run("ls -A /var/lib /run /run/systemd/system /etc/systemd/system") == before
    assert left_behind(booted) == ""
    assert 'a"b' not in booted.run("journalctl --no-pager --since=-10s -u 'gpufleetcheck*'")


def _told(text: str) -> tuple[dict[str, str], list[str]]:
    """The environment and the status that the module `engine` prints, without what differs in every process."""
    line, _end, status = text[text.index("{") :].partition("\n")
    environment = json.loads(line)
    for name in ("INVOCATION_ID", "SYSTEMD_EXEC_PID", "JOURNAL_STREAM", "PYTHONDONTWRITEBYTECODE"):
        environment.pop(name, None)
    keys = ("Umask", "Uid", "Gid", "Groups", "Cap", "NoNewPrivs", "Seccomp:")
    return environment, [row.strip() for row in status.splitlines() if row.startswith(keys)]


@pytest.mark.parametrize(
    ("directives", "options", "kind", "words"),
    [
        pytest.param(
            ["ProtectSystem=strict"], {"imports": ["writes"]}, "import-failed",
            "Read-only file system: '/opt/check/venv/note': the cause is ProtectSystem=strict of engine.service",
            id="ProtectSystem",
        ),
        pytest.param(
            ["InaccessiblePaths=/opt/check/venv/lib"], {"imports": ["engine"]}, "import-failed",
            "the cause is InaccessiblePaths=/opt/check/venv/lib of engine.service", id="InaccessiblePaths",
        ),
        pytest.param(
            ["NoExecPaths=/", "ExecPaths=/usr /lib /lib64"], {"dlopen": [f"{SITE}/libplain.so"]}, "access-denied",
            "libplain.so fails: the cause is NoExecPaths=/ of engine.service",
            id="NoExecPaths",
        ),
        pytest.param(
            ["NoExecPaths=/usr/bin"], {"imports": ["engine"]}, "access-denied",
            "the cause is NoExecPaths=/usr/bin: the service would fail with status 203/EXEC", id="NoExecPaths, Python",
        ),
        pytest.param(
            ["MemoryDenyWriteExecute=yes"], {"imports": ["maps_writable_code"]}, "import-failed",
            "Operation not permitted: the cause is MemoryDenyWriteExecute=yes", id="MemoryDenyWriteExecute, code",
        ),
        pytest.param(
            ["MemoryDenyWriteExecute=yes"], {"dlopen": [f"{SITE}/libstack.so"]}, "access-denied",
            "the cause is MemoryDenyWriteExecute=yes", id="MemoryDenyWriteExecute, library",
        ),
        pytest.param(
            ["RestrictAddressFamilies=AF_UNIX"], {"imports": ["opens_a_socket"]}, "import-failed",
            "the cause is RestrictAddressFamilies=AF_UNIX", id="RestrictAddressFamilies",
        ),
        pytest.param(
            ["SystemCallFilter=~setpriority"], {"imports": ["lowers_its_priority"]}, "interpreter-died",
            "killed by SIGSYS: the cause is SystemCallFilter=~setpriority", id="SystemCallFilter",
        ),
        pytest.param(
            ["ProtectHome=yes"], {"imports": ["reads_a_home"]}, "import-failed",
            "the cause is ProtectHome=yes", id="ProtectHome",
        ),
        pytest.param(
            ["ReadWritePaths=/opt/nowhere"], {"imports": ["engine"]}, "access-denied",
            "the cause is ReadWritePaths=/opt/nowhere: the service would fail with status 226/NAMESPACE",
            id="ReadWritePaths",
        ),
        pytest.param(
            ["User=nobody", "WorkingDirectory=/root"], {"imports": ["engine"]}, "access-denied",
            "user nobody cannot enter /root, which is on the way to the working directory", id="WorkingDirectory",
        ),
    ],
)  # fmt: skip
def test_a_directive_that_would_break_the_service_is_named(
    booted: BootedHost, directives: list[str], options: dict[str, Any], kind: str, words: str
) -> None:
    result = check(booted, *directives, **options)
    assert not result["ok"] and result["sandbox"] is True, result
    assert [entry["kind"] for entry in result["problems"]] == [kind], result["problems"]
    assert words in result["problems"][0]["message"]
    assert result["problems"][0]["fix"]
    assert left_behind(booted) == ""


def test_without_those_directives_all_of_it_works(booted: BootedHost) -> None:
    imports = [name for name in MODULES if name not in ("leaves_a_process", "hangs", "crashes")]
    result = check(booted, imports=imports, dlopen=[f"{SITE}/libplain.so", f"{SITE}/libstack.so"])
    assert result["ok"] and result["sandbox"] is True and result["problems"] == [], result


def test_a_file_that_the_units_user_may_not_read_is_named(booted: BootedHost) -> None:
    booted.run(f"chmod 600 {SITE}/engine.py")
    result = check(booted, "User=nobody", imports=["engine"])
    booted.run(f"chmod 644 {SITE}/engine.py")
    assert [entry["kind"] for entry in result["problems"]] == ["access-denied"]
    assert result["problems"][0]["message"] == f"user nobody cannot read {SITE}/engine.py, so `import engine` fails"


def test_crashes_hangs_and_daemons_end_in_the_sandbox_too(booted: BootedHost) -> None:
    crash = check(booted, "User=nobody", imports=["crashes"])
    assert crash["end"] == {"how": "killed", "status": signal.SIGSEGV}
    assert f"{SITE}/crashes.py:2" in crash["problems"][0]["message"]
    hang = check(booted, "User=nobody", imports=["hangs"], timeout=1)
    assert [entry["kind"] for entry in hang["problems"]] == ["load-timeout"]
    assert f"{SITE}/hangs.py:2" in hang["problems"][0]["message"]
    daemon = check(booted, "User=nobody", imports=["leaves_a_process"])
    assert daemon["ok"] and daemon["processes_left"] == ["sleep 600"]
    assert left_behind(booted) == ""


def test_a_check_that_is_killed_leaves_nothing_for_long(booted: BootedHost) -> None:
    check(booted, "User=nobody", imports=["engine"])
    options = {"venv": VENV, "unit": UNIT_FILE, "imports": ["hangs"], "timeout": 3}
    with subprocess.Popen(
        playbook.task(booted.name, MODULE, options),
        env=playbook.environment(),
        cwd=playbook.PROJECT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        booted.wait_for(lambda: "gpufleetcheck" in booted.run("systemctl list-units --no-legend 'gpufleetcheck*'"))
        # The drop-in goes while the probe runs, not at its end.
        booted.wait_for(lambda: booted.run("ls /run/systemd/system") == "")
        booted.run("kill -9 $(ps -o ppid= -C systemd-run)")
        os.killpg(process.pid, signal.SIGKILL)
    booted.wait_for(lambda: left_behind(booted) == "", limit=20)


def test_a_hardened_unit_that_cannot_load_is_not_activated(booted: BootedHost) -> None:
    """Somebody hardens the unit by a drop-in: the next deploy finds out, and what serves goes on serving."""
    pid, history = booted.pid, booted.history()
    drop_in = f"/etc/systemd/system/{UNIT}.d/hardening.conf"
    booted.run(f"mkdir -p /etc/systemd/system/{UNIT}.d")
    booted.write(drop_in, "[Service]\nNoExecPaths=/opt\n")
    try:
        deploy = playbook.run("deploy_dflash.yml", "ct129", sglang_dflash_instances=playbook.instances(draft_tokens=3))
        assert deploy.status != 0
        (failure,) = deploy.failures
        assert failure.startswith("cannot load ") and f"(unit {UNIT})" in failure
        assert f"the cause is NoExecPaths=/opt of {UNIT}" in failure
        assert "ExecPaths=" in failure
        assert "sglang_release" not in {step.action for step in deploy.steps if "Run the staged" in step.task}
        assert (booted.pid, booted.history()) == (pid, history)
        assert booted.serves()
        loaded = playbook.run("verify_dflash.yml", "ct129", sglang_dflash_verify_load=True)
        assert loaded.status != 0
        assert f"the cause is NoExecPaths=/opt of {UNIT}" in loaded.failures[0]
        assert "accept length" in loaded.failures[0].splitlines()[0]
    finally:
        booted.run(f"rm -r /etc/systemd/system/{UNIT}.d")


def test_a_library_replaced_under_the_running_service_is_found(booted: BootedHost) -> None:
    generation = booted.history()[-1]["generation"]
    clean = run_module(booted, unit=UNIT, running=True)
    assert clean["restart_needed"] is False and clean["stale"] == [] and clean["problems"] == [], clean
    assert clean["venv"] == generation
    assert booted.pid in [process["pid"] for process in clean["processes"]]
    assert {Path(library["path"]).name for library in clean["libraries"]} >= {"libcudart.so.13", "libcufile.so.0"}
    path = next(library["path"] for library in clean["libraries"] if library["path"].endswith("libcudart.so.13"))
    booted.run(f"cp -p {path} {path}.new; mv {path}.new {path}")
    try:
        replaced = run_module(booted, unit=UNIT, running=True)
        assert [(entry["path"], entry["reason"]) for entry in replaced["stale"]] == [(path, "replaced")]
        assert replaced["restart_needed"] is True
        assert [entry["kind"] for entry in replaced["problems"]] == ["stale-map"]
        verified = playbook.run("verify_dflash.yml", "ct129")
        assert verified.status == 0, verified.failures
        first, *details = verified.steps[-1].message.splitlines()
        assert "accept length" in first and details[0].startswith(f"warning: stale-map: {UNIT} runs code")
    finally:
        booted.run(f"systemctl restart {UNIT}")
    assert run_module(booted, unit=UNIT, running=True)["restart_needed"] is False
    booted.wait_for(lambda: playbook.run("verify_dflash.yml", "ct129").status == 0)
