"""What every pipeline is: a printed list of named stages, and the one runner of such lists.

A stage is a pure function from state to state. The runner times each, writes what it made into a
dump folder (`02_plan.txt`), and replaces a stage's result by a file that a person edited there,
from which the later stages go on. A module is compiled by one such list (stages.py), a job's
request by another (optimize/pipeline.py), of which one stage runs the first for each region.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, TypeVar

from stitchcore.errors import Reason, Refused

State = TypeVar("State")
Progress = Callable[[str, int, int], None]
"""Told the stage, and how much of it is done of how much."""


@dataclass(frozen=True)
class RestartText:
    """An edited stage's file: its name for messages, and its contents."""

    file: str
    text: str

    def error(self, line: int, message: str) -> Refused:
        return Refused(f"{self.file}:{line}", Reason.PARSE_ERROR, message)


def read(path: Path) -> RestartText:
    """The file at `path`. Raises Refused(PARSE_ERROR) where it is not there or not text."""
    try:
        return RestartText(path.name, path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(str(path), Reason.PARSE_ERROR, f"cannot be read: {error}") from None


@dataclass(frozen=True)
class Dump:
    """Where stages write their texts (`folder`), and the edited file that replaces one of them
    (`restart`), which lies in such a folder. Neither is needed."""

    folder: Path | None = None
    restart: Path | None = None

    def sub(self, name: str) -> Dump:
        """That of a part: a folder of its own, and the edited file if it lies in one so called."""
        inside = self.restart is not None and name in self.restart.parts[:-1]
        return Dump(self.folder / name if self.folder else None, self.restart if inside else None)


@dataclass(frozen=True)
class Stage(Generic[State]):
    """`run` does the work. `text` prints what it made, `load` reads an edited text back, where that
    can be. `beside` are further files of a dump, by name, of what `run` has made. `file` is set by
    `numbered`."""

    name: str
    run: Callable[[State], State]
    text: Callable[[State], str]
    load: Callable[[State, RestartText], State] | None = None
    beside: Callable[[State], Mapping[str, str]] | None = None
    suffix: str = "txt"
    file: str = ""


def numbered(*stages: Stage[State]) -> tuple[Stage[State], ...]:
    """A pipeline: `stages` in order, each with the name of its file in a dump: `02_plan.txt`."""
    return tuple(
        replace(stage, file=f"{number:02d}_{stage.name}.{stage.suffix}")
        for number, stage in enumerate(stages)
    )


def restartable(stages: Sequence[Stage[State]]) -> dict[str, Stage[State]]:
    """Stages that can be replaced from an edited text, by the file's name."""
    return {stage.file: stage for stage in stages if stage.load is not None}


def run(
    stages: Sequence[Stage[State]],
    state: State,
    dump: Dump | None = None,
    *,
    seconds: dict[str, float] | None = None,
    progress: Progress | None = None,
) -> State:
    """What `stages` make of `state`, in order. Wall seconds by stage are added to `seconds`.

    Raises Refused where a stage does, and Refused(PARSE_ERROR) for an edited file that cannot be
    read, or whose stage has no text to be read back.
    """
    dump = dump or Dump()
    for number, stage in enumerate(stages):
        if progress is not None:
            progress(stage.name, number, len(stages))
        edited = dump.restart if dump.restart and dump.restart.name == stage.file else None
        start = time.perf_counter()
        if edited is None:
            state = stage.run(state)
        elif stage.load is not None:
            state = stage.load(state, read(edited))
        else:
            detail = "this stage's text cannot be read back"
            raise Refused(stage.file, Reason.PARSE_ERROR, detail)
        if seconds is not None:
            passed = time.perf_counter() - start
            seconds[stage.name] = seconds.get(stage.name, 0.0) + passed
        if dump.folder is not None:
            beside = stage.beside(state) if stage.beside and edited is None else {}
            for name, text in {stage.file: stage.text(state), **beside}.items():
                path = dump.folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
    return state
