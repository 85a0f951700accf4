"""Put on PYTHONPATH by `stitch run` and by the webhook; runs at the start of each Python.

Costs nothing until the program imports TensorFlow, then installs the hook. Chains the job's own
sitecustomize, hides itself from child processes, and swallows its own failures in one line.
"""

import os
import sys


def _own_folder() -> str:
    return os.path.dirname(os.path.abspath(__file__))


def _is_own(entry: str) -> bool:
    return os.path.abspath(entry or os.curdir) == _own_folder()


def _hide() -> None:
    """Takes our folder off the path of this process and of its children."""
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    others = [entry for entry in entries if entry and not _is_own(entry)]
    if others:
        os.environ["PYTHONPATH"] = os.pathsep.join(others)
    else:
        os.environ.pop("PYTHONPATH", None)
    sys.path[:] = [entry for entry in sys.path if not _is_own(entry)]


def _chain() -> None:
    """Runs the sitecustomize that would have run without us."""
    import importlib.machinery
    import importlib.util

    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def _install() -> None:
    """Loads the job side as `stitch_inject`: the rest of stitchcore need not be importable."""
    import importlib
    import importlib.util

    folder = os.path.dirname(_own_folder())
    spec = importlib.util.spec_from_file_location(
        "stitch_inject",
        os.path.join(folder, "__init__.py"),
        submodule_search_locations=[folder],
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"no job side in {folder}")
    module = importlib.util.module_from_spec(spec)
    sys.modules["stitch_inject"] = module
    spec.loader.exec_module(module)
    importlib.import_module("stitch_inject.start").install()


class _Finder:
    """Finds `tensorflow` as always, and acts when its import is done."""

    def __init__(self) -> None:
        self._busy = False

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name != "tensorflow" or self._busy:
            return None
        import importlib.util

        self._busy = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._busy = False
        if spec is None or spec.loader is None or not hasattr(spec.loader, "exec_module"):
            return spec
        execute = spec.loader.exec_module

        def exec_module(module):  # type: ignore[no-untyped-def]
            execute(module)
            sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
            _guarded(_install)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _guarded(function) -> None:  # type: ignore[no-untyped-def]
    try:
        function()
    except Exception as error:
        sys.stderr.write(f"[stitch] hook_error: {type(error).__name__}: {error}\n")


_guarded(_hide)
_asked = os.environ.get("STITCH_STORE") or os.environ.get("STITCH_GATEWAY")
if _asked and os.environ.get("STITCH_MODE", "optimize") != "off":
    sys.meta_path.insert(0, _Finder())
_chain()
