"""exp_spt.py: objectives, transfer, recipes, both halves of every cell. pytest tests/test_spt.py"""

import inspect
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import common
import data
import exp_spt
import models
import records
from exp_spt import Cell

torch.set_num_threads(1)
LENGTH = 48  # positions of the tiny tasks


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def tiny(name, n=16, seed=0):
    """A task of the given name's shape with random symbols."""
    draw, shape = generator(seed), data.SHAPES[name]
    docs, width = shape.get("docs", 1), LENGTH * shape.get("channels", 1)

    def split(n):
        lengths = torch.full((n * docs,), width)
        if name in ("listops", "text", "retrieval"):
            lengths = torch.randint(20, LENGTH + 1, (n * docs,), generator=draw)
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        tokens = torch.randint(shape["vocab"] - shape["first_id"], (int(offsets[-1]),), generator=draw)
        label = torch.randint(shape["classes"], (n,), generator=draw)
        return data.Split(tokens.to(torch.uint8), offsets, label)

    source = {"from": "test", "hash": f"{name}{n}{seed}"}
    return data.Task(
        name, **shape | {"max_length": width}, train=split(n), val=split(8), test=split(8), source=source
    )


def flags(*argv):
    return exp_spt.make_parser().parse_args(["--task", "text", *argv])


def halves(name, cell):
    """The narrowed recipe of both halves, with attention windows that the tiny tasks have several of."""
    first, hp = exp_spt.recipe(name, cell, flags("--smoke"))
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


@pytest.mark.parametrize("noise", (generator(), None), ids=("training", "validation"))
@pytest.mark.parametrize("name", exp_spt.TASKS)
def test_masking_hits_real_positions_at_the_papers_rate(name, noise):
    rate = dict(listops=0.1, text=0.15, retrieval=0.15).get(name, 0.5)
    task = tiny(name, n=200)
    batch = exp_spt.without_labels(task).gather("train", torch.arange(200))
    real = batch.mask[:, :: task.channels]
    out = exp_spt.masked(batch, noise, task)
    error = (rate * (1 - rate) / real.sum().item()) ** 0.5
    assert abs((out.selected.sum() / real.sum()).item() - rate) < 4 * error
    assert not (out.selected & ~real).any() and out.positions == out.selected.sum()
    hit = out.selected.repeat_interleave(task.channels, 1)
    assert (out.tokens[hit] == exp_spt.mask_id(task)).all()  # always the mask, never a random symbol
    assert torch.equal(out.tokens[~hit], batch.tokens[~hit]) and torch.equal(out.target, batch.tokens)
    assert exp_spt.mask_id(task) not in batch.tokens  # no symbol looks masked
    again = exp_spt.masked(batch, noise, task)
    assert torch.equal(again.selected, out.selected) == (noise is None)


@pytest.mark.parametrize("name", ("text", "retrieval", "scifar"))
def test_a_validation_example_is_masked_alike_in_every_batch(name):
    task = exp_spt.without_labels(tiny(name, n=64))
    alone = {}
    for i in range(64):
        out = exp_spt.masked(task.gather("train", torch.tensor([i])), None, task)
        alone[i] = [row[mask].tolist() for row, mask in zip(out.selected, out.mask[:, :: task.channels])]
    order = torch.randperm(64, generator=generator())
    out = exp_spt.masked(task.gather("train", order), None, task)
    rows = [row[mask].tolist() for row, mask in zip(out.selected, out.mask[:, :: task.channels])]
    assert rows == [row for i in order.tolist() for row in alone[i]]
    assert len({str(row[:20]) for row in rows}) > 0.9 * len(rows) or name != "scifar"  # each its own


def test_the_hash_has_no_pattern():
    """Neighbours in either direction agree as often as by chance, and every value is as frequent."""
    batch = data.Batch(torch.zeros(400, 1), None, torch.arange(400))
    u = exp_spt.uniform(batch, (400, 500), None)
    hit = (u < 0.5).float()
    for a, b in ((hit[1:], hit[:-1]), (hit[:, 1:], hit[:, :-1]), (hit[1:, :-1], hit[:-1, 1:])):
        assert abs((a == b).float().mean() - 0.5) < 0.005
    assert (torch.histc(u, 20, 0, 1) / u.numel() - 0.05).abs().max() < 0.003


def test_multitask_corrupts_as_paper_a_and_scores_all_real_positions():
    task = tiny("text", n=200)
    batch = batch_of(task, n=200)
    out = exp_spt.multitask(batch, generator(), task)
    assert torch.equal(out.selected, batch.mask) and out.positions == batch.positions
    share = (out.tokens == data.MASK)[batch.mask].float().mean().item()
    changed = (out.tokens != batch.tokens)[batch.mask].float().mean().item()
    assert abs(share - 0.2) < 0.02 and abs(changed - 0.3) < 0.02
    assert torch.equal(out.tokens[~batch.mask], batch.tokens[~batch.mask])


@pytest.mark.parametrize("name", ("text", "retrieval", "scifar"))
def test_causal_target_is_the_next_position_and_the_last_has_none(name):
    task = tiny(name)
    batch, channels = batch_of(task), task.channels
    out = exp_spt.causal(batch, generator(), task)
    assert torch.equal(out.tokens, batch.tokens)
    for row in range(len(batch.tokens)):
        length = int(batch.mask[row].sum())
        assert out.selected[row].nonzero()[:, 0].tolist() == list(range(length // channels - 1))
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
    wanted = [
        (pixel - 3 - 122.6) / 61
        for row, chosen in zip(batch.target.tolist(), batch.selected.tolist())
        for pixel, hit in zip(row, chosen)
        if hit
    ]
    loss, metrics = loss_fn(spy, batch)
    assert loss.item() == pytest.approx(sum(abs(w - 0.1) for w in wanted) / len(wanted), rel=1e-5)
    r2 = 1 - sum((w - 0.1) ** 2 for w in wanted) / sum(w**2 for w in wanted)
    for found in ([metrics], [loss_fn(spy, part)[1] for part in batch.parts(3)]):
        right, total = (sum(values) for values in zip(*(m["acc"] for m in found)))
        assert (right / total).item() == pytest.approx(r2, abs=1e-5)
    assert exp_spt.score(task, cell) == "R^2"


@pytest.mark.parametrize("name", ("text", "pathfinder"))
def test_cross_entropy_reads_masked_positions_only(name):
    task, cell = tiny(name), Cell("transformer", "masked")
    batch = exp_spt.masked(batch_of(task), generator(), task)
    guess = torch.randn(256 if name == "pathfinder" else 259, generator=generator())
    loss_fn, spy = exp_spt.pretraining_loss(task, cell), Spy(2, guess)
    loss, (right, total) = loss_fn(spy, batch)[0], loss_fn(spy, batch)[1]["acc"]
    offset = 2 if name == "pathfinder" else 0  # grey value, or id
    targets = [
        batch.target[row, t].item() - offset
        for row in range(len(batch.target))
        for t in range(LENGTH)
        if batch.selected[row, t]
    ]
    lost = [math.log(sum(guess.exp().tolist())) - guess[target].item() for target in targets]
    assert loss.item() == pytest.approx(sum(lost) / len(lost), rel=1e-5)
    assert total == len(targets) and right == targets.count(guess.argmax().item())
    elsewhere = torch.where(batch.selected, batch.target, 5)
    assert torch.equal(loss, loss_fn(spy, batch._replace(target=elsewhere))[0])


@pytest.mark.parametrize("name", ("text", "image"))
@pytest.mark.parametrize("objective", exp_spt.PREPARE)
def test_losses_of_parts_add_up_and_nothing_is_asked_of_the_device(objective, name, monkeypatch):
    """Fake tensors hold nothing that could be read: counting or picking masked positions would raise."""
    task, cell, batch = tiny(name), Cell("transformer", objective), batch_of(tiny(name))
    first, second = halves(name, cell)
    model = exp_spt.build(task, cell, first or second, pretraining=first is not None)
    loss_fn = (exp_spt.pretraining_loss if first else exp_spt.classification_loss)(task, cell)
    prepared = exp_spt.PREPARE[objective](batch, generator(), task)
    whole = loss_fn(model, prepared)[0].item()
    assert sum(loss_fn(model, part)[0] for part in prepared.parts(3)).item() == pytest.approx(whole, rel=1e-5)
    monkeypatch.setattr(models, "surely_full", lambda mask: False)  # it asks a CPU, where that is free
    with FakeTensorMode(allow_non_fake_inputs=True) as fake:
        seen = {k: fake.from_tensor(v) for k, v in batch._asdict().items() if torch.is_tensor(v)}
        loss, metrics = loss_fn(model, exp_spt.PREPARE[objective](batch._replace(**seen), generator(), task))
    assert loss.shape == () and "acc" in metrics


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


def pair(name="image", model="transformer"):
    """(pretrained model, model to fine-tune) with different weights."""
    cell, task = Cell(model, "masked"), tiny(name)
    first, hp = halves(name, cell)
    torch.manual_seed(1)
    before = exp_spt.build(task, cell, first, pretraining=True)
    return before, exp_spt.build(task, cell, hp, pretraining=False)


@pytest.mark.parametrize("model, name", (("transformer", "image"), ("s4", "pathfinder"), ("rotary", "text")))
def test_everything_but_the_heads_is_transferred_and_the_mask_column_cut(model, name):
    before, after = pair(name, model)
    for buffer in before.buffers():  # batch norm's statistics
        buffer.fill_(3)
    old, start = before.state_dict(), {k: p.clone() for k, p in after.state_dict().items()}
    assert exp_spt.transfer(after, old) is after and after.denoise_head is None
    for key, p in after.state_dict().items():
        if key.startswith("head."):
            assert torch.equal(p, start[key])
        else:
            wanted = old[key][:, :1] if key == "input_linear.weight" else old[key]
            assert torch.equal(p, wanted), key
    assert all(p.requires_grad for p in after.parameters())


@pytest.mark.parametrize("spoil", ("rename", "drop", "reshape"))
def test_what_does_not_arrive_is_named(spoil):
    before, after = pair()
    weights = before.state_dict()
    moved = weights.pop("blocks.0.norm1.weight")
    weights |= {
        "rename": {"blocks.0.norm1.gain": moved},
        "drop": {},
        "reshape": {"blocks.0.norm1.weight": moved[:5]},
    }[spoil]
    with pytest.raises(common.UserError, match="norm1") as error:
        exp_spt.transfer(after, weights)
    assert "--fresh" in str(error.value)


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
    mini = ({**exp_spt.MINI, **rows} for rows in exp_spt.MINI_MODELS.values())
    for table in (*exp_spt.MODELS.values(), *exp_spt.TUNED.values(), *mini):
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
    assert hp["betas"] == [0.9, 0.999] and hp["decay"] == "all" and "clip" not in hp
    first, hp = exp_spt.recipe("listops", Cell("transformer", "causal"))
    assert hp["pooling"] == "last" and (first["lr"], hp["lr"], hp["d_ff"]) == (5e-4, 5e-4, 2048)
    first, hp = exp_spt.recipe("retrieval", Cell("rotary", "masked"))
    assert (first["lr"], hp["lr"], first["ratio"], hp["d_model"]) == (5e-3, 5e-4, 0.15, 256)
    assert exp_spt.recipe("pathx", Cell("rotary", "masked"))[1]["window"] == 4096
    assert exp_spt.recipe("text", Cell("rotary", "masked"))[1]["weight_decay"] == 0.1
    first, hp = exp_spt.recipe("image", Cell("s4", "masked"))
    assert (first["lr"], first["batch_size"], hp["lr"], hp["batch_size"]) == (1e-3, 32, 1e-3, 512)
    assert (hp["schedule"], hp["horizon"], first["schedule"]) == ("cosine", 200_000, "constant")
    found = exp_spt.arguments(tiny("image"), Cell("s4", "masked"), hp, pretraining=True)
    wanted = dict(norm="layer", prenorm=False, n_ssm=2, dropout=0.1, tie_dropout=True, max_length=LENGTH)
    assert found.items() >= wanted.items()
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
    first, hp = exp_spt.recipe("scifar", Cell("rotary", "masked"))
    assert (hp["weight_decay"], hp["head"], hp["depth"], hp["batch_size"]) == (0.05, "mlp", 6, 50)


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


@pytest.mark.parametrize(
    "budget", ["--epochs 60", "--limit 4500", "--steps 4001", "--mini", "--mini --steps 7"]
)
@pytest.mark.parametrize("model", ("transformer", "rotary", "s4", "dlr"))
def test_arms_at_a_budget_of_ours_have_equally_many_steps(model, budget):
    args, steps = flags(*budget.split()), set()
    for objective in exp_spt.OBJECTIVES:
        share = 0.0 if objective in exp_spt.ALONE else 0.4
        found = exp_spt.recipe("image", Cell(model, objective, share=share), args)
        steps.add(sum(hp.get("steps") or 100 * hp["epochs"] / hp["batch_size"] for hp in found if hp))
        assert not found[0] or found[0]["schedule"] == ("plateau" if args.mini else "constant")
    assert len(steps) == 1


@pytest.mark.parametrize("model", ("transformer", "s4", "dlr"))
def test_multitask_has_as_many_steps_as_both_halves_together(model):
    for name in ("listops", "text", "image"):
        both = exp_spt.recipe(name, Cell(model, "masked"))
        _, alone = exp_spt.recipe(name, Cell(model, "multitask"))
        steps = sum(half["epochs"] / half["batch_size"] for half in both)  # of each example
        assert alone["epochs"] / alone["batch_size"] == pytest.approx(steps, rel=0.01)


def test_paper_numbers():
    number = exp_spt.paper_number
    assert number("image", Cell("transformer", "none")) == 42.44
    assert number("pathx", Cell("transformer", "causal")) == 88.05
    assert number("text", Cell("rotary", "masked")) == 91.02
    assert number("pathx256", Cell("s4", "masked")) == 87.11
    assert number("scifar", Cell("rotary", "masked")) == 90.3
    assert number("image", Cell("s4", "none", init="random")) is None
    for row in (("transformer", "causal"), ("rotary", "masked"), ("s4", "none")):
        values = (exp_spt.TABLE1.get(row) or exp_spt.TABLE2[row])[:7]
        assert sum(values[:6]) / 6 == pytest.approx(values[6], abs=0.006)
    scratch = exp_spt.TABLE1["transformer", "none"]
    assert (sum(scratch[:5]) + 50) / 6 == pytest.approx(scratch[6], abs=0.006)


@pytest.mark.parametrize("flag, cell, tier", [
    ("", Cell("transformer", "masked"), ("paper", "paper")),
    ("--lr 3e-3", Cell("transformer", "masked"), ("paper", "reduced")),
    ("--lr-pretrain 0.5", Cell("transformer", "masked"), ("reduced", "reduced")),
    ("--epochs-pretrain 3", Cell("transformer", "masked"), ("reduced", "reduced")),
    ("--no-bucket", Cell("transformer", "masked"), ("reduced", "reduced")),
    ("--hours 24", Cell("transformer", "masked"), ("paper", "paper")),
    ("--hours 23", Cell("transformer", "masked"), ("reduced", "reduced")),
    ("--lr 5e-4", Cell("transformer", "none"), (None, "paper")),  # the paper's grid, and no rate of its own
    ("--lr 2e-4", Cell("transformer", "none"), (None, "reduced")),
    ("--lr 5e-4", Cell("s4", "none"), (None, "reduced")),  # has one
    ("--mini", Cell("transformer", "masked"), ("mini", "mini")),
])  # fmt: skip
def test_what_counts_as_the_papers_budget(flag, cell, tier):
    args = flags(*flag.split())
    assert exp_spt.budgets(args, "image", cell, *exp_spt.recipe("image", cell, args)) == tier


def test_flags_go_before_the_smoke_settings_and_reach_their_half():
    args = flags(*"--smoke --lr 0.5 --lr-pretrain 0.25 --batch-size 3 --epochs 7 --epochs-pretrain 2".split())
    cell = Cell("s4", "masked", pooling="last")
    first, hp = exp_spt.recipe("image", cell, args)
    assert (first["lr"], first["batch_size"], first["epochs"], first["pooling"]) == (0.25, 3, 2, "mean")
    assert (hp["lr"], hp["batch_size"], hp["epochs"], hp["pooling"], hp["d_model"]) == (0.5, 3, 7, "last", 32)
    first, hp = exp_spt.recipe("image", Cell("s4", "masked", share=0.25), flags("--hours", "8"))
    assert (first["hours"], hp["hours"]) == (2, 6)  # shared like all totals
    args = flags("--hours", "8")
    assert [half["hours"] for half in exp_spt.recipe("image", Cell("s4", "masked"), args)] == [8, 8]


TRAINING = data.EXPECTED["text"]["train"], 45_000, 160_000


@pytest.mark.parametrize("given", ["", "--epochs 150", "--steps 2000000"])
@pytest.mark.parametrize("model, name", [("s4", "text"), ("s4", "image"), ("s4", "pathx"), ("dlr", "pathx")])
def test_no_training_goes_on_with_a_rate_of_zero(model, name, given):
    """The cosine of a training that is longer than the table's ends with it, that of the table's does not
    move."""
    examples = dict(text=22_500, image=45_000, pathx=160_000)[name]
    for objective in exp_spt.OBJECTIVES:
        hp = exp_spt.recipe(name, Cell(model, objective), flags(*given.split()))[1]
        steps = hp.get("steps") or math.ceil(examples / hp["batch_size"]) * hp["epochs"]
        p = torch.nn.Parameter(torch.zeros(1))
        schedule = common.make_schedule(torch.optim.SGD([p], 1.0), hp, steps).schedule
        assert all(schedule.lr_lambdas[0](step) > 0 for step in range(1, steps, 997))
        if objective == "none" and not given:
            assert hp["horizon"] == exp_spt.MODELS[model]["horizon"][exp_spt.TASKS.index(name)]


def test_fractions_are_nested_and_an_epoch_keeps_its_steps(monkeypatch):
    task = tiny("image", n=40)
    monkeypatch.setattr(exp_spt.data, "load", lambda *a, **k: task)

    def images(fraction):
        loaded = exp_spt.load(flags(), "image", Cell("s4", "none", fraction=fraction), "none")
        assert len(loaded.train.label) == 40
        return {tuple(row) for row in loaded.train.tokens.view(40, -1).tolist()}

    few, some, every = images(0.25), images(0.5), images(1.0)
    assert (len(few), len(some), len(every)) == (10, 20, 40) and few < some < every


def identities_of(argv, name, task):
    """Run names that a command has, of both halves."""
    args, found = exp_spt.make_parser().parse_args(argv), set()
    for cell in exp_spt.cells(args, name):
        first, hp = (exp_spt.shorter_warmup(half, task) for half in exp_spt.recipe(name, cell, args))
        for seed in range(args.seed, args.seed + args.seeds):
            both = exp_spt.identities(args, task, cell, first, hp, seed)
            found |= {records.run_name(identity) for identity in both if identity}
    return found


def test_commands_of_old_records_still_name_their_runs():
    files = sorted(Path(exp_spt.__file__).with_name("results").glob("*.jsonl"))
    found = [r for r in records.read_records(files) if r["exp"].startswith("spt")]
    assert len(found) >= 9
    for r in found:
        task = tiny(r["task"], n=r["limit"])
        task = replace(task, source={"hash": r["data"]["hash"]})
        assert r["run"] in identities_of(r["argv"][1:], r["task"], task), r["run"]


# ------------------------------------------------------------------------------------------ both halves


@pytest.mark.parametrize("model", exp_spt.MODELS)
def test_every_objective_and_task_takes_two_steps_of_both_halves(model):
    for name, objective in [(n, o) for m, n in EVERY if m == model for o in exp_spt.OBJECTIVES]:
        task, cell, weights = tiny(name), Cell(model, objective), None
        first, hp = halves(name, cell)
        assert (first is None) == (objective in ("none", "multitask"))
        torch.manual_seed(0)
        for pretraining, recipe in ((True, first), (False, hp)):
            if recipe is None:
                continue
            network = exp_spt.transfer(exp_spt.build(task, cell, recipe, pretraining), weights)
            loss_of = exp_spt.pretraining_loss if pretraining else exp_spt.classification_loss
            loss_fn, trained = loss_of(task, cell), task
            if pretraining or objective == "multitask":
                trained = exp_spt.corrupted(exp_spt.without_labels(task) if pretraining else task, objective)
            optimizer = common.make_optimizer(network, recipe)
            start = [p.detach().clone() for p in network.parameters()]
            for batch in trained.training_batches(list(torch.arange(8).split(4)), generator(), 0):
                loss, metrics = loss_fn(network, batch)
                assert torch.isfinite(loss) and "acc" in metrics
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            changes = zip(network.named_parameters(), start)
            still = [n for (n, p), old in changes if torch.equal(p, old) and p.any()]
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

    def run(*argv, out=tmp_path):
        same = ["--task", "text", "--model", "rotary", "--device", "cpu", "--amp", "off", "--out", str(out)]
        exp_spt.main([*same, *argv])
        return records.read_records([out / "results.jsonl"])

    return run


def test_pretraining_learns_and_fine_tuning_is_not_worse_than_scratch(script, tmp_path):
    budget = ("--epochs", "20", "--share", "0.7", "--lr", "5e-3", "--lr-pretrain", "1e-2")
    found = {(r["exp"], r["cell"]["objective"]): r for r in script("--objective", "none", "masked", *budget)}
    first, spt, scratch = (
        found[key] for key in (("spt-pretrain", "masked"), ("spt", "masked"), ("spt", "none"))
    )
    log = [json.loads(line) for line in (tmp_path / first["run"] / "log.jsonl").read_text().splitlines()]
    losses = [line["train"]["loss"] for line in log]
    assert losses[-1] < 0.85 * losses[0] and log[-1]["val"]["loss"] < log[0]["val"]["loss"]
    assert first["score"] == "accuracy of masked symbols" and "score" not in spt
    assert spt["pretraining"]["run"] == first["run"] and spt["budget"] == scratch["budget"] == "reduced"
    assert spt["epochs"] + first["epochs"] == scratch["epochs"] == 20
    assert spt["test_acc"] >= scratch["test_acc"] - 0.05
    assert spt["train_curve"][-1] > scratch["train_curve"][5]  # after as many epochs with labels
    assert len(spt["train_curve"]) == 6 and spt["pretraining"]["train_curve"] == first["train_curve"]


@pytest.mark.parametrize("stopped", ("spt-pretrain", "spt"))
def test_a_stopped_half_ends_like_an_unbroken_one(stopped, script, tmp_path, monkeypatch):
    argv, train_step, steps = (
        ("--objective", "masked", "--epochs", "2", "--epochs-pretrain", "2"),
        common.train_step,
        [],
    )

    def stop_at_eight(*args):  # of the twelve or 24 steps of the half
        train_step(*args)
        steps.append(1)
        if len(steps) == {"spt-pretrain": 8, "spt": 20}[stopped]:
            common.os.kill(common.os.getpid(), common.signal.SIGTERM)

    unbroken = script(*argv, out=tmp_path / "unbroken")
    monkeypatch.setattr(common, "train_step", stop_at_eight)
    with pytest.raises(SystemExit) as stop:
        script(*argv)
    assert stop.value.code == common.EXIT_CONTINUE
    (state,) = tmp_path.glob("*/last.pt")
    assert state.parent.name.startswith(f"{stopped}-text") and 0 < torch.load(state)["step"] < 12
    broken = script(*argv)
    for a, b in zip(broken, unbroken, strict=True):
        same = ("run", "test_acc", "val_acc", "train_curve")
        assert [a[key] for key in same] == [b[key] for key in same]
        weights = [
            torch.load(out / a["run"] / "best.pt")["model"] for out in (tmp_path, tmp_path / "unbroken")
        ]
        assert all(torch.equal(p, weights[1][name]) for name, p in weights[0].items())


def test_a_pretraining_is_shared_by_what_starts_from_it_and_repeated_without_its_weights(script, tmp_path):
    argv = ("--objective", "masked", "--epochs", "1", "--epochs-pretrain", "1")
    found = script(*argv, "--lr", "1e-30")
    before, after = (torch.load(tmp_path / r["run"] / "best.pt")["model"] for r in found)
    body = [name for name in after if not name.startswith("head.")]
    assert len(body) > 10 and all(torch.equal(before[name], after[name]) for name in body)

    def exps(*flags):  # of the records that a command adds
        before = len(records.read_records([tmp_path / "results.jsonl"]))
        return [r["exp"] for r in script(*argv, *flags)[before:]]

    assert exps("--lr", "5e-3", "--pooling", "mean", "max") == ["spt", "spt"]
    assert exps("--lr", "5e-3", "--pooling", "mean", "max") == []  # done
    assert exps("--lr-pretrain", "2e-3") == ["spt-pretrain", "spt"]
    for record in found:  # as exp_kernels and exp_listops do
        records.rebuilt(tmp_path / record["run"] / "best.pt", models.SequenceModel)
    (tmp_path / found[0]["run"] / "best.pt").unlink()
    assert exps("--lr", "4e-3") == ["spt-pretrain", "spt"]
    assert exps("--lr", "4e-3", "5e-3"[:0] or "--fresh") == ["spt-pretrain", "spt"]


def test_a_pretraining_at_work_elsewhere_ends_the_command_with_75(script, monkeypatch):
    def busy(args, *, identity, **k):
        raise records.Busy(f"{identity['exp']} is being trained")

    monkeypatch.setattr(records, "train", busy)
    with pytest.raises(SystemExit) as stop:
        script("--objective", "masked", "--epochs", "1", "--epochs-pretrain", "1")
    assert stop.value.code == common.EXIT_CONTINUE


def test_the_multitask_arm_restores_what_was_corrupted(script, tmp_path):
    (record,) = script("--objective", "multitask", "--epochs", "1")
    (line,) = (tmp_path / record["run"] / "log.jsonl").read_text().splitlines()
    assert json.loads(line)["train"]["denoise_acc"] > 0


@pytest.mark.parametrize(  # chance: 0.1 and 0.5
    "name, least", [pytest.param("image", 0.4, marks=pytest.mark.slow), ("text", 0.8)]
)
def test_the_default_smoke_model_learns_the_stand_in(name, least, tmp_path):
    exp_spt.main(["--task", name, "--smoke", "--out", str(tmp_path)])
    first, line = records.read_records([tmp_path / "results.jsonl"])
    assert (first["exp"], line["exp"], line["cell"]["objective"]) == ("spt-pretrain", "spt", "masked")
    assert line["test_acc"] > least


# ------------------------------------------------------------------------------------------ report, flags


def test_report_without_records(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(records, "read_records", lambda paths: [])
    exp_spt.main(["--report", "--out", str(tmp_path)])
    out = capsys.readouterr().out
    for number in (
        "— / 53.66",
        "— / 81.81",
        "— / 86.21",
        "— / 87.11",
        "— / ✗",
        "— / 83.40",
        "— / 90.30",
        "not yet",
    ):
        assert number in out
    assert {f.name for f in tmp_path.iterdir()} == {"spt_figure1.png", "spt_figure2.png"}


def line(name, cell, acc, seed=0, budget="paper", **changes):
    """A record as run_cell would leave it."""
    first, hp = exp_spt.recipe(name, cell, mini=budget == "mini")
    hp = exp_spt.with_pretraining(first, hp | changes)
    record = dict(exp="spt", task=name, model=cell.model, cell=cell.label(), seed=seed, hp=hp, limit=None)
    record |= dict(test_acc=acc, val_acc=acc, train_acc=acc, budget=budget, date="2026-01-01", smoke=False)
    record |= dict(run=f"{name}{cell}{seed}{hp}", data={"hash": "a"}, epochs=hp["epochs"], seconds=60.0)
    record |= {"train_curve": [0.1, 0.2, 0.3, 0.4, acc]}
    return record | ({"pretraining": {"run": "r", "train_curve": [0.1, 0.5]}} if first else {})


def reported(tmp_path, capsys, lines):
    file = tmp_path / "records.jsonl"
    file.write_text("".join(json.dumps(r) + "\n" for r in lines))
    exp_spt.main(["--report", str(file), "--out", str(tmp_path)])
    return capsys.readouterr().out


def test_report_with_records(tmp_path, capsys):
    lines = [line(name, Cell("transformer", "causal"), 0.5) for name in exp_spt.MEAN6]
    lines += [line("image", Cell("transformer", "causal"), 0.6, seed=1)]
    lines += [line("image", Cell("s4", o, fraction=0.1), acc) for o, acc in (("none", 0.4), ("masked", 0.5))]
    lines += [line("image", Cell("transformer", "masked", share=0.4, image_loss="ce"), 0.7)]
    lines += [line("image", Cell("transformer", "none", share=0.0), 0.3)]
    lines += [
        line("pathx256", Cell("s4", o), acc, seed)
        for o, acc in (("none", 0.6), ("masked", 0.8))
        for seed in (0, 1)
    ]
    lines += [line("text", Cell("rotary", "masked", init="random"), 0.77)]  # has no place in a table
    lines += [line("text", Cell("s4", "masked"), 0.81, budget="reduced", epochs=4)]
    lines += [
        line("text", Cell("s4", "masked", pooling="max"), 0.66),
        line("text", Cell("s4", "none", size="20M"), 0.64),
    ]
    for share, objective, train in ((0.0, "none", 0.52), (0.5, "masked", 0.78)):
        cell = Cell("transformer", objective, share=share)
        lines += [line("pathx", cell, 0.5, seed) | {"train_acc": train} for seed in (0, 1)]
    out = reported(tmp_path, capsys, lines)
    for text in (
        "55.00 ± 7.07 (n=2) / 76.00", "50.83 / 81.81", "70.00 (n=1) / —", "30.00 (n=1) / —",
        "64.00 (n=1) / —", "66.00 (n=1) / —", "Path-X-256: SPT gains S4 (19.3)              | +20.0 ±",
        "Path-X, equal time, training (78 - 52)       | +26.0 ±",
    ):  # fmt: skip
        assert text in out, text
    assert "40.00 (n=1) / —" in out.split("Figure 3")[1].split("###")[0] and "supports" in out
    assert (tmp_path / "spt_figure3.png").exists() and (tmp_path / "spt_figure5.png").exists()
    beyond = out.split("### Cells beyond")[1]
    assert "rotary masked random" in beyond and "77.00 (n=1)" in beyond and "36 epochs" in beyond
    assert "81.00 (n=1)" in beyond and beyond.count("(n=") == 4


def test_the_report_counts_a_training_once_and_tells_recipes_apart(tmp_path, capsys):
    """From scratch a share of 0 is the same training as no share; another batch size is not."""
    lines = []
    for i, (share, batch) in enumerate(((None, 32), (0.0, 32), (None, 16))):
        cell = Cell("transformer", "none", share=share)
        lines += [line("text", cell, 0.5 + i / 10, budget="reduced", epochs=4, batch_size=batch)]
    other = {"run": "x", "cell": lines[0]["cell"] | {"size": "30M"}}  # of a changed script
    rows = reported(tmp_path, capsys, [*lines, lines[0] | other]).split("### Cells beyond")[1]
    assert "60.00 (n=1)" in rows and "4 epochs, batch_size 16" in rows and "70.00 (n=1)" in rows
    assert "n=2" not in rows and rows.count("(n=") == 2 and "0% SPT" not in rows


def test_the_mini_tier_judges_its_claims(tmp_path, capsys):
    wanted = {(task, words) for _, terms, *_ in exp_spt.CLAIMS for _, task, words in terms}
    commands = (
        ("--task", "text", "image", "--model", "transformer", "s4"),
        ("--task", "image", "--model", "s4", "dlr", "--init", "all"),
        ("--task", "image", "--model", "s4", "--fraction", "0.01", "1"),
        ("--task", "text", "--objective", "masked", "multitask"),
    )
    lines = {}
    for command in commands:
        for name, cells in cells_of(*command, "--mini").items():
            for cell in cells:
                good = (
                    0.8
                    if cell.objective == "masked" or (cell.model, cell.init) == ("s4", "structured")
                    else 0.6
                )
                for seed in (0, 1):
                    lines[name, cell, seed] = line(name, cell, good, seed, "mini")
    assert wanted - {(name, exp_spt.label(cell)) for name, cell, _ in lines} == {
        ("text", "transformer multitask; 5 of 10 epochs")  # its own command has --epochs 5
    }
    multitask = Cell("transformer", "multitask")
    lines |= {seed: line("text", multitask, 0.8, seed, "mini", epochs=5) for seed in (0, 1)}
    out = reported(tmp_path, capsys, lines.values())
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in out.splitlines() if row[:1] == "|"]
    verdicts = {row[0]: row[1:] for row in rows if row[0][:2] in ("B1", "B2", "B3", "A1")}
    assert len(verdicts) == len(exp_spt.CLAIMS)
    assert verdicts["B1 Text: SPT closes the gap by"][0].startswith("+20.0")
    assert verdicts["B1 Text: SPT closes the gap by"][2] == "supports"
    assert verdicts["A1: multitask - SPT, equal steps"][2] == "CONTRADICTS"
    assert (tmp_path / "spt-mini.png").exists()


def test_a_mini_cell_has_at_least_five_thousand_steps():
    for name, n in (("listops", 48_000), ("text", 22_500), ("image", 45_000)):
        hp = exp_spt.recipe(name, Cell("s4", "none"), mini=True)[1]
        assert hp["epochs"] * n / hp["batch_size"] > 5_000


def cells_of(*argv):
    """{task: cells} of a command, which trains nothing."""
    found = {}

    def catch(args, cells, *rest):
        for name, cell in cells:
            found.setdefault(name, []).append(cell)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "run_cells", catch)
        patch.setattr(exp_spt, "report", lambda args: None)
        patch.setattr(data, "require", lambda names, args: names)  # as if Retrieval had been fetched
        exp_spt.main(list(argv))
    return found


def test_flags_choose_cells():
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
    assert len(cells_of("--task", "image", "--figure", "table9")["image"]) == 2 * 2 * len(exp_spt.SIZES["s4"])
    assert {c.pooling for c in cells_of("--task", "text", "--figure", "pooling")["text"]} == {
        "mean",
        "max",
        "last",
    }
    assert [c.share for c in cells_of("--task", "all", "--figure", "time")["pathx"]] == [0.0, 0.5]
    mini = cells_of("--task", "all", "--mini", "--share", "0.5", "--fraction", "1")
    assert set(mini) == {"listops", "text", "retrieval", "image"}
    assert mini["text"] == [Cell("transformer", "none"), Cell("transformer", "masked")]  # the defaults


@pytest.mark.parametrize("argv, words", [
    ("--task scifar", "--model rotary s4"),
    ("--task pathx256", "--model s4"),
    ("--task pathx --mini", "with --mini"),
    ("--task image --size 1M", "--size goes with"),
    ("--task text --figure 2 --model gmlp --share 1.0", "below 1"),
    ("--task text --fraction 0", "above 0"),
    ("--task text --share 0.5 --epochs-pretrain 3", "--epochs-pretrain"),
    ("--task text --mini --epochs-pretrain 3", "--epochs-pretrain"),
    ("--task text --share 0.5 --epochs 1", "at least 2"),
    ("--task text --steps 1", "at least 2"),
    ("--task image --figure 5 --epochs 1 --smoke", "at least 2"),
    ("--task scifar --model s4 --augment flip", "--augment flip"),
    ("--task image --set-last-tenth", "--set-last-tenth"),
    ("--task image --figure 6", "--figure"),
])  # fmt: skip
def test_a_mistake_on_the_command_line_exits_with_2(argv, words, capsys):
    with pytest.raises(SystemExit) as stop:
        exp_spt.main(argv.split())
    assert stop.value.code == 2
    printed = capsys.readouterr()
    assert printed.err.count("error: ") == 1 and words in printed.err
