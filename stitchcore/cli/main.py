"""The `stitch` command. Subcommands are loaded when called: `stitch --help` imports no compiler."""

from __future__ import annotations

import codecs
import importlib
import io
import sys

import click

from stitchcore import __version__
from stitchcore.options import BadOption

COMMANDS = {
    "run": "Run a training script; what wins is stitched into it.",
    "explain": "What was left to TensorFlow and why; what keeps two operations apart.",
    "doctor": "What works on this machine, and what to install.",
    "plan": "Which kernels a module would become, with estimates.",
    "compile": "Write a module's sources and binaries into a folder.",
    "report": "Write the page of a module, or of the last job.",
    "tune": "Measure other cuts of a module's kernels, and keep what wins.",
    "calibrate": "Measure this machine's coefficients of the cost model.",
    "reproduce": "The tables of the three papers, with ours beside them.",
    "bench": "Check a module's kernels against numpy and time them.",
    "serve": "Gateway, workers and broker on this machine, for its jobs.",
    "status": "Where a graph stands at a gateway.",
    "savings": "What was saved, lost and spent, and what is left of it.",
}
OF_THE_SERVICE = {"serve", "status", "savings"}
"""In a package of their own, whose needs are the extra `operator`."""


SPELLED = "stitch.spelled"
LETTERS = str.maketrans({"→": "->", "µ": "u", "−": "-", "–": "-", "×": "x", "…": "..."})
"""What stands for signs of ours where the locale has none."""


def _spelled(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    signs = error.object[error.start : error.end].translate(LETTERS)
    return signs.encode("ascii", "backslashreplace").decode(), error.end


codecs.register_error(SPELLED, _spelled)


class _Commands(click.Group):
    """Lists COMMANDS without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        folder = "stitch_operator.commands" if cmd_name in OF_THE_SERVICE else "stitchcore.cli"
        try:
            module = importlib.import_module(f"{folder}.{cmd_name}")
        except ModuleNotFoundError as error:
            if cmd_name not in OF_THE_SERVICE:
                raise
            mend = f"`stitch {cmd_name}` needs {error.name}: pip install 'stitchcore[operator]'"
            raise click.UsageError(mend) from error
        command = module.command
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> object:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):  # a locale without arrows, a path of odd bytes
                stream.reconfigure(errors=SPELLED)
        try:
            return super().invoke(ctx)
        except BadOption as error:
            raise click.UsageError(str(error)) from error
        except OSError as error:
            if error.filename is None:
                raise  # not of a path that somebody named
            why = f"{error.filename}: {error.strerror}"
            raise click.UsageError(
                f"{why}\n  to mend it: check the path and permissions"
            ) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.command(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="stitch")
def stitch() -> None:
    """Makes TensorFlow training jobs faster without touching their code."""


def main() -> None:
    """Entry point of the console script."""
    stitch.main(args=sys.argv[1:], prog_name="stitch")
