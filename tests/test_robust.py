"""What users and machines do to a run: wrong flags, full disks, no memory, vanished data.

pytest tests/test_robust.py
"""

import importlib.util
import io
import math
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import common
import data
import exp_locality
import models

ROOT = Path(__file__).parent.parent
SCRIPTS = sorted(path.stem for path in ROOT.glob("exp_*.py")) + ["data"]
RUN = [sys.executable, str(ROOT / "exp_locality.py"), "--task", "text", "--kernel", "5", "--smoke"]
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}


# ------------------------------------------------------------------------------------------ wrong flags


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_command_line_is_refused_in_a_sentence_or_understood(script, reached, capsys):
    """500 random command lines a script: each is refused with exit code 2, or understood."""
    module = importlib.import_module(script)
    with pytest.raises(SystemExit):
        module.main(["--help"])
    flags = sorted(
        {word.strip(",[]") for word in capsys.readouterr().out.split() if word.startswith(("--", "[--"))}
    )
    # --report and --figure without training are whole programs, tested elsewhere.
    programs = {"--help", "--report", "--check"} | ({"--figure"} if script != "exp_spt" else set())
    flags = [flag for flag in flags if flag not in programs] + ["--nonsense", "-x"]
    values = "text listops all 5 4 0 -1 61 1e-3 nan inf 1e999 9m soon cpu tpu bf16 / ../x é".split()
    values += ["9" * 20, "", " ", "\x00", "--", "[]", "none", "paper", "rotary", "s4"]
    draw = random.Random(script)
    codes = []
    for _ in range(500):
        argv = [
            draw.choice(flags) if draw.random() < 0.5 else draw.choice(values)
            for _ in range(draw.randint(0, 7))
        ]
        if draw.random() < 0.7:
            argv = ["--task", draw.choice(["text", "listops", "image"]), *argv]
        try:
            module.main(argv)
            codes.append(0)
        except reached:
            codes.append("reached")
        except SystemExit as stop:
            codes.append(stop.code)
            assert stop.code == 2 and capsys.readouterr().err.count("error: ") == 1, argv
    assert codes.count(2) > 100


# ------------------------------------------------------------------------------------------ full disk


def limited_to(size):
    """No file of this process may grow beyond `size` bytes: to the program that is a full disk."""

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return limit


def test_a_full_disk_stops_the_run_with_a_sentence_and_it_continues_afterwards(tmp_path):
    command = [*RUN, "--epochs", "1", "--out", str(tmp_path)]
    full = subprocess.run(
        command, env=ONE_THREAD, preexec_fn=limited_to(50_000), capture_output=True, text=True
    )
    assert full.returncode == 2 and "cannot write" in full.stderr and "Traceback" not in full.stderr
    assert "the same command continues" in full.stderr
    assert not list(tmp_path.glob("*/*.tmp")) and not list(tmp_path.glob("*/last.pt"))
    exp_locality.main(command[2:])
    assert len(common.read_records([tmp_path / "results.jsonl"])) == 1


def test_a_record_that_only_partly_fits_is_not_written_at_all(tmp_path):
    path = tmp_path / "results.jsonl"
    common.append_record(path, {"run": "first"})
    code = (
        "import common, pathlib, sys\n"
        "try: common.append_record(pathlib.Path(sys.argv[1]), {'run': 'x' * 1000})\n"
        "except common.UserError as error: print(error)\n"
    )
    out = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        cwd=ROOT,
        preexec_fn=limited_to(500),
        capture_output=True,
        text=True,
    ).stdout
    assert "cannot write" in out and "free space" in out
    assert path.read_text() == '{"run": "first"}\n'


def test_a_write_that_fails_leaves_the_old_file(tmp_path):
    path = tmp_path / "last.pt"
    common.write_atomically(path, b"old")
    code = (
        "import common, pathlib, sys\n"
        "try: common.write_atomically(pathlib.Path(sys.argv[1]), b'x' * 100_000)\n"
        "except common.UserError as error: print(error)\n"
    )
    command = [sys.executable, "-c", code, str(path)]
    out = subprocess.run(
        command, cwd=ROOT, preexec_fn=limited_to(10_000), capture_output=True, text=True
    ).stdout
    assert "cannot write" in out and path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


# ---------------------------------------------------------------------------------------- no memory, no data


@pytest.mark.parametrize(
    "norm, batch, micro, advice",
    [
        ("layer", 16, None, "--micro-batch 8 "),
        ("layer", 16, 8, "--micro-batch 4 "),
        ("layer", 1, None, "a single example"),
        ("layer", 16, 512, "--micro-batch 8 "),  # parts larger than the batch are the batch
        ("batch", 16, None, "torchrun"),  # its mathematics cannot be cut into parts
    ],
)
def test_out_of_memory_names_what_helps(norm, batch, micro, advice):
    with pytest.raises(common.UserError, match=advice):
        with common.out_of_memory_advice(models.Norm(norm, 4), batch, micro):
            raise torch.OutOfMemoryError("CUDA out of memory")


@pytest.mark.parametrize(
    "words",
    (
        "cuFFT error: CUFFT_ALLOC_FAILED",
        "DefaultCPUAllocator: can't allocate memory",
        "FIND was unable to find an engine to execute this computation",
    ),
)
def test_memory_that_other_libraries_miss_counts_too(words):
    with pytest.raises(common.UserError, match="--micro-batch 8 "):
        with common.out_of_memory_advice(models.Norm("layer", 4), 16, None):
            raise RuntimeError(words)


def test_other_errors_keep_their_traceback():
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        with common.out_of_memory_advice(models.Norm("layer", 4), 16, None):
            raise RuntimeError("shapes cannot be multiplied")


def test_data_that_vanishes_or_is_the_folder_itself_is_named(tmp_path, monkeypatch):
    def no_network(*args, **kwargs):
        raise data.DataError("could not fetch")

    monkeypatch.setattr(data, "fetch_archive", no_network)
    with pytest.raises(data.DataError, match="could not fetch"):
        data.load("text", tmp_path)
    folder = tmp_path / "packed" / "text"
    arrays = {s: (*data.ragged([b"abc"]), [1]) for s in ("train", "val", "test")}
    data.pack(folder, "text", arrays, {"from": "test"})
    assert data.load("text", tmp_path).train.label.tolist() == [1]
    (folder / "train_tokens.npy").unlink()
    with pytest.raises(data.DataError, match="incomplete or unreadable .*train_tokens.npy.* delete"):
        data.load("text", tmp_path)


# ------------------------------------------------------------------------------------------ watchdogs, seeds


def test_a_run_at_chance_is_warned_about_once(capsys):
    task = data.load("text", "unused", smoke=True)
    capsys.readouterr()
    stuck = [{"val": {"acc": 0.5}}] * 5
    common.warn_at_chance(stuck[:4], task, {"epochs": 50})
    assert capsys.readouterr().out == ""
    common.warn_at_chance(stuck, task, {"epochs": 50})
    assert "still at chance" in capsys.readouterr().out
    common.warn_at_chance([*stuck[:4], {"val": {"acc": 0.9}}], task, {"epochs": 50})
    common.warn_at_chance(stuck * 2, task, {"epochs": 50})
    assert capsys.readouterr().out == ""


def test_the_model_does_not_reshuffle_the_data(fit_args, tmp_path):
    """Two models of different size and dropout under one seed see the same batches, corrupted alike."""
    seen = []
    for width, dropout in ((8, 0.0), (24, 0.5)):
        task = data.load("text", "unused", denoise=True, smoke=True, limit=48)
        torch.manual_seed(3)
        model = models.SequenceModel(
            "conv", 1, width, 259, 2, denoise=True, d_hidden=8, kernel=3, dropout=dropout
        )
        batches = []

        def loss_fn(model, batch, batches=batches):
            if batch.target is not None:
                batches.append(batch.tokens.clone())
            return common.multitask_loss(model, batch)

        hp = dict(lr=1e-3, weight_decay=0.1, epochs=2, batch_size=16)
        folder = tmp_path / str(width)
        folder.mkdir()
        common.fit(model, task, loss_fn, hp, fit_args, folder, seed=3)
        seen.append(batches)
    assert len(seen[0]) == len(seen[1]) == 6
    assert all(torch.equal(a, b) for a, b in zip(*seen))
    assert not torch.equal(seen[0][0][:, :64], seen[0][3][:, :64])  # and another epoch is another one


def test_a_cell_that_another_process_trains_is_refused_and_free_again_after_a_kill(tmp_path):
    """Both would write the same last.pt."""
    command = [*RUN, "--epochs", "200", "--out", str(tmp_path)]
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with subprocess.Popen(command, env=ONE_THREAD, **pipes) as first:
        try:
            while "parameters" not in (line := first.stdout.readline()):
                assert line, "the first run ended"
            second = subprocess.run(command, env=ONE_THREAD, capture_output=True, text=True, timeout=120)
        finally:
            first.kill()
    assert second.returncode == 2 and "trained by another process" in second.stderr
    assert "Traceback" not in second.stderr
    common.claim(next(tmp_path.glob("smoke-*")))


@pytest.mark.parametrize(
    "command, begun",
    [
        ([*RUN, "--epochs", "200"], "smoke-*/log.jsonl"),
        ([sys.executable, str(ROOT / "data.py"), "--task", "pathfinder", "--prepare"], "pathfinder32-easy/*"),
    ],
)
def test_ctrl_c_ends_in_one_sentence(command, begun, signals, tmp_path):
    """The terminal sends it to workers too: here the Pathfinder generator's."""

    def blocks_done():
        return sum(path.read_bytes().count(b"1") for path in tmp_path.glob("*/blocks_done"))

    where = "--data-dir" if "--prepare" in command else "--out"
    pipes = dict(stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    command = [*command, where, str(tmp_path)]
    with subprocess.Popen(command, env=ONE_THREAD, start_new_session=True, **pipes) as process:
        while not list(tmp_path.glob(begun)):
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.05)
        time.sleep(0.5)
        before = blocks_done()
        os.killpg(process.pid, signal.SIGINT)
        _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted; the same command continues" in error and "Traceback" not in error
    assert blocks_done() <= before + 1  # one may have ended in that moment, none is begun


def test_sigterm_where_nothing_is_trained_yet_leaves_nothing_half_made(tmp_path, monkeypatch, capsys):
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(np, "save", lambda *_: signal.raise_signal(signal.SIGTERM))
    with pytest.raises(SystemExit) as stop, common.exit_cleanly():
        arrays = {s: (*data.ragged([b"abc"]), [1]) for s in ("train", "val", "test")}
        data.pack(tmp_path / "packed" / "text", "text", arrays, {"from": "test"})
    assert stop.value.code == common.EXIT_CONTINUE
    assert "give the same command again" in capsys.readouterr().err
    assert not list((tmp_path / "packed").glob("text*")) and signal.getsignal(signal.SIGTERM) is before
    monkeypatch.setattr(data, "attend_to", lambda *_: signal.raise_signal(signal.SIGTERM))
    with pytest.raises(SystemExit) as stop:
        data.main(["--task", "text", "--prepare", "--data-dir", str(tmp_path)])
    assert stop.value.code == 128 + signal.SIGTERM and signal.getsignal(signal.SIGTERM) is before


def test_ctrl_c_is_answered_where_stderr_has_ended(signals, monkeypatch):
    """`2>&1 | tee log`: it ends tee first."""

    def gone(*args, **kwargs):
        raise BrokenPipeError

    monkeypatch.setattr(common.os, "write", gone)
    monkeypatch.setattr(sys.stderr, "write", gone)
    arrived = common.catch_signals()
    signal.raise_signal(signal.SIGINT)
    assert arrived == [signal.SIGINT]
    with pytest.raises(SystemExit) as stop, common.exit_cleanly():
        common.leave(arrived, "here")
    assert stop.value.code == common.EXIT_CTRL_C


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path):
    """`exp_locality.py --report | head -1`"""
    code = "import common\nwith common.exit_cleanly():\n    while True:\n        print('a row')\n"
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, **pipes) as process:
        assert process.stdout.readline() == "a row\n"
        process.stdout.close()
        assert process.stderr.read() == "" and process.wait() == common.EXIT_NO_READER


def test_a_report_reads_pipes_and_prints_where_only_ascii_is_known(tmp_path, monkeypatch):
    (record, *_) = (ROOT / "results").glob("*.jsonl")
    reader, writer = os.pipe()
    with open(writer, "w") as pipe:
        pipe.write(record.read_text().splitlines()[0] + "\n")
    printed = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(printed, encoding="ascii"))
    exp_locality.main(["--report", f"/dev/fd/{reader}", "--out", str(tmp_path)])
    sys.stdout.flush()
    assert b"Table 1" in printed.getvalue() and b"?" in printed.getvalue()  # for a dash


def test_a_run_begun_on_another_kind_of_device_continues(fit_args, tmp_path):
    """A CUDA generator's state has 16 bytes, which no CPU generator can read."""
    task = data.load("text", "unused", denoise=True, limit=32, smoke=True)
    hp = dict(lr=1e-3, weight_decay=0.1, epochs=2, batch_size=16)

    def fit():
        model = models.SequenceModel("conv", 1, 8, 259, 2, denoise=True, d_hidden=8, kernel=3)
        return common.fit(model, task, common.multitask_loss, hp, fit_args, tmp_path)

    fit_args.deadline = 0.0
    with pytest.raises(common.Interrupted):
        fit()
    state = torch.load(tmp_path / "last.pt", weights_only=True)
    assert state["step"] == 1 and state["noise_device"] == "cpu"
    state |= {"noise": torch.zeros(16, dtype=torch.uint8), "noise_device": "cuda"}
    common.save_checkpoint(tmp_path / "last.pt", state)
    fit_args.deadline = math.inf
    assert fit()["steps"] == 4


def test_a_cell_that_fails_does_not_end_the_table(tmp_path, capsys):
    """Batch norm (S5) cannot be cut into parts, gMLP can; one is refused, the other is trained."""
    tiny = ["--smoke", "--limit", "16", "--epochs", "1", "--device", "cpu", "--out", str(tmp_path)]
    with pytest.raises(SystemExit) as stop:
        main = importlib.import_module("exp_kernels").main
        main(["--task", "listops", "--model", "s5", "gmlp", "--micro-batch", "4", *tiny])
    err = capsys.readouterr().err
    assert (
        stop.value.code == 2 and "--micro-batch would change" in err and "1 of 2 cells did not finish" in err
    )
    assert [line["model"] for line in common.read_records([tmp_path / "results.jsonl"])] == ["gmlp"]
    assert not common.CLAIMED  # others may take the cell


def test_a_command_that_is_refused_drops_nothing(tmp_path, capsys):
    """--fresh empties a finished run's folder, but only for a training that can begin."""
    tiny = ["--task", "text", "--smoke", "--limit", "16", "--epochs", "1", "--out", str(tmp_path)]
    spt = importlib.import_module("exp_spt").main
    words = [*tiny, "--model", "s4", "--objective", "masked"]
    spt([*words, "--device", "cpu"])
    before = sorted(tmp_path.rglob("*"))
    refusals = [["--device", "cuda"], ["--device", "cpu", "--micro-batch", "4"]]
    for flags in refusals[torch.cuda.is_available() :]:
        spt([*words, *flags])
        assert "is done" in capsys.readouterr().out  # nothing is trained, so nothing refused
        with pytest.raises(SystemExit) as stop:
            spt([*words, "--fresh", *flags])
        assert stop.value.code == 2 and capsys.readouterr().err.startswith("error: --")
        assert sorted(tmp_path.rglob("*")) == before
    with pytest.raises(SystemExit):  # and the first half is not trained when the second is refused
        spt([*words, "--device", "cpu", "--micro-batch", "4", "--seed", "1"])
    assert sorted(tmp_path.rglob("*")) == before
    kernels = importlib.import_module("exp_kernels").main
    with pytest.raises(SystemExit):
        kernels([*tiny, "--model", "s5", "--device", "cpu", "--micro-batch", "4", "--fresh"])
    assert sorted(tmp_path.rglob("*")) == before


def test_a_copy_of_a_script_has_runs_of_its_own(tmp_path):
    """Its model may be another one, which nothing else in a run's name would tell."""
    shutil.copy(ROOT / "exp_locality.py", tmp_path / "exp_mine.py")
    spec = importlib.util.spec_from_file_location("exp_mine", tmp_path / "exp_mine.py")
    mine = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(mine)
    tiny = ["--task", "text", "--smoke", "--limit", "16", "--epochs", "1", "--device", "cpu"]
    mine.main([*tiny, "--out", str(tmp_path)])
    [line] = common.read_records([tmp_path / "results.jsonl"])
    assert line["exp"] == "mine" and line["run"].startswith("smoke-mine-text")


def test_signals_interrupt_at_once_again_after_a_cell_that_failed(fit_args, signals):
    """No checkpoint waits for them while the next cell's data are made."""
    seen = []

    def run(args, cell, seed):
        seen.append(signal.getsignal(signal.SIGTERM))
        common.catch_signals()
        raise common.UserError("no")

    fit_args.seed, fit_args.seeds, fit_args.fresh = 0, 1, False
    with pytest.raises(common.UserError, match="2 of 2 cells"):
        common.run_cells(fit_args, [("a",), ("b",)], run)
    assert seen[1] is common.interrupt


def test_a_command_stopped_while_it_begins_anew_says_what_it_has_not_begun(tmp_path, capsys):
    """Without --fresh, which would begin the stopped cell again, old records of the rest would stand."""
    words = ["--task", "text", "--smoke", "--device", "cpu", "--out", str(tmp_path), "--time-limit", "0.01s"]
    for fresh, notes in ((["--fresh"], 1), ([], 0)):
        with pytest.raises(SystemExit) as stop:
            importlib.import_module("exp_locality").main([*words, "--seeds", "3", *fresh])
        assert stop.value.code == common.EXIT_CONTINUE
        assert capsys.readouterr().err.count("the 2 after it were not begun, give --fresh") == notes


def test_a_checkpoint_of_changed_code_is_named(fit_args, tmp_path):
    task = data.load("text", "unused", limit=32, smoke=True)
    hp = dict(lr=1e-3, weight_decay=0.1, epochs=2, batch_size=16)
    fit_args.deadline = 0.0
    wishes = {}, {}, {"lr": 1e-4}  # of one parameter, which makes groups of its own in the optimiser
    errors = common.Interrupted, common.UserError, common.UserError
    for width, wish, error in zip((8, 16, 8), wishes, errors):
        model = models.SequenceModel("conv", 1, width, 259, 2, d_hidden=8, kernel=3)
        model.blocks[0].linear.weight.optim = wish
        with pytest.raises(error, match="continues|the code changed; start over with --fresh"):
            common.fit(model, task, common.classify_loss, hp, fit_args, tmp_path)


def test_all_tasks_are_refused_before_the_first_is_trained_where_one_cannot_be_had(tmp_path, capsys):
    """Retrieval is fetched only when asked: not found out after the hours of the tasks before it."""
    for name in ("locality", "multitask", "kernels", "positional", "spt"):
        with pytest.raises(SystemExit) as stop:
            importlib.import_module(f"exp_{name}").main(["--task", "all", "--data-dir", str(tmp_path)])
        assert stop.value.code == 2 and "--task retrieval --fetch" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_cuda_graphs_do_not_add_up_gradients(fit_args):
    fit_args.micro_batch, fit_args.compile = 4, "reduce-overhead"
    with pytest.raises(common.UserError, match="without reduce-overhead"):
        common.require_splittable(models.Norm("layer", 4), 16, fit_args)
    common.require_splittable(models.Norm("layer", 4), 4, fit_args)  # one part: nothing to add up


@pytest.mark.parametrize(
    "script, argv",
    [
        ("exp_locality", ["--report"]),
        ("exp_spt", ["--report"]),
        ("exp_kernels", ["--figure", "kernels", "--model", "dlr", "--smoke"]),
        ("data", ["--task", "pathfinder", "--show"]),
    ],
)
def test_a_figure_that_cannot_be_written_says_so(script, argv, tmp_path, capsys):
    (tmp_path / "file").touch()
    where = "--data-dir" if script == "data" else "--out"
    with pytest.raises(SystemExit) as stop:
        importlib.import_module(script).main([*argv, where, str(tmp_path / "file")])
    assert stop.value.code == 2
    assert f"choose another {where}" in capsys.readouterr().err
