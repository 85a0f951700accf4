"""Puts the hook into a process that has just imported TensorFlow."""

from __future__ import annotations

import atexit
import sys

from . import client, gateway, plugin, reasons, settings
from .hook import Hook


def install() -> None:
    """Called right after `import tensorflow`. Says in one line why when it cannot work."""
    config = None
    try:
        config = settings.of_this_process()
        if config.mode == "off" or not config.store:
            return
        import tensorflow

        version = str(tensorflow.__version__)
        major, minor = (int(part) for part in version.split(".")[:2])
        native = plugin.load(config.native, (major, minor))
        Hook(config, native, version).start()
    except reasons.Refused as error:
        sys.stderr.write(f"[stitch] {error}; the job runs unchanged\n")
        if config is not None:
            teller = _teller(config)
            events = client.Events(config.store, config.session, teller.observe)
            events.write("refused", digest="", reason=error.reason, detail=error.detail)
            teller.start()
            atexit.register(teller.finish)


def _teller(config: settings.Settings) -> client.Source:
    """Tells the gateway, if there is one, why this process is left alone: it loads nothing."""
    nobody = client.Expected("", "", (), lambda signature, message, key: False)
    return gateway.source(config, nobody, lambda about, reason, detail: None)
