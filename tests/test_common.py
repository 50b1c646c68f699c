"""common.py: the optimiser rule, the schedules, losses of parts, runs that are killed, records. pytest
tests/test_common.py"""

import argparse
import contextlib
import json
import math
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import common
import data
import exp_locality
import models

ROOT = Path(__file__).parent.parent
SMOKE = ["--task", "text", "--kernel", "5", "--smoke"]


def script(*args, **kwargs):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(ROOT / "exp_locality.py"), *map(str, args)]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **kwargs
    )


def finish(process):
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


# ------------------------------------------------------------------------------------------ optimiser


def conv_model(denoise=False, **kwargs):
    torch.manual_seed(0)
    return models.SequenceModel(
        "conv", 2, 16, vocab=259, classes=2, denoise=denoise, d_hidden=24, kernel=3, **kwargs
    )


def test_every_parameter_is_in_exactly_one_group_and_only_weights_decay():
    model = conv_model(denoise=True)
    groups = common.parameter_groups(model, dict(lr=1e-3, weight_decay=0.2))
    decay_of = {id(p): g["weight_decay"] for g in groups for p in g["params"]}
    assert sum(len(g["params"]) for g in groups) == len(list(model.parameters())) == len(decay_of)
    decayed = {name for name, p in model.named_parameters() if decay_of[id(p)] == 0.2}
    per_block = {f"blocks.{i}.{layer}.weight" for i in (0, 1) for layer in ("conv", "linear")}
    assert decayed == per_block | {"head.weight", "denoise_head.weight"}


def test_parameters_keep_their_own_wishes_and_paper_b_decays_everything():
    model = nn.Module()
    model.linear = nn.Linear(2, 2)
    model.log_dt = nn.Parameter(torch.zeros(3))
    model.log_dt.optim = {"lr": 1e-3, "weight_decay": 0.0}
    groups = common.parameter_groups(model, dict(lr=1e-2, weight_decay=0.05, decay="all"))
    found = {(g["lr"], g["weight_decay"]): len(g["params"]) for g in groups}
    assert found == {(1e-2, 0.05): 2, (1e-3, 0.0): 1}


def two_group_optimizer():
    a, b = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    return torch.optim.AdamW([{"params": [a], "lr": 1.0}, {"params": [b], "lr": 0.01}])


def test_plateau_cuts_after_the_fourth_epoch_without_progress():
    optimizer = two_group_optimizer()
    schedule = common.make_schedule(optimizer, dict(), steps=1000)
    rates = []
    for loss in (2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.5):
        schedule.on_epoch(loss)
        rates.append([g["lr"] for g in optimizer.param_groups])
    assert rates[4] == [1.0, 0.01]  # three bad epochs are forgiven
    assert rates[5] == pytest.approx([0.2, 0.002]) and rates[6] == rates[5]


@pytest.mark.parametrize(
    "flag, plateaus, expected",
    [({}, 0, 0.1), ({}, 1, 0.1), ({}, 2, 0.04), ({"set_last_tenth": True}, 0, 0.1)]
    + [({"set_last_tenth": True}, 2, 0.1)],
)
def test_last_tenth_raises_the_rate_of_a_group_only_where_that_is_asked_for(flag, plateaus, expected):
    optimizer = two_group_optimizer()
    schedule = common.make_schedule(optimizer, flag, steps=100)
    for _ in range(1 + 4 * plateaus):
        schedule.on_epoch(1.0)
    for step in range(100):
        before = [g["lr"] for g in optimizer.param_groups]
        schedule.on_step()
        if step < 89:
            assert [g["lr"] for g in optimizer.param_groups] == before
    assert [g["lr"] for g in optimizer.param_groups] == pytest.approx([expected, 0.01 * expected])


def test_warmup_then_constant_or_cosine_scales_every_group():
    for kind, at_half, at_end in (("constant", 1.0, 1.0), ("cosine", 0.5, 0.0)):
        optimizer = two_group_optimizer()
        schedule = common.make_schedule(optimizer, dict(schedule=kind, warmup=10), steps=110)
        seen = []
        for _ in range(110):
            seen.append([g["lr"] for g in optimizer.param_groups])
            optimizer.step()
            schedule.on_step()
        assert seen[0] == [0.0, 0.0] and seen[5] == pytest.approx([0.5, 0.005])
        assert seen[60] == pytest.approx([at_half, 0.01 * at_half])
        assert [g["lr"] for g in optimizer.param_groups] == pytest.approx([at_end, 0.01 * at_end], abs=1e-12)


@pytest.mark.parametrize(
    "hp, want", [({}, [0.2, 0.002]), ({"schedule": "constant", "warmup": 10}, [0.5, 0.005])]
)
def test_a_schedule_continues_where_its_state_was_taken(hp, want):
    stopped, optimizer = two_group_optimizer(), two_group_optimizer()
    first = common.make_schedule(stopped, hp, 1000)
    for _ in range(4):
        stopped.step()
        first.on_step()
        first.on_epoch(1.0)
    second = common.make_schedule(optimizer, hp, 1000)
    second.load_state_dict(first.state_dict())
    optimizer.step()
    second.on_step()
    second.on_epoch(1.0)  # the fourth without progress, and the fifth step
    assert [g["lr"] for g in optimizer.param_groups] == pytest.approx(want)


def test_a_recipe_reaches_the_optimiser():
    batch, model = text_batch(), conv_model(denoise=True)
    hp = dict(lr=1e-3, weight_decay=0.1, batch_size=7, clip=1e-3)
    optimizer = common.make_optimizer(model, hp)
    common.train_step(model, optimizer, batch, common.multitask_loss, hp, contextlib.nullcontext(), {})
    norm = torch.cat([p.grad.flatten() for p in model.parameters()]).norm().item()
    assert norm == pytest.approx(1e-3, rel=1e-3)
    assert optimizer.defaults["betas"] == (0.9, 0.98)  # paper A's
    other = common.make_optimizer(model, hp | {"betas": (0.9, 0.999)})
    assert other.defaults["betas"] == (0.9, 0.999)


def test_a_cosine_ends_at_its_horizon():
    optimizer = two_group_optimizer()
    schedule = common.make_schedule(optimizer, dict(schedule="cosine", warmup=10, horizon=50), steps=200)
    rates = []
    for _ in range(60):
        optimizer.step()
        schedule.on_step()
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates[29] == pytest.approx(0.5) and rates[49] == rates[-1] == pytest.approx(0.0, abs=1e-12)


# ------------------------------------------------------------------------------------------ losses


def text_batch(denoise=True):
    task = data.load("text", "unused", denoise=denoise, smoke=True)
    return next(task.training_batches([torch.arange(7)], torch.Generator().manual_seed(0), 0))


def test_a_training_step_asks_nothing_of_the_device():
    """Fake tensors hold nothing that could be read: counting positions or picking real ones would raise."""
    batch, model = text_batch(), conv_model(denoise=True)
    with FakeTensorMode(allow_non_fake_inputs=True) as fake:
        seen = {k: fake.from_tensor(v) for k, v in batch._asdict().items() if torch.is_tensor(v)}
        loss, metrics = common.multitask_loss(model, batch._replace(**seen))
    assert loss.shape == () and metrics.keys() == {"acc", "denoise_acc", "masked_acc"}


def test_multitask_loss_is_the_sum_of_two_plain_means():
    model, batch = conv_model(denoise=True).double(), text_batch()
    commonest = torch.bincount(batch.target[batch.mask]).argmax()
    model.denoise_head.bias.data[commonest] = 50.0  # right at corrupted and at clean positions
    loss, metrics = common.multitask_loss(model, batch)
    features = model(batch.tokens, batch.mask)
    bce = nn.functional.binary_cross_entropy_with_logits(
        model.classify(features, batch.mask)[:, 0], batch.label.double()
    )
    ce = nn.functional.cross_entropy(model.denoise_head(features)[batch.mask], batch.target[batch.mask])
    assert loss.item() == pytest.approx((bce + ce).item(), rel=1e-6)
    hit = (model.denoise_head(features).argmax(-1) == batch.target) & batch.mask
    assert (hit & batch.selected).sum() > 0 and (hit & ~batch.selected).sum() > 0
    assert common.mean(metrics["denoise_acc"]) == pytest.approx((hit.sum() / batch.mask.sum()).item())
    assert common.mean(metrics["masked_acc"]) == pytest.approx(
        (hit & batch.selected).sum().item() / batch.selected.sum().item()
    )


@pytest.mark.parametrize("loss_fn", [common.classify_loss, common.multitask_loss])
def test_micro_batches_give_the_gradient_of_the_batch(loss_fn):
    batch, gradients = text_batch(), []
    for size in (7, 3, 1):
        model = conv_model(denoise=True).double()
        for part in batch.parts(size):
            loss_fn(model, part)[0].backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    for gradient in gradients[1:]:
        assert torch.allclose(gradient, gradients[0], rtol=1e-9, atol=1e-12)


# ------------------------------------------------------------------------------------------ runs


def comparable(out):
    """The record and the curve without what time and place put into them."""
    [record] = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    for key in ("seconds", "epoch_seconds", "date", "argv", "peak_gb", "git", "dirty"):
        record.pop(key)
    [log] = out.glob("*/log.jsonl")
    curve = [json.loads(line) for line in log.read_text().splitlines()]
    for line in curve:
        line.pop("seconds")
    return record, curve


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    out = tmp_path_factory.mktemp("unbroken")
    code, _, err = finish(script(*SMOKE, "--epochs", 4, "--out", out))
    assert code == 0, err
    return out


def test_record_has_every_field_and_the_run_is_done_once(unbroken):
    record = json.loads((unbroken / "results.jsonl").read_text())
    fields = """exp task model cell seed budget epochs steps test_acc val_acc best_epoch test_acc_last chance
    train_acc params seconds epoch_seconds peak_gb device torch git dirty argv hp data smoke""".split()
    assert set(fields) <= record.keys()
    assert record["cell"] == {"kernel": 5} and record["smoke"] is True and record["budget"] == "reduced"
    assert (
        record["data"]["counts"] == {"train": 512, "val": 128, "test": 128}
        and len(record["data"]["hash"]) == 64
    )
    assert 0 <= record["test_acc"] <= 1 and record["steps"] == 4 * 32
    assert not list(unbroken.glob("*/last.pt")) and list(unbroken.glob("*/best.pt"))
    code, out, _ = finish(script(*SMOKE, "--epochs", 4, "--out", unbroken))
    assert code == 0 and "is done" in out
    assert len((unbroken / "results.jsonl").read_text().splitlines()) == 1


def wait_for_checkpoint(process, out, since):
    """Until last.pt is newer than `since`, or the process has ended."""
    while process.poll() is None:
        with contextlib.suppress(FileNotFoundError):
            if any(file.stat().st_mtime_ns > since for file in out.glob("*/last.pt")):
                return
        time.sleep(0.005)


def kill_and_continue(out, kills, epochs, monkeypatch):
    """SIGKILL inside epochs, evaluations and (checkpoints being frequent here) checkpoint writes; then to the
    end."""
    monkeypatch.setenv("LRA_CHECKPOINT_SECONDS", "0.02")
    command, draw, n, log = [*SMOKE, "--epochs", epochs, "--out", out], random.Random(0), 0, ""
    for _ in range(kills):
        started = time.time_ns()
        process = script(*command)
        wait_for_checkpoint(process, out, started)
        time.sleep(draw.uniform(0, 0.3))
        process.kill()
        code, printed, _ = finish(process)
        n, log = n + (code == -signal.SIGKILL), log + printed
    print(f"{n} of {kills} kills hit a running process")
    code, printed, err = finish(script(*command))
    assert code == 0, err
    assert n >= kills / 2 and "continuing at epoch" in printed
    progress = r"epoch 1/\d+, step \d+ of 32: loss \d\.\d+, acc 0\.\d+"  # into a log file, which has no bar
    assert re.search(progress, log)


def test_killed_at_random_moments_it_ends_like_the_unbroken_run(unbroken, tmp_path, monkeypatch):
    kill_and_continue(tmp_path, 2, 4, monkeypatch)
    assert comparable(tmp_path) == comparable(unbroken)


@pytest.mark.slow
def test_killed_fifty_times_it_ends_like_the_unbroken_run(tmp_path, monkeypatch):
    code, _, err = finish(script(*SMOKE, "--epochs", 40, "--out", tmp_path / "unbroken"))
    assert code == 0, err
    kill_and_continue(tmp_path / "killed", 50, 40, monkeypatch)
    assert comparable(tmp_path / "killed") == comparable(tmp_path / "unbroken")


def test_sigterm_and_the_time_limit_save_and_the_same_command_continues(unbroken, signals, tmp_path):
    process = script(*SMOKE, "--epochs", 4, "--out", tmp_path)
    wait_for_checkpoint(process, tmp_path, 0)
    process.send_signal(signal.SIGTERM)  # Ctrl-C: tests/test_robust.py
    code, _, err = finish(process)
    assert code == common.EXIT_CONTINUE and "the same command continues" in err and "Traceback" not in err
    with pytest.raises(SystemExit) as stop:
        exp_locality.main([*SMOKE, "--epochs", "4", "--out", str(tmp_path), "--time-limit", "0.01s"])
    assert stop.value.code == common.EXIT_CONTINUE
    common.release(*common.CLAIMED)
    assert finish(script(*SMOKE, "--epochs", 4, "--out", tmp_path))[0] == 0
    assert comparable(tmp_path) == comparable(unbroken)


@pytest.mark.parametrize(
    "number, ends", [(signal.SIGTERM, common.Interrupted), (signal.SIGINT, KeyboardInterrupt)]
)
def test_a_signal_in_the_middle_of_an_epoch_saves_that_step(number, ends, signals, fit_args, tmp_path):
    task = data.load("text", "unused", limit=64, smoke=True)
    model = models.SequenceModel("conv", 1, 8, 259, 2, d_hidden=8, kernel=3)
    hp = dict(lr=1e-3, weight_decay=0.1, epochs=2, batch_size=8)
    steps = []

    def loss_fn(model, batch):
        steps.append(batch)
        if len(steps) == 3:
            signal.raise_signal(number)
        return common.classify_loss(model, batch)

    with pytest.raises(ends):
        common.fit(model, task, loss_fn, hp, fit_args, tmp_path)
    assert torch.load(tmp_path / "last.pt", weights_only=True)["step"] == len(steps) == 3


def test_an_evaluation_longer_than_the_time_limit_ends_nevertheless(fit_args, tmp_path):
    """Each start makes a step, or gets through what has to be evaluated before the next one."""
    task = data.load("text", "unused", limit=16, smoke=True)
    hp = dict(lr=1e-3, weight_decay=0.1, epochs=2, batch_size=8)
    fit_args.deadline = 0.0  # has passed whenever it is looked at

    def start():
        model = models.SequenceModel("conv", 1, 8, 259, 2, d_hidden=8, kernel=3)
        return common.fit(model, task, common.classify_loss, hp, fit_args, tmp_path)

    for _ in range(4):  # two epochs of two steps
        with pytest.raises(common.Interrupted):
            start()
    assert start()["steps"] == 4


def test_what_is_said_to_continue_does_not_start_over(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["exp_locality.py", "--task", "text", "--fresh"])
    with pytest.raises(common.Interrupted, match="; the same command without --fresh continues"):
        common.leave([signal.SIGTERM], "stopped")
    monkeypatch.setattr(sys, "argv", sys.argv[:-1])
    with pytest.raises(common.Interrupted, match="; the same command continues"):
        common.leave([], "stopped")


def test_a_second_ctrl_c_does_not_wait_and_an_ignored_one_stays_ignored(signals, capfd):
    arrived = common.catch_signals()
    signal.raise_signal(signal.SIGINT)
    assert arrived == [signal.SIGINT] and "once more to stop at once" in capfd.readouterr().err
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    common.answer_signals(common.STOPPING)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in a shell's background job
    common.catch_signals()
    common.answer_signals(common.STOPPING)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def identity(**changes):
    return common.make_identity(
        **(
            dict(
                exp="x",
                task="t",
                model="m",
                cell={"k": 1},
                seed=0,
                hp={"lr": 1.0},
                limit=None,
                data="d",
                smoke=False,
            )
            | changes
        )
    )


def test_runs_never_collide_and_a_tampered_folder_is_refused(tmp_path):
    names = {
        common.run_name(identity(**c))
        for c in ({}, {"seed": 1}, {"hp": {"lr": 2.0}}, {"limit": 5}, {"data": "e"}, {"smoke": True})
    }
    assert len(names) == 6
    folder = common.open_run(tmp_path, identity())
    (folder / "identity.json").write_text(json.dumps(identity(hp={"lr": 2.0})))
    with pytest.raises(common.UserError, match=r"hp was \{'lr': 2.0\}, is \{'lr': 1.0\}"):
        common.open_run(tmp_path, identity())
    assert common.open_run(tmp_path, identity(), fresh=True) == folder


def test_a_finished_run_that_is_trained_anew_can_be_stopped_and_continued(tmp_path):
    """Until its new record is written, the old one is no reason to skip it."""
    args = type("Args", (), {"out": tmp_path, "git": ("a", False), "argv": [], "compile": None})
    args.micro_batch, args.no_bucket, args.smoke = None, False, False

    def finish(folder, accuracy):
        (folder / "best.pt").touch()
        common.write_record(args, folder, identity(), {"test_acc": accuracy, "val_acc": 0}, "paper", {})

    finish(common.open_run(tmp_path, identity()), 0.5)
    assert common.open_run(tmp_path, identity()) is None
    folder = common.open_run(tmp_path, identity(), fresh=True)
    common.release(folder)
    for name in ("last.pt", "best.pt"):
        (folder / name).touch()
    assert common.finished_runs(args, "t", ("x",)) == []  # best.pt is not the record's any more
    assert common.open_run(tmp_path, identity()) == folder and (folder / "last.pt").exists()
    finish(folder, 0.6)
    assert common.open_run(tmp_path, identity()) is None
    [last] = common.finished_runs(args, "t", ("x",))  # best.pt is the second training's
    assert last["test_acc"] == 0.6 and not (folder / "last.pt").exists()


def test_a_damaged_checkpoint_is_named(tmp_path):
    path = tmp_path / "last.pt"
    common.save_checkpoint(path, {"model": conv_model().state_dict()})
    whole = path.read_bytes()
    for i in range(10):
        path.write_bytes(whole[: i * len(whole) // 10])
        with pytest.raises(common.UserError, match="last.pt cannot be read .* --fresh"):
            common.load_checkpoint(path, torch.device("cpu"))


def test_a_loss_that_is_no_number_stops_the_run(tmp_path):
    argv = [*SMOKE, "--out", tmp_path, "--lr", "1e30", "--epochs", 2]
    code, _, err = finish(script(*argv))
    assert code == 2 and "no longer a number" in err and "1.0e+30" in err and "Traceback" not in err


def test_the_step_at_which_the_loss_was_lost_is_named():
    optimizer = two_group_optimizer()
    common.require_finite([1.0] * 50, 0, 50, optimizer)
    with pytest.raises(common.UserError, match=r"epoch 3, step 53, lr 1.0e\+00 \(last losses 7, 7, nan\)"):
        common.require_finite([7.0, 7.0] + [math.nan] * 48, 2, 100, optimizer)


def test_a_checkpoint_never_holds_weights_that_are_no_numbers(fit_args, tmp_path):
    """The step at an epoch's end, which is saved, has a finite loss and a gradient that is not."""
    task = data.load("text", "unused", limit=64, smoke=True)
    model = models.SequenceModel("conv", 1, 8, 259, 2, d_hidden=8, kernel=3)
    hp = dict(lr=1e-3, weight_decay=0.1, epochs=3, batch_size=8)
    steps = []

    def loss_fn(model, batch):
        loss, metrics = common.classify_loss(model, batch)
        steps.append(model.training)
        if sum(steps) == 16 and model.training:
            loss.register_hook(lambda gradient: gradient * math.nan)
        return loss, metrics

    with pytest.raises(
        common.UserError, match="weights are no longer numbers at epoch 2, step 8, .* checkpoint is kept"
    ):
        common.fit(model, task, loss_fn, hp, fit_args, tmp_path)
    state = common.load_checkpoint(tmp_path / "last.pt", torch.device("cpu"))
    assert (state["epoch"], state["step"]) == (0, 8)
    assert all(torch.isfinite(t).all() for t in state["model"].values())


def test_the_reported_number_is_the_tests_at_the_first_best_validation_epoch(fit_args, tmp_path):
    """One step an epoch; Adam moves a weight of constant gradient by the rate, so it counts the epochs."""
    shares = {1: (0.2, 0.6, 0.3, 0.6, 0.1), 2: (0.9, 0.4, 0.8, 0.5, 0.7)}  # val, test
    task = data.load("text", "unused", limit=8, smoke=True)
    told = {s: x._replace(label=torch.full_like(x.label, i)) for i, (s, x) in enumerate(task.splits.items())}
    model = nn.Module()
    model.epoch = nn.Parameter(torch.zeros(1))

    def loss_fn(model, batch):
        split, n = int(batch.label[0]), len(batch.label)
        assert model.training == (split == 0)
        share = shares[split][round(model.epoch.item()) - 1] if split else 0.5
        return -model.epoch.sum(), {"acc": (torch.tensor(share * n), n)}

    hp = dict(lr=1.0, weight_decay=0.0, epochs=5, batch_size=8, schedule="constant")
    result = common.fit(model, replace(task, **told), loss_fn, hp, fit_args, tmp_path)
    found = [result[key] for key in ("best_epoch", "val_acc", "test_acc", "test_acc_last")]
    assert found == pytest.approx([2, 0.6, 0.4, 0.7])


def test_fit_tells_the_schedule_of_every_step_and_of_the_training_loss(fit_args, tmp_path):
    task = data.load("text", "unused", limit=8, smoke=True)
    model, seen = nn.Module(), []
    model.weight = nn.Parameter(torch.ones(1))

    def loss_fn(model, batch):  # constant in training, falling in evaluation
        seen.append(batch)
        return (1.0 if model.training else 1 / len(seen)) + 0 * model.weight.sum(), {
            "acc": (torch.ones(()), 1)
        }

    hp = dict(lr=1.0, weight_decay=0.0, epochs=10, batch_size=8)
    common.fit(model, task, loss_fn, hp, fit_args, tmp_path)
    rates = [json.loads(line)["lr"] for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert rates == pytest.approx([1.0] * 5 + [0.2] * 3 + [0.1, 0.02])  # cut after 5 and 9, last tenth at 9


def test_a_stopped_run_draws_the_dropout_of_the_unbroken_one(fit_args, tmp_path):
    task = data.load("text", "unused", limit=32, smoke=True)
    curves = []
    for deadline in (math.inf, 0.0):  # stopped after every step
        fit_args.deadline, folder = deadline, tmp_path / str(deadline)
        folder.mkdir()
        while not (folder / "log.jsonl").exists() or len((folder / "log.jsonl").read_text().splitlines()) < 2:
            torch.manual_seed(0)
            model = models.SequenceModel("conv", 1, 8, 259, 2, d_hidden=8, kernel=3, dropout=0.5)
            hp = dict(lr=1e-2, weight_decay=0.1, epochs=2, batch_size=16)
            with contextlib.suppress(common.Interrupted):
                common.fit(model, task, common.classify_loss, hp, fit_args, folder)
        curves.append([json.loads(x)["train"] for x in (folder / "log.jsonl").read_text().splitlines()])
    assert curves[0] == curves[1]


def test_flags_reach_the_recipe_and_seeds_are_runs_of_their_own(monkeypatch, tmp_path):
    seen = []

    def fit(model, task, loss_fn, hp, args, folder, seed=0):
        seen.append((seed, hp, model.embedding.weight.sum().item()))
        return {"test_acc": 0.0, "best_epoch": 1, "epochs": 1}

    monkeypatch.setattr(common, "fit", fit)
    given = dict(lr=0.5, weight_decay=0.25, batch_size=7, epochs=3, max_length=99)
    flags = [word for row, value in given.items() for word in (f"--{row.replace('_', '-')}", str(value))]
    exp_locality.main(
        ["--task", "text", "--smoke", "--seed", "4", "--seeds", "2", "--out", str(tmp_path), *flags]
    )
    assert [seed for seed, _, _ in seen] == [4, 5] and seen[0][2] != seen[1][2]
    assert all(given.items() <= hp.items() for _, hp, _ in seen)


def test_autocast_is_what_the_record_says(fit_args, tmp_path):
    task, seen = data.load("text", "unused", limit=8, smoke=True), []
    for amp in ("off", "bf16"):
        fit_args.amp, folder = amp, tmp_path / amp
        folder.mkdir()

        def loss_fn(model, batch):
            seen.append(torch.is_autocast_enabled("cpu"))
            return common.classify_loss(model, batch)

        model = models.SequenceModel("conv", 1, 8, 259, 2, d_hidden=8, kernel=3)
        result = common.fit(
            model, task, loss_fn, dict(lr=1e-3, weight_decay=0.1, epochs=1, batch_size=8), fit_args, folder
        )
        assert result["amp"] == amp and set(seen) == {amp == "bf16"}
        seen.clear()


# ------------------------------------------------------------------------------------------ records


def append_many(path, worker):
    for i in range(1000):
        common.append_record(path, {"worker": worker, "i": i, "padding": "x" * (i % 300)})


def test_eight_processes_append_8000_whole_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda file: None)  # waiting for the disk, they would not collide
    path = tmp_path / "results.jsonl"
    workers = [
        multiprocessing.get_context("fork").Process(target=append_many, args=(path, w)) for w in range(8)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    seen = {(line["worker"], line["i"]) for line in map(json.loads, path.read_text().splitlines())}
    assert seen == {(w, i) for w in range(8) for i in range(1000)}


def test_a_torn_last_line_is_set_aside(tmp_path, capsys):
    path = tmp_path / "results.jsonl"
    common.append_record(path, {"n": 1})
    with open(path, "a") as f:
        f.write('{"n": 2, "half')
    common.append_record(path, {"n": 3})
    assert [json.loads(line)["n"] for line in path.read_text().splitlines()] == [1, 3]
    assert (tmp_path / "results.jsonl.torn").read_text() == '{"n": 2, "half\n'
    assert "torn" in capsys.readouterr().err


def test_a_record_without_the_end_of_its_line_is_kept(tmp_path, capsys):
    """As an editor may leave it."""
    path = tmp_path / "results.jsonl"
    path.write_text('{"n": 1}\n{"n": 2}')
    common.append_record(path, {"n": 3})
    assert [json.loads(line)["n"] for line in path.read_text().splitlines()] == [1, 2, 3]
    assert capsys.readouterr().err == "" and not (tmp_path / "results.jsonl.torn").exists()


def test_code_that_is_in_no_commit_is_dirty(tmp_path, monkeypatch):
    def git(*args):
        who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *who, *args], cwd=tmp_path, check=True, capture_output=True)

    script = tmp_path / "exp_a.py"
    script.write_text("1")
    git("init")
    git("add", ".")
    git("commit", "-m", "a")
    monkeypatch.setattr(common, "__file__", str(script))
    (tmp_path / "notes.txt").touch()
    commit, dirty = common.git_state()
    assert re.fullmatch("[0-9a-f]{12}", commit) and not dirty
    copy = tmp_path / "exp_mine.py"
    copy.write_text("2")
    assert common.git_state() == (commit, True)
    copy.unlink()
    script.write_text("3")
    assert common.git_state() == (commit, True)


def test_a_record_names_the_commit_that_was_started(tmp_path, monkeypatch):
    commits = iter([("before", False), ("after", True)])
    monkeypatch.setattr(common, "git_state", lambda: next(commits))
    tiny = ["--smoke", "--limit", "16", "--epochs", "1", "--device", "cpu", "--out", str(tmp_path)]
    exp_locality.main(["--task", "listops", *tiny])
    [line] = common.read_records([tmp_path / "results.jsonl"])
    assert (line["git"], line["dirty"]) == ("before", False)


def test_garbage_lines_and_repeats_are_left_out_of_reports(tmp_path, capsys):
    path = tmp_path / "r.jsonl"
    good = dict(run="a", exp="locality", task="text", cell={"kernel": 5}, seed=0, test_acc=0.5, smoke=False)
    good |= dict(model="conv", hp={}, limit=None, data={}, budget="paper", val_acc=0.5)
    lines = [
        good | {"date": "2026-01-02T01:30:00+02:00"},
        good | {"date": "2026-01-02T00:10:00+00:00", "test_acc": 0.6},  # 40 minutes later
        good | {"run": "b", "date": "2026-01-01", "smoke": True},
        good | {"run": "c", "date": "2026-01-01", "task": "mine"},
        good | {"run": "d", "date": "2026-01-01", "model": "mine"},
        good | {"run": "e", "date": "2026-01-01", "cell": {}},
        good | {"run": "f", "date": "2026-01-01", "cell": {"kernel": 5, "gate": "mine"}},
        good | {"run": "g", "date": "2026-01-01", "cell": {"kernel": 5, "half": "flipped"}},
    ]
    path.write_bytes(
        b"\n".join([json.dumps(r).encode() for r in lines] + [b"\xff\x00 garbage", b"[1]", b'{"run": 1}'])
    )
    args = type("Args", (), {"out": tmp_path, "report": [str(path)]})
    records = common.report_records(args, "locality", ("text",), ("conv",), ["kernel"], ["half"])
    err = capsys.readouterr().err
    assert [r["run"] for r in records] == ["g", "a"] and records[1]["test_acc"] == 0.6
    assert err.count("is not a record") == 3 and "1 smoke runs, 1 older" in err
    assert "4 of tasks, models or cells that are not this table's" in err


def test_what_cannot_be_read_is_named(tmp_path):
    (tmp_path / "results.jsonl").mkdir()
    with pytest.raises(common.UserError, match="cannot read .*results.jsonl"):
        common.read_records([tmp_path / "results.jsonl"])
    note = tmp_path / common.run_name(identity()) / "identity.json"
    (tmp_path / "results.jsonl").rmdir()
    note.parent.mkdir()
    for content in (b"null", b"[]", b"\xff", b"{"):
        note.write_bytes(content)
        with pytest.raises(common.UserError, match="identity.json is damaged"):
            common.open_run(tmp_path, identity())
        common.release(note.parent)


def test_peak_memory_is_that_of_the_cell():
    cpu = torch.device("cpu")
    common.reset_peak(cpu)
    before = common.peak_bytes(cpu)
    block = torch.ones(50_000_000)
    del block
    with_block = common.peak_bytes(cpu)
    common.reset_peak(cpu)
    if sys.platform == "linux":
        assert with_block - before > 150e6 and common.peak_bytes(cpu) < with_block - 150e6
    else:
        assert with_block is None


def test_summary_shows_mean_spread_and_n():
    reduced = {"budget": "reduced", "data": {"official": False}}
    half, more = ({"test_acc": accuracy} | reduced for accuracy in (0.5, 0.6))
    assert common.summary([]) == "—"
    assert common.summary([half]) == "50.00 (n=1)"
    assert common.summary([half, more]) == "55.00 ± 7.07 (n=2)"
    stuck, learnt = ({"test_acc": accuracy, "chance": 0.501} | reduced for accuracy in (0.505, 0.905))
    assert common.summary([stuck, learnt]) == "70.50 ± 28.28 (n=2, 1 learnt)"
    assert common.summary([learnt]) == "90.50 (n=1)"
    assert common.summary([learnt | {"budget": "paper"}]) == "90.50 (n=1, not the official images)"


def test_an_epoch_says_how_long_the_rest_will_take():
    line = {"epoch": 2, "lr": 1e-3, "seconds": 1000.0, "train": {"acc": 0.5}, "val": {"acc": 0.25}}
    assert common.epoch_line(line, {"epochs": 80}).endswith("val acc 0.2500  lr 1.0e-03  1000 s, 10.8 h left")
    assert [common.readable(seconds) for seconds in (0, 99, 100, 5999)] == ["0 s", "99 s", "2 min", "100 min"]


def test_of_several_recipes_the_one_that_validated_best_is_shown_not_the_one_that_tested_best():
    def record(lr, val, test):
        return {"run": "r", "hp": {"lr": lr}, "data": {"hash": "a"}, "val_acc": val, "test_acc": test}

    records = [record(1e-3, 0.6, 0.5), record(1e-4, 0.5, 0.7), record(1e-3, 0.6, 0.52)]
    assert common.one_recipe(records) == [records[0], records[2]]


# ------------------------------------------------------------------------------------------ mistakes


MISSING = "mps" if torch.cuda.is_available() else "cuda"  # a device that this machine does not have


@pytest.mark.parametrize(
    "argv, message",
    [
        (["--task", "texts", "--kernel", "5"], "invalid choice"),
        (["--task", "text", "--kernel", "4"], "must be odd"),
        (["--task", "text", "--epochs", "0"], "at least 1"),
        (["--task", "text", "--batch-size", "1" + 20 * "0"], "to 999999999"),
        (["--task", "text", "--lr", "nan"], "positive number"),
        (["--task", "text", "--time-limit", "soon"], "must be a time"),
        (["--kernel", "5"], "give --task"),
        (["--task", "text", "--device", MISSING, "--smoke"], f"--device {MISSING}"),
        (["--task", "text", "--smoke", "--limit", "100000"], "more than the 512"),
        (["--task", "text", "--smoke", "--out", "/proc/nowhere"], "cannot write"),
        (["--report", "nowhere.jsonl"], "no such records file"),
        (["--report", "."], "no such records file: .; give files"),
    ],
)
def test_mistakes_get_one_sentence_and_exit_code_2(argv, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        exp_locality.main(argv)
    err = capsys.readouterr().err
    assert stop.value.code == 2 and message in err and err.count("error: ") == 1


def test_compilers_that_lose_gradients_are_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch, "__version__", torch.torch_version.TorchVersion("2.6.0+cpu"))
    command = ["--task", "text", "--smoke", "--device", "cpu", "--compile", "--out", str(tmp_path)]
    with pytest.raises(SystemExit) as stop:
        exp_locality.main(command)
    assert stop.value.code == 2 and "2.11" in capsys.readouterr().err


def test_a_time_limit_leaves_time_for_the_checkpoint():
    assert [common.duration(text) for text in ("90s", "9m", "1.5h", "7")] == [90, 540, 5400, 7]
    parser = argparse.ArgumentParser()
    common.add_common_flags(parser, ("text",))
    for text, seconds in (("100s", 95), ("2h", 7190)):
        args = common.parse_args(parser, ["--task", "text", "--time-limit", text])
        assert seconds - 5 < args.deadline - time.monotonic() <= seconds
