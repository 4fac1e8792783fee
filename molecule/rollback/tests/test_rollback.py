"""What goes wrong with releases and runs, and what a host does about it.

The tests follow each other on one host. Each leaves it serving the release that the inventory describes.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any, Callable

import pytest
from support import playbook
from support.booted_host import UNIT, BootedHost

HOST = "ct200"
LOCK = playbook.PROJECT / "roles" / "cuda_runtime" / "files" / "locks" / "cu13-llama-cpp.txt"
INCOMPLETE = "/srv/models/incomplete.gguf"


@pytest.fixture(scope="module")
def target() -> BootedHost:
    return BootedHost(HOST)


@pytest.fixture(scope="module")
def good(target: BootedHost) -> str:
    """The release that the inventory describes."""
    return target.release


@pytest.fixture(autouse=True)
def serving(target: BootedHost, good: str) -> Any:
    """Each test starts and ends with the good release serving."""
    assert (target.release, target.serves()) == (good, True)
    yield
    assert (target.release, target.serves()) == (good, True)


def deploy(**variables: Any) -> playbook.Run:
    return playbook.run("deploy_dflash.yml", HOST, **variables)


def rollback(**variables: Any) -> playbook.Run:
    return playbook.run("rollback_dflash.yml", HOST, **variables)


# Seconds between activation and verification: long enough to be killed between the two.
SLOW: dict[str, Any] = {"sglang_dflash_stable": 6}


def lock_without(tmp_path: Path, distribution: str) -> str:
    text = re.sub(rf"^{distribution}==(.*\\\n)*.*\n", "", LOCK.read_text(), flags=re.MULTILINE)
    assert distribution not in text and "xllamacpp==" in text
    path = tmp_path / "lock.txt"
    path.write_text(text)
    return str(path)


def test_a_release_that_lacks_a_library_is_refused_before_anything_is_touched(
    target: BootedHost, tmp_path: Path
) -> None:
    before = (target.pid, target.unit_property("InvocationID"), target.history())
    refused = deploy(cuda_runtime_lock=lock_without(tmp_path, "nvidia-cufile"))
    assert refused.status != 0
    (story,) = refused.failures
    assert "libcufile.so.0" in story
    assert "nvidia-cufile" in story
    assert "was not touched" in story
    assert (target.pid, target.unit_property("InvocationID"), target.history()) == before


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param({"arguments": ["--bogus"]}, "unrecognized arguments: --bogus", id="unknown argument"),
        pytest.param({"model": "/srv/models/absent.gguf"}, "/srv/models/absent.gguf", id="no such model"),
        pytest.param({"libraries": ["libnone.so.7"]}, "libnone.so.7", id="a library that nobody has"),
    ],
)
def test_an_instance_that_cannot_work_is_refused_before_anything_is_touched(
    target: BootedHost, changes: dict[str, Any], words: str
) -> None:
    before = (target.pid, target.history())
    refused = deploy(sglang_dflash_instances=playbook.instances(**changes))
    assert refused.status != 0
    assert words in refused.failures[0]
    assert (target.pid, target.history()) == before


def test_a_release_whose_engine_dies_is_taken_back_and_the_play_fails(target: BootedHost, good: str) -> None:
    before = target.pid
    failed = deploy(sglang_dflash_instances=playbook.instances(model=INCOMPLETE))
    assert failed.status != 0
    (story,) = failed.failures
    assert "exit status 1" in story
    assert "cannot load the model: check_tensor_dims: tensor 'output_norm.weight' not found" in story
    assert f"Release {good} was put back and verified: it serves with PID {target.pid}." in story
    assert target.pid != before
    events = [(event["event"], event["release"] == good) for event in target.history()[-4:]]
    assert events == [("activating", False), ("failed", False), ("activating", True), ("verified", True)]


def test_a_death_is_reported_within_two_seconds_with_status_and_journal() -> None:
    failed = deploy(sglang_dflash_instances=playbook.instances(model=INCOMPLETE))
    health = failed.failed_results[0]["failed_health"]
    assert health["seconds"] < 2, "the limit of the health check is 120 s"
    assert (health["cause"], health["exit_status"]) == ("model-unloadable", 1)
    assert any("output_norm.weight" in line for line in health["journal"])


def test_a_release_that_serves_but_drafts_too_little_is_taken_back(good: str) -> None:
    failed = deploy(sglang_dflash_instances=playbook.instances(min_accept_length=20))
    assert failed.status != 0
    assert "accept length" in failed.failures[0]
    assert f"Release {good} was put back and verified" in failed.failures[0]


# A build whose server runs for a tenth of the time: slower on any host, whatever else it does.
SLOWED = """
import os, signal, time
words = open("/proc/self/cmdline", "rb").read().split(b"\\0")
if b"dflash_llama_cpp_server" in words and b"--check" not in words:
    server = os.getpid()
    if os.fork() == 0:
        while os.getppid() == server:
            os.kill(server, signal.SIGSTOP)
            time.sleep(0.18)
            os.kill(server, signal.SIGCONT)
            time.sleep(0.02)
        os._exit(0)
"""


def test_a_release_that_generates_more_slowly_is_taken_back(target: BootedHost, good: str) -> None:
    overlays = [
        {"dest": "dflash_slowed.pth", "content": "import dflash_slowed\n"},
        {"dest": "dflash_slowed.py", "content": SLOWED},
    ]
    failed = deploy(sglang_dflash_overlays=overlays, sglang_dflash_max_regression=50)
    assert failed.status != 0
    (story,) = failed.failures
    assert re.search(rf"% slower than release {good}: \S+ tokens/s, accept length \S+, before \S+ tokens/s", story)
    assert f"Release {good} was put back and verified" in story
    assert failed.failed_results[0]["failed_health"]["cause"] == "slower-than-before"
    restored = target.history()[-1]
    assert (restored["event"], restored["release"]) == ("verified", good)
    assert restored["tokens_per_second"] > 0 and restored["accept_length"] > 4


def test_going_back_twice_changes_nothing_the_second_time(target: BootedHost, good: str) -> None:
    assert deploy(sglang_dflash_instances=playbook.instances(draft_tokens=4)).status == 0
    other = target.release
    assert other != good
    back = rollback()
    assert back.status == 0, back.failures
    assert [step.action for step in back.changes] == ["sglang_release"]
    assert target.release == good
    pid = target.pid
    again = rollback()
    assert again.status == 0, again.failures
    assert again.changes == []
    assert target.pid == pid
    named = rollback(sglang_dflash_release=other)
    assert named.status == 0, named.failures
    assert target.release == other
    assert deploy().status == 0, "the inventory still wants the good one"


@pytest.mark.parametrize("check", [["--check"], []], ids=["check", "run"])
def test_going_back_to_what_was_never_there_is_one_clear_error(target: BootedHost, check: list[str]) -> None:
    pid = target.pid
    failed = playbook.run("rollback_dflash.yml", HOST, *check, sglang_dflash_release="0" * 16)
    assert failed.status != 0
    assert "no such release" in failed.failures[0]
    assert target.pid == pid


def test_no_instance_goes_back_when_one_of_them_cannot(target: BootedHost, good: str) -> None:
    assert deploy(sglang_dflash_instances=playbook.instances(draft_tokens=4)).status == 0
    pid = target.pid
    new = {**playbook.instances()[0], "name": "never-deployed", "port": 30099}
    failed = rollback(sglang_dflash_instances=[*playbook.instances(), new])
    assert failed.status != 0
    assert "nothing to go back to" in failed.failures[0]
    assert target.pid == pid
    assert rollback().status == 0
    assert target.release == good


def test_check_mode_of_a_rollback_predicts_what_it_does(target: BootedHost, good: str) -> None:
    assert deploy(sglang_dflash_instances=playbook.instances(draft_tokens=4)).status == 0
    pid = target.pid
    check = playbook.run("rollback_dflash.yml", HOST, "--check")
    assert (check.status, target.pid) == (0, pid), check.failures
    run = rollback()
    assert check.changes == run.changes
    assert len(run.changes) == 1
    assert target.release == good


def test_after_a_reboot_the_service_is_back(target: BootedHost) -> None:
    target.restart()
    target.wait_for(lambda: target.pid)
    again = deploy()
    assert again.status == 0, again.failures
    assert again.changes == []


def test_a_service_that_was_stopped_by_hand_is_started(target: BootedHost) -> None:
    target.run(f"systemctl disable --now {UNIT}")
    again = deploy()
    assert again.status == 0, again.failures
    assert [step.action for step in again.changes] == ["sglang_release"]
    assert target.unit_property("UnitFileState") == "enabled"


def test_a_service_that_hangs_is_restarted(target: BootedHost) -> None:
    pid = target.pid
    target.run(f"kill -STOP {pid}")
    again = deploy(sglang_dflash_health_timeout=8)
    # Another limit is another release; the hung service is stopped for it, killed where it does not follow.
    assert again.status == 0, again.failures
    assert target.pid != pid
    assert deploy().status == 0


def kill_when(target: BootedHost, process: subprocess.Popen[bytes], moment: Callable[[], Any]) -> None:
    """Kill a whole run of ansible-playbook, helpers included, at a moment that the host shows."""
    try:
        target.wait_for(moment, limit=120)
        assert process.poll() is None, "the run ended before the moment came"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def last_event(target: BootedHost) -> tuple[str, str]:
    event = target.history()[-1]
    return event["event"], event["release"]


def test_killing_ansible_during_the_build_leaves_the_service_alone(target: BootedHost, good: str) -> None:
    pid = target.pid
    overlay = [{"dest": "dflash_killed_build.py", "content": "X = 1\n"}]
    known = target.run("ls /opt/dflash/venvs")

    def building() -> bool:
        """A new generation is being built."""
        return target.run("ls /opt/dflash/venvs") != known

    kill_when(target, playbook.start("deploy_dflash.yml", HOST, sglang_dflash_overlays=overlay), building)
    assert (target.pid, target.release) == (pid, good)
    converged = deploy(sglang_dflash_overlays=overlay)
    assert converged.status == 0, converged.failures
    assert target.release != good
    assert rollback().status == 0


def test_killing_ansible_between_activation_and_health_leaves_the_host_serving(target: BootedHost, good: str) -> None:
    instances = playbook.instances(draft_tokens=6)

    def switched() -> bool:
        """The new release is activated and not verified yet."""
        event, release = last_event(target)
        return event == "activating" and release != good

    kill_when(target, playbook.start("deploy_dflash.yml", HOST, sglang_dflash_instances=instances, **SLOW), switched)
    target.wait_for(lambda: last_event(target)[0] == "verified", limit=30)
    assert target.serves()
    pid = target.pid
    converged = deploy(sglang_dflash_instances=instances, **SLOW)
    assert converged.status == 0, converged.failures
    assert converged.changes == []
    assert target.pid == pid
    assert rollback().status == 0


def test_killing_ansible_after_it_activated_a_bad_release_does_not_stop_the_way_back(
    target: BootedHost, good: str
) -> None:
    instances = playbook.instances(model=INCOMPLETE, draft_tokens=3)

    def switched() -> bool:
        """The bad release is activated."""
        return last_event(target)[0] == "activating"

    kill_when(target, playbook.start("deploy_dflash.yml", HOST, sglang_dflash_instances=instances, **SLOW), switched)
    target.wait_for(lambda: last_event(target) == ("verified", good), limit=60)
    converged = deploy()
    assert converged.status == 0, converged.failures
    assert converged.changes == []


def test_killing_ansible_during_a_rollback_leaves_the_host_serving(target: BootedHost, good: str) -> None:
    assert deploy(sglang_dflash_instances=playbook.instances(draft_tokens=4)).status == 0

    def going_back() -> bool:
        """The rollback has begun."""
        return last_event(target)[1] == good

    kill_when(target, playbook.start("rollback_dflash.yml", HOST), going_back)
    target.wait_for(lambda: last_event(target) == ("verified", good), limit=30)
    again = rollback()
    assert again.status == 0, again.failures
    assert again.changes == []


def test_a_power_cut_right_after_activation_is_made_good_by_the_next_run(target: BootedHost, good: str) -> None:
    instances = playbook.instances(served_name="after-the-power-cut")

    def switched() -> bool:
        """The new release is activated and not verified yet."""
        event, release = last_event(target)
        return event == "activating" and release != good

    kill_when(target, playbook.start("deploy_dflash.yml", HOST, sglang_dflash_instances=instances, **SLOW), switched)
    target.restart()
    target.wait_for(lambda: target.pid)
    assert last_event(target)[0] == "activating", "the transaction was cut off"
    converged = deploy(sglang_dflash_instances=instances, **SLOW)
    assert converged.status == 0, converged.failures
    assert last_event(target)[0] == "verified"
    assert rollback().status == 0
