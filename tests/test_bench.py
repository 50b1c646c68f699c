"""bench.py: what its numbers are made of, and that its parts run; nothing here is timed.

pytest tests/test_bench.py
"""

import itertools

import pytest
import torch
from conftest import lines_of

import bench
import common
import exp_kernels
import exp_multitask
import models


def test_samples_of_a_plan_are_near_its_mean():
    task = bench.stand_in("text", bench.recipe("conv-5", "text"), 50 * 16)
    plan = task.plan(16, torch.Generator().manual_seed(0), True)
    short = torch.arange(3)  # what is left over at the end of an epoch
    chosen, longest = bench.sample(task, [short, *plan], 10)
    chosen, widths = ([int(task.lengths["train"][index].max()) for index in x] for x in (chosen, plan))
    assert int(task.lengths["train"][longest].max()) == max(widths)
    assert sum(chosen) / 10 == pytest.approx(sum(widths) / len(widths), rel=0.1)
    assert 1100 < float(task.lengths["train"].float().mean()) < 1500  # as IMDB's


@pytest.fixture
def small(monkeypatch):
    """Every cell in its smoke size, and short lengths."""
    full = bench.recipe

    def shrunk(*cell):
        sizes = {**exp_multitask.SMOKE["model"], **exp_kernels.SMOKE["model"]}
        return common.with_rows(full(*cell), {"model": sizes})

    monkeypatch.setattr(bench, "recipe", shrunk)
    monkeypatch.setattr(bench, "LENGTHS", (16, 64))


def rows_of(tmp_path, *words):
    bench.main([*words, "--out", str(tmp_path / "rows.jsonl")])
    return lines_of(tmp_path / "rows.jsonl")


def test_hours_are_those_of_the_steps_validations_and_tests(small, tmp_path, monkeypatch, capsys):
    """By hand, where a step takes 2 ms in the median and an example evaluated 1 ms: of Text 22,500 examples
    for 80 epochs in batches of 16, the last of each of 4; 2,500 to validate; 25,000 to test, twice."""
    factors = itertools.chain([1000], itertools.cycle([1, 9, 2, 0.5, 3, 0.5, 2]))  # 1000: the warm-up

    def evaluate(cell):
        return 0.001 * len(cell.task.val.label)

    monkeypatch.setattr(bench.Cell, "train", lambda cell, plan: 0.001 * len(plan) * next(factors))
    monkeypatch.setattr(bench.Cell, "evaluate", evaluate)
    [row] = rows_of(tmp_path, "step", "--model", "conv-5", "--task", "text", "--amp", "off")
    assert [row[key] for key in ("ms", "fastest", "slowest", "eval ms")] == pytest.approx([2, 0.5, 9, 1])
    by_hand = (1407 * 80 * 2 + (80 * 2500 + 2 * 25000) * 1) / 1000 / 3600
    assert row["hours"] == pytest.approx(by_hand)
    printed = capsys.readouterr().out
    assert (
        "threads 1" in printed and "repetitions 7" in printed and "| conv-5 | text | float32 | 16 " in printed
    )


def test_slopes_are_powers_of_the_length(small, tmp_path, monkeypatch):
    def train(cell, plan):
        return 1e-6 * float(cell.task.lengths["train"]) ** 1.5

    monkeypatch.setattr(bench.Cell, "train", train)
    first, second = rows_of(tmp_path, "length", "--model", "conv-5", "--amp", "off")
    assert (first["length"], first["slope"], second["length"]) == (16, None, 64)
    assert second["slope"] == pytest.approx(1.5)


@pytest.mark.processes
def test_every_block_is_measured(small, tmp_path):
    """Each for real."""
    blocks = {bench.recipe(model, "text")["model"].get("block", "conv") for model in bench.MODELS}
    assert blocks == models.BLOCKS.keys()
    rows = rows_of(tmp_path, "length", "--amp", "off", "--repeat", "1")
    found = {(row["model"], row["length"]): row["ms"] for row in rows}
    assert found.keys() == set(itertools.product(bench.MODELS, bench.LENGTHS)) and min(found.values()) > 0
    step = rows_of(tmp_path, "step", "--model", "conv-5", "--task", "image", "--amp", "off", "--repeat", "1")[
        -1
    ]
    assert step["part"] == "step" and 0 < step["ms"] and 0 < step["eval ms"] < step["ms"]
