"""bench.py: what its numbers are made of, and that its parts run; nothing here is timed.

pytest tests/test_bench.py
"""

import json
from types import SimpleNamespace

import pytest
import torch

import bench
import common
import data
import exp_multitask


def test_views_are_no_launches():
    x = torch.randn(3, 5, 64, requires_grad=True)
    with bench.Launches() as mode:
        (x.detach().view(3, 64, 5).transpose(0, 1)[:3] + 1).exp()
    assert mode.count == 2


@pytest.mark.parametrize(
    "model, name, most",
    [("conv-5", "text", 175), ("transformer", "image", 580), ("s4", "image", 1160), ("s5", "image", 1105)],
)
def test_a_step_stays_below_a_stated_number_of_launches(model, name, most):
    """So many operations were counted when this was written, plus a tenth; more would cost a GPU time."""
    hp = bench.recipe(model, name)
    hp |= {row: 32 for row in ("d_model", "d_hidden", "d_ff") if row in hp} | {"batch_size": 2}
    task = bench.stand_in(name, 4, hp)
    network = exp_multitask.build(task, hp)
    optimizer = common.make_optimizer(network, hp)
    batch = next(task.training_batches([torch.arange(2)], torch.Generator(), 0))
    autocast = torch.autocast("cpu", torch.bfloat16)
    common.train_step(network, optimizer, batch, common.multitask_loss, hp, autocast, {"totals": {}})
    counts = bench.count_launches(network, optimizer, batch, autocast)
    assert sum(counts) <= most, counts


def test_samples_of_a_plan_are_near_its_mean():
    task = bench.stand_in("text", 50 * 16, bench.recipe("conv-5", "text"))
    assert 1100 < float(task.lengths["train"].float().mean()) < 1500
    plan = task.plan(16, torch.Generator().manual_seed(0), True)
    short = torch.arange(3)  # what is left over at the end of an epoch
    chosen, longest = bench.sample(task, [short, *plan], 10)
    widths = [int(task.lengths["train"][index].max()) for index in plan]
    assert {len(index) for index in chosen} == {16}
    assert int(task.lengths["train"][longest].max()) == max(widths)
    mean = sum(int(task.lengths["train"][index].max()) for index in chosen) / 10
    assert mean == pytest.approx(sum(widths) / len(widths), rel=0.1)


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


def test_hours_are_of_all_steps_and_a_third_for_each_evaluated_batch():
    steps = bench.projected_steps("image", {"epochs": 2, "batch_size": 100})
    assert steps == 2 * 450 + (2 * 50 + 2 * 100) / 3


@pytest.mark.parametrize("whole, splittable, state, part", [
    (3.4e9, False, 0, "all"), (3.6e9, False, 0, None),
    (12e9, True, 0, "--micro-batch 16"), (0, True, 7.5e9, None),
])  # fmt: skip
def test_a_card_of_8_gb_is_asked_for_what_it_can_hold(whole, splittable, state, part):
    assert bench.largest_part(8, state, lambda n: whole * n / 64, 64, splittable) == part


def test_parts_print_a_table_and_write_rows(tmp_path, capsys):
    rows = tmp_path / "rows.jsonl"
    step = "step --smoke --model conv-5 --task image --steps 1".split()
    bench.main([*step, "--out", str(rows)])
    bench.main(["memory", "--model", "s5", "--task", "text", "--out", str(rows)])
    lines = [json.loads(line) for line in rows.read_text().splitlines()]
    assert [line["part"] for line in lines] == ["step", "memory"] and lines[0]["ms"] > 0
    hp, task = bench.recipe("s5", "text"), data.load("text", "", smoke=True, denoise=True)
    model = exp_multitask.build(task, hp)
    assert lines[1]["state GB"] == 16 * sum(p.numel() for p in model.parameters()) / 1e9
    assert "| s5    | text | 50 " in capsys.readouterr().out


def test_mistakes_are_told_before_anything_is_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "PARTS", {"memory": lambda *cell: pytest.fail("measured")})
    (tmp_path / "file").touch()
    for argv in (["memory", "--steps", "0"], ["memory", "--out", str(tmp_path / "file" / "rows")]):
        with pytest.raises(SystemExit) as stop:
            bench.main(argv)
        assert stop.value.code == 2
