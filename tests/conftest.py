"""The tests compute on the CPU, where runs are equal bit for bit, whatever the machine has. To let those that
can use a GPU see one: CUDA_VISIBLE_DEVICES=0 python -m pytest tests/test_listops.py
"""

import argparse
import math
import os
import signal

import pytest

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")  # before anything imports torch

import data


def flags_of_fit(**given):
    """What common.fit reads of the command line, as the flags' defaults are; in float32."""
    flags = dict(device="cpu", amp="off", compile=False, no_bucket=False, micro_batch=None) | given
    return argparse.Namespace(**flags, deadline=math.inf)


@pytest.fixture
def fit_args():
    return flags_of_fit()


class Reached(Exception):
    """The command line was understood: the script asks for data."""


@pytest.fixture
def reached(tmp_path, monkeypatch):
    """Where nothing lies, with data that raise Reached when they are asked for. -> Reached"""

    def ask(*args, **kwargs):
        raise Reached

    monkeypatch.chdir(tmp_path)
    for name in ("load", "fetch_archive", "show"):
        monkeypatch.setattr(data, name, ask)
    return Reached


@pytest.fixture
def signals():
    """Ctrl-C arrives, here and in child processes, even where a shell runs pytest in the background, which
    ignores it; what a test does to the handlers is undone."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
