"""What `make bench-jobs` says of runs: each claim holds of the module, and of no mutant of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bench.zoo import figures, speed
from stitchcore.verify.timing import Ratio
from tests.zoo.mutants import changed

Claim = Callable[[Any], None]
BOTH = {"untouched": (100, 110, 90), "stitched": (100, 110, 90)}


def row(module: Any, name: str = "job", **changes: Any) -> Any:
    """Untouched 4 ms, XLA 3, stitched 2 and its ceiling 1; three pairs that drift alike."""
    drift = (1.0, 1.5, 2.0)
    arms = {"untouched": 4e-3, "xla": 3e-3, "stitched": 2e-3, "ceiling": 1e-3}
    arms |= changes.pop("arms", {})
    seconds = {arm: tuple(at * d for d in drift) for arm, at in arms.items() if at}
    runs = {"seconds": seconds, "processor": {}, "peaks": BOTH}
    runs = {of: changes.pop(of, given) for of, given in runs.items()}
    told = {"saved": 0.9, "steps": 300, "training": True}
    told |= {"operations": 40, "launches": 4, "kernels": 3, "compile_seconds": 6.0}
    return module.row(name, module.Runs(**runs), **{**told, **changes})


def the_quicker_of_both_is_the_baseline(module: Any) -> None:
    for xla, baseline, ratio in ((3e-3, "xla", 1.5), (5e-3, "untouched", 2.0)):
        one = row(module, arms={"xla": xla})
        assert module.baseline(one.seconds) == baseline
        assert one.ratio.value == pytest.approx(ratio)
    assert module.baseline(row(module, arms={"xla": 0}).seconds) == "untouched"


def ratios_are_of_pairs(module: Any) -> None:
    """What slows a whole pair widens nothing."""
    found = row(module).ratio
    assert found.high - found.low == pytest.approx(0)
    seconds = {"untouched": (1.0, 2.0, 3.0), "stitched": (1.0, 1.0, 1.0)}
    wide = row(module, seconds=seconds).ratio
    assert (wide.value, wide.low, wide.high) == (2.0, 1.0, 3.0)


def processor_time_is_of_the_same_baseline(module: Any) -> None:
    """None where an arm has none of its own."""
    used = {"untouched": (9.0, 9.0, 9.0), "xla": (8.0, 8.0, 8.0), "stitched": (4.0, 2.0, 8.0)}
    found = row(module, processor=used).processor_ratio
    assert (found.value, found.low, found.high) == (2.0, 1.0, 4.0)
    assert row(module).processor_ratio is None
    assert row(module, processor={**used, "xla": (8.0,)}).processor_ratio is None


def a_promise_is_of_the_untouched_step(module: Any) -> None:
    """Of 4 ms, at the median drift 6, three less are twice as fast; all of it is no promise."""
    assert module.promise(row(module, promised=3e-3)) == pytest.approx(2.0)
    assert module.promise(row(module)) is None
    assert module.promise(row(module, promised=6e-3)) is None


def promises_are_held_against_the_steps(module: Any) -> None:
    kept = row(module, promised=3e-3)
    better = row(module, promised=4.5e-3, arms={"stitched": 1e-3})
    told = module.kept_promises([kept, better, row(module)])
    assert "of 2 programs: Kendall's tau 1.00; measured over promised, median 1.00" in told
    swapped = [row(module, promised=4.5e-3), row(module, promised=3e-3, arms={"stitched": 1e-3})]
    assert "tau -1.00" in module.kept_promises(swapped)
    assert module.kept_promises([kept]) == ""


def an_interval_with_one_in_it_is_undecided(module: Any) -> None:
    intervals = ((0.9, 1.1), (1.0, 1.2), (0.8, 1.0), (1.01, 1.2), (0.8, 0.99))
    told = [module.undecided(Ratio(1.0, *interval)) for interval in intervals]
    assert told == [True, True, True, False, False]


def the_way_is_from_untouched_to_the_ceiling(module: Any) -> None:
    assert row(module).way == pytest.approx(2 / 3)
    assert row(module, arms={"stitched": 1e-3}).way == pytest.approx(1)
    assert row(module, arms={"stitched": 5e-3}).way == pytest.approx(-1 / 3)


def no_way_where_the_ceiling_is_noise(module: Any) -> None:
    assert row(module, arms={"ceiling": 0}).way is None
    assert row(module, arms={"ceiling": 4e-3}).way is None
    seconds = {"untouched": (3.0, 1.0, 3.0), "stitched": (2.0,) * 3, "ceiling": (2.0,) * 3}
    assert row(module, seconds=seconds).way is None


def compiling_is_won_back_by_what_a_step_saves(module: Any) -> None:
    assert module.break_even(row(module)) == pytest.approx(6.0 / 3e-3)  # medians are of 1.5
    assert module.break_even(row(module, arms={"stitched": 4e-3})) is None
    assert module.break_even(module.Row("failed", note="no end")) is None


def rows_are_sorted_by_ratio(module: Any) -> None:
    arms = {"slow": 9e-3, "fast": 1e-3, "even": 3e-3}
    rows = [row(module, name, arms={"stitched": at}) for name, at in arms.items()]
    rows.insert(1, module.Row("failed", note="no end within 1 s"))
    assert [one.name for one in module.ordered(rows)] == ["fast", "even", "slow", "failed"]
    assert module.geometric_mean(rows) == pytest.approx((3 * 1 / 3 * 1) ** (1 / 3))


def memory_is_of_medians(module: Any) -> None:
    peaks = {"untouched": (100, 100, 900), "stitched": (110, 100, 110)}
    assert row(module, peaks=peaks).peak_ratio == pytest.approx(1.1)
    assert row(module, peaks={}).peak_ratio is None


def losers_and_what_is_undecided_are_marked(module: Any) -> None:
    lost, won = row(module, "lost", arms={"stitched": 6e-3}), row(module, "won")
    even = row(module, "even", arms={"stitched": 3e-3}, left={"slower": 2})
    told = module.text([lost, won, even], "how")
    assert "| won | 6.00 | 4.50 * | 3.00 | 1.500 [1.500, 1.500] | - | - | - | 90% |" in told
    assert "| **0.500 [0.500, 0.500]** |" in told
    assert "| 1.000 [1.000, 1.000] ≈ |" in told and "300 steps; slower in 2 of 3 runs |" in told
    assert told.index("| won |") < told.index("| even |") < told.index("| lost |")


def what_a_row_holds_is_told(module: Any) -> None:
    told = module.text([row(module, missing={"xla": "exit code 1"}, training=False)], "how")
    cells = "| 90% | 40 → 4 (3) | 1.000 | 6 s | 2,000 | 1.50 | 67% | inference; 300 steps; no xla:"
    assert cells in told


def what_was_not_measured_is_told(module: Any) -> None:
    told = module.text([module.Row("gone", note="no end"), row(module)], "how")
    assert "- gone: not measured: no end" in told and "| gone |" not in told


def the_bars_are_counted(module: Any) -> None:
    heavy = {**BOTH, "stitched": (120, 120, 120)}
    rows = [
        row(module, "won"),
        row(module, "lost", arms={"stitched": 6e-3}, peaks=heavy),
        row(module, "even", arms={"stitched": 3e-3}, saved=0.2),
        row(module, "infers", training=False),
    ]
    every, training, _ = module.together(rows)
    assert every.startswith("- All, 4 programs: geometric mean 1.030;")
    assert training.startswith("- Training, 3 programs: geometric mean 0.909;")
    assert "wholly above 1: 1, with 1 in them: 1, wholly below: 1;" in training
    assert "75% of saveable bytes or more saved in 2;" in training
    assert "median way to the ceiling 33% of 3;" in training
    assert "worst peak memory 1.200 (lost), above 1.05 in 1." in training


def the_limit_is_the_ceilings(module: Any) -> None:
    """Medians of 4 (XLA 3, or 12), 2 and 1 ms; what has no ceiling, or does not train, is left."""
    rows = [row(module), row(module, arms={"xla": 12e-3}), row(module, training=False)]
    told = module.limit([*rows, row(module, arms={"ceiling": 0})])
    assert "of 2 programs" in told and "3.464 against the better, 4.000 against" in told
    assert told.endswith("stitched against untouched 2.000.")
    assert module.limit([row(module, arms={"ceiling": 0})]) == ""


def how_few_pairs_and_which_commits_is_told(module: Any) -> None:
    told = module.how([row(module, commit="abc"), row(module, commit="def")], 2)
    assert "3 of each" in told and "same 2 processors" in told
    assert "of 3 pairs: from the least" in told and "in 75% of cases" in told
    assert "abc (1), def (1)" in told
    many = dict.fromkeys(figures.ARMS, (1.0,) * 6)
    assert "from the least" not in module.how([row(module, seconds=many)], 2)


CLAIMS: dict[Claim, tuple[str, str]] = {
    the_quicker_of_both_is_the_baseline: (
        "seconds[UNTOUCHED] <= seconds.get",
        "seconds[UNTOUCHED] >= seconds.get",
    ),
    ratios_are_of_pairs: (
        "paired_ratio(runs.seconds[better], ours),",
        "paired_ratio(runs.seconds[better], ours[::-1]),",
    ),
    processor_time_is_of_the_same_baseline: (
        "for arm in (better, STITCHED))",
        "for arm in (UNTOUCHED, STITCHED))",
    ),
    a_promise_is_of_the_untouched_step: (
        "if plain is None or not 0.0 < row",
        "if plain is None or not 0.0 <= row",
    ),
    promises_are_held_against_the_steps: (
        "kendall(predicted, measured)",
        "kendall(measured, measured)",
    ),
    an_interval_with_one_in_it_is_undecided: ("found.low <= 1.0 <=", "found.low < 1.0 <="),
    the_way_is_from_untouched_to_the_ceiling: (
        "(before - after) / (before - ceiling)",
        "(before - after) / before",
    ),
    no_way_where_the_ceiling_is_noise: (" or paired_ratio(plain, least).low <= 1.0", ""),
    compiling_is_won_back_by_what_a_step_saves: (" or after >= before", ""),
    rows_are_sorted_by_ratio: ("(-row.ratio.value if", "(row.ratio.value if"),
    memory_is_of_medians: (
        "before = statistics.median(peaks",
        "before = statistics.mean(peaks",
    ),
    losers_and_what_is_undecided_are_marked: ("if found.high < 1.0 else f", "if not found else f"),
    what_a_row_holds_is_told: ('f"{row.operations} → {row.launches}', 'f"{row.launches}'),
    what_was_not_measured_is_told: ("*together(rows), *notes,", "*together(rows),"),
    the_bars_are_counted: ("if row.training]", "if row.name]"),
    the_limit_is_the_ceilings: ("s[baseline(s)] / s[CEILING]", "s[UNTOUCHED] / s[CEILING]"),
    how_few_pairs_and_which_commits_is_told: ("1 - 2.0 ** (1 - few)", "1 - 2.0 ** -few"),
}
"""Each with a mutant that it tells from the module: what is changed, and into what."""


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.__name__)
def test_a_claim_holds_of_the_module_and_not_of_its_mutant(
    claim: Claim, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim(figures)
    mutant = changed(figures, *CLAIMS[claim], monkeypatch)
    with pytest.raises((AssertionError, ZeroDivisionError, TypeError)):
        claim(mutant)


# ---- which rows stay -----------------------------------------------------------------------------
def finished_rows_stay(module: Any) -> None:
    rows = {
        "done": row(figures, "done"),
        "failed": figures.Row("failed", note="no end within 60 s"),
    }
    names = ["done", "failed", "new"]
    assert module.due(names, rows, 3) == ["new"]
    assert module.due(names, rows, 5) == ["done", "new"]
    assert module.due(names, rows, 3, again=True) == names
    assert module.due(["done"], rows, 2) == []


def what_was_written_is_read(module: Any, folder: Any) -> None:
    rows = {"job": row(figures, within=Ratio(1.2, 1.1, 1.3), left={"slower": 1}, commit="abc")}
    module.TABLE = folder / "bench_jobs.md"
    module.write(rows)
    assert module.kept(module.TABLE.with_suffix(".json")) == rows
    assert "| job | 6.00 |" in module.TABLE.read_text()
    assert module.TABLE.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert module.kept(folder / "absent.json") == {}


def the_graph_with_the_most_steps_tells_the_ratio_within(module: Any) -> None:
    steps = [
        {"speedup": (2.0, 1.25, 2.5), "steps": 90},
        {"speedup": (0.5, 0.25, 1.0), "steps": 9},
        {"speedup": None, "steps": 900},
    ]
    assert module._within(steps) == Ratio(2.0, 1.25, 2.5)
    assert module._within(steps[2:]) is None


def only_what_is_stitched_at_the_end_saves(module: Any) -> None:
    stitched = {"status": "stitched", "reason": "", "bytes_saveable": 100, "bytes_saved": 80}
    back = {**stitched, "status": "rolled_back", "reason": "slower"}
    assert module._saved({"steps": [stitched, back]}) == pytest.approx(0.4)
    assert module._saved({}) == 0.0
    assert module._left({"steps": [stitched, back]}) == {"slower"}


@pytest.mark.parametrize(
    ("claim", "old", "new"),
    [
        (finished_rows_stay, " and rows[name].pairs < pairs", ""),
        (
            the_graph_with_the_most_steps_tells_the_ratio_within,
            'key=lambda step: step["steps"]',
            'key=lambda step: -step["steps"]',
        ),
        (only_what_is_stitched_at_the_end_saves, ' if step["status"] == "stitched")', ")"),
    ],
)
def test_a_claim_holds_of_the_benchmark_and_not_of_its_mutant(
    claim: Claim, old: str, new: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim(speed)
    mutant = changed(speed, old, new, monkeypatch)
    with pytest.raises(AssertionError):
        claim(mutant)


def test_rows_are_read_as_they_were_written(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "TABLE", None)  # and put back after what the claim sets
    what_was_written_is_read(speed, tmp_path)
    lossy = changed(
        speed, "for name in sorted(rows)]", "for name in sorted(rows)[1:]]", monkeypatch
    )
    with pytest.raises(AssertionError):
        what_was_written_is_read(lossy, tmp_path)
