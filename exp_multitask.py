"""Table 2 of paper A: do a few training techniques bring a plain Transformer to where MEGA is?

    python exp_multitask.py --task text --model transformer --mini   11 minutes on one core: 64 %
    python exp_multitask.py --task listops --mini --steps 6000 --limit 3000
        where examples repeat: 47 %; with --no-techniques 38
    python exp_multitask.py --task text --model transformer          one cell at full size; paper: 90.33 %
    python exp_multitask.py --report                                 ours beside the paper's

The techniques, each on the training examples only: CIFAR10 is augmented; Pathfinder trains on all three
difficulty sets, a third as many epochs; ListOps shuffles the arguments of every operator afresh; the texts
are corrupted (30 % of the bytes) and a second head restores them while the first classifies. In the paper a
Transformer with rotary positions averages 85.69 % with them (64.98 % with --no-techniques: a row that is
inferred, see exp_positional), MEGA 86.25 % without, and MEGA gains nothing.

"mega" is Ma et al.'s block. The paper's own row, "paper A's MEGA" here, is another model: its public code
puts an attention behind a moving average into the Transformer's layer. That is "ema-attention".

Paper A: "You Can Train from Scratch: Further Discussion on the Long Range Arena" (OpenReview YuFUUcSUgx).
"""

import textwrap
from itertools import product

import common
import data
import models
import records
import tables

# fmt: off
# Table 5: the Transformer. Columns in the paper's order, which is not that of its other tables.
TASKS5 = ("listops", "image", "pathfinder", "text", "retrieval")
TABLE5 = dict(
    model=dict(
        block        = "transformer",
        d_model      = (   256,     160,    128,    256,    128),
        depth        = (     6,      10,      6,      8,      6),
        heads        = (     4,       4,      4,      4,      4),
        d_ff         = (   512,     320,    256,    512,    256),
        dropout      = (   0.0,     0.0,    0.0,    0.0,    0.0),
        activation   = "relu",
        norm         = "layer",
        prenorm      = True,
        base         = 1e4,                                         # of the rotary frequencies
        disable_half = ( False,    True,  False,   True,   True),  # half of them are zero
        pooling      = "mean",
        position     = "rotary",
    ),
    train=dict(
        technique    = ("shuffle", "augment paper", "three sets", "denoise", "denoise"),  # Section 3
        lr           = (  1e-4,    1e-3,   1e-3,   1e-3,   1e-3),
        batch_size   = (    64,      48,    128,     16,     64),
        weight_decay = (  0.05,    0.05,   0.05,   0.01,   0.01),
        epochs       = (   120,     200,     67,     80,     60),
    ),
    plain=dict(epochs=(   120,     200,    200,     80,     60)),  # without techniques: Pathfinder's hard set
)

# MEGA: the sizes and rates of facebookresearch/mega, whose column order this is, with the exceptions of
# Appendix A.2: softmax attention everywhere (theirs: "laplace" for image and pathfinder), Table 5's epochs.
# A prenorm stack of theirs ends with one more norm.
TASKS_MEGA = ("listops", "text", "retrieval", "image", "pathfinder")
TABLE_MEGA = dict(
    model=dict(
        block        = "mega",
        depth        = (     6,       4,       6,       8,       6),
        d_model      = (    80,     128,     128,     160,     128),
        d_hidden     = (   160,     256,     256,     320,     256),
        d_attention  = (    64,      64,      64,      96,      64),
        ema_dim      = (    16,      16,      16,      16,      16),
        truncation   = (  1024,    1024,    1024,    1024,    1024),  # taps of the EMA's kernel
        norm         = ("layer", "scale", "scale", "batch", "batch"),
        prenorm      = ( False,   False,   False,    True,    True),
        final_norm   = (  None,    None,    None, "batch", "batch"),
        dropout      = (   0.1,     0.1,     0.1,     0.0,     0.0),
        embedding_dropout = (0.1,   0.1,     0.1,     0.0,     0.0),
        embedding_std = (80**-0.5, 128**-0.5, 128**-0.5, 160**-0.5, 128**-0.5),
        position     = "none",                                        # it is inside the blocks
    ),
    train=dict(
        technique    = ("shuffle", "denoise", "denoise", "augment paper", "three sets"),
        clip         = 1.0,
        lr           = (  1e-3,    4e-3,    3e-3,    1e-2,    1e-2),
        batch_size   = (    64,      50,      64,      50,     128),
        weight_decay = (  0.01,    0.01,    0.04,    0.02,    0.01),
        epochs       = (   120,      80,      60,     200,      67),
    ),
    plain=dict(epochs=(   120,      80,      60,     200,     200)),
)
# MEGA ‡, the block of the authors' public code: MEGA's sizes, and its rate where that is not too high for it.
SHARED = ("depth", "d_model", "d_hidden", "d_attention", "ema_dim", "dropout", "position")
TABLE_EMA = dict(
    model={row: TABLE_MEGA["model"][row] for row in SHARED} | dict(
        block        = "ema-attention",
        d_ff         = (   160,     256,     256,     320,     256),
        truncation   = (  None,    2048,    2048,    1025,    1025),
    ),
    train=TABLE_MEGA["train"] | dict(
        lr           = (  1e-3,    4e-3,    3e-3,    1e-3,    1e-3),
    ),
    plain=TABLE_MEGA["plain"],
)
TABLES = {
    "transformer": (TABLE5, TASKS5),
    "mega": (TABLE_MEGA, TASKS_MEGA),
    "ema-attention": (TABLE_EMA, TASKS_MEGA),
}
# The mini tier: of each model's own table the rows that differ.
COLUMNS = ("image", "pathfinder", "text", "retrieval", "listops")
MINI = dict(
    model=dict(
        depth=(2, 2, 2, 2, 4), d_model=64, heads=2, d_ff=128, d_hidden=128, d_attention=32, dropout=0.0,
        embedding_dropout=0.0, embedding_std=0.125,
    ),
    train=dict(
        technique    = ("augment flip", None, "denoise", "denoise", "shuffle"),
        lr           = (1e-3, 1e-3, 3e-3, 3e-3, 1e-3),
        batch_size   = (  32,   32,   16,   32,   32),
        weight_decay = (0.05, 0.05, 0.01, 0.01, 0.05),
        epochs       = (   4,   10,    6,    6,    6),
    ),
)
# Its rates where a search found another. They win over MINI's: change them here, or give --lr. Retrieval has
# those of Text.
PLAIN = "Transformer, no techniques", "MEGA, no techniques"
RATES = {(task, row): 1e-3 for task in ("text", "retrieval") for row in PLAIN}
RATES |= {("image", row): 3e-3 for row in ("Transformer", "Transformer, no techniques")}
SMOKE = dict(  # narrow, and a rate at which it learns something in seconds
    model=dict(depth=2, d_model=32, heads=2, d_ff=64, d_hidden=32, d_attention=16, ema_dim=4),
    train=dict(lr=3e-3, batch_size=16, epochs=2),
)

# Table 2: test accuracy in percent, columns as COLUMNS, and the printed average (Path-X was not run). In the
# paper's own rows, which have no name in brackets here, ‡ stands for the techniques, † for pretraining.
TABLE2 = {
    "Transformer (Tay et al.)":        (42.44, 71.40, 64.27, 57.46, 36.37, 54.39),
    "Transformer (Amos, SPT)":         (86.04, 94.16, 91.02, 91.57, 61.49, 84.86),
    "Transformer":                     (88.15, 96.28, 90.33, 90.80, 62.90, 85.69),
    "Transformer, no techniques":      (58.84, 67.09, 69.73, 85.34, 43.90, 64.98),  # of Table 4
    "MEGA, no techniques":             (90.44, 96.01, 90.43, 91.25, 63.14, 86.25),  # Ma et al.'s own numbers
    "paper A's MEGA":                  (87.60, 94.78, 90.92, 91.32, 61.15, 85.15),
}
# fmt: on
NAMES = {"transformer": "Transformer", "mega": "MEGA", "ema-attention": "paper A's MEGA"}

# ------------------------------------------------------------------------------------------ the idea


def build(task, recipe):
    """Embedding, `depth` blocks, mean pooling, a linear head (of two documents: [x; y] -> 512 -> ReLU ->
    logit); for the texts a second linear head that restores corrupted bytes (common.multitask_loss)."""
    return models.SequenceModel(**recipe["model"], **task.sizes)


# ------------------------------------------------------------------------------------------ one cell


def run_cell(args, name, model, seed):
    row, cell = NAMES[model], {}
    if args.no_techniques:
        row, cell = f"{row}, no techniques", {"techniques": "no"}
    own = {"truncation": None} if args.mini and model == "ema-attention" else None
    recipe, table = common.recipe_for(
        args, name, TABLES[model], (MINI, COLUMNS), smoke=SMOKE, rate=RATES.get((name, row)), model=own
    )
    task = data.load_for(args, name, recipe, seed)
    records.run_cell(
        args, __file__, row=row, task=task, model=model, cell=cell, hp=recipe, table=table, seed=seed,
        build=lambda: build(task, recipe), loss_fn=common.multitask_loss,
        paper=tables.paper_number(TABLE2, row, COLUMNS, name),
    )  # fmt: skip


# ------------------------------------------------------------------------------------------ the series

EXAMPLES, STEPS = (3_000, 12_000, 48_000, 192_000), 6_000
ARMS = {"with shuffling": {}, "without": {"techniques": "no"}}


def of_series(record):
    """Whether a run is of the series: ListOps at the mini tier, STEPS steps, so many unique examples."""
    wanted = dict(task="listops", model="transformer", tier="mini")
    changes = [{"limit": n, "steps": STEPS} for n in EXAMPLES]
    return wanted.items() <= record.items() and record["changes"] in changes


def series(args):
    """{unique examples: {arm: records}} of what has been run, yours or else this repository's."""
    exp, found = records.experiment(__file__), {}
    both = [
        [r for r in known if r["exp"] == exp and of_series(r)] for known in records.yours_and_ours(args.out)
    ]
    for n, (words, cell) in product(EXAMPLES, ARMS.items()):
        here = {"changes": {"limit": n, "steps": STEPS}, "cell": cell}
        yours, ours = ([r for r in known if here.items() <= r.items()] for known in both)
        if yours or ours:
            found.setdefault(n, {})[words] = yours or ours
    return found


def print_series(found):
    """What shuffling adds with the fewest and the most examples, and a table: how often an example was seen,
    both arms, what shuffling adds. Nothing for no runs."""
    if not found:
        return
    lines, ends = [], {}
    for n, groups in found.items():
        both = [groups.get(words, []) for words in ARMS]
        seen = STEPS * max(*both, key=len)[0]["hp"]["train"]["batch_size"] // n
        adds = tables.lead(*both) if all(both) else ""
        if adds:
            ends[n] = f"{adds} points with {n:,}"
        lines.append([f"{n:,}", f"{seen} x", *map(tables.summary, both), adds])
    print("#### Does shuffling help because examples repeat?\n")
    words = f"ListOps, mini tier, {STEPS:,} steps each (the gaps above are after epochs)."
    if ends:
        few, many = ends[min(ends)], ends[max(ends)]
        words += f" Shuffling adds {' and '.join(dict.fromkeys([few, many]))} unique examples."
    print(textwrap.fill(words, 80) + "\n")
    tables.print_table(["examples", "seen", *ARMS, "shuffling adds"], lines)


def plot_series(found, path):
    """The series as a figure."""
    seeds = tables.seeds_of([group for groups in found.values() for group in groups.values()])
    title = f"What shuffling gives (ListOps, mini tier, {STEPS:,} steps, {seeds})"
    figure, (axis,) = tables.panels([title], size=(6, 3.4))
    for words, color in zip(ARMS, (tables.ORANGE, tables.BLUE)):
        if curve := {n: groups[words] for n, groups in found.items() if words in groups}:
            tables.errorbars(axis, list(curve), list(curve.values()), fmt="o-", color=color, label=words)
    axis.set(xscale="log", xlabel="unique training examples", ylabel="Transformer: test accuracy (%)")
    axis.set_xticks(EXAMPLES, [f"{n:,}" for n in EXAMPLES])
    axis.minorticks_off()
    tables.legend_below(figure, [axis])
    tables.save_figure(figure, path)


# ------------------------------------------------------------------------------------------ command line


MEANINGS = {
    "Transformer": "with rotary positions (exp_spt.py's has sinusoidal ones); without techniques its paper's "
    "numbers are our reading of A's scrambled Table 4",
    "A's augmentation": "of Image; the mini tier's recipe has flips",
    "SPT": "self-pretraining, of paper B",
    "MEGA": "the block of Ma et al.; A prints it without techniques",
    "paper A's MEGA": "the block of A's code, an attention behind a moving average; A prints it with "
    "techniques",
}
LABELS = {"MEGA, no techniques": "MEGA (Ma et al.)", "Transformer (Amos, SPT)": "B's Transformer, SPT"}
LEADS = {
    f"{model}, techniques over none": tables.Lead(model, f"{model}, no techniques")
    for model in ("Transformer", "MEGA", "paper A's MEGA")
}
LEADS["MEGA, no techniques, over Transformer"] = tables.Lead("MEGA, no techniques", "Transformer")


def of_table_4(record):
    """The row here of a run of exp_positional: its rotary Transformer is this table's."""
    cell = {fact: value for fact, value in record["cell"].items() if fact != "position"}
    if record["cell"].get("position") == "rotary":
        return {"row": ", ".join(["Transformer", *["no techniques"] * bool(cell)]), "cell": cell}


def report(args):
    """Ours beside the paper's; at the mini tier the series, too, and its figure."""
    tasks = common.chosen(args.task, COLUMNS) if args.task else COLUMNS
    found = series(args) if args.report and (args.mini or args.all_tiers) and "listops" in tasks else {}
    tables.report(
        args, __file__, "Paper A, Table 2: the training techniques", COLUMNS, data.TITLES, TABLE2,
        short=data.SHORT_TITLES, floors=data.FLOORS, meanings=MEANINGS, leads=LEADS,
        also={"positional": of_table_4}, apart=of_series, first="--task text --model transformer",
        more=lambda: print_series(found), labels=LABELS,
        said='Paper A: "not using our training techniques causes a massive drop in accuracy"; with them the '
        "Transformer is as good as MEGA.",
    )  # fmt: skip
    if found:
        plot_series(found, args.out / "techniques-are-data-mini.png")


def main(argv=None):
    parser = common.make_parser(__doc__, COLUMNS)
    parser.add_argument(
        "--model", nargs="+", choices=[*TABLES, "all"], default=["transformer"], metavar="MODEL",
        help=f"{', '.join(TABLES)} or all (default transformer)",
    )  # fmt: skip
    args = common.parse_args(parser, argv)
    with common.exit_cleanly():
        if not args.report:
            names = data.require(common.chosen(args.task, COLUMNS), args)
            records.run_cells(args, product(names, common.chosen(args.model, TABLES)), run_cell)
        report(args)


if __name__ == "__main__":
    main()
