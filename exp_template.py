"""An experiment to copy: is the mean of everything so far enough to tell which symbol is more frequent?

    cp exp_template.py exp_mine.py                     the file's name is the experiment's name
    python exp_mine.py --task majority --smoke         does it run? Seconds; no result
    python exp_mine.py --task majority --mini --steps 60
    python exp_mine.py --report

docs/new-experiment.md explains its parts.
"""

import torch

import common
import data
import models
import records
import tables


class RunningMean(torch.nn.Module):
    """x + relu(W [z; mean of z up to here]) with z = LN(x)."""

    def __init__(self, d_model):
        super().__init__()
        self.norm, self.linear = torch.nn.LayerNorm(d_model), torch.nn.Linear(2 * d_model, d_model)

    def forward(self, x, mask):  # x (B, L, D), mask (B, L), True at real positions -> (B, L, D)
        z = models.zero_padding(self.norm(x), mask)
        mean = z.cumsum(1) / mask.cumsum(1).clamp(min=1).unsqueeze(-1)
        return x + torch.relu(self.linear(torch.cat([z, mean], -1)))


models.BLOCKS["running-mean"] = RunningMean


def majority(limit, length=63):
    """A task made in code: which of two symbols is more frequent?"""
    draw, splits = torch.Generator().manual_seed(0), {}
    for split, n in (("train", 1600), ("val", 200), ("test", 200)):
        symbols = torch.randint(2, (n, length), dtype=torch.uint8, generator=draw)
        offsets = length * torch.arange(n + 1)  # where each example begins, and the last one ends
        label = (symbols.sum(1, dtype=torch.int64) * 2 > length).long()
        splits[split] = data.Split(symbols.flatten(), offsets, label)
    source = data.describe(splits, "generated")  # with the hash that makes two runs comparable
    task = data.Task("majority", classes=2, vocab=3, first_id=1, max_length=length, **splits, source=source)
    return data.dress(task, limit=limit)


TASKS = ("majority",)  # the columns of the table; a row is a tuple, or one value for all of them
TABLE = dict(
    model=dict(block="running-mean", depth=2, d_model=32),
    train=dict(technique=None, lr=(1e-2,), batch_size=32, weight_decay=0.1, epochs=(5,)),
)
SMOKE = dict(model=dict(depth=1), train=dict(epochs=1))


def run_cell(args, name, seed):
    task = majority(args.limit)
    recipe, table = common.recipe_for(args, name, (TABLE, TASKS), smoke=SMOKE)  # with --epochs and the like
    size = dict(vocab=task.vocab, classes=task.classes)
    records.run_cell(
        args, __file__, row="running mean", model="running-mean", cell={}, task=task, hp=recipe, seed=seed,
        build=lambda: models.SequenceModel(**recipe["model"], **size), table=table,
        loss_fn=common.classify_loss,
    )  # fmt: skip


def main(argv=None):
    args = common.parse_args(common.make_parser(__doc__, TASKS, techniques=False), argv)
    with common.exit_cleanly():
        if not args.report:
            records.run_cells(args, [(name,) for name in common.chosen(args.task, TASKS)], run_cell)
        tables.report(args, __file__, "Running mean", TASKS, {"majority": "Majority"}, paper={})


if __name__ == "__main__":
    main()
