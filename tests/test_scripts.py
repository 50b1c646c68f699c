"""All experiment scripts: the papers' numbers, every cell for two steps, what they may import, reports; then
kernels and the rules of ListOps. pytest tests/test_scripts.py
"""

import argparse
import ast
import hashlib
import importlib
import statistics
import types
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import SCRIPTS, exit_code, lines_of
from test_listops import decode, parse, rows, value

import common
import data
import exp_kernels
import exp_listops
import exp_multitask
import exp_positional
import exp_range
import listops
import models
import records

ROOT = Path(__file__).parent.parent

# ------------------------------------------------------------------------------------------ the numbers

# A digest of each table, as it was compared number by number with the papers and the configurations that they
# cite: a typo anywhere shows. Change one only together with the comparison.
DIGESTS = """
locality.TABLE1 2a45572c  locality.TABLE7 009fcf21  positional.TABLE4 10291eff
multitask.TABLE2 5f09bdf7  multitask.TABLE5 8af2e419  multitask.TABLE_MEGA 98889388
multitask.TABLE_EMA 651b461c
kernels.TABLE3 a884ac57  kernels.TABLE6 d338b4b6  kernels.TABLE_S4 7b685e3b  kernels.TABLE_S4D 49512dc7
kernels.TABLE_S5 b84e7a52  kernels.TABLE_LRU cd488268  kernels.TABLE_DLR 3134adf4
kernels.TABLE_SGCONV f49d67e7  kernels.TABLE_FREE 0eac506e
spt.TRANSFORMER 7594c345  spt.ROTARY 3a8a6241  spt.S4 22698520  spt.DLR c2177981  spt.TUNED bacda974
spt.TUNED_PRETRAIN 9783f022  spt.RATIO fc0ea8b5  spt.DATA_SCALE eeeae35b  spt.SIZES d8a4c001
spt.PAPER 46daee81  spt.MEANS 236a031d
"""
SPT = "TRANSFORMER ROTARY S4 DLR TUNED TUNED_PRETRAIN RATIO DATA_SCALE SIZES PAPER MEANS".split()


def digest(table):
    """Of a literal table. The order of its rows does not matter."""

    def plain(value):
        if isinstance(value, dict):
            return sorted((repr(key), plain(other)) for key, other in value.items())
        return [plain(other) for other in value] if isinstance(value, (tuple, list)) else value

    return hashlib.sha256(repr(plain(table)).encode()).hexdigest()[:8]


def tables():
    """{"locality.TABLE1": the table} of all scripts, those that one has from another once."""
    found = {}
    for script in SCRIPTS:
        module = importlib.import_module(script)
        for name, table in vars(module).items():
            is_table = name in SPT if script == "exp_spt" else name.startswith("TABLE") and name != "TABLES"
            if is_table and not any(table is other for other in found.values()):
                found[f"{script.removeprefix('exp_')}.{name}"] = table
    return found


def test_every_number_of_the_papers_tables_is_as_it_was_compared():
    words = DIGESTS.split()
    assert {name: digest(table) for name, table in tables().items()} == dict(zip(words[::2], words[1::2]))


def test_printed_averages_hold():
    for table in (exp_multitask.TABLE2, exp_kernels.TABLE3, exp_positional.TABLE4):
        for *accuracies, average in table.values():
            assert statistics.mean(accuracies) == pytest.approx(average, abs=0.006)


# ------------------------------------------------------------------------------------------ imports


def imports(path):
    """{module: what a script uses of it} of all that a script imports."""
    tree, found = ast.parse(path.read_text("utf-8")), {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            found.setdefault(node.module, set()).update(alias.name for alias in node.names)
        elif isinstance(node, ast.Import):
            found |= {alias.name: set() for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in found:
            found[node.value.id].add(node.attr)
    return found


def test_scripts_stand_alone():
    """A copy of a script is all of an experiment: of another one it may have tables of numbers, no function.
    Knowledge of all scripts is for claims.py and bench.py."""
    shared = []
    for path in ROOT.glob("exp_*.py"):
        found = imports(path)
        assert not {"claims", "bench"} & found.keys(), path.name
        others = {module: names for module, names in found.items() if module.startswith("exp_")}
        assert all(name.isupper() for names in others.values() for name in names), (path.name, others)
        shared += [(path.name, module) for module in others]
    assert len(shared) <= 8
    for name in ("common", "data", "models", "records", "fetch", "listops", "pathfinder"):
        assert not any(m.startswith(("exp_", "claims", "bench")) for m in imports(ROOT / f"{name}.py")), name


# ------------------------------------------------------------------------------------------ every cell


@pytest.fixture
def cells(monkeypatch, tmp_path):
    """The cells that a command would train, each as the arguments of records.run_cell. The tasks are
    stand-ins with four short training examples."""
    load, made = data.load, {}

    def short(name, root, **given):
        if str(given) not in made.setdefault(name, {}):
            task = load(name, root, **given | {"augment": "none"})
            chosen = task.lengths["train"].argsort()[:4]
            made[name][str(given)] = replace(task, train=data.select(task.train, chosen, task.docs))
        return made[name][str(given)]

    def commanded(script, *words):
        found = []
        monkeypatch.setattr(data, "load", short)
        monkeypatch.setattr(data, "require", lambda names, args: names)
        monkeypatch.setattr(records, "run_cell", lambda args, path, **how: found.append(how))
        assert exit_code(script.main, *words, "--out", tmp_path) == 0
        return found

    return commanded


@pytest.mark.parametrize("script, words, flags", [
    (exp_multitask, "--model all", ""), (exp_multitask, "--model all", "--no-techniques"),
    (exp_kernels, "--model all", ""), (exp_positional, "--position all", ""),
])  # fmt: skip
def test_every_cell_takes_two_steps_and_reaches_all_its_parameters(script, words, flags, cells):
    found = cells(script, "--task", "all", *words.split(), "--smoke", *flags.split())
    columns = exp_multitask.COLUMNS
    assert len(found) >= 3 * 5 and {how["task"].name for how in found} == {*columns}
    for how in found:
        task, train, what = how["task"], how["hp"]["train"], (how["row"], how["task"].name)
        assert how["row"].endswith(", no techniques") == bool(flags)
        assert (train["technique"] is None) == bool(flags)
        torch.manual_seed(0)
        network, noise = how["build"]().train(), torch.Generator().manual_seed(0)
        optimizer, at = common.make_optimizer(network, train), {"totals": {}}
        for _ in range(2):
            [batch] = task.training_batches([torch.arange(2)], noise, 0)
            assert (batch.target is not None) == (task.name in ("text", "retrieval") and not flags), what
            step = network, optimizer, batch, how["loss_fn"], train, nullcontext(), at
            assert common.train_step(*step).isfinite(), what
        missed = [n for n, p in network.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
        assert missed == [], what


@pytest.mark.parametrize("script", [exp_multitask, exp_kernels, exp_positional, exp_range, exp_listops])
def test_a_report_without_records_prints_the_papers_numbers(script, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(records, "RESULTS", tmp_path)
    assert exit_code(script.main, "--report", "--out", tmp_path) == 0
    out = capsys.readouterr().out
    for name, table in tables().items():
        if name.startswith(script.__name__[4:]) and name[-6:] in ("TABLE2", "TABLE3", "TABLE4"):
            assert all(f" {value:.2f} " in out for values in table.values() for value in values)
    assert "(1)" not in out and "(2)" not in out


@pytest.mark.parametrize("script, words, row", [
    (exp_multitask, "--model transformer", "Transformer"),
    (exp_kernels, "--model s4", "S4"),
    (exp_positional, "--position learned", "learned"),
    (exp_range, "--model conv --kernel 5 --stride 4", ""),
])  # fmt: skip
def test_a_mini_cell_is_trained_shown_and_can_be_rebuilt(script, words, row, tmp_path, monkeypatch, capsys):
    """At real sizes but for the number of steps and of examples."""
    monkeypatch.setattr(data, "MINI_COUNTS", {"train": 400, "val": 60, "test": 60})
    monkeypatch.setattr(records, "save_figure", lambda figure, path: None)
    flags = ["--task", "listops", *words.split(), "--mini", "--steps", 6, "--limit", 100, "--limit-test", 60]
    flags += ["--device", "cpu", "--data-dir", tmp_path / "data", "--out", tmp_path]
    for trained in ("test accuracy", "is done"):
        assert exit_code(script.main, *flags) == 0
        assert trained in (said := capsys.readouterr().out)
    [r] = lines_of(tmp_path / "results.jsonl")
    assert (r["run"][:5], r["budget"], r["mini"], r["amp"], r["steps"]) == ("mini-", "mini", True, "off", 6)
    assert r["terms"] == "100 examples, 6 steps, tested on 60" and (not row or r["row"] == row)
    number = f"{100 * r['test_acc']:.1f} (1"
    assert any(number in line for line in said.splitlines() if line.startswith("| "))
    model, _ = records.rebuilt(tmp_path / r["run"] / "best.pt", models.SequenceModel)
    assert sum(p.numel() for p in model.parameters()) == r["params"]


# ------------------------------------------------------------------------------------------ kernels


KERNELS = {
    "s4": dict(d_state=8), "dlr": dict(d_state=8), "gmlp": dict(d_hidden=16, channels=2), "sgconv": {},
    "free": {}, "s5": dict(d_state=8, blocks=2), "lru": dict(d_state=8),
}  # fmt: skip


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_profile_is_what_an_impulse_meets(name):
    """At each distance: the largest response of the layer's convolution, and the sum of squares."""
    L, H = 24, 16
    torch.manual_seed(0)
    network = models.SequenceModel(name, 1, H, 2, 2, max_length=2 * L, **KERNELS[name])
    [block] = network.eval().blocks
    u = torch.zeros(H, 2 * L - 1, H)
    u[torch.arange(H), L - 1, torch.arange(H)] = 1  # an impulse in each channel
    with torch.no_grad():
        if name == "gmlp":
            block.kernel_taps.normal_()
        for module in block.modules():
            if hasattr(module, "skip_weight"):
                module.skip_weight.zero_()
        if name in ("s5", "lru"):
            y = block.mix_states(u)
        else:
            y = models.long_conv(u.mT, *block.kernel(2 * L - 1)).mT[: 2 if name == "gmlp" else None]
    peak, energy = exp_kernels.kernel_profile(block, L)
    sides = torch.stack([y[:, L - 1 :], y[:, :L].flip(1)]).double()  # at 0 two directions may add up
    assert torch.allclose(sides.abs().amax((0, 1, 3))[1:], torch.tensor(peak)[1:], rtol=1e-3, atol=1e-6)
    assert torch.allclose(sides.square().sum((0, 1, 3))[1:], torch.tensor(energy)[1:], rtol=1e-3, atol=1e-8)
    assert energy[0] > 0 and peak[0] > 0


def test_kernels_are_drawn_trained_and_at_the_start(tmp_path, monkeypatch, capsys):
    drawn = []
    monkeypatch.setattr(records, "save_figure", lambda figure, path: drawn.append(figure))
    flags = ["--task", "listops", "--smoke", "--out", str(tmp_path)]
    exp_kernels.main([*flags, "--model", "gmlp", "--epochs", "1"])
    exp_kernels.main([*flags, "--figure", "kernels"])
    assert "| trained, layer 2 " in (printed := capsys.readouterr().out)
    assert all(f"| {name} " in printed for name in exp_kernels.NAMES.values())
    assert len(drawn[-1].axes) == len(exp_kernels.TABLES)


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
    sevens = types.SimpleNamespace(integers=lambda low, high, n: np.full(n, 7))  # guesses to be predicted
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


def test_predictions_are_those_of_the_model_in_the_tasks_order_of_roots():
    task = data.load("listops", "nowhere", augment="none", smoke=True)

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
