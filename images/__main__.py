"""What `make images` and `python -m images lock` run."""

from __future__ import annotations

import time
from pathlib import Path

import click
from rich.console import Console

from images import audit, builder, catalogue, lock, release, sbom


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


@main.command("release")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option("--out", type=click.Path(path_type=Path), required=True, help="folder")
@click.option("--key", type=click.Path(path_type=Path), required=True, help="made if missing")
@click.option(
    "--redis", default="", metavar="sha256:...", help="of the broker's image, to be pinned"
)
def release_command(files: tuple[Path, ...], out: Path, key: Path, redis: str) -> None:
    """Write bills of materials, digests and the chart's pins of images and wheels, signed."""
    click.echo(release.write(out, files, key, redis))


@main.command("audit")
@click.argument("database", type=click.Path(path_type=Path, exists=True))
def audit_command(database: Path) -> None:
    """Name locked packages with known vulnerabilities, by a copy of OSV's PyPI/all.zip."""
    found = audit.audit(database, sbom.locked())
    for one in found:
        click.echo(f"{one.package} {one.version}: {one.advisory} {one.summary}")
    if found:
        raise click.exceptions.Exit(1)


@main.command("verify")
@click.argument("folder", type=click.Path(path_type=Path, exists=True))
@click.argument("files", nargs=-1, type=click.Path(path_type=Path, exists=True))
@click.option("--public-key", required=True, metavar="HEX")
def verify_command(folder: Path, files: tuple[Path, ...], public_key: str) -> None:
    """Hold a release against its signature, and archives and wheels against the release."""
    try:
        entries = release.verify(folder, public_key, files)
    except release.NotSigned as error:
        raise click.ClickException(str(error)) from error
    for entry in entries:
        click.echo(f"{entry['digest']} {entry['image'] or entry['file']}")


if __name__ == "__main__":
    main(prog_name="python -m images")
