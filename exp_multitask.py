"""Table 2 of paper A: do a few training techniques bring a plain Transformer to where MEGA is?

    python exp_multitask.py --task text --model transformer --mini   minutes on a CPU core
    python exp_multitask.py --task text --model transformer   one cell as the paper ran it: 90.33 %
    python exp_multitask.py --task all --model transformer mega ema-attention   the whole table
    python exp_multitask.py --task all --model transformer --no-techniques   64.98 % on average (Table 4)
    python exp_multitask.py --task listops --mini --steps 6000 --limit 3000  techniques against data
    python exp_multitask.py --report                          ours beside the paper's

The techniques, each on the training examples only: CIFAR10 is augmented; Pathfinder trains on all three
difficulty sets, a third as many epochs; ListOps shuffles the arguments of every operator afresh; the texts
are corrupted (30 % of the bytes) and a second head restores them while the first classifies. In the paper a
Transformer with rotary positions averages 85.69 % with them, MEGA 86.25 % without, and MEGA gains nothing.

"mega" is Ma et al.'s block. The paper's own row, MEGA ‡, is another model: its public code puts an attention
behind a moving average into the Transformer's layer. That is "ema-attention".

The mini tier's claims, fixed before its runs (CLAIMS): the Transformer gains at least 2 points by denoising
on Text (the paper: 20.6) and by shuffling on ListOps (19); it gains at least 1 point more than either MEGA.
Techniques are data, says the paper: then shuffling gains at least 2 points where 6,000 steps of ListOps have
3,000 examples, and between -1.5 and 1.5 where they have 192,000, none of them seen twice. It gains at least
2 points with 12,000 examples in 40 epochs; so do flips with 5,000 of Image in 36 (the paper, augmenting all
of them: 29.3). Flips did not; so, fixed before its runs again, does paper A's own augmentation (--augment
paper), by 2 points?
Rates of ListOps, Text and the Transformer's on Image were searched (NOTES.md); Retrieval has those of Text,
all others are 1e-3.

Paper A: "You Can Train from Scratch: Further Discussion on the Long Range Arena" (OpenReview YuFUUcSUgx).
"""

from itertools import product

import common
import data
import models
import records
from records import lead, markdown, paper_and_ours_rows

# fmt: off
# Table 5: the Transformer. Columns in the paper's order, which is not that of its other tables.
TASKS5 = ("listops", "image", "pathfinder", "text", "retrieval")
TABLE5 = dict(
    d_model      = (   256,     160,    128,    256,    128),
    depth        = (     6,      10,      6,      8,      6),
    heads        = (     4,       4,      4,      4,      4),
    d_ff         = (   512,     320,    256,    512,    256),
    dropout      = (   0.0,     0.0,    0.0,    0.0,    0.0),
    activation   = ("relu",  "relu", "relu", "relu", "relu"),
    norm         = ("layer",) * 5,
    prenorm      = (  True,    True,   True,   True,   True),
    base         = (   1e4,     1e4,    1e4,    1e4,    1e4),  # of the rotary frequencies
    disable_half = ( False,    True,  False,   True,   True),  # half of them are zero
    pooling      = ("mean",) * 5,
    lr           = (  1e-4,    1e-3,   1e-3,   1e-3,   1e-3),
    batch_size   = (    64,      48,    128,     16,     64),
    weight_decay = (  0.05,    0.05,   0.05,   0.01,   0.01),
    epochs       = (   120,     200,     67,     80,     60),  # Pathfinder 200 on the hard set alone
)

# MEGA: the sizes and rates of facebookresearch/mega, whose column order this is, with the exceptions of
# Appendix A.2: softmax attention everywhere (theirs: "laplace" for image and pathfinder), Table 5's epochs.
# A prenorm stack of theirs ends with one more norm.
TASKS_MEGA = ("listops", "text", "retrieval", "image", "pathfinder")
TABLE_MEGA = dict(
    depth        = (     6,       4,       6,       8,       6),
    d_model      = (    80,     128,     128,     160,     128),
    d_hidden     = (   160,     256,     256,     320,     256),
    d_attention  = (    64,      64,      64,      96,      64),
    ema_dim      = (    16,      16,      16,      16,      16),
    truncation   = (  1024,    1024,    1024,    1024,    1024),  # taps of the EMA's kernel
    attention    = ("softmax",) * 5,
    norm         = ("layer", "scale", "scale", "batch", "batch"),
    prenorm      = ( False,   False,   False,    True,    True),
    final_norm   = (  None,    None,    None, "batch", "batch"),
    dropout      = (   0.1,     0.1,     0.1,     0.0,     0.0),
    clip         = (   1.0,     1.0,     1.0,     1.0,     1.0),
    embedding_dropout = (0.1,   0.1,     0.1,     0.0,     0.0),
    embedding_std = (80**-0.5, 128**-0.5, 128**-0.5, 160**-0.5, 128**-0.5),
    lr           = (  1e-3,    4e-3,    3e-3,    1e-2,    1e-2),
    batch_size   = (    64,      50,      64,      50,     128),
    weight_decay = (  0.01,    0.01,    0.04,    0.02,    0.01),
    epochs       = (   120,      80,      60,     200,      67),
)
# MEGA ‡, the block of the authors' public code: MEGA's sizes, and its rate where that is not too high for it.
SHARED = ("depth", "d_model", "d_hidden", "d_attention", "ema_dim", "dropout", "clip", "batch_size")
SHARED += ("weight_decay", "epochs")
TABLE_EMA = {row: TABLE_MEGA[row] for row in SHARED} | dict(
    d_ff         = (   160,     256,     256,     320,     256),
    truncation   = (  None,    2048,    2048,    1025,    1025),
    lr           = (  1e-3,    4e-3,    3e-3,    1e-3,    1e-3),
)
TABLES = {
    "transformer": (TABLE5, TASKS5), "mega": (TABLE_MEGA, TASKS_MEGA),
    "ema-attention": (TABLE_EMA, TASKS_MEGA),
}
# The mini tier: of each model's own table the rows that differ, for each of COLUMNS or for all tasks alike.
COLUMNS = ("image", "pathfinder", "text", "retrieval", "listops")
MINI = dict(
    depth=(2, 2, 2, 2, 4), d_model=64, heads=2, d_ff=128, d_hidden=128, d_attention=32, dropout=0.0,
    embedding_dropout=0.0, embedding_std=0.125, lr=(1e-3, 1e-3, 3e-3, 3e-3, 1e-3), epochs=(4, 10, 6, 6, 6),
    weight_decay=(0.05, 0.05, 0.01, 0.01, 0.05), batch_size=(32, 32, 16, 32, 32),
)
# Where a search found another rate.
MINI_LR = {(task, model, "no"): 1e-3 for task in ("text", "retrieval") for model in ("transformer", "mega")}
MINI_LR |= {("image", "transformer", techniques): 3e-3 for techniques in ("yes", "no")}
# Not in the paper: a parent with one thing changed. Which part of it does the work?
VARIANTS = {
    "linear":         ("transformer", dict(kind="linear")),  # is its 65.9 a matter of training?
    "window":         ("transformer", dict(band=2)),         # attention that reaches as far as K = 5
    "conv-attention": ("transformer", dict(conv=5)),         # a convolution of K = 5 comes first
    "gau":            ("mega", dict(ema=False)),             # MEGA without its moving average
}
MAX_LENGTH = dict(listops=2000, image=1024, pathfinder=1024, text=4096, retrieval=4096)  # Table 6

# Table 2: test accuracy in percent, columns as COLUMNS, and the printed average (Path-X was not run).
TABLE2 = {
    "Transformer (Tay et al.)":    (42.44, 71.40, 64.27, 57.46, 36.37, 54.39),
    "Transformer † (Amos et al.)": (86.04, 94.16, 91.02, 91.57, 61.49, 84.86),
    "Transformer ‡":               (88.15, 96.28, 90.33, 90.80, 62.90, 85.69),
    "MEGA (Ma et al.)":            (90.44, 96.01, 90.43, 91.25, 63.14, 86.25),
    "MEGA ‡ (paper A's block)":    (87.60, 94.78, 90.92, 91.32, 61.15, 85.15),
}
# fmt: on

NAMES = {
    "transformer": "Transformer", "mega": "MEGA (Ma et al.)", "ema-attention": "MEGA (paper A's block)",
    "linear": "linear attention", "window": "attention to 2 neighbours", "gau": "MEGA without EMA (GAU)",
    "conv-attention": "convolution K=5, then attention",
}  # fmt: skip
LABELS = {  # how we name what we train; with ‡ the paper has numbers for it
    (model, techniques): f"{title}{words}"
    for model, title in NAMES.items()
    for techniques, words in (("yes", " ‡"), ("no", ", no techniques"))
}
LABELS["ema-attention", "yes"] = "MEGA ‡ (paper A's block)"


def gain(task, model, sign=1, words=""):
    """The cells of a claim: what the techniques give a model."""
    return lead(task, LABELS[model, "yes"] + words, LABELS[model, "no"] + words, sign)


DATA, DATA_STEPS = (3_000, 12_000, 48_000, 192_000), 6_000  # examples of ListOps at equal steps of 32
FEW_IMAGES = "; 5,000 examples, 36 epochs"
DENOISING = gain("text", "transformer")
# What the paper says, as differences in points at the mini tier: (words, signed cells, from, to).
CLAIMS = [
    ("Text: denoising helps the Transformer", DENOISING, 2, None),
    ("ListOps: shuffling helps the Transformer", gain("listops", "transformer"), 2, None),
    *((f"Text: denoising helps {NAMES[m]} less", DENOISING + gain("text", m, -1), 1, None)
      for m in ("mega", "ema-attention")),
    *((f"ListOps, {n:,} examples: shuffling {words}",
       gain("listops", "transformer", words=f"; {n:,} examples, {DATA_STEPS:,} steps"), low, high)
      for n, words, low, high in ((DATA[0], "helps", 2, None), (DATA[-1], "changes little", -1.5, 1.5))),
    ("ListOps, 12,000 examples, 40 epochs: shuffling helps",
     gain("listops", "transformer", words="; 12,000 examples, 40 epochs"), 2, None),
    ("Image, 5,000 examples: flips help the Transformer",
     gain("image", "transformer", words=FEW_IMAGES), 2, None),
    ("Image, 5,000 examples: paper A's augmentation helps",
     lead("image", f"Transformer ‡{FEW_IMAGES}, augment paper",
          f"Transformer, no techniques{FEW_IMAGES}"), 2, None),
]  # fmt: skip

# ------------------------------------------------------------------------------------------ the idea


def recipe(model, name, techniques="yes", mini=False):
    """Everything that one cell is trained with, as the paper trained it; or "no" techniques: clean
    examples, one loss, and of Pathfinder the hard set alone, three times as often."""
    parent, changed = VARIANTS.get(model, (model, {}))
    hp = {"block": parent} | common.column(*TABLES[parent], name) | changed | {"max_length": MAX_LENGTH[name]}
    hp["position"] = "rotary" if parent == "transformer" else "none"  # MEGA's is inside its blocks
    if mini:
        hp |= mini_rows(hp, name) | ({"truncation": None} if parent == "ema-attention" else {})
        hp["lr"] = MINI_LR.get((name, parent, techniques), hp["lr"])
    return hp | data.technique_rows(name, techniques, mini)


def mini_rows(hp, name, table=MINI):
    """What the mini tier has in place of the rows of a recipe."""
    rows = common.column(table, COLUMNS, name) | {"max_length": data.MINI_LENGTHS[name]}
    return {row: value for row, value in rows.items() if row in hp}


def build(task, hp):
    """Embedding, `depth` blocks, mean pooling, a linear head (of two documents: [x; y] -> 512 -> ReLU ->
    logit); for the texts a second linear head that restores corrupted bytes."""
    size = dict(vocab=task.vocab, classes=task.classes, docs=task.docs)
    return models.SequenceModel(**size, denoise=hp["technique"] == "denoising", **common.model_rows(hp))


# ------------------------------------------------------------------------------------------ one cell

# The same code path in seconds: a narrow model, and a rate at which it learns something in that time.
SMOKE = dict(
    depth=2, d_model=32, heads=2, d_ff=64, d_hidden=32, d_attention=16, ema_dim=4, d_state=16, blocks=1,
    lr=3e-3, batch_size=16, epochs=2,
)  # fmt: skip


def smoke_rows(hp, name):
    rows = {row: value for row, value in SMOKE.items() if row in hp}
    special = dict(
        image={"augment": "none", "batch_size": 8},  # AutoAugment would need torchvision
        text={"max_length": 256, "epochs": 3},
        retrieval={"max_length": 256, "epochs": 8},
    )
    return rows | special.get(name, {})


def run_cell(args, name, model, seed):
    techniques = "no" if args.no_techniques else "yes"
    paper = recipe(model, name, techniques, args.mini)
    expected = paper_number(TABLE2, name, LABELS[model, techniques])
    train(args, __file__, name, model, {"techniques": techniques}, paper, seed, expected)


def train(args, script, name, model, cell, paper, seed, expected=None):
    """One cell of a script whose models `build` makes; the flags change `paper`, its recipe."""
    if paper["block"] not in ("conv", "transformer", "gmlp") and args.lr and not args.mini:
        paper["lr"] = min(args.lr, paper["lr"])  # Appendix A.2: others' rates, lowered for runs that diverged
    hp = paper | (smoke_rows(paper, name) if args.smoke else {}) | common.overrides(args)
    task = data.load_recipe(name, args, hp, seed)
    records.run_cell(
        args, script=script, task=task, model=model, cell=cell, hp=hp, paper=paper,
        build=lambda: build(task, hp), loss_fn=common.multitask_loss, seed=seed, expected=expected,
    )  # fmt: skip


def paper_number(table, name, row):
    """A table's accuracy in percent, or None for what it does not have."""
    return table[row][COLUMNS.index(name)] if row in table else None


# ------------------------------------------------------------------------------------------ the report


def report(args):
    found = records.report_records(args, __file__, COLUMNS, [*TABLES, *VARIANTS], ("techniques",))
    claims = report_table(
        args, found, title="Table 2", question="what do the training techniques give?", table=TABLE2,
        variants=LABELS.values(), label=lambda r: LABELS[r["model"], r["cell"]["techniques"]],
        recipe=lambda r, mini: recipe(r["model"], r["task"], **r["cell"], mini=mini), claims=CLAIMS,
        notes="† pretrained on the task's own inputs. ‡ with paper A's training techniques. Ours: mean ±\n"
        "standard deviation over n seeds, test accuracy at the best validation; — = not run. An average\n"
        "needs all five. Path-X was not run. MEGA's rate may be below its recipe's (Appendix A.2).\n",
    )  # fmt: skip
    plot_data(found, args.out / "techniques-are-data-mini.png")
    return claims


def report_table(args, found, *, title, question, table, variants, label, recipe, claims, notes):
    """Print a table at the mini tier and, without --mini, as the paper ran it and at reduced budgets ->
    [records.Judged].

    found      records, see records.report_records
    table      {row: the paper's accuracies in percent, columns as COLUMNS, and their average}
    variants   our rows, in their order; more are added as records have them
    label      record -> its row
    recipe     (record, mini) -> the recipe of its cell
    """
    variant = {r["run"]: label(r) for r in found}
    claims = records.report_mini(
        args, found, title=f"{title}: {question}", tasks=COLUMNS, titles=data.TITLES, variants=variants,
        label=label, recipe=lambda r: recipe(r, True), paper=lambda *cell: paper_number(table, *cell),
        claims=claims, figure=f"{title.replace(' ', '').lower()}-mini.png",
    )  # fmt: skip
    if args.mini:
        return claims
    full = [r for r in found if r["budget"] == "paper"]
    rows = []
    for row in dict.fromkeys([*table, *variants, *sorted(map(label, full))]):
        ours = [r for r in full if label(r) == row]
        rows += paper_and_ours_rows(row, table.get(row), ours, COLUMNS)
    print(f"### {title}, as the paper ran it\n\nTest accuracy in %\n")
    print(markdown(["", *(data.TITLES[name] for name in COLUMNS), "Average"], rows) + f"\n\n{notes}")
    records.print_reduced(title, found, variant, lambda r: recipe(r, False), data.TITLES)


def plot_data(found, path):
    """Accuracy against the number of unique examples at equal steps, with and without shuffling."""
    wanted = "mini", "listops", "transformer", DATA_STEPS
    fits = lambda r: (r["budget"], r["task"], r["model"], r["hp"].get("steps")) == wanted  # noqa: E731
    found = [r for r in found if r["limit"] in DATA and fits(r)]
    if not found:
        return
    cells = records.grouped(found, lambda r: (r["cell"]["techniques"], r["limit"]))
    figure, axis = records.pyplot().subplots(figsize=(6, 3.6), layout="constrained")
    for techniques, name, color in ("yes", "with shuffling", records.ORANGE), ("no", "without", records.BLUE):
        there = [n for n in DATA if (techniques, n) in cells]
        means = [records.mean_and_error(cells[techniques, n]) for n in there]
        accuracies, errors = ([100 * value[i] for value in means] for i in (0, 1))
        axis.errorbar(there, accuracies, yerr=errors, fmt="o-", color=color, label=name)
    axis.set(xscale="log", xlabel="unique training examples", ylabel="Transformer: test accuracy (%)")
    axis.set_xticks(DATA, [f"{n:,}" for n in DATA])
    axis.minorticks_off()
    axis.grid(alpha=0.3)
    axis.legend(frameon=False)
    axis.set_title(f"Are techniques more data? (ListOps, mini tier, {DATA_STEPS:,} steps)")
    records.save_figure(figure, path)


# ------------------------------------------------------------------------------------------ command line


def main(argv=None):
    parser = common.make_parser(__doc__, COLUMNS)
    # fmt: off
    parser.add_argument("--model", nargs="+", choices=[*TABLES, *VARIANTS, "all"], metavar="MODEL",
        help=f"{', '.join(TABLES)}; not in the paper: {', '.join(VARIANTS)}; all (default transformer)")
    # fmt: on
    args = common.parse_args(parser, argv)
    with common.exit_cleanly():
        if args.report is not None:
            return report(args)
        chosen = common.chosen(args.model or ["transformer"], [*TABLES, *VARIANTS])
        names = data.require(common.chosen(args.task, COLUMNS), args)
        records.run_cells(args, product(names, chosen), run_cell, report)


if __name__ == "__main__":
    main()
