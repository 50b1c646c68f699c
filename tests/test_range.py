"""exp_range.py: the meter against what is known, whose runs the table counts. (test_data.py has the dial.)

pytest tests/test_range.py
"""

import math

import numpy as np
import pytest
import torch

import data
import exp_range
import models

# ------------------------------------------------------------------------------------------ the meter


class Pairs(torch.nn.Module):
    """f = sum over d and t of a[d] s(u_t) s(u_(t + d)), s = -1 or 1: pairs d apart interact by 4 |a[d]|."""

    def __init__(self, a):
        super().__init__()
        self.a = a

    def forward(self, tokens, mask):
        return 2.0 * tokens.double() - 3

    def classify(self, s, mask, docs=1):
        return sum(a * (s[:, :-d] * s[:, d:]).sum(1, keepdim=True) for d, a in self.a.items())


def coins(n, length):
    """A task of n random documents of two symbols, ids 1 and 2."""
    symbols = torch.randint(2, (n * length,), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    split = data.Split(symbols, length * torch.arange(n + 1), torch.arange(n) % 2)
    return data.Task("coins", 2, 3, 1, length, split, split, split, source={})


def test_a_meter_measures_interactions_that_are_known():
    a = {1: 1.0, 2: -0.5, 7: 0.25, 20: 0.1}
    sizes = exp_range.interactions(Pairs(a), coins(4000, 64), (1, 2, 3, 7, 20), examples=1000)
    changed = 1 - 1 / 16  # four draws find the other symbol
    wanted = [4 * abs(a.get(d, 0)) * changed**2 for d in (1, 2, 3, 7, 20)]
    assert sizes == pytest.approx(wanted, rel=0.06, abs=1e-9)


def test_the_range_is_that_of_all_pairs():
    L, sizes = 40, np.random.default_rng(0).random(39)
    pairs = sorted((j - i, sizes[j - i - 1]) for i in range(L) for j in range(i + 1, L))
    total = sum(size for _, size in pairs)
    mean, most = exp_range.summarised(range(1, L), sizes, L)
    assert mean == pytest.approx(sum(d * size for d, size in pairs) / total)
    within = [sum(size for d, size in pairs if d <= far) / total for far in (most - 1, most)]
    assert within[0] < 0.9 <= within[1]


def test_a_meter_sees_as_far_as_a_stack_of_convolutions_and_no_further():
    torch.manual_seed(0)
    task = data.load("image", "nowhere", smoke=True)
    model = models.SequenceModel("conv", 2, 8, task.vocab, task.classes, d_hidden=8, kernel=5)
    reach = 2 * 2 * (5 // 2)  # two positions meet in one that is within reach of both
    sizes = exp_range.interactions(model, task, (1, reach, reach + 1, 200), examples=8)
    assert (sizes[:2] > 1e-9).all() and (sizes[2:] < 1e-12).all()


# ------------------------------------------------------------------------------------------ the table


def record(exp, kernel, seed, accuracy, task="text", stride=None):
    """A mini record, as far as the dial's table reads it."""
    cell = {"kernel": kernel} | ({"stride": stride} if stride else {})
    made = dict(
        exp=exp, task=task, model="conv", cell=cell, row=f"{cell}", changes={}, seed=seed, tier="mini"
    )
    made |= dict(run=f"{exp} {cell} {seed}", test_acc=accuracy, val_acc=accuracy, limit=None)
    train = {"lr": 1e-3} | ({"stride": stride} if stride else {})
    return made | {"data": {"hash": "d", "counts": {}}, "hp": {"model": {"kernel": kernel}, "train": train}}


def test_runs_of_other_scripts_count_at_s_1_and_once():
    found = [record("range", 5, 0, 0.6, stride=16), record("range", 5, 0, 0.7, stride=1)]
    found += [record("locality", 5, 0, 0.7), record("locality", 5, 1, 0.8)]
    found += [record("locality", 7, 0, 0.9)]  # was never dialled
    found += [record("range", 5, 0, 0.3, "image", stride=4)]
    found += [record("locality", 5, 0, 0.5, "image")]  # trained for longer than the dial's
    tables = exp_range.of_the_dial(found)
    seen = {
        task: {(row.label(), s): sorted(r["test_acc"] for r in group) for (row, s), group in cells.items()}
        for (task, _), cells in tables.items()
    }
    assert seen == {"text": {("K=5", 1): [0.7, 0.8], ("K=5", 16): [0.6]}, "image": {("K=5", 4): [0.3]}}


def test_other_scripts_rows_are_the_dials_models():
    def here(model, cell, task="text"):
        r = dict(model=model, cell=cell, task=task, tier="mini")
        found = exp_range.at_stride_1(r)
        return found and (found["row"], found["model"], found["cell"])

    assert here("conv", {"kernel": 1}) == ("K=1 (bag of symbols)", "bag", {"stride": 1})
    plain = {"techniques": "no"}
    assert here("s4", plain) == ("S4, no techniques", "s4", {"stride": 1} | plain)
    assert here("transformer", {"position": "learned"}) == ("learned", "learned", {"stride": 1})
    others = [
        ("transformer", {"position": "rotary"}),
        ("conv", {"kernel": 5, "norm_place": "post"}),
        ("lru", {}),
    ]
    assert not any(here(*other) for other in others) and not here("s4", {}, "image")


def test_a_report_prints_yours_and_the_repositorys_apart(tmp_path, monkeypatch, capsys):
    found = [record("range", 5, 0, 0.625, stride=16), record("range", 5, 0, 0.375, stride=64)]
    yours = exp_range.of_the_dial(found)["text", "mini"]
    ours = exp_range.of_the_dial([record("range", 5, 0, 0.5, stride=64)])["text", "mini"]
    drawn = []
    monkeypatch.setattr(exp_range.tables, "save_figure", lambda figure, path: drawn.append(figure))
    exp_range.print_dial("text", "mini", yours, ours, False)
    exp_range.plot_dial("text", "mini", yours, ours, tmp_path / "dial.png")
    mine, theirs = capsys.readouterr().out.split("This repository's runs")
    assert "62.5 (1)" in mine and "50.0" not in mine and "50.0 (1)" in theirs
    header, _, row = ([c.strip() for c in line.split("|")[1:-1]] for line in mine.splitlines()[6:9])
    assert header == ["", "4 apart", "16 apart"]
    assert row == ["K=5", "37.5 (1)", "62.5 (1)"]
    heights = [line.get_ydata()[0] for line in drawn[0].axes[0].containers for line in line.lines[:1]]
    assert sorted(heights) == [37.5, 50] and math.isfinite(sum(heights))


@pytest.mark.parametrize("flags, tables", [((), 0), (("--all-tiers",), 1)])
def test_a_report_shows_the_mini_tier_once_and_of_the_task_alone(
    flags, tables, tmp_path, monkeypatch, capsys
):
    """At full size nobody has run the dial: what the mini tier says stands there in short."""
    monkeypatch.setattr(exp_range.tables, "save_figure", lambda figure, path: None)
    exp_range.main(["--report", "--task", "text", *flags, "--out", str(tmp_path)])
    printed = capsys.readouterr().out
    assert printed.count("### The dial: Text (mini tier)") == tables and "Image:" not in printed
    assert "### The dial: Image" not in printed
    assert printed.count("- neighbours 16 apart: K=5 and K=31 fall") == 1


def test_the_dial_says_who_falls_to_what_a_bag_of_symbols_has():
    """By hand: a bag has 50 %, so 51.5 is at its level and 52.5 is not; K = 7 has not learnt an order."""
    accuracies = {1: (0.5, 0.5), 5: (0.75, 0.515), 31: (0.75, 0.525), 7: (0.515, 0.5)}
    found = [
        record("range", K, 0, accuracy, stride=s)
        for K, pair in accuracies.items()
        for s, accuracy in zip((1, 16), pair)
    ]
    for r in found[:2]:
        r["model"] = "bag"
    cells = exp_range.of_the_dial(found)["text", "mini"]
    apart, own = exp_range.in_words("text", "mini", cells)
    assert own == "neighbours not moved: K=7 is at the bag already, and has no order to lose"
    words = "K=5 falls to the bag; K=31 keeps 10 % of its lead over it"  # 2.5 of 25 points
    assert apart == f"neighbours 16 apart: {words}"
    for r in found:  # now three models learn an order, and all lose it
        r["test_acc"] = 0.75 if r["hp"]["train"].get("stride", 1) == 1 and r["model"] != "bag" else 0.5
    cells = exp_range.of_the_dial(found)["text", "mini"]
    words = "K=5, K=7 and K=31 fall to the bag"
    assert [*exp_range.in_words("text", "mini", cells)] == [f"neighbours 16 apart: {words}"]
