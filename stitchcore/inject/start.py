"""Puts the hook into a process that has just imported TensorFlow."""

from __future__ import annotations

import sys

from . import client, plugin, reasons, settings
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
            events = client.Events(config.store, config.session, lambda kind, fields: None)
            events.write("refused", digest="", reason=error.reason, detail=error.detail)
