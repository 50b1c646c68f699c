"""bench.py: what its numbers are made of, and that its parts run; nothing here is timed.

pytest tests/test_bench.py
"""

import json
from types import SimpleNamespace

import pytest
import torch

import bench
import common
import exp_multitask


def test_samples_of_a_plan_are_near_its_mean():
    task = bench.stand_in("text", bench.recipe("conv-5", "text"), 50 * 16)
    plan = task.plan(16, torch.Generator().manual_seed(0), True)
    short = torch.arange(3)  # what is left over at the end of an epoch
    chosen, longest = bench.sample(task, [short, *plan], 10)
    chosen, widths = ([int(task.lengths["train"][index].max()) for index in x] for x in (chosen, plan))
    assert int(task.lengths["train"][longest].max()) == max(widths)
    assert sum(chosen) / 10 == pytest.approx(sum(widths) / len(widths), rel=0.1)
    assert 1100 < float(task.lengths["train"].float().mean()) < 1500  # as IMDB's


class OneLayer(torch.nn.Module):
    denoise_head = None
    classify = staticmethod(lambda features, mask, docs: features.sum())  # keeps nothing

    def __init__(self):
        super().__init__()
        self.embedding, self.linear = torch.nn.Embedding(2, 16), torch.nn.Linear(16, 24)

    def forward(self, tokens, mask):
        return self.linear(self.embedding(tokens)).relu()


def test_what_is_kept_for_the_backward_pass_agrees_with_a_count_by_hand():
    positions = 7 * 2 * 100  # pairs of documents
    by_hand = 8 * positions  # ids, for the embedding's gradient
    by_hand += 2 * 16 * positions + 2 * 16 * 24  # bf16 input and bf16 copy of W, for each other's gradient
    by_hand += 2 * 24 * positions  # relu's output
    task = SimpleNamespace(docs=2, max_length=100)
    assert bench.kept_for_backward(OneLayer(), task, 7) == by_hand


def test_parts_print_a_table_and_write_rows(tmp_path, monkeypatch, capsys):
    full, rows = bench.recipe, tmp_path / "rows.jsonl"
    bench.main(["memory", "--model", "transformer", "--task", "text", "--out", str(rows)])
    monkeypatch.setattr(bench, "recipe", lambda *cell: common.with_rows(full(*cell), exp_multitask.SMOKE))
    bench.main(["step", "--model", "conv-5", "--task", "image", "--out", str(rows)])
    memory, step = map(json.loads, rows.read_text().splitlines())
    recipe = full("transformer", "text")
    model = exp_multitask.build(bench.stand_in("text", recipe), recipe)
    assert memory["state GB"] == 16 * sum(p.numel() for p in model.parameters()) / 1e9
    needs = {part: 1 + memory["state GB"] + 2 * memory["kept GB"] * part / 16 for part in (16, 8)}
    assert needs[8] < 8 < needs[16] < 12 and memory["8 GB"] == "--micro-batch 8" and memory["12 GB"] == "all"
    assert step["ms"] > 0 and "| transformer | text | 16 " in capsys.readouterr().out
