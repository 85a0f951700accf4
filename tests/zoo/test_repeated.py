"""A program's own steps are repeated as often as asked for; its file and its steps stay."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from bench.zoo import repeated, runs
from bench.zoo.judge import Run

LOOP = """
import watch
watch.start()
for step in range(4):
    for part in range(2):
        watch.step(part, loss=step)
print(step, part, __name__, __file__.endswith("program.py"))
"""
CALLED = """
import watch
def train(first, last):
    for step in range(first, last):
        watch.step()
for part in range(2):
    train(3 * part, 3 * part + 3)
"""
HELPER = """
import watch
def train():
    watch.step()
for step in range(3):
    train()
"""
FIT = """
import types
import watch
keras = types.SimpleNamespace(callbacks=types.SimpleNamespace(Callback=object))
class Model:
    stop_training = False
    def fit(self, epochs, callbacks):
        epoch = 0
        while epoch < epochs and not self.stop_training:
            for batch in range(3):
                callbacks[0].on_train_batch_end(batch)
            callbacks[0].on_epoch_end(epoch)
            epoch += 1
        print(epoch)
callback = watch.callback(keras)
callback.model = Model()
callback.model.fit(epochs=2, callbacks=[callback])
"""
PREDICT = """
import types
import watch
keras = types.SimpleNamespace(callbacks=types.SimpleNamespace(Callback=object))
for call in range(2):
    watch.callback(keras).on_predict_batch_end(0)
"""
USED_UP = """
import watch
for number, value in enumerate(range(5)):
    watch.step(value)
for value in range(3):
    print(value)
"""
STOPS = """
import watch
while True:
    for value in range(5):
        watch.step(value)
        if value == 3:
            break
    break
raise SystemExit(3)
"""

TWENTY = """
import watch
count = 0
for step in range(4):
    watch.step()
    count += 1
    if count == 20:
        raise SystemExit
"""


def made(
    program: str,
    folder: Path,
    steps: int,
    seconds: float = 60,
    old: str = "",
    new: str = "",
    least: float = 0,
) -> Run:
    """The run of a program by repeated.py, or by a mutant of it."""
    (folder / "program.py").write_text(program)
    script = folder / "repeated.py"
    source = Path(repeated.__file__).read_text()
    assert not old or source.count(old) == 1, old
    script.write_text(source.replace(old, new) if old else source)
    environ = {"ZOO_STEPS": str(steps), "ZOO_SECONDS": str(seconds), "ZOO_LEAST": str(least)}
    run = folder / f"run{len(list(folder.iterdir()))}"
    runs.run([sys.executable, str(script), str(folder / "program.py")], run, environ, 60)
    assert (folder / "program.py").read_text() == program
    assert int((run / "out" / "peak").read_text()) > 2**20
    made = runs.read(run)
    used = [float(line) for line in (run / "out" / "processor").read_text().split()]
    assert len(used) == len(made.seconds) + 1 and used == sorted(used)
    return made


@pytest.mark.parametrize(
    ("program", "asked", "steps"),
    [
        (LOOP, 20, 24),
        (LOOP, 3, 8),
        (CALLED, 10, 15),
        (HELPER, 10, 12),
        (FIT, 10, 12),
        (FIT, 3, 6),
        (PREDICT, 5, 6),
        (USED_UP, 20, 5),
        (STOPS, 20, 4),
    ],
)
def test_steps_are_repeated_by_whole_rounds(
    program: str, asked: int, steps: int, tmp_path: Path
) -> None:
    run = made(program, tmp_path, asked)
    assert len(run.seconds) + 1 == steps
    assert run.code == (3 if program == STOPS else 0)
    if program == LOOP:
        assert run.printed == ("3 1 __main__ True",)
    if program == USED_UP:
        assert run.printed == ("0", "1", "2")


def test_no_round_begins_when_the_time_is_over(tmp_path: Path) -> None:
    assert len(made(LOOP, tmp_path, 10**6, 0).seconds) + 1 == 8
    assert len(made(FIT, tmp_path, 10**6, 0).seconds) + 1 == 6


def test_steps_go_on_for_so_long_at_least(tmp_path: Path) -> None:
    assert len(made(TWENTY, tmp_path, 3, least=1e9, seconds=1e9).seconds) + 1 == 20
    mutant = {"old": " and passed >= LEAST", "new": ""}
    assert len(made(TWENTY, tmp_path, 3, least=1e9, seconds=1e9, **mutant).seconds) + 1 == 4


MUTANTS: tuple[tuple[str, int, int, str, str], ...] = (
    (LOOP, 20, 24, "(_count >= STEPS and", "(True and"),
    (LOOP, 3, 8, "yield from values\n", "yield from list(values)[:2]\n"),
    (HELPER, 10, 12, "watching = {function.name", "watching = set() and {function.name"),
    (FIT, 3, 6, "epoch + 1 >= _least_epochs and enough()", "enough()"),
    (PREDICT, 5, 6, '("step", "callback")', '("step",)'),
)


@pytest.mark.parametrize(("program", "asked", "steps", "old", "new"), MUTANTS)
def test_a_mutant_repeats_otherwise(
    program: str, asked: int, steps: int, old: str, new: str, tmp_path: Path
) -> None:
    assert len(made(program, tmp_path, asked, old=old, new=new).seconds) + 1 != steps


def test_every_program_of_the_zoo_is_repeated_at_one_place() -> None:
    """But those that end by themselves."""
    others = set()
    for name, path in runs.programs().items():
        text: Any = repeated.ast.unparse(repeated.rewritten(path.read_text()))
        if "watch.repeated(" not in text and "watch.epochs(" not in text:
            others.add(name)
    assert others == {"monitored_session", "threads_share_step"}
