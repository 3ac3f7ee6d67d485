from __future__ import annotations

import asyncio
import gc
import http.client
import json
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from opened_runs import PLAIN

from ostinato.cli import main
from ostinato.errors import ConfigError
from ostinato.viewer import inspecting, serve, writing
from ostinato.viewer.calls import Call, Calls, ClientGone
from ostinato.viewer.opened import OpenRun
from ostinato.viewer.schema import Limits, Token
from ostinato.viewer.serve import address_of, listen
from ostinato.viewer.server import _answered, view_app
from serving import serving


def test_nobody_complains_of_the_work_of_a_client_that_has_gone() -> None:
    complaints: list[Any] = []
    calls, begun, leave = Calls(5.0, 2), threading.Event(), threading.Event()

    def work(call: Call) -> Any:
        begun.set()
        leave.wait(5)
        raise ClientGone

    class Gone:
        async def receive(self) -> dict[str, str]:
            await asyncio.to_thread(begun.wait, 5)
            return {"type": "http.disconnect"}

    async def asked() -> int:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
        answer = await _answered(Gone(), calls, work)  # type: ignore[arg-type]
        leave.set()
        await asyncio.sleep(0.05)
        return answer.status_code

    assert asyncio.run(asked()) == 499
    calls.close()
    gc.collect()
    assert complaints == []


@pytest.mark.parametrize("path", ["/api/inspect", "/api/generate"])
def test_a_client_that_goes_away_ends_its_work(
    opened: dict[str, OpenRun], monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    begun, ended = threading.Event(), threading.Event()

    def endless(run: OpenRun, asked: Any, call: Call, emit: Any = None) -> None:
        begun.set()
        try:
            while True:
                call.check()
                if emit is not None:
                    emit(Token(text="x", tokens=["x"]))
                time.sleep(0.005)
        finally:
            ended.set()

    monkeypatch.setattr(inspecting, "inspect", endless)
    monkeypatch.setattr(writing, "generate", endless)
    with serving(view_app(opened, Limits())) as address:
        connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=10)
        body = json.dumps(PLAIN)
        connection.request("POST", path, body, {"content-type": "application/json"})
        assert begun.wait(10)
        assert not ended.is_set()
        connection.sock.close()
        assert ended.wait(10)


def test_an_address_that_cannot_be_listened_at_is_told_in_a_line() -> None:
    with listen("127.0.0.1", 0) as bound:
        port = bound.getsockname()[1]
        assert address_of(bound, "127.0.0.1") == f"http://127.0.0.1:{port}/"
        assert address_of(bound, "0.0.0.0") == f"http://127.0.0.1:{port}/"
        assert address_of(bound, "::1") == f"http://[::1]:{port}/"
        with pytest.raises(ConfigError, match=rf"--port is {port}: is in use"):
            listen("127.0.0.1", port)
    for host in ("192.0.2.1", "nobody.invalid", "\x00"):
        with pytest.raises(ConfigError, match="--host is"):
            listen(host, 0)


def test_a_server_that_is_open_to_others_says_so() -> None:
    assert serve.told("serving", ["a", "b"], "http://127.0.0.1:1/", "127.0.0.1").endswith(
        "serving a, b at http://127.0.0.1:1/ (Ctrl-C ends it)"
    )
    assert "all who can reach 0.0.0.0 can use it" in serve.told("serving", ["a"], "http://127.0.0.1:1/", "0.0.0.0")


def last_line(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert isinstance(caught.value.code, int)
    return caught.value.code, capsys.readouterr().err.strip()


def test_commands_on_what_is_no_run_are_a_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, run_folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, line = last_line(capsys, "view", str(tmp_path / "nothing"))
    assert (code, line) == (2, f"{tmp_path / 'nothing'}: there is no such directory")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        code, line = last_line(capsys, "view", str(run_folders[0]), "--port", port)
        assert code == 2
        assert "is in use" in line
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    for command in ("view", "watch"):
        assert last_line(capsys, command, str(run_folders[0])) == (2, serve.HOW_TO_GET)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["view", "watch"])
def test_a_command_serves_until_it_is_interrupted(command: str, run_folders: list[Path]) -> None:
    arguments = [sys.executable, "-m", "ostinato", command, str(run_folders[-1]), "--port", "0", "--no-browser"]
    # A background shell may have told its children to ignore Ctrl-C.
    preamble = "import signal, sys, runpy; signal.signal(signal.SIGINT, signal.default_int_handler); "
    arguments[1:3] = ["-c", f"{preamble}sys.argv[0] = 'ostinato'; runpy.run_module('ostinato', run_name='__main__')"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        address = line.partition(" at http://")[2].partition("/")[0]
        host, _, port = address.partition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=20)
        connection.request("GET", "/api/runs")
        assert json.loads(connection.getresponse().read())["runs"][0]["name"] == "sparse"
        connection.close()
        process.send_signal(2)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert out == ""
    assert "Traceback" not in err
