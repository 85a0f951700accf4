"""The page in headless Chromium: offline, by keyboard alone, in both colour schemes, narrow, large.

One session for all. Nothing is timed: what makes a large graph slow is how much a frame draws, and
that is counted.
"""

from __future__ import annotations

import http.server
import itertools
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from stitch_operator.gateway import pages
from stitchcore.report import layout, render
from tests.report import samples
from tests.report.browser import Browser, chromium

DETAIL = 0.35
"""Scale from which nodes are drawn one by one (graph.js)."""
TAB, ENTER, ESCAPE, SPACE = "\ue004", "\ue007", "\ue00c", " "
UP, DOWN, LEFT, RIGHT = "\ue013", "\ue015", "\ue012", "\ue014"
COUNTS = """
window.counts = {boxes: 0, words: 0, pictures: 0};
const proto = CanvasRenderingContext2D.prototype;
for (const [name, as] of [["roundRect", "boxes"], ["fillText", "words"], ["drawImage", "pictures"]])
{ const own = proto[name]; proto[name] = function (...all) {
    window.counts[as] += 1; return own.apply(this, all); }; }
"""
INTRUDER = """
new Image().src = '/x.png';
const button = document.createElement('button');
try { button.setAttribute('onclick', 'window.hurt = 4'); button.click(); } catch (error) {}
const script = document.createElement('script');
try { script.textContent = 'window.hurt = 3'; document.body.append(script); }
catch (error) { window.refused = error.message; }
"""
CONTRAST = """
const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
const parse = (colour) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour;
  canvas.fillRect(0, 0, 1, 1); const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
  return [r, g, b, a / 255]; };
const light = (rgb) => { const [r, g, b] = rgb.map((v) => { v /= 255;
  return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
const ground = (element) => { for (let at = element; at; at = at.parentElement) {
  const colour = parse(getComputedStyle(at).backgroundColor); if (colour[3] > 0.99) return colour; }
  return [255, 255, 255, 1]; };
const found = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const element = walker.currentNode.parentElement;
  if (!walker.currentNode.textContent.trim()) continue;
  if (element.closest("script, noscript, title")) continue;
  if (!element.checkVisibility()) continue;
  const style = getComputedStyle(element), inside = element.closest("svg");
  const a = light(parse(inside ? style.fill : style.color).slice(0, 3));
  const b = light(ground(element).slice(0, 3));
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  found.push([ratio, walker.currentNode.textContent.trim().slice(0, 40), element.tagName]);
}
const style = getComputedStyle(document.documentElement);
const of = (name) => light(parse(style.getPropertyValue(name).trim()).slice(0, 3));
const pair = (one, two) => { const [a, b] = [of(one), of(two)];
  found.push([(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), one + two, "CANVAS"]); };
for (let i = 0; i < 8; i += 1) pair("--on-fill", "--fill-" + i);
pair("--ink", "--node");
return found;
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("pages")
    for name, report, job in (
        ("hostile", samples.hostile(), samples.job()),
        ("large", samples.large(5000), None),
        ("larger", samples.large(20000), None),
    ):
        (made / f"{name}.html").write_text(render.html(report, job), encoding="utf-8")
    return made


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """The pages under the headers that the gateway sends with them, and what was asked for."""
    asked: list[str] = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def end_headers(self) -> None:
            for name, value in pages.HEADERS.items():
                self.send_header(name, value)
            super().end_headers()

        def log_message(self, *_: object) -> None:
            asked.append(self.path)

    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(Handler, directory=str(folder))
    ) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()


@pytest.mark.slow
def test_offline_it_asks_for_nothing_and_hostile_names_do_nothing(
    browser: Browser, folder: Path
) -> None:
    url = (folder / "hostile.html").as_uri()
    browser.command("Network.enable")
    offline = {"latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
    browser.command("Network.emulateNetworkConditions", offline=True, **offline)
    try:
        browser.open(url)
        for kernel in ("0", "1"):
            browser.ask(
                f"document.querySelector('button.kernel[data-kernel=\"{kernel}\"]').click()"
            )
            browser.ask("document.querySelectorAll('#panel details').forEach((d) => d.open = true)")
            browser.settle()
        assert browser.requested() == [url]
    finally:
        online = {**offline, "downloadThroughput": -1, "uploadThroughput": -1}
        browser.command("Network.emulateNetworkConditions", offline=False, **online)
    assert browser.logged() == []
    assert browser.ask("window.hurt") is None
    assert browser.ask("document.images.length") == 0
    assert samples.HOSTILE in browser.ask("document.querySelector('#panel').textContent")


def test_under_the_gateways_headers_it_works_and_nothing_else_runs(
    browser: Browser, served: tuple[str, list[str]]
) -> None:
    url, asked = served
    browser.open(f"{url}/hostile.html")
    assert browser.logged() == []
    assert browser.ask("self.origin") == "null", "the policy's sandbox: it has no origin to abuse"
    browser.driver.execute_script(INTRUDER)
    browser.settle()
    assert browser.ask("window.hurt") is None
    assert asked == ["/hostile.html"]
    told = " ".join(browser.logged())
    assert "img-src" in told, "its image was refused, and said so"
    assert browser.ask("window.refused").startswith("Failed to set the 'textContent'")


def test_by_keyboard_alone(browser: Browser, folder: Path) -> None:
    browser.open((folder / "hostile.html").as_uri())
    browser.press(TAB)
    assert browser.focused() == "Skip to the graph"
    assert browser.ask("document.activeElement.getBoundingClientRect().top") >= 0
    browser.press(ENTER)
    order = []
    for _ in range(5):
        browser.press(TAB)
        order.append(browser.focused())
        assert browser.ask("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    assert order == ["search", "closer", "wider", "fit", "stage"]

    said = "document.getElementById('said').textContent"
    browser.press(RIGHT)
    assert browser.ask(said).endswith("no work"), "the first operation is the graph's input"
    browser.press(DOWN)
    assert browser.ask(said).endswith("kernel 0")
    browser.press(DOWN)
    assert browser.ask(said).endswith("left as it was, library_call")
    assert "a library does it best" in browser.ask("document.getElementById('panel').textContent")
    browser.press(UP)
    assert browser.ask(said).endswith("kernel 0")
    frames = browser.ask("document.querySelector('canvas').dataset.frames")
    browser.press("+", "-", "0")
    assert browser.ask("document.querySelector('canvas').dataset.frames") > frames

    browser.press(ENTER)
    assert browser.focused() == "Kernel 0"
    browser.press(TAB)
    assert browser.focused() == "Operations here (1)"
    assert browser.ask("document.activeElement.tagName") == "SUMMARY"
    browser.press(ESCAPE)
    assert browser.focused() == "stage"
    browser.press(ESCAPE)
    assert browser.ask(said) == "nothing selected"
    assert browser.ask("document.querySelector('#panel h3').textContent") == "Nothing selected"

    for _ in range(12):
        browser.press(TAB)
        if browser.focused() == "K0":
            break
    browser.press(SPACE)
    assert browser.focused() == "Kernel 0", "a kernel of the table opens beside the graph"
    assert browser.ask("document.querySelectorAll('tr.chosen').length") == 1
    assert browser.logged() == []


@pytest.mark.slow
def test_search_and_the_list_are_the_graphs_twin(browser: Browser, folder: Path) -> None:
    browser.open((folder / "large.html").as_uri())
    rows = "[...document.querySelectorAll('#list tr')]"
    assert browser.ask(f"{rows}.length") == 50
    assert browser.ask("document.getElementById('range').textContent") == "1 to 50 of 5,000"
    browser.ask("document.getElementById('search').focus()")
    browser.press(*"matmul")
    assert browser.ask("document.getElementById('matches').textContent") == "416 matches"
    assert browser.ask(f"{rows}[0].textContent") == "block1/matmulMatMullibrary_call"
    browser.press(ENTER)
    assert "block1/matmul" in browser.ask("document.getElementById('panel').textContent")
    browser.ask("document.getElementById('next').click()")
    assert browser.ask("document.getElementById('range').textContent") == "51 to 100 of 416"
    browser.press(ESCAPE)
    assert browser.ask("document.getElementById('range').textContent") == "1 to 50 of 5,000"
    browser.driver.execute_script(
        "const which = document.getElementById('which');"
        "which.value = 'left'; which.dispatchEvent(new Event('change'));"
    )
    assert browser.ask("document.getElementById('range').textContent") == "1 to 50 of 416"
    browser.ask(f"{rows}[3].querySelector('button').click()")
    assert "block4/matmul" in browser.ask("document.getElementById('said').textContent")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_all_text_has_contrast(browser: Browser, folder: Path, dark: bool) -> None:
    browser.open((folder / "hostile.html").as_uri(), dark=dark)
    browser.ask("document.querySelectorAll('details').forEach((d) => d.open = true)")
    browser.ask("document.querySelector('button.kernel').click()")
    browser.settle()
    found = browser.driver.execute_script(CONTRAST)
    assert len(found) > 120
    assert {kind for _, _, kind in found} >= {"H1", "TD", "TH", "text", "CANVAS", "DD", "BUTTON"}
    assert not [one for one in found if one[0] < 4.5]
    ground = browser.ask("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, ground[4:-1].split(","))) < 120) == dark


@pytest.mark.parametrize("name", ["hostile", "large"])
def test_narrow_it_does_not_scroll_sideways(browser: Browser, folder: Path, name: str) -> None:
    browser.open((folder / f"{name}.html").as_uri(), width=360, height=740)
    assert browser.ask("document.documentElement.scrollWidth") <= 360
    for kind in ("#stage", "#panel", "section", ".headline", "#search"):
        right = browser.ask(f"document.querySelector('{kind}').getBoundingClientRect().right")
        assert right <= 360


def test_paper_has_no_controls(browser: Browser, folder: Path) -> None:
    browser.open((folder / "hostile.html").as_uri())
    browser.command("Emulation.setEmulatedMedia", media="print")
    shown = "getComputedStyle(document.querySelector('{}')).display"
    assert browser.ask(shown.format("#panel")) == "none"
    assert browser.ask(shown.format(".tools")) == "none"
    assert browser.ask(shown.format("#kernels")) == "block"


def steps(browser: Browser, keys: str) -> list[dict[str, int]]:
    """What one frame after each key drew."""
    found = []
    for key in keys:
        browser.ask("Object.assign(window.counts, {boxes: 0, words: 0, pictures: 0})")
        browser.press(key)
        drawn = browser.ask("Number(document.querySelector('canvas').dataset.drawn)")
        found.append({**browser.ask("window.counts"), "drawn": drawn})
    return found


@pytest.mark.slow
def test_a_frame_of_a_large_graph_draws_what_is_seen_and_no_more(
    browser: Browser, folder: Path
) -> None:
    most = {}
    for name in ("large", "larger"):
        browser.open((folder / f"{name}.html").as_uri())
        browser.driver.execute_script(COUNTS)
        browser.ask("document.getElementById('stage').focus({preventScroll: true})")
        wide, high = browser.ask("[document.getElementById('stage').clientWidth,"
                                 "document.getElementById('stage').clientHeight]")  # fmt: skip
        seen = (wide / DETAIL / layout.STEP_X + 2) * (high / DETAIL / layout.STEP_Y + 2)
        far = steps(browser, "0+-")
        assert all(one["drawn"] == 0 and one["boxes"] == 0 for one in far), "one picture, moved"
        assert all(1 <= one["pictures"] <= 2 for one in far)
        near = steps(browser, "0" + "+" * 26 + "-" * 6)
        assert any(one["drawn"] > 20 and one["words"] > 20 for one in near), "it does draw nodes"
        assert all(one["drawn"] <= seen for one in near)
        assert all(one["boxes"] <= 2 * one["drawn"] + 2 for one in near)
        most[name] = max(one["boxes"] for one in near)
    assert most["larger"] <= 1.5 * most["large"] + 10, "four times the graph, no more a frame"


@pytest.mark.slow
def test_nothing_is_drawn_while_nothing_happens(browser: Browser, folder: Path) -> None:
    browser.open((folder / "large.html").as_uri(), still=False)
    browser.ask("document.getElementById('stage').focus({preventScroll: true})")
    browser.press(RIGHT)
    frames = "document.querySelector('canvas').dataset.frames"
    for _ in itertools.repeat(None, 40):
        before = browser.ask(frames)
        browser.settle()
        browser.settle()
        if browser.ask(frames) == before:
            break
    else:
        raise AssertionError("frames without end")


@pytest.mark.slow
def test_where_motion_is_reduced_it_jumps(browser: Browser, folder: Path) -> None:
    browser.open((folder / "large.html").as_uri(), still=True)
    before = int(browser.ask("document.querySelector('canvas').dataset.frames"))
    browser.ask("document.querySelector('button.kernel').click()")
    browser.settle()
    browser.settle()
    assert int(browser.ask("document.querySelector('canvas').dataset.frames")) - before <= 2
    assert browser.ask("getComputedStyle(document.documentElement).scrollBehavior") == "auto"
