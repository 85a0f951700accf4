"""What `make cluster`, `make cluster-down` and `make cluster-build` run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import click
from rich.console import Console

from tests.cluster import build, cluster, parts
from tests.cluster.parts import Level
from tests.cluster.processes import NotUp

Result = TypeVar("Result")
FAILED = (NotUp, build.BuildError, OSError)
level_option = click.option(
    "--level",
    type=click.Choice([level.value for level in Level]),
    default=Level.API.value,
    show_default=True,
    callback=lambda _context, _option, value: Level(value),
)
name_option = click.option("--name", default="default", show_default=True)


@click.group(help=__doc__)
def main() -> None:
    pass


@main.command("build")
@click.option("--level", "levels", multiple=True, default=[Level.API.value],
              type=click.Choice([level.value for level in Level]))  # fmt: skip
def build_command(levels: Sequence[str]) -> None:
    """Build the programs that are missing, once per version."""
    console = Console()
    built = _tried(lambda: build.build(console, *map(Level, levels)))
    if not built:
        console.print("nothing to build")


@main.command("up")
@level_option
@name_option
def up_command(level: Level, name: str) -> None:
    """Bring up a cluster that stays until `make cluster-down`."""
    console = Console(highlight=False, soft_wrap=True)
    began = time.monotonic()
    up = _tried(lambda: cluster.up(level, name))
    console.print(f"up after {time.monotonic() - began:.1f} s; its state is in {up.state}")
    console.print(f"\n  export KUBECONFIG={up.kubeconfig}")
    console.print(f"  {parts.program('kubectl')} get namespaces\n")
    if level is Level.API:
        console.print("Pods run nowhere here; nodes annotated kwok.x-k8s.io/node=fake play theirs.")
    console.print("`make cluster-down` ends it and leaves nothing.")


@main.command("down")
@name_option
def down_command(name: str) -> None:
    """End that cluster, or what is left of it."""
    ended = _tried(lambda: cluster.down(name))
    click.echo("ended" if ended else "there is none")


def _tried(what: Callable[[], Result]) -> Result:
    """A failure is told in a line, without a traceback."""
    try:
        return what()
    except FAILED as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main(prog_name="python -m tests.cluster")
