"""bench.py: what its numbers are made of, and that its parts run; nothing here is timed.

pytest tests/test_bench.py
"""

import contextlib
import json
import math
from types import SimpleNamespace

import pytest
import torch

import bench
import common
import data
import exp_locality

ARGS = {"device": "cpu", "amp": "off", "compile": False, "steps": 2, "rounds": 1, "smoke": True}
ARGS = SimpleNamespace(**ARGS, data_dir="nowhere")


def small_cell(**changes):
    """(hp, task, model) of Text, K = 5, narrowed."""
    hp = (
        bench.recipe("conv-5", "text")
        | {"depth": 2, "d_model": 32, "d_hidden": 48, "batch_size": 4}
        | changes
    )
    task, _ = bench.load_cell("text", hp, ARGS)
    torch.manual_seed(0)
    return hp, task, exp_locality.build(task, hp)


def first_batch(task, size=4):
    plan = task.plan(size, torch.Generator().manual_seed(0), bucket=False)
    return next(task.training_batches(plan, torch.Generator().manual_seed(1), 0))


@pytest.mark.parametrize("groups", (1, 4))
def test_flop_and_bytes_agree_with_a_calculation_by_hand(groups):
    hp, task, model = small_cell(groups=groups)
    batch = first_batch(task)
    train = bench.train_batches
    optimizer = common.make_optimizer(model, hp)
    work = bench.count_work(
        model, [batch], lambda batches: train(model, optimizer, batches, hp, contextlib.nullcontext()), 4
    )
    n, real, D, H, K = batch.mask.numel(), int(batch.mask.sum()), 32, 48, 5
    assert real < n, "the batch should have padding"
    forward = 2 * (2 * n * K * (D // groups) * H + 2 * n * H * D) + 2 * n * D * task.vocab + 2 * 4 * D
    assert work["flop"] == 3 * forward
    moved = 3 * 4 * (n * D + 2 * 2 * n * D + n * (D + task.vocab) + 4 * (D + 1))
    assert work["bytes"] == moved + 12 * sum(p.numel() for p in model.parameters())
    assert (work["positions"], work["padded"]) == (real, n)


def test_ffts_are_counted():
    x = torch.randn(3, 5, 64, requires_grad=True)
    with bench.FlopCounterMode(display=False, custom_mapping=bench.FLOP) as counter:
        y = torch.fft.irfft(torch.fft.rfft(x, n=128), n=128)
    assert y.shape == (3, 5, 128)
    assert counter.get_total_flops() == 2 * 2.5 * 15 * 128 * math.log2(128)


def test_a_tutorials_loop_and_ours_compute_the_same_loss_with_and_without_padding():
    _, task, model = small_cell()
    batch = first_batch(task)
    ours, metrics = common.multitask_loss(model, batch)
    model.zero_grad()
    ours.backward()
    gradient = model.embedding.weight.grad.clone()
    model.zero_grad()
    plain = bench.plain_loss(bench.transposing(model), batch)
    plain.backward()
    assert torch.allclose(plain, ours, rtol=1e-5)
    assert torch.allclose(model.embedding.weight.grad, gradient, atol=1e-6)
    wider = {
        name: torch.nn.functional.pad(getattr(batch, name), (0, 64))
        for name in ("tokens", "mask", "target", "selected")
    }
    assert torch.allclose(bench.plain_loss(model, batch._replace(**wider)), ours, rtol=1e-5)


def test_both_loops_start_at_the_same_loss_and_learn():
    """Their own batches of the same reviews; corruption differs, so the loss does a little."""
    hp, task, model = small_cell(batch_size=64)
    plan = task.plan(64, torch.Generator().manual_seed(0), bucket=False)
    optimizer = common.make_optimizer(model, hp)
    batches = task.training_batches(plan, torch.Generator().manual_seed(1), 0)
    ours = bench.train_batches(model, optimizer, batches, hp, contextlib.nullcontext())
    _, _, model = small_cell(batch_size=64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=hp["lr"])
    batches = bench.plain_batches(task, plan, torch.device("cpu"))
    plain = bench.plain_epoch(bench.transposing(model), optimizer, (next(batches) for _ in plan))
    assert len(plain) == len(ours) == len(plan)
    assert plain[0] == pytest.approx(float(ours[0]), rel=0.01)
    assert plain[-1] < plain[0] and ours[-1] < ours[0]


def test_a_tutorials_batches_hold_the_reviews_of_the_plan():
    _, task, _ = small_cell()
    plan = task.plan(4, torch.Generator().manual_seed(0), bucket=False)
    batch, want = next(bench.plain_batches(task, plan, torch.device("cpu"))), task.gather("train", plan[0])
    L = batch.tokens.shape[1]
    assert L == int(task.lengths["train"][plan[0]].max()) <= want.tokens.shape[1]
    assert torch.equal(batch.target, want.tokens[:, :L]) and torch.equal(batch.mask, want.mask[:, :L])
    assert torch.equal(batch.label, want.label)
    assert not (batch.selected & ~batch.mask).any() and (batch.tokens != batch.target).any()


def test_samples_of_a_plan_are_near_its_mean():
    options = {"augment": "none", "denoise": True}
    task, origin = bench.stand_in("text", 50 * 16, options)
    assert 1100 < float(task.lengths["train"].float().mean()) < 1500 and "log-normal" in origin
    plan = task.plan(16, torch.Generator().manual_seed(0), True)
    chosen, longest = bench.sample(task, plan, 10)
    widths = [int(task.lengths["train"][index].max()) for index in plan]
    assert len(chosen) == 10 and int(task.lengths["train"][longest].max()) == max(widths)
    mean = sum(int(task.lengths["train"][index].max()) for index in chosen) / 10
    assert mean == pytest.approx(sum(widths) / len(widths), rel=0.1)
    short = torch.arange(3)  # what is left over at the end of an epoch may come first in a shuffled plan
    chosen, _ = bench.sample(task, [short, *plan], 10)
    assert {len(index) for index in chosen} == {16}


@pytest.mark.parametrize("name", bench.SIZES)
def test_every_task_has_a_stand_in(name):
    hp = bench.recipe("conv-5", name)
    task, _ = bench.stand_in(name, 8, {"augment": "paper", "denoise": hp["technique"] == "denoising"})
    batch = task.gather("train", torch.arange(4))
    assert batch.tokens.max() < task.vocab and batch.mask.shape == (4 * task.docs, batch.tokens.shape[1])
    assert (batch.tokens[batch.mask] >= task.first_id).all()
    assert (task.rgb is not None) == (name == "image")


def test_every_cell_has_a_recipe_and_sizes_are_the_tasks_own():
    for model in bench.CELLS:
        for name in bench.SIZES:
            assert {"batch_size", "epochs", "lr"} <= bench.recipe(model, name).keys()
    assert bench.SIZES["listops"] == tuple(data.EXPECTED["listops"].values())
    # Text, K = 5: 1,407 steps an epoch; 80 x 2,500 + 2 x 25,000 evaluated examples at 16 a batch.
    assert bench.projected_steps("text", bench.recipe("conv-5", "text")) == 80 * 1407 + 250_000 / 16 / 3


def test_hours_of_a_table_need_all_its_cells():
    row = {"task": "text", "table": "Table 1"}
    rows = [row | {"model": "conv-5", "hours": 1.0}, row | {"model": "conv-61", "hours": 57.0}]
    rows.append({"task": "text", "table": "Table 2", "model": "mega", "hours": None})
    *cells, first, second = bench.hours_rows(rows)
    assert [cell["text"] for cell in cells] == [1.0, 57.0, None]
    assert first["text"] == first["sum"] == pytest.approx(sum(k - 4 for k in exp_locality.TABLE1))
    assert second["text"] is None and second["sum"] is None


def test_step_prints_a_table_and_writes_rows(tmp_path, capsys):
    out = tmp_path / "rows.jsonl"
    flags = ["--smoke", "--steps", "1", "--rounds", "1", "--device", "cpu", "--threads", "1"]
    bench.main(["step", "--model", "conv-5", "--task", "listops", *flags, "--out", str(out)])
    assert "| conv-5 | listops | smoke | 16 |" in capsys.readouterr().out
    row = json.loads(out.read_text())
    positive = ("ms", "tokens/s", "peak GB", "GFLOP", "GB", "floor ms", "floor %", "TFLOP/s", "copy GB/s")
    assert all(row[key] > 0 for key in positive) and row["hours"] is row["note"] is None
    assert row["floor %"] == pytest.approx(100 * row["floor ms"] / row["ms"])


@pytest.mark.parametrize("error", (torch.OutOfMemoryError("no"), RuntimeError("can't allocate memory")))
def test_a_cell_that_does_not_fit_says_so(error, monkeypatch, capsys):
    def too_large(*args):
        raise error

    for place, name in ((bench, "measure_step"), (common, "multitask_loss")):  # outside and inside a step
        with monkeypatch.context() as patch:
            patch.setattr(place, name, too_large)
            bench.main(["step", "--cell", "conv-5", "text", "--smoke", "--steps", "1", "--device", "cpu"])
        assert json.loads(capsys.readouterr().out) == {"note": "out of memory"}


def test_a_cell_that_fails_or_is_killed_does_not_end_the_table(monkeypatch, capsys):
    answers = iter([(-9, ""), (1, "Traceback\nValueError: odd"), (0, "")])

    def run(command, **kwargs):
        code, stderr = next(answers)
        return SimpleNamespace(returncode=code, stdout='{"note": "out of memory"}\n', stderr=stderr)

    monkeypatch.setattr(bench.subprocess, "run", run)
    with pytest.raises(SystemExit) as stop:
        bench.main(["step", "--model", "conv-5", "mega", "s4", "--task", "text"])
    assert stop.value.code == 2  # one failed; what does not fit in memory is a result
    table, errors = capsys.readouterr()
    assert "error: 1 of 3 cells failed" in errors
    for note in ("killed by the system", "ValueError: odd", "| out of memory |", "| Table 3, all of it | —"):
        assert note in table


def test_loop_compares_all_variants(tmp_path, capsys):
    out = tmp_path / "rows.jsonl"
    flags = ["--steps", "1", "--rounds", "1", "--device", "cpu", "--amp", "off", "--no-compile"]
    bench.main(["loop", "--smoke", *flags, "--threads", "1", "--out", str(out)])
    rows = {row["variant"]: row for row in map(json.loads, out.read_text().splitlines())}
    assert list(rows) == list(bench.VARIANTS) and "| (a) tutorial |" in capsys.readouterr().out
    assert rows["(a) tutorial"]["to (a)"] == rows["(b) ours"]["to (b)"] == 1
    skipped = {name for name, row in rows.items() if row["bytes/s"] is None}
    assert skipped == {"(c) ours, compiled", "(b) without bf16"}
    assert all(rows[name]["bytes/s"] > 0 for name in rows.keys() - skipped)


def test_every_layer_does_what_its_naive_form_does():
    """bench_layers stops where they differ; the memory of a pass is a process of its own, and left out."""
    args = SimpleNamespace(only=None, lengths=[48, 160], repeats=1, clock="cpu", memory_length=0)
    rows = list(bench.bench_layers(args))
    assert [row["layer"] for row in rows] == list(bench.LAYERS)
    assert all(row[f"naive_ms_{L}"] > 0 for row in rows for L in args.lengths)


def test_all_runs_every_part(monkeypatch, capsys):
    rows = {part: dict.fromkeys(bench.STEP_COLUMNS) | {"part": part} for part in bench.PARTS}
    rows["step"] |= {"model": "s4", "task": "text", "table": "Table 3"}
    seen = []

    def part(name):
        def run(args):
            seen.append((name, args.rounds, args.device))
            return [rows[name]]

        return run

    monkeypatch.setattr(bench, "PARTS", {name: part(name) for name in bench.PARTS})
    bench.main(["all", "--rounds", "7", "--device", "cpu"])
    assert seen == [(name, 7, "cpu") for name in ("data", "layers", "memory", "loop", "step")]
    assert "### layers" in capsys.readouterr().out


class OneLayer(torch.nn.Module):
    """relu(W embedding): its graph is small enough to be counted by hand."""

    def __init__(self):
        super().__init__()
        self.embedding, self.linear = torch.nn.Embedding(5, 16), torch.nn.Linear(16, 24)
        self.denoise_head = None

    def forward(self, tokens, mask):
        return self.linear(self.embedding(tokens)).relu()

    def classify(self, features, mask, docs):
        return features.sum()  # keeps nothing


def test_what_is_kept_for_the_backward_pass_agrees_with_a_count_by_hand():
    positions = 7 * 2 * 100  # pairs of documents
    by_hand = 8 * positions  # ids, for the embedding's gradient
    by_hand += 2 * 16 * positions + 2 * 16 * 24  # bf16 input and bf16 copy of W, for each other's gradient
    by_hand += 2 * 24 * positions  # relu's output
    task = SimpleNamespace(docs=2, max_length=100)
    assert bench.kept_for_backward(OneLayer(), task, 7) == by_hand


def test_cards_are_asked_for_what_they_can_hold():
    def asked(card, whole, batch, splittable, state=0):
        return bench.largest_part(card, state, lambda part: whole * part / batch, batch, splittable)

    assert asked(8, 3.4e9, 64, splittable=False) == "all"
    assert asked(8, 3.6e9, 64, splittable=False) is None
    assert asked(8, 12e9, 64, splittable=True) == "--micro-batch 16"
    assert asked(8, 12e9, 1, splittable=True) is None
    assert asked(8, 0, 64, splittable=True, state=7.5e9) is None


def test_memory_lists_the_cells_that_were_asked_for(capsys):
    bench.main(["memory", "--model", "conv-61", "s5", "--task", "text"])
    rows = capsys.readouterr().out
    assert "| conv-61 | text | 16 |" in rows and "| s5 | text | 50 |" in rows


@pytest.mark.parametrize(
    "argv, message",
    [
        (["layers", "--threads", "0"], "--threads: must be a whole number of at least 1"),
        (["layers", "--lengths", "64", "0"], "--lengths: must be a whole number of at least 1"),
        (["layers", "--repeats", "-1"], "--repeats: must be a whole number of at least 1"),
        (["layers", "--memory-length", "-1"], "--memory-length: must be a whole number from 0"),
        (["data", "--seconds", "nan"], "--seconds: must be a positive number"),
        (["memory", "--out", "file/rows.jsonl"], "error: cannot write --out file/rows.jsonl: "),
    ],
)
def test_mistakes_are_told_before_anything_is_measured(argv, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    monkeypatch.setattr(bench, "PARTS", {argv[0]: lambda args: pytest.fail("measured")})
    with pytest.raises(SystemExit) as stop:
        bench.main(argv)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
