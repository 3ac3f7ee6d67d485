"""Requests that nobody would send, and many at once: no traceback, no wrong answer, no growing memory."""

from __future__ import annotations

import gc
import json
import logging
import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from opened_runs import PLAIN
from starlette.testclient import TestClient

from ostinato.viewer.opened import OpenRun

ODD: list[Any] = [
    *(None, True, -1, 0, 1, 2**63, 10**40, 0.5, -0.0, 1e308, "", "x", "1 2 3", "\x00", "\u202e<b>", "é" * 300, "🙂 1"),
    *(
        [],
        [1],
        [[1]],
        {},
        {"a": 1},
        {"split": "test", "index": 0},
        {"encoder": 2},
        "../../etc/passwd",
        "sparse",
        "test",
    ),
]
FIELDS = (
    *("run", "text", "example", "reads", "output_ids", "rounds", "threshold", "exit", "exit_scope", "beam"),
    *("temperature", "seed", "max_length", "stack", "step", "kind", "split", "n", "along", "colour"),
)
PATHS = ("inspect", "generate", "attention", "curve")
SOUND: list[dict[str, Any]] = [
    PLAIN,
    {"run": "sparse", "text": "1 2", "max_length": 4, "threshold": 0.5},
    {"run": "classification", "example": {"split": "test", "index": 0}},
    {"run": "sparse", "example": {"split": "test", "index": 1}, "reads": "answer"},
]
RAW = [b"", b"{", b"null", b"[]", b"\xff\xfe", b'{"run": "\\ud800"}', b"[" * 20_000, b'{"a":' * 9_000, b"1e999", b"NaN"]


def fuzzed(generator: random.Random) -> tuple[str, str, dict[str, Any]]:
    """Return the method, path and arguments of one request."""
    path = f"/api/{generator.choice(PATHS)}"
    kind = generator.random()
    if kind < 0.1:
        headers = {"content-type": "application/json"}
        return "POST", path, {"content": generator.choice(RAW), "headers": headers}
    if kind < 0.2:
        query = {
            generator.choice(("run", "split", "offset", "limit", "x")): str(generator.choice(ODD)) for _ in range(4)
        }
        return "GET", "/api/examples", {"params": query}
    body = dict(generator.choice(SOUND))
    for _ in range(generator.randint(0, 3)):
        body[generator.choice(FIELDS)] = generator.choice(ODD)
    if generator.random() < 0.3:
        body.pop(generator.choice(list(body)), None)
    return "POST", path, {"content": json.dumps(body), "headers": {"content-type": "application/json"}}


def check_fuzzed(client: TestClient, n: int, caplog: pytest.LogCaptureFixture) -> None:
    generator, found = random.Random(29), Counter[int]()
    before = client.post("/api/inspect", json=PLAIN).json()
    with caplog.at_level(logging.ERROR):
        for _ in range(n):
            method, path, arguments = fuzzed(generator)
            answer = client.request(method, path, **arguments)
            found[answer.status_code] += 1
            assert answer.status_code in (200, 400), (path, arguments, answer.text)
            for line in answer.text.splitlines():
                content = json.loads(line)
                assert answer.status_code == 200 or set(content) == {"kind", "error"}
                if content.get("kind") == "error":
                    assert "Traceback" not in content["error"]
                    assert "went wrong" not in content["error"], (path, arguments)
    assert not caplog.records
    assert min(found[200], found[400]) > n / 20, found
    after = client.post("/api/inspect", json=PLAIN).json()
    assert after | {"cost": None, "output": None} == before | {"cost": None, "output": None}
    assert after["output"]["ids"] == before["output"]["ids"]


@pytest.mark.slow
def test_a_hundred_requests_of_all_kinds_are_answered_or_refused_in_a_line(
    client: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    check_fuzzed(client, 100, caplog)


@pytest.mark.slow
def test_a_thousand_requests_of_all_kinds_are_answered_or_refused_in_a_line(
    client: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    check_fuzzed(client, 1000, caplog)


@pytest.mark.slow
def test_eight_clients_at_once_get_the_answers_that_one_gets(client: TestClient) -> None:
    check_clients(client, 8)


@pytest.mark.slow
def test_fifty_clients_at_once_get_the_answers_that_one_gets(client: TestClient) -> None:
    check_clients(client, 50)


def check_clients(client: TestClient, n: int) -> None:
    asked = [{"run": "dense", "text": "1 2 3"}, {"run": "sparse", "text": "3 2", "threshold": 0.5}]
    asked = [one | {"max_length": 3} for one in asked]
    expected = [client.post("/api/inspect", json=one).json() for one in asked]
    barrier = threading.Barrier(n, timeout=30)

    def ask(number: int) -> Any:
        barrier.wait()
        return client.post("/api/inspect", json=asked[number % 2]).json()

    with ThreadPoolExecutor(n) as pool:
        answers = list(pool.map(ask, range(n)))
    for number, answer in enumerate(answers):
        for part in ("stacks", "predictions", "thresholds", "source"):
            assert answer[part] == expected[number % 2][part]


def resident_kib() -> int:
    """Return the memory that this process holds once what nothing refers to is gone."""
    gc.collect()
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))


needs_proc = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="this system does not say how much memory is held"
)


@pytest.mark.slow
@needs_proc
def test_memory_is_flat(client: TestClient, opened: dict[str, OpenRun]) -> None:
    asked = {"run": "sparse", "text": "1 2 3 4", "max_length": 8}

    def ask(n: int) -> int:
        for _ in range(n):
            assert client.post("/api/inspect", json=asked).status_code == 200
            assert client.post("/api/generate", json=asked).status_code == 200
        return resident_kib()

    after_some = ask(50)
    assert ask(150) - after_some < 8_192


@pytest.mark.slow
@needs_proc
def test_memory_is_flat_over_requests_of_all_kinds(client: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    check_fuzzed(client, 200, caplog)
    after_some = resident_kib()
    check_fuzzed(client, 1000, caplog)  # of which some 75 reach a model
    assert resident_kib() - after_some < 2_048


@pytest.mark.slow
@needs_proc
def test_memory_is_flat_with_fifty_clients_at_once(client: TestClient) -> None:
    check_clients(client, 50)
    after_some = resident_kib()
    for _ in range(4):
        check_clients(client, 50)
    assert resident_kib() - after_some < 2_048
