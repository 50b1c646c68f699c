"""Beyond the papers: how far must a model see? A dial that changes nothing but the range of a task, and a
measure of the range that a trained model uses.

    python exp_range.py --task text --mini --no-techniques    the dial: five orders of each text
    python exp_range.py --task text --mini --no-techniques --model s4 --stride 4      one cell
    python exp_range.py --task text --mini --figure range     the measure, of all finished models
    python exp_range.py --report --mini                       the dial's tables and figures

The dial writes a document of L symbols into rows of s and reads it by columns: neighbours come to lie L / s
apart, and what was s apart becomes neighbours. s = 1 is the paper's task; random is one fixed order; rotated
and random-rotated also rotate each document by a number of its own, so that distances to the ends tell
nothing. A bag of symbols (K = 1) notices no order. A model trains as in its own script; on mini Image all
train shorter. --no-techniques, since in ten epochs restoring bytes costs K = 5 ten points.

The measure: how much do two positions interact in the answer? See `interactions`. With mean pooling first
derivatives say little.
"""

import contextlib
import io
from itertools import product
from typing import NamedTuple

import numpy as np
import torch

import common
import data
import exp_kernels
import exp_locality
import exp_multitask
import exp_positional
import models
import records
import tables

TASKS = ("text", "image", "listops", "retrieval", "pathfinder")
STRIDES = (1, 4, 16, 64, "random")
ORDERS = {"random": "anywhere", "rotated": "own order, rotated", "random-rotated": "anywhere, rotated"}

CONV = ((exp_locality.TABLE7, exp_locality.TASKS7), (exp_locality.MINI7, exp_locality.TASKS7))
MULTITASK = (exp_multitask.MINI, exp_multitask.COLUMNS)
KERNELS = (exp_kernels.MINI, exp_kernels.COLUMNS)
MODELS = {  # {model: (its row, table, mini tier and rates in its own script)}
    "bag": ("K=1 (bag of symbols)", *CONV, exp_locality.RATES),
    "conv": ("K={kernel}", *CONV, exp_locality.RATES),
    "transformer": ("Transformer", exp_multitask.TABLES["transformer"], MULTITASK, exp_multitask.RATES),
    "learned": ("learned", exp_multitask.TABLES["transformer"], MULTITASK, exp_positional.RATES),
    "s4": ("S4", exp_kernels.TABLES["s4"], KERNELS, exp_kernels.RATES),
    "gmlp": ("gMLP", exp_kernels.TABLES["gmlp"], KERNELS, exp_kernels.RATES),
    "mega": ("MEGA", exp_multitask.TABLES["mega"], MULTITASK, exp_multitask.RATES),
}
MINI_IMAGE = dict(epochs=2, batch_size=16, lr=1e-3)  # five orders of whole cells would take a day
SMOKE = {"model": exp_multitask.SMOKE["model"] | {"d_state": 16}, "train": exp_multitask.SMOKE["train"]}


# ------------------------------------------------------------------------------------------ one cell


def row_of(model, cell):
    """ "K=5, no techniques": the label of a model's row, which is that in its own script."""
    plain = ", no techniques" if cell.get("techniques") == "no" else ""
    return MODELS[model][0].format(kernel=cell.get("kernel")) + plain


def recipe_for(args, name, model, cell):
    """The two recipes of one cell of the dial, see common.recipe_for: those of the model's own script, and
    the order, which data.strided makes."""
    _, table, (small, tasks), rates = MODELS[model]
    rate = rates.get((name, row_of(model, cell)))
    if name == "image":
        small, rate = small | {"train": small["train"] | MINI_IMAGE}, None
    own = {"kernel": cell.get("kernel", 1)} if model in ("bag", "conv") else {}
    own |= {"position": "learned"} if model == "learned" else {}
    found = common.recipe_for(args, name, table, (small, tasks), smoke=SMOKE, rate=rate, model=own)
    for recipe in found:
        recipe["train"]["stride"] = cell["stride"]
    return found


def run_cell(args, name, model, kernel, stride, seed):
    cell = {"stride": stride} | ({"kernel": kernel} if kernel else {})
    cell |= {"techniques": "no"} if args.no_techniques else {}
    row = f"{row_of(model, cell)}, s={stride}"
    recipe, table = recipe_for(args, name, model, cell)
    task = data.load_for(args, name, recipe, seed)
    print(f"\n{row}")
    records.run_cell(
        args, __file__, row=row, task=task, model=model, cell=cell, hp=recipe, table=table, seed=seed,
        build=lambda: models.SequenceModel(**recipe["model"], **task.sizes), loss_fn=common.multitask_loss,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------ the measure

DISTANCES = (1, 2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64, 90, 128, 181, 255)


@torch.no_grad()
def interactions(model, task, distances, examples=64, seed=0, shuffle=False):
    """How much two positions interact: the mixed second difference |f(ij) - f(i) - f(j) + f(0)| of the true
    class's logit f (of two classes the only one), where f(i) has symbol i exchanged for one from elsewhere in
    the document. Its mean at each distance j - i, (n,) float64 numpy.

    Positions are drawn anew for every distance. shuffle: the control, every document in random order. A stack
    of convolutions must be 0 beyond twice its reach.
    """
    model, draw = model.double().eval(), torch.Generator().manual_seed(seed)
    longest = task.lengths["test"].argsort(descending=True, stable=True)[: 4 * examples]
    batch = task.gather("test", longest[torch.randperm(len(longest), generator=draw)[:examples]])
    tokens, mask = batch.tokens, batch.mask.clone()
    length = mask[:: task.docs].sum(1)
    rows = torch.arange(0, len(tokens), task.docs)  # of a pair, positions of the first document
    if shuffle:
        for row, n in zip(rows.tolist(), length.tolist()):
            tokens[row, :n] = tokens[row, torch.randperm(n, generator=draw)]

    def f(changed):
        logits = model.classify(model(changed, mask), mask, task.docs)
        return logits[:, 0] if logits.shape[1] == 1 else logits.gather(1, batch.label[:, None])[:, 0]

    def other(place):
        """A symbol from elsewhere in the document, another one than that at `place` if four draws find it."""
        new = tokens[rows, place]
        for _ in range(4):
            drawn = tokens[rows, (torch.rand(len(rows), generator=draw) * length).long()]
            new = torch.where(new == tokens[rows, place], drawn, new)
        return new

    nothing, sizes = f(tokens), []
    for distance in distances:
        i = (torch.rand(len(rows), generator=draw) * (length - distance).clamp(min=1)).long()
        j, fits = (i + distance).clamp(max=tokens.shape[1] - 1), length > distance
        first, second = tokens.clone(), tokens.clone()
        first[rows, i], second[rows, j] = other(i), other(j)
        both = torch.where(first != tokens, first, second)
        size = (f(both) - f(first) - f(second) + nothing).abs()
        sizes.append(float(size[fits].mean()) if fits.any() else 0.0)
    return np.array(sizes)


def summarised(distances, sizes, L):
    """(mean distance, distance that holds 90 %) of the interaction of all pairs of L positions (as in
    City-Networks); `sizes` are interpolated between the measured distances."""
    every = np.arange(1, min(L, max(distances) + 1))
    weight = np.interp(every, distances, sizes) * (L - every)  # there are L - d pairs at distance d
    share = weight.cumsum() / weight.sum()
    return float((every * weight).sum() / weight.sum()), int(every[np.searchsorted(share, 0.9)])


def measure(args, name):
    """Interaction against distance for every finished model of a task, of a row the one that validated best:
    a table and a figure."""
    runs, table, title = {}, [], data.TITLES[name]
    for r in records.finished_runs(args, name, (records.experiment(__file__), *ALSO)):
        own = r["exp"] == records.experiment(__file__)
        row = row_of(r["model"], r["cell"]) if own else r["row"]
        if r["hp"]["train"].get("stride", 1) == 1:
            runs[row] = max(r, runs.get(row, r), key=lambda run: run["val_acc"])
    if not runs:
        raise common.UserError(f"no finished run of {title} in {args.out}; train one first")
    task = data.load_for(args, name, {"train": {"technique": None}}, seed=0)
    distances = [d for d in DISTANCES if d < task.max_length]
    found = {}
    for row, r in runs.items():
        trained, state = records.rebuild(args.out / r["run"] / "best.pt")
        torch.manual_seed(0)
        start = models.SequenceModel(**state["arguments"])
        for kind, model in (("trained", trained), ("untrained", start), ("shuffled", trained)):
            sizes = interactions(model, task, distances, shuffle=kind == "shuffled")
            mean, most = summarised(distances, sizes, task.max_length)
            table.append([f"{row}, {r['test_acc']:.1%}", kind, f"{mean:.0f}", most])
            found[row, kind] = sizes
    print(f"### Range of trained models, {title}\n")
    print(tables.markdown(["model", "", "mean distance", "90 % within"], table) + "\n")
    plot_ranges(title, runs, distances, found, args.out / f"range-{name}.png")


def plot_ranges(title, runs, distances, found, path):
    """A panel a model: interaction against distance, before and after training. runs: {row: record}; found:
    {(row, "trained" or "untrained"): interactions}."""
    names = [f"{row}: {r['test_acc']:.1%}" for row, r in runs.items()]
    figure, axes = tables.panels(names, size=(3.4, 2.7), columns=3, sharey=True)
    for (row, r), axis in zip(runs.items(), axes):
        look = {"trained": (".-", tables.colour(r["model"], r["cell"], 0)), "untrained": (":", "0.3")}
        for kind, (style, colour) in look.items():
            y = found[row, kind] / max(found[row, kind].max(), 1e-300)
            axis.plot(
                distances, y, style, color=colour, label=None if kind == "trained" else "before training"
            )
        axis.set(xscale="log", yscale="log", ylim=(1e-3, 2), xlabel="distance (symbols)")
    tier = records.TIERS[next(iter(runs.values()))["tier"]]
    figure.suptitle(f"{title}: how far apart do positions interact? ({tier}, one model each; test accuracy)")
    figure.supylabel("interaction / its maximum", fontsize=10)
    tables.legend_below(figure, axes)
    tables.save_figure(figure, path)


# ------------------------------------------------------------------------------------------ the dial's table


def at_stride_1(record):
    """The row here of a run of another script: at s = 1 it is the same training, except on mini Image."""
    model, cell = record["model"], {"stride": 1} | record["cell"]
    if model == "conv" and cell["kernel"] == 1:
        model, _ = "bag", cell.pop("kernel")
    if (position := cell.pop("position", None)) is not None:
        model = position  # of which MODELS has "learned"
    known = model in MODELS and cell.keys() <= {"stride", "kernel", "techniques"}
    if known and (record["task"], record["tier"]) != ("image", "mini"):
        return {"row": row_of(model, cell), "model": model, "cell": cell}


ALSO = dict.fromkeys(("locality", "multitask", "kernels", "positional"), at_stride_1)


class Row(NamedTuple):
    """A row of the dial's tables."""

    model: str
    kernel: int | None
    techniques: bool
    changes: str  # in words

    @classmethod
    def of(cls, record):
        cell = record["cell"]
        words = records.in_words(record["changes"])
        return cls(record["model"], cell.get("kernel"), cell.get("techniques") != "no", words)

    def label(self, techniques=True):
        """Without a word on techniques where a heading says it."""
        cell = {"kernel": self.kernel, "techniques": "no" if techniques and not self.techniques else ""}
        return "; ".join(filter(None, [row_of(self.model, cell), self.changes]))


def of_the_dial(found):
    """{(task, tier): {(Row, order): records}} of some records: the dial's own and, of a row that was dialled,
    the other scripts' at s = 1."""
    exp, dials, known = records.experiment(__file__), {}, []
    for r in found:
        if r["exp"] in (exp, *ALSO):
            train = {"stride": 1} | r["hp"]["train"]  # only our own records say it
            known.append(r | {"hp": r["hp"] | {"train": train}})
    for r in records.rows_of(known, exp, ALSO):
        cells = dials.setdefault((r["task"], r["tier"]), {})
        cells.setdefault((Row.of(r), r["cell"]["stride"]), []).append(r)
    for place, cells in dials.items():
        dialled = {row for (row, _), group in cells.items() if any(r["exp"] == exp for r in group)}
        inside = [cell for cell in cells if cell[0] in dialled]
        inside.sort(
            key=lambda cell: (cell[0].model not in ("bag", "conv"), tables.naturally(cell[0].label()))
        )
        dials[place] = {cell: records.best_recipe(cells[cell]) for cell in inside}
    return dials


NUMBERS = "standard error. All is of test accuracies in %, the mean of 3 seeds, or of (their number)"
MEANINGS = {
    "no techniques": "without A's training techniques: denoising on Text, flips on Image",
    "Transformer": "with rotary positions, that of exp_multitask.py",
    "bag": "the model sees which symbols occur, not where",
    "°": "at the bag: at most 2 points above the bag of symbols in the same order, before rounding",
    "keeps": "of its points over the bag in the own order, how many are left",
    "apart": "--stride S sends former neighbours L / S apart, where an input has L positions: with S = 3 a "
    "model reads ABCDEF as ADBECF",
    "anywhere": "one random order for all examples",
    "rates": "were searched for no order: all have the task's own",
}


def report(args):
    """The tables of the dial, a row a model, a column an order; and their figures."""
    exp, both = records.experiment(__file__), records.yours_and_ours(args.out)
    if args.against:
        return tables.compare(args, exp, data.TITLES)
    yours, ours = map(of_the_dial, both)
    ran_at = [{tier for (_, tier), cells in dials.items() if cells} for dials in (yours, ours)]
    drawn = tiers = tables.tiers_of(args, *ran_at)
    not_run = not any("paper" in known for known in ran_at) and not args.mini
    if not_run and "mini" not in tiers:
        tiers = ["mini", *tiers]
    places = product(tiers, common.chosen(args.task or ["all"], TASKS))
    found = {(tier, name): [whose.get((name, tier), {}) for whose in (yours, ours)] for tier, name in places}
    found = {place: cells for place, cells in found.items() if any(cells)}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        if not_run:
            print_not_run()
        for (tier, name), (mine, theirs) in found.items():
            if tier in drawn:
                print_dial(name, tier, mine, theirs, args.all_tiers)
            else:
                tables.print_list(f"{data.TITLES[name]}:", in_words(name, tier, theirs or mine))
    tables.explain(printed.getvalue(), MEANINGS, NUMBERS)
    for (tier, name), cells in found.items():
        if tier in drawn:
            plot_dial(name, tier, *cells, args.out / f"dial-{name}-{tier}.png")
    if not found and args.mini:
        print("Nobody has run the dial at the mini tier yet: leave out --report.\n")
    elif args.mini:
        print("What the mini runs say: python claims.py --rows all")
    tables.print_elsewhere(args, __file__, drawn, {tier for _, tier in ours})


def print_not_run():
    """What stands in place of the dial at full size: its question and a command."""
    print("### The dial: neighbours moved apart (not run; the mini tier in short)\n")
    print("Neighbours are moved apart: what does a model lose? No paper has such a table.\n")
    tables.print_first(__file__, "--task text --model conv --kernel 5 --stride 256 \\\n  --no-techniques")
    print("It moves neighbours 16 of 4,096 bytes apart. Our mini runs, in short:\n")


def without_techniques(cells):
    """ ", no techniques" of cells that were all trained so, else ""."""
    return ", no techniques" * (not any(row.techniques for row, _ in cells))


def errors_of(cells):
    """ "0.5 to 0.7": the standard errors of some cells, in points."""
    errors = [100 * records.mean_and_error(group)[1] for group in cells.values()]
    return tables.least_to_most(errors, "{:.1f}".format)


def print_accuracies(orders, words, cells):
    """A table of some orders, a row a model; techniques are in a label if some row has them."""
    named = not without_techniques(cells)
    rows = dict.fromkeys(row for row, _ in cells)
    table = [[in_table(row, named), *(accuracy(row, s, cells) for s in orders)] for row in rows]
    if table := [line for line in table if any(line[1:])]:
        tables.show(["", *(words[s] for s in orders)], table)


def in_words(name, tier, cells):
    """What two orders of one task cost, a sentence each: former neighbours as many positions apart as one row
    of the square has, and anywhere. What share of its lead over a bag of symbols does a model keep?"""
    words = orders_in_words(name, tier, cells)
    learnt = [row for row, s in cells if s == 1 and row.model != "bag"]
    flat = [row for row in learnt if at_bag(row, 1, cells)]  # these have no order to lose
    for order in far_orders(name, tier, cells):
        here = [row for row, s in cells if s == order and row in learnt and row not in flat]
        low = [row for row in here if at_bag(row, order, cells)]
        parts = []
        if low:
            names = tables.listed([row.label(False) for row in low])
            parts.append(f"{names} {'fall' if low[1:] else 'falls'} to the bag")
        leads = {row: [lead_over_bag(row, s, cells) for s in (order, 1)] for row in here if row not in low}
        leads = {row: lead for row, lead in leads.items() if None not in lead}
        kept = {row: f"{100 * kept / had:.0f} %" for row, (kept, had) in leads.items()}
        most = sorted(kept, key=lambda row: -leads[row][0] / leads[row][1])
        if most:
            first, *others = most
            words_of = (
                f"{first.label(False)} keeps {kept[first]} of its lead over {'it' if low else 'the bag'}"
            )
            parts.append(", ".join([words_of, *(f"{row.label(False)} {kept[row]}" for row in others)]))
        if parts:
            picture = " (the image is transposed)" * (name == "image" and order not in ORDERS)
            yield f"neighbours {words[order]}{picture}: {'; '.join(parts)}"
    if flat:
        names = tables.listed([row.label(False) for row in flat])
        near = f"{names} {'are' if flat[1:] else 'is'} at the bag already"
        yield f"neighbours not moved: {near}, and {'have' if flat[1:] else 'has'} no order to lose"


def far_orders(name, tier, cells):
    """The two orders that a report speaks of: former neighbours as many positions apart as one row of the
    square has, and anywhere."""
    known = {s for _, s in cells}
    return [s for s in known - {*ORDERS} if s * s == data.length(name, tier == "mini")] + ["random"]


def lead_over_bag(row, order, cells):
    """How many points a model has more than a bag of symbols in the same order, as the table has both; None
    without one."""
    bag = bag_in(order, cells)
    if not bag:
        return None
    model, other = (round(100 * records.mean_and_error(group)[0], 1) for group in (cells[row, order], bag))
    return model - other


def bag_in(order, cells):
    """The records of the bag of symbols in one order, or []."""
    return next((group for (row, s), group in cells.items() if s == order and row.model == "bag"), [])


def at_bag(row, order, cells):
    """Whether a model has no more than a bag of symbols in the same order, see records.at_bag."""
    return row.model != "bag" and records.at_bag(cells[row, order], bag_in(order, cells))


def orders_in_words(name, tier, *both):
    """{order: "16 apart"}, near ones first, of the cells of one task; 1: "own order"."""
    orders, L = {order for cells in both for _, order in cells}, data.length(name, tier == "mini")
    apart = {s: max(1, L // s) if s > 1 else 1 for s in orders - {*ORDERS}}
    words = {s: "own order" if s == 1 else f"{apart[s]} apart" for s in sorted(apart, key=apart.get)}
    return words | {s: text for s, text in ORDERS.items() if s in orders}


def print_columns(name, tier, words, cells):
    """What stands in the columns of a dial; words: orders_in_words."""
    L = data.length(name, tier == "mini")
    print("Columns: how far apart former neighbours stand.")
    near = [s for s in words if isinstance(s, int) and 1 < s < L // s]
    seen = "where a small kernel sees it"
    print("".join(f"At {words[s]}, what was {s} apart stands side by side, {seen}.\n" for s in near), end="")
    across = [words[s] for s in far_orders(name, tier, cells)[:-1] if name == "image"]
    print("".join(f"{order}: the image is transposed. " for order in across), end="")
    print(f"Errors: {errors_of(cells)}.\n")


def print_dial(name, tier, yours, ours, everything):
    """What the orders of one task take, in short, and its tables of accuracies; everything: this repository's
    rotated images, too."""
    words = orders_in_words(name, tier, yours, ours)
    print(f"### The dial: {data.TITLES[name]} ({records.TIERS[tier]})\n")
    tables.print_list("In short:", in_words(name, tier, ours or yours))
    for whose, cells in (("Your runs", yours), ("This repository's runs", ours)):
        if not cells:
            continue
        print(f"{whose}{without_techniques(cells)}.")
        print_columns(name, tier, words, cells)
        print_accuracies([s for s in words if s not in data.ROTATED], words, cells)
        rotated = [s for s in words if s in data.ROTATED]
        if any(order in rotated for _, order in cells) and (everything or cells is yours):
            print("A control: each image is also shifted in a circle, by a number of its own.\n")
            print_accuracies(rotated, words, cells)
        named = not without_techniques(cells)
        of_rows = {row.label(named): tables.unchanged(group[0]) for (row, _), group in cells.items()}
        of_task = [r for group in cells.values() for r in group]
        tables.print_recipe(data.TITLES[name], of_rows, of_task)


def plot_dial(name, tier, yours, ours, path):
    """The figure of one task: this repository's runs as lines, yours as crosses."""
    words = orders_in_words(name, tier, yours, ours)
    groups = [of for cells in (yours, ours) for (_, s), of in cells.items() if s not in data.ROTATED]
    how = f"{records.TIERS[tier]}, {tables.seeds_of(groups)}"
    title = f"{data.TITLES[name]}: what if neighbours are moved far apart? ({how})"
    figure, (axis,) = tables.panels([title], (9, 4.2))
    drawn = [s for s in words if s not in data.ROTATED]
    rows = dict.fromkeys(row for row, _ in (*ours, *yours))
    for cells, marker, whose in ((ours, "o-", ""), (yours, "x:", ", yours")):
        for i, row in enumerate(rows):
            color = tables.colour(row.model, {"kernel": row.kernel}, i)
            here = [x for x, s in enumerate(drawn) if (row, s) in cells]
            far = [at for at in here if drawn[at] in ORDERS]  # no distance: no line leads there
            aside = 0.04 * (i - (len(rows) - 1) / 2)  # and the points may coincide
            for places, shift in (([at for at in here if at not in far], 0), (far, aside)):
                if places:
                    groups = [cells[row, drawn[at]] for at in places]
                    y, error = 100 * np.array([records.mean_and_error(group) for group in groups]).T
                    style = dict(fmt=marker, color=color, label=row.label(False) + whose)
                    axis.errorbar([at + shift for at in places], y, yerr=error, **style)
    chance = max(r.get("chance", 0) for cells in (yours, ours) for group in cells.values() for r in group)
    axis.axhline(100 * chance, color="black", linestyle=":", linewidth=1, label="chance")
    near = {s: f"\n({s} → 1)" for s in words if s not in ORDERS and s > 1}  # what explains a rise of K = 5
    axis.set_xticks(range(len(drawn)), [words[s] + near.get(s, "") for s in drawn])
    axis.set_xlabel("how far apart former neighbours lie (4 → 1: what was 4 apart lies side by side)")
    axis.set_ylabel("test accuracy (%) and its standard error")
    tables.legend_below(figure, [axis])
    tables.save_figure(figure, path)


def in_table(row, techniques=False):
    """ "K=1 (bag)": the label of a row where there is little room, see Row.label."""
    return row.label(techniques).replace("bag of symbols", "bag")


def accuracy(row, order, cells):
    """ "58.5°", "58.7° (2)": of a model in one order, ° at the bag; "" for none."""
    if (row, order) not in cells:
        return ""
    number, *seeds = tables.mean_of(cells[row, order]).split(" ")
    return " ".join([number + "°" * at_bag(row, order, cells), *seeds])


# ------------------------------------------------------------------------------------------ command line


def order(text):
    """A value of --stride: a name of ORDERS or a whole number above 0."""
    return text if text in ORDERS else common.positive_int(text)


def main(argv=None):
    parser = common.make_parser(__doc__, TASKS)
    # fmt: off
    parser.add_argument("--model", nargs="+", choices=[*MODELS, "all"], metavar="MODEL",
        help=f"{', '.join(MODELS)} or all (default bag conv transformer s4 gmlp; with --smoke conv)")
    parser.add_argument("--kernel", nargs="+", type=common.odd_int, default=[5, 31], metavar="K",
        help="of conv (default 5 31; with --smoke 5)")
    parser.add_argument("--stride", nargs="+", type=order, metavar="S",
        help=f"whole numbers, {', '.join(ORDERS)} (default 1 4 16 64 random; with --smoke 16)")
    parser.add_argument("--figure", choices=("range",), help="measure finished models, train nothing")
    # fmt: on
    args = common.parse_args(parser, argv)
    with common.exit_cleanly():
        if args.report:
            return report(args)
        names, default = common.chosen(args.task, TASKS), ["bag", "conv", "transformer", "s4", "gmlp"]
        if args.figure:
            for name in names:
                measure(args, name)
            return
        strides, kernels = STRIDES, args.kernel
        if args.smoke:
            default, strides, kernels = ["conv"], [16], kernels[:1]
        chosen = common.chosen(args.model or default, MODELS)
        pairs = [(m, kernel) for m in chosen for kernel in (kernels if m == "conv" else [None])]
        cells = product(data.require(names, args), pairs, args.stride or strides)
        records.run_cells(args, [(name, *pair, stride) for name, pair, stride in cells], run_cell)
        if not args.smoke:
            report(args)


if __name__ == "__main__":
    main()
