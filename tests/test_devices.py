"""Audits and trainings on a device that is not the CPU.

The facts are in tests/on_fake_device, and run in a process of their own: once torch has differentiated on any device
but the CPU, it refuses to in forked processes, which other tests use.
"""

import os
import subprocess
import sys
from pathlib import Path

FILES = sorted((Path(__file__).parent / "on_fake_device").glob("*.py"))


def test_facts_about_devices_hold():
    assert len(FILES) == 3
    options = ["-q", "-m", "not slow", "-p", "no:xdist", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, *map(str, FILES)]
    # Some virtual machines announce AMX and kill programs that use it, as torch does in bfloat16.
    environment = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", **os.environ}
    finished = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert finished.returncode == 0, finished.stdout[-5000:] + finished.stderr[-2000:]
