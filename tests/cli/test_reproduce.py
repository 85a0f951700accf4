"""`stitch reproduce`: the papers' figures are theirs, ours are counted anew."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from stitchcore.cli.main import stitch
from stitchcore.cli.reproduce import WORKLOADS
from stitchcore.report.charts import grouped_bars
from stitchcore.reproduce import papers, tables
from stitchcore.verify import xla_baseline

SVG = "{http://www.w3.org/2000/svg}"


def call(*arguments: object) -> Result:
    return CliRunner().invoke(stitch, ["reproduce", *map(str, arguments)])


def made(*arguments: object) -> list[Any]:
    result = call(*arguments, "--json")
    assert result.exit_code == 0, result.output + result.stderr
    return list(json.loads(result.stdout))


def test_the_papers_averages_follow_from_their_tables() -> None:
    fs20 = [row["FS"].memory / row["XLA"].memory for row in papers.FS20_TABLE_2.values()]
    assert sum(fs20) / len(fs20) == pytest.approx(papers.FS20_MEMORY_SHARE, abs=5e-4)
    astitch = [row.memory / row.memory_xla for row in papers.ASTITCH_TABLE_3.values()]
    assert sum(astitch) / len(astitch) == pytest.approx(papers.ASTITCH_MEMORY_SHARE, abs=5e-4)
    steps = list(papers.ASTITCH_ABLATION.values())
    assert steps[0] / steps[-1] == pytest.approx(papers.ASTITCH_SPEEDUPS["CRNN"], abs=5e-3)
    speedups = papers.ASTITCH_SPEEDUPS.values()
    assert sum(speedups) / len(speedups) == pytest.approx(1.84, abs=1e-2)


def test_kernels_are_counted_beside_the_papers() -> None:
    [table] = made("fs20-table2", "--model", "CRNN")
    rows = {technique: figures for _, technique, *figures in table["rows"]}
    assert rows["FS, paper"] == [8, 311, 388]
    theirs, ours, local = (rows[n] for n in ("XLA:CPU, here", "ours", "ours, local alone"))
    assert 0 < ours[1] < local[1] < theirs[1]
    assert any("LSTM is a loop" in note for note in table["notes"])


@pytest.mark.slow
def test_every_mechanism_is_left_out_once() -> None:
    [table] = made("astitch-ablation", "--model", "CRNN")
    named = [row[1] for row in table["rows"]]
    words = [one.value for one in tables.Mechanism]
    assert named == ["all of them", *words, *words] and table["rows"][-1][0] == "geometric mean"
    kernels = {row[1]: row[2] for row in table["rows"] if row[0] == "CRNN"}
    assert kernels["remote"] > kernels["all of them"] < kernels["regional"]


@pytest.mark.slow
def test_schedules_are_searched_by_estimate() -> None:
    [table] = made("fs-schedules", "--model", "CRNN")
    [row, mean] = table["rows"]
    name, kernels, points, otherwise, own, best, ratio, choices = row
    assert name == "CRNN" and points > 5 * kernels > 0 < otherwise < kernels
    assert best < own and ratio == pytest.approx(best / own, abs=1e-3) == mean[6]
    assert "threads=" in choices and "estimate" in table["notes"][0]


def test_another_jaxlib_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xla_baseline.Executable, "optimized_text", property(lambda self: self.gone))
    with pytest.raises(xla_baseline.NoXla, match=r"jaxlib .*: AttributeError"):
        xla_baseline.kernels(
            lzma.decompress((WORKLOADS / "softmax_grad.hlo.xz").read_bytes()).decode()
        )


def test_without_xla_its_cells_are_empty_and_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(text: str) -> xla_baseline.Kernels:
        raise xla_baseline.NoXla("jaxlib is not installed")

    monkeypatch.setattr(xla_baseline, "kernels", missing)
    [table] = made("astitch-table3", "--model", "CRNN")
    assert [row[4] for row in table["rows"]] == [None, None]
    result = call("astitch-table3", "fs20-table2", "--model", "CRNN")
    assert "None" not in result.stdout and "jaxlib is not installed" in result.stdout


def test_tables_are_written_as_figures_and_pictures(tmp_path: Path) -> None:
    result = call("fs20-traffic", "--model", "CRNN", "--out", tmp_path)
    assert result.exit_code == 0 and "667.6 MB" in result.stdout
    assert json.loads((tmp_path / "fs20-traffic.json").read_text())["name"] == "fs20-traffic"
    picture = ElementTree.parse(tmp_path / "fs20-traffic.svg").getroot()
    assert len(picture.findall(f"{SVG}rect")) == 1 + 3 + 3  # ground, series, one group


def test_a_bar_is_as_long_as_its_value() -> None:
    picture = ElementTree.fromstring(
        grouped_bars("t", ("a", "b"), [("x", (2.0, 1.0)), ("y<", (None, 0.5))])
    )
    widths = [float(rect.get("width", "0")) for rect in picture.findall(f"{SVG}rect")[3:]]
    assert widths[0] == 2 * widths[1] == 4 * widths[3] > 0 and widths[2] == 0
    assert "not known" in [text.text for text in picture.findall(f"{SVG}text")]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("fs21-table9",), "fs20-table2"),
        (("--model", "VGG"), "CRNN"),
        (("--workloads", "/nowhere"), "clone of the repository"),
    ],
)
def test_what_is_unknown_is_told_with_what_there_is(arguments: tuple[str, ...], told: str) -> None:
    result = call(*arguments)
    assert result.exit_code == 2 and told in result.stderr


def test_a_damaged_model_is_told_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "crnn_infer.hlo.xz").write_bytes(
        lzma.compress(b"HloModule m\n\nENTRY main {\n  x =")
    )
    result = call("fs20-traffic", "--model", "CRNN", "--workloads", tmp_path)
    assert result.exit_code == 2 and "parse_error" in result.stderr
    assert str(tmp_path) in result.stderr
    missing = call("fs20-traffic", "--model", "ASR", "--workloads", tmp_path)
    assert missing.exit_code == 2 and "asr_infer.hlo.xz: no such file" in missing.stderr


@pytest.mark.slow
def test_compile_time_is_measured() -> None:
    [table] = made("compile-time", "--model", "CRNN")
    [[name, size, plan, before, compiler, _]] = table["rows"]
    assert name == "CRNN" and size > 100 and 0 < plan <= before and compiler > 0
