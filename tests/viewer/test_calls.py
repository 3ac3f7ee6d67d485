from __future__ import annotations

import threading
import time
from concurrent.futures import CancelledError

import pytest

from ostinato.viewer.calls import BusyError, Call, Calls, ClientGone, TimeLimitError


def test_work_is_done_one_at_a_time_in_the_order_it_came() -> None:
    calls, order, at_work = Calls(5.0, 20), list[int](), list[int]()

    def work(number: int) -> int:
        at_work.append(number)
        assert len(at_work) == 1
        time.sleep(0.001)
        order.append(at_work.pop())
        return number

    futures = [calls.submit(lambda call, n=n: work(n))[1] for n in range(20)]  # type: ignore[misc]
    assert [future.result(5) for future in futures] == order == list(range(20))
    calls.close()


def test_of_two_runs_one_computes_at_a_time() -> None:
    both, at_work = [Calls(5.0, 20), Calls(5.0, 20)], list[int]()

    def work(number: int) -> int:
        at_work.append(number)
        time.sleep(0.01)
        found = len(at_work)
        at_work.remove(number)
        return found

    futures = [both[n % 2].submit(lambda call, n=n: work(n))[1] for n in range(10)]  # type: ignore[misc]
    assert [future.result(5) for future in futures] == [1] * 10
    for calls in both:
        calls.close()


def test_a_full_queue_says_so_and_takes_more_when_there_is_room() -> None:
    calls, go = Calls(5.0, 2), threading.Event()
    futures = [calls.submit(lambda call: go.wait(5))[1] for _ in range(2)]
    with pytest.raises(BusyError, match="2 requests are waiting"):
        calls.submit(lambda call: None)
    go.set()
    assert all(future.result(5) for future in futures)
    assert calls.submit(lambda call: 7)[1].result(5) == 7
    calls.close()


def test_who_goes_away_ends_the_work_or_it_is_never_begun() -> None:
    calls, begun = Calls(5.0, 5), threading.Event()

    def endless(call: Call) -> None:
        begun.set()
        while True:
            call.check()
            time.sleep(0.001)

    first, at_work = calls.submit(endless)
    second, waiting = calls.submit(lambda call: "never")
    assert begun.wait(5)
    second.cancel()
    first.cancel()
    with pytest.raises(ClientGone):
        at_work.result(5)
    with pytest.raises((ClientGone, CancelledError)):
        waiting.result(5)
    calls.close()


def test_work_that_takes_too_long_says_so() -> None:
    calls = Calls(0.01, 5)

    def slow(call: Call) -> None:
        time.sleep(0.03)
        call.check()

    with pytest.raises(TimeLimitError, match=r"longer than 0\.01 s"):
        calls.submit(slow)[1].result(5)
    calls.close()
