"""How far does a linear model get that sees n consecutive symbols, and not where they stand?

    python exp_ngrams.py --task text --n 1 2 3 4 5 6         a minute or two a cell on one CPU core
    python exp_ngrams.py --task text --n 5 6 7 --weights bayes
    python exp_ngrams.py --task text --n 2 --gap 1 2 4 8     two bytes that stand 1, 2, 4, 8 apart
    python exp_ngrams.py --task image --lags "0 1 32"        a pixel, its right and its lower neighbour
    python exp_ngrams.py --task text --n 5 --top 20          what the model has learnt
    python exp_ngrams.py --report                            tables, and two figures in OUT

A document becomes a sparse vector: which n-grams of symbols it has ("presence"), or the square roots of how
often ("counts"), scaled to length 1. Logistic regression, trained until it has converged, reads the vector.
So it gets what a task gives to those who see n symbols only. With "bayes" the weight of each n-gram is
multiplied by its Naive Bayes log ratio (Wang and Manning 2012: "Baselines and Bigrams"), of a class against
the rest. N-grams of characters are an old idea; here they are a control.

Grey values are read in 8 levels. A position of sCIFAR is one symbol, the levels of its three
colours. Retrieval: |x1 - x2| and x1 * x2 of the vectors of the two documents.
"""

import argparse
import math
import textwrap
import time
import warnings
from itertools import product
from pathlib import Path

import torch
from torch.nn import functional as F

import common
import data
import listops
import records
from exp_locality import TABLE1, TASKS7
from exp_spt import PAPER

TASKS = ("text", "listops", "image", "pathfinder", "retrieval", "scifar")
GREY = ("image", "pathfinder", "scifar")  # whose symbols are grey values or colours
LEVELS = 8  # of these
WEIGHTS = ("presence", "counts", "bayes")
PENALTIES = (100, 10, 1, 0.1, 0.01, 0.001, 0.0001)  # of sum(losses) + penalty / 2 * sum(weights^2)
BOUND = 1e-3  # of the gradient's norm where a fit ends, as a share of that where all weights are 0
MOST = 1000  # steps of a fit
TABLE_BITS = {2: 22, 10: 18}  # size of the table of n-grams, by the number of classes

# fmt: off
# Test accuracies in percent. The Transformers are all of LRA's own Table 1 (arXiv 2011.04006): eight stand in
# paper B's Table 1, too; the others are from Table 1 of paper A (its K = 5 and MEGA), Tables 1 (S4) and 2 of
# paper B (its Transformer after self-pretraining: 91.02 on Text, the best of both papers).
COLUMNS = ("listops", "text", "retrieval", "image", "pathfinder")  # the first of exp_spt's
IN_B = ("Local Attention", "Longformer", "Linformer", "Reformer", "BigBird", "Performer")
IN_B += ("Linear Transformer",)
TRANSFORMERS = {name: PAPER[name][:5] for name in IN_B} | {
    "Transformer":        PAPER["Transformer, from scratch"][:5],
    "Sparse Transformer": (17.07, 63.58, 59.59, 44.24, 71.71),
    "Sinkhorn":           (33.67, 61.20, 53.83, 41.23, 67.45),
    "Synthesizer":        (36.99, 61.68, 54.67, 41.61, 69.45),
}
LATER = {
    "A's convolution, K = 5": tuple(TABLE1["K=5"][TASKS7.index(task)] for task in COLUMNS),
    "S4 (Gu et al.)":     PAPER["S4, from scratch"][:5],
    "MEGA (Ma et al.)":   PAPER["MEGA (original)"][:5],
    "Transformer with SPT": PAPER["rotary Transformer, masked SPT"][:5],
}
# fmt: on

# ------------------------------------------------------------------------------------------ the features


def symbols_of(text, task, cell):
    """A document (L,) uint8 as the model sees it, int64: cut at the task's length, grey values in levels, the
    colours of a position as one symbol. Where the cell says so: no digits, a start symbol in front."""
    text = text[: task.max_length].long()
    if "digits" in cell:
        text = text[(text < ord("0")) | (text > ord("9"))]
    if task.name in GREY:
        colours = (text * LEVELS // 256).view(-1, task.channels)
        text = (colours * LEVELS ** torch.arange(task.channels)).sum(1)
    return F.pad(text, (1, 0), value=alphabet(task)) if "start" in cell else text


def alphabet(task):
    """How many symbols a task has, without the start symbol."""
    return LEVELS**task.channels if task.name in GREY else task.vocab - task.first_id


def columns_of(text, lags, symbols, bits):
    """The column of each n-gram of a document (L,), (max(0, L - max(lags)),): the symbols at the given lags
    behind each position. `symbols` is how many there are.

    A table with a place for every n-gram is used where it has at most 2^bits places. In a larger one the
    n-gram is multiplied and the high bits are its place: these depend on every symbol."""
    grams = max(0, len(text) - max(lags))
    column = torch.zeros(grams, dtype=torch.int64)
    exact = symbols ** len(lags) <= 1 << bits
    for lag in lags:
        symbol = text[lag : lag + grams]
        column = column * symbols + symbol if exact else mixed(column + symbol + 1)
    return column if exact else (column >> (64 - bits)) & ((1 << bits) - 1)


def mixed(key):
    """A one-to-one map of int64 (wraps around) whose high bits depend on all bits of the key."""
    key = key * -7046029254386353131  # 2^64 divided by the golden ratio, as a signed number
    return (key ^ (key >> 32)) * -4658895280553007687  # the second constant of splitmix64


def documents(task, split, cell):
    """Yield (symbols, the column of the n-gram at each place) of each document of a split."""
    tokens, offsets, _ = task.splits[split]
    symbols, bits = alphabet(task) + ("start" in cell), TABLE_BITS[task.classes]
    for text in tokens.split(offsets.diff().tolist()):
        text = symbols_of(text, task, cell)
        yield text, columns_of(text, lags_of(cell), symbols, bits)


def vectors(task, split, cell):
    """(columns of the table, values) of each example of a split, columns ascending."""
    found, size = [], 1 << TABLE_BITS[task.classes]
    for _, column in documents(task, split, cell):
        column, count = torch.unique(column, return_counts=True)
        value = count.sqrt() if cell["weights"] == "counts" else torch.ones(len(count))
        found.append((column.int(), value / value.norm()))
    if task.docs == 1:
        return found
    return [paired(*pair, size) for pair in zip(found[::2], found[1::2])]


def paired(first, second, size):
    """|x1 - x2| of two vectors of `size` columns and, in columns behind these, x1 * x2."""
    (column1, value1), (column2, value2) = first, second
    column, place = torch.unique(torch.cat([column1, column2]), return_inverse=True)
    x1 = torch.zeros(len(column)).index_put_((place[: len(column1)],), value1)
    x2 = torch.zeros(len(column)).index_put_((place[len(column1) :],), value2)
    both = x1 * x2 > 0
    return torch.cat([column, column[both] + size]), torch.cat([(x1 - x2).abs(), (x1 * x2)[both]])


def matrix_of(found, place, columns):
    """The vectors as rows of a matrix (examples, columns): sparse, or dense where it is narrow. `place` says
    which column each column of the table is, -1: none, as training does not have it."""
    column = place[torch.cat([column for column, _ in found])]
    value, kept = torch.cat([value for _, value in found]), column >= 0
    edges = torch.tensor([0, *(len(column) for column, _ in found)]).cumsum(0)
    edges = F.pad(kept.cumsum(0), (1, 0))[edges]
    matrix = torch.sparse_csr_tensor(edges.int(), column[kept], value[kept], (len(found), columns))
    return matrix.to_dense() if columns <= 1024 and len(found) * columns < 1 << 28 else matrix


def log_ratios(transpose, label, classes):
    """Naive Bayes' log ratios (columns, 1) of class 1 against class 0, or (columns, classes) of each class
    against the rest: how often documents of a class have an n-gram, plus one, as a share of all n-grams."""
    had = 1 + transpose.sign() @ F.one_hot(label, classes).to(transpose.dtype)
    rest = had.sum(1, keepdim=True) - had
    ratios = (had / had.sum(0)).log() - (rest / rest.sum(0)).log()
    return ratios[:, 1:] if classes == 2 else ratios


# ------------------------------------------------------------------------------------------ the idea


class Product(torch.autograd.Function):
    """matrix @ weight. torch itself would transpose a sparse matrix for each gradient: here it is given."""

    @staticmethod
    def forward(ctx, weight, matrix, transpose):
        ctx.transpose = transpose
        return matrix @ weight

    @staticmethod
    def backward(ctx, slope):
        return ctx.transpose @ slope, None, None


def both(scores):
    """Scores (examples, classes). Two classes have one, that of class 1: that of class 0 is 0."""
    return F.pad(scores, (1, 0)) if scores.shape[1] == 1 else scores


def easing(centred, penalty, factor, classes):
    """For a dense matrix: the map (columns, columns) from z to inner that gives about the same curvature in
    all directions of z. Columns as alike as the counts of pixels would else take hundreds of steps."""
    share = factor.square().mean(1).sqrt()
    covariance = share[:, None] * (centred.T @ centred / len(centred)).double() * share
    covariance.diagonal().add_(penalty / len(centred) / ((1 - 1 / classes) / classes))
    return torch.linalg.inv(torch.linalg.cholesky(covariance)).T.to(centred.dtype)


def fit(matrix, transpose, label, classes, penalty, factor, begin=None):
    """Logistic regression by L-BFGS: the minimum of sum(losses) + penalty / 2 * sum(inner^2), where
    weight = factor * inner -> (weight (columns, scores), bias (scores,), rows of the record, where it ended).
    It ends where the gradient's norm is BOUND of that where all weights are 0, or after MOST steps: the rows
    say which. begin: where another fit ended."""
    n, outputs, kind = len(label), 1 if classes == 2 else classes, dict(dtype=matrix.dtype)
    mean = (transpose @ torch.full((n, 1), 1 / n, **kind)).T
    ease = None if matrix.is_sparse_csr else easing(matrix - mean, penalty, factor, classes)
    z = torch.zeros(matrix.shape[1], outputs, **kind, requires_grad=True)
    middle = torch.zeros(outputs, **kind, requires_grad=True)  # the scores of the mean of all vectors
    options = dict(max_iter=10, max_eval=100, tolerance_grad=0, tolerance_change=0, history_size=10)
    optimizer = torch.optim.LBFGS([z, middle], line_search_fn="strong_wolfe", **options)

    def model():
        inner = z if ease is None else ease @ z
        weight = factor * inner
        return inner, weight, middle - (mean @ weight)[0]

    def closure():
        inner, weight, bias = model()
        scores = both(Product.apply(weight, matrix, transpose) + bias)
        loss = F.cross_entropy(scores, label, reduction="none").sum(dtype=torch.float64)
        loss = (loss + penalty / 2 * inner.square().sum(dtype=torch.float64)) / n
        optimizer.zero_grad()
        loss.backward()
        return loss

    def norm():
        return math.hypot(z.grad.norm(), middle.grad.norm())

    loss, steps = closure(), 0
    at_zero = norm()
    if begin:
        z.data, middle.data = (part.detach().clone() for part in begin)
        loss = closure()
    while norm() > BOUND * at_zero and steps < MOST:
        optimizer.step(closure)
        loss, steps = closure(), steps + 10
    _, weight, bias = model()
    rows = {"penalty": penalty, "loss": loss.item(), "gradient": norm() / at_zero, "steps": steps}
    return weight.detach(), bias.detach(), rows, (z, middle)


def learn(task, cell):
    """Fit with each penalty in turn, strong ones first, until one validates no better than that before it ->
    of the best: rows of the record, {"weight": (known, scores), "columns": (known,) of the table}."""
    found = {split: vectors(task, split, cell) for split in data.SPLITS}
    known = torch.unique(torch.cat([column for column, _ in found["train"]])).long()
    place = torch.full((2 << TABLE_BITS[task.classes],), -1, dtype=torch.int32)  # twice a table, for pairs
    place[known] = torch.arange(len(known), dtype=torch.int32)
    matrix = {split: matrix_of(found.pop(split), place, len(known)) for split in data.SPLITS}
    transpose = matrix["train"].t()
    if matrix["train"].is_sparse_csr:
        transpose = transpose.to_sparse_csr()
    label, factor = task.train.label, torch.ones(len(known), 1)
    if cell["weights"] == "bayes":
        factor = log_ratios(transpose, label, task.classes)
    best, tried, end = {"val_acc": -1}, {}, None
    for penalty in PENALTIES:
        weight, bias, got, end = fit(matrix["train"], transpose, label, task.classes, penalty, factor, end)
        for split, x in matrix.items():
            right = both(x @ weight + bias).argmax(1) == task.splits[split].label
            got[f"{split}_acc"] = right.double().mean().item()
        tried[str(penalty)] = round(got["val_acc"], 4)
        scores = f"val {got['val_acc']:.2%}, train {got['train_acc']:.2%}"
        how = f"{got['steps']} steps, gradient {got['gradient']:.1e} of that at 0 (bound {BOUND:g})"
        print(f"  penalty {penalty:g}: {scores}; {how}", flush=True)
        if got["val_acc"] <= best["val_acc"]:
            break
        best, heaviest = got, weight
    params = weight.numel() + bias.numel()
    best |= {"params": params, "features": len(known), "tried": tried}
    return best, {"weight": heaviest, "columns": known}


# ------------------------------------------------------------------------------------------ one cell


def label_of(cell):
    """The name of a cell's row, e.g. "n=5, bayes" or "lags 0 1 32, counts"."""
    words = [f"lags {cell['lags']}" if "lags" in cell else f"n={cell['n']}"]
    words += [f"gap {cell['gap']}"] if cell.get("gap", 1) > 1 else []
    words += [cell["weights"]] + (["start"] if "start" in cell else [])
    words += ["no digits"] if "digits" in cell else []
    return ", ".join(words)


def lags_of(cell):
    if "lags" in cell:
        return [int(lag) for lag in cell["lags"].split()]
    return [i * cell["gap"] for i in range(cell["n"])]


def run_cell(args, task, cell):
    """One cell of the table: nothing where it is done; else it ends with its record."""
    lags = lags_of(cell)
    hp = {"lags": lags, "weights": cell["weights"], "table_bits": TABLE_BITS[task.classes]}
    hp |= {"grid": PENALTIES, "bound": BOUND} | ({"levels": LEVELS} if task.name in GREY else {})
    identity = records.make_identity(args, __file__, task, "linear", cell, 0, hp)
    name = records.run_name(identity)
    if not records.is_done(args, __file__, name):
        with records.claim(args, name) as folder:
            train(args, task, cell, identity, folder)
    if args.top:
        print_top(args, task, cell, args.out / name / "weights.pt")


def train(args, task, cell, identity, folder):
    """Fit a cell, keep its weights and append its record."""
    lags = lags_of(cell)
    longest = int(max(task.lengths["train"])) // task.channels
    if max(lags) >= longest:
        advice = f"its longest document has {longest}; give a smaller --n, --gap or --lags"
        raise common.UserError(f"{task.name}: the n-gram spans {max(lags) + 1:,} positions, {advice}")
    print(f"\n{folder}\n  {label_of(cell)}: {len(task.train.label):,} examples", flush=True)
    device, began, cpu_began = torch.device("cpu"), time.monotonic(), time.process_time()
    common.reset_peak(device)
    got, state = learn(task, cell)
    got |= {"seconds": round(time.monotonic() - began, 1), "peak_gb": common.peak_gb(device)}
    got |= {"cpu_seconds": round(time.process_time() - cpu_began, 1), "device": common.device_name(device)}
    changes = {"limit": args.limit} if args.limit else {}
    line = identity | {"row": label_of(cell), "changes": changes, "run": folder.name}
    line |= {"tier": records.tier_of(args, changes)} | got
    line |= {"chance": round(common.chance(task.test), 4), "data": task.source}
    common.save_checkpoint(folder / "weights.pt", state)
    records.append_record(args.out / "results.jsonl", line | records.where_it_ran(args, __file__))
    print(f"test accuracy {got['test_acc']:.2%} ({got['seconds']:.0f} s); {worth(line)}", flush=True)


def worth(line):
    """Whose published accuracy a record is ahead of: "11 of 11 Transformers of LRA's table, K = 5, S4"."""
    if line["smoke"]:
        return "a smoke run: it works, the accuracy means nothing"
    if line["task"] not in COLUMNS or line["tier"] != "paper":
        return "nothing published is comparable"
    at = COLUMNS.index(line["task"])
    behind = [name for name, row in (TRANSFORMERS | LATER).items() if row[at] < 100 * line["test_acc"]]
    count = f"{len(TRANSFORMERS.keys() & {*behind})} of {len(TRANSFORMERS)} Transformers of LRA's table"
    return "ahead of " + ", ".join([count, *(name for name in LATER if name in behind)])


def print_top(args, task, cell, path):
    """Print the heaviest n-grams of each class; of n-grams that share a column, the one that is met first."""
    state = common.load_checkpoint(path, "cpu", remedy="train the cell again with --fresh")
    if state is None:
        raise common.UserError(f"{path} is not there; train the cell again with --fresh, or leave --top out")
    weight, lags, names = state["weight"], torch.tensor(lags_of(cell)), {}
    sides = [-weight[:, 0], weight[:, 0]] if task.classes == 2 else weight.T
    tops = [side.topk(min(args.top, len(side))) for side in sides]
    wanted = torch.cat([state["columns"][top.indices] for top in tops])
    for text, column in documents(task, "train", cell):
        for place in torch.isin(column, wanted).nonzero()[:, 0].tolist():
            names.setdefault(int(column[place]), text[place + lags].tolist())
    for number, top in enumerate(tops):
        print(f"  class {number}:")
        for value, index in zip(top.values.tolist(), top.indices.tolist()):
            print(f"    {value:+.2f}  {readable(task.name, names[int(state['columns'][index])])}")


def readable(name, gram):
    """An n-gram for people: bytes as text, operators and digits of ListOps, grey levels."""
    if name == "text":
        return repr(bytes(symbol for symbol in gram if symbol < 256))
    words = [*listops.LISTOPS_SYMBOLS, "(start)"] if name == "listops" else range(256)
    return " ".join(str(words[symbol]) for symbol in gram)


# ------------------------------------------------------------------------------------------ the report


def report(args):
    """A table a task, and the figures, of your runs and this repository's; of a run that both have, yours."""
    yours, ours = records.yours_and_ours(args.out)
    wanted = common.chosen(args.task or ["all"], TASKS)
    found = [r for r in {r["run"]: r for r in ours + yours}.values() if r["task"] in wanted]
    found = [r for r in found if r["exp"] == records.experiment(__file__)]
    found = [r for r in found if r["tier"] == "mini" or not args.mini]
    found.sort(
        key=lambda r: (TASKS.index(r["task"]), records.in_words(r["changes"]), records.naturally(r["row"]))
    )
    if not found:
        hint = "leave out --mini for full size" if args.mini else "train one first"
        return print(f"no run yet; {hint}")
    print("### A linear model of n symbols\n")
    for group in records.grouped(
        found, lambda r: (r["task"], r["tier"], records.in_words(r["changes"]))
    ).values():
        near = [r for r in group if r["cell"].get("gap", 1) == 1]
        for part in (near, [r for r in group if r not in near]):
            if part:
                print_task(part)
    print("Your runs and this repository's; of a run that both have, yours. presence: which")
    print("n-grams occur; counts: square roots of how often; bayes: presence with Naive")
    print("Bayes weights; start: a symbol in front. penalty: of the weights; core s: of one")
    print("core.")
    plain = [r for r in found if r["tier"] == "paper" and "gap" in r["cell"]]
    plain = [r for r in plain if not {"start", "digits"} & r["cell"].keys()]
    if plain:
        name = "-".join(["ngrams", *(wanted if len(wanted) < len(TASKS) else [])])
        plot_lengths([r for r in plain if r["cell"]["gap"] == 1], args.out / f"{name}.png")
        plot_gaps(plain, args.out / f"{name}-gap.png")


def print_task(group):
    """The table of one task, and who is behind its best cell (by validation)."""
    best, rows = max(group, key=lambda r: r["val_acc"]), []
    for r in group:
        mean, error = records.mean_and_error([r])
        numbers = [f"{100 * mean:.2f} ± {100 * error:.2f}", f"{100 * r['val_acc']:.2f}", f"{r['penalty']:g}"]
        cost = [f"{r['features']:,}", f"{r['cpu_seconds']:.0f}"]
        rows.append([r["row"], *numbers, *cost])
    tier = "mini tier" if best["tier"] == "mini" else ""
    apart = "symbols that stand a gap apart" if best["cell"].get("gap", 1) > 1 else ""
    print(", ".join(filter(None, [title_of(best), records.in_words(best["changes"]), tier, apart])) + ":\n")
    records.show(["", "test ± s.e.", "val %", "penalty", "features", "core s"], rows)
    if short := [r["row"] for r in group if r["gradient"] > r["hp"]["bound"]]:
        print(f"Not converged within the steps allowed: {'; '.join(short)}.")
    text = f"Best validation: {best['row']}; {worth(best)}. Chance {100 * best['chance']:.1f}."
    if best["task"] in COLUMNS:
        at = COLUMNS.index(best["task"])
        text += " Published: " + ", ".join(f"{name} {row[at]:.2f}" for name, row in LATER.items()) + "."
    print(textwrap.fill(text, 80) + "\n")


def title_of(record):
    marked = " (not the official images)" if record["data"].get("official") is False else ""
    return data.TITLES[record["task"]] + marked


WORDS = {"presence": "which occur", "counts": "how often", "bayes": "Naive Bayes weights"}
STYLES = {"presence": ("o-", records.BLUE), "counts": ("s-", records.GREEN), "bayes": ("^-", records.ORANGE)}
STYLES |= {2: STYLES["presence"], 3: ("s-", records.ORANGE)}


def panels(found, columns, x, series, words):
    """Accuracy against r["cell"][x], a panel a task, a line for each r["cell"][series], named by `words`
    -> (figure, [(task, axis)])."""
    groups = records.grouped(found, lambda r: r["task"])
    columns = min(columns, len(groups))
    lines = math.ceil(len(groups) / columns)
    size = dict(figsize=(0.6 + max(6.8, 4.4 * columns), 0.6 + 3.2 * lines), layout="constrained")
    figure, axes = records.pyplot().subplots(lines, columns, squeeze=False, **size)
    for axis in axes.flat[len(groups) :]:
        axis.set_axis_off()
    for group, axis in zip(groups.values(), axes.flat):
        for key, (style, colour) in STYLES.items():
            dots = sorted((r["cell"][x], 100 * r["test_acc"]) for r in group if r["cell"][series] == key)
            if dots:
                size = 8 if key == "presence" else 5  # it lies below the others
                face = "white" if key == "presence" else colour
                look = dict(color=colour, markersize=size, markerfacecolor=face, label=words[key])
                axis.plot(*zip(*dots), style, zorder=3, **look)
        axis.set_ylabel("test accuracy (%)")
        axis.spines[["top", "right"]].set_visible(False)
    return figure, list(zip(groups, axes.flat))


def named_lines(axis, values):
    """Horizontal lines, {name: y}, named to the right of the panel, where no name covers another."""
    for value in values.values():
        axis.axhline(value, color="0.45", linewidth=0.8, linestyle="--", zorder=1)
    low, high = axis.get_ylim()
    axis.set_ylim(low, high + (high - low) / 20)
    y = -math.inf
    for name, value in sorted(values.items(), key=lambda item: item[1]):
        y = max(value, y + (high - low) / 20)
        place = dict(transform=axis.get_yaxis_transform())
        axis.plot([1, 1.03], [value, y], color="0.45", linewidth=0.6, clip_on=False, **place)
        axis.text(1.035, y, f"{name}: {value:.1f}", fontsize=8, color="0.3", va="center", **place)


UNITS = dict(
    text="bytes", retrieval="bytes", image="pixels", pathfinder="pixels", scifar="pixels", listops="symbols"
)


def plot_lengths(found, path):
    """Accuracy against n; published models as horizontal lines."""
    figure, axes = panels(found, 2, "n", "weights", WORDS)
    for task, axis in axes:
        best = max((r for r in found if r["task"] == task), key=lambda r: r["val_acc"])
        published = {"chance": 100 * best["chance"]}
        if task in COLUMNS:
            at = COLUMNS.index(task)
            published |= {name: row[at] for name, row in LATER.items()}
            band = [row[at] for row in TRANSFORMERS.values()]
            axis.axhspan(min(band), max(band), color="0.9", label="LRA's own Transformers", zorder=0)
        named_lines(axis, published)
        axis.set_title(title_of(best), fontsize=10, loc="left")
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.set_xlabel(f"n consecutive {UNITS[task]}")
    unit = UNITS[task] if len(axes) == 1 else "symbols"
    figure.suptitle(f"A linear model of n consecutive {unit}, full size, one run a dot", fontsize=11)
    records.legend_below(figure, [axis for _, axis in axes])
    records.save_figure(figure, path)


def plot_gaps(found, path):
    """Accuracy against the gap between two or three symbols; dashed: one symbol alone."""
    weights = {r["task"]: r["cell"]["weights"] for r in found if r["cell"]["gap"] > 1}
    found = [r for r in found if r["cell"]["weights"] == weights.get(r["task"])]
    if not found:
        return
    words = {n: f"{n} symbols, g apart" for n in (1, 2, 3)}
    figure, axes = panels(found, len(weights), "gap", "n", words)
    for task, axis in axes:
        group = [r for r in found if r["task"] == task]
        if task == "image":
            axis.axvline(32, color="0.8", linewidth=0.8, zorder=0)
            place = dict(transform=axis.get_xaxis_transform(), ha="right", va="top", fontsize=8)
            axis.text(30.5, 0.99, "one row below", color="0.3", **place)
        for r in group:
            if r["cell"]["n"] == 1:
                named_lines(axis, {"one symbol": 100 * r["test_acc"]})
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_formatter("{x:.0f}")
        axis.set_xlabel("gap g: the symbols stand g positions apart")
        axis.set_title(f"{title_of(group[0])}, {weights[task]}", fontsize=10, loc="left")
    records.legend_below(figure, [axis for _, axis in axes])
    records.save_figure(figure, path)


# ------------------------------------------------------------------------------------------ command line


def lags(text):
    """ "0 1 32" -> the same, in order, for argparse."""
    numbers = sorted({common.natural_int(word) for word in text.split()})
    if numbers[:1] != [0]:
        raise argparse.ArgumentTypeError(f'must be whole numbers with a 0, such as "0 1 32", not {text!r}')
    return " ".join(map(str, numbers))


def main(argv=None):
    parser = argparse.ArgumentParser(
        usage="python %(prog)s --task TASK [TASK ...] [flags]", description=common.for_terminals(__doc__),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    # fmt: off
    add = parser.add_argument_group("what to run").add_argument
    add("--task", nargs="+", choices=[*TASKS, "all"], metavar="TASK", help=f"{', '.join(TASKS)}, or all")
    add("--n", nargs="+", type=common.positive_int, default=[1, 2, 3, 4, 5], metavar="N",
        help="symbols that are seen together (default 1 2 3 4 5)")
    add("--weights", nargs="+", choices=WEIGHTS, metavar="W",
        help=f"{', '.join(WEIGHTS)} (default presence for the texts, counts for the others)")
    add("--gap", nargs="+", type=common.positive_int, default=[1], metavar="G",
        help="the symbols stand G positions apart (default 1: consecutive)")
    add("--lags", nargs="+", type=lags, metavar="LAGS", help='instead of --n and --gap, such as "0 1 32"')
    add("--start", action="store_true", help="put a start symbol in front of every document")
    add("--no-digits", action="store_true",
        help='texts: take every digit out, so that no rating ("4/10") can be read')
    add("--limit", type=common.positive_int, metavar="N", help="train on N examples")
    add("--mini", action="store_true", help="the small data of the mini tier")
    add("--smoke", action="store_true", help="check that it runs: seconds, no result")
    add("--top", type=common.positive_int, metavar="N", help="print the N heaviest n-grams of each class")
    add("--report", "--figure", action="store_true", help="print the tables, draw the two figures, and exit")

    add = parser.add_argument_group("execution (does not change which run this is)").add_argument
    add("--data-dir", type=Path, default=Path("data"), metavar="DIR", help="data (default data)")
    add("--out", type=Path, default=Path("runs"), metavar="DIR", help="records (default runs)")
    add("--fresh", action="store_true", help="start over: ignore this cell's record")
    # fmt: on
    args = common.read_args(parser, argv)
    warnings.filterwarnings("ignore", "Sparse")  # torch calls its CSR matrices a beta
    with common.exit_cleanly():
        if args.report:
            return report(args)
        grams = [{"lags": lags} for lags in args.lags or ()]
        grams = grams or [{"n": n, "gap": gap} for n in args.n for gap in (args.gap if n > 1 else [1])]
        more = {"start": "yes"} if args.start else {}
        more |= {"digits": "no"} if args.no_digits else {}
        names = common.chosen(args.task, TASKS)
        if args.no_digits and (other := {*names} - {"text", "retrieval"}):
            raise common.UserError(f"--no-digits is for text and retrieval, not {', '.join(sorted(other))}")
        if args.top and "retrieval" in names:
            raise common.UserError("--top reads the n-grams of single documents; leave retrieval out")
        for name in names:
            task = data.load(name, args.data_dir, mini=args.mini, smoke=args.smoke, limit=args.limit)
            default = ["presence"] if name in ("text", "retrieval") else ["counts"]
            for gram, weights in product(grams, common.chosen(args.weights or default, WEIGHTS)):
                run_cell(args, task, gram | {"weights": weights} | more)


if __name__ == "__main__":
    main()
