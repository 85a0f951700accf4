"""Report pages of five real jobs as Chromium shows them, to look at.

    python -m bench.report_screens FOLDER [PAGE.html ...]

Without pages the jobs are run first (some minutes): a network of convolutions, a transformer, a
recommender, a recurrent network, and one whose step is refused (its worker gets no time). Each page
is drawn whole, in a narrow and a wide window, light and dark: FOLDER/JOB-narrow-light.png, ...
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path

from tests.report.browser import Browser, chromium

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = ROOT / "examples" / "programs"
JOBS = {
    "cnn": (PROGRAMS / "cnn_fit.py", "--steps", "120"),
    "transformer": (PROGRAMS / "transformer_loop.py", "--steps", "300"),
    "recommender": (PROGRAMS / "recommender.py", "--steps", "300"),
    "rnn": (PROGRAMS / "lstm_fit.py", "--steps", "100"),
    "refused": (PROGRAMS / "tf1_session.py", "--steps", "60"),
}
REFUSED = {"STITCH_WORKER_SECONDS": "1"}
WIDTHS = {"narrow": 640, "wide": 1280}
"""As wide as 80 and 160 columns of a terminal."""


def page_of(name: str, folder: Path) -> Path | None:
    """The page that `stitch run` wrote of the job's first step."""
    command = [sys.executable, "-m", "stitchcore.cli", "run", "--wait", "--json"]
    command += ["--store", str(folder / "store"), "--", sys.executable, *map(str, JOBS[name])]
    more = REFUSED if name == "refused" else {"STITCH_CONTROL": "0.3"}
    environment = {**os.environ, **more}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    steps = json.loads(done.stdout.splitlines()[-1])["steps"]
    if not steps:
        sys.stderr.write(f"{name}: no step\n{done.stderr[-2000:]}")
        return None
    page = folder / f"{name}.html"
    page.write_bytes(Path(steps[0]["report"]).read_bytes())
    return page


def draw(browser: Browser, page: Path, folder: Path) -> None:
    for size, width in WIDTHS.items():
        for dark in (False, True):
            browser.open(page.as_uri(), width=width, dark=dark)
            browser.settle()
            height = int(browser.ask("document.documentElement.scrollHeight"))
            clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
            taken = browser.command(
                "Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip
            )
            file = folder / f"{page.stem}-{size}-{'dark' if dark else 'light'}.png"
            file.write_bytes(base64.b64decode(taken["data"]))


def main(folder: Path, pages: list[Path]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    made = pages or [page for name in JOBS if (page := page_of(name, folder)) is not None]
    with chromium() as browser:
        for page in made:
            draw(browser, page.resolve(), folder)


if __name__ == "__main__":
    if not sys.argv[1:]:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]), [Path(page) for page in sys.argv[2:]])
