"""A job's artifact, tuned: what won is in it, and the next job with that key measures nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from stitchcore.artifact import package
from stitchcore.artifact.sign import load_or_create_key, public_hex
from stitchcore.artifact.store import open_store
from stitchcore.autotune import kernels
from stitchcore.compiler import performance_library
from stitchcore.device.host import host, host_device
from stitchcore.report import schema
from stitchcore.schedule.space import DEFAULT
from stitchcore.verify.timing import Comparison

pytest.importorskip("tensorflow", reason="needs TensorFlow: pip install 'stitchcore[tensorflow]'")

from stitchcore.autotune import regions
from stitchcore.optimize import pipeline
from tests.optimize.test_pipeline import options_in, submit


def halves_win(calls: Mapping[str, Callable[[], object]], *_: object) -> Comparison:
    """The second cut of a kernel takes half its time."""
    seconds = {"run 1": 0.5}
    idle = {name: 0.0 for name in calls if name.startswith("idle")}
    return Comparison({name: np.full(3, {**seconds, **idle}.get(name, 1.0)) for name in calls})


@pytest.mark.slow
def test_what_measurement_overruled_is_the_artifacts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[int] = []

    def compare(calls: Mapping[str, Callable[[], object]], *_: object) -> Comparison:
        measured.append(len(calls))
        return halves_win(calls)

    monkeypatch.setattr(kernels, "compare", compare)
    monkeypatch.setattr(kernels, "CUTS", 2)
    monkeypatch.setattr(pipeline, "measure", lambda *given, **_: given[4])  # tested alone
    options = replace(options_in(tmp_path), tune=600.0, without=("search",))
    request = submit(options.store)
    key = pipeline.optimize(request, str(options.store), host_device(), options)
    assert isinstance(key, str), str(key)
    store = open_store(str(options.store))
    manifest, _ = package.load(store, key, public_hex(load_or_create_key(options.key)))
    found = msgspec.json.decode(store.read("artifacts", key, regions.FILE), type=regions.Tuning)
    assert found.measured == len(measured) <= found.kernels
    assert len(found.overruled) == found.measured >= 3 and not found.wrong
    assert found.seconds_after == pytest.approx(found.seconds_before / 2, rel=1e-3)
    assert host().model in found.machine and found.budget == 600.0
    symbols = {kernel.symbol for kernel in manifest.kernels}
    assert symbols and not symbols & {one.kernel for one in found.overruled}
    told = schema.decode(store.read("artifacts", key, "report.json"))
    assert told.figures["Tuned"] == found.figure()

    def nothing(*_: Any) -> Any:
        raise AssertionError("the artifact is there already")

    monkeypatch.setattr(pipeline, "_run", nothing)
    assert pipeline.optimize(request, str(options.store), host_device(), options) == key
    untuned = pipeline.key_of(pipeline.read_request(request), host_device(), options_in(tmp_path))
    assert untuned != key


@pytest.mark.nightly
def test_schedules_that_won_are_the_artifacts_and_the_librarys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the next job with that library has them without measuring."""
    monkeypatch.setattr(kernels, "compare", halves_win)
    monkeypatch.setattr(kernels, "CUTS", 1)
    monkeypatch.setattr(pipeline, "measure", lambda *given, **_: given[4])  # tested alone
    library, device = tmp_path / "library", host_device()
    options = replace(options_in(tmp_path), tune=600.0, library=library)
    request = submit(options.store)
    store = open_store(str(options.store))
    key = pipeline.optimize(request, str(options.store), device, options)
    assert isinstance(key, str), str(key)
    found = msgspec.json.decode(store.read("artifacts", key, regions.FILE), type=regions.Tuning)
    assert found.rescheduled and not found.overruled and not found.wrong
    assert "scheduled otherwise" in found.figure()
    manifest, _ = package.load(store, key, public_hex(load_or_create_key(options.key)))
    symbols = {kernel.symbol for kernel in manifest.kernels}
    assert symbols and not symbols & {one.kernel for one in found.rescheduled}
    kept = performance_library.read(library, device)
    chosen = [one for one in kept.entries.values() if one.schedule != DEFAULT]
    assert len(chosen) == len(found.rescheduled) and not kept.ignored

    monkeypatch.setattr(kernels, "compare", None)
    untuned = replace(options, tune=0.0)
    again = pipeline.optimize(request, str(options.store), device, untuned)
    assert isinstance(again, str) and again != key
    manifest, _ = package.load(store, again, public_hex(load_or_create_key(options.key)))
    assert {kernel.symbol for kernel in manifest.kernels} == symbols
    told = schema.decode(store.read("artifacts", again, "report.json"))
    assert told.figures["Performance library"] == str(kept)


def test_when_the_time_is_up_kernels_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.autotune.test_kernels import DEVICE, plan_of, planned

    monkeypatch.setattr(kernels, "compare", halves_win)
    plan = plan_of(planned())
    late = replace(kernels.Measuring(), total=0.0)
    found = kernels.tune(plan, DEVICE, kernels.BuildOptions(), late)
    assert found.plan.patterns == plan.patterns and found.gain() == (0, 0)
