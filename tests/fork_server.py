"""Programs without their import of TensorFlow: forked from a process that has done it.

That import is most of the processor time of a short job. Only for runs that nobody times and whose
memory nobody measures. Where the bootstrap is on PYTHONPATH the hook is put in after the fork, by
what would have put it in after the import.
"""

from __future__ import annotations

import functools
import json
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests import lean

SECONDS = 900
SERVER = """
import atexit, importlib.util, json, os, runpy, signal, sys, threading, traceback
import tensorflow

def hook(bootstrap):
    spec = importlib.util.spec_from_file_location("sitecustomize", bootstrap)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for finder in [finder for finder in sys.meta_path if isinstance(finder, module._Finder)]:
        sys.meta_path.remove(finder)
        module._guarded(module._install)

def run(command, environment, out, err, seconds):
    signal.alarm(seconds)
    for file, number in ((out, 1), (err, 2)):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT, 0o600), number)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[:] = command
    sys.path[0] = os.path.dirname(command[0])
    code = 0
    try:
        for folder in filter(None, environment.get("PYTHONPATH", "").split(os.pathsep)):
            if os.path.exists(os.path.join(folder, "sitecustomize.py")):
                hook(os.path.join(folder, "sitecustomize.py"))
        runpy.run_path(command[0], run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)

answers, sys.stdout = sys.stdout, sys.stderr
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        sys.stdout = os.fdopen(1, "w")
        run(**json.loads(line))
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status), file=answers, flush=True)
"""


_ONE_AT_A_TIME = threading.Lock()


@functools.cache
def _server(python: str) -> subprocess.Popen[str]:
    """Ends with this process, whose end of the pipe is then closed."""
    return subprocess.Popen(
        [python, "-c", SERVER],
        env=lean.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def run(
    command: Sequence[str], environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """What `subprocess.run` would return for [python, script, arguments...]."""
    python, *arguments = command
    server = _server(python)
    assert server.stdin is not None and server.stdout is not None
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        request = {
            "command": arguments,
            "environment": environment or lean.environment(),
            "out": str(out),
            "err": str(err),
            "seconds": SECONDS,
        }
        with _ONE_AT_A_TIME:
            print(json.dumps(request), file=server.stdin, flush=True)
            code = int(server.stdout.readline())
        return subprocess.CompletedProcess(command, code, out.read_text(), err.read_text())
