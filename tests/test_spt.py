"""exp_spt.py: objectives, transfer, recipes, both halves of every cell. pytest tests/test_spt.py"""

import argparse
import inspect
import json
import math
from dataclasses import replace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import common
import data
import exp_spt
import models
from exp_spt import Cell

torch.set_num_threads(1)
LENGTH = 48  # positions of the tiny tasks


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def tiny(name, n=16, seed=0):
    """A task of the given name's shape with random symbols, three classes at most."""
    draw = generator(seed)
    first_id, vocab = (2, 17) if name == "listops" else (2, 258) if name.startswith("path") else (3, 259)
    classes = 10 if name in ("listops", "image", "scifar") else 2
    docs = 2 if name == "retrieval" else 1
    channels = 3 if name == "scifar" else 1

    def split(n):
        if name in ("listops", "text", "retrieval"):
            lengths = torch.randint(20, LENGTH + 1, (n * docs,), generator=draw)
        else:
            lengths = torch.full((n,), LENGTH * channels)
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        tokens = torch.randint(vocab - first_id, (int(offsets[-1]),), generator=draw).to(torch.uint8)
        return data.Split(tokens, offsets, torch.randint(classes, (n,), generator=draw))

    source = {"from": "test", "hash": f"{name}{n}{seed}"}
    splits = dict(train=split(n), val=split(8), test=split(8))
    return data.Task(name, classes, vocab, first_id, LENGTH * channels, **splits, source=source, docs=docs)


def smoke_args(**given):
    return argparse.Namespace(**{"smoke": True, "augment": "paper", **given})


def halves(name, cell):
    """The narrowed recipe of both halves, with attention windows that the tiny tasks have several of."""
    first, hp = exp_spt.recipe(name, cell, smoke_args())
    for recipe in filter(None, (first, hp)):
        if recipe.get("window"):
            recipe["window"] = 16
    return first, hp


def batch_of(task, split="train", n=8):
    return task.gather(split, torch.arange(n))


EVERY = [
    (m, name) for m, table in exp_spt.MODELS.items() for name, d in zip(exp_spt.TASKS, table["depth"]) if d
]

# ------------------------------------------------------------------------------------------ objectives


@pytest.mark.parametrize("name", exp_spt.TASKS)
def test_masking_hits_real_positions_at_the_papers_rate(name):
    rate = dict(listops=0.1, text=0.15, retrieval=0.15).get(name, 0.5)
    task = tiny(name, n=200)
    batch = batch_of(task, n=200)
    channels = 3 if name == "scifar" else 1
    real = batch.mask[:, ::channels]
    out = exp_spt.masked(batch, generator(), task)
    share, noise = (out.selected.sum() / real.sum()).item(), (rate * (1 - rate) / real.sum().item()) ** 0.5
    assert abs(share - rate) < 4 * noise
    assert not (out.selected & ~real).any() and out.positions == out.selected.sum()
    hit = out.selected.repeat_interleave(channels, 1)
    assert (out.tokens[hit] == exp_spt.mask_id(task)).all()  # always the mask, never a random symbol
    assert torch.equal(out.tokens[~hit], batch.tokens[~hit]) and torch.equal(out.target, batch.tokens)
    assert exp_spt.mask_id(task) not in batch.tokens  # no symbol looks masked
    again = exp_spt.masked(batch, generator(1), task)
    assert not torch.equal(again.selected, out.selected)


def test_multitask_corrupts_as_paper_a_and_scores_all_real_positions():
    task = tiny("text", n=200)
    batch = batch_of(task, n=200)
    out = exp_spt.multitask(batch, generator(), task)
    assert torch.equal(out.selected, batch.mask) and out.positions == batch.mask.sum()
    share = (out.tokens == data.MASK)[batch.mask].float().mean().item()
    changed = (out.tokens != batch.tokens)[batch.mask].float().mean().item()
    assert abs(share - 0.2) < 0.02 and abs(changed - 0.3) < 0.02
    assert torch.equal(out.tokens[~batch.mask], batch.tokens[~batch.mask])


@pytest.mark.parametrize("name", ("text", "retrieval", "scifar"))
def test_causal_target_is_the_next_position_and_the_last_has_none(name):
    task = tiny(name)
    batch = batch_of(task)
    channels = 3 if name == "scifar" else 1
    out = exp_spt.causal(batch, generator(), task)
    assert torch.equal(out.tokens, batch.tokens)
    for row in range(len(batch.tokens)):
        length = int(batch.mask[row].sum())
        chosen = out.selected[row].nonzero()[:, 0].tolist()
        assert chosen == list(range(length // channels - 1))
        assert torch.equal(out.target[row, : length - channels], batch.tokens[row, channels:length])


class Spy(torch.nn.Module):
    """Records what a model is given; its features are zeros and its guess is fixed."""

    def __init__(self, columns, guess):
        super().__init__()
        self.input_linear = torch.nn.Linear(columns, 4)
        self.guess = guess

    def forward(self, x, mask):
        self.x = x
        return torch.zeros(*mask.shape, 4)

    def denoise(self, features):
        return self.guess.expand(len(features), -1)


def test_masked_pixels_read_as_zero_with_their_bit_set():
    task = tiny("image")
    batch = exp_spt.masked(batch_of(task), generator(), task)
    spy = Spy(2, torch.zeros(1))
    exp_spt.features_of(spy, batch, task)
    value, bit = spy.x.unbind(-1)
    assert torch.equal(bit.bool(), batch.selected) and (value[batch.selected] == 0).all()
    grey = (batch.target - 3)[~batch.selected] / 255
    assert torch.allclose(value[~batch.selected], (grey - 122.6 / 255) / (61 / 255), atol=1e-6)
    spy = Spy(1, torch.zeros(1))  # a model without the mask column
    exp_spt.features_of(spy, batch_of(task), task)
    assert spy.x.shape == (8, LENGTH, 1)


def test_l1_loss_is_the_mean_over_masked_positions_and_its_score_is_r2():
    task, cell = tiny("image"), Cell("transformer", "masked")
    batch = exp_spt.masked(batch_of(task), generator(), task)
    loss_fn, spy = exp_spt.pretraining_loss(task, cell), Spy(2, torch.full((1,), 0.1))
    loss, metrics = loss_fn(spy, batch)
    wanted = ((batch.target - 3) / 255 - 122.6 / 255) / (61 / 255)
    wanted = wanted[batch.selected]
    assert loss.item() == pytest.approx((wanted - 0.1).abs().mean().item(), rel=1e-5)
    r2 = 1 - ((wanted - 0.1) ** 2).sum() / (wanted**2).sum()
    right, total = metrics["acc"]
    assert (right / total).item() == pytest.approx(r2.item(), abs=1e-5)
    parts = [loss_fn(spy, part)[1]["acc"] for part in batch.parts(1)]
    right, total = (sum(values) for values in zip(*parts))
    assert (right / total).item() == pytest.approx(r2.item(), abs=1e-5)


@pytest.mark.parametrize("name", ("text", "pathfinder"))
def test_cross_entropy_reads_masked_positions_only(name):
    task, cell = tiny(name), Cell("transformer", "masked")
    batch = exp_spt.masked(batch_of(task), generator(), task)
    guess = torch.randn(256 if name == "pathfinder" else 259, generator=generator())
    loss_fn, spy = exp_spt.pretraining_loss(task, cell), Spy(2, guess)
    if name == "text":
        spy.input_linear = None
    loss, (right, total) = loss_fn(spy, batch)[0], loss_fn(spy, batch)[1]["acc"]
    offset = 2 if name == "pathfinder" else 0  # grey value, or id
    targets = batch.target[batch.selected] - offset
    assert loss.item() == pytest.approx(-guess.log_softmax(0)[targets].mean().item(), rel=1e-5)
    assert total == len(targets) and right == (targets == guess.argmax()).sum()
    elsewhere = torch.where(batch.selected, batch.target, 5)
    assert torch.equal(loss, loss_fn(spy, batch._replace(target=elsewhere))[0])


def test_losses_of_parts_add_up_and_evaluation_is_corrupted_alike_each_time():
    task, cell = tiny("image"), Cell("transformer", "masked")
    model = exp_spt.build(task, cell, halves("image", cell)[0], pretraining=True).eval()
    loss_fn = exp_spt.pretraining_loss(task, cell)
    batch = exp_spt.masked(batch_of(task), generator(), task)
    whole = loss_fn(model, batch)[0]
    parts = sum(loss_fn(model, part)[0] for part in batch.parts(3))
    assert parts.item() == pytest.approx(whole.item(), rel=1e-5)
    clean = batch_of(task, "val")
    assert clean.target is None and torch.equal(loss_fn(model, clean)[0], loss_fn(model, clean)[0])


@pytest.mark.parametrize("name", ("text", "image"))
@pytest.mark.parametrize("objective", exp_spt.PREPARE)
def test_denoising_asks_nothing_of_the_device(objective, name, monkeypatch):
    """Fake tensors hold nothing that could be read: counting or picking masked positions would raise."""
    monkeypatch.setattr(models, "surely_full", lambda mask: False)  # it asks a CPU, where that is free
    task, cell, batch = tiny(name), Cell("transformer", objective), batch_of(tiny(name))
    first, second = halves(name, cell)
    model = exp_spt.build(task, cell, first or second, pretraining=first is not None)
    loss_fn = (exp_spt.pretraining_loss if first else exp_spt.classification_loss)(task, cell)
    with FakeTensorMode(allow_non_fake_inputs=True) as fake:
        seen = {k: fake.from_tensor(v) for k, v in batch._asdict().items() if torch.is_tensor(v)}
        loss, metrics = loss_fn(model, exp_spt.PREPARE[objective](batch._replace(**seen), generator(), task))
    assert loss.shape == () and "acc" in metrics


def test_a_batch_without_any_masked_position_has_a_loss_of_zero():
    task, cell = tiny("text"), Cell("transformer", "masked")
    model = exp_spt.build(task, cell, halves("text", cell)[0], pretraining=True)
    batch = exp_spt.masked(batch_of(task), generator(), task)
    batch = batch._replace(selected=torch.zeros_like(batch.selected), positions=torch.tensor(1))
    loss, metrics = exp_spt.pretraining_loss(task, cell)(model, batch)
    loss.backward()
    assert loss == 0 and metrics["acc"][1] == 0


@pytest.mark.parametrize(
    "model, name", [(m, "image") for m in exp_spt.MODELS] + [("rotary", "pathx"), ("s4", "text")]
)
def test_a_causal_model_does_not_see_what_comes_later(model, name):
    task, cell = tiny(name), Cell(model, "causal")
    torch.manual_seed(0)
    network = exp_spt.build(task, cell, halves(name, cell)[0], pretraining=True).eval()
    if model == "gmlp":  # its gate starts almost shut
        torch.nn.init.normal_(network.blocks[0].kernel_taps)
    batch = batch_of(task, n=2)
    for t in (1, 17, 30):
        if not batch.mask[:, t].all():
            continue
        tokens = batch.tokens.clone()
        tokens[:, t] = 4 + (tokens[:, t] + 77) % 200
        with torch.no_grad():
            before, _ = exp_spt.features_of(network, batch, task)
            after, _ = exp_spt.features_of(network, batch._replace(tokens=tokens), task)
        difference = (before - after).abs().amax((0, 2))
        assert difference[:t].max() < 1e-5, f"position {difference.argmax()} saw position {t}"
        assert difference[t] > 1e-4 and difference[t + 1 :].max() > 1e-5


# ------------------------------------------------------------------------------------------ transfer


def pair(name="image", cell=None):
    """(pretrained model, model to fine-tune) with different weights."""
    cell = cell or Cell("transformer", "masked")
    task, (first, hp) = tiny(name), halves(name, cell)
    torch.manual_seed(1)
    before = exp_spt.build(task, cell, first, pretraining=True)
    return before, exp_spt.build(task, cell, hp, pretraining=False)


def test_everything_but_the_heads_is_transferred_and_the_mask_column_cut():
    before, after = pair()
    head = after.head[0].weight.clone()
    assert before.input_linear.weight.shape == (32, 2) and after.input_linear.weight.shape == (32, 1)
    exp_spt.transfer(after, before.state_dict())
    assert torch.equal(after.input_linear.weight, before.input_linear.weight[:, :1])
    assert torch.equal(after.head[0].weight, head) and after.denoise_head is None
    for name, p in after.state_dict().items():
        if not name.startswith("head.") and name != "input_linear.weight":
            assert torch.equal(p, before.state_dict()[name]), name
    assert all(p.requires_grad for p in after.parameters())


def test_batch_norms_statistics_are_transferred():
    before, after = pair("pathfinder", Cell("s4", "masked"))
    before.blocks[0].norm.running_mean.fill_(3.0)
    exp_spt.transfer(after, before.state_dict())
    assert (after.blocks[0].norm.running_mean == 3.0).all()


def test_what_does_not_arrive_is_named():
    before, after = pair()
    weights = before.state_dict()
    weights["blocks.0.norm1.gain"] = weights.pop("blocks.0.norm1.weight")
    weights["blocks.0.input_linear.bias"] = weights["blocks.0.input_linear.bias"][:5]
    with pytest.raises(common.UserError) as error:
        exp_spt.transfer(after, weights)
    for part in ("norm1.weight is missing", "norm1.gain has no place", "input_linear.bias is (5,)"):
        assert part in str(error.value)
    poisoned = before.state_dict()
    poisoned["input_linear.bias"] = torch.full((32,), torch.nan)
    with pytest.raises(common.UserError, match="input_linear.bias did not arrive"):
        exp_spt.transfer(after, poisoned)


def test_random_initialisation_reaches_every_parameter():
    task, cell = tiny("image"), Cell("s4", "none", init="random")
    _, hp = exp_spt.recipe("image", cell)
    model = exp_spt.build(task, cell, hp | {"depth": 1, "d_model": 128}, pretraining=False)
    for name, p in model.named_parameters():
        assert p.abs().max() < 0.6 and p.std() > 0.03 or p.numel() == 1, name
    values = torch.cat([p.flatten() for p in model.parameters()])
    assert values.std().item() == pytest.approx(0.1, rel=0.02) and abs(values.mean().item()) < 1e-3


# ------------------------------------------------------------------------------------------ recipes


def test_tables_have_a_value_for_every_task_and_keys_that_the_models_know():
    for table in (*exp_spt.MODELS.values(), *exp_spt.TUNED.values()):
        assert {len(row) for row in table.values()} == {len(exp_spt.TASKS)}
    for model, rows in exp_spt.BLOCK_ARGS.items():
        block = models.BLOCKS["transformer" if model == "rotary" else model]
        known = set()
        for base in (*block.__mro__, models.Attention):
            known |= set(inspect.signature(base.__init__).parameters)
        assert set(rows) <= known & set(exp_spt.MODELS[model])


def test_spot_values_of_the_recipes():
    """Typed from the paper and the authors' configurations, not from the script."""
    first, hp = exp_spt.recipe("image", Cell("transformer", "causal"))
    assert (first["lr"], hp["lr"], hp["pooling"], hp["depth"], hp["d_model"]) == (5e-3, 1e-3, "max", 3, 64)
    assert (first["epochs"], hp["epochs"], first["warmup"], hp["warmup"]) == (50, 200, 2500, 2000)
    assert hp["betas"] == (0.9, 0.999) and hp["decay"] == "all" and "clip" not in hp
    first, hp = exp_spt.recipe("listops", Cell("transformer", "causal"))
    assert hp["pooling"] == "last" and (first["lr"], hp["lr"], hp["d_ff"]) == (5e-4, 5e-4, 2048)
    first, hp = exp_spt.recipe("retrieval", Cell("rotary", "masked"))
    assert (first["lr"], hp["lr"], first["ratio"], hp["d_model"]) == (5e-3, 5e-4, 0.15, 256)
    assert exp_spt.recipe("pathx", Cell("rotary", "masked"))[1]["window"] == 4096
    assert exp_spt.recipe("text", Cell("rotary", "masked"))[1]["weight_decay"] == 0.1
    first, hp = exp_spt.recipe("image", Cell("s4", "masked"))
    assert (first["lr"], first["batch_size"], hp["lr"], hp["batch_size"]) == (1e-3, 32, 1e-3, 512)
    assert (hp["schedule"], hp["horizon"], first["schedule"]) == ("cosine", 200_000, "constant")
    assert (hp["norm"], hp["prenorm"], hp["n_ssm"], hp["dropout"]) == ("layer", False, 2, 0.1)
    first, hp = exp_spt.recipe("pathx256", Cell("s4", "masked"))
    assert (first["lr"], first["batch_size"], hp["lr"], hp["batch_size"]) == (1e-3, 8, 1e-3, 64)
    first, hp = exp_spt.recipe("pathx256", Cell("s4", "none"))
    assert first is None and (hp["lr"], hp["batch_size"], hp["pooling"]) == (1e-4, 16, "max")
    assert exp_spt.recipe("pathx", Cell("s4", "none"))[1]["pooling"] == "mean"
    first, hp = exp_spt.recipe("pathx", Cell("s4", "masked", init="random"))
    assert hp["pooling"] == "max"
    assert (first["lr"], first["batch_size"], hp["lr"], hp["batch_size"]) == (1e-3, 4, 5e-4, 16)
    hp = exp_spt.recipe("listops", Cell("dlr", "none", init="random"))[1]
    assert (hp["lr"], hp["batch_size"], hp["d_state"], hp["depth"]) == (1e-4, 16, 1024, 8)
    first, hp = exp_spt.recipe("scifar", Cell("s4", "masked"))
    assert (hp["lr"], hp["batch_size"], first["batch_size"], first["ratio"]) == (5e-4, 64, 32, 0.5)


@pytest.mark.parametrize("budget", [{"epochs": 60}, {"limit": 4500}])
@pytest.mark.parametrize("model", exp_spt.MODELS)
def test_arms_at_a_budget_of_ours_have_equally_many_steps(model, budget):
    args = argparse.Namespace(smoke=False, augment="paper", **budget)
    steps = set()
    for objective in exp_spt.OBJECTIVES:
        share = 0.0 if objective in ("none", "multitask") else 0.4
        halves = exp_spt.recipe("image", Cell(model, objective, share=share), args)
        steps.add(sum(math.ceil(4500 / hp["batch_size"]) * hp["epochs"] for hp in halves if hp))
    assert len(steps) == 1


def test_shares_and_fractions_are_the_papers():
    for name, share, epochs in (("text", 0.4, (12, 18)), ("image", 0.6, (90, 60))):
        first, hp = exp_spt.recipe(name, Cell("transformer", "masked", share=share))
        assert (first["epochs"], hp["epochs"]) == epochs
        assert exp_spt.recipe(name, Cell("transformer", "none", share=0.0))[1]["epochs"] == sum(epochs)
    first, hp = exp_spt.recipe("image", Cell("s4", "masked", fraction=0.05))
    assert (first["lr"], hp["lr"], first["batch_size"], hp["batch_size"]) == (1e-2, 2e-3, 50, 50)
    assert abs(first["epochs"] * 45_000 / 50 - 10_000) < 900
    first, _ = exp_spt.recipe("text", Cell("s4", "masked", fraction=0.05))
    assert abs(first["epochs"] * 22_500 / 8 - 40_000) < 2_900


def test_paper_numbers():
    number = exp_spt.paper_number
    assert number("image", Cell("transformer", "none")) == 42.44
    assert number("pathx", Cell("transformer", "causal")) == 88.05
    assert number("text", Cell("rotary", "masked")) == 91.02
    assert (
        number("pathx256", Cell("s4", "masked")) == 87.11 and number("pathx256", Cell("s4", "none")) == 67.82
    )
    assert number("image", Cell("s4", "none", init="random")) is None
    for row in (("transformer", "causal"), ("rotary", "masked"), ("s4", "none")):
        values = (exp_spt.TABLE1.get(row) or exp_spt.TABLE2[row])[:7]
        assert sum(values[:6]) / 6 == pytest.approx(values[6], abs=0.006)
    scratch = exp_spt.TABLE1["transformer", "none"]
    assert (sum(scratch[:5]) + 50) / 6 == pytest.approx(scratch[6], abs=0.006)


def test_flags_override_and_mark_the_budget():
    args = argparse.Namespace(smoke=False, augment="paper", limit=None, max_length=None)
    cell = Cell("transformer", "masked")
    paper = exp_spt.recipe("image", cell)
    assert exp_spt.recipe("image", cell, args) == paper
    args.lr, args.epochs_pretrain, args.batch_size = 3e-3, 7, 64
    first, hp = exp_spt.recipe("image", cell, args)
    assert (first["lr"], first["epochs"], first["batch_size"]) == (1e-3, 7, 64)
    assert (hp["lr"], hp["epochs"], hp["batch_size"]) == (3e-3, 200, 64)
    assert common.budget(args, hp, paper[1]) == "reduced"


@pytest.mark.parametrize("model", ("transformer", "s4", "dlr"))
def test_multitask_has_as_many_steps_as_both_halves_together(model):
    for name in ("listops", "text", "image"):
        halves = exp_spt.recipe(name, Cell(model, "masked"))
        _, alone = exp_spt.recipe(name, Cell(model, "multitask"))
        steps = sum(half["epochs"] / half["batch_size"] for half in halves)  # of each example
        assert alone["epochs"] / alone["batch_size"] == pytest.approx(steps, rel=0.01)


TRAINING = dict(listops=96_000, text=22_500, retrieval=147_086, image=45_000, scifar=45_000)
TRAINING |= dict.fromkeys(("pathfinder", "pathx", "pathx256"), 160_000)  # 80 % of one set


@pytest.mark.parametrize("epochs", [None, 150])
@pytest.mark.parametrize("name", exp_spt.TASKS)
@pytest.mark.parametrize("model", ("s4", "dlr"))
def test_no_training_goes_on_with_a_rate_of_zero(model, name, epochs):
    """The cosine of a training that is longer than the table's ends with it, that of the table's does not
    move."""
    args = argparse.Namespace(smoke=False, augment="paper", epochs=epochs)
    tabled = exp_spt.MODELS[model]["horizon"][exp_spt.TASKS.index(name)]
    if not exp_spt.MODELS[model]["depth"][exp_spt.TASKS.index(name)]:
        return
    for objective in exp_spt.OBJECTIVES:
        hp = exp_spt.recipe(name, Cell(model, objective), args)[1]
        if tabled:
            steps = math.ceil(TRAINING[name] / hp["batch_size"]) * hp["epochs"]
            p = torch.nn.Parameter(torch.zeros(1))
            schedule = common.make_schedule(torch.optim.SGD([p], 1.0), hp, steps).schedule
            assert all(schedule.lr_lambdas[0](step) > 0 for step in range(1, steps, 997))
            if objective == "none" and not epochs:
                assert hp["horizon"] == tabled


def test_fractions_are_nested_and_an_epoch_keeps_its_steps(monkeypatch):
    task = tiny("image", n=40)
    monkeypatch.setattr(exp_spt.data, "load", lambda *a, **k: task)
    args = argparse.Namespace(data_dir=None, limit=None, max_length=None, smoke=False)

    def images(fraction):
        loaded = exp_spt.load(args, "image", Cell("s4", "none", fraction=fraction), "none")
        assert len(loaded.train.label) == 40
        return {tuple(row) for row in loaded.train.tokens.view(40, -1).tolist()}

    few, some, every = images(0.05), images(0.5), images(1.0)
    assert (len(few), len(some), len(every)) == (2, 20, 40) and few < some < every


@pytest.mark.parametrize(
    "flags, budget", [({}, "paper"), ({"lr_pretrain": 0.5}, "reduced"), ({"epochs_pretrain": 3}, "reduced")]
)
def test_a_pretraining_of_ours_makes_the_cell_a_reduced_one(flags, budget, monkeypatch, tmp_path):
    seen = []
    monkeypatch.setattr(exp_spt, "load", lambda *args: tiny("image"))
    monkeypatch.setattr(exp_spt, "pretrain", lambda *args: None)
    monkeypatch.setattr(common, "fit", lambda *args: {"test_acc": 0.0, "best_epoch": 1, "epochs": 1})
    monkeypatch.setattr(exp_spt, "curve", lambda folder: [])
    monkeypatch.setattr(common, "record", lambda a, f, i, r, budget, s: seen.append(budget))
    args = argparse.Namespace(smoke=False, augment="paper", limit=None, max_length=None, **flags)
    args.out, args.fresh, args.device, args.compile, args.micro_batch = tmp_path, False, "cpu", None, None
    exp_spt.run_cell(args, "image", Cell("transformer", "masked"), 0)
    assert seen == [budget]


# ------------------------------------------------------------------------------------------ both halves


@pytest.mark.parametrize("model", exp_spt.MODELS)
def test_every_objective_and_task_takes_two_steps_of_both_halves(model):
    for name in [name for m, name in EVERY if m == model]:
        task = tiny(name)
        for objective in exp_spt.OBJECTIVES:
            cell = Cell(model, objective)
            first, hp = halves(name, cell)
            assert (first is None) == (objective in ("none", "multitask"))
            torch.manual_seed(0)
            weights = None
            for pretraining, recipe in ((True, first), (False, hp)):
                if recipe is None:
                    continue
                network = exp_spt.build(task, cell, recipe, pretraining)
                if weights:
                    exp_spt.transfer(network, weights)
                if pretraining:
                    loss_fn = exp_spt.pretraining_loss(exp_spt.unlabelled(task), cell)
                else:
                    loss_fn = exp_spt.classification_loss(task, cell)
                optimizer = common.make_optimizer(network, recipe)
                start = [p.detach().clone() for p in network.parameters()]
                for step in range(2):
                    batch = batch_of(task, n=4)
                    if pretraining or objective == "multitask":
                        batch = exp_spt.PREPARE[objective](batch, generator(step), task)
                    loss, metrics = loss_fn(network, batch)
                    assert torch.isfinite(loss) and "acc" in metrics
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                still = [
                    n
                    for (n, p), old in zip(network.named_parameters(), start)
                    if torch.equal(p, old) and p.any()
                ]
                unused = "head." if pretraining else "denoise_head."
                assert not [n for n in still if not n.startswith(unused)], (name, objective, still)
                weights = network.state_dict()


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
    small = dict(depth=1, d_model=16, heads=2, d_ff=32)
    table = {row: tuple(small.get(row, v) for v in values) for row, values in exp_spt.ROTARY.items()}
    monkeypatch.setitem(exp_spt.MODELS, "rotary", table)

    def run(*flags, out=tmp_path):
        common_flags = ["--task", "text", "--model", "rotary", "--device", "cpu", "--amp", "off"]
        exp_spt.main([*common_flags, "--out", str(out), *flags])
        return common.read_records([out / "results.jsonl"])

    return run


def test_pretraining_loss_falls_and_fine_tuning_is_not_worse_than_scratch(script, tmp_path):
    budget = ("--epochs", "20", "--share", "0.7", "--lr", "5e-3", "--lr-pretrain", "1e-2")
    records = script("--objective", "none", "masked", *budget)
    first, spt = (next(r for r in records if r["exp"] == exp and r["cell"]["objective"] == o)
                  for exp, o in (("spt-pretrain", "masked"), ("spt", "masked")))  # fmt: skip
    scratch = next(r for r in records if r["cell"]["objective"] == "none")
    log = [json.loads(line) for line in (tmp_path / first["run"] / "log.jsonl").read_text().splitlines()]
    losses = [line["train"]["loss"] for line in log]
    assert losses[-1] < 0.85 * losses[0] and log[-1]["val"]["loss"] < log[0]["val"]["loss"]
    assert spt["pretraining"]["run"] == first["run"] and spt["budget"] == scratch["budget"] == "reduced"
    assert spt["epochs"] + first["epochs"] == scratch["epochs"] == 20
    assert spt["test_acc"] >= scratch["test_acc"] - 0.02
    assert spt["train_curve"][-1] > scratch["train_curve"][5]  # after as many epochs with labels
    assert len(spt["train_curve"]) == 6 and spt["pretraining"]["train_curve"] == first["train_curve"]


def test_a_finished_pretraining_is_found_and_a_stopped_one_continues(script, tmp_path, capsys):
    flags = ("--objective", "masked", "--epochs", "1", "--epochs-pretrain", "2")
    with pytest.raises(SystemExit) as stop:
        script(*flags, "--time-limit", "0.001s")
    assert stop.value.code == common.EXIT_CONTINUE
    assert [f.parent.name[:12] for f in tmp_path.glob("*/last.pt")] == ["spt-pretrain"]
    broken = script(*flags)
    unbroken = script(*flags, out=tmp_path / "again")
    for a, b in zip(broken, unbroken):
        assert (a["run"], a["test_acc"], a["train_curve"]) == (b["run"], b["test_acc"], b["train_curve"])

    capsys.readouterr()
    records = script(*flags, "--lr", "5e-3")  # another fine-tuning of the same pretraining
    assert "pretrained already" in capsys.readouterr().out
    assert [r["exp"] for r in records] == ["spt-pretrain", "spt", "spt"]
    assert records[1]["pretraining"]["run"] == records[2]["pretraining"]["run"] == records[0]["run"]
    assert len(script(*flags, "--lr", "5e-3")) == 3  # done: nothing runs
    for record in records:  # as exp_kernels and exp_listops do
        state = common.load_checkpoint(tmp_path / record["run"] / "best.pt", "cpu")
        models.SequenceModel(**state["arguments"]).load_state_dict(state["model"])
    records = script(*flags, "--epochs-pretrain", "1")  # another recipe: another pretraining
    assert [r["exp"] for r in records[3:]] == ["spt-pretrain", "spt"]
    (tmp_path / records[3]["run"] / "best.pt").unlink()  # its weights are gone
    records = script(*flags, "--epochs-pretrain", "1", "--lr", "5e-3")
    assert [r["exp"] for r in records[5:]] == ["spt-pretrain", "spt"]
    half = tmp_path / records[3]["run"] / common.AGAIN
    half.touch()  # as --fresh leaves it that was stopped: best.pt is there, of some epoch
    capsys.readouterr()
    records = script(*flags, "--epochs-pretrain", "1", "--lr", "4e-3")
    assert [r["exp"] for r in records[7:]] == ["spt-pretrain", "spt"] and not half.exists()


@pytest.mark.parametrize(  # chance: 0.1 and 0.5
    "name, least", [pytest.param("image", 0.4, marks=pytest.mark.slow), ("text", 0.8)]
)
def test_the_default_smoke_model_learns_the_stand_in(name, least, tmp_path):
    exp_spt.main(["--task", name, "--smoke", "--out", str(tmp_path)])
    first, line = common.read_records([tmp_path / "results.jsonl"])
    assert (first["exp"], line["exp"], line["cell"]["objective"]) == ("spt-pretrain", "spt", "masked")
    assert line["test_acc"] > least


def test_s4_on_images_drops_twice_a_block_one_mask_for_all_positions():
    """As paper B describes it: after GELU and, as every block does, on the output; not after the
    convolution, as in S4's own code."""
    task, cell = tiny("image"), Cell("s4", "masked")
    _, hp = exp_spt.recipe("image", cell)
    found = exp_spt.arguments(task, cell, hp, pretraining=True)
    assert (found["dropout"], found["tie_dropout"], found["drop_convolution"]) == (0.1, True, False)


@pytest.mark.parametrize("model", exp_spt.MODELS)
def test_a_checkpoint_says_how_long_the_longest_sequence_is(model):
    """exp_kernels.py draws its kernels to there."""
    task, cell = tiny("image"), Cell(model, "masked")
    _, hp = exp_spt.recipe("image", cell)
    assert exp_spt.arguments(task, cell, hp, pretraining=True)["max_length"] == task.max_length


def test_flags_go_before_the_smoke_settings():
    args = smoke_args(lr=0.5, lr_pretrain=0.25, batch_size=3, epochs=7, epochs_pretrain=2)
    first, hp = exp_spt.recipe("image", Cell("s4", "masked"), args)
    assert (first["lr"], first["batch_size"], first["epochs"]) == (0.25, 3, 2)
    assert (hp["lr"], hp["batch_size"], hp["epochs"], hp["d_model"]) == (0.5, 3, 7, 32)


def test_colour_images_carry_three_symbols_a_position():
    task = exp_spt.colour_images("unused", None, None, smoke=True)
    grey = data.load("image", "unused", augment="none", smoke=True)
    assert task.max_length == 3072 and task.train.tokens.dtype == torch.uint8
    batch = task.gather("train", torch.arange(2))
    red = grey.gather("train", torch.arange(2)).tokens
    assert batch.tokens.shape == (2, 3072) and torch.equal(batch.tokens[:, ::3], red)
    assert torch.equal(task.train.label, grey.train.label)


def test_fine_tuning_starts_from_what_was_pretrained(script, tmp_path):
    first, spt = script("--objective", "masked", "--epochs", "1", "--epochs-pretrain", "1", "--lr", "1e-30")
    before, after = (torch.load(tmp_path / r["run"] / "best.pt")["model"] for r in (first, spt))
    body = [name for name in after if not name.startswith("head.")]
    assert len(body) > 10 and all(torch.equal(before[name], after[name]) for name in body)


def test_the_multitask_arm_restores_what_was_corrupted(script, tmp_path):
    (record,) = script("--objective", "multitask", "--epochs", "1")
    (line,) = (tmp_path / record["run"] / "log.jsonl").read_text().splitlines()
    assert json.loads(line)["train"]["denoise_acc"] > 0


# ------------------------------------------------------------------------------------------ report, flags


def test_report_without_records(tmp_path, capsys):
    exp_spt.main(["--report", "--out", str(tmp_path)])
    out = capsys.readouterr().out
    for number in ("— / 53.66", "— / 81.81", "— / 86.21", "— / 87.11", "— / ✗", "— / 83.40", "— / 90.30"):
        assert number in out
    assert {f.name for f in tmp_path.iterdir()} == {f"spt_figure{n}.png" for n in (1, 2, 3, 5)}


def test_report_with_records(tmp_path, capsys):
    def line(name, cell, acc, seed=0, budget="paper", **more):
        first, hp = exp_spt.recipe(name, cell)
        hp |= {"pretrain": {"epochs": first["epochs"], "lr": first["lr"]}} if first else {}
        more = {"pretraining": {"run": "r", "train_curve": [0.1, 0.5]}} if first else {}
        record = {
            "run": f"{name}{cell}{seed}{budget}",
            "exp": "spt",
            "task": name,
            "model": cell.model,
            "hp": hp,
        }
        record |= {
            "cell": cell.label(),
            "seed": seed,
            "test_acc": acc,
            "val_acc": acc,
            "date": "2026-01-01",
            "budget": budget,
            "data": {"hash": "a"},
        }
        return (
            record | {"limit": None, "epochs": hp["epochs"], "train_curve": [0.2, 0.4], "smoke": False} | more
        )

    lines = [line(name, Cell("transformer", "causal"), 0.5) for name in exp_spt.MEAN6]
    lines += [line("image", Cell("transformer", "causal"), 0.6, seed=1)]
    lines += [
        line("image", Cell("s4", "none", fraction=0.1), 0.4),
        line("image", Cell("s4", "masked", fraction=0.1), 0.5),
    ]
    lines += [line("image", Cell("transformer", "masked", share=0.4, image_loss="ce"), 0.7)]
    lines += [line("image", Cell("transformer", "none", share=0.0), 0.3)]
    lines += [
        line("image", Cell("s4", "masked"), 0.9),
        line("text", Cell("s4", "masked"), 0.81, budget="reduced"),
        line("text", Cell("rotary", "masked", init="random"), 0.77),  # has no place in a table
    ]
    file = tmp_path / "records.jsonl"
    file.write_text("".join(json.dumps(r) + "\n" for r in lines))
    exp_spt.main(["--report", str(file), "--out", str(tmp_path)])
    out = capsys.readouterr().out
    for text in (
        "55.00 ± 7.07 (n=2) / 76.00",
        "50.83 / 81.81",
        "+25.0",
        "70.00 (n=1) / —",
        "30.00 (n=1) / —",
    ):
        assert text in out
    beyond = out.split("### Full budget, not in the paper")[1].split("###")[0]
    assert "77.00 (n=1)" in beyond and beyond.count("(n=") == 1
    assert "--checkpoint" in out and "81.00 (n=1) [pretraining 32, lr 0.0005 then 0.0005]" in out


def test_the_report_counts_a_training_once_and_tells_recipes_apart(tmp_path, capsys):
    """From scratch a share of 0 is the same training as no share; another batch size is not."""
    lines = []
    for i, (share, batch) in enumerate(((None, 32), (0.0, 32), (None, 16))):
        cell = Cell("transformer", "none", share=share)
        hp = exp_spt.recipe("text", cell)[1] | {"epochs": 4, "batch_size": batch}
        record = dict(run=str(i), exp="spt", task="text", model="transformer", cell=cell.label(), seed=0)
        record |= dict(hp=hp, limit=None, data={"hash": "a"}, budget="reduced", date="2026-01-01", epochs=4)
        lines.append(json.dumps(record | {"val_acc": 0.5, "test_acc": 0.5 + i / 10}) + "\n")
    for key, value, accuracy in (("size", "30M", 0.41), ("objective", "mine", 0.42)):  # of a changed script
        other = {"run": key, "model": "rotary", "cell": cell.label() | {key: value}, "val_acc": 0.5}
        lines.append(json.dumps(record | other | {"test_acc": accuracy}) + "\n")
    (tmp_path / "r.jsonl").write_text("".join(lines))
    exp_spt.main(["--report", str(tmp_path / "r.jsonl"), "--out", str(tmp_path)])
    rows = capsys.readouterr().out.split("### At reduced budgets")[1]
    assert "60.00 (n=1) [lr 0.0001]; 70.00 (n=1) [lr 0.0001, batch_size 16] |" in rows and "n=2" not in rows
    assert "41.00 (n=1)" in rows and "| mine " in rows and "42.00 (n=1)" in rows


def cells_of(*flags):
    parser_args = {}

    def catch(args, name, cell, seed):
        parser_args.setdefault(name, []).append(cell)

    run_cell, exp_spt.run_cell = exp_spt.run_cell, catch
    try:
        exp_spt.main(list(flags))
    finally:
        exp_spt.run_cell = run_cell
    return parser_args


def test_flags_choose_cells(monkeypatch):
    monkeypatch.setattr(exp_spt.data, "require", lambda *args: None)  # as if Retrieval had been fetched
    assert cells_of("--task", "image") == {"image": [Cell("transformer", o) for o in ("none", "masked")]}
    every = cells_of("--task", "all", "--model", "all", "--objective", "all")
    assert sum(map(len, every.values())) == 4 * len(EVERY) and len(every["pathx256"]) == 4
    shares = cells_of("--task", "image", "--objective", "all", "--share", "0", "0.5")["image"]
    assert [(c.objective, c.share) for c in shares] == [
        ("none", 0.0), ("masked", 0.5), ("causal", 0.5), ("multitask", 0.0)
    ]  # fmt: skip
    third = cells_of("--task", "all", "--figure", "3")
    assert set(third) == {"image", "text"} and len(third["text"]) == 12
    fifth = cells_of("--task", "image", "--figure", "5")["image"]
    assert [(c.model, c.objective, c.share, c.image_loss) for c in fifth] == [
        (model, *arm) for model in ("transformer", "s4")
        for arm in (("none", 0.0, "l1"), ("masked", 0.4, "ce"), ("masked", 0.6, "ce"))
    ]  # fmt: skip
    assert len(cells_of("--task", "all", "--figure", "2")["pathx"]) == 8
    assert len(cells_of("--task", "image", "--model", "s4", "--size", "all")["image"]) == 10


@pytest.mark.parametrize(
    "flags",
    [
        ["--task", "pathx256"],
        ["--task", "text", "--size", "1M"],
        ["--task", "text", "--figure", "2", "--model", "gmlp", "--share", "1.0"],
        ["--task", "text", "--fraction", "0"],
        ["--task", "text", "--share", "0.5", "--epochs-pretrain", "3"],
        ["--task", "text", "--share", "0.5", "--epochs", "1"],
        ["--task", "image", "--figure", "5", "--epochs", "1", "--smoke"],
        ["--task", "image", "--figure", "5", "--epochs-pretrain", "7"],
        ["--task", "scifar", "--augment", "flip"],
        ["--task", "image", "--set-last-tenth"],
        ["--task", "image", "--figure", "6"],
    ],
)
def test_a_mistake_on_the_command_line_exits_with_2(flags, capsys):
    with pytest.raises(SystemExit) as stop:
        exp_spt.main(flags)
    assert stop.value.code == 2 and capsys.readouterr().err.count("error: ") == 1
