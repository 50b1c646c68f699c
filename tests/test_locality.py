"""exp_locality.py: Table 1, its sizes, its report. pytest tests/test_locality.py"""

import json
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest
import torch

import common
import data
import exp_locality

ROOT = Path(__file__).parent.parent


def test_table_1_agrees_with_the_percentages_printed_beside_it():
    """The paper prints each accuracy's share of MEGA's too: typed here independently, rows K = 5 ... 61."""
    shares = """51.56 53.95 98.37 98.98 71.65  54.23 53.56 100.20 99.16 78.02  71.28 53.70 100.14 99.08 80.12
    77.68 54.17 99.81 98.31 82.80  88.28 53.33 98.78 98.04 83.83  92.46 75.28 94.45 97.58 83.51"""
    ours = [100 * a / m for row in exp_locality.TABLE1.values() for a, m in zip(row, exp_locality.MEGA)]
    assert len(ours) == 30
    assert ours == pytest.approx([float(s) for s in shares.split()], abs=0.011)


def test_table_7_spot_values_and_keys():
    text = common.column(exp_locality.TABLE7, exp_locality.TASKS7, "text")
    assert (text["depth"], text["lr"], text["batch_size"], text["weight_decay"], text["epochs"]) == (
        4,
        1e-3,
        16,
        0.2,
        80,
    )
    retrieval = common.column(exp_locality.TABLE7, exp_locality.TASKS7, "retrieval")
    assert (retrieval["lr"], retrieval["batch_size"], retrieval["epochs"]) == (3e-4, 64, 60)
    assert common.column(exp_locality.TABLE7, exp_locality.TASKS7, "pathfinder")["groups"] == 32
    assert common.column(exp_locality.TABLE7, exp_locality.TASKS7, "listops")["epochs"] == 120
    assert all(len(row) == len(exp_locality.TASKS7) for row in exp_locality.TABLE7.values())


@pytest.mark.parametrize(
    "task, kernel, millions",
    [
        *zip(exp_locality.TASKS7, [5] * 5, (1.218, 0.264, 0.822, 0.954, 1.187)),
        *zip(exp_locality.TASKS7, [61] * 5, (12.228, 0.608, 8.162, 8.294, 12.197)),
    ],
)
def test_parameter_counts_follow_from_the_papers_table(task, kernel, millions):
    """Sizes worked out by hand from Table 7 and the vocabularies; the denoising head is not counted."""
    hp = common.column(exp_locality.TABLE7, exp_locality.TASKS7, task)
    model = exp_locality.build(
        data.load(task, "unused", smoke=True), hp | {"kernel": kernel, "technique": "none"}
    )
    assert round(sum(p.numel() for p in model.parameters()) / 1e6, 3) == millions


def test_report_without_records_prints_the_papers_table(tmp_path, capsys, monkeypatch):
    empty = tmp_path / "none.jsonl"
    empty.touch()
    exp_locality.main(["--report", str(empty), "--out", str(tmp_path)])
    out = capsys.readouterr().out
    table = [line for line in out.splitlines() if line.startswith("| ")]
    assert len(table) == 1 + 6 + 2 and len({line.count("|") for line in table}) == 1
    assert "— / 88.96 (— / 98.37)" in table[1] and "— / 72.28 (— / 75.28)" in table[6]
    assert (tmp_path / "table1.png").stat().st_size > 10_000


def test_report_keeps_budgets_apart_and_averages_seeds(tmp_path, capsys):
    hp = exp_locality.recipe("text")
    record = dict(
        exp="locality",
        task="text",
        model="conv",
        cell={"kernel": 5},
        smoke=False,
        limit=None,
        date="2026-01-01",
        val_acc=0.5,
        data={"hash": "a"},
    )
    lines = [
        record | dict(run="a", seed=0, budget="paper", hp=hp, test_acc=0.89),
        record | dict(run="b", seed=1, budget="paper", hp=hp, test_acc=0.88),
        record | dict(run="c", seed=0, budget="reduced", hp=hp | {"epochs": 4, "lr": 0.01}, test_acc=0.85),
        record | dict(run="d", seed=0, budget="reduced", hp=hp | {"epochs": 4}, test_acc=0.99, smoke=True),
        record | dict(run="e", seed=0, budget="reduced", hp=hp | {"set_last_tenth": True}, test_acc=0.87),
    ]
    file = tmp_path / "r.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    exp_locality.main(["--report", str(file), "--out", str(tmp_path)])
    out = capsys.readouterr().out
    full, reduced = out.split("### Table 1 at reduced budgets")
    assert "88.50 ± 0.71 (n=2) / 88.96 (97.87 / 98.37)" in full and "85.00" not in full
    assert "85.00 (n=1)" in reduced and "all examples, 4 epochs, lr 0.01" in reduced and "99.00" not in out
    [row] = [line for line in reduced.splitlines() if "87.00 (n=1)" in line]
    assert "all examples, 80 epochs, last tenth at 0.1 x lr" in row


def test_report_shows_kernels_of_ours_and_does_not_mix_data(tmp_path, capsys):
    """Two seeds count together only where their data are the same."""
    hp, file = exp_locality.recipe("image") | {"kernel": 9}, tmp_path / "r.jsonl"
    record = dict(exp="locality", task="image", model="conv", cell={"kernel": 9}, smoke=False, limit=None)
    record |= dict(hp=hp, seed=0, date="2026-01-01", budget="paper", val_acc=0.5)
    unofficial = {"hash": "b", "official": False}
    lines = [
        record | {"run": "a", "test_acc": 0.50, "data": {"hash": "a"}},
        record | {"run": "b", "test_acc": 0.40, "data": unofficial, "val_acc": 0.4},
        record | {"run": "c", "test_acc": 0.30, "data": unofficial, "budget": "reduced", "limit": 500},
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    exp_locality.main(["--report", str(file), "--out", str(tmp_path)])
    out, err = capsys.readouterr()
    full, reduced = out.split("### Table 1 at reduced budgets")
    assert "left out: 1 runs of the cell of a" in err
    [row] = [line for line in full.splitlines() if line.startswith("| 9 ")]
    assert row.split("|")[4].strip() == "50.00 (n=1) / — (55.29 / —)"
    assert "500 examples, 200 epochs, not the official images" in reduced
    file.write_text(json.dumps(lines[1]) + "\n")
    exp_locality.main(["--report", str(file), "--out", str(tmp_path)])
    assert "40.00 (n=1, not the official images) / —" in capsys.readouterr().out


def test_the_figure_joins_only_runs_on_equal_terms():
    axis, lines = common.pyplot().figure().subplots(), []
    runs = (4, 5, 0.6, "a"), (4, 5, 0.7, "a"), (4, 61, 0.8, "a"), (8, 5, 0.9, "a"), (4, 61, 0.1, "b")
    for epochs, kernel, accuracy, made in runs:
        hp = exp_locality.recipe("text") | {"epochs": epochs}
        run = dict(task="text", cell={"kernel": kernel}, hp=hp, limit=None, test_acc=accuracy)
        lines.append(run | {"data": {"hash": made}})
    exp_locality.plot_ours(axis, lines, "none", "ours")
    drawn = [list(map(tuple, line.get_xydata())) for line in axis.lines]
    apart = [(5, pytest.approx(90))], [(61, pytest.approx(10))]
    assert drawn == [[(5, pytest.approx(65)), (61, pytest.approx(80))], *apart]
    [dots] = axis.collections
    wanted = [[5, 60], [5, 70], [61, 80], [5, 90], [61, 10]]
    assert dots.get_offsets().tolist() == [pytest.approx(dot) for dot in wanted]
    common.pyplot().close()


@pytest.mark.parametrize(
    "flags, budget",
    [([], "paper"), (["--kernel", "9"], "paper"), (["--epochs", "80"], "paper")]
    + [(["--epochs", "81"], "reduced"), (["--set-last-tenth"], "reduced")]
    + [(["--limit", "5"], "reduced"), (["--max-length", "64"], "reduced")],
)
def test_what_is_not_the_papers_recipe_is_marked_reduced(flags, budget, monkeypatch):
    """Training itself is left out: what would be recorded, for Text's 80 epochs."""
    seen = []
    monkeypatch.setattr(data, "require", lambda *args: None)
    monkeypatch.setattr(data, "load_recipe", lambda *args: data.load("text", "unused", smoke=True))

    def run_cell(args, hp, paper, **rest):
        seen.append(common.budget(args, hp, paper))

    monkeypatch.setattr(common, "run_cell", run_cell)
    exp_locality.main(["--task", "text", *(flags if "--kernel" in flags else [*flags, "--kernel", "5"])])
    assert seen == [budget]


def test_the_papers_own_length_given_as_a_flag_changes_nothing():
    args = types.SimpleNamespace(limit=None, max_length=4096, smoke=False)
    hp = {"lr": 1e-3, "max_length": 4096}
    assert common.budget(args, hp, dict(hp)) == "paper"
    assert common.budget(args, hp, {"lr": 1e-3}) == "reduced"  # the table says nothing of a length


def test_the_smoke_run_is_quick_and_needs_nothing_but_the_repository(tmp_path, capsys):
    """ListOps from its real generator, K = 5, in a folder without data; limit: 30 s on two cores."""
    started = time.monotonic()
    cell = ["--task", "listops", "--kernel", "5", "--smoke"]
    command = [sys.executable, str(ROOT / "exp_locality.py"), *cell]
    out = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    print(f"took {time.monotonic() - started:.1f} s")
    assert "test accuracy" in out and len((tmp_path / "runs" / "results.jsonl").read_text().splitlines()) == 1
    exp_locality.main([*cell, "--out", str(tmp_path / "runs")])
    again = capsys.readouterr().out
    assert "is done" in again and "epoch" not in again.split("is done")[0]


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compile_reaches_the_model_and_the_record(mode, tmp_path, monkeypatch):
    modes = []
    monkeypatch.setattr(common, "require_sound_compiler", lambda device: None)  # nothing is compiled here
    monkeypatch.setattr(torch.nn.Module, "compile", lambda model, mode: modes.append(mode))
    flags = ["--compile"] if mode == "default" else ["--compile", mode]
    exp_locality.main(["--task", "text", "--smoke", "--epochs", "1", "--out", str(tmp_path), *flags])
    (record,) = common.read_records([tmp_path / "results.jsonl"])
    assert modes == [mode] and record["compile"] == mode


def test_every_cell_of_a_command_is_compiled(tmp_path, monkeypatch):
    """torch compiles a function for so many cases and then quietly no more; here it raises instead."""
    monkeypatch.setattr(common, "require_sound_compiler", lambda device: None)  # eager code is sound
    compiled = torch.nn.Module.compile
    monkeypatch.setattr(torch.nn.Module, "compile", lambda model, mode: compiled(model, backend="eager"))
    flags = ["--smoke", "--epochs", "1", "--device", "cpu", "--compile", "--out", str(tmp_path)]
    # The limit is 8, and a cell takes 2.
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True, recompile_limit=3):
        exp_locality.main(["--task", "text", "--kernel", "5", "7", *flags])
    assert len(common.read_records([tmp_path / "results.jsonl"])) == 2
