from __future__ import annotations

import re
from typing import Any

import pytest
from opened_runs import PLAIN
from starlette.testclient import TestClient

from ostinato.viewer.guard import HEADERS, guarded
from ostinato.viewer.server import page_files


@pytest.mark.parametrize("host", ["127.0.0.1:8765", "localhost", "LOCALHOST:9000", "[::1]:8765", "127.0.0.1"])
def test_names_of_this_machine_are_answered(client: TestClient, host: str) -> None:
    assert client.get("/api/runs", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil", "10.0.0.7", "", "localhost:x", "[::1", "a@b"]
)
def test_other_names_that_lead_here_are_refused(client: TestClient, host: str) -> None:
    for path in ("/", "/api/runs"):
        answer = client.get(path, headers={"host": host})
        assert answer.status_code == 421
        assert "(Host)" in answer.json()["error"]


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1:8765", "http://127.0.0.1:1"])
def test_requests_that_another_site_sends_are_refused(client: TestClient, origin: str) -> None:
    answer = client.post("/api/inspect", json=PLAIN, headers={"origin": origin})
    assert answer.status_code == 403
    assert "(Origin)" in answer.json()["error"]


def test_the_page_itself_is_answered(client: TestClient) -> None:
    own = {"origin": "http://127.0.0.1:8765", "sec-fetch-site": "same-origin"}
    assert client.post("/api/inspect", json=PLAIN, headers=own).status_code == 200
    for site in ("cross-site", "same-site"):
        assert client.get("/api/runs", headers={"sec-fetch-site": site}).status_code == 403
        assert client.get("/", headers={"sec-fetch-site": site}).status_code == 200


def test_requests_must_be_json_of_a_limited_size(client: TestClient) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        assert client.post("/api/inspect", content=b"{}", headers={"content-type": kind}).status_code == 415
    large = b'{"run": "dense", "text": "' + b"1" * 70_000 + b'"}'
    json = {"content-type": "application/json"}
    assert client.post("/api/inspect", content=large, headers=json).status_code == 413

    def parts() -> Any:
        for start in range(0, len(large), 7000):
            yield large[start : start + 7000]

    assert client.post("/api/inspect", content=parts(), headers=json).status_code == 413


def test_every_answer_tells_browsers_what_it_may_do(client: TestClient) -> None:
    answers = [client.get("/"), client.get("/nothing"), client.get("/", headers={"host": "x"})]
    answers.append(client.post("/api/inspect", json=PLAIN))
    for answer in answers:
        for name, value in HEADERS.items():
            assert answer.headers[name] == value
    assert "unsafe" not in HEADERS["content-security-policy"]


def test_no_name_in_a_request_is_one_of_a_file(client: TestClient) -> None:
    for path in (
        "/page/../server.py",
        "/page/%2e%2e/server.py",
        "/page//etc/passwd",
        "/page/x.js",
        "/../../etc/passwd",
    ):
        assert client.get(path).status_code == 404, path
    names = ["../dense", "/etc", "dense/../dense", "..%2f"]
    for name in names:
        assert client.post("/api/inspect", json={"run": name, "text": "1"}).status_code == 400


def test_reading_changes_nothing_and_other_methods_are_refused(client: TestClient) -> None:
    for path in ("/api/inspect", "/api/generate", "/api/curve", "/api/attention"):
        assert client.get(path).status_code == 405
    assert client.delete("/api/runs").status_code == 405


def test_an_open_server_takes_addresses_and_its_own_name_but_no_others() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    client = TestClient(guarded(app, "0.0.0.0", body=10))
    assert client.get("/", headers={"host": "192.168.1.7:8765"}).status_code == 200
    assert client.get("/", headers={"host": "evil.example"}).status_code == 421
    client = TestClient(guarded(app, "lab.example", body=10))
    assert client.get("/", headers={"host": "Lab.Example:8765"}).status_code == 200


def test_the_page_makes_elements_of_text_only_and_loads_nothing_from_elsewhere() -> None:
    files = {name: content.decode() for name, content in page_files().items()}
    scripts = [text for name, text in files.items() if name.endswith(".js")]
    assert len(scripts) >= 6
    for text in scripts:
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", text)
    for name, text in files.items():
        found = set(re.findall(r"https?://[^\s\"'`)]+", text))
        assert found <= {"http://www.w3.org/2000/svg"}, name
        assert not re.search(r"<script>|\sstyle=|\son\w+=", text) or not name.endswith(".html")


def test_text_of_data_comes_back_as_text(client: TestClient) -> None:
    text = "<img src=x onerror=alert(1)>"
    answer = client.post("/api/inspect", json={"run": "dense", "text": text})
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/json"
