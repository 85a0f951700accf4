"""What every command shares: output, exit codes, reading modules, choosing devices.

Exit codes: 0 done, 2 bad input or a refusal of the whole input, others as each command says. Every
failure says what happened, where, why, and what to do.
"""

from __future__ import annotations

import json
import lzma
import os
import re
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NoReturn

import click
from rich.console import Console
from rich.table import Table

from stitchcore import options as settings
from stitchcore.device import records
from stitchcore.device.records import DEVICES, Device
from stitchcore.errors import Refused
from stitchcore.fusion import mechanisms
from stitchcore.fusion.mechanisms import Mechanism
from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.text.parser import parse
from stitchcore.options import Options
from stitchcore.report import reasons
from stitchcore.report.markup import bytes_text as bytes_text
from stitchcore.report.markup import seconds_text as seconds_text

BAD_INPUT = 2
Colors = Literal["auto", "standard"]
PAGE_WIDTH = 140
"""Columns where the output is not a terminal."""

without_option = click.option(
    "--without",
    default=None,
    metavar="MECHANISMS",
    help=f"Left out, with commas: {', '.join(one.value for one in Mechanism)}.",
)

library_option = click.option(
    "--library",
    type=click.Path(file_okay=False, path_type=Path),
    default=None,
    help="Folder of schedules found for kernels before; default: STITCH_LIBRARY.",
)


def with_library(options: Options, folder: Path | None) -> Options:
    """`options` with the folder of `--library`, where one is named."""
    return options if folder is None else replace(options, library=folder.absolute())


def left_out(options: Options, words: str | None, output: Output) -> Options:
    """`options` without the mechanisms of `--without`, or else of STITCH_WITHOUT; ends the command
    for a word that is none."""
    without = options.without if words is None else settings.listed(words)
    try:
        mechanisms.without(without)
    except ValueError as error:
        name = "STITCH_WITHOUT" if words is None else "--without"
        fail(output, name, str(error), "name mechanisms with commas between them")
    return replace(options, without=without)


@dataclass(frozen=True)
class Output:
    """Where a command's results go: a rich console, or one JSON document."""

    as_json: bool

    @property
    def console(self) -> Console:
        return console(stderr=self.as_json)

    def document(self, content: Any) -> None:
        """Print `content` as JSON on standard output, on one line."""
        sys.stdout.write(json.dumps(content, sort_keys=True, default=str) + "\n")
        sys.stdout.flush()


def console(stderr: bool = False) -> Console:
    """Text goes to it as it is: `stitchcore[cuda12]` and `:x:` are no markup. Lines are drawn again
    (progress) on a terminal alone, whatever FORCE_COLOR says, and not under NO_COLOR, which leaves
    no escape code at all."""
    stream = sys.stderr if stderr else sys.stdout
    asked, terminal = settings.printing_of_this_process(), stream.isatty()
    forced: Colors = "standard" if asked.coloured and not terminal else "auto"
    return Console(
        stderr=stderr,
        highlight=False,
        markup=False,
        emoji=False,
        width=None if terminal or asked.columns else PAGE_WIDTH,
        force_terminal=terminal and not asked.plain,
        color_system=None if asked.plain else forced,
    )


UNITS = r"(?:[KMGTP]iB|B|ns|µs|ms|s|min|h)\b|%"
WHOLE = re.compile(
    rf"(?<=\d) (?={UNITS})"  # 2.9 MiB
    r"|(?<=\d) (?=\[\d)"  # 1.971 [
    r"|(?<=\d,) (?=[\d.]+\])"  # [1.629, 2.101]
)
"""Blanks within a figure."""
KEPT = "\N{NO-BREAK SPACE}"


def say(line: str, out: Console) -> None:
    """A line of text: on a terminal wrapped between words, what follows standing further in; a word
    that is wider than that, a path say, stays whole, and so does a figure with its unit and its
    interval. Elsewhere it is one line."""
    if out.file.isatty() and len(line) > out.width:
        inner = " " * (len(line) - len(line.lstrip()) + 4)
        line = textwrap.fill(
            *(WHOLE.sub(KEPT, line), out.width),
            subsequent_indent=inner, break_long_words=False, break_on_hyphens=False,
            drop_whitespace=True, replace_whitespace=False,
        )  # fmt: skip
    out.print(line.replace(KEPT, " "), soft_wrap=True)


def fail(output: Output, what: str, why: str, mend: str, code: int = BAD_INPUT) -> NoReturn:
    """End the command with one message: what and where, why, what to do."""
    if output.as_json:
        output.document({"error": {"what": what, "why": why, "mend": mend}})
    else:
        click.echo(f"stitch: {what}: {why}" + (f"\n  to mend it: {mend}" if mend else ""), err=True)
    raise SystemExit(code)


def fail_refused(output: Output, what: str, refused: Refused, mend: str = "") -> NoReturn:
    """End the command because the compiler refuses its whole input; `mend` where the reason alone
    does not tell what to do."""
    refusal = refused.refusal
    why = f"{refusal.reason.value} at {refusal.subject}" + (
        f": {refusal.detail}" if refusal.detail else ""
    )
    fail(output, what, why, mend or reasons.mend(refusal.reason.value))


def read_module(path: Path, output: Output) -> Module:
    """The module in a `.hlo` or `.hlo.xz` file; ends the command where there is none."""
    text = read_text(path, output)
    try:
        return parse(text)
    except Refused as refused:
        fail_refused(output, str(path), refused)


def read_text(path: Path, output: Output) -> str:
    """Text of a plain or xz-compressed file; ends the command with what is wrong with it."""
    try:
        data = path.read_bytes()
        if path.suffix == ".xz":
            data = lzma.decompress(data)
        return data.decode()
    except FileNotFoundError:
        fail(output, str(path), "no such file", "pass the path of a .hlo or .hlo.xz file")
    except lzma.LZMAError as error:
        fail(output, str(path), f"not a whole xz file ({error})", "fetch or compress it again")
    except UnicodeDecodeError as error:
        mend = "HLO protos are not read: print the module as text"
        fail(output, str(path), f"not text ({error.reason} at byte {error.start})", mend)
    except OSError as error:
        fail(output, str(path), error.strerror or str(error), "check the path and permissions")


def device_of(target: str, output: Output) -> Device:
    """The device record of `--target`, or that of a file which `stitch calibrate` wrote; ends the
    command for an unknown one."""
    if target.endswith(".json"):
        try:
            return records.read(Path(target))
        except Refused as refused:
            mend = "`stitch calibrate --out FILE` writes such a file"
            fail(output, target, f"not a device record ({refused.refusal.detail})", mend)
    found = records.device_of(target)
    if found is None:
        fail(output, f"target {target!r}", "unknown", f"one of: {', '.join(DEVICES)}")
    return found


def writable_folder(folder: Path, output: Output) -> None:
    """Make `folder` where it is missing; ends the command, before work is done for it, where that
    is not possible."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fail(output, str(folder), error.strerror or str(error), "name a folder you may write to")
    if not os.access(folder, os.W_OK):
        fail(output, str(folder), "may not be written to", "name a folder you may write to")


def writable_file(path: Path, output: Output) -> None:
    """End the command, before work is done for it, where `path` is no file that can be written."""
    try:
        there = os.path.lexists(path)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o666))
        if not there:
            path.unlink()
    except OSError as error:
        fail(output, str(path), error.strerror or str(error), "name a file you may write to")


def host_target() -> str:
    """The instruction-set level of this machine, as a target name; "" when it is none of ours."""
    from stitchcore.inject.target import cpu_flags, detect

    return detect(cpu_flags())


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """A rich table; columns whose name ends in `>` are figures: aligned right, and never broken."""
    rich_table = Table(
        title=title, title_justify="left", box=None, pad_edge=False, header_style="bold"
    )
    for column in columns:
        figures = column.endswith(">")
        rich_table.add_column(
            column.rstrip(">"), justify="right" if figures else "left", no_wrap=figures,
            overflow="fold",
        )  # fmt: skip
    for row in rows:
        rich_table.add_row(*(str(cell) for cell in row))
    return rich_table


LEAST_TEXT = 12
"""Columns that are left to a text beside figures."""


def show_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], out: Console
) -> None:
    """Prints a table; where its figures do not fit beside each other, each row as a text."""
    cells = [tuple(map(str, row)) for row in rows]
    widths = []
    for name, *column in zip(columns, *cells, strict=True):
        width = max(map(len, (name.rstrip(">"), *column)))
        widths.append(width if name.endswith(">") else min(width, LEAST_TEXT))
    if sum(widths) + 2 * (len(widths) - 1) <= out.width:
        out.print(table(title, columns, cells))
        return
    if title:
        say(title, out)
    for row in cells:
        named = zip(columns, row, strict=True)
        parts = (f"{name.rstrip('>')} {cell}".strip() for name, cell in named if cell)
        kept = (part.replace(" ", KEPT) if len(part) < LEAST_TEXT * 2 else part for part in parts)
        say(f"  {', '.join(kept)}", out)
