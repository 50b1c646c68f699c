"""Several processes (torchrun) and parts of batches (--micro-batch) against one process: promise 5. pytest
tests/test_ranks.py"""

import argparse
import contextlib
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import PROCESSES, TINY, exit_code, flags_of_fit, lines_of, stop_at

import common
import data
import exp_locality
import models

ROOT = Path(__file__).parent.parent
RECIPE = {"lr": 1e-2, "weight_decay": 0.1, "batch_size": 5, "clip": 1.0, "epochs": 1}
TOGETHER = 46  # examples: the last batch of an epoch has one example for two ranks


def text():
    """Conv, classification and denoising."""
    task = data.load("text", "unused", technique="denoise", limit=TOGETHER, smoke=True)
    model = models.SequenceModel("conv", 2, 16, task.vocab, 2, denoise=True, d_hidden=24, kernel=5)
    return task, model, common.multitask_loss


def retrieval():
    """Pairs of documents: no rank gets half a pair."""
    task = data.load("retrieval", "unused", limit=TOGETHER, smoke=True)
    model = models.SequenceModel("conv", 2, 16, task.vocab, 2, docs=2, d_hidden=24, kernel=5)
    return task, model, common.classify_loss


def s4():
    """Batch norm, whose statistics run over the global batch; lengths differ, so the ranks' counts do too."""
    task = data.load("text", "unused", technique="denoise", limit=TOGETHER, smoke=True)
    sizes = dict(denoise=True, max_length=task.max_length, d_state=8)
    model = models.SequenceModel("s4", 2, 16, task.vocab, 2, norm="batch", **sizes)
    return task, model, common.multitask_loss


CASES = {"text": text, "retrieval": retrieval, "s4": s4}
TWICE = ("retrieval", "s4")  # what two ranks train


def train(case, folder, micro_batch=None, change=lambda model: model):
    """10 steps in float64, so that only differences in the mathematics show -> (losses of the steps, what
    fit returns, the trained parameters)."""
    torch.manual_seed(0)
    task, model, loss_fn = CASES[case]()
    losses, whole = [], common.sum_gradients

    def watched(model, loss):
        loss = whole(model, loss)
        losses.append(float(loss))
        return loss

    common.sum_gradients = watched
    try:
        folder.mkdir(exist_ok=True)
        args = flags_of_fit(micro_batch=micro_batch)
        result = common.fit(change(model).double(), task, loss_fn, RECIPE, args, folder)
    finally:
        common.sum_gradients = whole
    return losses, result, {name: p.detach() for name, p in model.named_parameters()}


def with_torchs_own_norm(model):
    model.mine = torch.nn.BatchNorm1d(4)
    return model


CELL = [*TINY, "--limit", "48"]  # 4 epochs of 3 steps


def one_of_two(rank, port, folder):
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.dup2(os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)
    common.join_ranks(argparse.ArgumentParser(), "cpu")
    with pytest.raises(common.UserError, match="batch norm"):
        train("text", folder / "refused", change=with_torchs_own_norm)
    for case in TWICE:
        torch.save(train(case, folder / case), folder / f"{case}-{rank}.pt")

    def cell():
        return exit_code(exp_locality.main, *CELL, "--out", folder / "cell")

    if rank == 1:  # the signal comes to one alone
        stop_at(4, cell)
    else:
        assert cell() == 75
    assert not (folder / "cell" / "results.jsonl").exists() and cell() == 0
    torch.distributed.barrier()
    os._exit(0)  # gloo now and then aborts a process that takes its group down (pytorch#179291)


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    """The folder with what two processes, started once, have made of each case."""
    folder = tmp_path_factory.mktemp("ranks")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    processes = [PROCESSES.Process(target=one_of_two, args=(rank, port, folder)) for rank in (0, 1)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(240)
        assert process.exitcode == 0
    return folder


@pytest.mark.processes
@pytest.mark.parametrize("case", TWICE)
def test_two_ranks_train_as_one_process(case, two_ranks, tmp_path):
    losses, result, parameters = train(case, tmp_path / "alone")
    (first, theirs, weights), (second, others, _) = (torch.load(two_ranks / f"{case}-{r}.pt") for r in (0, 1))
    assert len(losses) == 10 and first == second and theirs["test_acc"] == others["test_acc"]
    assert first == pytest.approx(losses, rel=1e-5)
    for name, p in parameters.items():
        torch.testing.assert_close(weights[name], p, rtol=1e-5, atol=1e-8)
    assert theirs["test_acc"] == pytest.approx(result["test_acc"], abs=1e-12)
    assert theirs["train_acc"] == pytest.approx(result["train_acc"], abs=0.03)  # one example counts twice
    assert theirs["ranks"] == 2 and result["ranks"] == 1
    theirs, ours = (lines_of(p / "log.jsonl")[0]["val"] for p in (two_ranks / case, tmp_path / "alone"))
    assert theirs == pytest.approx(ours, rel=1e-4)


@pytest.mark.parametrize("case", ["text", "retrieval"])
def test_micro_batches_train_as_whole_batches(case, tmp_path):
    losses, result, _ = train(case, tmp_path / "whole")
    in_parts, same, _ = train(case, tmp_path / "parts", micro_batch=2)
    assert in_parts == pytest.approx(losses, rel=1e-5) and len(losses) == 10
    assert same["test_acc"] == pytest.approx(result["test_acc"], abs=1e-12)


def test_micro_batches_are_refused_where_they_would_be_another_mathematics(tmp_path):
    """A norm that looks across examples, ours or torch's."""
    for case, change in (("s4", lambda model: model), ("text", with_torchs_own_norm)):
        with pytest.raises(common.UserError, match="--micro-batch"):
            train(case, tmp_path / case, micro_batch=2, change=change)
    train("s4", tmp_path / "s4", micro_batch=5)  # one part: the batch itself


@pytest.mark.processes
def test_two_ranks_stop_together_and_continue_as_one_run(two_ranks, tmp_path):
    """One record, one log; the accuracy is that of a run in one process, which has the same name."""
    log = (two_ranks / "log").read_text()
    assert "continuing after step 4 of 12" in log and log.count("test accuracy") == 1
    assert exit_code(exp_locality.main, *CELL, "--out", tmp_path) == 0
    [two], [one] = (lines_of(folder / "results.jsonl") for folder in (two_ranks / "cell", tmp_path))
    assert (two["ranks"], one["ranks"]) == (2, 1) and two["run"] == one["run"]
    assert two["test_acc"] == pytest.approx(one["test_acc"], abs=0.03)


AT_THE_END = """
import atexit, os, pathlib, sys, time, exp_locality
def name_of(task):
    try:
        return (task / "comm").read_text()
    except OSError:  # it ended after it was listed
        return ""
def gloos(): return [t for t in pathlib.Path("/proc/self/task").iterdir() if "gloo" in name_of(t)]
def write():
    late = time.time() + 2
    while (left := gloos()) and time.time() < late:
        time.sleep(0.02)  # the system lists a thread for a moment after it was joined
    pathlib.Path(sys.argv[1], "threads-" + os.environ["RANK"]).write_text(str(left))
atexit.register(write)
exp_locality.main(sys.argv[2:])
assert gloos()
"""


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_torchrun_trains_a_cell_and_gloos_threads_end_with_the_group(tmp_path):
    """A thread that is left may abort a rank which has done its work, and torchrun then stops the others."""
    (tmp_path / "script.py").write_text(AT_THE_END)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = [*torchrun, tmp_path / "script.py", tmp_path, *TINY, "--out", tmp_path]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([*map(str, words)], env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    [record] = lines_of(tmp_path / "results.jsonl")
    assert record["ranks"] == 2 and done.stdout.count("test accuracy") == 1
    assert [(tmp_path / f"threads-{rank}").read_text() for rank in (0, 1)] == ["[]", "[]"]


# ------------------------------------------------------------------------------------------ shares of data


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_shares_cover_a_batch_once(ranks):
    for n in (1, 2, 3, 7, 8):
        times = torch.zeros(n)
        for start, stop, copies in (data.share_of(n, rank, ranks) for rank in range(ranks)):
            assert stop > start  # an empty share would leave the others waiting
            times[start:stop] += 1 / copies
        torch.testing.assert_close(times, torch.ones(n))


def image_task(n):
    rgb = torch.randint(256, (n, 32, 32, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return replace(data.load("image", "unused", limit=n, smoke=True), rgb=rgb.numpy())


def test_augmented_images_are_the_same_whoever_computes_them():
    task, plan = image_task(7), [torch.tensor([3, 1, 0, 5]), torch.tensor([6])]
    whole = list(task.training_batches(plan, None, epoch=2))
    for batch, *shares in zip(whole, *(task.training_batches(plan, None, 2, rank, 2) for rank in (0, 1))):
        copies = 2 if len(batch.label) == 1 else 1
        for key in ("tokens", "label"):
            theirs = torch.cat([getattr(share, key) for share in shares[: 3 - copies]])
            assert torch.equal(getattr(batch, key), theirs)
        assert all(share.examples == copies * len(batch.label) for share in shares)
        assert all(share.positions == copies * batch.positions for share in shares)


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_image_workers_outlive_signals_to_the_whole_group_and_a_kill_is_named(number):
    """Promise 1: the loop comes to its checkpoint with their help, and ends them itself."""
    batches = image_task(16).training_batches([torch.arange(16)] * 40, None, epoch=0)
    next(batches)  # they have begun
    workers = multiprocessing.active_children()
    advice = common.out_of_memory_advice(None, 16, None)
    told = contextlib.nullcontext()
    if number == signal.SIGKILL:
        told = pytest.raises(common.UserError, match="was killed")
    with told, advice, contextlib.closing(batches):
        for worker in workers:
            os.kill(worker.pid, number)
            if number == signal.SIGKILL:
                worker.join()
        assert workers and len(list(batches)) == 39


@pytest.mark.processes
def test_a_stopped_training_leaves_no_image_worker(tmp_path):
    """Promise 1: workers ignore SIGTERM, so that Python would wait for one for ever when it ends."""

    def loss_fn(model, batch):
        os.kill(os.getpid(), signal.SIGTERM)
        return common.classify_loss(model, batch)

    model = models.SequenceModel("conv", 1, 4, 259, 10, d_hidden=4, kernel=3)
    hp = dict(lr=1e-3, weight_decay=0.0, batch_size=4, epochs=9)
    flags, before = flags_of_fit(), signal.signal(signal.SIGTERM, common.raise_interrupted)
    try:
        with pytest.raises(common.Interrupted) as held:  # as a notebook holds it
            common.fit(model, image_task(400), loss_fn, hp, flags, tmp_path)
    finally:
        signal.signal(signal.SIGTERM, before)
    left = multiprocessing.active_children()
    for worker in left:
        worker.kill()  # or this test would never end where it fails
    assert held and not left
