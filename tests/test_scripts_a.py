"""exp_multitask, exp_kernels, exp_positional, exp_listops: their tables against numbers typed again from the
paper, every cell for two steps, reports, rules and figures. pytest tests/test_scripts_a.py"""

import argparse
import inspect
import json
import statistics

import numpy as np
import pytest
import torch

import common
import data
import exp_kernels
import exp_listops
import exp_locality
import exp_multitask
import exp_positional
import models

torch.set_num_threads(1)
TRAINED_WITH = {"lr", "batch_size", "weight_decay", "epochs", "clip"}  # rows that common.fit reads

# ------------------------------------------------------------------------------------------ the tables

# (script's recipe, model, task): rows typed from the paper's tables and the cited configurations.
SPOTS = {
    ("multitask", "transformer", "listops"): dict(
        d_model=256,
        depth=6,
        heads=4,
        d_ff=512,
        dropout=0.0,
        disable_half=False,
        base=10000.0,
        lr=0.0001,
        batch_size=64,
        weight_decay=0.05,
        epochs=120,
        activation="relu",
        norm="layer",
        prenorm=True,
        pooling="mean",
        position="rotary",
        max_length=2000,
    ),
    ("multitask", "transformer", "image"): dict(
        d_model=160,
        depth=10,
        d_ff=320,
        disable_half=True,
        lr=0.001,
        batch_size=48,
        weight_decay=0.05,
        epochs=200,
    ),
    ("multitask", "transformer", "pathfinder"): dict(
        d_model=128,
        depth=6,
        d_ff=256,
        disable_half=False,
        lr=0.001,
        batch_size=128,
        weight_decay=0.05,
        epochs=67,
    ),
    ("multitask", "transformer", "text"): dict(
        d_model=256,
        depth=8,
        d_ff=512,
        disable_half=True,
        lr=0.001,
        batch_size=16,
        weight_decay=0.01,
        epochs=80,
    ),
    ("multitask", "transformer", "retrieval"): dict(
        d_model=128,
        depth=6,
        d_ff=256,
        disable_half=True,
        lr=0.001,
        batch_size=64,
        weight_decay=0.01,
        epochs=60,
    ),
    ("multitask", "mega", "listops"): dict(
        depth=6,
        d_model=80,
        d_hidden=160,
        d_attention=64,
        norm="layer",
        prenorm=False,
        lr=1e-3,
        batch_size=64,
        weight_decay=0.01,
        dropout=0.1,
        attention="softmax",
        epochs=120,
        truncation=1024,
        ema_dim=16,
    ),
    ("multitask", "mega", "text"): dict(
        depth=4, d_model=128, d_hidden=256, norm="scale", lr=4e-3, batch_size=50
    ),
    ("multitask", "mega", "retrieval"): dict(lr=3e-3, weight_decay=0.04, depth=6, epochs=60),
    ("multitask", "mega", "image"): dict(
        depth=8,
        d_model=160,
        d_hidden=320,
        d_attention=96,
        norm="batch",
        prenorm=True,
        lr=1e-2,
        weight_decay=0.02,
        dropout=0.0,
        batch_size=50,
        attention="softmax",
        epochs=200,
    ),
    ("multitask", "mega", "pathfinder"): dict(
        lr=1e-2, batch_size=128, weight_decay=0.01, norm="batch", epochs=67
    ),
    ("kernels", "gmlp", "image"): dict(
        depth=10,
        d_model=128,
        d_hidden=256,
        channels=2,
        max_length=1024,
        dropout=0.0,
        norm="layer",
        pooling="mean",
        lr=0.001,
        batch_size=48,
        weight_decay=0.1,
        epochs=200,
    ),
    ("kernels", "gmlp", "pathfinder"): dict(depth=6, batch_size=128, weight_decay=0.1, epochs=67, lr=0.001),
    ("kernels", "gmlp", "text"): dict(
        dropout=0.1, max_length=4096, batch_size=16, weight_decay=0.2, epochs=80
    ),
    ("kernels", "gmlp", "retrieval"): dict(lr=0.0003, batch_size=64, max_length=4096, epochs=60, dropout=0.0),
    ("kernels", "gmlp", "listops"): dict(channels=4, max_length=2000, batch_size=32, epochs=120, lr=0.001),
    ("kernels", "s4", "listops"): dict(
        depth=8, d_model=128, d_state=64, norm="batch", prenorm=False, lr=0.01, batch_size=50, epochs=120
    ),
    ("kernels", "s4", "image"): dict(
        depth=6,
        d_model=512,
        n_ssm=2,
        norm="layer",
        dropout=0.1,
        tie_dropout=True,
        weight_decay=0.05,
        epochs=200,
    ),
    ("kernels", "s4", "pathfinder"): dict(
        d_model=256,
        prenorm=True,
        lr=0.004,
        weight_decay=0.03,
        batch_size=64,
        dt_lr=1e-3,
        c_lr=1e-3,
        epochs=67,
    ),
    ("kernels", "s4", "text"): dict(d_model=256, prenorm=True, batch_size=16, dt_lr=None, ssm_lr=1e-3),
    ("kernels", "s4d", "retrieval"): dict(d_model=256, batch_size=64, d_state=64, epochs=60),
    ("kernels", "s5", "listops"): dict(
        depth=8,
        d_model=128,
        d_state=16,
        blocks=8,
        activation="half_glu2",
        lr=0.003,
        fast_B=True,
        batch_size=50,
    ),
    ("kernels", "s5", "retrieval"): dict(
        depth=6,
        d_model=128,
        d_state=256,
        blocks=16,
        activation="full_glu",
        c_init="trunc",
        lr=0.002,
        batch_size=32,
    ),
    ("kernels", "s5", "image"): dict(
        d_model=512, d_state=384, blocks=3, clip_eigs=True, lr=0.0045, weight_decay=0.07, dropout=0.1
    ),
    ("kernels", "s5", "pathfinder"): dict(
        d_model=192,
        d_state=256,
        blocks=8,
        activation="full_glu",
        ssm_lr=0.0009,
        norm_momentum=0.1,
        dropout=0.05,
    ),
    ("kernels", "s5", "text"): dict(d_state=192, blocks=12, dt_global=True, fast_B=False, lr=0.004),
    ("kernels", "lru", "text"): dict(d_model=256, d_state=192, r_min=0.5, r_max=0.9, lr=0.004, ssm_lr=0.0004),
    ("kernels", "lru", "image"): dict(d_model=512, d_state=384, r_min=0.9, r_max=0.999, ssm_lr=0.00125),
    ("kernels", "dlr", "image"): dict(
        d_model=512, d_state=1024, prenorm=True, norm="layer", ssm_lr=1e-4, lr=0.01
    ),
    ("kernels", "sgconv", "text"): dict(kernel_dim=2, d_model=256, batch_size=16, kernel_lr=1e-3, lr=0.01),
    ("kernels", "sgconv", "image"): dict(kernel_dim=32, position_decay=1.0, dropout=0.2, norm="layer"),
}
RECIPES = {"multitask": exp_multitask.recipe, "kernels": exp_kernels.recipe}


@pytest.mark.parametrize("where", SPOTS, ids="-".join)
def test_hyper_parameters_are_the_papers(where):
    script, model, task = where
    hp = RECIPES[script](model, task)
    assert {row: hp[row] for row in SPOTS[where]} == SPOTS[where]


def all_tables():
    yield from ((model, *table) for model, table in exp_multitask.TABLES.items())
    yield from ((model, *table) for model, table in exp_kernels.TABLES.items())


def test_every_row_of_a_table_is_a_parameter_of_the_model_or_of_the_loop():
    for model, table, tasks in all_tables():
        classes = [models.SequenceModel, *models.BLOCKS[model].__mro__, models.Attention]
        known = {name for c in classes for name in inspect.signature(c.__init__).parameters}
        for row, values in table.items():
            assert row in known | TRAINED_WITH, f"{model}: {row}"
            assert len(values) == len(tasks) == 5, f"{model}: {row}"


def test_mega_is_the_same_in_both_scripts():
    for name in exp_multitask.COLUMNS:
        hp = exp_multitask.recipe("mega", name)
        assert exp_kernels.recipe("mega", name) | {"position": "none"} == hp


def test_without_techniques_everything_else_stays():
    hp = exp_multitask.recipe("transformer", "pathfinder", "no")
    assert (hp["technique"], hp["augment"], hp["epochs"]) == ("none", "none", 200)
    hp, full = (exp_kernels.recipe("gmlp", "text", yes) for yes in ("no", "yes"))
    assert {row for row in full if hp[row] != full[row]} == {"technique", "augment"}


PRINTED = {  # typed again, column by column
    "image": "42.44 86.04 88.15 90.44 87.60 88.65 88.00 89.59 85.53 89.89 67.87 85.52 58.84 88.15",
    "pathfinder": "71.40 94.16 96.28 96.01 94.78 94.20 95.33 93.61 95.60 97.26 90.48 92.81 67.09 96.28",
    "text": "64.27 91.02 90.33 90.43 90.92 86.82 89.31 91.01 90.21 89.94 64.49 88.47 69.73 90.33",
    "retrieval": "57.46 91.57 90.80 91.25 91.32 90.90 91.28 90.73 88.96 90.37 83.31 87.06 85.34 90.80",
    "listops": "36.37 61.49 62.90 63.14 61.15 59.60 62.15 56.00 62.75 62.45 41.30 47.55 43.90 62.90",
    "average": "54.39 84.86 85.69 86.25 85.15 84.03 85.21 84.19 84.61 85.98 69.49 80.28 64.98 85.69",
}
PRINTED = {name: tuple(map(float, text.split())) for name, text in PRINTED.items()}


def test_printed_numbers_are_the_papers_and_their_averages_hold():
    for i, name in enumerate((*exp_multitask.COLUMNS, "average")):
        ours = [row[i] for row in (*exp_multitask.TABLE2.values(), *exp_kernels.TABLE3.values())]
        assert (*ours, *exp_positional.TABLE4[name]) == PRINTED[name]
    for column in zip(*(PRINTED[name] for name in exp_multitask.COLUMNS), PRINTED["average"]):
        assert statistics.mean(column[:5]) == pytest.approx(column[5], abs=0.006)


# ------------------------------------------------------------------------------------------ every cell


@pytest.fixture(scope="module")
def tasks():
    """The stand-ins with a few short training examples each: {(task, denoise): Task}."""
    found = {}
    for name in exp_multitask.COLUMNS:
        task = data.load(name, "nowhere", augment="none", smoke=True)
        short = task.lengths["train"].argsort()[:4]
        found[name] = data.replace(task, train=data.select(task.train, short, task.docs))
    return found


CELLS = [("transformer", position) for position in exp_positional.POSITIONS]
CELLS += [(model, None) for model in exp_kernels.TABLES]


@pytest.mark.parametrize("name", exp_multitask.COLUMNS)
@pytest.mark.parametrize("model, position", CELLS)
def test_every_cell_takes_two_steps_and_reaches_all_its_parameters(tasks, name, model, position):
    task = tasks[name]
    if position:
        hp = exp_positional.variant_recipe(name, position)
        hp |= exp_multitask.smoke_rows(hp, name)
        build = exp_multitask.build
    else:
        hp = exp_kernels.recipe(model, name)
        hp |= exp_kernels.smoke_rows(hp, name)
        build = exp_kernels.build
    narrow = dict(d_model=16, d_hidden=16, d_ff=16, d_state=8, d_attention=8, depth=1)
    hp |= {row: value for row, value in narrow.items() if row in hp}
    torch.manual_seed(0)
    network = build(task, hp).train()
    optimizer = common.make_optimizer(network, hp)
    noise = torch.Generator().manual_seed(0)
    losses = []
    for _ in range(2):
        batch = task.gather("train", torch.arange(2))
        if hp["technique"] == "denoising":
            batch = data.corrupt(batch, noise, task.vocab)
        optimizer.zero_grad()
        loss, _ = common.multitask_loss(network, batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert all(map(np.isfinite, losses))
    assert [n for n, p in network.named_parameters() if p.grad is None or not p.grad.isfinite().all()] == []


def test_the_image_stand_in_spreads_its_evidence():
    task = data.load("image", "nowhere", augment="none", smoke=True)
    pixels = {s: getattr(task, s).tokens.view(-1, 1024) for s in ("train", "test")}
    counts = {s: torch.stack([x.histc(16, 0, 256) for x in p.float()]) for s, p in pixels.items()}
    label = task.train.label
    classes = torch.stack([counts["train"][label == c].mean(0) for c in range(10)])
    guess = torch.cdist(counts["test"], classes).argmin(1)
    assert (guess == task.test.label).float().mean() > 0.8  # grey values counted over the whole image tell
    classes = classes / classes.sum(1, keepdim=True)
    assert classes.amax(0).sum() / 10 < 0.25  # the best guess from one pixel is right so often
    for position in (0, 31, 500, 1023):  # nor does its place tell, the phases being random
        here = pixels["train"][:, position].float()
        means = torch.stack([here[label == c].mean() for c in range(10)])
        guess = (pixels["test"][:, position, None] - means).abs().argmin(1)
        assert (guess == task.test.label).float().mean() < 0.4


@pytest.mark.parametrize("script", (exp_kernels, pytest.param(exp_multitask, marks=pytest.mark.slow)))
def test_the_default_smoke_model_learns_the_image_stand_in(script, tmp_path):
    script.main(["--task", "image", "--smoke", "--out", str(tmp_path)])
    [line] = common.read_records([tmp_path / "results.jsonl"])
    assert line["test_acc"] > 0.5  # chance: 0.1


def test_cells_run_are_recorded_and_drawn(tmp_path, capsys):
    tiny = ["--smoke", "--limit", "32", "--epochs", "1", "--out", str(tmp_path)]
    exp_kernels.main(["--task", "text", *tiny])
    exp_kernels.main(["--task", "text", *tiny])  # done: not trained again
    assert "is done" in capsys.readouterr().out
    [line] = common.read_records([tmp_path / "results.jsonl"])
    assert (line["exp"], line["model"], line["cell"]) == ("kernels", "gmlp", {"techniques": "yes"})
    assert line["budget"] == "reduced" and line["hp"]["technique"] == "denoising"
    best = tmp_path / line["run"] / "best.pt"
    exp_kernels.main(["--figure", "kernels", "--checkpoint", str(best), "--out", str(tmp_path)])
    figure = ["--figure", "kernels", "--task", "text", "--model", "gmlp", "--smoke", "--out", str(tmp_path)]
    exp_kernels.main(figure)
    out = capsys.readouterr().out
    assert "trained, layer 2" in out and f"Text, gMLP: {line['run']}\n" in out
    exp_kernels.main([*figure, "--no-techniques"])  # the run had them
    out = capsys.readouterr().out
    assert "gMLP: no finished run, its start" in out and "trained, layer 2" not in out
    for name in (line["run"], "text"):
        assert (tmp_path / f"kernels-{name}.png").read_bytes()[:4] == b"\x89PNG"


def test_no_techniques_means_clean_examples_and_one_loss(tmp_path):
    tiny = ["--smoke", "--limit", "16", "--epochs", "1", "--out", str(tmp_path)]
    exp_positional.main(["--task", "text", "--position", "none", "--no-techniques", *tiny])
    [line] = common.read_records([tmp_path / "results.jsonl"])
    assert line["cell"] == {"position": "none", "techniques": "no"}
    assert (line["hp"]["technique"], line["hp"]["augment"], line["hp"]["position"]) == (
        "none",
        "none",
        "none",
    )
    [curve] = [json.loads(text) for text in (tmp_path / line["run"] / "log.jsonl").read_text().splitlines()]
    assert "masked_acc" not in curve["train"]
    state = common.load_checkpoint(tmp_path / line["run"] / "best.pt", "cpu")
    models.SequenceModel(**state["arguments"]).load_state_dict(state["model"])


def test_a_checkpoint_of_any_script_can_be_looked_into(tmp_path, capsys):
    tiny = ["--smoke", "--limit", "16", "--epochs", "1", "--out", str(tmp_path)]
    exp_locality.main(["--task", "listops", "--kernel", "5", *tiny])
    [line] = common.read_records([tmp_path / "results.jsonl"])
    best = tmp_path / line["run"] / "best.pt"
    pretrained = line | {"exp": "spt-pretrain", "run": "pretrained", "val_acc": 1.0}  # no classifier
    common.append_record(tmp_path / "results.jsonl", pretrained)
    (tmp_path / "pretrained").mkdir()
    (tmp_path / "pretrained" / "best.pt").write_bytes(b"")
    args = argparse.Namespace(checkpoint=None, out=tmp_path, smoke=True)
    name, model = exp_listops.trained_model(args)
    assert name == "conv" and len(model.blocks) == 2
    full = {"budget": "paper", "val_acc": 0.01}  # goes before a reduced run, and a Transformer before others
    for run, other in (("full", full), ("transformer", full | {"model": "transformer"})):
        (tmp_path / run).mkdir()
        model = models.SequenceModel("transformer", 1, 8, 17, 10, heads=1, d_ff=len(run))
        state = {"model": model.state_dict(), "arguments": model.arguments}
        common.save_checkpoint(tmp_path / run / "best.pt", state)
        common.append_record(tmp_path / "results.jsonl", line | other | {"run": run})
        assert exp_listops.trained_model(args)[1].arguments["d_ff"] == len(run)
    exp_listops.main(["--figure", "3", "--checkpoint", str(best), *tiny])
    assert (tmp_path / "listops-figure3.png").read_bytes()[:4] == b"\x89PNG"

    state, other = common.load_checkpoint(best, "cpu"), tmp_path / "other.pt"
    image = models.SequenceModel(**state["arguments"] | {"vocab": 259})
    for changed, why in (
        ({"model": image.state_dict(), "arguments": image.arguments}, "it is of another task"),
        ({"arguments": None}, "it does not say how its model was built"),
        ({"hp": {"objective": "masked"}}, "it is pretrained only"),
        ({"model": {}}, "Error(s) in loading"),
        ({"arguments": {"block": "conv"}}, "'classes'"),
    ):
        torch.save(state | changed, other)
        with pytest.raises(SystemExit):
            exp_listops.main(["--figure", "3", "--checkpoint", str(other), *tiny])
        assert f"is not a ListOps model of these scripts ({why}" in capsys.readouterr().err


def test_kernels_are_drawn_of_a_model_that_knows_no_longest_sequence(tmp_path, capsys):
    model = models.SequenceModel("dlr", 1, 4, 17, 10, d_state=4)
    state = {"model": model.state_dict(), "epoch": 1, "arguments": model.arguments}
    (tmp_path / "run").mkdir()
    torch.save(state, tmp_path / "run" / "best.pt")
    words = ["--figure", "kernels", "--checkpoint", str(tmp_path / "run" / "best.pt")]
    exp_kernels.main([*words, "--out", str(tmp_path)])
    assert (tmp_path / "kernels-run.png").read_bytes()[:4] == b"\x89PNG"
    torch.save(state | {"arguments": {"block": "dlr"}}, tmp_path / "run" / "best.pt")
    with pytest.raises(SystemExit):
        exp_kernels.main([*words, "--out", str(tmp_path)])
    assert "is not a model of these scripts" in capsys.readouterr().err


@pytest.mark.parametrize("script", (exp_kernels, exp_listops))
def test_a_file_of_something_else_is_no_checkpoint(script, tmp_path, capsys):
    torch.save(torch.zeros(3), tmp_path / "best.pt")
    figure = "kernels" if script is exp_kernels else "3"
    words = ["--figure", figure, "--checkpoint", str(tmp_path / "best.pt"), "--smoke", "--out", str(tmp_path)]
    with pytest.raises(SystemExit) as stop:
        script.main(words)
    assert stop.value.code == 2 and "holds a Tensor and no dict; give another" in capsys.readouterr().err


def test_kernels_are_those_of_a_full_run_where_there_is_one(tmp_path):
    hp, state = exp_kernels.recipe("gmlp", "text"), {"arguments": {"block": "gmlp"}}
    for run, validated, budget in (
        ("quick", 0.9, "reduced"),
        ("full", 0.8, "paper"),
        ("worse", 0.7, "paper"),
    ):
        line = fake("kernels", "text", "gmlp", {}, validated, hp, budget=budget) | {"run": run}
        common.append_record(tmp_path / "results.jsonl", line)
        (tmp_path / run).mkdir()
        common.save_checkpoint(tmp_path / run / "best.pt", state)
    args = argparse.Namespace(out=tmp_path, smoke=False, no_techniques=False)
    with pytest.raises(common.UserError, match="full/best.pt"):  # it looks there; nothing is in it
        exp_kernels.best_run(args, "gmlp", "text")


def test_kernels_that_started_at_random_are_not_compared_with_the_structured_start(tmp_path, monkeypatch):
    """Nobody asked for them; where they are asked for, the figure says so."""
    block = models.SequenceModel("s4", 1, 4, 17, 10, d_state=4, max_length=16)
    state = {"model": block.state_dict(), "epoch": 1, "arguments": block.arguments, "hp": {}}
    titles = []
    for init in ("random", "structured"):
        cell = {"objective": "masked", "init": init}
        line = fake("spt", "image", "s4", cell, 0.9 if init == "random" else 0.5, {}) | {"run": init}
        common.append_record(tmp_path / "results.jsonl", line)
        (tmp_path / init).mkdir()
        (tmp_path / init / "identity.json").write_text(json.dumps({"cell": cell}))
        common.save_checkpoint(tmp_path / init / "best.pt", state)
    args = argparse.Namespace(out=tmp_path, smoke=False, no_techniques=False)
    assert exp_kernels.best_run(args, "s4", "image")[0]["run"] == "structured"
    monkeypatch.setattr(exp_kernels, "plot", lambda drawn, *rest: titles.append(drawn[0][0]))
    for init in ("random", "structured"):
        words = ["--figure", "kernels", "--checkpoint", str(tmp_path / init / "best.pt")]
        exp_kernels.main([*words, "--out", str(tmp_path)])
    assert titles == ["S4 (epoch 1, itself started at random)", "S4 (epoch 1)"]


@pytest.mark.parametrize("side", [128, 256])
def test_the_kernels_of_path_x_are_marked_at_the_rows_of_its_images(side, tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(common, "save_figure", lambda figure, path: figures.append(figure))
    distances = np.array([0, 1, side * side - 1])
    exp_kernels.plot([("S4", [(distances, np.ones(3), None)], [])], "x", tmp_path / "x.png")
    assert list(figures[0].axes[0].get_xticks()) == [side * row for row in range(9)]


@pytest.mark.parametrize(
    "script, words",
    [
        (exp_positional, ["--task", "text", "--position", "learned", "--flip-half", "--smoke"]),
        (exp_kernels, ["--figure", "kernels", "--checkpoint", "nowhere/best.pt"]),
        (exp_kernels, ["--task", "text", "--smoke", "--checkpoint", "nowhere/best.pt"]),
        (exp_kernels, ["--figure", "kernels", "--lr", "0.1"]),
        (exp_kernels, ["--figure", "kernels", "--limit", "10"]),
        (exp_kernels, ["--task", "image", "text", "--smoke", "--augment", "none"]),
        (exp_listops, ["--figure", "3", "--smoke", "--checkpoint", "nowhere/best.pt"]),
        (exp_listops, ["--smoke", "--checkpoint", "nowhere/best.pt"]),
        (exp_listops, ["--figure", "1", "--smoke", "--checkpoint", "nowhere/best.pt"]),
        (exp_multitask, ["--task", "listops", "--smoke", "--max-length", "100"]),
        (exp_multitask, ["--task", "all", "--smoke", "--augment", "flip"]),
        (exp_multitask, ["--task", "text", "listops", "--smoke", "--max-length", "64"]),
        (exp_listops, ["--epochs", "3"]),
    ],
)
def test_a_flag_that_cannot_be_meant_ends_in_one_sentence(script, words, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        script.main([*words, "--out", str(tmp_path)])
    assert stop.value.code == 2
    assert capsys.readouterr().err.startswith("error: ")
    assert not (tmp_path / "results.jsonl").exists()  # said before anything is trained


def test_flipping_the_half_changes_that_row_alone():
    for name in exp_multitask.COLUMNS:
        plain, flipped = (exp_positional.variant_recipe(name, "rotary", half=h) for h in ("paper", "flipped"))
        assert {row for row in plain if plain[row] != flipped[row]} == {"disable_half"}


@pytest.mark.parametrize("factor, budget", [(0.1, "paper"), (10, "reduced")])
def test_only_a_lowered_rate_of_mega_is_still_the_papers_budget(factor, budget, monkeypatch):
    seen = []
    monkeypatch.setattr(data, "require", lambda *args: None)
    monkeypatch.setattr(data, "load_recipe", lambda *args: None)

    def run_cell(args, hp, paper, **rest):
        seen.append(common.budget(args, hp, paper))

    monkeypatch.setattr(common, "run_cell", run_cell)
    for script in (exp_multitask, exp_kernels):
        lr = str(script.recipe("mega", "text")["lr"] * factor)
        script.main(["--task", "text", "--model", "mega", "--lr", lr])
    assert seen == [budget] * 2


# ------------------------------------------------------------------------------------------ reports


@pytest.mark.parametrize("script", (exp_multitask, exp_kernels, exp_positional, exp_listops))
def test_a_report_without_records_prints_the_papers_numbers(script, tmp_path, capsys):
    (tmp_path / "empty.jsonl").touch()
    script.main(["--report", str(tmp_path / "empty.jsonl"), "--out", str(tmp_path)])
    out = capsys.readouterr().out
    table = {
        exp_multitask: exp_multitask.TABLE2,
        exp_kernels: exp_kernels.TABLE3,
        exp_positional: exp_positional.TABLE4,
    }.get(script, {"rules": (62.90,)})
    for values in table.values():
        assert all(f" {value:.2f} " in out for value in values)
    assert "—" in out and "n=" not in out and "reduced" not in out


def fake(exp, task, model, cell, accuracy, hp, seed=0, budget="paper", limit=None):
    run = f"{exp}-{task}-{model}-{sorted(cell.items())}-{seed}-{budget}-{limit}-{hp.get('lr')}"
    line = dict(
        exp=exp, task=task, model=model, cell=cell, seed=seed, budget=budget, limit=limit, hp=hp, run=run
    )
    line |= dict(test_acc=accuracy, val_acc=accuracy, date=f"2026-01-0{seed + 1}", smoke=False)
    return line | {"data": {"hash": "a"}}


def reported(script, records, tmp_path, capsys):
    path = tmp_path / "records.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in records))
    script.main(["--report", str(path), "--out", str(tmp_path)])
    out = capsys.readouterr().out
    return out, {
        cells[0]: cells[1:]
        for cells in ([c.strip() for c in line.strip("|").split("|")] for line in out.splitlines())
    }


def test_a_report_compares_and_averages_only_whole_rows(tmp_path, capsys):
    names = exp_kernels.TASKS6
    cell = {"techniques": "yes"}
    records = [fake("kernels", n, "gmlp", cell, 0.9, exp_kernels.recipe("gmlp", n)) for n in names]
    records += [fake("kernels", "text", "gmlp", cell, 0.92, exp_kernels.recipe("gmlp", "text"), seed=1)]
    records += [fake("kernels", n, "s4", cell, 0.8, exp_kernels.recipe("s4", n)) for n in names[:4]]
    slower = exp_kernels.recipe("s4", "text") | {"lr": 1e-3}  # another rate is another cell, not a seed
    records += [fake("kernels", "text", "s4", cell, 0.85, slower)]
    out, rows = reported(exp_kernels, records, tmp_path, capsys)
    assert rows["gMLP †, ours"] == ["90.00 (n=1)", "90.00 (n=1)", "91.00 ± 1.41 (n=2)"] + 2 * [
        "90.00 (n=1)"
    ] + ["90.20"]
    assert "+4.22" in out  # 90.20 against 85.98
    assert rows["S4 †, ours"] == ["80.00 (n=1)", "80.00 (n=1)", "85.00 (n=1)", "80.00 (n=1)", "—", "—"]
    assert "reduced" not in out


def test_a_rule_on_other_digits_is_no_second_draw(tmp_path, capsys):
    lines = [fake("listops", "listops", "rule", {"rule": "root"}, 0.3 + i / 10, {}) for i in range(2)]
    for i, line in enumerate(lines):
        line |= {"run": str(i), "train_acc": 0.5, "data": {"from": "generated", "hash": str(i)}}
    out, _ = reported(exp_listops, lines, tmp_path, capsys)
    assert "30.00 (n=1)" in out and "40.00 (n=1)" in out and "n=2" not in out


def test_reduced_records_are_compared_inside_equal_budgets(tmp_path, capsys):
    def line(position, accuracy, limit=3000, **changed):
        hp = exp_positional.variant_recipe("listops", position) | {"epochs": 40} | changed
        cell = {"position": position, "techniques": "yes"}
        return fake("positional", "listops", "transformer", cell, accuracy, hp, budget="reduced", limit=limit)

    shared = line("rotary", 0.5) | {"exp": "multitask", "cell": {"techniques": "yes"}, "run": "multitask-run"}
    records = [line("rotary", 0.5), shared, line("none", 0.2), line("learned", 0.3, limit=5000)]
    records += [line("none", 0.25, lr=3e-4)]
    other = shared | {"data": {"hash": "b"}}
    assert exp_positional.same_run(shared) == exp_positional.same_run(records[0])
    assert exp_positional.same_run(shared) != exp_positional.same_run(other)
    out, rows = reported(exp_positional, records, tmp_path, capsys)
    table = out[out.index("reduced budgets") :].splitlines()
    header, lines = (
        [x for x in table if x.startswith("|")][0],
        [x for x in table if x.startswith("| ListOps")],
    )
    assert header.count("techniques") == 3 and len(lines) == 3
    row = next(x for x in lines if "3,000 examples, 40 epochs |" in " ".join(x.split()))
    assert "50.00 (n=1)" in row and "20.00 (n=1)" in row  # the run that both scripts recorded counts once
    assert any("lr 0.0003" in x and "25.00" in x for x in lines)
    assert any("5,000 examples" in x and "30.00" in x for x in lines)


# ------------------------------------------------------------------------------------------ kernels


def responses(block, L):
    """(H, 2 L - 1, H) response of the block's convolution at lags 1 - L .. L - 1 to an impulse in each
    channel, from the functions that the forward pass calls."""
    if isinstance(block, (models.S5Block, models.LRUBlock)):
        H = len(block.skip_weight)
        u = torch.zeros(H, 2 * L - 1, H)
        u[torch.arange(H), L - 1, torch.arange(H)] = 1
        D = torch.zeros(H)
        if isinstance(block, models.LRUBlock):
            names = ("nu_log", "theta_log", "gamma_log", "B_weight", "C_weight")
            return models.lru_apply(u, *(getattr(block, n) for n in names), D, not block.causal)
        Lambda = torch.stack([block.Lambda_real, block.Lambda_imag], -1)
        return models.s5_apply(u, Lambda, block.B_weight, block.C_weight, D, block.log_step, not block.causal)
    u = torch.zeros(1, 16, 2 * L - 1)
    u[..., L - 1] = 1
    if isinstance(block, models.GMLPBlock):
        y = models.toeplitz_gate_conv(u, block.kernel(2 * L - 1), torch.zeros(2))[
            :, :2
        ]  # the rest repeats them
    elif isinstance(block, models.MegaBlock):
        y = models.long_conv(u, *block.ema.kernel(2 * L - 1).split(16), bwd_lag=0)
    else:
        y = models.long_conv(u, *block.kernel(2 * L - 1))
    return y.transpose(1, 2)


@pytest.mark.parametrize("model", exp_kernels.TABLES)
def test_a_kernel_profile_is_what_an_impulse_meets(model):
    L = 24
    hp = exp_kernels.recipe(model, "text") | dict(depth=1, d_model=16, max_length=2 * L)
    narrow = dict(d_hidden=16, d_state=8, blocks=2, d_attention=4)
    arguments = exp_kernels.model_rows(hp | {row: value for row, value in narrow.items() if row in hp})
    torch.manual_seed(0)
    [block] = exp_kernels.blocks_of(arguments)
    with torch.no_grad():
        if model == "gmlp":
            block.kernel_taps.normal_()
        y = responses(block, L).double()
    distances, peak, energy = exp_kernels.kernel_profile(block, L)
    assert list(distances) == list(range(L))
    sides = torch.stack([y[:, L - 1 :], y[:, :L].flip(1)])  # by distance; at 0 two directions may add up
    assert torch.allclose(sides.abs().amax((0, 1, 3))[1:], torch.tensor(peak)[1:], rtol=1e-3, atol=1e-6)
    assert torch.allclose(sides.square().sum((0, 1, 3))[1:], torch.tensor(energy)[1:], rtol=1e-3, atol=1e-8)
    assert energy[0] > 0 and peak[0] > 0


def test_kernels_are_drawn_without_any_training(tmp_path, capsys):
    exp_kernels.main(["--figure", "kernels", "--task", "listops", "--smoke", "--out", str(tmp_path)])
    out = capsys.readouterr().out
    assert all(f"| {name} " in out for name in exp_kernels.NAMES.values())
    assert (tmp_path / "kernels-listops.png").stat().st_size > 10_000


# ------------------------------------------------------------------------------------------ ListOps


class Sevens:
    """A generator whose digits are all 7, so that guesses can be predicted."""

    def integers(self, low, high, n):
        assert (low, high) == (0, 10)
        return np.full(n, 7)


def parse(words):
    """List of words -> nested (operator, arguments) of a LRA expression, by recursion."""
    word = next(words)
    if word == "]":
        return None
    if word.isdigit():
        return int(word)
    return word, list(iter(lambda: parse(words), None))


def solve(tree, levels):
    """Value of a tree whose operators beyond `levels` are guessed."""
    if isinstance(tree, int):
        return tree
    operator, arguments = tree
    if levels == 0:
        return {"[MAX": 9, "[MED": 4, "[MIN": 0, "[SM": 7}[operator]
    values = [solve(argument, levels - 1) for argument in arguments]
    if operator == "[SM":
        return sum(values) % 10
    return int({"[MAX": max, "[MIN": min, "[MED": statistics.median}[operator](values))


def test_solving_the_top_levels_agrees_with_a_recursive_evaluator():
    tokens, offsets, label = data.generate_listops(200, seed=3, progress=False)
    words = np.array(data.LISTOPS_SYMBOLS)
    trees = [parse(iter(words[tokens[a:b]])) for a, b in zip(offsets, offsets[1:])]
    for depth in range(6):
        want = [solve(tree, depth) for tree in trees]
        assert exp_listops.solve_top(tokens, offsets, depth, Sevens()).tolist() == want
    assert [solve(tree, 10) for tree in trees] == label.tolist()
    assert exp_listops.solve_top(tokens, offsets, 10, Sevens()).tolist() == label.tolist()


def test_the_rules_get_what_appendix_b_and_its_extension_say():
    split = data.Split(*map(torch.from_numpy, data.generate_listops(16_000, seed=5, progress=False)))
    for rule, expected in (("always-0", 0.17), ("root", 0.36), ("top-1", 0.59), ("top-2", 0.74)):
        assert exp_listops.rule_accuracy(split, rule, seed=0) == pytest.approx(expected, abs=0.01), rule
    counts = exp_listops.label_counts(split)
    assert counts.sum() == 16_000 and (counts.argmax(1)[:3] == exp_listops.GREEDY[:3]).all()
    assert counts[2, 0] / counts[2].sum() == pytest.approx(0.563, abs=0.03)  # MIN: 0


def test_listops_smoke_measures_draws_and_reports(tmp_path, capsys):
    words = ["--smoke", "--limit", "16", "--out", str(tmp_path)]
    exp_listops.main(words)
    out = capsys.readouterr().out
    for figure in (1, 2, 3):
        assert (tmp_path / f"listops-figure{figure}.png").read_bytes()[:4] == b"\x89PNG"
    records = common.read_records([tmp_path / "results.jsonl"])
    assert [r["cell"].get("rule") for r in records] == [*exp_listops.RULES, None]
    assert "top-2" in out and all(r["smoke"] for r in records)


def test_figures_that_need_a_model_say_so_and_fail_where_they_were_asked_for(tmp_path, capsys):
    task = data.load("listops", "nowhere", augment="none", smoke=True)
    args = argparse.Namespace(out=tmp_path, checkpoint=None, figure=[2], limit=None, smoke=False)
    with pytest.raises(common.UserError, match="need a trained model .* --checkpoint"):
        exp_listops.draw(args, task, args.figure)
    args.figure = None
    exp_listops.draw(args, task, (2, 3))
    assert "need a trained model" in capsys.readouterr().out and not [*tmp_path.iterdir()]


def test_predictions_are_those_of_the_model_in_the_tasks_order_of_roots():
    task = data.load("listops", "nowhere", augment="none", smoke=True)

    class Roots(torch.nn.Module):  # answers the root operation's greedy label
        def forward(self, tokens, mask):
            return tokens

        def classify(self, features, mask):
            answer = torch.tensor([9, 4, 0, 3])[features[:, 0] - task.first_id - data.MAX_OP]
            return torch.nn.functional.one_hot(answer, 10).float()

    args = argparse.Namespace(device="cpu", amp="off")
    roots, labels, predicted = exp_listops.predictions(Roots(), task, "test", args)
    assert (predicted == np.array([9, 4, 0, 3])[roots]).all()
    assert sorted(labels.tolist()) == sorted(task.test.label.tolist())
