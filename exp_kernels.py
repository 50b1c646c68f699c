"""Table 3 of paper A: does a long convolution need a structured kernel? And Figure 4 of paper B, drawn for
every family: what do free and structured kernels look like?

    python exp_kernels.py --task image --mini            S4, S5, gMLP: minutes a cell
    python exp_kernels.py --task image --model gmlp      one cell at full size; paper: 89.89 %
    python exp_kernels.py --task all --model all         and S4D, DLR, LRU, SGConv, Mamba-2, not in its table
    python exp_kernels.py --task image --figure kernels  how far they reach, trained or not
    python exp_kernels.py --report                       ours beside the paper's

All train alike, with paper A's techniques, optimiser, schedule and epochs. In the paper a gMLP, whose kernels
are 2 L + 1 free numbers, then averages 85.98 %, S4 84.19 % and S5 84.61 %. It concludes that the Long Range
Arena does not ask for the structure that state spaces give a kernel. State-space parameters keep the learning
rates of their recipes. S4's size is ours to choose: the configurations behind the row "S4 (Gu et al.)". The
paper trained S5 on Text retrieval for fewer epochs and does not say how many; ours has all 60.

Paper A: "You Can Train from Scratch: Further Discussion on the Long Range Arena" (OpenReview YuFUUcSUgx).
Paper B: "Never Train from Scratch" (arXiv 2310.02980).
"""

import copy
import math
from itertools import product
from pathlib import Path

import numpy as np
import torch

import common
import data
import models
import records
import tables

# fmt: off
COLUMNS = ("image", "pathfinder", "text", "retrieval", "listops")
# Table 6: gMLP. Columns in the paper's order. Its activation, GELU, is the block's own.
TABLE6 = dict(
    model=dict(
        block        = "gmlp",
        depth        = (   10,    6,    6,    6,    6),
        d_model      = (  128,  128,  128,  128,  128),
        d_hidden     = (  256,  256,  256,  256,  256),
        channels     = (    2,    2,    2,    2,    4),  # independent ones
        dropout      = (  0.0,  0.0,  0.1,  0.0,  0.0),
        norm         = "layer",
        pooling      = "mean",
    ),
    train=dict(
        technique    = ("augment paper", "three sets", "denoise", "denoise", "shuffle"),  # Section 3
        lr           = ( 1e-3, 1e-3, 1e-3, 3e-4, 1e-3),
        batch_size   = (   48,  128,   16,   64,   32),
        weight_decay = (  0.1,  0.1,  0.2,  0.1,  0.1),
        epochs       = (  200,   67,   80,   60,  120),
    ),
    plain=dict(epochs=(  200,  200,   80,   60,  120)),  # without techniques
)

# The others: sizes and rates of their own recipes (Appendix A.2), columns in LRA's order; lengths and epochs
# are Table 6's. deviation: tokens are embedded and pooled by their mean for all models alike; S4's recipe
# for Pathfinder takes the last position.
TASKS_LRA = ("listops", "text", "retrieval", "image", "pathfinder")
TRAIN_LRA = dict(
    technique        = ("shuffle", "denoise", "denoise", "augment paper", "three sets"),
    epochs           = (    120,      80,      60,     200,      67),
)
PLAIN_LRA = dict(epochs=(   120,      80,      60,     200,     200))  # without techniques
# S4: state-spaces/s4, the configurations behind the numbers that Table 3 cites, with the full S4 kernel.
BLOCK_S4 = dict(
    depth            = (      8,       6,       6,       6,       6),
    d_model          = (    128,     256,     256,     512,     256),
    norm             = ("batch", "batch", "batch", "layer", "batch"),
    prenorm          = (  False,    True,    True,   False,    True),
    final_norm       = (   None, "batch", "batch",    None, "batch"),
    dropout          = (    0.0,     0.0,     0.0,     0.1,     0.0),
    tie_dropout      = (  False,   False,   False,    True,   False),
)
KERNEL_S4 = dict(
    d_state          = (     64,      64,      64,      64,      64),
    n_ssm            = (   None,    None,    None,       2,    None),  # None: one per feature
    ssm_lr           = (   1e-3,    1e-3,    1e-3,    1e-3,    1e-3),  # of Lambda, P, B
    dt_lr            = (   None,    None,    None,    None,    1e-3),  # None: as everything else
)
TRAIN_S4 = TRAIN_LRA | dict(
    lr               = (   1e-2,    1e-2,    1e-2,    1e-2,    4e-3),
    batch_size       = (     50,      16,      64,      50,      64),
    weight_decay     = (   0.05,    0.05,    0.05,    0.05,    0.03),
)
TABLE_S4 = dict(model=dict(block="s4", **BLOCK_S4, **KERNEL_S4), train=TRAIN_S4, plain=PLAIN_LRA)
TABLE_S4D = TABLE_S4 | dict(model=dict(block="s4d", **BLOCK_S4, **KERNEL_S4))  # a diagonal matrix
# S5: lindermanlab/S5; full GLU on Pathfinder and Retrieval (Appendix A.2).
TABLE_S5 = dict(
    model=dict(
        block         = "s5",
        depth         = (          8,           6,           6,           6,           6),
        d_model       = (        128,         256,         128,         512,         192),
        d_state       = (         16,         192,         256,         384,         256),
        blocks        = (          8,          12,          16,           3,           8),
        activation    = ("half_glu2", "half_glu2",  "full_glu", "half_glu1",  "full_glu"),
        c_init        = (    "lecun",     "lecun",     "trunc",     "lecun",     "trunc"),
        clip_eigs     = (      False,       False,       False,        True,       False),
        fast_B        = (       True,       False,       False,        True,       False),
        dt_global     = (      False,        True,        True,       False,       False),
        norm_momentum = (       0.05,        0.05,        0.05,        0.05,         0.1),
        dropout       = (        0.0,         0.1,         0.0,         0.1,        0.05),
        ssm_lr        = (       1e-3,        1e-3,        1e-3,        1e-3,        9e-4),
    ),
    train=TRAIN_LRA | dict(
        lr            = (       3e-3,        4e-3,        2e-3,      4.5e-3,      4.5e-3),
        batch_size    = (         50,          50,          32,          50,          64),
        weight_decay  = (       0.04,        0.07,        0.05,        0.07,        0.03),
    ),
    plain=PLAIN_LRA,
)
# LRU: Orvieto et al. 2023; r_max of the image tasks as published for a re-implementation. Two directions.
TABLE_LRU = dict(
    model=dict(
        block        = "lru",
        depth        = (     6,      6,      6,       6,      6),
        d_model      = (   128,    256,    128,     512,    192),
        d_state      = (   256,    192,    256,     384,    256),
        r_min        = (   0.0,    0.5,    0.5,     0.9,    0.9),
        r_max        = (   0.9,    0.9,    0.9,   0.999,  0.999),
        dropout      = (   0.0,    0.1,    0.1,     0.1,    0.0),
        ssm_lr       = (1.5e-3,   4e-4,   1e-3, 1.25e-3,   1e-3),
    ),
    train=TRAIN_LRA | dict(
        lr           = (  3e-3,   4e-3,   2e-3,    5e-3,   4e-3),
        batch_size   = (    32,     32,     64,      50,     64),
        weight_decay = (  0.05,   0.05,   0.05,    0.05,   0.05),
    ),
    plain=PLAIN_LRA,
)
# DLR: paper B's configurations; it has none for Retrieval and Pathfinder, which are sized as S4's.
TABLE_DLR = dict(
    model=dict(
        block        = "dlr",
        depth        = (      8,       6,       6,       6,       6),
        d_model      = (    128,     256,     256,     512,     256),
        d_state      = (   1024,    1024,    1024,    1024,    1024),
        norm         = "layer",
        prenorm      = (  False,    True,    True,    True,    True),
        final_norm   = (   None, "layer", "layer", "layer", "layer"),
        ssm_lr       = 1e-4,
    ),
    train=TRAIN_S4,
    plain=PLAIN_LRA,
)
# SGConv: ctlllll/SGConv.
TABLE_SGCONV = dict(
    model=BLOCK_S4 | dict(
        block          = "sgconv",
        kernel_dim     = (      1,       2,       1,      32,      32),
        position_decay = (   None,    None,    None,     1.0,    None),  # None: each sub-kernel half the last
        dropout        = (    0.0,     0.0,     0.0,     0.2,     0.2),
        kernel_lr      = 1e-3,
    ),
    train=TRAIN_S4,
    plain=PLAIN_LRA,
)
# Not in the paper: free taps in S4's block, which tells the kernel from the block (Fu et al. 2023).
TABLE_FREE = dict(
    model=BLOCK_S4 | dict(  # HazyResearch/safari's LRA configurations
        block          = "free",
        threshold      = (  0.002,   0.003,   0.004,   0.003,   0.001),
        kernel_dropout = (    0.2,     0.2,     0.1,     0.2,     0.3),
        kernel_lr      = (   5e-4,    1e-3,    1e-4,    1e-3,    1e-3),
    ),
    train=TRAIN_S4,
    plain=PLAIN_LRA,
)
# Not in the paper, either: attention with decay. Sizes are S4's, rates our choice. Without decay a block does
# not know the order of its positions: the bare rows get sinusoidal ones.
TABLE_DECAY = dict(
    model=dict(
        depth        = (     8,      6,      6,      6,      6),
        d_model      = (   128,    256,    256,    512,    256),
        d_state      = 64,
        heads        = 8,
        norm         = "layer",
        prenorm      = True,
        final_norm   = "layer",
        position     = "sinusoidal",
        dropout      = (   0.0,    0.0,    0.0,    0.1,    0.0),
    ),
    train=TRAIN_LRA | dict(
        lr           = 1e-3,
        batch_size   = (    50,     16,     64,     50,     64),
        weight_decay = 0.05,
    ),
    plain=PLAIN_LRA,
)
DECAYS = ("decay-none", "decay-fixed", "decay-rotary", "decay-selective")
TABLE_MAMBA2 = dict(
    model=TABLE_DECAY["model"] | dict(block="mamba2", expand=2, d_conv=4, position="none"),
    train=TABLE_DECAY["train"],
    plain=PLAIN_LRA,
)
TABLES = {
    "s4": (TABLE_S4, TASKS_LRA), "s5": (TABLE_S5, TASKS_LRA), "gmlp": (TABLE6, COLUMNS),
    "s4d": (TABLE_S4D, TASKS_LRA), "dlr": (TABLE_DLR, TASKS_LRA), "lru": (TABLE_LRU, TASKS_LRA),
    "sgconv": (TABLE_SGCONV, TASKS_LRA), "free": (TABLE_FREE, TASKS_LRA),
}
TABLES |= {
    name: (TABLE_DECAY | dict(model=dict(block=name, **TABLE_DECAY["model"])), TASKS_LRA) for name in DECAYS
}
TABLES["mamba2"] = TABLE_MAMBA2, TASKS_LRA
# The mini tier: of each model's own table the rows that differ.
MINI = dict(
    model=dict(
        depth=(2, 2, 2, 2, 4), d_model=64, d_hidden=128, d_state=64, n_ssm=None, blocks=1, heads=4,
        dropout=0.0,
    ),
    train=dict(
        technique    = ("augment flip", None, "denoise", "denoise", "shuffle"),
        lr           = 1e-3,
        batch_size   = (  32,   32,   16,   32,   32),
        weight_decay = 0.05,
        epochs       = (   4,   10,    6,    6,    6),
    ),
)
# Its rates where a search found a better one (docs/notebook.md). They win over MINI's: change them here, or
# give --lr.
RATES = {("image", row): 3e-3 for row in ("S4", "S5", "gMLP", "free taps in S4's block")}
RATES |= {("text", row): 3e-3 for row in ("S4", "gMLP", "S4, no techniques", "decay-none", "decay-fixed")}
RATES |= {("image", row): 3e-3 for row in ("decay-fixed", "decay-selective")}
RATES |= {(task, "Mamba-2's block"): 3e-3 for task in ("image", "text")}
RATES |= {(task, "decay-rotary"): 3e-3 for task in ("image", "text")}
RATES |= {("image", row): 3e-3 for row in ("S4D", "LRU", "SGConv")} | {("text", "SGConv"): 3e-3}
SMOKE = dict(
    model=dict(depth=2, d_model=32, d_hidden=32, d_state=16, blocks=1, heads=2),
    train=dict(lr=3e-3, batch_size=16, epochs=2),
)

# Table 3: test accuracy in percent and the printed average. In the paper's own rows, which have no name in
# brackets here, a dagger stands for the techniques. MEGA's numbers are in Table 2.
MAMBA2 = "Mamba-2 (Yu and Erichson)"
TABLE3 = {
    "S4 (Gu et al.)":    (88.65, 94.20, 86.82, 90.90, 59.60, 84.03),
    "S5 (Smith et al.)": (88.00, 95.33, 89.31, 91.28, 62.15, 85.21),
    "S4":                (89.59, 93.61, 91.01, 90.73, 56.00, 84.19),
    "S5":                (85.53, 95.60, 90.21, 88.96, 62.75, 84.61),
    "gMLP":              (89.89, 97.26, 89.94, 90.37, 62.45, 85.98),
    # By S4's recipes (arXiv 2505.09022). Mamba's numbers differ by 20 points with who ran it.
    MAMBA2:              (71.96, 75.45, 86.09, 79.23, 41.45),
}
# fmt: on
NAMES = dict(s4="S4", s5="S5", gmlp="gMLP", s4d="S4D", dlr="DLR", lru="LRU", sgconv="SGConv")
NAMES |= dict(free="free taps in S4's block", mamba2="Mamba-2's block")  # others are called as in TABLES
PRINTED = ("s4", "s5", "gmlp")  # what Table 3 trains
DRAWN = [name for name in TABLES if {"kernel", "system"} & {*dir(models.BLOCKS[name])}]  # that have a kernel

# ------------------------------------------------------------------------------------------ the idea


def build(task, recipe):
    """Embedding, `depth` blocks, mean pooling, a linear head; for the texts a second linear head that
    restores corrupted bytes. The rows differ in how the taps of a long kernel are made."""
    return models.SequenceModel(**recipe["model"], **task.sizes)


# ------------------------------------------------------------------------------------------ one cell


def run_cell(args, name, model, seed):
    row, cell = NAMES.get(model, model), {}
    if args.no_techniques:
        row, cell = f"{row}, no techniques", {"techniques": "no"}
    recipe, table = recipe_for(args, name, model, row)
    task = data.load_for(args, name, recipe, seed)
    records.run_cell(
        args, __file__, row=row, task=task, model=model, cell=cell, hp=recipe, table=table, seed=seed,
        build=lambda: build(task, recipe), loss_fn=common.multitask_loss,
        paper=tables.paper_number(TABLE3, row, COLUMNS, name),
    )  # fmt: skip


def recipe_for(args, name, model, row):
    """The two recipes of a cell, see common.recipe_for."""
    own = {"d_state": 256} if args.mini and model == "dlr" else None
    return common.recipe_for(
        args, name, TABLES[model], (MINI, COLUMNS), smoke=SMOKE, rate=RATES.get((name, row)), model=own
    )


# ------------------------------------------------------------------------------------------ the kernels

WITHIN = (0, 2, 5, 15, 30, 100, 300)  # among them the reach of Table 1's kernels


@torch.no_grad()
def kernel_profile(block, L):
    """What a block's kernel weighs at each distance |lag|, both directions and all channels together.

    -> (largest absolute tap (L,), energy (L,): the sum of the squared taps), float64 numpy. Only the
    convolution counts: no skip connection, gate or attention. S5 and LRU have a kernel for each PAIR of
    channels; at the paper's sizes these take minutes.
    """
    peak, energy = torch.zeros(2, L, dtype=torch.float64)
    for taps, first in state_taps(block, L) if hasattr(block, "system") else block.taps(L):
        there = slice(first, first + taps.shape[1])
        peak[there] = torch.maximum(peak[there], taps.double().abs().amax(0))
        energy[there] += taps.double().square().sum(0)
    return peak.numpy(), energy.numpy()


def state_taps(block, L):
    """taps() of S5 and LRU, one lag at a time: Re(c diag(pole^lag) B) of each direction's c."""
    log_pole, B, C = copy.deepcopy(block).double().system()
    right = torch.cat([B.real, B.imag]).float()
    for c, lag in product(C.split(len(log_pole), 1), range(L)):
        z = c * torch.exp(lag * log_pole)
        yield (torch.cat([z.real, -z.imag], 1).float() @ right).view(-1, 1), lag


def figure_kernels(args, chosen):
    """Draw the kernels of trained models and at their start, and print where their energy is."""
    if args.checkpoint:
        model, state = records.rebuild(args.checkpoint)
        if model.arguments["block"] not in DRAWN:
            raise common.UserError(f"{args.checkpoint} has no long kernels; give one of {', '.join(DRAWN)}")
        run = args.checkpoint.resolve().parent.name
        return draw_kernels(args, run, run, [(f"epoch {state['epoch']}", model.arguments, model)])
    for name in common.chosen(args.task, COLUMNS):
        title, panels = data.TITLES[name], []
        for model in chosen:
            run = best_run(args, model, name)
            print(
                f"{title}, {NAMES.get(model, model)}: {run['run'] if run else 'no finished run, its start'}"
            )
            if run:
                network, _ = records.rebuild(args.out / run["run"] / "best.pt")
                panels.append((f"trained, one seed, {run['test_acc']:.1%}", network.arguments, network))
            else:  # no kernel depends on the vocabulary and the classes
                recipe, _ = recipe_for(args, name, model, NAMES.get(model, model))
                size = dict(vocab=2, classes=2, max_length=data.length(name, args.mini))
                panels.append(("at initialisation", recipe["model"] | size, None))
        draw_kernels(args, name, title, panels)


def best_run(args, model, name):
    """The record of the finished run of a model on a task, or None; of several a full one, of these the one
    that validated best. Techniques are as --no-techniques says; a random start and the dial do not count."""
    exp, techniques = records.experiment(__file__), "no" if args.no_techniques else "yes"
    found = [r for r in records.finished_runs(args, name, (exp, "spt")) if r["model"] == model]
    found = [r for r in found if r["cell"].get("init") != "random" and "stride" not in r["cell"]]
    found = [r for r in found if r["exp"] == "spt" or r["cell"].get("techniques", "yes") == techniques]
    return max(found, key=lambda r: (r["tier"] == "paper", r["val_acc"]), default=None)


def draw_kernels(args, name, title, panels):
    """panels: [(what it is, arguments of SequenceModel, the trained one or None)]"""
    drawn, rows = [], []
    for what, arguments, network in panels:
        torch.manual_seed(args.seed)
        model, L = arguments["block"], arguments["max_length"] or 1024
        model = NAMES.get(model, model)
        start = [kernel_profile(block, L) for block in models.SequenceModel(**arguments).eval().blocks]
        after = [kernel_profile(block, L) for block in network.blocks] if network else []
        drawn.append((f"{model} ({what})", start, after))
        rows.append([model, "initial", *energy_within(start)])
        rows += [[model, f"layer {i}", *energy_within([p])] for i, p in enumerate(after, 1)]
    print(f"### Kernels, {title}\n")
    print("Share of the kernel's energy within k positions, in %. initial: before training,")
    print("the mean of all layers.\n")
    tables.show(["model", "", *(f"k={k}" for k in WITHIN)], rows)
    row = math.isqrt(data.length(name, args.mini)) if name in ("image", "pathfinder") else None
    plot(drawn, title, row, args.out / f"kernels-{name}.png")


def energy_within(profiles):
    """The share of the energy at distances of at most k positions, in percent, for each k of WITHIN: the mean
    of some kernel_profiles."""
    shares = [[energy[: k + 1].sum() / energy.sum() for k in WITHIN] for _, energy in profiles]
    return [f"{100 * share:.1f}" for share in np.mean(shares, 0)]


def plot(panels, heading, row, path):
    """Figure 4: K_max, the largest absolute tap over channels and directions, against distance, relative to
    the largest of all layers (gMLP starts at 1e-6).

    panels   [(title, kernel_profile of each layer at the start, the same when trained or [])]
    row      positions of a row of the task's images, or None: its multiples are marked

    deviation: every layer, where the paper shows each second, and trained on labels, where the paper's are
    pretrained only (--checkpoint with the best.pt of an spt-pretrain run draws those). Its scales are lost;
    ours are logarithmic.
    """
    titles = [title for title, *_ in panels]
    figure, axes = tables.panels(titles, size=(4, 3), sharex=True, sharey=True)
    floor, colours = 1, tables.pyplot().get_cmap("plasma")
    for axis, (_, start, after) in zip(axes, panels):
        start, after = (np.array([peak for peak, _ in profiles]) for profiles in (start, after))
        first, *_ = axis.plot(start.T / start.max(), color="0.8", linewidth=1)
        first.set_label("each layer at initialisation")
        for i, peak in enumerate(after):
            colour = colours(0.6 * i / max(1, len(after) - 1))
            axis.plot(peak / after.max(), color=colour, linewidth=1, label=f"layer {i + 1}, trained")
        # Each layer reaches its largest weight within ten positions; what lies far below is rounding.
        floor = min(floor, *(k[:, :10].max(1).min() / k.max() for k in (start, after) if len(k)))
        L = start.shape[1]
        axis.set_xscale("symlog", linthresh=1)
        axis.set(yscale="log", xlim=(0, L - 1), xlabel="distance of two positions")
        ticks = [k for k in (0, 1, 10, 100, 1000, 10_000) if k < L]
        axis.set_xticks(ticks, [f"{k:,}" for k in ticks])
        axis.xaxis.set_tick_params(labelbottom=True)
        for k in (row, 2 * row) if row else ():
            look = dict(color=tables.ORANGE, alpha=0.25, linewidth=6, zorder=0)
            axis.axvline(k, label="one and two rows of the image", **look)
    axes[0].set_ylim(bottom=max(floor / 100, 1e-4))  # all panels share it
    axes[0].set_ylabel("largest weight at this distance")
    figure.suptitle(f"{heading}: how far the kernels reach (all channels, both directions)", fontsize=10)
    tables.legend_below(figure, axes)
    tables.save_figure(figure, path)


# ------------------------------------------------------------------------------------------ command line


MEANINGS = {
    "≈ 0": 'A in words: restrictions on the kernel "are not necessary", so a free one is not behind',
    "S4": "a state space with a structured matrix",
    MAMBA2: "arXiv 2505.09022, which does not state the recipe; not in A's table",
    "decay-none": "linear attention that forgets nothing",
    "decay-fixed": "linear attention that forgets by one learned number a head",
    "decay-rotary": "decay-fixed, and its states rotate by learned angles",
    "decay-selective": "decay-fixed, but the input chooses the number",
    "grey values as symbols": "exp_spt.py's S4 reads numbers, by B's recipe: it has other accuracies",
    "Mamba-2's block": "decay-selective, a short convolution, a gate, double width",
    "gMLP over S4": "the paper's gaps are over A's own runs of S4 and S5, and not over the cited ones; with "
    "5,000 examples claims.py counts the gap for another sentence: structure speeds learning up",
    "gMLP": "a block with a gate, whose kernels are free numbers for all distances",
    "free taps": "S4's block with a kernel of free numbers; it keeps its recipe's dropout, and underfits",
    "S4D, S5, LRU": "a state space with a diagonal matrix",
    "SGConv": "long kernels that decay with the distance by construction; not in A's Table 3; underfits on "
    "Image",
}
LEADS = {
    "gMLP over S4": tables.Lead("gMLP", "S4", side="+"),
    "gMLP over S5": tables.Lead("gMLP", "S5"),
    "S4 over S5": tables.Lead("S4", "S5"),
    "free taps (underfit) over S4": tables.Lead("free taps in S4's block", "S4", said=0.0, side="+"),
    "gMLP over SGConv": tables.Lead("gMLP", "SGConv", said=0.0, side="+"),
    "decay-rotary over decay-fixed": tables.Lead("decay-rotary", "decay-fixed"),
}


def report(args):
    """Ours beside the paper's; what another paper has of Mamba-2 with --all-tiers."""
    paper = {row: numbers for row, numbers in TABLE3.items() if args.all_tiers or row != MAMBA2}
    tables.report(
        args, __file__, "Paper A, Table 3: long kernels, free or not", COLUMNS, data.TITLES, paper,
        short=data.SHORT_TITLES, floors=data.FLOORS, meanings=MEANINGS, leads=LEADS,
        first="--task image --model gmlp", labels={"S4": "A's S4", "S5": "A's S5"},
        said='Paper A: gMLP is "comparable to both SSM models and even outperforms them on average"; '
        'restrictions on the kernel "are not necessary".',
    )  # fmt: skip


def main(argv=None):
    parser = common.make_parser(__doc__, COLUMNS)
    # fmt: off
    add = parser.add_argument
    add("--model", nargs="+", choices=[*TABLES, "all"], metavar="MODEL",
        help=f"{', '.join(TABLES)} or all (default: those of the table, s4 s5 gmlp; with --figure all)")
    add("--figure", choices=("kernels",),
        help="draw the kernels of the best finished runs of --task and at initialisation")
    add("--checkpoint", type=Path, metavar="FILE", help="with --figure: draw the model in this best.pt")
    # fmt: on
    args = common.parse_args(parser, argv)
    with common.exit_cleanly():
        if args.figure and not args.report:
            chosen = [model for model in common.chosen(args.model or ["all"], TABLES) if model in DRAWN]
            if not chosen:
                raise common.UserError(f"--figure: no long kernels there; give one of {', '.join(DRAWN)}")
            return figure_kernels(args, chosen)
        if args.checkpoint:
            raise common.UserError("--checkpoint is for --figure kernels")
        if not args.report:
            chosen = common.chosen(args.model or (["gmlp"] if args.smoke else PRINTED), TABLES)
            names = data.require(common.chosen(args.task, COLUMNS), args)
            records.run_cells(args, product(names, chosen), run_cell)
        report(args)


if __name__ == "__main__":
    main()
