"""`stitch status KEY`: where a graph stands at a gateway, by the key of its request or artifact, or
by its canonical digest; of what this machine's store knows, their first digits do, as a job's own
lines name them.

Exit codes: 0 ready, 1 refused, 3 pending, 2 anything else. The gateway, token and CA are those a
job is given: STITCH_GATEWAY, STITCH_TOKEN_FILE, STITCH_CA.
"""

from __future__ import annotations

import re
import ssl
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click
import httpx

from stitch_operator.gateway import tls
from stitchcore import options
from stitchcore.cli import stored
from stitchcore.cli.common import BAD_INPUT, Output, console, fail, say

CODES = {"ready": 0, "refused": 1, "pending": 3}
KEY = re.compile(r"[0-9a-f]{64}")
SECONDS = 10.0


@click.command(help=__doc__)
@click.argument("key")
@click.option("--follow", is_flag=True, help="until it is ready or refused")
@click.option("--report", type=click.Path(path_type=Path), help="file for the report page; KEY "
              "may then also name a job: its workload, a pod's uid, a session")  # fmt: skip
@click.option("--json", "as_json", is_flag=True)
def command(key: str, follow: bool, report: Path | None, as_json: bool) -> None:
    output = Output(as_json)
    key = stored.digest(options.of_this_process().store, key)
    place = options.gateway_of_this_process()
    printed = "`stitch serve` prints what to set"
    try:
        context = tls.trusting(place.ca)
    except (OSError, ssl.SSLError) as error:
        fail(output, f"STITCH_CA={place.ca}", str(error), printed)
    try:
        token = place.token_file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        fail(output, f"STITCH_TOKEN_FILE={place.token_file}", str(error), printed)
    try:
        httpx.URL(place.url)
    except httpx.InvalidURL as error:
        fail(output, f"STITCH_GATEWAY={place.url}", str(error), printed)
    with httpx.Client(
        base_url=place.url,
        verify=context,
        headers={"Authorization": f"Bearer {token}"},
        timeout=SECONDS,
        trust_env=False,
    ) as client:
        if report is not None and not KEY.fullmatch(key):
            _page(client, f"/v1/jobs/{quote(key, safe='')}/report.html", report, output)
            raise SystemExit(0)
        answer = _asked(client, key, output)
        if follow:
            answer = _followed(client, key, answer, output)
        if report is not None and answer["status"] == "ready":
            _page(client, f"/v1/artifacts/{key}/report.html", report, output)
    _show(answer, output)
    raise SystemExit(CODES.get(str(answer["status"]), BAD_INPUT))


def _asked(client: httpx.Client, key: str, output: Output) -> dict[str, Any]:
    try:
        response = client.get(f"/v1/graphs/{key}")
        answer = response.json()
    except (httpx.HTTPError, ValueError) as error:
        mend = "check STITCH_GATEWAY and that the gateway runs"
        fail(output, str(client.base_url), f"{type(error).__name__}: {error}", mend)
    if not isinstance(answer, dict) or "status" not in answer:
        problem = answer if isinstance(answer, dict) else {}
        fail(output, key, str(problem.get("what", response.status_code)), str(problem.get("mend")))
    return answer


def _page(client: httpx.Client, path: str, file: Path, output: Output) -> None:
    """The report page, as the gateway draws it."""
    try:
        response = client.get(path)
        if response.status_code != httpx.codes.OK:
            problem = response.json()
            fail(output, path, str(problem.get("what")), str(problem.get("mend")))
        file.write_bytes(response.content)
    except (httpx.HTTPError, ValueError, AttributeError) as error:
        mend = "check STITCH_GATEWAY and that the gateway runs"
        fail(output, str(client.base_url), f"{type(error).__name__}: {error}", mend)
    except OSError as error:
        fail(output, str(file), str(error), "--report names a file that can be written")
    say(f"report page: {file}", output.console)


def _followed(
    client: httpx.Client, key: str, answer: dict[str, Any], output: Output
) -> dict[str, Any]:
    with console(stderr=True).status("") as status:
        while answer["status"] == "pending":
            status.update(_line(answer))
            time.sleep(min(max(float(answer.get("retry_after", 1.0)), 0.2), 10.0))
            answer = _asked(client, key, output)
    return answer


def _line(answer: dict[str, Any]) -> str:
    progress = f"{answer.get('stage')} {answer.get('done', 0)}/{answer.get('total', 0)}"
    said = {"ready": answer.get("key"), "pending": progress}
    return f"{answer['status']}: {said.get(answer['status'], answer.get('reason'))}"


def _show(answer: dict[str, Any], output: Output) -> None:
    if output.as_json:
        output.document({name: value for name, value in answer.items() if name != "trust"})
        return
    say(_line(answer), output.console)
    if answer.get("detail"):
        say(f"  {answer['detail']}", output.console)
