"""exp_multitask, exp_kernels, exp_positional, exp_listops, exp_range: their tables against numbers typed
again from the paper, every cell for two steps, reports, kernels, rules, the dial and the meter.

pytest tests/test_scripts.py
"""

import argparse
import ast
import json
import statistics
from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest
import torch
from conftest import exit_code, lines_of, stop_at
from test_listops import decode, parse, rows, value

import common
import data
import exp_kernels
import exp_listops
import exp_locality
import exp_multitask
import exp_positional
import exp_range
import exp_spt
import listops
import models
import records

torch.set_num_threads(1)
TABLES = {exp_multitask: exp_multitask.TABLE2, exp_kernels: exp_kernels.TABLE3}
TABLES |= {exp_positional: exp_positional.TABLE4}

# ------------------------------------------------------------------------------------------ the tables

# script, model, task, rows: typed from the paper's tables and the cited configurations.
SPOTS = """
multitask transformer listops d_model=256 depth=6 heads=4 d_ff=512 dropout=0.0 disable_half=False base=1e4
multitask transformer listops lr=1e-4 batch_size=64 weight_decay=0.05 epochs=120 prenorm=True max_length=2000
multitask transformer image d_model=160 depth=10 d_ff=320 disable_half=True lr=1e-3 batch_size=48 epochs=200
multitask transformer pathfinder d_model=128 depth=6 d_ff=256 disable_half=False batch_size=128 epochs=67
multitask transformer text d_model=256 depth=8 d_ff=512 batch_size=16 weight_decay=0.01 epochs=80
multitask transformer retrieval d_model=128 depth=6 d_ff=256 lr=1e-3 batch_size=64 weight_decay=0.01 epochs=60
multitask mega listops depth=6 d_model=80 d_hidden=160 d_attention=64 prenorm=False lr=1e-3 dropout=0.1
multitask mega text depth=4 d_model=128 d_hidden=256 lr=4e-3 batch_size=50 embedding_dropout=0.1
multitask mega image depth=8 d_model=160 d_hidden=320 d_attention=96 prenorm=True lr=1e-2 epochs=200
multitask mega pathfinder lr=1e-2 batch_size=128 weight_decay=0.01 epochs=67
multitask ema-attention image depth=8 d_model=160 d_hidden=320 d_attention=96 truncation=1025 lr=1e-3
multitask ema-attention text truncation=2048 lr=4e-3 epochs=80
kernels gmlp image depth=10 d_model=128 d_hidden=256 channels=2 max_length=1024 batch_size=48
kernels gmlp text dropout=0.1 max_length=4096 batch_size=16 weight_decay=0.2 epochs=80
kernels gmlp retrieval lr=3e-4 batch_size=64 max_length=4096 epochs=60 dropout=0.0
kernels gmlp listops channels=4 max_length=2000 batch_size=32 epochs=120 lr=1e-3
kernels s4 listops depth=8 d_model=128 d_state=64 prenorm=False lr=1e-2 batch_size=50 epochs=120
kernels s4 image depth=6 d_model=512 n_ssm=2 dropout=0.1 tie_dropout=True weight_decay=0.05
kernels s4 pathfinder d_model=256 prenorm=True lr=4e-3 weight_decay=0.03 dt_lr=1e-3 epochs=67
kernels s5 listops depth=8 d_model=128 d_state=16 blocks=8 lr=3e-3 fast_B=True batch_size=50
kernels s5 image d_model=512 d_state=384 blocks=3 clip_eigs=True lr=4.5e-3 weight_decay=0.07
kernels s5 pathfinder d_model=192 d_state=256 blocks=8 ssm_lr=9e-4 norm_momentum=0.1 dropout=0.05
kernels s5 text d_state=192 blocks=12 dt_global=True fast_B=False lr=4e-3
kernels lru image d_model=512 d_state=384 r_min=0.9 r_max=0.999 ssm_lr=1.25e-3
kernels dlr image d_model=512 d_state=1024 prenorm=True ssm_lr=1e-4 lr=1e-2
kernels sgconv text kernel_dim=2 d_model=256 batch_size=16 kernel_lr=1e-3 lr=1e-2
kernels sgconv image kernel_dim=32 position_decay=1.0 dropout=0.2
"""


def test_hyper_parameters_are_the_papers():
    for line in SPOTS.strip().splitlines():
        script, model, task, *rows = line.split()
        hp = {"multitask": exp_multitask, "kernels": exp_kernels}[script].recipe(model, task)
        for row in rows:
            name, value = row.split("=")
            assert hp[name] == ast.literal_eval(value), line


PRINTED = {  # typed again, column by column: Tables 2, 3 and 4
    "image": "42.44 86.04 88.15 90.44 87.60 88.65 88.00 89.59 85.53 89.89 67.87 85.52 58.84 88.15",
    "pathfinder": "71.40 94.16 96.28 96.01 94.78 94.20 95.33 93.61 95.60 97.26 90.48 92.81 67.09 96.28",
    "text": "64.27 91.02 90.33 90.43 90.92 86.82 89.31 91.01 90.21 89.94 64.49 88.47 69.73 90.33",
    "retrieval": "57.46 91.57 90.80 91.25 91.32 90.90 91.28 90.73 88.96 90.37 83.31 87.06 85.34 90.80",
    "listops": "36.37 61.49 62.90 63.14 61.15 59.60 62.15 56.00 62.75 62.45 41.30 47.55 43.90 62.90",
    "average": "54.39 84.86 85.69 86.25 85.15 84.03 85.21 84.19 84.61 85.98 69.49 80.28 64.98 85.69",
}
PRINTED = {name: tuple(map(float, text.split())) for name, text in PRINTED.items()}


def test_printed_numbers_are_the_papers_and_their_averages_hold():
    printed = [line for table in TABLES.values() for line in table.values()]
    for *accuracies, average in printed:
        assert statistics.mean(accuracies) == pytest.approx(average, abs=0.006)
    assert dict(zip((*exp_multitask.COLUMNS, "average"), zip(*printed))) == PRINTED


def test_variants_change_one_thing():
    def changed(a, b):
        return {row for row in {*a, *b} if a.get(row) != b.get(row)}

    full = exp_multitask.recipe("transformer", "pathfinder")
    without = exp_multitask.recipe("transformer", "pathfinder", "no")
    assert changed(full, without) == {"technique", "augment", "epochs"} and without["epochs"] == 200
    for model, (parent, change) in exp_multitask.VARIANTS.items():
        args = (exp_multitask.recipe(m, "text") for m in (model, parent))
        assert changed(*args) == {*change}
    flipped = exp_positional.variant_recipe("text", "rotary", half="flipped")
    assert changed(exp_positional.variant_recipe("text", "rotary"), flipped) == {"disable_half"}


# ------------------------------------------------------------------------------------------ every cell


@pytest.fixture(scope="module")
def tasks():
    """The stand-ins with a few short training examples each: {task: Task}."""
    found = {}
    for name in exp_multitask.COLUMNS:
        task = data.load(name, "nowhere", augment="none", smoke=True)
        short = task.lengths["train"].argsort()[:4]
        found[name] = data.replace(task, train=data.select(task.train, short, task.docs))
    return found


CELLS = {f"multitask {m}": partial(exp_multitask.recipe, m) for m in exp_multitask.NAMES}
CELLS |= {f"kernels {m}": partial(exp_kernels.recipe, m) for m in exp_kernels.TABLES}
CELLS |= {p: partial(exp_positional.variant_recipe, position=p) for p in exp_positional.POSITIONS}


@pytest.mark.parametrize("cell", CELLS)
def test_every_cell_takes_two_steps_and_reaches_all_its_parameters(tasks, cell):
    narrow = dict(d_model=16, d_hidden=16, d_ff=16, d_state=8, d_attention=8, depth=1, heads=2, blocks=1)
    for name, mini in [(name, False) for name in tasks] + [("text", True)]:
        hp = CELLS[cell](name=name, mini=mini)
        hp |= {row: value for row, value in narrow.items() if row in hp}
        if name in ("text", "retrieval"):
            hp["max_length"] = 256
        torch.manual_seed(0)
        network = exp_multitask.build(tasks[name], hp).train()
        optimizer, noise = common.make_optimizer(network, hp), torch.Generator().manual_seed(0)
        for _ in range(2):
            batch = tasks[name].gather("train", torch.arange(2))
            if hp["technique"] == "denoising":
                batch = data.corrupt(batch, noise, tasks[name].vocab)
            step = network, optimizer, batch, common.multitask_loss, hp, nullcontext(), {"totals": {}}
            assert common.train_step(*step).isfinite(), name
        missed = [n for n, p in network.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
        assert missed == [], name


def test_no_techniques_means_clean_examples_and_one_loss(tmp_path):
    flags = "--task text --position none --no-techniques --smoke --limit 16 --epochs 1".split()
    exp_positional.main([*flags, "--out", str(tmp_path)])
    [line] = records.read_records([tmp_path / "results.jsonl"])
    assert line["cell"] == {"position": "none", "techniques": "no"} and line["hp"]["technique"] == "none"
    [curve] = lines_of(tmp_path / line["run"] / "log.jsonl")
    assert "masked_acc" not in curve["train"]


@pytest.mark.parametrize("script, words", [
    (exp_positional, "--task text --position learned --flip-half --smoke"),
    (exp_kernels, "--task text --figure kernels --checkpoint nowhere/best.pt"),
    (exp_kernels, "--task text --figure kernels --model mingru"),
    (exp_kernels, "--task text --smoke --checkpoint nowhere/best.pt"),
    (exp_kernels, "--task text --figure kernels --lr 0.1"),
    (exp_listops, "--figure 3 --smoke --checkpoint nowhere/best.pt"),
    (exp_listops, "--figure 1 --smoke --checkpoint nowhere/best.pt"),
    (exp_listops, "--epochs 3"),
    (exp_multitask, "--task text listops --smoke --max-length 64"),
    (exp_multitask, "--task all --smoke --augment flip"),
    (exp_range, "--task text --figure range"),
])  # fmt: skip
def test_a_flag_that_cannot_be_meant_ends_in_one_sentence(script, words, tmp_path, capsys):
    assert exit_code(script.main, *words.split(), "--out", tmp_path, "--data-dir", tmp_path) == 2
    assert "error: " in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "results.jsonl").exists()  # said before anything is trained


# ------------------------------------------------------------------------------------------ reports


@pytest.mark.parametrize("script, table", [*TABLES.items(), (exp_listops, {"": (62.90,)}), (exp_range, {})])
def test_a_report_without_records_prints_the_papers_numbers(script, table, tmp_path, capsys):
    out, _ = reported(script, [], tmp_path, capsys)
    assert all(f" {value:.2f} " in out for values in table.values() for value in values)
    assert "n=1" not in out and "reduced" not in out


def fake(exp, task, model, cell, accuracy, hp, seed=0, budget="paper"):
    line = dict(exp=exp, task=task, model=model, cell=cell, seed=seed, budget=budget, limit=None, hp=hp)
    line |= dict(run=json.dumps(line), test_acc=accuracy, val_acc=accuracy, date="2026", smoke=False)
    return line | {"data": {"hash": "a"}, "seconds": 60.0}


def reported(script, lines, tmp_path, capsys):
    """(what is printed, {first column: the other columns})"""
    path = tmp_path / "records.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    script.main(["--report", str(path), "--out", str(tmp_path)])
    out = capsys.readouterr().out
    split = ([c.strip() for c in line.strip("|").split("|")] for line in out.splitlines())
    return out, {cells[0]: cells[1:] for cells in split}


def test_a_report_compares_and_averages_only_whole_rows_of_full_runs(tmp_path, capsys):
    names, cell = exp_kernels.COLUMNS, {"techniques": "yes"}
    hp, slower = exp_kernels.recipe("gmlp", "text"), exp_kernels.recipe("s4", "text") | {"lr": 1e-3}
    lines = [fake("kernels", n, "gmlp", cell, 0.9, exp_kernels.recipe("gmlp", n)) for n in names]
    lines += [fake("kernels", "text", "gmlp", cell, 0.92, hp, seed=1)]
    lines += [fake("kernels", "text", "gmlp", cell, 0.99, hp | {"epochs": 4}, budget="reduced")]
    lines += [fake("kernels", n, "s4", cell, 0.8, exp_kernels.recipe("s4", n)) for n in names[:4]]
    lines += [fake("kernels", "text", "s4", cell, 0.85, slower)]  # another rate is another cell, not a seed
    out, rows = reported(exp_kernels, lines, tmp_path, capsys)
    assert rows["gMLP †, ours"][2:] == ["91.00 ± 1.41 (n=2)", "90.00 (n=1)", "90.00 (n=1)", "90.20"]
    assert "+4.22" in out  # 90.20 against 85.98
    assert rows["S4 †, ours"] == ["80.00 (n=1)", "80.00 (n=1)", "85.00 (n=1)", "80.00 (n=1)", "—", "—"]
    assert rows["Text"] == ["gMLP †", "99.00 (n=1)", "4 of 80 epochs"]


def test_budgets_never_mix_and_a_run_of_two_scripts_counts_once(tmp_path, capsys):
    def line(position, accuracy, budget="reduced", **changed):
        hp = exp_positional.variant_recipe("listops", position, mini=budget == "mini") | changed
        cell = {"position": position, "techniques": "yes"}
        return fake("positional", "listops", "transformer", cell, accuracy, hp, budget=budget)

    shared = line("rotary", 0.5, epochs=40) | {"exp": "multitask", "cell": {"techniques": "yes"}, "run": "x"}
    lines = [line("rotary", 0.5, epochs=40), shared, line("none", 0.2, epochs=40)]
    lines += [line("none", 0.25, epochs=40, lr=3e-4), line("rotary", 0.7, "mini")]
    out, _ = reported(exp_positional, [*lines, line("rotary", 0.6, "paper")], tmp_path, capsys)
    mini, full, reduced = (out[out.index(words) :] for words in ("mini tier", "as the paper", "reduced"))
    assert "70.0 ±" in mini.split("### ")[0] and "60.00" not in mini.split("### ")[0]
    assert "60.00 (n=1)" in full.split("### ")[0] and "70.0" not in full.split("### ")[0]
    rows = [x for x in reduced.splitlines() if x.rstrip(" |").endswith("40 of 120 epochs")]
    assert len(rows) == 2 and "50.00 (n=1)" in rows[0] and "20.00 (n=1)" in rows[1]
    assert any("lr 0.0003" in x and "25.00" in x for x in reduced.splitlines())


def test_a_run_of_two_scripts_counts_once(tmp_path, capsys):
    """exp_multitask's Transformer is Table 4's rotary column."""
    cell, hp = {"techniques": "yes"}, exp_positional.variant_recipe("listops", "rotary")
    lines = [fake("multitask", "listops", "transformer", cell, 0.5 + seed / 10, hp, seed) for seed in (0, 1)]
    of_data = hp | {"steps": 6000}  # Table 2's own
    lines += [fake("multitask", "listops", "transformer", cell, 0.9, of_data, 2)]
    lines += [fake("positional", "listops", "transformer", cell | {"position": "rotary"}, 0.5, hp)]
    _, rows = reported(exp_positional, lines, tmp_path, capsys)
    assert rows["rotary, techniques, ours"][4] == "55.00 ± 7.07 (n=2)"


def test_the_curves_of_learning_are_means_of_the_long_runs_seeds(tmp_path, capsys, monkeypatch):
    drawn, lines, cell = [], [], {"techniques": "yes"}
    for seed, changed in ((0, {}), (1, {}), (0, {"augment": "none"}), (1, {"epochs": 4})):
        hp = exp_kernels.recipe("s5", "image", mini=True) | {"epochs": 12} | changed
        lines += [fake("kernels", "image", "s5", cell, 0.5, hp, seed, "mini") | {"run": f"run{len(lines)}"}]
        (tmp_path / lines[-1]["run"]).mkdir()
        curve = [{"val": {"acc": epoch / 100 + seed / 10 + len(changed)}} for epoch in range(12)]
        (tmp_path / lines[-1]["run"] / "log.jsonl").write_text("\n".join(map(json.dumps, curve)))
    monkeypatch.setattr(records, "save_figure", lambda figure, path: drawn.append(figure))
    reported(exp_kernels, lines, tmp_path, capsys)
    (line,) = drawn[-1].axes[0].lines
    assert line.get_label() == "S5 (2 seeds)" and np.allclose(line.get_ydata(), np.arange(12) + 5)


# ------------------------------------------------------------------------------------------ kernels


@pytest.mark.parametrize("model", ["s4", "dlr", "gmlp", "mega", "sgconv", "free", "s5", "lru"])
def test_a_kernel_profile_is_what_an_impulse_meets(model):
    """At each distance: the largest response of the layer's convolution, and the sum of squares."""
    L, H = 24, 16
    hp = exp_kernels.recipe(model, "text", mini=True) | dict(depth=1, d_model=H, max_length=2 * L)
    hp |= {k: v for k, v in dict(d_hidden=H, d_state=8, blocks=2, d_attention=4).items() if k in hp}
    torch.manual_seed(0)
    [block] = models.SequenceModel(vocab=2, classes=2, **common.model_rows(hp)).eval().blocks
    u = torch.zeros(H, 2 * L - 1, H)
    u[torch.arange(H), L - 1, torch.arange(H)] = 1  # an impulse in each channel
    with torch.no_grad():
        if model == "gmlp":
            block.kernel_taps.normal_()
        for name in ("skip_weight", "omega"):
            for module in block.modules():
                if hasattr(module, name):
                    getattr(module, name).zero_()
        if model in ("s5", "lru"):
            y = block.mix_states(u)
        elif model == "mega":
            past, future = block.ema.kernel(2 * L - 1).split(H)
            y = models.long_conv(u.mT, past, future[:, 1:]).mT  # at 0 they add up
        else:
            y = models.long_conv(u.mT, *block.kernel(2 * L - 1)).mT[: 2 if model == "gmlp" else None]
    peak, energy = exp_kernels.kernel_profile(block, L)
    sides = torch.stack([y[:, L - 1 :], y[:, :L].flip(1)]).double()  # at 0 two directions may add up
    assert torch.allclose(sides.abs().amax((0, 1, 3))[1:], torch.tensor(peak)[1:], rtol=1e-3, atol=1e-6)
    assert torch.allclose(sides.square().sum((0, 1, 3))[1:], torch.tensor(energy)[1:], rtol=1e-3, atol=1e-8)
    assert energy[0] > 0 and peak[0] > 0


def test_the_best_run_has_the_techniques_and_began_structured(monkeypatch):
    def run(val_acc, budget="reduced", **cell):
        return dict(run=f"{val_acc}", model="s4", cell=cell, budget=budget, val_acc=val_acc)

    runs = [run(0.9, "paper", init="random"), run(0.8, "paper", techniques="no"), run(0.7), run(0.6, "paper")]
    monkeypatch.setattr(records, "finished_runs", lambda *args: runs)
    args = argparse.Namespace(no_techniques=False)
    assert exp_kernels.best_run(args, "s4", "text") is runs[3]
    assert exp_kernels.best_run(args, "gmlp", "text") is None


def test_kernels_are_drawn_trained_and_at_the_start(tmp_path, capsys):
    flags = ["--task", "listops", "--smoke", "--out", str(tmp_path)]
    exp_kernels.main([*flags, "--model", "gmlp", "--epochs", "1"])
    exp_kernels.main([*flags, "--figure", "kernels"])
    assert "| trained, layer 2 " in (printed := capsys.readouterr().out)
    assert [m for m in exp_kernels.TABLES if f"| {exp_kernels.NAMES[m]} " not in printed] == ["mingru"]
    assert (tmp_path / "kernels-listops.png").stat().st_size > 10_000


# ------------------------------------------------------------------------------------------ the range


def test_a_meter_sees_as_far_as_a_stack_of_convolutions_and_no_further():
    torch.manual_seed(0)
    task = data.load("image", "nowhere", augment="none", smoke=True)
    model = models.SequenceModel("conv", 2, 8, task.vocab, task.classes, d_hidden=8, kernel=5)
    reach = 2 * 2 * (5 // 2)  # two positions meet in one that is within reach of both
    sizes = exp_range.interactions(model, task, (1, reach, reach + 1, 200), examples=8)
    assert (sizes[:2] > 1e-9).all() and (sizes[2:] < 1e-12).all()


def test_a_meter_finds_the_one_interaction_of_a_model_built_by_hand():
    class Product(torch.nn.Module):
        """sum_t u_t u_(t + 7), of which pairs 7 apart alone interact."""

        def forward(self, tokens, mask):
            return tokens.double()

        def classify(self, features, mask, docs=1):
            return (features[:, :-7] * features[:, 7:]).sum(1, keepdim=True).expand(-1, 10)

    task = data.load("image", "nowhere", augment="none", smoke=True)
    distances = (1, 3, 6, 7, 8, 20)
    sizes = exp_range.interactions(Product(), task, distances, examples=8)
    assert [d for d, size in zip(distances, sizes) if size > 1e-6] == [7]
    mean, most = exp_range.summarised(distances, sizes, 1024)
    assert 6 <= mean <= 8 and 6 <= most <= 8


def test_a_bag_of_symbols_cannot_see_the_dial():
    logits = []
    for stride in (1, 16, "random"):
        task = data.load("text", "nowhere", smoke=True, stride=stride)
        torch.manual_seed(0)
        bag = exp_multitask.build(task, exp_range.recipe("bag", "text", mini=True)).double().eval()
        batch = next(task.evaluation_batches("test"))
        logits.append(bag.classify(bag(batch.tokens, batch.mask), batch.mask))
    assert all(torch.allclose(logits[0], other, atol=1e-12) for other in logits[1:])


# ------------------------------------------------------------------------------------------ ListOps


def solve(tree, levels):
    """Value of a tree whose operators beyond `levels` are guessed."""
    if isinstance(tree, int):
        return tree
    if levels == 0:
        return {"[MAX": 9, "[MED": 4, "[MIN": 0, "[SM": 7}[tree[0]]
    return value([tree[0], *(solve(argument, levels - 1) for argument in tree[1:])])


def test_solving_the_top_levels_agrees_with_a_recursive_evaluator():
    tokens, offsets, label = listops.generate_listops(200, seed=3)
    trees = [parse(decode(row)) for row in rows(tokens, offsets)]
    sevens = argparse.Namespace(integers=lambda low, high, n: np.full(n, 7))  # guesses that can be predicted
    for depth in (0, 1, 2, 5, 10):
        want = [solve(tree, depth) for tree in trees]
        assert exp_listops.solve_top(tokens, offsets, depth, sevens).tolist() == want
    assert want == label.tolist()


def test_the_rules_get_what_appendix_b_and_its_extension_say():
    split = data.Split(*map(torch.from_numpy, listops.generate_listops(8_000, seed=5)))
    for rule, expected in (("always-0", 0.17), ("root", 0.36), ("top-1", 0.59), ("top-2", 0.74)):
        assert exp_listops.rule_accuracy(split, rule, seed=0) == pytest.approx(expected, abs=0.015), rule
    roots = split.tokens[split.offsets[:-1]].long() - listops.MAX_OP
    counts = exp_listops.counted(roots.numpy(), split.label.numpy())
    assert counts.sum() == 8_000 and (counts.argmax(1)[:3] == exp_listops.GREEDY[:3]).all()


def test_listops_smoke_measures_draws_and_reports(tmp_path, capsys):
    exp_listops.main(["--smoke", "--out", str(tmp_path)])
    for figure in (1, 2, 3):
        assert (tmp_path / f"listops-figure{figure}.png").read_bytes()[:4] == b"\x89PNG"
    lines = records.read_records([tmp_path / "results.jsonl"])
    assert [r["cell"].get("rule") for r in lines] == [*exp_listops.RULES, None]
    name, model = exp_listops.trained_model(argparse.Namespace(out=tmp_path, smoke=True, mini=False))
    assert name == "conv" and model.arguments["classes"] == 10


def test_predictions_are_those_of_the_model_in_the_tasks_order_of_roots(monkeypatch):
    drawn, task = [], data.load("listops", "nowhere", augment="none", smoke=True)

    class Roots(torch.nn.Module):  # answers the root operation's greedy label
        def forward(self, tokens, mask):
            return tokens

        def classify(self, features, mask):
            answer = torch.tensor([9, 4, 0, 3])[features[:, 0] - task.first_id - listops.MAX_OP]
            return torch.nn.functional.one_hot(answer, 10).float()

    args = argparse.Namespace(device="cpu", amp="off")
    roots, labels, predicted = exp_listops.predictions(Roots(), task, "test", args)
    assert (predicted == np.array([9, 4, 0, 3])[roots]).all()
    assert sorted(labels.tolist()) == sorted(task.test.label.tolist())
    monkeypatch.setattr(records, "save_figure", lambda figure, path: drawn.append(figure))
    exp_listops.plot_breakdown(roots, labels, predicted, "greedy", None)
    heights = [bar.get_height() for bar in drawn.pop().axes[0].patches]  # of MAX, whose answer is 9
    assert heights[9] == 100 and sum(heights) == 100


# ------------------------------------------------------------------------------------------ the mini tier


@pytest.mark.parametrize("script, words", [
    (exp_locality, "--kernel 5"),
    (exp_multitask, "--model transformer"),
    (exp_kernels, "--model s4"),
    (exp_positional, "--position learned"),
    (exp_range, "--model conv --kernel 5 --stride 4"),
    (exp_spt, "--model s4 --objective none masked"),
])  # fmt: skip
def test_a_stopped_mini_cell_ends_like_the_unbroken_one(
    script, words, signals, tmp_path, monkeypatch, capsys
):
    """Promise 1, at real sizes but for the number of steps and of examples. The report shows the cell, which
    is done and can be rebuilt."""
    monkeypatch.setattr(data, "MINI_COUNTS", {"train": 400, "val": 60, "test": 60})
    flags = ["--task", "listops", *words.split(), "--mini", "--steps", 6, "--limit", 100, "--limit-test", 60]
    flags += ["--device", "cpu", "--data-dir", tmp_path / "data"]
    stop_at(2, lambda: exit_code(script.main, *flags, "--out", tmp_path / "stopped"))
    found = {}
    for out in ("stopped", "unbroken", "unbroken"):
        assert exit_code(script.main, *flags, "--out", tmp_path / out) == 0
        kept = ("run", "exp", "limit", "test_acc", "val_acc", "steps", "budget", "mini", "amp", "params")
        found[out] = [{k: r[k] for k in kept} for r in lines_of(tmp_path / out / "results.jsonl")]
    assert found["stopped"] == found["unbroken"] != []
    assert "100 examples" in (said := capsys.readouterr().out) and "is done" in said
    for r in found["stopped"]:
        assert (r["exp"].removesuffix("-pretrain"), r["limit"]) == (script.__name__[4:], 100)
        assert (r["run"][:5], r["budget"], r["mini"], r["amp"]) == ("mini-", "mini", True, "off")
        model, _ = records.rebuilt(tmp_path / "unbroken" / r["run"] / "best.pt", models.SequenceModel)
        assert sum(p.numel() for p in model.parameters()) == r["params"]


def test_the_dial_at_1_is_the_cell_of_exp_locality(tmp_path, monkeypatch, capsys):
    """One training under two names: exp_range reports both as its own, and counts them once."""
    monkeypatch.setattr(data, "MINI_COUNTS", {"train": 400, "val": 60, "test": 60})
    flags = ["--task", "listops", "--kernel", 5, "--mini", "--out", tmp_path, "--data-dir", tmp_path / "data"]
    assert exit_code(exp_locality.main, *flags) == 0
    assert exit_code(exp_range.main, *flags, "--model", "conv", "--stride", 1) == 0
    first, second = lines_of(tmp_path / "results.jsonl")
    assert (first["test_acc"], first["val_acc"]) == (second["test_acc"], second["val_acc"])
    far = second | {"run": "far", "test_acc": 0.125, "cell": {"stride": 4, "kernel": 5}}
    far["hp"] = second["hp"] | {"stride": 4}
    turned = far | {"cell": {"stride": "rotated", "kernel": 5}, "hp": second["hp"] | {"stride": "rotated"}}
    anywhere = far | {"cell": {"stride": "random", "kernel": 5}, "hp": second["hp"] | {"stride": "random"}}
    number = f"{100 * first['test_acc']:.1f} ±"
    for lines, wanted in (
        ([anywhere | {"run": "anywhere", "test_acc": 0.25}, first, far], [number, "12.5 ±", "25.0 ±"]),
        ([first, second], [number]),
        ([turned], ["12.5 ±"]),
        ([first], []),
    ):
        _, rows = reported(exp_range, lines, tmp_path, capsys)
        found = rows.get("convolution K=5", [])
        assert len(found) == len(wanted)
        assert all(text in cell and "(n=1)" in cell for text, cell in zip(wanted, found))
