"""The tests compute on the CPU, where runs are equal bit for bit, whatever the machine has. To let those that
can use a GPU see one: CUDA_VISIBLE_DEVICES=0 python -m pytest tests/test_listops.py
"""

import argparse
import math
import os
import signal

import pytest

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")


@pytest.fixture
def fit_args():
    """What common.fit reads of the command line, as the flags' defaults are; in float32."""
    flags = dict(device="cpu", amp="off", compile=False, no_bucket=False, micro_batch=None)
    return argparse.Namespace(**flags, deadline=math.inf)


@pytest.fixture
def signals():
    """Ctrl-C arrives, here and in child processes, even where a shell runs pytest in the background, which
    ignores it; what a test does to the handlers is undone."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
