"""A deployed host, and check mode that predicts what a run then does."""

from __future__ import annotations

from typing import Any

import pytest
from support import playbook
from support.booted_host import INSTANCE, UNIT, BootedHost


@pytest.fixture(scope="module")
def deployed() -> BootedHost:
    return BootedHost("ct129")


def test_the_service_runs_is_enabled_and_answers(host: Any) -> None:
    service = host.service(UNIT)
    assert service.is_running
    assert service.is_enabled
    assert host.socket("tcp://127.0.0.1:30001").is_listening


def test_tokens_come_out_and_drafts_are_accepted(deployed: BootedHost) -> None:
    answer = deployed.completion()
    assert answer["choices"][0]["message"]["content"]
    assert answer["timings"]["draft_n"] > 0
    assert answer["timings"]["draft_n_accepted"] == answer["timings"]["draft_n"]
    assert answer["model"] == "tiny"


def test_the_process_runs_as_its_own_user_from_a_real_path(host: Any, deployed: BootedHost) -> None:
    process = host.process.get(pid=deployed.pid)
    assert process.user == "dflash"
    executable = process.args.split()[0]
    assert host.file(executable.rpartition("/bin/")[0]).is_directory
    assert "current" not in process.args
    assert (
        host.run(f"readlink -f {executable.rpartition('/bin/')[0]}").stdout.strip() == executable.rpartition("/bin/")[0]
    )


def test_the_libraries_of_the_unit_come_from_its_generation(deployed: BootedHost) -> None:
    maps = deployed.run(f"cat /proc/{deployed.pid}/maps")
    generation = deployed.history()[-1]["generation"]
    for library in ("libcudart.so.13", "libnvtx3interop.so.1", "libcufile.so.0"):
        assert f"{generation}/lib/python3.11/site-packages/nvidia/cu13/lib/{library}" in maps


def test_the_environment_cannot_be_written_by_the_service(host: Any, deployed: BootedHost) -> None:
    generation = deployed.history()[-1]["generation"]
    assert host.file(generation).user == "root"
    for path in (generation, "/usr", "/etc", "/home"):
        denied = deployed.run(
            f"nsenter --target {deployed.pid} --mount setpriv --reuid dflash touch {path}/probe 2>&1",
            check=False,
        )
        assert "Read-only file system" in denied or "Permission denied" in denied or "No such file" in denied


def test_the_sandbox_is_better_than_exposed(deployed: BootedHost) -> None:
    told = deployed.run(f"systemd-analyze security {UNIT} --no-pager").splitlines()[-1]
    exposure = float(told.partition(f"{UNIT}: ")[2].split()[0])
    assert exposure < 3.0, told


def test_history_and_link_tell_people_what_runs(host: Any, deployed: BootedHost) -> None:
    last = deployed.history()[-1]
    assert last["event"] == "verified"
    assert last["accept_length"] > 4
    assert host.file(f"{INSTANCE}/current").linked_to == f"{INSTANCE}/releases/{last['release']}"
    assert deployed.release == last["release"]


def test_verify_finds_nothing_wrong_and_changes_nothing(deployed: BootedHost) -> None:
    before = (deployed.pid, deployed.history())
    verified = playbook.run("verify_dflash.yml", "ct129")
    assert verified.status == 0, verified.failures
    assert verified.changes == []
    said = verified.steps[-1].message
    assert f"serves http://127.0.0.1:30001, release {deployed.release}, accept length 7.8" in said
    assert (deployed.pid, deployed.history()) == before


def test_an_unchanged_deploy_costs_at_most_twelve_module_calls(deployed: BootedHost) -> None:
    pid = deployed.pid
    again = playbook.run("deploy_dflash.yml", "ct129")
    assert again.status == 0, again.failures
    assert again.changes == []
    calls = [step for step in again.steps if step.action not in playbook.CONTROLLER_ONLY]
    assert 5 <= len(calls) <= 12, [step.task for step in calls]
    assert deployed.pid == pid


@pytest.mark.parametrize("tag", ["somebody_elses_tag", "sglang_dflash_rollback"])
def test_tags_that_are_not_asked_for_leave_the_host_alone(deployed: BootedHost, tag: str) -> None:
    before = (deployed.pid, deployed.history())
    run = playbook.run("deploy_dflash.yml", "ct129", "--tags", tag)
    assert run.status == 0, run.failures
    assert run.changes == []
    assert (deployed.pid, deployed.history()) == before


def test_the_tag_for_verification_verifies() -> None:
    run = playbook.run("deploy_dflash.yml", "ct129", "--tags", "sglang_dflash_verify")
    assert run.status == 0, run.failures
    assert "sglang_health" in {step.action for step in run.steps}


def test_deploying_to_nobody_fails() -> None:
    run = playbook.run("deploy_dflash.yml", "ct999")
    assert run.status != 0
    assert "no host matches 'ct999'" in run.failures[0]


def predicted(run: playbook.Run) -> list[Any]:
    """What a run says that it changes: apt words its own diff differently in check mode, so only that it changes."""
    return [(step.task, step.label, step.diff if step.action != "package" else None) for step in run.changes]


def test_check_mode_on_a_fresh_host_predicts_what_the_run_does() -> None:
    fresh = BootedHost("ct201")
    assert fresh.run("ls /opt") == "", "this host is to be as it was installed"
    check = playbook.run("deploy_dflash.yml", "ct201", "--check")
    assert check.status == 0, check.failures
    assert fresh.run("ls /opt; ls /etc/systemd/system/sglang* 2>/dev/null", check=False) == "", "a check writes nothing"
    run = playbook.run("deploy_dflash.yml", "ct201")
    assert run.status == 0, run.failures
    assert len(run.changes) >= 5
    assert predicted(check) == predicted(run)
    assert fresh.serves()


def test_check_mode_on_a_deployed_host_predicts_what_the_run_does(deployed: BootedHost) -> None:
    instances = playbook.instances(draft_tokens=5)
    overlay = [{"dest": "dflash_note.py", "content": "NOTE = 'patched'\n"}]
    variables = {"sglang_dflash_instances": instances, "sglang_dflash_overlays": overlay}
    pid = deployed.pid
    check = playbook.run("deploy_dflash.yml", "ct129", "--check", **variables)
    assert check.status == 0, check.failures
    assert deployed.pid == pid
    run = playbook.run("deploy_dflash.yml", "ct129", **variables)
    assert run.status == 0, run.failures
    assert [step.action for step in run.changes] == ["venv_generation", "sglang_release", "sglang_release"]
    assert predicted(check) == predicted(run)
    assert "+overlay dflash_note.py" not in str(run.changes[0].diff["before"])
    assert deployed.pid != pid
    assert playbook.run("deploy_dflash.yml", "ct129").status == 0, "and back to what the inventory says"
