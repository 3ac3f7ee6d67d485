from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from ostinato.evaluation.timing import Effort, Lap, Stopwatch, interleave, thread_waits
from ostinato.nn.sub_layer import _seconds


class _Machine:
    """A clock that only calls move, and a count of the seconds spent waiting for a core."""

    def __init__(self) -> None:
        self.now, self.waited = 0.0, 0.0
        self.called: list[str] = []

    def stopwatch(self) -> Stopwatch:
        return Stopwatch(torch.device("cpu"), lambda: self.now, lambda: {"main": self.waited})

    def work(self, name: str, seconds: list[float], waits: list[float] | None = None) -> Callable[[], object]:
        """Return a call that takes the next of these times, the last one again and again."""

        def call() -> None:
            done = self.called.count(name)
            self.called.append(name)
            self.now += seconds[min(done, len(seconds) - 1)]
            self.waited += 0.0 if waits is None else waits[min(done, len(waits) - 1)]

        return call


def test_calls_take_turns_and_none_always_follows_the_same() -> None:
    machine = _Machine()
    calls = {name: machine.work(name, [1.0]) for name in "abcd"}
    laps = interleave(calls, Effort(rounds=40, warmup=2), machine.stopwatch())
    assert {name: len(times) for name, times in laps.items()} == dict.fromkeys("abcd", 40)
    called = "".join(machine.called).removeprefix("abcd" * 2)
    rounds = [called[start : start + 4] for start in range(0, len(called), 4)]
    assert all(sorted(one) == list("abcd") for one in rounds)
    assert "".join(one[0] for one in rounds) == "abcd" * 10
    pairs = Counter(one[place : place + 2] for one in rounds for place in range(3))
    assert len(pairs) == 12
    assert max(pairs.values()) <= 20


def test_the_order_is_the_same_in_every_run() -> None:
    machines = [_Machine(), _Machine()]
    for machine in machines:
        interleave({name: machine.work(name, [1.0]) for name in "abcd"}, Effort(rounds=5), machine.stopwatch())
    assert machines[0].called == machines[1].called


def test_a_lap_is_in_the_place_of_its_round() -> None:
    machine = _Machine()
    calls = {"a": machine.work("a", [9.0, 1.0, 2.0, 3.0]), "b": machine.work("b", [9.0, 10.0, 20.0, 30.0])}
    laps = interleave(calls, Effort(rounds=3), machine.stopwatch())
    assert [lap.seconds for lap in laps["a"]] == pytest.approx([1.0, 2.0, 3.0])
    assert [lap.seconds for lap in laps["b"]] == pytest.approx([10.0, 20.0, 30.0])


def test_a_disturbed_call_is_repeated_at_once_and_the_least_disturbed_one_counts() -> None:
    machine = _Machine()
    # After the warm-up: one disturbed call and its undisturbed repetition; then three that are all disturbed.
    a = machine.work("a", [1.0, 2.0, 1.5, 4.0, 2.0, 3.0], [0.0, 0.1, 0.06, 1.0, 0.2, 0.6])
    laps = interleave({"a": a, "b": machine.work("b", [1.0])}, Effort(rounds=2, repeats=2), machine.stopwatch())
    assert "".join(machine.called) == "ab" + "aab" + "baaa"
    assert [lap.seconds for lap in laps["a"]] == pytest.approx([1.5, 2.0])
    assert [lap.is_disturbed for lap in laps["a"]] == [False, True]


def test_nothing_is_repeated_once_the_time_is_spent() -> None:
    machine = _Machine()
    a = machine.work("a", [1.0], [0.5])
    interleave({"a": a}, Effort(rounds=3, least=3, seconds=2.5, repeats=2), machine.stopwatch())
    assert len(machine.called) == 1 + 2 + 1 + 1


def test_a_call_is_disturbed_above_four_percent_of_its_time() -> None:
    assert not Lap(10.0, 0.4).is_disturbed
    assert Lap(10.0, 0.41).is_disturbed


def test_rounds_fill_the_time_given_within_their_bounds() -> None:
    effort = Effort(rounds=8, least=3, seconds=60.0, warmup=2)
    assert effort.n_rounds(10.0) == 4
    assert effort.n_rounds(100.0) == 3
    assert effort.n_rounds(1e-12) == 8
    assert Effort(rounds=5).n_rounds(1e9) == 5


def test_the_plan_is_told_after_the_warm_up() -> None:
    machine = _Machine()
    told: list[tuple[int, float, int]] = []
    calls = {"a": machine.work("a", [2.0]), "b": machine.work("b", [3.0])}
    interleave(calls, Effort(rounds=4), machine.stopwatch(), lambda *plan: told.append((*plan, len(machine.called))))
    assert told == [(4, 20.0, 2)]


def test_waiting_is_summed_over_threads_and_new_threads_count_whole() -> None:
    states = iter([{"1": 5.0, "2": 1.0}, {"1": 5.5, "3": 0.25}])
    times = iter([0.0, 2.0])
    lap = Stopwatch(torch.device("cpu"), lambda: next(times), lambda: next(states)).time(lambda: None)
    assert lap == Lap(2.0, 0.75)


def test_waits_are_read_from_schedstat_where_there_is_one(tmp_path: Path) -> None:
    for thread, text in {"11": "100 2500000000 7\n", "12": "1 0 0\n", "13": ""}.items():
        (tmp_path / thread).mkdir()
        (tmp_path / thread / "schedstat").write_text(text)
    assert thread_waits(tmp_path) == {"11": 2.5, "12": 0.0}
    assert thread_waits(tmp_path / "none") == {}


def test_a_call_on_an_accelerator_is_timed_to_the_end_of_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: events.append(f"wait for {device}"))

    def now() -> float:
        events.append("clock")
        return 0.0

    Stopwatch(torch.device("cuda:1"), now, dict).time(lambda: events.append("call"))
    assert events == ["wait for cuda:1", "clock", "call", "wait for cuda:1", "clock"]
    events.clear()
    monkeypatch.setattr(torch.mps, "synchronize", lambda: events.append("wait"))
    Stopwatch(torch.device("mps"), now, dict).time(lambda: events.append("call"))
    assert events == ["wait", "clock", "call", "wait", "clock"]
    _seconds(torch.device("mps"))
    assert events[5:] == ["wait"]
