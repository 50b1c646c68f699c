"""Beyond the papers: how far must a model see? A dial that changes nothing but the range of a task, and a
measure of the range that a trained model uses.

    python exp_range.py --task text --mini --no-techniques         the dial, five strides
    python exp_range.py --task text --mini --no-techniques --model s4 --stride 16
    python exp_range.py --task text --mini --figure range          the measure, of all finished models
    python exp_range.py --task pathfinder --mini --figure pairs    minimal pairs: one paddle less
    python exp_range.py --report --mini                            the table and its claims

Paper A concludes from small kernels that the Long Range Arena is mostly short-range. The control is the
same task with a longer range. The dial re-orders every document alike: position i goes to
(i mod s) (L / s) + i div s. Symbols, labels and lengths stay; what were neighbours are now L / s positions
apart, and what are neighbours now were s apart. s = 1 is the paper's task. A bag of symbols (K = 1) cannot
notice the dial. On square images s = width is the transpose. On 256 positions s = 16 is the far end for
small kernels: at s = 4 they read every fourth symbol, at s = 64 their neighbours are 4 apart.

Claims of the mini tier, each fixed before its results were seen (CLAIMS). On Text with neighbours 16 apart
K = 5 loses at least 5 points; K = 31, whose four layers reach 60 positions, is then at least 2 ahead of
K = 5; attention with rotary positions loses at least 2 less than K = 5; gMLP, whose kernels are long and
free, loses at most 2; S4, whose kernels start near lag 0, at least 1 more than gMLP; a bag of symbols
nothing. With neighbours 4 apart (s = 64), where one layer of K = 31 sees them, K = 31 is at least 2 ahead of
K = 5. In random order gMLP loses at least 5. On Image the transpose (s = 16) changes K = 5 by at most 2.5; in
random order K = 31 and gMLP are at most 5 ahead of a bag. gMLP loses at most 2 on Text at s = 4 and on Image
at s = 4 and 64; K = 5 loses at least 2 on Image at s = 64.

In random order gMLP was further ahead of the bag on Image than claimed. Perhaps its long kernels tell a
position by its distance to the ends. The control: s = random-rotated also rotates every document by a number
of its own. If that is the reason, gMLP is then at most 5 ahead of the bag, and in the paper's order a
rotation alone (s = rotated) leaves it at least 10 ahead.

All train with --no-techniques: restoring bytes costs models of this size more points than the dial
(NOTES.md). A model trains as in its own script, at every stride alike; on mini Image all train 2 epochs in
batches of 16.

The measure: how much do two positions interact in the answer? With mean pooling first derivatives say
little, so it is the mixed second difference |f(ij) - f(i) - f(j) + f(0)| of the true class's logit f, where
f(i) has symbol i exchanged for one from elsewhere. R = sum d |I| / sum |I| is its mean distance (as in
City-Networks); the distance that holds 90 % of it stands beside it. A stack of convolutions must be 0
beyond twice its reach.

Minimal pairs: the same Pathfinder image with and without one paddle of the target contour. Length, clutter
and local statistics stay. A model that follows the contour changes its answer wherever the cut is.

Paper A: "You Can Train from Scratch: Further Discussion on the Long Range Arena" (OpenReview YuFUUcSUgx).
"""

from itertools import product

import numpy as np
import torch

import common
import data
import exp_kernels
import exp_locality
import exp_multitask
import exp_positional
import models
import pathfinder
import records
from records import markdown

TASKS = ("text", "image", "listops", "retrieval", "pathfinder")
SCRIPTS = ("range", "locality", "multitask", "kernels", "positional")  # whose finished models are measured
STRIDES = (1, 4, 16, 64, "random")
ORDERS = {"random": "anywhere, s=random", "rotated": "1 apart, s=rotated"}
ORDERS |= {"random-rotated": "anywhere, s=random-rotated"}
NAMES = dict(
    bag="bag of symbols",
    conv="convolution",
    window="attention to 2 neighbours",
    transformer="Transformer, rotary",
    learned="Transformer, learned positions",
    s4="S4",
    gmlp="gMLP",
    mega="MEGA",
) | {"ema-attention": "MEGA (paper A's block)"}


def at(task, stride, row, sign=1):
    """One cell of a claim."""
    return sign, task, f"{row}, no techniques, s={stride}"


def dial(task, *signed, to=16):
    """The cells of a claim: pairs (sign, row) at strides 1 and `to`, the loss between which counts."""
    return [at(task, s, row, sign * end) for sign, row in signed for end, s in ((1, 1), (-1, to))]


COLOURS = {"bag": records.GREY, "K=5": records.ORANGE, "K=31": "#7A3B00", "gMLP": "#009E73"}
COLOURS |= {"S4": records.BLUE, "S5": "#56B4E9", "Transformer": "#CC79A7", "MEGA": "#E69F00"}
K5, K31, ROTARY, BAG = "convolution K=5", "convolution K=31", NAMES["transformer"], NAMES["bag"]
CLAIMS = [  # (words, signed cells, from, to), in points
    ("Text: K = 5 loses by the dial", dial("text", (1, K5)), 5, None),
    *((f"Text, s = {s}: K = 31 over K = 5", [at("text", s, K31), at("text", s, K5, -1)], 2, None)
      for s in (16, 64)),
    ("Text: the Transformer loses less than K = 5", dial("text", (1, K5), (-1, ROTARY)), 2, None),
    ("Text: gMLP loses little", dial("text", (1, "gMLP")), None, 2),
    ("Text: S4 loses more than gMLP", dial("text", (1, "S4"), (-1, "gMLP")), 1, None),
    ("Text: a bag of symbols loses nothing", dial("text", (1, BAG)), -0.5, 0.5),
    ("Text, random: gMLP loses", dial("text", (1, "gMLP"), to="random"), 5, None),
    ("Image, transposed: K = 5 stays", dial("image", (1, K5)), -2.5, 2.5),
    *((f"Image, random: {row} is near a bag", [at("image", "random", row), at("image", "random", BAG, -1)],
       None, 5) for row in (K31, "gMLP")),
    *((f"{data.TITLES[task]}, s = {s}: gMLP loses little", dial(task, (1, "gMLP"), to=s), None, 2)
      for task, s in (("text", 4), ("image", 4), ("image", 64))),
    ("Image, s = 64: K = 5 loses", dial("image", (1, K5), to=64), 2, None),
    *((f"Image, {order}: gMLP over a bag", [at("image", order, "gMLP"), at("image", s, BAG, -1)], low, high)
      for order, s, low, high in (("random-rotated", "random", None, 5), ("rotated", 1, 10, None))),
]  # fmt: skip

# ------------------------------------------------------------------------------------------ the dial


def recipe(model, name, kernel=None, stride=1, techniques="yes", mini=False):
    """The recipe of the script that has this model, with the stride."""
    if model in ("bag", "conv"):
        hp = {"block": "conv"} | exp_locality.recipe(name, techniques, mini, kernel=kernel or 1)
    elif model == "learned":
        hp = exp_positional.variant_recipe(name, "learned", techniques, mini=mini)
    elif model in ("s4", "gmlp"):
        hp = exp_kernels.recipe(model, name, techniques, mini)
    else:
        hp = exp_multitask.recipe(model, name, techniques, mini)
    if mini and name == "image":
        hp |= {"epochs": 2, "batch_size": 16}  # five strides of whole cells would take a day
        hp |= {"lr": 1e-3} if model == "transformer" else {}  # of its runs; 3e-3 is for batches of 32
    return hp | {"stride": stride}


def label(model, cell):
    """The name of a row, at all strides."""
    kernel = f" K={cell['kernel']}" if "kernel" in cell else ""
    return f"{NAMES[model]}{kernel}" + ", no techniques" * ("techniques" in cell)


def colour(row):
    """The colour of a row's model, alike in both figures; None: the next free one."""
    return next((colour for model, colour in COLOURS.items() if model in row), None)


def place(record):
    """A cell's place as claims name it: (task, row and stride)."""
    return record["task"], f"{label(record['model'], record['cell'])}, s={record['cell']['stride']}"


# ------------------------------------------------------------------------------------------ the measure

DISTANCES = (1, 2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64, 90, 128, 181, 255)


@torch.no_grad()
def interactions(model, task, distances, examples=64, seed=0, shuffle=False):
    """Mean |f(ij) - f(i) - f(j) + f(0)| at each distance j - i, (n,) float64 numpy.

    f is the logit of the true class (of two classes the only one), in float64. Positions are drawn anew for
    every distance; the symbols put there are drawn from the same documents. shuffle: the control, every
    document's symbols in random order.
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

    nothing, found = f(tokens), []
    for distance in distances:
        i = (torch.rand(len(rows), generator=draw) * (length - distance).clamp(min=1)).long()
        j, fits = (i + distance).clamp(max=tokens.shape[1] - 1), length > distance
        first, second = tokens.clone(), tokens.clone()
        first[rows, i], second[rows, j] = other(i), other(j)
        both = torch.where(first != tokens, first, second)
        size = (f(both) - f(first) - f(second) + nothing).abs()
        found.append(float(size[fits].mean()) if fits.any() else 0.0)
    return np.array(found)


def summarised(distances, sizes, L):
    """(mean distance, distance that holds 90 %) of the interaction of all pairs of L positions; `sizes` are
    interpolated between the measured distances."""
    every = np.arange(1, min(L, max(distances) + 1))
    weight = np.interp(every, distances, sizes) * (L - every)  # there are L - d pairs at distance d
    share = weight.cumsum() / weight.sum()
    return float((every * weight).sum() / weight.sum()), int(every[np.searchsorted(share, 0.9)])


def figure_range(args):
    """Interaction against distance for every finished model of a task, one line a model."""
    for name in common.chosen(args.task, TASKS):
        runs = {}
        for r in records.finished_runs(args, name, SCRIPTS):
            if r["hp"].get("stride", 1) == 1:
                position = r["cell"].get("position", "rotary")
                model = r["model"] if position == "rotary" else position
                key = NAMES.get(model, model) + (f" K={r['cell']['kernel']}" if "kernel" in r["cell"] else "")
                runs[key] = max(r, runs.get(key, r), key=lambda run: run["val_acc"])
        if not runs:
            raise common.UserError(f"no finished run of {data.TITLES[name]} in {args.out}; train one first")
        task = data.load(name, args.data_dir, augment="none", mini=args.mini, smoke=args.smoke)
        lines, rows = {}, []
        distances = [d for d in DISTANCES if d < task.max_length]
        for key, r in runs.items():
            path = args.out / r["run"] / "best.pt"
            model, state = records.rebuilt(path, models.SequenceModel)
            torch.manual_seed(0)
            start = models.SequenceModel(**state["arguments"])
            shapes = dict(trained=(model, False), untrained=(start, False), shuffled=(model, True))
            sizes = {k: interactions(m, task, distances, shuffle=s) for k, (m, s) in shapes.items()}
            lines[f"{key} ({r['test_acc']:.1%})"] = sizes
            for what, values in sizes.items():
                mean, most = summarised(distances, values, task.max_length)
                accuracy = f"{r['test_acc']:.1%}" if what == "trained" else ""
                rows.append([key, what, accuracy, f"{mean:.0f}", most])
        print(f"### Range of trained models, {data.TITLES[name]}\n")
        print(markdown(["model", "", "accuracy", "mean distance", "90 % within"], rows) + "\n")
        plot_range(distances, lines, data.TITLES[name], args.out / f"range-{name}.png")


@torch.no_grad()
def figure_pairs(args):
    """For every finished Pathfinder model: how often it answers "connected" with and without one paddle."""
    size, level = (16, "easy") if args.mini else (32, "easy" if args.smoke else "hard")
    whole, cut, distance = pathfinder.cut_pairs(size, level, seed=1, block=0)  # seed 0 is the training set's
    shape, rows = data.SHAPES["pathfinder"], []
    images = [torch.from_numpy(x.reshape(len(x), -1)).long() + shape["first_id"] for x in (whole, cut)]
    for r in records.finished_runs(args, "pathfinder", SCRIPTS):
        if r["hp"].get("stride", 1) != 1:  # the pairs are in the paper's order
            continue
        model, _ = records.rebuilt(args.out / r["run"] / "best.pt", models.SequenceModel)
        logit = []
        for pixels in images:
            parts = ((x, torch.ones_like(x, dtype=torch.bool)) for x in pixels.split(64))
            logit.append(torch.cat([model.classify(model(x, mask), mask)[:, 0] for x, mask in parts]))
        for d in np.unique(distance):
            here = torch.from_numpy(distance == d)
            answers = [f"{100 * (x[here] > 0).double().mean():.1f}" for x in logit]
            drop = f"{(logit[0] - logit[1])[here].mean():.2f}"
            rows.append([f"{r['model']} {r['test_acc']:.1%}", d, int(here.sum()), *answers, drop])
    if not rows:
        raise common.UserError(f"no finished Pathfinder run in {args.out}; train one first")
    header = ["model", "paddles to the nearer end", "n", "whole: connected (%)", "cut: connected (%)"]
    print(f"### Minimal pairs, Pathfinder {size} x {size} {level}\n\nThe right answers: 100 and 0 %\n")
    print(markdown([*header, "fall of the logit"], rows) + "\n")


def plot_range(distances, lines, title, path):
    plt = records.pyplot()
    figure, axis = plt.subplots(figsize=(9, 4.8), layout="constrained")
    for i, (key, sizes) in enumerate(lines.items()):
        for what, style, words in (("untrained", ":", None), ("trained", ".-", key)):
            y = sizes[what] / max(sizes[what].max(), 1e-300)
            axis.plot(distances, y, style, color=colour(key) or f"C{i}", label=words)
    axis.plot([], [], "k:", label="before training")
    axis.set(xscale="log", yscale="log", ylim=(1e-5, 2))
    axis.xaxis.set_major_formatter("{x:g}")
    axis.set(xlabel="distance of two positions (symbols)")
    axis.set(ylabel="interaction / its maximum", title=f"{title}: how far apart do positions interact?")
    axis.grid(alpha=0.3)
    records.legend_below(figure, [axis])
    records.save_figure(figure, path)


# ------------------------------------------------------------------------------------------ one cell


def run_cell(args, name, model, kernel, stride, seed):
    cell = {"stride": stride} | ({"kernel": kernel} if kernel else {})
    cell |= {"techniques": "no"} if args.no_techniques else {}
    print(f"\n{label(model, cell)}, s={stride}")
    exp_multitask.train(args, __file__, name, model, cell, recipe(model, name, mini=args.mini, **cell), seed)


# ------------------------------------------------------------------------------------------ the report


def report(args):
    found = records.report_records(args, __file__, TASKS, NAMES, ("stride", "kernel", "techniques"))
    dialled = {(r["task"], label(r["model"], r["cell"])) for r in found}
    # At s = 1 these are cells of other scripts: the same training, number for number.
    for script in (exp_locality, exp_multitask, exp_kernels, exp_positional):
        varied = ("kernel", "position", "techniques")
        for r in records.report_records(args, script.__file__, TASKS, NAMES, varied):
            cell = {k: v for k, v in r["cell"].items() if v not in ("yes", "rotary")} | {"stride": 1}
            model = cell.pop("position", r["model"])  # "learned" is a model here
            if model in NAMES and (r["task"], label(model, cell)) in dialled:
                hp = {"block": "conv", "stride": 1} | r["hp"]
                found.append(r | {"model": model, "cell": cell, "hp": hp})
    found.sort(key=lambda r: (list(NAMES).index(r["model"]), r["cell"].get("kernel", 0)))
    for tier, size in (("mini", "mini"), ("paper", "full")):
        mini, once = tier == "mini", {}  # a cell and seed that two scripts have counts once
        for r in found:
            words = records.terms(r | {"data": {}}, recipe(r["model"], r["task"], mini=mini, **r["cell"]))
            if r["budget"] == tier and not words:
                once.setdefault((*place(r), r["seed"]), r)
        print(f"### The dial, {size} size\n")
        for name in TASKS:
            print_dial(name, [r for r in once.values() if r["task"] == name], args, tier)
        if mini:
            claims = records.print_claims(CLAIMS, records.grouped(once.values(), place))
        if args.mini:
            return claims


def print_dial(name, found, args, tier):
    """One task: a row a model, a column a distance to which neighbours are sent; and the figure."""
    if not found:
        return
    cells = records.grouped(found, lambda r: (label(r["model"], r["cell"]), r["cell"]["stride"]))
    rows = dict.fromkeys(row for row, _ in cells)
    L = (data.MINI_LENGTHS if tier == "mini" else exp_multitask.MAX_LENGTH)[name]
    apart = {s: max(1, L // s) if s > 1 else 1 for _, s in cells if s not in ORDERS}
    words = {s: f"{apart[s]} apart, s={s}" for s in sorted(apart, key=apart.get)}
    words |= {s: text for s, text in ORDERS.items() if any((row, s) in cells for row in rows)}
    print(f"{data.TITLES[name]}: test accuracy in % ± standard error, by where neighbours are sent\n")
    table = [[row, *(dial_text(cells.get((row, s))) for s in words)] for row in rows]
    print(markdown(["", *words.values()], table) + "\n")
    strides = [s for s in words if s not in data.ROTATED]  # a control, no distance
    figure, axis = records.pyplot().subplots(figsize=(7, 4.4), layout="constrained")
    for row in rows:
        there = [i for i, s in enumerate(strides) if (row, s) in cells]
        if not there:
            continue
        y, error = 100 * np.array([records.mean_and_error(cells[row, strides[i]]) for i in there]).T
        style = dict(color=colour(row), fmt="o--" if row.startswith(BAG) else "o-")
        axis.errorbar(there, y, yerr=error, label=row.removesuffix(", no techniques"), **style)
    chance = max(r.get("chance", 0) for r in found)  # first records do not say
    axis.axhline(100 * chance, color="black", linestyle=":", linewidth=1, label="guessing")
    axis.set_xticks(range(len(strides)), [words[s].replace(", ", "\n") for s in strides])
    axis.set(xlabel="where former neighbours lie", ylabel="test accuracy (%) and its standard error")
    seeds = records.from_to(map(len, cells.values()))
    axis.set_title(f"{data.TITLES[name]}: what if neighbours are sent far apart? ({seeds} seeds)")
    axis.grid(alpha=0.3)
    records.legend_below(figure, [axis])
    records.save_figure(figure, args.out / f"dial-{name}-{tier}.png")


def dial_text(group):
    if not group:
        return "—"
    mean, error = records.mean_and_error(group)
    return f"{100 * mean:.1f} ± {100 * error:.1f} (n={len(group)})"


# ------------------------------------------------------------------------------------------ command line


def main(argv=None):
    parser = common.make_parser(__doc__, TASKS)
    # fmt: off
    parser.add_argument("--model", nargs="+", choices=[*NAMES, "all"], metavar="MODEL",
        help=f"{', '.join(NAMES)} or all (default bag conv transformer s4 gmlp; smoke: conv)")
    parser.add_argument("--kernel", nargs="+", type=exp_locality.odd_kernel, default=[5, 31], metavar="K",
        help="of conv (5 31)")
    parser.add_argument("--stride", nargs="+", metavar="S", type=common.number(
        lambda text: text if text in ORDERS else int(text), f"a whole number above 0, {' or '.join(ORDERS)}",
        lambda stride: stride in ORDERS or 0 < stride < 10**9),
        help=f"numbers, {' or '.join(ORDERS)} (default 1 4 16 64 random)")
    parser.add_argument("--figure", choices=("range", "pairs"),
        help="measure the finished models, train nothing")
    # fmt: on
    args = common.parse_args(parser, argv)
    with common.exit_cleanly():
        if args.report is not None:
            return report(args)
        if args.figure:
            return (figure_range if args.figure == "range" else figure_pairs)(args)
        default = ["conv"] if args.smoke else ["bag", "conv", "transformer", "s4", "gmlp"]
        strides = args.stride or ([16] if args.smoke else STRIDES)
        kernels = args.kernel[:1] if args.smoke else args.kernel
        chosen = common.chosen(args.model or default, NAMES)
        pairs = [(m, k) for m in chosen for k in (kernels if m == "conv" else [None])]
        names = data.require(common.chosen(args.task, TASKS), args)
        cells = [(name, m, k, s) for name, (m, k), s in product(names, pairs, strides)]
        records.run_cells(args, cells, run_cell, report)


if __name__ == "__main__":
    main()
