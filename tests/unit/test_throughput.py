# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measuring engines over real HTTP, the gate for slower releases, and two instances side by side."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.process_unit import free_port

from ansible_collections.gpufleet.dflash.plugins.module_utils import _comparison, _release
from ansible_collections.gpufleet.dflash.plugins.module_utils._comparison import Contestant, compare
from ansible_collections.gpufleet.dflash.plugins.module_utils._engine_probe import ask
from ansible_collections.gpufleet.dflash.plugins.module_utils._gate import Gate, examine, target_of
from ansible_collections.gpufleet.dflash.plugins.module_utils._health_spec import HealthReport, HealthSpec, Unhealthy
from ansible_collections.gpufleet.dflash.plugins.module_utils._history import FAILED, VERIFIED, Event, History
from ansible_collections.gpufleet.dflash.plugins.module_utils._release import Instance, Release
from ansible_collections.gpufleet.dflash.plugins.module_utils._systemd import Systemd
from ansible_collections.gpufleet.dflash.plugins.module_utils._throughput import (
    Measurement,
    MeasurementError,
    Probe,
    Target,
    measure,
    read_benchmark,
)
from ansible_collections.gpufleet.dflash.plugins.plugin_utils._comparison_plot import checked, plot, table

TESTS = Path(__file__).parents[1]
ENGINE = TESTS / "support" / "pretend_engine.py"
QUICK = Probe(requests=2, tokens=8, seconds=0)


@pytest.fixture(scope="module")
def engines() -> Iterator[dict[str, str]]:
    """URLs of engines by how they behave, all of them real processes."""
    ports = {how: free_port() for how in ("well", "refuses", "speed:400", "speed:100")}
    running = [
        subprocess.Popen([sys.executable, str(ENGINE), str(port), "0", "0", "0", how]) for how, port in ports.items()
    ]
    urls = {how: f"http://127.0.0.1:{port}" for how, port in ports.items()}
    try:
        for url in urls.values():
            deadline = time.monotonic() + 30
            while ask(url + "/health", timeout=1).status != 200:
                assert time.monotonic() < deadline
                time.sleep(0.05)
        yield urls
    finally:
        for process in running:
            process.kill()
            process.wait()


def test_tokens_per_second_and_accept_length_are_measured(engines: dict[str, str]) -> None:
    found = measure(Target(engines["speed:100"], "sglang"), Probe(requests=2, tokens=20, seconds=0.5))
    assert 20 < found.tokens_per_second <= 100
    assert found.accept_length == 4.0
    assert found.tokens == 40 * len(found.rounds)
    assert found.tokens_per_second == max(found.rounds)
    assert found.seconds >= 0.5


def test_requests_at_once_share_the_time(engines: dict[str, str]) -> None:
    target = Target(engines["speed:100"], "sglang")
    alone = measure(target, Probe(requests=4, tokens=50, concurrency=1, seconds=0))
    together = measure(target, Probe(requests=4, tokens=50, concurrency=4, seconds=0))
    assert together.tokens_per_second > 1.5 * alone.tokens_per_second


@pytest.mark.parametrize(
    ("url", "words"), [("refuses", "HTTP 500"), ("", "connection refused")], ids=["refuses", "is not there"]
)
def test_an_engine_that_cannot_be_measured_says_why(engines: dict[str, str], url: str, words: str) -> None:
    address = engines[url] if url else f"http://127.0.0.1:{free_port()}"
    with pytest.raises(MeasurementError, match=words):
        measure(Target(address, "sglang"), QUICK)


def test_a_key_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(MeasurementError, match="the API key cannot be read: .*/absent"):
        measure(Target("http://127.0.0.1:1", "sglang", api_key_file=str(tmp_path / "absent")), QUICK)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"speed": 1}, "unknown key: speed"),
        ({"bench": "vllm"}, "probe.bench"),
        ({"requests": -1}, "probe.requests"),
        ({"requests": "many"}, "probe.requests: 'many': give a whole number"),
        ({"tokens": 10**9}, "probe.tokens: 1000000000: give a number up to 8192"),
        ({"tokens": 1}, "never drafted"),
        ({"concurrency": 0}, "probe.concurrency"),
        ({"seconds": "inf"}, "probe.seconds"),
        ({"seconds": "nan"}, "probe.seconds"),
    ],
)
def test_an_unusable_probe_is_named(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Probe.from_mapping(given)


def test_the_engines_own_benchmark_is_read() -> None:
    """A file that sglang.bench_serving 0.5.11 wrote, without what it copies of the server."""
    found = read_benchmark((TESTS / "fixtures" / "bench_serving.jsonl").read_text(), 23.0)
    assert (found.tokens_per_second, found.accept_length, found.tokens) == (90.7, None, 256)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"output_throughput": 0, "total_output_tokens": 0}', "x"])
def test_a_benchmark_without_numbers_is_an_error(text: str) -> None:
    with pytest.raises(MeasurementError, match=r"sglang\.bench_serving"):
        read_benchmark(text, 1.0)


def test_a_generation_without_the_benchmark_is_an_error(engines: dict[str, str]) -> None:
    target = Target(engines["well"], "sglang", python="/nonexistent/bin/python")
    with pytest.raises(MeasurementError, match="no Python to run"):
        measure(target, Probe(bench="sglang"))


# --- the gate ------------------------------------------------------------------------------------------

REPORT = HealthReport("u.service", healthy=True, cause="healthy", main_pid=7)
PROBE = QUICK.to_mapping()


def history(tmp_path: Path, *events: Event) -> History:
    found = History(str(tmp_path / "history.jsonl"))
    for event in events:
        found.add(event)
    return History(str(tmp_path / "history.jsonl"))


def verified(release: str, rate: float | None, probe: dict[str, Any] | None = None) -> Event:
    return Event(VERIFIED, release, accept_length=4.0, tokens_per_second=rate, probe=probe or PROBE)


def gate(
    of: History, *rates: float | Exception, release: str = "new", binding: bool = True, limit: float = 20
) -> tuple[HealthReport, int]:
    """Return what the gate says of a release that is measured with these results in turn, and how many it took."""
    turns = itertools.count()

    def measured(target: Target, probe: Probe, warm: bool) -> Measurement:
        rate = rates[next(turns)]
        if isinstance(rate, Exception):
            raise rate
        return Measurement(rate, 4.0, 16, 1.0, (rate,))

    spec = HealthSpec("u.service", "http://127.0.0.1:1", release=release)
    report = examine(
        Gate(QUICK, limit),
        REPORT,
        spec,
        Target(spec.url, "sglang"),
        of,
        binding,
        lambda line: None,
        lambda: None,
        measured,
    )
    return report, next(turns)


def test_a_release_that_is_slower_twice_is_refused_with_both_numbers(tmp_path: Path) -> None:
    with pytest.raises(Unhealthy) as caught:
        gate(history(tmp_path, verified("old", 100.0)), 79.0, 70.0)
    report = caught.value.report
    assert (report.healthy, report.cause) == (False, "slower-than-before")
    assert "21 % slower than release old: 79 tokens/s, accept length 4.00, before 100 tokens/s" in report.message
    assert report.throughput is not None and report.throughput["baseline"]["tokens_per_second"] == 100.0


@pytest.mark.parametrize(
    ("rates", "turns"), [((80.0,), 1), ((20.0, 95.0), 2), ((500.0,), 1)], ids=["at the limit", "noise", "faster"]
)
def test_a_release_that_is_fast_enough_passes(tmp_path: Path, rates: tuple[float, ...], turns: int) -> None:
    report, took = gate(history(tmp_path, verified("old", 100.0)), *rates)
    assert took == turns
    assert report.healthy and report.throughput is not None
    assert report.throughput["tokens_per_second"] == max(rates)


NOT_JUDGED: dict[str, tuple[list[Event], dict[str, Any]]] = {
    "the first release": ([], {}),
    "no numbers of old": ([verified("old", None)], {}),
    "measured in another way": ([verified("old", 100.0, {**PROBE, "tokens": 9})], {}),
    "a way back": ([verified("old", 100.0)], {"binding": False}),
    "verified here before": ([verified("new", 10.0), verified("old", 100.0)], {}),
    "verified here before, and failed since": (
        [verified("new", 10.0), verified("old", 100.0), Event(FAILED, "new")],
        {},
    ),
    "switched off": ([verified("old", 100.0)], {"limit": 0}),
    "only itself": ([verified("new", 100.0)], {}),
}


@pytest.mark.parametrize(("events", "change"), NOT_JUDGED.values(), ids=NOT_JUDGED.keys())
def test_nothing_is_judged_without_something_to_judge_by(
    tmp_path: Path, events: list[Event], change: dict[str, Any]
) -> None:
    report, took = gate(history(tmp_path, *events), 1.0, **change)
    assert (report.healthy, took) == (True, 1)
    assert report.throughput is not None and report.throughput["tokens_per_second"] == 1.0


def test_the_release_that_was_verified_last_is_the_measure(tmp_path: Path) -> None:
    known = history(tmp_path, verified("a", 100.0), verified("b", 300.0), verified("a", 90.0))
    assert gate(known, 85.0)[0].healthy


def test_a_release_that_cannot_be_measured_is_refused_only_where_it_is_judged(tmp_path: Path) -> None:
    known = history(tmp_path, verified("old", 100.0))
    with pytest.raises(Unhealthy, match="cannot be measured: no answer") as caught:
        gate(known, MeasurementError("no answer"))
    assert caught.value.report.cause == "probe-failed"
    assert gate(known, MeasurementError("no answer"), binding=False)[0] == REPORT
    assert gate(known, OSError("no space"), limit=0)[0] == REPORT


def test_a_service_that_dies_of_the_probe_is_told_as_that(tmp_path: Path) -> None:
    def dead() -> None:
        raise Unhealthy(HealthReport("u.service", cause="crashed", message="it crashed"))

    spec = HealthSpec("u.service", f"http://127.0.0.1:{free_port()}", release="new")
    with pytest.raises(Unhealthy, match="it crashed"):
        examine(
            Gate(QUICK, 0), REPORT, spec, Target(spec.url, "sglang"), history(tmp_path), False, lambda line: None, dead
        )


@pytest.mark.parametrize("limit", [-1, 100, float("nan")])
def test_an_unusable_limit_is_named(limit: float) -> None:
    with pytest.raises(ValueError, match="max_regression: .*: give percent"):
        Gate.from_options(None, limit)


def test_numbers_of_the_history_that_are_none_are_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    for number, value in enumerate(('"fast"', "NaN", "-1", "true", "[]", "Infinity")):
        path.write_text(
            f'{{"event": "verified", "release": "r{number}", "tokens_per_second": {value}, "probe": {{}}}}\n'
        )
        (event,) = History(str(path)).events
        assert event.tokens_per_second is None


def test_a_release_tells_how_it_is_measured() -> None:
    unit = 'User=dflash\nEnvironment="LD_LIBRARY_PATH=/a b/lib:/c"\n'
    release = Release("0" * 16, unit, "/opt/dflash/venvs/g", "sglang", {}, [])
    spec = HealthSpec("u.service", "http://127.0.0.1:1", model="qwen3", api_key_file="/k")
    assert target_of(spec, release) == Target(
        spec.url, "sglang", "qwen3", "/k", "/opt/dflash/venvs/g/bin/python", "/a b/lib:/c", "dflash"
    )


# --- side by side --------------------------------------------------------------------------------------


def contestant(name: str, url: str) -> Contestant:
    release = Release("0" * 16, "", "/opt/dflash/venvs/g", "sglang", {"speculative": name != "plain"}, [])
    return Contestant(Instance("/opt/dflash", name), release, Target(url, "sglang"))


def test_two_instances_are_measured_in_turns(engines: dict[str, str]) -> None:
    order: list[str] = []

    def watched(target: Target, probe: Probe, warm: bool) -> Measurement:
        order.append(target.url)
        return measure(target, probe, warm)

    slow, fast = engines["speed:100"], engines["speed:400"]
    probe = Probe(requests=2, tokens=40, seconds=0)
    result = compare(contestant("plain", slow), contestant("dflash", fast), probe, 3, watched)
    assert order == [slow, fast, fast, slow, slow, fast]
    assert 1.5 < result["ratio"]["median"] < 6
    assert result["ratio"]["low"] <= result["ratio"]["median"] <= result["ratio"]["high"]
    assert [one["name"] for one in result["instances"]] == ["plain", "dflash"]
    assert [one["speculative"] for one in result["instances"]] == [False, True]
    assert [len(one["measured"]) for one in result["instances"]] == [3, 3]


def outcome(rates: tuple[float, float] = (100.0, 124.0), name: str = "dflash") -> dict[str, Any]:
    def one(called: str, rate: float, length: float | None) -> dict[str, Any]:
        spread = {"median": rate, "low": rate * 0.9, "high": rate * 1.1}
        return {"name": called, "release": "6c1f0a2b9d3e4f50", "tokens_per_second": spread, "accept_length": length}

    return {
        "instances": [one("plain", rates[0], None), one(name, rates[1], 6.3)],
        "ratio": {"median": 1.24, "low": 1.2, "high": 1.3},
        "rounds": 5,
        "probe": Probe().to_mapping(),
    }


def test_the_table_has_a_line_for_each_instance() -> None:
    lines = table({"gpu1": outcome()}).splitlines()
    assert lines[0].split() == ["host", "instance", "release", "tokens/s", "low", "high", "accept", "length", "ratio"]
    assert lines[1].split() == ["gpu1", "plain", "6c1f0a2b9d3e4f50", "100.0", "90.0", "110.0", "-", "1"]
    assert lines[2].split()[:7] == ["gpu1", "dflash", "6c1f0a2b9d3e4f50", "124.0", "111.6", "136.4", "6.30"]
    assert lines[2].endswith("1.24 (1.20 to 1.30)")


@pytest.mark.parametrize("rates", [(100.0, 124.0), (0.03, 0.04), (81234.5, 99999.0), (0.0, 0.0)], ids=str)
def test_bars_are_as_high_as_their_numbers(rates: tuple[float, float]) -> None:
    drawn = ElementTree.fromstring(plot({"gpu1": outcome(rates), "gpu<2>": outcome(rates, "a & b")}))
    names = {"svg": "http://www.w3.org/2000/svg"}
    bars = [float(bar.attrib["height"]) for bar in drawn.findall("svg:rect", names)[1:]]
    assert len(bars) == 4
    assert all(0 <= height <= 280 for height in bars)
    if rates[0]:
        assert bars[1] / bars[0] == pytest.approx(rates[1] / rates[0], rel=0.01)
    texts = [text.text for text in drawn.findall("svg:text", names)]
    assert {"a & b", "gpu<2>", "1.20 to 1.30 in 5 rounds"} <= set(texts)


@pytest.mark.parametrize("wrong", [None, {}, [], {"gpu1": {}}, {"gpu1": "failed"}], ids=str)
def test_what_is_no_comparison_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="sglang_benchmark"):
        checked(wrong)


def test_an_instance_that_was_never_deployed_is_told_with_those_that_there_are(tmp_path: Path) -> None:
    (tmp_path / "instances" / "tiny").mkdir(parents=True)
    with pytest.raises(_release.ReleaseError, match="^plain: never deployed on this host; there is tiny: name"):
        _comparison.contestant(str(tmp_path), "plain", Systemd())
