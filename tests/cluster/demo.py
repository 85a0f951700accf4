"""`make demo-cluster`: the whole product in a real cluster on this machine, narrated.

Brings up a node, builds the images, installs the charts, trains one annotated job and the same job
untouched, shows what `kubectl get stitchedjobs` and a real Prometheus say, and writes all of it to
a file of JSON.
"""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import click
from rich.console import Console

from images import builder
from tests.cluster import cluster as clusters
from tests.cluster import thread
from tests.cluster.parts import Level
from tests.cluster.processes import NotUp
from tests.cluster.setting_up import set_up
from tests.cluster.whole import prometheus

NAME = "demo"


@click.command(help=__doc__)
@click.option("--out", type=click.Path(path_type=Path), default=Path("demo-cluster.json"))
@click.option("--keep", is_flag=True, help="leave the cluster up, to look around")
def main(out: Path, keep: bool) -> None:
    console = Console(highlight=False, soft_wrap=True)
    began = time.monotonic()

    def tell(text: str) -> None:
        console.print(f"[dim]{time.monotonic() - began:6.1f} s[/]  {text}")

    program = shutil.which("prometheus")
    if program is None:
        raise click.ClickException("prometheus is missing: apt-get install prometheus")
    if reason := clusters.unable(Level.NODE) or builder.unable():
        raise click.ClickException(reason)
    try:
        cluster = clusters.up(Level.NODE, NAME)
        tell(f"a node is up: KUBECONFIG={cluster.kubeconfig}")
        whole = set_up(cluster, tell, builder.build)
        with prometheus(program, whole, cluster.state / "prometheus") as url:
            found = thread.follow(whole, url, tell)
        console.print(f"\n{found.table}")
        for reason, message in found.events:
            console.print(f"  Event {reason}: {message}")
        tell(f"losses differ by at most {found.apart:.1e} from the untouched job's")
        out.write_text(json.dumps(found.document(), indent=1) + "\n")
        tell(f"written: {out}")
    except (builder.BuildError, NotUp) as error:
        raise click.ClickException(str(error)) from error
    finally:
        if not keep:
            clusters.down(NAME)
    if keep:
        console.print("`python -m tests.cluster down --name demo` ends the cluster")


if __name__ == "__main__":
    main()
