"""All experiment scripts: the papers' numbers, what they may import, reports; then kernels and the rules of
ListOps. Every cell takes two steps in test_gpu_path.py. pytest tests/test_scripts.py
"""

import argparse
import ast
import hashlib
import importlib
import re
import types
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
import exp_locality
import exp_multitask
import exp_ngrams
import exp_patches
import exp_positional
import exp_range
import listops
import models
import records
import tables

ROOT = Path(__file__).parent.parent

# ------------------------------------------------------------------------------------------ the numbers

# A digest of each table, as it was compared number by number with the papers and the configurations that they
# cite: a typo anywhere shows. Change one only together with the comparison. MINI and RATES are the records'.
DIGESTS = """
locality.TABLE1 51889fbc  locality.TABLE7 009fcf21  positional.TABLE4 10291eff
multitask.TABLE2 99b193b5  multitask.TABLE5 8af2e419  multitask.TABLE_MEGA 98889388
multitask.TABLE_EMA 651b461c
ngrams.TRANSFORMERS ecb9515f  ngrams.LATER 73d3ece7
kernels.TABLE3 31187f2b  kernels.TABLE6 d338b4b6  kernels.TABLE_S4 7b685e3b  kernels.TABLE_S4D 49512dc7
kernels.TABLE_S5 b84e7a52  kernels.TABLE_LRU cd488268  kernels.TABLE_DLR 3134adf4
kernels.TABLE_SGCONV f49d67e7  kernels.TABLE_FREE 0eac506e  kernels.TABLE_DECAY 3ba83854
kernels.TABLE_MAMBA2 55c659d5
spt.TRANSFORMER 7594c345  spt.ROTARY 3a8a6241  spt.S4 22698520  spt.DLR c2177981  spt.TUNED bacda974
spt.TUNED_PRETRAIN 9783f022  spt.GRID b9279260  spt.RATIO fc0ea8b5  spt.FRACTIONS 8c362575
spt.DATA_SCALE eeeae35b  spt.TIED b4cc33d9  spt.SHARES 39da2c32  spt.SIZED 4a1caf6f
spt.SIZE_ROWS 70e0c498  spt.SIZES d8a4c001  spt.MINI 2e0d8ec9  spt.MINI_MODELS fafc34f6
spt.MINI_EPOCHS 649c75a5  spt.MINI_SHARE d2cbad71  spt.RATES da7e0048  spt.RATES_PRETRAIN af572d97
spt.PAPER 62264309  spt.MEANS d1550382
"""


def plain(table):
    """A literal table as lists. The order of its rows does not matter."""
    if isinstance(table, dict):
        return sorted((repr(key), plain(value)) for key, value in table.items())
    return [plain(value) for value in table] if isinstance(table, (tuple, list)) else table


def test_every_number_of_the_papers_tables_is_as_it_was_compared():
    """And every TABLE of a script has a digest; one that a script has from another counts once."""
    wanted = dict(zip(DIGESTS.split()[::2], DIGESTS.split()[1::2]))
    found = {}
    for script in SCRIPTS:
        for name, table in vars(importlib.import_module(script)).items():
            place = f"{script.removeprefix('exp_')}.{name}"
            is_table = place in wanted or name.startswith("TABLE") and name not in ("TABLES", "TABLE_BITS")
            if is_table and not any(table is other for other in found.values()):
                found[place] = table
    for place, table in found.items():
        if isinstance(table, dict):  # "plain" is tested below
            found[place] = {part: rows for part, rows in table.items() if part != "plain"}
    digests = {place: hashlib.sha256(repr(plain(table)).encode()) for place, table in found.items()}
    assert {place: digest.hexdigest()[:8] for place, digest in digests.items()} == wanted


def test_without_techniques_pathfinders_hard_set_has_three_times_the_epochs_and_nothing_else_changes():
    """Paper A, Table 5: 67 epochs of three sets, or 200 of the hard one."""
    tables = [(exp_locality.TABLE7, exp_locality.TASKS7)]
    tables += [*exp_multitask.TABLES.values(), *exp_kernels.TABLES.values()]
    assert len(tables) > 14
    for table, tasks in tables:
        for task in tasks:
            recipe = common.column(table, tasks, task)
            wanted = 200 if task == "pathfinder" else recipe["train"]["epochs"]
            assert recipe["plain"] == {"epochs": wanted}, (recipe["model"]["block"], task)


# ------------------------------------------------------------------------------------------ imports


def imports(path):
    """{module: what a script uses of it} of all that a script imports."""
    nodes, found = [*ast.walk(ast.parse(path.read_text("utf-8")))], {}
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            found.setdefault(node.module, set()).update(alias.name for alias in node.names)
        elif isinstance(node, ast.Import):
            found |= {alias.name: set() for alias in node.names}
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in found:
            found[node.value.id].add(node.attr)
    return found


@pytest.mark.parametrize(
    "script, words, said",
    [
        (exp_locality, "--task text --kernal=5", "no flag --kernal; did you mean --kernel?"),
        (exp_patches, "--task image --poll all", "no flag --poll; did you mean --pool?"),
        (exp_locality, "--task text --bucket", "no flag --bucket; did you mean --no-bucket?"),
        (exp_ngrams, "--task text --frobnicate", "not understood: --frobnicate"),
    ],
)
def test_a_misspelt_flag_gets_the_nearest_one(script, words, said, capsys):
    assert exit_code(script.main, *words.split()) == 2 and said in capsys.readouterr().err


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
    assert len(shared) <= 11
    for name in ("common", "data", "models", "records", "tables", "fetch", "listops", "pathfinder"):
        assert not any(m.startswith(("exp_", "claims", "bench")) for m in imports(ROOT / f"{name}.py")), name


# -------------------------------------------------------------------------------------- reports


@pytest.mark.parametrize("tier", [("--mini",), ()])
def test_a_task_of_ones_own_is_reported(tier, tmp_path, capsys):
    """One whose name and length data.py does not know, by the table's recipe and by a changed one."""
    script = importlib.import_module("exp_template")
    for flags in ((), ("--steps", 2)):
        assert exit_code(script.main, "--task", "majority", *tier, *flags, "--out", tmp_path) == 0
    capsys.readouterr()
    assert exit_code(script.main, "--report", *tier, "--out", tmp_path) == 0
    said = capsys.readouterr().out
    assert said.count("running mean") == 2 and "Recipe, Majority: 5 epochs, 1,600 examples" in said


@pytest.mark.parametrize("script", [exp_multitask, exp_kernels, exp_positional, exp_range, exp_listops])
def test_a_report_without_records_prints_the_papers_numbers(script, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(records, "RESULTS", tmp_path)
    another_papers = ["--all-tiers"] * (script is exp_kernels)  # Mamba-2's
    assert exit_code(script.main, "--report", *another_papers, "--out", tmp_path) == 0
    out = capsys.readouterr().out
    for name in ("TABLE2", "TABLE3", "TABLE4"):
        for values in vars(script).get(name, {}).values():
            assert all(f" {value:.2f} " in out for value in values)


@pytest.mark.parametrize("script, words, row", [
    (exp_multitask, "--model transformer", "Transformer"),
    (exp_kernels, "--model s4", "S4"),
    (exp_positional, "--position learned", "learned"),
    (exp_range, "--model conv --kernel 5 --stride 4", ""),
])  # fmt: skip
def test_a_mini_cell_is_trained_shown_and_can_be_rebuilt(script, words, row, tmp_path, monkeypatch, capsys):
    """At real sizes but for the number of steps and of examples."""
    monkeypatch.setattr(data, "MINI_COUNTS", {"train": 400, "val": 60, "test": 60})
    monkeypatch.setattr(tables, "save_figure", lambda figure, path: None)
    flags = ["--task", "listops", *words.split(), "--mini", "--steps", 6, "--limit", 100]
    flags += ["--device", "cpu", "--data-dir", tmp_path / "data", "--out", tmp_path]
    for trained in ("test accuracy", "is done"):
        assert exit_code(script.main, *flags) == 0
        assert trained in (said := capsys.readouterr().out)
    [r] = lines_of(tmp_path / "results.jsonl")
    assert (r["run"][:5], r["tier"], r["mini"], r["amp"], r["steps"]) == ("mini-", "mini", True, "off", 6)
    assert r["changes"] == {"limit": 100, "steps": 6} and (not row or r["row"] == row)
    number = f"{100 * r['test_acc']:.1f}"  # of the dial without its error
    assert re.search(rf"^\| .* {number}( ± \S+)? \(1", said, re.MULTILINE)
    model, _ = records.rebuild(tmp_path / r["run"] / "best.pt")
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
    monkeypatch.setattr(tables, "save_figure", lambda figure, path: None)
    flags = ["--task", "listops", "--smoke", "--out", str(tmp_path)]
    exp_kernels.main([*flags, "--model", "gmlp", "--epochs", "1"])
    exp_kernels.main([*flags, "--figure", "kernels"])
    assert "| layer 2 " in (printed := capsys.readouterr().out)
    assert all(f"| {exp_kernels.NAMES[block]} " in printed for block in exp_kernels.DRAWN)


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
    task = data.load("listops", "nowhere", smoke=True)

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
