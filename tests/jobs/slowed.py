"""Makes the kernels of a real artifact slow, or fail, without changing what they compute.

Each library is wrapped in one of the same symbols that holds the old one's bytes, loads them from
memory, waits and calls it. The manifest is signed again: to the job it is an artifact like any.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from stitchcore.artifact import sign

WRAPPER = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

__asm__(".section .rodata\\nheld: .incbin \\"@FILE@\\"\\nheld_end:\\n.previous\\n");
extern const char held[] __attribute__((visibility("hidden")));
extern const char held_end[] __attribute__((visibility("hidden")));
typedef int64_t (*Kernel)(void *const *, const int64_t *, char *, int64_t, int64_t, int64_t);

static void *inner;
static void __attribute__((constructor)) load(void) {
  char path[64];
  int file = memfd_create("inner", 0);
  if (write(file, held, held_end - held) != held_end - held) return;
  snprintf(path, sizeof path, "/proc/self/fd/%d", file);
  inner = dlopen(path, RTLD_NOW | RTLD_LOCAL);
}
#define KERNEL(name)                                                                             \\
  int64_t name(void *const *b, const int64_t *s, char *scratch, int64_t p, int64_t from,         \\
               int64_t to) {                                                                     \\
    static Kernel kernel;                                                                        \\
    struct timespec wait = {0, @NANOSECONDS@};                                                   \\
    if (kernel == 0) kernel = (Kernel)dlsym(inner, #name);                                       \\
    nanosleep(&wait, 0);                                                                         \\
    return kernel(b, s, scratch, p, from, to);                                                   \\
  }
"""


def slow_down(artifact: Path, key_file: Path, seconds: float) -> None:
    """Every phase of every kernel of `artifact` takes `seconds` more on each thread, below 1."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("no gcc: apt-get install gcc")
    manifest = json.loads((artifact / "manifest.json").read_text())
    for number, entry in enumerate(manifest["libraries"]):
        path = artifact / entry["file"]
        inner = path.rename(path.with_suffix(".inner"))
        symbols = {k["symbol"] for k in manifest["kernels"] if k["library"] == number}
        text = WRAPPER.replace("@FILE@", str(inner))
        text = text.replace("@NANOSECONDS@", str(int(seconds * 1e9)))
        source = path.with_suffix(".c")
        source.write_text(text + "".join(f"KERNEL({symbol})\n" for symbol in sorted(symbols)))
        made = [compiler, "-O1", "-shared", "-fPIC", str(source), "-o", str(path), "-ldl"]
        subprocess.run(made, check=True)
        entry["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
        inner.unlink()
        source.unlink()
    data = json.dumps(manifest).encode()
    (artifact / "manifest.json").write_bytes(data)
    signature = sign.sign(sign.load_or_create_key(key_file), data)
    (artifact / "manifest.sig").write_bytes(signature)
