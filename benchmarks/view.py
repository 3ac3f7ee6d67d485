"""How long does `ostinato view` take: to the first paint, and for a sentence of 30 tokens? And its pictures.

    ostinato train passivization/universal-sparse-halting training.n_updates=900 --run-dir runs/view
    python benchmarks/view.py runs/view --out docs/results/view
    python benchmarks/view.py runs/view --pictures docs/view

The page is served by a process of its own and shown by Debian's chromium, a fresh context each time: from the
navigation to the first contentful paint, and to the last panel of the first example. A sentence of 30 tokens, made of
words of the run's examples, is sent by a client that keeps its connection: `/api/inspect` with the output that
`/api/generate` gave before, `/api/generate` to its last line, and the attention of one sub-layer.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import cycle, islice
from pathlib import Path
from statistics import quantiles
from typing import Any

import torch
from common import save

from ostinato.experiments.results import markdown
from ostinato.experiments.timing.environment import describe_environment

N_TOKENS = 30
FIRST_PAINT_S, SENTENCE_S = 1.0, 0.3
"""What the page promises of a small model."""
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
TALL = 1500
PICTURES = [
    ("view", "1280-light", 1280, "light"),
    ("view", "1280-dark", 1280, "dark"),
    ("view", "375-light", 375, "light"),
    ("watch", "1280-light", 1280, "light"),
]


@contextmanager
def served(runs: list[Path], command: str = "view") -> Iterator[int]:
    """Serve runs in a process of their own, and give the port."""
    arguments = [sys.executable, "-m", "ostinato", command, *map(str, runs), "--port", "0", "--no-browser"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        try:
            yield int(line.rpartition(" at http://127.0.0.1:")[2].partition("/")[0])
        finally:
            process.terminate()


@contextmanager
def chromium() -> Iterator[Any]:
    """Give Debian's chromium, driven by playwright."""
    from playwright.sync_api import sync_playwright

    found = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if found is None:
        raise SystemExit("the first paint needs a browser: apt-get install chromium")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=found, args=FLAGS)
        yield browser
        browser.close()


class Client:
    """A client that keeps its connection."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)

    def get(self, path: str) -> Any:
        """Return the answer to a question."""
        self._connection.request("GET", path)
        return json.loads(self._connection.getresponse().read())

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """Return an answer, or the last line of a stream."""
        self._connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        found = json.loads(self._connection.getresponse().read().splitlines()[-1])
        if found.get("kind") == "error":
            raise SystemExit(found["error"])
        return found


def seconds_of(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def row(name: str, laps: list[float], limit: float | None, environment: dict[str, Any]) -> dict[str, Any]:
    low, median, high = quantiles(laps, n=4)
    found = {"name": name, "median_s": median, "low_s": low, "high_s": high, "n": len(laps), "limit_s": limit}
    return found | {"environment": environment}


def sentences(client: Client, run: str, n: int, environment: dict[str, Any]) -> list[dict[str, Any]]:
    """Return how long requests of a sentence take."""
    split = client.get("/api/runs")["runs"][0]["splits"][0]
    examples = client.get(f"/api/examples?run={run}&split={split}&limit=20")["examples"]
    words = (word for example in cycle(examples) for word in (example["source"] or example["target"]).split())
    # The end symbol is the last token.
    asked = {"run": run, "text": " ".join(islice(words, N_TOKENS - 1)), "max_length": N_TOKENS}
    ids = client.post("/api/generate", asked)["output"]["ids"]
    again = asked | {"output_ids": ids}
    found = client.post("/api/inspect", again)
    assert len(found["stacks"][0]["tokens"]) == N_TOKENS
    place = found["stacks"][-1]["attention"][0]
    looked = again | {"stack": found["stacks"][-1]["name"], "step": place["step"], "kind": place["kind"]}
    calls = {
        f"what {N_TOKENS} tokens did (/api/inspect)": ("/api/inspect", again, SENTENCE_S),
        f"their output of {len(ids) + 1} tokens (/api/generate)": ("/api/generate", asked, None),
        "attention of one sub-layer (/api/attention)": ("/api/attention", looked, None),
    }
    laps: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(n):
        for name, (path, body, _) in calls.items():
            laps[name].append(seconds_of(lambda path=path, body=body: client.post(path, body)))  # type: ignore[misc]
    return [row(name, laps[name], limit, environment) for name, (_, _, limit) in calls.items()]


def paints(port: int, n: int, environment: dict[str, Any]) -> list[dict[str, Any]]:
    """Return how long it takes until something, and until everything is shown."""
    first, last = [], []
    with chromium() as browser:
        for _ in range(n + 1):
            context = browser.new_context(viewport={"width": 1280, "height": 900})
            page = context.new_page()
            began = time.perf_counter()
            page.goto(f"http://127.0.0.1:{port}/")
            page.wait_for_selector("body[data-done]", state="attached", timeout=60_000)
            last.append(time.perf_counter() - began)
            name = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
            first.append(float(page.evaluate(name)) / 1000)
            context.close()
    # The first one starts the browser's processes.
    return [
        row("first contentful paint", first[1:], FIRST_PAINT_S, environment),
        row("last panel of the first example", last[1:], None, environment),
    ]


def take_pictures(runs: list[Path], folder: Path) -> None:
    """Write pictures of the pages into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with chromium() as browser:
        for command, name, width, scheme in PICTURES:
            with served(runs, command) as port:
                context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
                page = context.new_page()
                page.goto(f"http://127.0.0.1:{port}/")
                page.wait_for_selector("body[data-done], body[data-asked]", state="attached", timeout=60_000)
                if command == "view":
                    page.wait_for_timeout(500)  # the layout is still
                    page.click("#draw-curve")
                    page.wait_for_selector("body[data-curves]", state="attached", timeout=60_000)
                page.wait_for_timeout(1000)
                path = folder / f"{command}-{name}.png"
                page.screenshot(path=path, full_page=True, clip={"x": 0, "y": 0, "width": width, "height": TALL})
                print(f"wrote {path}")
                context.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("runs", type=Path, nargs="+", help="run directories; the first one is measured")
    parser.add_argument("--rounds", type=int, default=15, help="calls of each kind (default %(default)s)")
    parser.add_argument("--no-browser", action="store_true", help="measure requests alone")
    parser.add_argument("--out", type=Path, help="write OUT.jsonl and OUT.md")
    parser.add_argument("--pictures", type=Path, help="write pictures of the pages here, and measure nothing")
    arguments = parser.parse_args()
    if arguments.pictures is not None:
        take_pictures(arguments.runs, arguments.pictures)
        return
    environment = asdict(describe_environment(torch.device("cpu")))
    with served(arguments.runs[:1]) as port:
        client = Client(port)
        rows = sentences(client, client.get("/api/runs")["runs"][0]["name"], arguments.rounds, environment)
        rows += [] if arguments.no_browser else paints(port, arguments.rounds, environment)
    cells = [
        [
            one["name"],
            f"{1e3 * one['median_s']:.0f}",
            f"{1e3 * one['low_s']:.0f}-{1e3 * one['high_s']:.0f}",
            "" if one["limit_s"] is None else f"{1e3 * one['limit_s']:.0f}",
        ]
        for one in rows
    ]
    conditions = ", ".join(f"{name} {value}" for name, value in environment.items())
    table = markdown(["", "median, ms", "quartiles", "at most"], cells)
    save(
        rows, f"{arguments.runs[0].name}, {arguments.rounds} calls of each kind; {conditions}\n\n{table}", arguments.out
    )


if __name__ == "__main__":
    main()
