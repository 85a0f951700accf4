"""What pages call by a dotted name, or as a file of the package, is there under that name."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *(
        ROOT / "docs" / f"{name}.md"
        for name in ("architecture", "contracts", "faults", "gpu", "judging")
    ),
    ROOT / "CONTRIBUTING.md",
]
"""Those on the compiler: of a chart's values, `service.port` is none of ours."""
PACKAGE = ROOT / "stitchcore"
FOLDERS = sorted(path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file())
DOTTED = re.compile(rf"`({'|'.join(FOLDERS)})((?:\.[a-z_]+)+)(?:\.(\w+))?")
FILES = {"html", "json", "md", "py"}
FILE = re.compile(rf"`((?:stitchcore/)?(?:{'|'.join(FOLDERS)})/[\w/]+\.(?:py|h|cc))`")


def absent_names(text: str) -> list[str]:
    """Dotted names that no file of the package defines: `loop_ir.nodes.Kernel`."""
    absent = []
    for folder, modules, last in DOTTED.findall(text):
        names = [*modules.strip(".").split("."), *filter(None, [last])]
        if names[-1] in FILES:
            continue
        path = PACKAGE / folder
        while names and (path / names[0]).is_dir():
            path /= names.pop(0)
        file = path / f"{names[0]}.py" if names else path / "__init__.py"
        defined = file.read_text(encoding="utf-8") if file.is_file() else ""
        if not file.is_file() or not all(re.search(rf"\b{n}\b", defined) for n in names[1:]):
            absent.append(".".join([folder, *names]))
    return absent


def absent_files(text: str) -> list[str]:
    """Files of the package that are named and not there: `codegen/cuda.py`."""
    named = (path.removeprefix("stitchcore/") for path in FILE.findall(text))
    return [path for path in named if not (PACKAGE / path).is_file()]


def test_what_is_not_there_is_found() -> None:
    assert absent_names("`hlo.ir.dim.Dim`, `loop_ir.nodes.Nothing`, `fusion.solver.best`") == [
        "loop_ir.nodes.Nothing",
        "fusion.solver.best",
    ]
    assert absent_files("`codegen/cuda.py` and `codegen/emit.py`") == ["codegen/emit.py"]


def test_names_in_pages_exist() -> None:
    absent = {
        page.relative_to(ROOT): names
        for page in PAGES
        if (names := [*absent_names(text := page.read_text(encoding="utf-8")), *absent_files(text)])
    }
    assert not absent, absent
