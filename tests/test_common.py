"""common.py: optimiser, schedules, losses, and what fit promises. pytest tests/test_common.py"""

import contextlib
import math
import signal
import sys
import time
from dataclasses import replace

import pytest
import torch
from conftest import TINY, comparable, exit_code, lines_of, stop_at
from torch import nn

import common
import data
import exp_locality
import models

HP = dict(lr=1e-3, weight_decay=0.1, epochs=2, batch_size=8)


def conv_model(width=16, **kwargs):
    torch.manual_seed(0)
    return models.SequenceModel("conv", 2, width, 259, 2, d_hidden=24, kernel=3, **kwargs)


def text(limit, **kwargs):
    return data.load("text", "unused", limit=limit, max_length=64, smoke=True, **kwargs)


# ------------------------------------------------------------------------------------------ optimiser


def test_every_parameter_is_in_exactly_one_group_and_only_weights_decay():
    """Paper A's rule; a learned table of positions counts as a weight."""
    model = conv_model(denoise=True, position="learned", max_length=8)
    groups = common.parameter_groups(model, dict(lr=1e-3, weight_decay=0.2))
    decay_of = {id(p): g["weight_decay"] for g in groups for p in g["params"]}
    assert sum(len(g["params"]) for g in groups) == len(list(model.parameters())) == len(decay_of)
    decayed = {name for name, p in model.named_parameters() if decay_of[id(p)] == 0.2}
    per_block = {f"blocks.{i}.{layer}.weight" for i in (0, 1) for layer in ("conv", "linear")}
    assert decayed == per_block | {"head.weight", "denoise_head.weight", "position_table.weight"}
    model.head.bias.optim = {"lr": 1e-4, "weight_decay": 0.0}  # its own wish; paper B decays all else
    groups = common.parameter_groups(model, dict(lr=1e-3, weight_decay=0.2, decay="all"))
    found = {(g["lr"], g["weight_decay"]): len(g["params"]) for g in groups}
    assert found == {(1e-3, 0.2): len(decay_of) - 1, (1e-4, 0.0): 1}


@pytest.mark.parametrize("input", ["tokens", "pixels"])
def test_the_rate_that_is_printed_is_the_run_s_not_that_of_states(input):
    """DLR has most of its parameters in its states, which learn at 1e-4."""
    sizes = dict(vocab=8, classes=2, max_length=8, d_model=16, d_state=512, depth=1)
    model = models.SequenceModel("dlr", **sizes, input=input)
    optimizer = common.make_optimizer(model, dict(lr=1e-3, weight_decay=0.2))
    assert common.learning_rate(optimizer) == 1e-3


def two_group_optimizer():
    a, b = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    return torch.optim.AdamW([{"params": [a], "lr": 1.0}, {"params": [b], "lr": 0.01}])


def rates(optimizer):
    return [g["lr"] for g in optimizer.param_groups]


def test_plateau_cuts_after_the_fourth_epoch_without_progress():
    optimizer = two_group_optimizer()
    schedule, seen = common.make_schedule(optimizer, dict(), steps=1000), []
    for loss in (2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.5):
        schedule.on_epoch(loss)
        seen.append(rates(optimizer))
    assert seen[4] == [1.0, 0.01]  # three bad epochs are forgiven
    assert seen[5] == pytest.approx([0.2, 0.002]) and seen[6] == seen[5]


@pytest.mark.parametrize(
    "flag, plateaus, expected",
    [(None, 0, 0.1), (None, 1, 0.1), (None, 2, 0.04), (True, 0, 0.1), (True, 2, 0.1)],
)
def test_last_tenth_raises_the_rate_of_a_group_only_where_that_is_asked_for(flag, plateaus, expected):
    optimizer = two_group_optimizer()
    schedule = common.make_schedule(optimizer, {"set_last_tenth": flag}, steps=100)
    for _ in range(1 + 4 * plateaus):
        schedule.on_epoch(1.0)
    before = rates(optimizer)
    for step in range(1, 101):
        schedule.on_step()
        assert rates(optimizer) == (before if step < 90 else pytest.approx([expected, 0.01 * expected]))


@pytest.mark.parametrize(
    "kind, rows, wanted",
    [
        ("constant", {}, {0: 0.0, 5: 0.5, 10: 1.0, 60: 1.0, 110: 1.0}),
        ("cosine", {}, {0: 0.0, 5: 0.5, 10: 1.0, 60: 0.5, 110: 0.0}),
        ("cosine", {"horizon": 50}, {10: 1.0, 30: 0.5, 50: 0.0, 110: 0.0}),
    ],
)
def test_warmup_then_constant_or_cosine_scales_every_group(kind, rows, wanted):
    optimizer = two_group_optimizer()
    schedule = common.make_schedule(optimizer, dict(schedule=kind, warmup=10) | rows, steps=110)
    for step in range(111):
        if step in wanted:
            assert rates(optimizer) == pytest.approx([wanted[step], 0.01 * wanted[step]], abs=1e-12)
        optimizer.step()
        schedule.on_step()


def test_a_recipe_reaches_the_optimiser():
    batch, model = text_batch(), conv_model(denoise=True)
    hp = dict(lr=1e-3, weight_decay=0.1, batch_size=7, clip=1e-3)
    optimizer = common.make_optimizer(model, hp)
    gradients = common.gradient_function(model, common.multitask_loss, contextlib.nullcontext(), None)
    common.train_step(model, optimizer, batch, gradients, hp, totals={})
    norm = torch.cat([p.grad.flatten() for p in model.parameters()]).norm().item()
    assert norm == pytest.approx(1e-3, rel=1e-3)
    assert optimizer.defaults["betas"] == (0.9, 0.98)  # paper A's
    other = common.make_optimizer(model, hp | {"betas": (0.9, 0.999)})
    assert other.defaults["betas"] == (0.9, 0.999)


# ------------------------------------------------------------------------------------------ recipes

TASKS, MINI_TASKS = ("image", "pathfinder", "text"), ("text", "pathfinder", "image")
TECHNIQUES = ("augment paper", "three sets", "denoise")
TABLE = dict(
    model=dict(block="conv", depth=(6, 5, 4)),
    train=dict(technique=TECHNIQUES, lr=(1e-3, 2e-3, 3e-3), epochs=(200, 67, 80)),
    plain=dict(epochs=(200, 201, 80)),
)
MINI = dict(
    model=dict(depth=2, heads=9),  # this model has no heads
    train=dict(technique=("denoise", None, "augment flip"), epochs=(7, 10, 5)),
)
RATES = {"text": 0.5}
SMOKE = dict(model=dict(depth=1), train=dict(epochs=2, lr=0.25))


def recipe_of(task, flags=""):
    """{row: value} of a cell with these flags; its own row "kernel" is in the table's recipe, too."""
    args = common.parse_args(common.make_parser("", TASKS), ["--task", task, *flags.split()])
    recipe, table = common.recipe_for(
        args, task, (TABLE, TASKS), (MINI, MINI_TASKS), smoke=SMOKE, rate=RATES.get(task), model={"kernel": 5}
    )
    assert table["model"]["kernel"] == 5 and "kernel" not in TABLE["model"]
    return recipe["model"] | recipe["train"]


def test_a_recipe_is_the_papers_or_the_mini_tiers_then_what_was_typed():
    """By hand: the task's column, of the mini table the rows that the paper's has, the rate of a search."""
    text = dict(block="conv", depth=4, kernel=5, technique="denoise", lr=3e-3, epochs=80)
    small = text | dict(depth=2, epochs=7, lr=0.5)
    hard = dict(block="conv", depth=5, kernel=5, technique="three sets", lr=2e-3, epochs=67)
    assert recipe_of("text") == text and recipe_of("pathfinder") == hard
    assert recipe_of("text", "--mini") == small
    assert recipe_of("pathfinder", "--mini") == hard | dict(depth=2, technique=None, epochs=10)
    assert recipe_of("pathfinder", "--no-techniques") == hard | dict(technique=None, epochs=201)
    assert recipe_of("pathfinder", "--no-techniques --mini")["epochs"] == 10  # it has one set anyway
    assert recipe_of("text", "--no-techniques") == text | dict(technique=None)
    assert recipe_of("text", "--smoke --epochs 3") == text | dict(depth=1, lr=0.25, epochs=3)
    assert recipe_of("image", "--mini --augment none")["technique"] is None
    assert recipe_of("image", "--augment flip")["technique"] == "augment flip"
    typed = dict(lr=0.5, batch_size=7, weight_decay=0.0, steps=3, max_length=99)
    typed |= dict(bucket=False, set_last_tenth=True)
    words = [f"{common.flag(row)} {'' if value in (True, False) else value}" for row, value in typed.items()]
    assert recipe_of("text", " ".join(words).replace("--weight-decay ", "--weight-decay 0.0")) == text | typed


# ------------------------------------------------------------------------------------------ losses


def text_batch():
    task = data.load("text", "unused", technique="denoise", smoke=True)
    return next(task.training_batches([torch.arange(7)], torch.Generator().manual_seed(0), 0))


def test_multitask_loss_is_classification_plus_denoising_of_every_real_position():
    """Against torch's plain losses; the denoising sum is divided by the training set's mean length."""
    model, batch = conv_model(denoise=True).double(), text_batch()
    commonest = torch.bincount(batch.target[batch.mask]).argmax()
    model.denoise_head.bias.data[commonest] = 50.0  # right at corrupted and at clean positions
    loss, metrics = common.multitask_loss(model, batch)
    features = model(batch.tokens, batch.mask)
    logits = model.classify(features, batch.mask)[:, 0]
    bce = nn.functional.binary_cross_entropy_with_logits(logits, batch.label.double())
    guess, real = model.denoise_head(features), batch.mask
    ce = nn.functional.cross_entropy(guess[real], batch.target[real], reduction="sum") / batch.positions
    assert loss.item() == pytest.approx((bce + ce).item(), rel=1e-6)
    hit, chosen = (guess.argmax(-1) == batch.target) & real, batch.selected
    assert (hit & chosen).sum() > 0 and (hit & ~chosen).sum() > 0
    assert common.mean(metrics["denoise_acc"]) == pytest.approx((hit.sum() / real.sum()).item())
    assert common.mean(metrics["masked_acc"]) == pytest.approx(((hit & chosen).sum() / chosen.sum()).item())
    assert common.mean(metrics["acc"]) == pytest.approx(((logits > 0) == batch.label.bool()).double().mean())


# ------------------------------------------------------------------------------------------ the loop


def test_the_reported_number_is_the_tests_at_the_first_best_validation(fit_args, tmp_path):
    """One step an epoch; Adam moves a weight of constant gradient by the rate, so it counts the epochs. The
    training accuracy is the last epoch's."""
    shares = {0: (0.1, 0.2, 0.3, 0.35, 0.45), 1: (0.2, 0.6, 0.3, 0.6, 0.1), 2: (0.9, 0.4, 0.8, 0.5, 0.7)}
    task = text(8)
    told = {s: x._replace(label=torch.full_like(x.label, i)) for i, (s, x) in enumerate(task.splits.items())}
    model = nn.Module()
    model.epoch = nn.Parameter(torch.zeros(1))

    def loss_fn(model, batch):
        split, n = int(batch.label[0]), len(batch.label)
        assert model.training == (split == 0)
        share = shares[split][round(model.epoch.item()) - (not model.training)]
        return -model.epoch.sum(), {"acc": (torch.tensor(share * n), n)}

    hp = HP | dict(lr=1.0, weight_decay=0.0, epochs=5, schedule="constant")
    result = common.fit(model, replace(task, classes=3, **told), loss_fn, hp, fit_args, tmp_path)
    found = [result[key] for key in ("best_epoch", "val_acc", "test_acc", "test_acc_last", "train_acc")]
    assert found == pytest.approx([2, 0.6, 0.4, 0.7, 0.45])
    assert torch.load(tmp_path / "best.pt", weights_only=True)["model"]["epoch"].item() == pytest.approx(2)


def test_an_evaluation_weighs_examples_alike_and_chance_is_the_test_splits(fit_args, tmp_path):
    """Batches of unequal size; the "loss" of an example is its label, so that the mean is known."""
    task, fit_args.micro_batch = data.load("text", "unused", limit=64, smoke=True), 1
    assert len({len(batch.label) for batch in task.evaluation_batches("val", 1 << 12)}) > 1
    ones, splits = {"train": 8, "val": 20, "test": 32}, task.splits.items()
    told = {s: x._replace(label=(torch.arange(len(x.label)) < ones[s]).long()) for s, x in splits}

    def loss_fn(model, batch):
        mean_label = batch.label.double().sum() / batch.examples
        return mean_label + 0 * model.bias.sum(), {"acc": (batch.label.sum(), len(batch.label))}

    result = common.fit(nn.Linear(1, 1), replace(task, **told), loss_fn, HP, fit_args, tmp_path)
    assert result["chance"] == 0.75 and result["test_acc"] == 0.25  # 32 of 128
    assert lines_of(tmp_path / "log.jsonl")[0]["val"] == pytest.approx({"loss": 20 / 64, "acc": 20 / 64})


def denormal_halves():
    """Whether denormal numbers survive a product, for the first and the second half of a tensor that is long
    enough for two threads."""
    bits = torch.full((1 << 20,), 0x1000, dtype=torch.int32)  # a thread that flushes makes no such floats
    return [bool(half.any()) for half in bits.view(torch.float32).mul(1).view(torch.int32).chunk(2)]


@pytest.mark.skipif(sys.platform != "linux", reason="one thread alone can be set")
def test_fit_flushes_denormals_on_every_thread_and_only_inside(fit_args, tmp_path):
    """The second thread lives before fit is called, as after data were made: it inherits nothing then."""
    before, seen, model = torch.get_num_threads(), {}, nn.Linear(1, 1)

    def loss_fn(model, batch):
        seen.setdefault(model.training, denormal_halves())
        return model.bias.sum(), {"acc": (torch.ones(()), 1)}

    torch.set_num_threads(2)
    try:
        assert denormal_halves() == [True, True]
        torch.set_flush_denormal(True)
        assert denormal_halves() == [False, True]  # torch's own function is for one thread
        torch.set_flush_denormal(False)
        common.fit(model, text(8), loss_fn, HP, fit_args, tmp_path)
        assert seen == {True: [False, False], False: [False, False]}
        assert denormal_halves() == [True, True]
        with common.flushed_denormals():
            with common.flushed_denormals():
                pass
            assert denormal_halves() == [False, False]  # a caller's own setting stays
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(before)


def test_fit_tells_the_schedule_of_every_step_and_of_the_training_loss(fit_args, tmp_path):
    model, seen = nn.Module(), []
    model.weight = nn.Parameter(torch.ones(1))

    def loss_fn(model, batch):  # constant in training, falling in evaluation
        seen.append(batch)
        loss = 1.0 if model.training else 1 / len(seen)
        return loss + 0 * model.weight.sum(), {"acc": (torch.ones(()), 1)}

    common.fit(model, text(8), loss_fn, HP | dict(lr=1.0, epochs=10), fit_args, tmp_path)
    found = [line["lr"] for line in lines_of(tmp_path / "log.jsonl")]
    assert found == pytest.approx([1.0] * 5 + [0.2] * 3 + [0.1, 0.02])  # cut after 5 and 9, last tenth at 9


@pytest.mark.parametrize("more", [{}, dict(schedule="cosine", warmup=10)], ids=["plateau", "cosine"])
def test_steps_are_so_many_whatever_the_data_and_a_stop_inside_changes_nothing(
    more, fit_args, signals, tmp_path
):
    """--steps: twenty validations. Stopped three times, the curve, its rates and what dropout draws are those
    of the unbroken run; a notebook has its handlers of signals back."""

    def trained(name, limit, steps=60):
        model, folder = conv_model(dropout=0.5), tmp_path / name
        folder.mkdir(exist_ok=True)
        hp = HP | {"steps": steps} | more
        result = common.fit(model, text(limit), common.classify_loss, hp, fit_args, folder)
        return result, [line | {"seconds": 0} for line in lines_of(folder / "log.jsonl")]

    def stopped():
        with pytest.raises(common.Interrupted):
            trained("stopped", 56)
        return 75

    for limit in (8, 56):  # an epoch has 1 or 7 steps
        result, curve = trained(str(limit), limit)
        assert (result["steps"], result["epochs"]) == (60, 20)
        assert [line["step"] for line in curve] == list(range(3, 61, 3))
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    for steps in (2, 9, 29):
        stop_at(steps, stopped)
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
    assert torch.load(tmp_path / "stopped" / "last.pt", weights_only=True)["step"] == 40
    again, same = trained("stopped", 56)
    assert same == curve and again["test_acc"] == result["test_acc"]
    assert trained("few", 8, steps=7)[0]["epochs"] == 7


def test_what_is_drawn_depends_on_seed_and_step_and_not_on_the_model(fit_args, tmp_path):
    """Two models under one seed see the same batches under the same noise; another seed other ones."""
    draws = {}
    for name, seed, width, dropout in (("a", 3, 8, 0.0), ("b", 3, 24, 0.5), ("c", 4, 8, 0.0)):
        seen = draws[name] = []

        def note(batch, noise, seen=seen):
            drawn = torch.rand(2, generator=noise).tolist(), torch.rand(2).tolist()
            seen.append((batch.tokens.sum(1).tolist(), *drawn))
            return batch

        task, model = replace(text(32), transforms=[note]), conv_model(width, dropout=dropout)
        (tmp_path / name).mkdir()
        common.fit(model, task, common.classify_loss, HP, fit_args, tmp_path / name, seed=seed)
    assert draws["a"] == draws["b"] and len(draws["a"]) == 8
    for kind in range(3):  # order, augmentation, dropout
        values = [str(step[kind]) for name in "ac" for step in draws[name]]
        assert len({*values}) == 16


@pytest.mark.skipif(torch.__version__ < (2, 11), reason="--compile on a CPU is refused here")
def test_every_cell_of_a_command_is_compiled(tmp_path, monkeypatch, capsys):
    """torch compiles a function for so many cases and then quietly no more; here it raises instead."""
    cells, compiled = [], torch.nn.Module.compile

    def eager(model):  # sound everywhere, and quick
        cells.append(model)
        compiled(model, backend="eager")

    monkeypatch.setattr(torch.nn.Module, "compile", eager)
    flags = [*TINY, "--kernel", 5, 7, "--epochs", 1, "--compile", "--out", tmp_path]
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True, recompile_limit=3):  # a cell takes 2
        assert exit_code(exp_locality.main, *flags) == 0
    assert capsys.readouterr().out.count("--compile takes minutes") == 2  # on a CPU; it goes on
    found = [line["compile"] for line in lines_of(tmp_path / "results.jsonl")]
    assert found == [True, True] and len(cells) == 2


# ------------------------------------------------------------------------------------------ stopped


def test_stopped_anywhere_it_ends_like_the_unbroken_run(signals, tmp_path, monkeypatch):
    """Promise 1: in steps, an epoch's last among them, in validations, in the test, and while checkpoints are
    written and read. SIGTERM and Ctrl-C in turn."""
    flags = [*TINY, "--batch-size", 8]
    assert exit_code(exp_locality.main, *flags, "--out", tmp_path / "unbroken") == 0
    calls, stop, training = [], [], []

    def interrupting(name, whole):
        def interrupted(*args, **kwargs):
            calls.append(name)
            if (name, calls.count(name)) == stop[:2]:
                training.append(name == "loss" and args[0].training)
                signal.raise_signal(stop[2])
            return whole(*args, **kwargs)

        return interrupted

    monkeypatch.setattr(common, "multitask_loss", interrupting("loss", common.multitask_loss))
    monkeypatch.setattr(torch, "save", interrupting("save", torch.save))
    monkeypatch.setattr(torch, "load", interrupting("load", torch.load))
    stops = [("save", 1), ("loss", 3), ("loss", 1), ("loss", 1), ("save", 1), ("save", 2), ("loss", 8)]
    stops += [("load", 2), ("loss", 2)]  # the best weights, before and in the test
    for i, (name, number) in enumerate(stops):
        calls.clear()
        stop = name, number, signal.SIGINT if i % 2 else signal.SIGTERM
        assert exit_code(exp_locality.main, *flags, "--out", tmp_path / "stopped") == (130 if i % 2 else 75)
    assert training == [False, True, True, False, False, False, True, False, False]
    stop = ()
    assert exit_code(exp_locality.main, *flags, "--out", tmp_path / "stopped") == 0
    assert comparable(tmp_path / "stopped") == comparable(tmp_path / "unbroken")


def test_a_second_ctrl_c_does_not_wait_and_an_ignored_one_stays_ignored(signals, capfd):
    with pytest.raises(KeyboardInterrupt), common.finish_step() as arrived:
        signal.raise_signal(signal.SIGINT)
        assert arrived == [signal.SIGINT] and "once more" in capfd.readouterr().err
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in a shell's background job
    with common.finish_step() as arrived:
        signal.raise_signal(signal.SIGINT)
    assert arrived == [] and signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_the_time_limit_ends_a_training_in_time_with_its_state_saved(tmp_path, capsys):
    """Promise 1: exit code 75, and each start comes further; time is left for the checkpoint."""
    steps = []
    for _ in range(2):
        begun = time.monotonic()
        code = exit_code(exp_locality.main, *TINY, "--epochs", 999, "--time-limit", "1s", "--out", tmp_path)
        assert code == 75 and time.monotonic() - begun < 10 and "continues" in capsys.readouterr().err
        [last] = tmp_path.glob("*/last.pt")
        steps.append(torch.load(last, weights_only=True)["step"])
    assert 0 < steps[0] < steps[1]
    texts = ("90s", "9m", "1.5h", "7")
    assert [common.duration(text) for text in texts] == [90, 540, 5400, 7]
    args = common.parse_args(common.make_parser("", ("text",)), ["--task", "text", "--time-limit", "100s"])
    assert 90 < args.deadline - time.monotonic() <= 95


# ------------------------------------------------------------------------------------------ accidents


def test_a_checkpoint_that_cannot_continue_is_named_and_kept(fit_args, signals, tmp_path, capsys):
    """Promise 4: cut short, an older version's, another model's, without its best weights; --fresh trains it
    anew."""
    flags = [*TINY, "--out", tmp_path]
    stop_at(5, lambda: exit_code(exp_locality.main, *flags))
    [last] = tmp_path.glob("*/last.pt")
    whole, state = last.read_bytes(), torch.load(last, weights_only=True)
    older = {k: v for k, v in state.items() if k != "starts"}
    for other in (None, older, state | {"model": conv_model(24).state_dict()}):
        last.write_bytes(whole[: len(whole) // 2])
        if other:
            common.save_checkpoint(last, other)
        content = last.read_bytes()
        assert exit_code(exp_locality.main, *flags) == 2
        err = capsys.readouterr().err
        assert err.count("error: ") == 1 and "--fresh" in err and last.read_bytes() == content
    last.write_bytes(whole)
    last.with_name("best.pt").unlink()
    assert exit_code(exp_locality.main, *flags) == 2 and "best.pt" in capsys.readouterr().err
    assert exit_code(exp_locality.main, *flags, "--fresh") == 0


def test_whoever_reads_a_file_sees_all_of_the_old_or_all_of_the_new(tmp_path):
    (tmp_path / "file").write_text("old")
    with open(tmp_path / "file") as reader:
        common.write_atomically(tmp_path / "file", b"new")
        assert (reader.read(), (tmp_path / "file").read_text()) == ("old", "new")


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_a_checkpoint_never_holds_what_is_no_number(what, fit_args, tmp_path):
    """Promise 6: the last good one is kept. The gradient is lost in a step whose loss is finite, and which is
    saved because the epoch ends."""
    steps = []

    def loss_fn(model, batch):
        loss, metrics = common.classify_loss(model, batch)
        steps.extend([batch] * model.training)
        if model.training and len(steps) == 16:
            if what == "loss":
                loss = loss * math.nan
            loss.register_hook(lambda gradient: gradient * math.nan)
        return loss, metrics

    with pytest.raises(common.UserError, match=r"at step 16, lr 1.0e-03; try a lower --lr"):
        common.fit(conv_model(), text(64), loss_fn, HP | {"epochs": 3}, fit_args, tmp_path)
    state = torch.load(tmp_path / "last.pt", weights_only=True)
    assert state["step"] == 8 and all(t.isfinite().all() for t in state["model"].values())


def test_out_of_memory_names_what_helps():
    """Promise 6, on a GPU and on a CPU; other errors keep their traceback."""
    plain, across = models.Norm("layer", 4), nn.BatchNorm1d(4)  # which cannot be cut into parts
    for case, advice in (
        ((plain, 16, None), "--micro-batch 8 "), ((plain, 16, 8), "--micro-batch 4 "),
        ((plain, 1, None), "smaller --batch-size"), ((across, 16, None), "torchrun"),
    ):  # fmt: skip
        for error in (torch.OutOfMemoryError("CUDA"), RuntimeError("CPU: can't allocate memory")):
            with pytest.raises(common.UserError, match=advice), common.out_of_memory_advice(*case):
                raise error
        with pytest.raises(RuntimeError, match="shapes"), common.out_of_memory_advice(*case):
            raise RuntimeError("shapes cannot be multiplied")


def test_a_row_of_training_that_only_the_mini_tier_has_is_refused():
    """It would be left out without a word; a model's rows may be another model's."""
    table = dict(model=dict(depth=6), train=dict(lr=1.0))
    mini = dict(model=dict(depth=2, d_hidden=8), train=dict(lr=2.0))
    assert common.with_rows(table, mini) == dict(model=dict(depth=2), train=dict(lr=2.0))
    with pytest.raises(common.UserError, match="warmup"):
        common.with_rows(table, dict(train=dict(warmup=5)))
