"""What `make images` and `python -m images lock` run."""

from __future__ import annotations

import time

import click
from rich.console import Console

from images import builder, catalogue, lock


@click.group(help=__doc__)
def main() -> None:
    pass


@main.command("build")
@click.option("--tensorflow", default="2.21", show_default=True, help="of the worker's image")
@click.option("--cuda", is_flag=True, help="for workers with GPUs: TensorFlow for CUDA 12")
def build_command(tensorflow: str, cuda: bool) -> None:
    """Build the images of this checkout on stand-ins for their public bases."""
    console = Console(highlight=False, soft_wrap=True)
    wanted = (catalogue.runtime(), catalogue.operator(), catalogue.worker(tensorflow, cuda=cuda))
    for image in wanted:
        began = time.monotonic()
        try:
            built = builder.build(image)
        except builder.BuildError as error:
            raise click.ClickException(str(error)) from error
        size = built.archive.stat().st_size / 1e6
        console.print(f"{image.name} {size:.1f} MB in {time.monotonic() - began:.0f} s")
        console.print(f"  {built.digest}\n  {built.archive}")


@main.command("lock")
def lock_command() -> None:
    """Pin the newest packages that satisfy pyproject.toml."""
    lock.write()


if __name__ == "__main__":
    main(prog_name="python -m images")
