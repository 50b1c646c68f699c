"""What the tests share. They compute on the CPU, bit for bit the same, whatever it has."""

import argparse
import functools
import importlib
import json
import math
import multiprocessing
import os
import signal
import sys

import pytest

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")  # before anything imports torch

import torch
import torch.utils._device

import common
import data

torch.set_num_threads(1)
# Named, so that a script somebody adds does not break the tests.
SCRIPTS = ("exp_kernels", "exp_listops", "exp_locality", "exp_multitask", "exp_ngrams", "exp_positional")
SCRIPTS += ("exp_patches", "exp_range", "exp_spt")

# One cell of exp_locality in a fraction of a second: 4 epochs of 2 steps.
TINY = ("--task", "text", "--kernel", "5", "--smoke", "--limit", "32", "--max-length", "64")
TINY += ("--epochs", "4", "--device", "cpu", "--amp", "off")


@pytest.fixture(autouse=True)
def memory_that_nobody_wrote_to(monkeypatch):
    """torch.empty gives NaN: what is read before it is written shows, instead of being 0 by luck."""

    def filling(make):
        @functools.wraps(make)
        def filled(*args, **kwargs):
            made = make(*args, **kwargs)
            has_nan = made.is_floating_point() or made.is_complex()
            with torch.no_grad():
                return made.fill_(math.nan) if has_nan and made.device.type != "meta" else made

        return filled

    torch.utils._device._device_constructors()  # which remembers the real ones, for torch.device("meta")
    for make in (torch.empty, torch.empty_like):
        monkeypatch.setattr(torch, make.__name__, filling(make))


@pytest.fixture(autouse=True)
def no_figure_stays_open():
    """A test that keeps a figure to look at it does not leave it in memory."""
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


def flags_of_fit(**given):
    """What common.fit reads of the command line, as the flags' defaults are; in float32."""
    flags = dict(device="cpu", amp="off", compile=None, graphs=True, micro_batch=None, fresh=False) | given
    return argparse.Namespace(**flags, deadline=math.inf)


@pytest.fixture
def fit_args():
    return flags_of_fit()


def exit_code(main, *argv):
    """That of a script's command, run in this process."""
    try:
        main([str(word) for word in argv])
    except SystemExit as stop:
        return stop.code
    return 0


# Processes of their own, which need not import torch again.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["numpy", "PIL.Image", "pytest", "torch._dynamo", "tqdm"])


def command(log, script, argv, checkpoint_seconds=300):
    """A script's command as the whole work of a process; what it prints is appended to the file `log`."""
    for number in (1, 2):
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    common.CHECKPOINT_SECONDS = checkpoint_seconds
    importlib.import_module(script).main([str(word) for word in argv])


def lines_of(path):
    """The values of a JSONL file; none where there is no file."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


def comparable(out):
    """The one record under --out and its curve, without what time and place put into them."""
    [record] = lines_of(out / "results.jsonl")
    [log] = out.glob("*/log.jsonl")
    for key in "seconds cpu_seconds epoch_seconds date argv peak_gb git dirty".split():
        record.pop(key)
    return record, [{k: v for k, v in line.items() if k != "seconds"} for line in lines_of(log)]


def printed_tables(text):
    """The Markdown tables of a report: {"heading": {"Text": {first cell: the others}}}, with the header as
    the row that is named as its first cell. Rows that are set in under "4 epochs:" are a table of their own,
    called "Text, changed recipe; 4 epochs"."""
    tables = {}
    for section in text.split("### ")[1:]:
        heading, *lines = section.splitlines()
        found, words, table = tables.setdefault(heading, {}), "", None
        for line in lines:
            if line.startswith("| "):
                first, *others = (cell.strip() for cell in line.split("|")[1:-1])
                if table is None:
                    name, under = f"{first}; {words}" if words else first, ""
                    table = found[name] = {}
                if first and line.startswith("|   "):
                    found.setdefault(f"{name}; {under[:-1]}", {})[first] = others
                elif any(others) or not first:
                    table[first] = others
                else:  # a long heading takes two lines
                    under = first if under.endswith(":") else f"{under} {first}".strip()
            elif not line.startswith("|"):
                kept = words * (table is None and not line.startswith("- "))  # no heading of a list
                words, table = line[:-1] if line.endswith(":") else kept, None
    return tables


def stop_at(step, call):
    """call(), with SIGTERM in that step of the training, which must end it with code 75."""
    steps, whole = [], common.train_step

    def train_step(*args):
        steps.append(args)
        if len(steps) == step:
            signal.raise_signal(signal.SIGTERM)
        return whole(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(common, "train_step", train_step)
        assert call() == 75


@pytest.fixture
def real_runs(monkeypatch):
    """Flags of a run that counts as a real one, which is skipped when it is done: smoke runs are not. Its
    data and its size are a smoke run's."""
    load, with_flags = data.load, common.with_flags

    def small(args, recipe, smoke):
        return with_flags(args, common.with_rows(recipe, {"model": smoke["model"]}), smoke)

    monkeypatch.setattr(data, "load", lambda *args, **given: load(*args, **given | {"smoke": True}))
    monkeypatch.setattr(common, "with_flags", small)
    return (*(word for word in TINY if word != "--smoke"), "--batch-size", "16")


class Reached(Exception):
    """The command line was understood: the script asks for data."""


@pytest.fixture
def reached(tmp_path, monkeypatch):
    """Where nothing lies, with data that raise Reached when they are asked for. -> Reached"""

    def ask(*args, **kwargs):
        raise Reached

    monkeypatch.chdir(tmp_path)
    for name in ("load", "fetch_archive", "show"):
        monkeypatch.setattr(data, name, ask, raising=False)
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


def ends_of(band):
    """[lowest, highest] y of what axhspan drew: a polygon until matplotlib 3.9, then a rectangle."""
    corners = band.get_patch_transform().transform(band.get_path().vertices)
    return [corners[:, 1].min(), corners[:, 1].max()]
