"""Writes Grafana's dashboards of the chart from `stitch_operator.dashboards`.

python tools/dashboards.py            writes helm/stitch/files/dashboards/*.json
python tools/dashboards.py --check    says what would change, and ends with 1 if anything would
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from stitch_operator.dashboards.savings import JOBS, SAVINGS
from stitch_operator.dashboards.service import HEALTH, WORKERS

FOLDER = Path(__file__).resolve().parents[1] / "helm" / "stitch" / "files" / "dashboards"
DASHBOARDS = (SAVINGS, JOBS, WORKERS, HEALTH)


def files() -> dict[Path, str]:
    """Each file, and what it holds."""
    return {
        FOLDER / f"{one.name}.json": json.dumps(one.document(), indent=1) + "\n"
        for one in DASHBOARDS
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python tools/dashboards.py")
    parser.add_argument("--check", action="store_true", help="write nothing")
    given = parser.parse_args()
    made = files()
    different = [
        path for path, text in made.items() if not path.exists() or path.read_text() != text
    ]
    different += [path for path in FOLDER.glob("*") if path not in made]
    for path in different:
        sys.stdout.write(f"{path.name}\n")
        if not given.check and path in made:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(made[path], encoding="utf-8")
        elif not given.check:
            path.unlink()
    return 1 if given.check and different else 0


if __name__ == "__main__":
    sys.exit(main())
