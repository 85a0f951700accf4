"""The page in headless Chromium: offline, by keyboard alone, in both colour schemes, narrow, large.

One session for all. Nothing is timed: what makes a large graph slow is how much a frame draws, and
that is counted.
"""

from __future__ import annotations

import http.server
import itertools
import random
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from stitch_operator.gateway import pages
from stitchcore.report import render
from stitchcore.report.schema import Report, ReportKernel, ReportNode, ReportRegion
from tests.report import samples
from tests.report.browser import Browser, chromium

DETAIL = 0.35
"""Scale from which items are drawn one by one (graph.js)."""
STEP_X, STEP_Y, WIDTH, HEIGHT = 174, 62, 160, 34
"""Of items (layout.js)."""
SCOPES = {
    "net/dense/MatMul": "library_call", "net/dense/Relu": 0, "net/norm/Mean": 1,
    "net/norm/Rsqrt": 1, "net/out/deep/only/Add": 2, "grad/net/dense/ReluGrad": 0,
    "grad/net/norm/Mul": 1, "Sum": 2, "Placeholder": "",
}  # fmt: skip
"""Operations of a small step whose script has name scopes, with kernel or reason."""
LAYOUT = """
const element = document.createElement("script");
element.id = "data"; element.type = "application/json";
element.textContent = JSON.stringify({names: [], inputs: [], kernel: []});
document.head.append(element);
%s
return arguments[0].map((inputs) => {
  const readers = inputs.map(() => []);
  inputs.forEach((read, v) => read.forEach((u) => readers[u].push(v)));
  const {rows, x, y, width, height} = placed(inputs, readers);
  return {rows, x: [...x], y: [...y], width, height, layers: [...layered(inputs)]};
});
"""
TAB, ENTER, ESCAPE, SPACE = "\ue004", "\ue007", "\ue00c", " "
BACKSPACE = "\ue003"
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
        ("scoped", scoped(10), None),
        ("large", samples.large(5000), None),
        ("larger", samples.large(20000), None),
    ):
        (made / f"{name}.html").write_text(render.html(report, job), encoding="utf-8")
    return made


def scoped(times: int = 1) -> Report:
    """A report of SCOPES, several times side by side."""
    nodes = [
        ReportNode(f"{name}_{time}" if "/" in name else name, name.rpartition("/")[2],
                   kernel if isinstance(kernel, int) else -1,
                   kernel if isinstance(kernel, str) else "",
                   inputs=(max(0, number - 1),))
        for time in range(times) for number, (name, kernel) in enumerate(SCOPES.items())
    ]  # fmt: skip
    kernels = tuple(ReportKernel(f"k{number}", 3) for number in range(3))
    return Report("a step", "cpu-x86-64-v4", tuple(nodes), kernels)


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
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
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
    for _ in range(8):
        browser.press(TAB)
        order.append(browser.focused())
        assert browser.ask("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    assert order == ["search", "groups", "open", "close", "closer", "wider", "fit", "stage"]

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
    assert browser.focused().startswith("close "), "the groups around it"
    while browser.focused().startswith("close "):
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


def test_layers_are_closed_groups_that_a_click_or_a_key_opens(
    browser: Browser, folder: Path
) -> None:
    """In the script's scopes: a chain of scopes is one group, all there is can be reached."""
    browser.open((folder / "scoped.html").as_uri())
    items = "Number(document.querySelector('canvas').dataset.items)"
    said = "document.getElementById('said').textContent"
    browser.ask("document.getElementById('close').click()")
    assert browser.ask(items) == 4, "net, grad, what has no scope, and sources"
    stage = "document.getElementById('stage')"
    browser.ask(f"{stage}.focus({{preventScroll: true}})")
    told = set()
    for _ in range(4):
        browser.press(RIGHT)
        told.add(browser.ask(said))
    assert {"net, 50 operations, 3 kernels, closed", "grad/net, 20 operations, 2 kernels, closed",
            "without scope, 10 operations, 1 kernels, closed"} < told  # fmt: skip
    while not browser.ask(said).startswith("net, 50"):
        browser.press(LEFT)
    assert "left, library_call10" in browser.ask("document.getElementById('panel').textContent")
    browser.press(ENTER)
    assert browser.ask(items) == 6, "dense, norm, out/deep/only in its place"
    assert browser.ask(said).startswith("net/dense, 20 operations")
    browser.press(BACKSPACE)
    assert browser.ask(items) == 4
    assert browser.ask(said).startswith("net, 50 operations")
    browser.ask("document.getElementById('open').click()")
    assert browser.ask(items) == 90
    assert browser.logged() == []


def test_a_search_opens_what_hides_its_match_and_kernels_are_groups_too(
    browser: Browser, folder: Path
) -> None:
    browser.open((folder / "scoped.html").as_uri())
    items = "Number(document.querySelector('canvas').dataset.items)"
    panel = "document.getElementById('panel').textContent"
    browser.ask("document.getElementById('close').click()")
    browser.ask("document.getElementById('search').focus()")
    browser.press(*"deep/only", ENTER)
    assert "net/out/deep/only/Add_0" in browser.ask(panel)
    assert browser.ask(items) == 4 - 1 + 2 + 10, "net and out/deep/only are open"
    browser.ask("[...document.querySelectorAll('#panel .crumb')].at(-1).click()")
    assert browser.ask(items) == 4
    assert browser.ask("document.querySelector('#panel h3').textContent") == "net"
    browser.driver.execute_script(
        "const groups = document.getElementById('groups');"
        "groups.value = 'kernels'; groups.dispatchEvent(new Event('change'));"
    )
    assert browser.ask(items) == 5, "three kernels, what was left, and sources"
    browser.ask("document.querySelector('button.kernel[data-kernel=\"1\"]').click()")
    assert browser.ask("document.querySelector('#panel h3').textContent") == "Kernel 1"


def test_any_graph_is_placed_without_overlaps(browser: Browser) -> None:
    """Graphs with loops too; of those without what is read lies in a layer before."""
    chance = random.Random(27)
    graphs = []
    for number in range(60):
        count = chance.randrange(41)
        graphs.append([
            sorted({u for _ in range(chance.randrange(4))
                    if (u := chance.randrange(count if number % 2 else max(1, v))) != v
                    and u < count})
            for v in range(count)
        ])  # fmt: skip
    graphs.append([[], [0], [1], [2], [], [3, 4]])
    browser.driver.get("about:blank")
    script = (render.FOLDER / "layout.js").read_text(encoding="utf-8")
    placed = browser.driver.execute_script(LAYOUT % script, graphs)
    assert placed[-1]["layers"] == [0, 1, 2, 3, 3, 4], "a source stands above its first reader"
    for number, (inputs, found) in enumerate(zip(graphs, placed, strict=True)):
        assert sorted(v for row in found["rows"] for v in row) == list(range(len(inputs)))
        spots = list(zip(found["x"], found["y"], strict=True))
        for v, (x, y) in enumerate(spots):
            assert 0 <= x <= found["width"] - WIDTH and 0 <= y <= found["height"] - HEIGHT
            assert all(abs(a - x) >= WIDTH or abs(b - y) >= HEIGHT for a, b in spots[:v])
        if number % 2 == 0:
            layers = found["layers"]
            assert all(layers[u] < layers[v] for v, read in enumerate(inputs) for u in read)


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


def test_a_jobs_tables_fit_a_window_of_1280(browser: Browser, tmp_path: Path) -> None:
    """Of real names; and what was left is read without scrolling in a narrow one, too."""
    nodes = tuple(
        ReportNode(f"StatefulPartitionedCall/model_1/attention_{n}/dense_{n}/MatMul", "MatMul",
                   reason="library_call", bytes=2**20)
        for n in range(5)
    )  # fmt: skip
    proof = {
        "passed": True,
        "worst_error": 1.219192168888661e-07,
        "framework_error": 5e-08,
        "ratio": [0.1, 0.28, 0.7],
        "seconds": {"framework": 3.29e-3, "stitched": 921e-6},
    }
    region = ReportRegion("r005_StatelessRandomUniformV2", "r", 24, True, kernels=1,
                          bytes_before=491 * 2**20, bytes_after=2**22, seconds_after=696e-6,
                          proof=proof)  # fmt: skip
    page = tmp_path / "job.html"
    page.write_text(render.html(Report("graph 0123", "cpu", nodes, regions=(region,))))
    beyond = (
        "['reasons', 'regions'].map(id => document.querySelector(`#${id} .scroll`))"
        ".map(one => one.scrollWidth - one.clientWidth)"
    )
    browser.open(page.as_uri(), width=1280)
    assert browser.ask(beyond) == [0, 0]
    assert browser.ask("document.querySelector('#regions').innerText").count("XLA") == 0
    browser.open(page.as_uri(), width=640)
    assert browser.ask(beyond)[0] == 0


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
        browser.ask("document.getElementById('open').click()")
        browser.driver.execute_script(COUNTS)
        browser.ask("document.getElementById('stage').focus({preventScroll: true})")
        wide, high = browser.ask("[document.getElementById('stage').clientWidth,"
                                 "document.getElementById('stage').clientHeight]")  # fmt: skip
        seen = (wide / DETAIL / STEP_X + 2) * (high / DETAIL / STEP_Y + 2)
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
