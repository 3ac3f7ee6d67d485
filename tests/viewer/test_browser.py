"""The page in a real browser: Debian's chromium, driven by playwright.

Where a test fails, pytest on Python 3.11 needs --tb=native to say so: playwright's greenlets confuse its parser.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from opened_runs import KINDS, OLD_RUNS
from own_metric import OWN, scored_by_both

from ostinato.data.example import Example
from ostinato.viewer.chosen import ChosenRun
from ostinato.viewer.live import Watch
from ostinato.viewer.opened import OpenRun, open_runs
from ostinato.viewer.schema import Limits
from ostinato.viewer.server import view_app, watch_app
from serving import serving

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
HOW = "needs a browser: apt-get install chromium, and pip install playwright"
if CHROMIUM is None:
    pytest.skip(HOW, allow_module_level=True)
sync_api = pytest.importorskip("playwright.sync_api", reason=HOW)

pytestmark = [pytest.mark.browser, pytest.mark.slow]
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
PATIENCE_MS = 120_000
"""What is waited for comes when the machine has time for it."""
EVIL = "<img src=x onerror=\"document.title='broken'\"><script>document.title='broken'</script>"


@pytest.fixture(scope="module")
def address(opened: dict[str, OpenRun]) -> Iterator[str]:
    with serving(view_app(opened, Limits(examples=20))) as found:
        yield found


@pytest.fixture(scope="module")
def watch_address() -> Iterator[str]:
    runs = [OLD_RUNS / "trained" / name for name in ("sparse", "dense")]
    with serving(watch_app(Watch([ChosenRun(run.name, run) for run in runs]), Limits())) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield found
        found.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page; what it logs, fails at, or asks of other machines makes the test fail."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light")
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    context.set_default_timeout(PATIENCE_MS)
    found, wrong = context.new_page(), list[str]()
    found.on("pageerror", lambda error: wrong.append(f"error: {error}"))
    found.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
    found.on(
        "request",
        lambda request: (
            wrong.append(request.url) if not request.url.startswith(("http://127.0.0.1", "data:")) else None
        ),
    )
    yield found
    context.close()
    assert wrong == []


def opened_page(page: Any, address: str, fragment: str = "") -> Any:
    """Open an address afresh and wait until everything is there."""
    page.goto("about:blank")
    page.goto(address + (f"#{fragment}" if fragment else ""))
    return finished(page, 1)


def finished(page: Any, times: int) -> Any:
    until = time.monotonic() + 120
    while (
        int(page.evaluate("document.body.dataset.done ?? 0")) < times
    ):  # functions are strings, which it evaluates not
        assert time.monotonic() < until, page.inner_text("#status")
        page.wait_for_timeout(20)
    return page


def text_of(page: Any, selector: str) -> str:
    return str(page.inner_text(selector))


def test_an_example_is_shown_with_all_its_panels(page: Any, address: str, opened: dict[str, OpenRun]) -> None:
    opened_page(page, address, "run=sparse&split=test&index=1")
    example = opened["sparse"].examples("test")[1]
    assert page.input_value("#text") == example.source
    assert example.target in text_of(page, "#about")
    (expected,) = opened["sparse"].run.generate([str(example.source)])
    assert text_of(page, "[data-output]") == expected
    for panel in ("cost", "depth", "predictions", "surprisal", "attention", "experts", "plan"):
        assert page.locator(f"#{panel} table").count() >= 1, panel
        assert page.locator(f"#{panel}").is_visible()
    n_tokens = len(str(example.source).split()) + 1
    assert page.locator("#depth table").first.locator("tbody tr").count() == n_tokens
    assert "done in" in text_of(page, "#status")


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_model_is_shown(page: Any, address: str, name: str) -> None:
    opened_page(page, address, f"run={name}")
    assert "done in" in text_of(page, "#status")
    assert page.locator("#predictions tbody tr").count() >= 1
    assert page.locator("#cost tbody tr").count() == 2


def test_ones_own_text_is_read_and_bad_text_is_a_line(page: Any, address: str) -> None:
    opened_page(page, address, "run=dense")
    page.fill("#text", "3 1 4")
    page.press("#text", "Enter")
    finished(page, 2)
    assert page.locator("#predictions tbody tr").count() >= 1
    assert "text=3+1+4" in page.url
    page.fill("#text", "3 1 zebra")
    page.click("button[type=submit]")
    page.wait_for_selector("#status.bad")
    assert "'zebra' is not among" in text_of(page, "#status")
    page.locator("#status").evaluate("e => e.textContent")
    # Nothing of the sentence before is shown, or copied, as what was found of this one.
    assert page.locator("#output [data-output], #predictions table, #cost table, #attention .chips").count() == 0
    page.click("#copy-json")
    copied = json.loads(page.evaluate("navigator.clipboard.readText()"))
    assert (copied["found"], copied["attention"]) == ({}, {})


def test_attention_that_cannot_be_told_is_shown_of_no_other_place(page: Any, address: str) -> None:
    opened_page(page, address, "run=sparse&split=test&index=0")
    page.route("**/api/attention", lambda route: route.fulfill(body="no JSON"))
    page.focus("#attention-of")
    page.keyboard.press("ArrowUp")
    page.wait_for_selector("#status.bad")
    assert page.locator("#attention .chips").count() == 0
    assert page.locator("#predictions table").count() == 1  # found of this sentence


def test_enter_that_an_input_method_takes_begins_nothing(page: Any, address: str) -> None:
    opened_page(page, address, "run=dense&split=test&index=0")
    is_left = """(made) => document.getElementById("text").dispatchEvent(
        new KeyboardEvent("keydown", { key: "Enter", cancelable: true, ...made }))"""
    assert page.evaluate(is_left, {"isComposing": True})
    assert page.evaluate(is_left, {"keyCode": 229})
    assert not page.evaluate(is_left, {"keyCode": 13})
    finished(page, 2)


def test_texts_are_written_from_right_to_left_where_their_language_is(page: Any, address: str) -> None:
    opened_page(page, address, "run=dense&split=test&index=0")
    words = "\u05e9\u05dc\u05d5\u05dd!"
    direction = """(e, words) => {
        e[e.value === undefined ? "textContent" : "value"] = words;
        return getComputedStyle(e).direction;
    }"""
    for part in ("#text", "[data-output]", "#output p span"):
        assert page.locator(part).evaluate(direction, "hello!") == "ltr"
        assert page.locator(part).evaluate(direction, words) == "rtl"
    for part in ("th", "td", ".chip"):
        style = page.locator(f"#predictions {part}, #attention {part}").first
        assert style.evaluate("e => getComputedStyle(e).unicodeBidi") == "plaintext"


def test_sliders_act_at_once_and_stand_in_the_address(page: Any, address: str) -> None:
    opened_page(page, address, "run=sparse&split=test&index=0")
    before = text_of(page, "#cost")
    page.locator("#rounds-encoder").fill("6")
    finished(page, 2)
    assert "rounds.encoder=6" in page.url
    assert page.locator("#depth table").first.locator("thead th").count() == 6 + 3
    page.select_option("#stop", "threshold")
    finished(page, 3)
    page.locator("#threshold").fill("0.3")
    finished(page, 4)
    assert text_of(page, "#cost") != before
    depth, address_now = text_of(page, "#depth"), page.url
    opened_page(page, address_now)
    assert text_of(page, "#depth") == depth
    assert page.input_value("#threshold") == "0.3"
    assert page.input_value("#rounds-encoder") == "6"


def test_two_runs_stand_side_by_side(page: Any, address: str) -> None:
    opened_page(page, address, "run=sparse&run=dense&split=test&index=0")
    for panel in ("output", "cost", "predictions", "plan"):
        assert page.locator(f"#{panel} .pair.two > div").count() == 2
    boxes = [page.locator(f"#output [data-run={name}]").bounding_box() for name in ("sparse", "dense")]
    assert boxes[0]["y"] == boxes[1]["y"]
    assert boxes[0]["x"] < boxes[1]["x"]
    page.select_option("#run-1", "")
    assert page.locator("#output .pair > div").count() == 1


def test_a_run_of_other_examples_reads_the_same_sentence(
    page: Any, address: str, opened: dict[str, OpenRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = opened["one-wide"].examples("test")
    monkeypatch.setitem(opened["one-wide"]._examples, "test", own[::-1])
    opened_page(page, address, "run=dense&run=one-wide&split=test&index=0&reads=answer")
    columns = [page.locator(f"#surprisal [data-run={name}]") for name in ("dense", "one-wide")]
    assert page.input_value("#text") == opened["dense"].examples("test")[0].source
    assert columns[0].locator("tbody tr").count() > 0
    assert "Answer" in page.locator("#output [data-run=dense]").inner_text()
    assert "Answer" not in page.locator("#output [data-run=one-wide]").inner_text()


def test_a_token_shows_where_it_looks(page: Any, address: str) -> None:
    opened_page(page, address, "run=dense&split=test&index=0")
    tokens, looked = page.locator("#attention .chips").first, page.locator("#attention .chips").nth(1)
    looks = []
    for number in (0, 1):
        tokens.locator("button").nth(number).focus()
        looks.append(looked.locator(".chip").evaluate_all("all => all.map(e => e.title)"))
    assert looks[0] != looks[1]
    for look in looks:
        assert sum(float(share.rstrip(" %")) for share in look) == pytest.approx(100, abs=1)


def test_the_curve_is_drawn_with_the_point_where_one_stands(page: Any, address: str) -> None:
    opened_page(page, address, "run=sparse&split=test&index=0&along=threshold&n=4")
    page.click("#draw-curve")
    page.wait_for_selector("body[data-curves='1']")
    assert page.locator("#curve circle.here").count() == 1
    assert page.locator("#curve circle").count() == 9
    assert page.locator("#curve svg").get_attribute("role") == "img"
    page.click("#curve summary")
    assert page.locator("#curve tbody tr").count() == 9
    # It is of that split alone.
    page.select_option("#split", "train")
    finished(page, 2)
    assert page.locator("#curve svg").count() == 0


def test_beside_the_curve_stands_what_is_read_in_another_way(page: Any, address: str) -> None:
    opened_page(page, address, "run=language-model&index=0&stop=change&along=threshold&n=2")
    page.click("#draw-curve")
    page.wait_for_selector("body[data-curves='1']")
    assert "language-model: every text is read by itself" in text_of(page, "#curve")


def test_the_curve_of_a_metric_shows_the_scores_of_what_is_written(page: Any, address: str, client: Any) -> None:
    opened_page(page, address, "run=sparse&split=train&index=0&along=rounds&n=20&metric=token_accuracy_free")
    page.click("#draw-curve")
    page.wait_for_selector("body[data-curves='1']")
    assert "token_accuracy_free, % of a perfect score" in str(page.locator("#curve svg").text_content())
    page.click("#curve summary")
    shown = page.locator("#curve tbody tr td:nth-child(3)").all_inner_texts()
    asked = {"run": "sparse", "split": "train", "n": 20, "along": "rounds", "metric": "token_accuracy_free", "beam": 1}
    points = [json.loads(line) for line in client.post("/api/curve", json=asked).text.splitlines()][:-1]
    assert [float(share.rstrip(" %")) for share in shown] == pytest.approx([100 * p["score"] for p in points], abs=0.06)
    page.select_option("#metric", "")
    assert "metric" not in page.url


@pytest.mark.parametrize("sliders", ["", "&beam=3", "&temperature=0.5&seed=7", "&temperature=0"])
def test_the_curve_of_a_metric_is_searched_as_the_sentence_is(
    page: Any, opened: dict[str, OpenRun], sliders: str
) -> None:
    run = opened["sparse"].run
    draws = run.recipe.model_copy(update={"decoding": run.decoding(strategy="sample")})
    runs, asked = open_runs({"run": replace(run, recipe=draws)}, Limits()), dict[str, Any]()
    page.on("request", lambda sent: sent.method == "POST" and asked.update({sent.url: sent.post_data_json}))
    with serving(view_app(runs, Limits())) as address:
        opened_page(page, address, f"run=run&split=train&index=0&along=rounds&n=2&metric=token_accuracy_free{sliders}")
        page.click("#draw-curve")
        page.wait_for_selector("body[data-curves='1']")
    runs["run"].close()
    sentence, curve = (
        {key: asked[f"{address}api/{path}"].get(key) for key in ("beam", "temperature", "seed")}
        for path in ("generate", "curve")
    )
    assert curve == sentence
    assert any(value is not None for value in curve.values()) == bool(sliders)


def test_the_curve_of_a_metric_whose_best_is_0_shows_plain_scores(page: Any, opened: dict[str, OpenRun]) -> None:
    runs = open_runs({"run": scored_by_both(opened["sparse"].run)}, Limits())
    with serving(view_app(runs, Limits())) as address:
        opened_page(page, address, f"run=run&split=train&index=0&along=rounds&n=20&metric={OWN}")
        page.click("#draw-curve")
        page.wait_for_selector("body[data-curves='1']")
        words = str(page.locator("#curve svg").text_content())
        page.click("#curve summary")
        shown = page.locator("#curve tbody tr td:nth-child(3)").all_inner_texts()
    runs["run"].close()
    assert OWN in words
    assert "of a perfect score" not in words
    assert all(-1 <= float(score) <= 0 for score in shown)


def test_what_is_seen_is_copied_as_json_and_saved_as_a_picture(page: Any, address: str) -> None:
    opened_page(page, address, "run=sparse&split=test&index=0")
    page.click("[aria-label='Copy Rounds by token as JSON']")
    copied = json.loads(page.evaluate("navigator.clipboard.readText()"))
    assert copied["data"]["sparse"]["stacks"][0]["name"] == "encoder"
    assert copied["address"] == page.url
    for panel in ("Rounds by token", "Plan"):
        with page.expect_download() as caught:
            page.click(f"[aria-label='Save {panel} as PNG']")
        content = Path(caught.value.path()).read_bytes()
        assert content[:8] == b"\x89PNG\r\n\x1a\n"
        assert len(content) > 3000
    assert pixels_of(page, content)["colours"] > 20  # cells of several colours, with letters on them


def pixels_of(page: Any, content: bytes) -> Any:
    """Return a picture's height and width in pixels of the page, its number of colours, and which rows have ink."""
    return page.evaluate(
        """async (source) => {
            const image = new Image();
            image.src = source;
            await image.decode();
            const canvas = document.createElement("canvas");
            [canvas.width, canvas.height] = [image.width, image.height];
            const pen = canvas.getContext("2d");
            pen.drawImage(image, 0, 0);
            const all = new Uint32Array(pen.getImageData(0, 0, image.width, image.height).data.buffer);
            const ink = Array.from({ length: image.height }, (_, y) =>
                all.subarray(y * image.width + 2, (y + 1) * image.width - 2).some((colour) => colour !== 0xffffffff));
            return { height: image.height / 2, width: image.width / 2, colours: new Set(all).size, ink };
        }""",
        f"data:image/png;base64,{base64.b64encode(content).decode()}",
    )


def test_a_picture_holds_every_line_and_all_of_a_table(page: Any, address: str) -> None:
    opened_page(page, address, "run=sparse&split=test&index=0&along=threshold&n=2")

    def picture_of(panel: str) -> Any:
        with page.expect_download() as caught:
            page.click(f"[aria-label='Save {panel} as PNG']")
        return pixels_of(page, Path(caught.value.path()).read_bytes())

    words = page.locator("[data-output]")
    words.evaluate("e => { e.textContent = 'a word and another '.repeat(40); }")
    box, panel = words.bounding_box(), page.locator("#output").bounding_box()
    top, height = box["y"] - panel["y"], box["height"]
    line = words.evaluate("e => parseFloat(getComputedStyle(e).lineHeight)")
    assert height >= 4 * line
    ink = picture_of("Output")["ink"]
    for number in range(round(height / line)):
        start = top + number * line
        assert any(ink[int(2 * start) : int(2 * (start + line))]), f"line {number + 1}"

    scroll = page.locator("#depth .scroll").first
    scroll.evaluate("""e => { const body = e.querySelector("tbody"), row = body.rows[0];
        for (let i = 0; i < 60; i++) body.append(row.cloneNode(true));
        for (let i = 0; i < 60; i++) row.append(row.cells[1].cloneNode(true)); }""")
    hidden = scroll.evaluate("e => [e.scrollWidth - e.clientWidth, e.scrollHeight - e.clientHeight]")
    assert min(hidden) > 100
    token = scroll.locator("tbody th").first
    token.evaluate("e => { e.textContent = 'a long token '.repeat(9); }")
    cut_off = token.evaluate("e => e.scrollWidth - e.offsetWidth")
    assert cut_off > 100
    hidden = scroll.evaluate("e => [e.scrollWidth - e.clientWidth, e.scrollHeight - e.clientHeight]")
    scroll.evaluate("e => e.scrollTo(50, 50)")
    shown, picture = page.locator("#depth").bounding_box(), picture_of("Rounds by token")
    assert picture["width"] == pytest.approx(shown["width"] + hidden[0] + cut_off, abs=20)
    assert picture["height"] == pytest.approx(shown["height"] + hidden[1], abs=60)  # less scroll bars and wrapped words
    assert page.locator("#depth").count() == 1
    assert scroll.evaluate("e => [e.scrollLeft, e.scrollTop]") == [50, 50]  # the page is as it was

    page.click("#draw-curve")
    page.wait_for_selector("body[data-curves='1']")
    below = page.locator("#curve summary").bounding_box()["y"] + 20 - page.locator("#curve").bounding_box()["y"]
    assert not any(picture_of("Accuracy against cost")["ink"][int(2 * below) : -2])  # its numbers are folded away


def test_text_of_data_is_never_read_as_html(
    page: Any, address: str, opened: dict[str, OpenRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    example = Example("1 2", EVIL, {EVIL: EVIL})
    run = opened["dense"]
    run.examples("test")
    monkeypatch.setitem(run._examples, "test", [example])
    page.goto("about:blank")
    page.goto(f"{address}#run=dense&split=test&index=0&text={EVIL}")
    page.wait_for_selector("#status.bad")
    assert page.input_value("#text") == EVIL
    page.goto("about:blank")
    page.goto(f"{address}#run=dense&split=test&index=0")
    finished(page, 1)
    assert EVIL in text_of(page, "#about")
    assert EVIL in text_of(page, "#output")
    assert page.title() == "ostinato view"
    assert page.locator("main img").count() == 0


CONTRAST = """() => {
    const parse = (c) => (c.match(/[\\d.]+/g) || []).map(Number);
    const linear = (x) => x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4;
    const light = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
    const behind = (own) => {
        let back = own;
        while (back && parse(getComputedStyle(back).backgroundColor)[3] === 0) back = back.parentElement;
        return light(parse(getComputedStyle(back ?? document.body).backgroundColor));
    };
    const ratio = (colour, own) => {
        const [a, b] = [light(parse(colour)), behind(own)];
        return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    };
    const wrong = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const own = walker.currentNode.parentElement, text = walker.currentNode.data;
        if (!text.trim() || own.closest("script, noscript") || !own.checkVisibility()) continue;
        const drawing = own.closest("svg"), style = getComputedStyle(own);
        const found = ratio(drawing ? style.fill : style.color, drawing ?? own);
        if (found < 4.5) wrong.push([text, found, own.getAttribute("class")]);
    }
    for (const line of document.querySelectorAll("svg polyline, svg circle, svg line:not(.grid)")) {
        const style = getComputedStyle(line), colour = style.fill === "none" ? style.stroke : style.fill;
        const found = ratio(line.tagName === "line" ? style.stroke : colour, line.closest("svg"));
        if (found < 3) wrong.push([line.outerHTML.slice(0, 80), found, colour]);
    }
    return wrong;
}"""
"""Texts whose contrast is below that of WCAG's level AA, 4.5 to 1, and parts of drawings below 3 to 1."""
NAMELESS = """() => [...document.querySelectorAll("button, input, select, textarea, [tabindex], [role]")]
    .filter((e) => e.role !== "status")
    .filter((e) => e.checkVisibility() && !e.getAttribute("aria-label") && !e.labels?.length)
    .filter((e) => e.tagName !== "BUTTON" || !e.innerText.trim())
    .map((e) => e.outerHTML.slice(0, 120))"""
"""What a screen reader has no name for."""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [375, 1280])
def test_the_page_is_legible_at_both_widths_in_both_themes(browser: Any, address: str, scheme: Any, width: int) -> None:
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    opened_page(page, address, "run=sparse&run=dense&split=test&index=0&along=rounds&n=4")
    page.click("#draw-curve")
    page.wait_for_selector("body[data-curves='1']")
    assert page.locator("#curve svg text").count() > 8
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    assert page.evaluate(CONTRAST) == []
    assert page.evaluate(NAMELESS) == []
    context.close()


def test_everything_is_reached_by_the_keyboard(page: Any, address: str) -> None:
    opened_page(page, address, "run=sparse&split=test&index=0")
    page.evaluate("document.activeElement.blur()")
    reached = set()
    for _ in range(80):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.className"))
    wanted = {
        "run-0",
        "split",
        "index",
        "text",
        "rounds-encoder",
        "stop",
        "beam",
        "temperature",
        "attention-head",
        "draw-curve",
    }
    assert wanted <= reached
    assert "scroll" in reached
    page.locator("#predictions .scroll").focus()
    for key, told in (("ArrowRight", "round 1: "), ("ArrowRight", "round 2: "), ("ArrowDown", "round 2: ")):
        before = text_of(page, "#predictions .told")
        page.keyboard.press(key)
        after = text_of(page, "#predictions .told")
        assert after.startswith(told)
        assert after != before
    page.locator("#depth td").nth(1).click()
    assert "round 2" in page.locator("#depth .told").first.inner_text()
    page.focus("#next")
    page.keyboard.press("Enter")
    finished(page, 2)
    assert "index=1" in page.url


def test_a_screen_reader_is_told_of_every_part(page: Any, address: str) -> None:
    opened_page(page, address, "run=sparse&split=test&index=0&along=threshold&n=4")
    page.click("#draw-curve")
    page.wait_for_selector("body[data-curves='1']")
    tree = page.locator("body").aria_snapshot()
    for name in ("Output", "Cost", "Rounds by token", "Surprisal by token", "Attention", "Experts", "Plan"):
        assert f'heading "{name}" [level=2]' in tree, name
    for part in ('img "Accuracy against cost', "- status", "- slider ", "- table ", "- columnheader ", "- rowheader "):
        assert part in tree, part
    for role in ("button", "slider", "combobox", "textbox", "spinbutton", "img", "region"):
        nameless = [line.strip() for line in tree.splitlines() if line.strip().rstrip(":") == f"- {role}"]
        assert nameless == [], role


def test_watched_runs_are_legible_in_the_dark(page: Any, watch_address: str) -> None:
    page.emulate_media(color_scheme="dark")
    page.goto(watch_address)
    page.wait_for_selector("body[data-asked='2']")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.evaluate(CONTRAST) == []


def test_runs_are_watched_over_each_other(page: Any, watch_address: str) -> None:
    page.goto(watch_address)
    page.wait_for_selector("body[data-asked='2']")
    assert page.locator("#runs tbody tr").count() == 2
    for panel in ("loss", "lr", "norm", "speed"):
        assert page.locator(f"#{panel} polyline").count() == 2
    assert page.locator("#load table").count() == 1
    assert page.locator("#depth table").count() == 1
    page.click("[aria-label='show dense']")
    assert page.locator("#loss polyline").count() == 1
    assert page.evaluate(CONTRAST) == []
    assert page.evaluate(NAMELESS) == []


def test_a_run_writes_by_its_own_search_until_another_is_chosen(page: Any, opened: dict[str, OpenRun]) -> None:
    run = opened["sparse"].run
    decoding = run.recipe.decoding.model_copy(update={"strategy": "beam", "beam": 3})
    searching = replace(run, recipe=run.recipe.model_copy(update={"decoding": decoding}))
    runs = open_runs({"searching": searching}, Limits())
    with serving(view_app(runs, Limits())) as address, page.expect_request("**/api/generate") as first:
        opened_page(page, address, "run=searching&split=test&index=0")
        assert "beam" not in first.value.post_data_json
        assert page.input_value("#beam") == "3"
        assert "beam" not in page.url
        with page.expect_request("**/api/generate") as second:
            page.locator("#beam").fill("1")
        finished(page, 2)
        assert second.value.post_data_json["beam"] == 1
        assert "beam=1" in page.url
    runs["searching"].close()


def test_nothing_of_the_runs_before_is_shown_of_others(page: Any, address: str) -> None:
    opened_page(page, address, "run=sparse&split=test&index=0&stop=threshold&along=threshold&n=20")
    waiting = list[Any]()
    # Answered by nobody, as by a server that is busy for long.
    page.route("**/api/curve", lambda route: waiting.append(route))
    page.click("#draw-curve")
    page.select_option("#run-0", "language-model")
    finished(page, 2)
    assert len(waiting) == 1
    page.unroute("**/api/curve")
    assert page.locator("#curve svg").count() == 0
    names = page.locator("#attention select option").all_inner_texts()
    assert names == ["decoder self-attention"]
    assert page.locator("#threshold").count() == 0
    assert "stop" not in page.url


def test_a_number_beyond_the_split_is_the_last_example(page: Any, address: str, opened: dict[str, OpenRun]) -> None:
    opened_page(page, address, "run=dense&split=test&index=0")
    page.fill("#index", "5000")
    page.press("#index", "Tab")
    finished(page, 2)
    examples = opened["dense"].examples("test")
    assert page.input_value("#index") == str(len(examples))
    assert page.input_value("#text") == examples[-1].source


def test_a_run_whose_examples_are_elsewhere_reads_the_text_that_stands_there(
    page: Any, opened: dict[str, OpenRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = open_runs({"here": opened["dense"].run, "elsewhere": opened["sparse"].run}, Limits())
    monkeypatch.setattr(runs["elsewhere"], "_task", None)
    monkeypatch.setattr(runs["elsewhere"], "splits", [])
    with serving(view_app(runs, Limits())) as address:
        opened_page(page, address, "run=here&split=test&index=0")
        text = page.input_value("#text")
        page.select_option("#run-0", "elsewhere")
        finished(page, 2)
        assert "done in" in text_of(page, "#status")
        assert page.input_value("#text") == text
        assert page.locator("#output [data-run=elsewhere] [data-output]").count() == 1
    for run in runs.values():
        run.close()


def test_what_has_the_focus_keeps_it(page: Any, address: str) -> None:
    opened_page(page, address, "run=sparse&split=test&index=0")
    page.focus("#stop")
    page.keyboard.press("ArrowDown")
    finished(page, 2)
    assert page.evaluate("document.activeElement.id") == "stop"
    page.focus("#attention-of")
    for _ in range(2):
        before = page.input_value("#attention-of")
        with page.expect_response("**/api/attention"):
            page.keyboard.press("ArrowUp")
        page.wait_for_function(f"document.getElementById('attention-of').value !== '{before}'")
        page.wait_for_timeout(200)
        assert page.evaluate("document.activeElement.id") == "attention-of"
    page.locator("#attention .chips").first.locator("button").nth(1).focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.getAttribute('aria-pressed')") == "true"
