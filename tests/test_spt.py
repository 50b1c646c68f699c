"""exp_spt.py: objectives, transfer, recipes, both halves of every cell. pytest tests/test_spt.py"""

import ast
import json
import math
import re
from dataclasses import replace
from functools import partial
from itertools import product
from types import SimpleNamespace

import pytest
import torch
from conftest import exit_code, lines_of, stop_at

import common
import data
import exp_spt
import records
from exp_spt import Cell

LENGTH = 48  # positions of the tiny tasks


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def tiny(name, n=16):
    """A task of the given name's shape with random symbols."""
    draw, shape = generator(), data.SHAPES[name]
    docs, width = shape.get("docs", 1), LENGTH * shape.get("channels", 1)

    def split(n):
        lengths = torch.full((n * docs,), width)
        if name in ("listops", "text", "retrieval"):
            lengths = torch.randint(20, LENGTH + 1, (n * docs,), generator=draw)
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        tokens = torch.randint(shape["vocab"] - shape["first_id"], (int(offsets[-1]),), generator=draw)
        label = torch.randint(shape["classes"], (n,), generator=draw)
        return data.Split(tokens.to(torch.uint8), offsets, label)

    shape = shape | {"max_length": width, "source": {"from": "test", "hash": f"{name}{n}"}}
    return data.Task(name, **shape, train=split(n), val=split(8), test=split(8))


def flags(*argv):
    return exp_spt.make_parser().parse_args(["--task", "text", *argv])


def arm(name, cell, *argv, task=None):
    """Its two recipes, as the flags want them."""
    return exp_spt.recipe(flags(*argv), name, cell, task)


def halves(name, cell):
    """[(narrow recipe, pretraining)] of the halves that there are; the tiny tasks have several windows."""
    found = [(hp, first) for hp, first in zip(arm(name, cell, "--smoke"), (True, False)) if hp]
    for hp, _ in found:
        hp["model"] |= {"window": 16} if hp["model"].get("window") else {}
    return found


def batch_of(task, n=8):
    return task.gather("train", torch.arange(n))


# ------------------------------------------------------------------------------------------ objectives


@pytest.mark.parametrize("noise", (generator(), None), ids=("training", "validation"))
@pytest.mark.parametrize("name", exp_spt.TASKS)
def test_masking_hits_real_positions_at_the_papers_rate(name, noise):
    rate = dict(listops=0.1, text=0.15, retrieval=0.15).get(name, 0.5)
    task = tiny(name, n=200)
    unlabelled = exp_spt.prepare(task, Cell("transformer", "masked"), pretraining=True)
    batch = batch_of(unlabelled, 200)
    real = batch.mask[:, :: task.channels]
    out = exp_spt.masked(batch, noise, task)
    error = (rate * (1 - rate) / real.sum().item()) ** 0.5
    assert abs((out.selected.sum() / real.sum()).item() - rate) < 4 * error
    assert not (out.selected & ~real).any() and out.positions == out.selected.sum()
    hit = out.selected.repeat_interleave(task.channels, 1)
    assert (out.tokens[hit] == exp_spt.mask_id(task)).all()  # always the mask, never a random symbol
    assert torch.equal(out.tokens[~hit], batch.tokens[~hit]) and torch.equal(out.target, batch.tokens)
    assert exp_spt.mask_id(task) not in batch.tokens  # no symbol looks masked
    order = torch.randperm(200, generator=generator())[:30]  # another batch, another width
    again = exp_spt.masked(unlabelled.gather("train", order), noise, task).selected
    alike = out.selected[data.document_rows(order, task.docs), : again.shape[1]]
    assert torch.equal(again, alike) == (noise is None)
    assert rate < 0.5 or len(out.selected.unique(dim=0)) == len(out.selected)  # each its own


@pytest.mark.parametrize("name", ("text", "scifar"))
def test_multitask_corrupts_as_paper_a_and_scores_all_real_positions(name):
    task = tiny(name, n=200)
    batch, channels = batch_of(task, 200), task.channels
    out = exp_spt.multitask(batch, generator(), task)
    assert torch.equal(out.selected, batch.mask[:, ::channels]) and out.positions == batch.positions
    gone = (out.tokens == exp_spt.mask_id(task)).unflatten(1, (-1, channels))
    assert (gone != gone[..., :1]).float().mean() < 0.01  # all channels or none, but for random ids
    assert abs(gone.flatten(1)[batch.mask].float().mean() - 0.2) < 0.02
    assert abs((out.tokens != batch.tokens)[batch.mask].float().mean() - 0.3) < 0.02
    assert torch.equal(out.tokens[~batch.mask], batch.tokens[~batch.mask])


@pytest.mark.parametrize("stride", (1, 7, "random"))
@pytest.mark.parametrize("name", ("retrieval", "scifar"))
@pytest.mark.parametrize("objective", ("causal", "masked"))
def test_a_pretraining_is_done_in_the_order_of_the_dial(objective, name, stride):
    """Training and validation alike. What comes next stands next in that order; the last one has nothing."""
    task, cell = replace(tiny(name), stride=stride), Cell("rotary", objective, stride=stride)
    trained, index, channels = exp_spt.prepare(task, cell, pretraining=True), torch.arange(8), task.channels
    (batch,) = trained.training_batches([index], generator(), 0)
    order = data.strided(task.gather("train", index), stride, channels)
    assert torch.equal(batch.tokens if objective == "causal" else batch.target, order.tokens)
    if objective == "causal":
        for row, length in enumerate(order.mask.sum(1).tolist()):
            assert batch.selected[row].nonzero()[:, 0].tolist() == list(range(length // channels - 1))
            assert torch.equal(batch.target[row, : length - channels], order.tokens[row, channels:length])
    for batch in trained.evaluation_batches("val"):
        seen = exp_spt.to_restore(batch, None, task, cell)
        kept = ~seen.selected.repeat_interleave(channels, 1)
        assert torch.equal(seen.tokens[kept], data.strided(batch, stride, channels).tokens[kept])


@pytest.mark.parametrize("name", ("text", "pathfinder", "image", "image ce"))
def test_a_denoising_loss_reads_masked_positions_only(name):
    """Cross-entropy and accuracy, or L1 and R^2, against sums over the masked positions. Pixels are read as
    normalised values; masked ones as zero with their bit set."""
    values, (name, *loss) = name == "image", name.split()
    task, cell = tiny(name), Cell("transformer", "masked", image_loss="ce" if loss else "l1")
    batch = exp_spt.masked(batch_of(task), generator(), task)
    guess = torch.randn(1 if values else 259 if name == "text" else 256, generator=generator())
    loss_fn, seen = partial(exp_spt.loss_function, task, cell, True), []

    def model(x, mask):
        seen.append(x)
        return torch.zeros(*mask.shape, 4)

    model.input_linear = torch.nn.Linear(2, 4)
    model.denoise = lambda features: guess.expand(len(features), -1)
    targets = batch.target[batch.selected]
    first = {"text": 0, "pathfinder": 2, "image": 3}[name]  # a class is an id, or a grey value
    guess[0 if values else targets[0] - first] = 4  # right somewhere
    loss, metrics = loss_fn(model, batch)
    if name == "image":
        value, bit = seen[0].unbind(-1)
        shown = ((batch.target - 3 - 122.6) / 61).masked_fill(batch.selected, 0)
        assert torch.equal(bit.bool(), batch.selected) and torch.allclose(value, shown, atol=1e-6)
    if values:
        wanted = (targets - 3 - 122.6) / 61
        lost = (wanted - guess).abs()
        score = 1 - lost.square().sum() / wanted.square().sum()
    else:
        lost = -guess.log_softmax(0)[targets - first]
        score = (targets == guess.argmax() + first).float().mean()
    assert loss.item() == pytest.approx(lost.mean().item(), rel=1e-5)
    parts = [loss_fn(model, part) for part in batch.parts(3)]
    assert sum(lost for lost, _ in parts).item() == pytest.approx(loss.item(), rel=1e-5)
    for found in ([metrics], [metrics for _, metrics in parts]):
        right, total = (sum(values) for values in zip(*(m["acc"] for m in found)))
        assert (right / total).item() == pytest.approx(score.item(), abs=1e-5)


@pytest.mark.parametrize("model", (*exp_spt.MODELS, "rotary pathx", "s4 text"))
def test_a_causal_model_does_not_see_what_comes_later(model):
    model, name = [*model.split(), "image"][:2]
    task, cell = tiny(name), Cell(model, "causal")
    torch.manual_seed(0)
    network = exp_spt.build(task, cell, *halves(name, cell)[0]).eval()
    batch, t = batch_of(task, n=2), 17
    tokens = batch.tokens.clone()
    tokens[:, t] = 4 + (tokens[:, t] + 77) % 200
    with torch.no_grad():
        before, _ = exp_spt.features_of(network, batch, task)
        after, _ = exp_spt.features_of(network, batch._replace(tokens=tokens), task)
    difference = (before - after).abs().amax((0, 2))
    assert difference[:t].max() < 1e-5 and difference[t] > 1e-4 and difference[t + 1 :].max() > 1e-5


# ------------------------------------------------------------------------------------------ transfer


def pair(name, model):
    """(pretrained model, model to fine-tune) with different weights."""
    cell, task = Cell(model, "masked"), tiny(name)
    torch.manual_seed(1)
    return [exp_spt.build(task, cell, *half) for half in halves(name, cell)]


@pytest.mark.parametrize("model, name", (("transformer", "image"), ("s4", "pathfinder"), ("rotary", "text")))
def test_everything_but_the_heads_is_transferred_and_the_mask_column_cut(model, name):
    before, after = pair(name, model)
    for buffer in before.buffers():  # batch norm's statistics
        buffer.fill_(3)
    old, start = before.state_dict(), {k: p.clone() for k, p in after.state_dict().items()}
    assert exp_spt.transfer(after, old) is after and after.denoise_head is None
    for key, p in after.state_dict().items():
        wanted = old[key][:, :1] if key == "input_linear.weight" else old.get(key)
        assert torch.equal(p, start[key] if key.startswith("head.") else wanted), key
    assert all(p.requires_grad for p in after.parameters())


def test_what_does_not_arrive_is_named():
    before, after = pair("image", "transformer")
    weights = before.state_dict()
    for strange in ({"blocks.0.norm1.gain": torch.ones(32)}, {"blocks.0.norm1.weight": torch.ones(5)}):
        with pytest.raises(common.UserError, match="norm1.*--fresh"):
            exp_spt.transfer(after, weights | strange)


@pytest.mark.parametrize("model", ("rotary", "s4", "dlr"))
@pytest.mark.parametrize("objective", exp_spt.OBJECTIVES)
def test_a_causal_model_sees_nothing_of_what_follows_in_either_half(objective, model):
    task, cell = tiny("text"), Cell(model, objective)
    tokens, mask = torch.randint(1, 90, (1, 24), generator=generator()), torch.ones(1, 24, dtype=torch.bool)
    other = torch.cat([tokens[:, :-1], tokens[:, -1:] + 1], 1)
    for hp, first in halves("text", cell):
        network = exp_spt.build(task, cell, hp, first).eval()
        moved = (network(tokens, mask) - network(other, mask))[:, :-1].abs().max() > 1e-4
        assert moved == (objective not in ("causal", "none-causal"))


def test_random_initialisation_reaches_every_parameter():
    task, cell = tiny("image"), Cell("s4", "none", init="random")
    _, hp = arm("image", cell)
    hp["model"] |= {"depth": 1, "d_model": 128}
    model = exp_spt.build(task, cell, hp, pretraining=False)
    for name, p in model.named_parameters():
        assert p.abs().max() < 0.6 and p.std() > 0.03 or p.numel() == 1, name
    values = torch.cat([p.flatten() for p in model.parameters()])
    assert values.std().item() == pytest.approx(0.1, rel=0.02) and abs(values.mean().item()) < 1e-3


# ------------------------------------------------------------------------------------------ recipes

# task, cell: rows of the pretraining / of the fine-tuning; typed from the paper and the authors' files.
SPOTS = """
image transformer causal: lr=5e-3 epochs=50 warmup=2500 / lr=1e-3 pooling=max depth=3 epochs=200 decay=all
listops transformer causal: lr=5e-4 / pooling=last lr=5e-4 d_ff=2048 warmup=2000 weight_decay=0.0
retrieval rotary masked: lr=5e-3 ratio=0.15 / lr=5e-4 d_model=256 head=linear
image s4 masked: batch_size=32 schedule=constant / batch_size=512 schedule=cosine horizon=200000 n_ssm=2
pathx s4 none: / pooling=mean dt_min=1e-4
pathx s4 masked random: lr=1e-3 batch_size=4 / lr=5e-4 batch_size=16 pooling=max
image s4 causal random: lr=1e-3 batch_size=32 / lr=5e-4 batch_size=64
listops dlr none random: / lr=1e-4 batch_size=16 d_state=1024 depth=8
image dlr multitask: / lr=5e-4 batch_size=64
image s4 masked structured 0.05: lr=1e-2 batch_size=50 / lr=2e-3 batch_size=50
"""


def rows(half):
    return half["model"] | half["train"]


def test_spot_values_of_the_recipes():
    for spot in SPOTS.strip().splitlines():
        (name, *words), *wanted = (part.split() for part in re.split("[:/]", spot))
        cell = Cell(*words[:3], *map(float, words[3:]))
        for half, typed in zip(arm(name, cell), wanted, strict=True):
            for key, value in (row.split("=") for row in typed):
                assert rows(half)[key] == (ast.literal_eval(value) if value[0].isdigit() else value), spot
    mini = arm("image", Cell("s4", "masked"), "--mini")[1]  # a record says what differs before
    assert mini["pretrain"] == {"lr": 1e-2, "objective": "masked", "ratio": 0.5}


@pytest.mark.parametrize("model, wanted", [
    ("s4", dict(norm="layer", prenorm=False, n_ssm=2, dropout=0.1, tie_dropout=True, max_length=LENGTH,
                final_norm=None, pair="[u,v,u-v,u*v]")),
    ("rotary", dict(position="rotary-heads")),
    ("transformer", dict(position="sinusoidal", final_norm="layer")),
    ("dlr", dict(final_norm="layer")),
])  # fmt: skip
def test_the_model_of_a_recipe(model, wanted):
    cell = Cell(model, "masked")
    _, hp = arm("image", cell)
    hp["model"]["depth"] = 1
    assert exp_spt.build(tiny("image"), cell, hp, pretraining=True).arguments.items() >= wanted.items()


def test_totals_are_the_papers():
    """Shares of Table 8, steps of Figure 3, and multitask with as many steps as both halves together."""

    def trained(name, cell):
        return [half["train"] for half in arm(name, cell) if half]

    for name, share, epochs in (("text", 0.4, [12, 18]), ("image", 0.6, [90, 60])):
        both = trained(name, Cell("transformer", "masked", share=share))
        assert [half["epochs"] for half in both] == epochs
        assert trained(name, Cell("transformer", "none", share=0.0))[0]["epochs"] == sum(epochs)
    for name, n, steps in (("image", 45_000, 10_000), ("text", 22_500, 40_000)):
        first, _ = trained(name, Cell("s4", "masked", fraction=0.05))
        assert abs(first["epochs"] * n / first["batch_size"] - steps) < n / first["batch_size"]
    both, (alone,) = (trained("text", Cell("dlr", objective)) for objective in ("masked", "multitask"))
    steps = sum(half["epochs"] / half["batch_size"] for half in both)  # of each example
    assert alone["epochs"] / alone["batch_size"] == pytest.approx(steps, rel=0.01)


@pytest.mark.parametrize("given", ["--epochs 60", "--limit 4500", "--steps 4001", "--mini"])
@pytest.mark.parametrize("model", exp_spt.MODELS)
def test_arms_at_a_budget_of_ours_have_equally_many_steps(model, given):
    """All with the batches of the training from scratch."""
    tier = ["--mini"] if given == "--mini" else []
    batch_size, steps = arm("image", Cell(model, "none"), *tier)[1]["train"]["batch_size"], set()
    for objective in exp_spt.OBJECTIVES:
        cell = Cell(model, objective, share=0.4 if exp_spt.OBJECTIVES[objective].pretrains else 0.0)
        found = [half["train"] for half in arm("image", cell, *given.split()) if half]
        assert {hp["batch_size"] for hp in found} == {batch_size}
        steps.add(sum(hp.get("steps") or hp["epochs"] for hp in found))
    assert len(steps) == 1


def test_averages_follow_from_the_papers_cells():
    for row in ("Transformer, from scratch", "Transformer, causal SPT", "S4, from scratch"):
        six = [50 if x == exp_spt.CHANCE else x for x in exp_spt.PAPER[row][:6]]
        assert exp_spt.MEANS[exp_spt.MEAN6][row] == pytest.approx(sum(six) / 6, abs=0.006)


# Words of the flags, cell: its changes in words, and whether it is the paper's.
@pytest.mark.parametrize("given, cell, words, tier", [
    ("", Cell("transformer", "masked"), "", "paper"),
    ("--lr 3e-3", Cell("transformer", "masked"), "lr 0.003", "reduced"),
    ("--lr-pretrain 0.5", Cell("transformer", "masked"), "lr_pretrain 0.5", "reduced"),
    ("--epochs-pretrain 3 --epochs 247", Cell("transformer", "masked"), "epochs_pretrain 3", "reduced"),
    ("--hours 24", Cell("transformer", "masked"), "", "paper"),
    ("--hours 23", Cell("transformer", "masked"), "hours 23.0", "reduced"),
    ("--lr 5e-4", Cell("transformer", "none"), "", "paper"),  # the paper's grid, and no rate of its own
    ("--lr 2e-4", Cell("transformer", "none"), "lr 0.0002", "reduced"),
    ("--lr 5e-4", Cell("s4", "none"), "lr 0.0005", "reduced"),  # has one
    ("--limit 450 --epochs 16", Cell("rotary", "causal", share=0.5), "450 examples, 16 epochs", "reduced"),
    ("--steps 4000", Cell("transformer", "masked"), "4,000 steps", "reduced"),
    ("--mini --epochs 8", Cell("s4", "masked", share=0.75), "8 epochs", "mini"),
    ("--mini --epochs 2", Cell("s4", "multitask"), "2 epochs", "mini"),
    ("--mini --ssm-lr 1e-3", Cell("dlr", "masked"), "ssm_lr 0.001", "mini"),
    ("--mini --ssm-lr 1e-3", Cell("s4", "masked"), "", "mini"),  # its table's own
])  # fmt: skip
def test_changes_and_what_counts_as_the_papers_budget(given, cell, words, tier):
    args = flags(*given.split())
    found = exp_spt.changes_of(args, "image", cell, tiny("image", n=64))
    assert (records.in_words(found), records.tier_of(args, found)) == (words, tier)


@pytest.mark.parametrize("given, cell, row, values", [
    ("--smoke --lr 0.5 --lr-pretrain 0.25", Cell("s4", "masked"), "lr", (0.25, 0.5)),
    ("--smoke --batch-size 3", Cell("s4", "masked"), "batch_size", (3, 3)),
    ("--smoke --epochs 7 --epochs-pretrain 2", Cell("s4", "masked"), "epochs", (2, 7)),
    ("--smoke", Cell("s4", "masked"), "d_model", (32, 32)),
    ("", Cell("s4", "masked", pooling="last"), "pooling", ("mean", "last")),
    ("--hours 8", Cell("s4", "masked", share=0.25), "hours", (2, 6)),  # shared like all totals
    ("--hours 8", Cell("s4", "masked"), "hours", (8, 8)),
    ("--steps 80", Cell("rotary", "masked"), "warmup", (10, 10)),  # a quarter, where the table's is longer
    ("--mini --lr 1e-4", Cell("s4", "masked"), "lr", (1e-2, 1e-4)),
])  # fmt: skip
def test_flags_reach_their_half(given, cell, row, values):
    found = arm("image", cell, *given.split(), task=tiny("image"))
    assert tuple(rows(half)[row] for half in found) == values


@pytest.mark.parametrize("given", ["", "--epochs 1", "--epochs 150", "--steps 2000000"])
@pytest.mark.parametrize("model, name", [("s4", "text"), ("s4", "image"), ("dlr", "pathx")])
def test_no_training_goes_on_with_a_rate_of_zero(model, name, given):
    """The cosine of a training longer than the table's ends with it; that of others does not move."""
    n = dict(text=22_500, image=45_000, pathx=160_000)[name]
    task = SimpleNamespace(train=SimpleNamespace(label=range(n)))
    for objective, init in product(exp_spt.OBJECTIVES, exp_spt.INITS):
        hp = arm(name, Cell(model, objective, init), *given.split(), task=task)[1]["train"]
        assert hp["horizon"] >= (hp.get("steps") or math.ceil(n / hp["batch_size"]) * hp["epochs"])
        if (objective, init) == ("none", "structured") and given in ("", "--epochs 1"):
            table = exp_spt.MODELS[model]["train"]["horizon"]
            assert hp["horizon"] == table[exp_spt.TASKS.index(name)]


def test_fractions_are_nested_and_an_epoch_keeps_its_steps(monkeypatch):
    task = tiny("image", n=40)
    monkeypatch.setattr(exp_spt.data, "load", lambda *a, **k: task)

    def images(fraction):
        loaded = exp_spt.load(flags(), "image", Cell("s4", "none", fraction=fraction))
        assert len(loaded.train.label) == 40
        return {tuple(row) for row in loaded.train.tokens.view(40, -1).tolist()}

    few, some, every = images(0.25), images(0.5), images(1.0)
    assert (len(few), len(some), len(every)) == (10, 20, 40) and few < some < every


def test_the_commonest_symbol_is_what_one_answer_restores():
    task = tiny("text", n=8)
    task = replace(task, test=task.test._replace(tokens=task.test.tokens.clamp(min=90)))
    for objective in ("masked", "causal"):
        cell, right, total = Cell("rotary", objective), 0, 0
        for batch in exp_spt.prepare(task, cell, pretraining=True).evaluation_batches("test"):
            batch = exp_spt.to_restore(batch, None, task, cell)
            wanted = batch.target[batch.selected].tolist()
            right, total = right + wanted.count(90 + task.first_id), total + len(wanted)
        assert exp_spt.commonest(task, cell) == round(right / total, 4) > 0.2
    assert exp_spt.commonest(tiny("image"), Cell("s4", "masked")) == 0.0


# ------------------------------------------------------------------------------------------ both halves


def stand_in():
    """Every sequence has its own most frequent letter, and the label says which half of the alphabet that
    one is from: what restoring teaches, classifying needs."""
    draw = generator()

    def split(n):
        topic = torch.randint(16, (n, 1), generator=draw)
        letters = torch.randint(16, (n, 32), generator=draw)
        letters = torch.where(torch.rand(letters.shape, generator=draw) < 0.6, topic, letters)
        offsets = torch.arange(n + 1) * letters.shape[1]
        return data.Split(letters.to(torch.uint8).flatten(), offsets, topic[:, 0] // 8)

    source = {"from": "test", "hash": "stand-in"}
    return data.Task("text", 2, 19, 3, LENGTH, split(192), split(64), split(64), source)


@pytest.fixture
def script(monkeypatch, tmp_path):
    """main() on the stand-in, with a narrow model: (*flags) -> records of the run."""
    monkeypatch.setattr(exp_spt.data, "load", lambda name, root, **k: replace(stand_in(), transforms=[]))
    monkeypatch.setattr(common, "git_state", lambda: (None, None))
    monkeypatch.setattr(records, "RESULTS", tmp_path / "none")
    small = exp_spt.ROTARY["model"] | dict(depth=(1,) * 8, d_model=16, heads=2, d_ff=32)
    monkeypatch.setitem(exp_spt.MODELS, "rotary", exp_spt.ROTARY | {"model": small})

    def run(*argv, out=tmp_path):
        same = ["--task", "text", "--model", "rotary", "--device", "cpu", "--amp", "off", "--out", str(out)]
        exp_spt.main([*same, *argv])
        return records.read_records([out / "results.jsonl"])

    return run


def test_pretraining_learns_and_fine_tuning_is_not_worse_than_scratch(script, tmp_path):
    budget = ("--epochs", "20", "--share", "0.7", "--lr", "5e-3", "--lr-pretrain", "1e-2")
    scratch, first, spt, multitask = script("--objective", "none", "masked", "multitask", *budget)
    assert [r["exp"] for r in (scratch, first, spt)] == ["spt", "spt-pretrain", "spt"]
    assert lines_of(tmp_path / multitask["run"] / "log.jsonl")[-1]["train"]["denoise_acc"] > 0.3
    log = lines_of(tmp_path / first["run"] / "log.jsonl")
    losses = [line["train"]["loss"] for line in log]
    assert losses[-1] < 0.85 * losses[0] and log[-1]["val"]["loss"] < log[0]["val"]["loss"]
    assert "score" in first and "score" not in spt
    assert first["chance"] < 0.02 < spt["chance"]  # pretraining has no labels
    history = {row: first[row] for row in ("run", "train_curve", "score", "commonest")}
    assert spt["pretraining"] == history | {"restored": first["test_acc"]}
    assert first["test_acc"] > first["commonest"] > 1 / 16  # sixteen letters
    assert spt["row"] == "rotary Transformer, masked SPT, 70% SPT"
    assert spt["changes"] == {"epochs": 20, "lr": 0.005, "lr_pretrain": 0.01}
    assert first["changes"] == spt["changes"] and spt["tier"] == scratch["tier"] == "reduced"
    assert spt["epochs"] + first["epochs"] == scratch["epochs"] == 20 and len(spt["train_curve"]) == 6
    assert spt["test_acc"] >= scratch["test_acc"] - 0.05
    assert spt["train_curve"][-1] == round(spt["train_acc"], 4)
    assert spt["train_curve"][-1] > scratch["train_curve"][5]  # after as many epochs with labels


@pytest.mark.parametrize("stopped, at", [("spt-pretrain", 8), ("spt", 20)])
def test_a_stopped_half_ends_like_an_unbroken_one(stopped, at, script, tmp_path):
    argv = ("--objective", "masked", "--epochs", "2", "--epochs-pretrain", "2")  # of twelve steps each
    unbroken = script(*argv, out=tmp_path / "unbroken")
    stop_at(at, lambda: exit_code(lambda words: script(*words), *argv))
    (state,) = tmp_path.glob("*/last.pt")
    assert state.parent.name.startswith(f"{stopped}-text") and 0 < torch.load(state)["step"] < 12
    for a, b in zip(script(*argv), unbroken, strict=True):
        assert all(a[key] == b[key] for key in ("run", "test_acc", "val_acc", "train_curve"))
        paths = (out / a["run"] / "best.pt" for out in (tmp_path, tmp_path / "unbroken"))
        new, old = (torch.load(path)["model"] for path in paths)
        assert all(torch.equal(p, old[name]) for name, p in new.items())


def test_a_pretraining_is_shared_by_what_starts_from_it_and_repeated_without_its_weights(script, tmp_path):
    argv = ("--objective", "masked", "--epochs", "1", "--epochs-pretrain", "1")
    found = script(*argv, "--lr", "1e-30")
    before, after = (torch.load(tmp_path / r["run"] / "best.pt")["model"] for r in found)
    assert all(torch.equal(before[name], p) for name, p in after.items() if not name.startswith("head."))

    def exps(*flags):  # of the records that a command adds
        before = len(lines_of(tmp_path / "results.jsonl"))
        return [r["exp"] for r in script(*argv, *flags)[before:]]

    assert exps("--lr", "5e-3", "--pooling", "mean", "max") == ["spt", "spt"]
    assert exps("--lr", "5e-3", "--pooling", "mean", "max") == []  # done
    assert exps("--lr-pretrain", "2e-3") == ["spt-pretrain", "spt"]
    for record in found:  # as exp_kernels and exp_listops do
        records.rebuild(tmp_path / record["run"] / "best.pt")
    (tmp_path / found[0]["run"] / "best.pt").unlink()
    assert exps("--lr", "4e-3") == ["spt-pretrain", "spt"]


# ------------------------------------------------------------------------------------------ report, flags


def line(name, cell, acc, changes=None, tier="paper"):
    """A record as run_cell would leave it."""
    first, hp = arm(name, cell)
    record = dict(
        exp="spt", task=name, model=cell.model, cell=cell.label(), seed=0, hp=hp, limit=None, row=cell.row(),
        changes=changes or {}, run=f"{name} {cell} {changes}", data={"hash": "a"}, seconds=60.0, test_acc=acc,
        val_acc=acc, tier=tier, date="2026-01-01", train_curve=[0.1, acc],
    )  # fmt: skip
    if first:
        record["pretraining"] = dict(run="r", train_curve=[0.1, 0.5], restored=0.5, commonest=0.25)
        record["pretraining"]["score"] = "accuracy of restored symbols"
    return record


def test_report(tmp_path, monkeypatch, capsys):
    """Every number of the paper, ours beside them, their averages, and what was restored."""
    monkeypatch.setattr(records, "RESULTS", tmp_path / "none")
    causal, s4 = Cell("transformer", "causal"), Cell("s4", "masked")
    lines = [line(name, causal, 0.5) for name in exp_spt.MEAN6] + [line("pathx256", s4, 0.8125)]
    scratch = Cell("s4", "none", share=0.0)  # of Table 8
    lines += [line("image", s4._replace(share=0.6), 0.62), line("image", scratch, 0.5)]
    lines += [line("text", s4, 0.71, {"epochs": 16}, "reduced")]
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(r) + "\n" for r in lines))
    exp_spt.main(["--report", "--out", str(tmp_path)])
    short = re.sub("[ -]+", " ", capsys.readouterr().out)
    assert "Performer" not in short and "83.40" not in short and "Average" not in short
    exp_spt.main(["--report", "--all-tiers", "--out", str(tmp_path)])
    printed = re.sub("[ -]+", " ", capsys.readouterr().out)
    wanted = """S4, SPT over scratch: | |
    | Image, masked, 60 % SPT, | |
    | 90+60 | +12.00 (1 seed) |
    | Image | here | paper | difference | restored |
    | sinusoidal, causal | 50.00 ± 0.50 (1) | 76.00 | 26.00 | 50.0 |
    | S4, 0 % SPT, scratch | 50.00 ± 0.50 (1) | | | |
    | S4, 60 % SPT, masked | 62.00 ± 0.49 (1) | | | 50.0 |
    sinusoidal, causal: 3 layers, width 64 S4, 0 % SPT, scratch: batch 50, lr 0.01
    | S4, masked | 81.25 ± 0.39 (1) | 87.11 | 5.86 | 50.0 |
    Your runs. | Text | SPT+labels | masked SPT |
    | S4 | 32+32 | 71.0 ± 0.5 (1) |
    | Text, restored | SPT+labels | masked SPT |
    | S4 | 32+32 | 50.0 |
    Always the commonest symbol restores 25.0 %. A run takes 60 s.
    sinusoidal, causal SPT | 50.00 | 81.81
    DLR, masked SPT | | 83.40"""
    found = " ".join(printed.split())
    assert [text for text in map(str.strip, wanted.splitlines()) if text not in found] == []
    numbers = [f"{x:.2f}" for row in exp_spt.PAPER.values() for x in row if isinstance(x, float)]
    assert [number for number in numbers if number not in printed] == []
    assert "Nobody has run" not in printed and max(map(len, printed.splitlines())) <= 80


def test_the_report_tells_what_spt_adds_and_what_is_left_of_the_leads(tmp_path, monkeypatch, capsys):
    """By hand: of 10,000 examples and three seeds 70, 60, 50, 40, 30 % have errors .265, .283, .289, .283 and
    .265 points. Of no variance over seeds Student's t has one degree of freedom: ± 12.7 * .40 = 5.1."""
    monkeypatch.setattr(records, "RESULTS", tmp_path / "none")
    scratch, masked = Cell("s4", "none"), Cell("s4", "masked")
    cells = {scratch: 0.5, masked: 0.6, masked._replace(init="random"): 0.4, Cell("transformer", "none"): 0.4}
    cells[Cell("transformer", "masked")] = 0.3
    lines = [line("text", cell, accuracy, tier="mini") for cell, accuracy in cells.items()]
    lines += [line("text", masked._replace(init="random"), 0.5, {"epochs": 8}, "mini")]  # has no partner
    longer = {"epochs": 8, "lr_pretrain": 1e-3}  # a rate that labels alone do not have
    lines += [line("text", masked._replace(share=0.75), 0.65, longer, "mini")]
    lines += [line("text", masked._replace(share=0.75), 0.7, {"epochs": 8}, "mini")]
    lines += [line("text", scratch, 0.5, {"epochs": 8}, "mini") | {"best_epoch": 3}]
    for r in lines:
        epochs = (6, 2) if "epochs" in r["changes"] else (2, 2)
        epochs = epochs if "pretrain" in r["hp"] else (0, sum(epochs))
        r["hp"] = {half: r["hp"][half] | {"epochs": n} for half, n in zip(("pretrain", "train"), epochs) if n}
    lines = [r | {"seed": seed, "run": f"{r['run']}{seed}"} for r in lines for seed in range(3)]
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(r) + "\n" for r in lines))
    exp_spt.main(["--report", "--mini", "--all-tiers", "--out", str(tmp_path)])
    printed = capsys.readouterr().out
    one_line = " ".join(printed.split())
    assert "Best epochs from scratch, seed by seed: S4 3, 3, 3 of 8." in one_line
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in printed.splitlines()]
    for header, wanted in (
        (
            ["how far ahead, in points", "here [95 %]", "paper", "as said?"],
            [
                ["sinusoidal, SPT over scratch:", "", "", ""],
                ["Text, masked, 2+2", "-10.0 [-14.9, -5.1]", "> 0", "no"],  # .389 * 12.7 = 4.9
                ["S4, SPT over scratch:", "", "", ""],
                ["Text, masked, 2+2", "+10.0 [4.9, 15.1]", "> 0", "yes"],  # .400 * 12.7 = 5.1
                ["Text, masked, 6+2", "+20.0 [15.0, 25.0]", "> 0", "yes"],  # .392 * 12.7 = 5.0
                ["Text, masked,", "", "", ""],
                ["lr_pretrain 0.001, 6+2", "+15.0 [9.9, 20.1]", "> 0", "yes"],
            ],
        ),
        (
            ["how far ahead, in points", "here [95 %]", "paper", "as said?"],
            [
                ["S4 over sinusoidal:", "", "", ""],
                ["Text, from scratch, 4", "+10.0 [4.9, 15.1]", "+22.55", "yes"],
                ["Text, masked, 2+2", "+30.0 [25.1, 34.9]", "≈ 0", "no"],
            ],
        ),
        (
            ["how far ahead, in points", "here [95 %]", "paper", "as said?"],
            [
                ["S4's start over a random one:", "", "", ""],
                ["Text, masked, 2+2", "+20.0 [14.9, 25.1]", "≈ 0", "no"],
            ],
        ),
        (
            ["Text", "SPT+labels", "scratch", "masked SPT"],
            [
                ["sinusoidal", "2+2", "40.0 ± 0.3", "30.0 ± 0.3"],
                ["S4", "2+2", "50.0 ± 0.3", "60.0 ± 0.3"],
                ["S4", "6+2", "50.0 ± 0.3", "70.0 ± 0.3"],
                ["S4, random", "2+2", "", "40.0 ± 0.3"],
                ["S4, random", "6+2", "", "50.0 ± 0.3"],
            ],
        ),
        (
            ["Text, other rates", "epochs", "masked SPT"],
            [["S4,", "", ""], ["lr_pretrain 0.001", "6+2", "65.0 ± 0.3"]],
        ),
    ):
        at = rows.index(header) + 2
        rows[at - 2] = None  # another table has the same header
        assert rows[at : at + len(wanted)] == wanted

    monkeypatch.setattr(records, "RESULTS", tmp_path)  # of this repository's runs no variants
    exp_spt.main(["--report", "--mini", "--out", str(tmp_path / "none")])
    printed = capsys.readouterr().out
    gaps = [row for row in printed.splitlines() if row.startswith("|   Text")]
    assert [row.split("|")[1].strip() for row in gaps] == [
        *("Text, masked, 2+2", "Text, masked, 2+2", "Text, masked, 6+2"),  # of sinusoidal, and of S4
        *("Text, masked, 2+2", "Text, masked, 2+2"),
    ]


def test_variants_are_shown_if_they_are_yours_or_asked_for(tmp_path, monkeypatch, capsys):
    masked, moved = Cell("s4", "masked"), Cell("s4", "none", stride=16)
    cells = (masked, masked._replace(init="random"), moved, moved._replace(model="rotary"))
    cells += (masked._replace(objective="none"),)  # without it nothing says what SPT adds
    lines = [line("text", cell, 0.6, tier="mini") for cell in cells]
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(r) + "\n" for r in lines))
    for results, out, flags, shown in (
        ("", "none", (), False), ("", "none", ("--all-tiers",), True), ("none", "", (), True)
    ):  # fmt: skip
        monkeypatch.setattr(records, "RESULTS", tmp_path / results)
        exp_spt.main(["--report", "--mini", *flags, "--out", str(tmp_path / out)])
        printed = capsys.readouterr().out
        assert ("| S4, 16 apart " in printed) == shown and "| S4 " in printed
        assert ("|   Text, from scratch, " in printed) == shown
        assert ("further rows: --all-tiers" in printed) == (not flags and out == "none")


def test_a_report_of_a_search_alone_ends_in_no_traceback(tmp_path, monkeypatch, capsys):
    """Runs at another rate than the table's, and none of the table's own: their accuracy is "other rates"."""
    monkeypatch.setattr(records, "RESULTS", tmp_path / "none")
    searched = line("text", Cell("s4", "none"), 0.5, {"lr": 0.1}, "mini")
    (tmp_path / "results.jsonl").write_text(json.dumps(searched) + "\n")
    exp_spt.main(["--report", "--mini", "--out", str(tmp_path)])
    printed = capsys.readouterr().out
    assert "| Text, other rates | " in printed and "50.0 ± 0.5 (1)" in printed


def test_flags_choose_cells():
    def cells_of(name, words):
        return exp_spt.cells(flags(*words.split()), name)

    assert cells_of("image", "") == [Cell("transformer", o) for o in ("none", "masked")]
    shares = [(c.objective, c.share) for c in cells_of("image", "--objective all --share 0 0.5")]
    alone = [("multitask", 0.0), ("none-causal", 0.0)]
    assert shares == [("none", 0.0), ("masked", 0.5), ("causal", 0.5), *alone]
    assert [c.share for c in cells_of("text", "--share 0 0.4 --epochs 9")] == [None, 0.4]  # all of a total
    assert len(cells_of("text", "--figure 3")) == 12 and len(cells_of("pathx", "--figure 2")) == 8
    figure5 = [(c.share, c.image_loss) for c in cells_of("image", "--figure 5 --model s4")]
    assert figure5 == [(0.0, "l1"), (0.4, "ce"), (0.6, "ce")]
    assert len(cells_of("image", "--figure table9")) == 2 * 2 * 5 and not cells_of("text", "--figure time")
    given = "--model s4 --init all --share 0.75 --fraction 0.01 --stride 16"
    assert cells_of("image", given)[-1].row() == "S4, masked SPT, random start, 1%, 75% SPT, s=16"
    label = Cell("dlr", "none", fraction=1.0, stride=16).label()
    assert label == {"objective": "none", "init": "structured", "fraction": 1.0, "stride": 16}
    mini = cells_of("text", "--mini --share 0.5 --fraction 1")  # its defaults
    assert mini == cells_of("text", "--mini") and not cells_of("pathx", "--mini")
