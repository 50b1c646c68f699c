"""Where it runs: old libraries, other terminals, and what image workers leave behind."""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import exit_code

import common
import data
import exp_locality
import exp_multitask
import pathfinder

ROOT = Path(common.__file__).parent

# A training on images whose augmentation raises: `python -c RAISES PIDFILE`, which the worker writes.
RAISES = """
import os, sys, numpy as np
import common, data, models
from pathlib import Path
from dataclasses import replace

def augmentation():
    note = Path(sys.argv[1])
    note.exists() or note.write_text(str(os.getpid()))
    raise RuntimeError("no such operation")

data.paper_augmentation = augmentation
parser, flags = common.make_parser("", ["image"]), ["--task", "image", "--device", "cpu", "--amp", "off"]
args = common.parse_args(parser, flags)
task = data.load("image", "unused", smoke=True, limit=100)
task = replace(task, rgb=np.zeros((100, 32, 32, 3), np.uint8))
model = models.SequenceModel("conv", 1, 4, 257, 10, d_hidden=4, kernel=3)
hp = dict(lr=1e-3, weight_decay=0.0, batch_size=10, epochs=1)
with common.exit_cleanly():
    common.fit(model, task, common.classify_loss, hp, args, Path(sys.argv[1]).parent)
"""


def alive(pid):
    """Whether a process is there and still runs."""
    try:
        os.kill(pid, 0)
        return b") Z" not in Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False


def test_offsets_into_the_tables_of_large_images_do_not_wrap(monkeypatch):
    """Products of an int16 array and a scalar of numpy 1 stay 16 bits wide, as those with a Python int do: so
    the newest numpy shows here what the oldest does."""

    class Numpy1:
        intp = int

        def __getattr__(self, name):
            return getattr(np, name)

    tab, asked = pathfinder.tables(128, 3), []
    monkeypatch.setattr(pathfinder, "np", Numpy1())

    class Windows:
        def __getitem__(self, offsets):
            asked.append(np.array(offsets))
            return real[offsets]

    real = tab.windows
    monkeypatch.setattr(tab, "windows", Windows())
    pivot, g = np.array([[60.0, 5.0], [60.0, 7.0]]), np.array([0, 3])
    laid = np.array([[[1, 2], [55, 9], [58, 4]]], np.int16)
    pathfinder.occupancy(tab, pivot, g, laid)
    y, x = pivot.astype(int).tolist()
    dy, dx = ([min((p - q + tab.reach) % 2**16, tab.side - 1) for p, q in zip(row, at)]
              for row, at in zip(laid[0, 1:].tolist(), (y, x)))  # fmt: skip
    first = (2 * tab.first[g]).tolist()
    rows = [
        [tab.base_y + a * tab.row_bytes + f for a, f in zip(y, first)],
        [tab.base_x + a * tab.row_bytes + f for a, f in zip(x, first)],
        [(a * tab.side + b) * tab.row_bytes + int(tab.base[p]) + f
         for a, b, p, f in zip(dy, dx, laid[0, 0].tolist(), first)],
    ]  # fmt: skip
    assert rows[2][0] - tab.base[1] > 2**15
    assert [offsets.tolist() for offsets in asked] == rows


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc; elsewhere workers are not forked")
def test_a_worker_that_raises_ends_the_command(tmp_path):
    """Its workers ignore SIGTERM, and Python waits for them when it ends: this never ended."""
    note, environment = tmp_path / "pid", {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", RAISES, str(note)]
    started = time.monotonic()
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        told = process.communicate(timeout=60)[1]
    finally:
        process.kill()
        left = alive(int(note.read_text()))
        if left:
            os.kill(int(note.read_text()), 9)
    assert process.returncode == 1 and not left and time.monotonic() - started < 60
    assert "RuntimeError: no such operation" in told


@pytest.mark.parametrize("version, refused", [("2.5.1", True), ("2.10.0+cpu", True), ("2.11.0", False)])
def test_compiling_wrong_gradients_on_a_cpu_is_refused(version, refused, monkeypatch):
    monkeypatch.setattr(torch, "__version__", torch.torch_version.TorchVersion(version))
    for device, mode in ((torch.device("cpu"), None), (torch.device("cuda"), "default")):
        common.require_compiler(mode, device)
    told = pytest.raises(common.UserError, match="wrong gradients") if refused else contextlib.nullcontext()
    with told:
        common.require_compiler("default", torch.device("cpu"))


@pytest.mark.parametrize("script, words", [
    (exp_locality, ["--kernel", 5]), (exp_multitask, ["--model", "transformer"]),
])  # fmt: skip
def test_a_smoke_run_of_image_meets_the_papers_augmentation(script, words, tmp_path, monkeypatch):
    """What a first real run of Image does is done by its smoke run, too."""
    met, whole = [], data.work_off
    monkeypatch.setattr(data, "work_off", lambda loader: met.append(loader.dataset) or whole(loader))
    flags = ["--task", "image", *words, "--smoke", "--epochs", 1, "--limit", 16]
    assert exit_code(script.main, *flags, "--device", "cpu", "--out", tmp_path) == 0
    [augmented] = met
    tokens = data.load("image", "unused", smoke=True, limit=16).train.tokens
    assert data.grey(augmented.rgb).reshape(-1).tolist() == tokens.tolist()
