"""How far does a linear model get that sees n consecutive symbols, and not where they stand?

    python exp_ngrams.py --task text --n 1 2 3 4 5 6         a minute or two a cell on one CPU core
    python exp_ngrams.py --task text --n 5 6 7 --weights bayes
    python exp_ngrams.py --task text --n 2 --gap 1 2 4 8     two bytes that stand 1, 2, 4, 8 apart
    python exp_ngrams.py --task image --lags "0 1 32"        a pixel, its right and its lower neighbour
    python exp_ngrams.py --task text --n 5 --top 20          what the model has learnt
    python exp_ngrams.py --report                            tables, and two figures in OUT

A document becomes a sparse vector: which n-grams of symbols it has ("presence"), or the square roots of how
often ("counts"), scaled to length 1. Logistic regression, trained until it has converged, reads the vector.
The model knows nothing of the order beyond n symbols. What it gets is what a task gives to those who see
n symbols only; --gap g and --lags ask the same about symbols that stand farther apart. With "bayes" the
weight of each n-gram is multiplied by its Naive Bayes log ratio (Wang and Manning 2012: "Baselines and
Bigrams"), of a class against the rest. N-grams of characters are an old idea; here they are a control.

Grey values are read in 8 levels (--levels). A position of sCIFAR is one symbol, the levels of its three
colours. Retrieval: |x1 - x2| and x1 * x2 of the vectors of the two documents. Where the table of all n-grams
has more than 2^22 places (with ten classes 2^18), n-grams are hashed into it.
"""

import argparse
import functools
import math
import time
import warnings
from pathlib import Path
from typing import NamedTuple

import torch
from torch.linalg import solve_triangular as solve
from torch.nn import functional as F

import common
import data
import listops
import records
from exp_locality import TABLE1, TASKS7
from exp_spt import PAPER

TASKS = ("text", "listops", "image", "pathfinder", "retrieval", "scifar")
GREY = ("image", "pathfinder", "scifar")  # whose symbols are grey values or colours
WEIGHTS = ("presence", "counts", "bayes")
PENALTIES = (100, 10, 1, 0.1, 0.01, 0.001, 0.0001)  # of sum(losses) + penalty / 2 * sum(weights^2)
BOUND = 1e-3  # of the gradient's norm where a fit ends, as a share of that where all weights are 0
MOST = 1000  # steps of a fit
TABLE_BITS = {2: 22, 10: 18}  # size of the table of n-grams, by the number of classes
CHUNK = 1 << 22  # symbols that are looked at together

# fmt: off
# Test accuracies in percent. The Transformers are all of LRA's own Table 1 (arXiv 2011.04006): eight stand in
# paper B's Table 1, too; the others are from Table 1 of paper A (its K = 5 and MEGA) and of paper B (S4).
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
    "K = 5":              tuple(TABLE1["K=5"][TASKS7.index(task)] for task in COLUMNS),
    "S4":                 PAPER["S4, from scratch"][:5],
    "MEGA":               PAPER["MEGA (original)"][:5],
}
# fmt: on

# ------------------------------------------------------------------------------------------ the features


class Documents(NamedTuple):
    """Some documents, end to end."""

    symbols: torch.Tensor  # (total,) int64
    length: torch.Tensor  # (docs,) int64
    alphabet: int  # symbols are 0 ... alphabet - 1


def documents(task, split, levels, start):
    """A split in pieces of about CHUNK symbols, as the model sees it: cut at the task's length, grey values
    in `levels`, the colours of a position as one symbol, with `start` a symbol of its own in front of every
    document. Yields Documents."""
    tokens, offsets, _ = task.splits[split]
    alphabet = levels**task.channels if task.name in GREY else task.vocab - task.first_id
    step = max(1, CHUNK // int(offsets.diff().max()))
    for edges in (offsets[i : i + step + 1] for i in range(0, len(offsets) - 1, step)):
        size = edges.diff()
        place = torch.arange(int(size.sum())) - (edges[:-1] - edges[0]).repeat_interleave(size)
        symbols = tokens[edges[0] : edges[-1]][place < task.max_length].long()
        length = size.clamp(max=task.max_length)
        if task.name in GREY:
            colours = (symbols * levels // 256).view(-1, task.channels)
            symbols = (colours * levels ** torch.arange(task.channels)).sum(1)
            length = length // task.channels
        if start:
            document = torch.arange(len(length)).repeat_interleave(length)
            shifted = torch.full((len(symbols) + len(length),), alphabet)
            shifted[torch.arange(len(symbols)) + document + 1] = symbols
            symbols, length = shifted, length + 1
        yield Documents(symbols, length, alphabet + start)


def columns_of(docs, lags, bits):
    """The n-gram that starts at each position, n symbols at the given lags behind it, where it does not reach
    beyond the document -> (place (grams,) of its first symbol, document (grams,), column (grams,)).

    A table with a place for every n-gram is used where it has at most 2^bits places. In a larger one the
    n-gram is multiplied and the high bits are its place: these depend on every symbol."""
    document = torch.arange(len(docs.length)).repeat_interleave(docs.length)
    end = docs.length.cumsum(0)[document]
    place = torch.arange(len(docs.symbols))
    place = place[place + max(lags) < end]
    column = torch.zeros_like(place)
    exact = docs.alphabet ** len(lags) <= 1 << bits
    for lag in lags:
        symbol = docs.symbols[place + lag]
        column = column * docs.alphabet + symbol if exact else mixed(column + symbol + 1)
    if not exact:
        column = (column >> (64 - bits)) & ((1 << bits) - 1)
    return place, document[place], column


def mixed(key):
    """A one-to-one map of int64 (wraps around) whose high bits depend on all bits of the key."""
    key = key * -7046029254386353131  # 2^64 divided by the golden ratio, as a signed number
    key = (key ^ (key >> 32)) * -4658895280553007687  # the second constant of splitmix64
    return key


class Counts(NamedTuple):
    """How often which n-gram is in which document: sorted by document, then column."""

    document: torch.Tensor  # (entries,) int32
    column: torch.Tensor  # (entries,) int32
    count: torch.Tensor  # (entries,) float32
    docs: int


def counted(task, split, lags, bits, levels=8, start=False):
    """The Counts of a split."""
    pieces, first = [], 0
    for docs in documents(task, split, levels, start):
        _, document, column = columns_of(docs, lags, bits)
        key, count = torch.unique(document << bits | column, return_counts=True)
        document = ((key >> bits) + first).int()
        pieces.append((document, (key & ((1 << bits) - 1)).int(), count.float()))
        first += len(docs.length)
    return Counts(*map(torch.cat, zip(*pieces)), first)


def scaled(counts, weights):
    """The values (entries,) of the vectors: presence or square roots of counts, of length 1 a document."""
    value = counts.count.sqrt() if weights == "counts" else torch.ones_like(counts.count)
    square = torch.zeros(counts.docs).index_add_(0, counts.document, value**2)
    return value / square.sqrt()[counts.document]


def paired(counts, value, size):
    """Of vectors x1, x2, x1, x2, ... of `size` columns: |x1 - x2| and, in columns behind these, x1 * x2, as
    sparse rows -> (Counts, value)."""
    pair, second = counts.document.long() // 2, counts.document % 2
    key, entry = torch.unique(pair * size + counts.column, return_inverse=True)
    sides = torch.zeros(2, len(key))
    sides[second.long(), entry] = value
    both = (sides > 0).all(0)
    moved = torch.cat([torch.zeros_like(key), torch.full_like(key[both], size)])
    key = torch.cat([key, key[both]])
    value = torch.cat([(sides[0] - sides[1]).abs(), sides.prod(0)[both]])
    order = (key // size * 2 * size + key % size + moved).argsort()
    key, moved, value = key[order], moved[order], value[order]
    made = Counts((key // size).int(), (key % size + moved).int(), torch.ones_like(value), counts.docs // 2)
    return made, value


class Rows(NamedTuple):
    """The vectors of a split as a matrix, and its transpose; both sparse, or both dense."""

    matrix: torch.Tensor  # (examples, columns)
    transpose: torch.Tensor | None  # of training alone
    gram: torch.Tensor | None = None  # of training, if dense: (columns, columns) float64, x^T x centred


def numbered(column, known, columns):
    """Which of the columns `known` of the table each is (int32); -1 for none of them."""
    place = torch.full((columns,), -1, dtype=torch.int32)
    place[known] = torch.arange(len(known), dtype=torch.int32)
    return place[column]


def rows_of(counts, value, columns, known, transpose=False):
    """Rows of the columns `known` of the table: others never occur in training, no weight could be learnt."""
    column = numbered(counts.column, known, columns)
    document, kept = counts.document, column >= 0
    if not kept.all():
        document, column, value = document[kept], column[kept], value[kept]
    if len(known) <= 1024 and counts.docs * len(known) < 1 << 28:
        dense = torch.zeros(counts.docs, len(known))
        dense[document.long(), column.long()] = value
        return dense_rows(dense) if transpose else Rows(dense, None)
    edges = torch.zeros(counts.docs + 1, dtype=torch.int32)
    edges[1:] = torch.bincount(document, minlength=counts.docs).cumsum(0)
    matrix = torch.sparse_csr_tensor(edges, column, value, (counts.docs, len(known)))
    if not transpose:
        return Rows(matrix, None)
    csc = matrix.to_sparse_csc()
    shape = len(known), counts.docs
    return Rows(matrix, torch.sparse_csr_tensor(csc.ccol_indices(), csc.row_indices(), csc.values(), shape))


def dense_rows(matrix):
    """Rows of a dense matrix of training."""
    centred = (part - matrix.mean(0) for part in matrix.split(4096))
    return Rows(matrix, matrix.T, sum((part.T @ part).double() for part in centred))


def log_ratios(document, column, label, classes, columns):
    """Naive Bayes' log ratios (columns, 1) of class 1 against class 0, or (columns, classes) of each class
    against the rest: how often documents of a class have an n-gram, plus one, as a share of all n-grams."""
    kind = label.to(torch.uint8)[document]
    had = [torch.bincount(column[kind == c], minlength=columns) + 1.0 for c in range(classes)]
    had = torch.stack(had, 1)
    if classes == 2:
        share = had / had.sum(0)
        return (share[:, 1:] / share[:, :1]).log()
    rest = had.sum(1, keepdim=True) - had
    return (had / had.sum(0)).log() - (rest / rest.sum(0)).log()


# ------------------------------------------------------------------------------------------ the idea


class Linear(NamedTuple):
    """A fitted model: scores = x @ weight + bias; with two classes, one score, above 0 for class 1."""

    weight: torch.Tensor  # (columns, scores)
    bias: torch.Tensor  # (scores,)
    inner: torch.Tensor  # (columns, scores) weights before the factor, which the penalty is about
    loss: float  # the sum of losses and penalty, a training example
    gradient: float  # norm of its gradient, as a share of that where all weights are 0
    steps: int


def scores_of(matrix, weight, bias):
    if weight.shape[1] == 1:  # a product with a vector is quicker
        return (matrix @ weight[:, 0])[:, None] + bias
    return matrix @ weight + bias


def losses_of(scores, label):
    """Log losses (examples,) and their derivatives by the scores, of the shape of these."""
    if scores.shape[1] == 1:
        sign = (2 * label - 1).to(scores.dtype)
        loss = F.softplus(-sign * scores[:, 0])
        return loss, (-sign * torch.sigmoid(-sign * scores[:, 0]))[:, None]
    log = scores.log_softmax(1)
    right = F.one_hot(label, scores.shape[1]).to(scores.dtype)
    return -(log * right).sum(1), log.exp() - right


def fit(rows, label, classes, penalty, factor=1.0, begin=None, bound=BOUND, most=MOST):
    """Logistic regression -> Linear: the minimum of sum(losses) + penalty / 2 * sum(inner^2), where
    weight = factor * inner, by L-BFGS from `begin`, another Linear. It ends where the gradient's norm is
    below `bound` of that where all weights are 0, or after `most` steps: the result says which."""
    matrix, transpose, gram = rows
    outputs, n = 1 if classes == 2 else classes, len(label)
    mean = scores_of(transpose, torch.full((n, 1), 1 / n, dtype=matrix.dtype), 0)
    root = None if gram is None else root_of_curvature(gram, penalty, factor, classes).to(matrix.dtype)
    ease = math.sqrt(n * (1 - 1 / classes) / classes) if root is not None else 1.0
    z, middle, now = torch.zeros(matrix.shape[1], outputs), torch.zeros(outputs), {}
    if begin:
        z = begin.inner if root is None else root.T @ begin.inner
        middle = ease * (begin.bias + (mean * begin.weight).sum(0))
    z, middle = z.to(matrix.dtype).clone(), middle.to(matrix.dtype).clone()

    def unfolded():
        """(inner, weight, bias) of z and of `middle`, the scores of the mean of all vectors."""
        inner = z if root is None else solve(root.T, z, upper=True).contiguous()
        return inner, factor * inner, middle / ease - (mean * factor * inner).sum(0)

    def closure():
        inner, weight, bias = unfolded()
        loss, slope = losses_of(scores_of(matrix, weight, bias), label)
        by_bias = slope.sum(0) / n
        by_inner = factor * (scores_of(transpose, slope, 0) / n - mean * by_bias) + penalty / n * inner
        z.grad = by_inner if root is None else solve(root, by_inner, upper=False).contiguous()
        middle.grad = by_bias / ease
        total = loss.sum(dtype=torch.float64) + penalty / 2 * inner.square().sum(dtype=torch.float64)
        now.update(loss=float(total) / n, norm=math.hypot(by_inner.norm(), by_bias.norm()))
        return total / n

    at_zero, steps, each = gradient_at_zero(rows, mean, label, outputs, factor), 0, 10
    options = dict(max_iter=each, max_eval=10 * each, tolerance_grad=0, tolerance_change=0, history_size=10)
    optimizer = torch.optim.LBFGS([z, middle], line_search_fn="strong_wolfe", **options)
    closure()
    while now["norm"] > bound * at_zero and steps < most:
        optimizer.step(closure)
        closure()
        steps += each
    inner, weight, bias = unfolded()
    return Linear(weight, bias, inner, now["loss"], now["norm"] / at_zero, steps)


def root_of_curvature(gram, penalty, factor, classes):
    """The Cholesky factor (columns, columns) of about the curvature of a dense fit. L-BFGS moves
    z = root^T inner instead of inner: another way to the same minimum, a much shorter one where columns are
    as alike as the counts of pixels are."""
    square = factor**2 if isinstance(factor, float) else factor.square().mean(1)
    share = torch.as_tensor(square, dtype=gram.dtype).expand(len(gram)).sqrt()
    curvature = (1 - 1 / classes) / classes * share[:, None] * share * gram
    curvature.diagonal().add_(penalty)
    return torch.linalg.cholesky(curvature)


def gradient_at_zero(rows, mean, label, outputs, factor):
    """The norm of the gradient, a training example, where all weights are 0."""
    _, slope = losses_of(torch.zeros(len(label), outputs, dtype=rows.matrix.dtype), label)
    by_bias = slope.sum(0) / len(label)
    back = factor * (scores_of(rows.transpose, slope, 0) / len(label) - mean * by_bias)
    return math.hypot(back.norm(), by_bias.norm())


def accuracy(model, matrix, label):
    scores = scores_of(matrix, model.weight, model.bias)
    guess = (scores[:, 0] > 0).long() if scores.shape[1] == 1 else scores.argmax(1)
    return float((guess == label).double().mean())


def learn(counts, splits, weights, classes, columns, docs):
    """Fit with each penalty in turn, strong ones first, until one validates no better than that before it ->
    (the best Linear, the columns (known,) that its weights are of, rows of the record)."""
    values = {name: scaled(each, weights) for name, each in counts.items()}
    if docs == 2:
        both = {name: paired(each, values[name], columns) for name, each in counts.items()}
        counts, values = ({name: each[i] for name, each in both.items()} for i in (0, 1))
        columns *= 2
    label, known = splits["train"].label, torch.unique(counts["train"].column).long()
    factor = 1.0
    if weights == "bayes":
        column = numbered(counts["train"].column, known, columns)
        factor = log_ratios(counts["train"].document, column, label, classes, len(known))
    rows = {s: rows_of(counts[s], values[s], columns, known, s == "train") for s in counts}
    model, best, tried = None, None, {}
    for penalty in PENALTIES:
        model = fit(rows["train"], label, classes, penalty, factor, begin=model)
        got = {f"{s}_acc": accuracy(model, rows[s].matrix, splits[s].label) for s in ("train", "val")}
        tried[str(penalty)] = round(got["val_acc"], 4)
        print(
            f"  penalty {penalty:g}: val {got['val_acc']:.2%}, train {got['train_acc']:.2%}; {model.steps} "
            f"steps, gradient {model.gradient:.1e} of that at 0 (bound {BOUND:g})",
            flush=True,
        )
        if best and got["val_acc"] <= best[1]["val_acc"]:
            break
        fitted = {"penalty": penalty, "loss": model.loss, "gradient": model.gradient, "steps": model.steps}
        best = model, got | fitted
    model, got = best
    got["test_acc"] = accuracy(model, rows["test"].matrix, splits["test"].label)
    params = model.weight.numel() + model.bias.numel()
    return model, known, got | {"params": params, "features": len(known), "tried": tried}


# ------------------------------------------------------------------------------------------ one cell


def label_of(cell):
    """The name of a cell's row, e.g. "n=5, bayes" or "lags 0 1 32, counts, 16 levels"."""
    words = [f"lags {cell['lags']}" if "lags" in cell else f"n={cell['n']}"]
    words += [f"gap {cell['gap']}"] if cell.get("gap", 1) > 1 else []
    words += [cell["weights"]] + (["start"] if "start" in cell else [])
    return ", ".join(words + ([f"{cell['levels']} levels"] if "levels" in cell else []))


def lags_of(cell):
    if "lags" in cell:
        return [int(lag) for lag in cell["lags"].split()]
    return [i * cell["gap"] for i in range(cell["n"])]


def counted_splits(task, lags, bits, levels, start):
    """({split: Counts}, seconds of the clock, of the processor)."""
    began = time.monotonic(), time.process_time()
    counts = {name: counted(task, name, lags, bits, levels, start) for name in data.SPLITS}
    return counts, time.monotonic() - began[0], time.process_time() - began[1]


def run_cell(args, task, cell, features):
    """One cell of the table: nothing where it is done; else it ends with its record. `features` is
    counted_splits of its n-grams, made when it is called."""
    bits, lags = TABLE_BITS[task.classes], lags_of(cell)
    hp = {"lags": lags, "weights": cell["weights"], "table_bits": bits, "grid": PENALTIES, "bound": BOUND}
    hp |= {"levels": args.levels} if task.name in GREY else {}
    identity = records.make_identity(args, __file__, task, "linear", cell, 0, hp)
    name = records.run_name(identity)
    if not records.is_done(args, __file__, name):
        with records.claimed(args, name) as folder:
            device = torch.device("cpu")
            common.reset_peak(device)
            print(f"\n{folder}\n  {label_of(cell)}: {len(task.train.label):,} examples", flush=True)
            counts, seconds, cpu_seconds = features()
            began = time.monotonic(), time.process_time()
            alphabet = next(documents(task, "train", args.levels, args.start)).alphabet
            columns = min(alphabet ** len(lags), 1 << bits)
            model, known, got = learn(counts, task.splits, cell["weights"], task.classes, columns, task.docs)
            seconds += time.monotonic() - began[0]
            cpu_seconds += time.process_time() - began[1]
            common.save_checkpoint(folder / "weights.pt", {"weight": model.weight, "columns": known})
            terms = f"{args.limit:,} examples" if args.limit else ""
            budget = "mini" if args.mini else "reduced" if args.limit or args.smoke else "paper"
            line = identity | {"row": label_of(cell), "terms": terms, "run": name, "budget": budget} | got
            line |= {"chance": round(common.chance(task.test), 4), "seconds": round(seconds, 1)}
            line |= {"cpu_seconds": round(cpu_seconds, 1), "peak_gb": common.peak_gb(device)}
            line |= {"device": common.device_name(device), "data": task.source}
            records.append_record(args.out / "results.jsonl", line | records.where_it_ran(args, __file__))
        print(outcome(line), flush=True)
    if args.top:
        print_top(args, task, cell, args.out / name / "weights.pt")


def beaten(task, accuracy):
    """ "11 of 11 Transformers of LRA's table, K = 5, S4": whose published accuracy is lower."""
    at = COLUMNS.index(task)
    behind = [name for name, row in (TRANSFORMERS | LATER).items() if row[at] < 100 * accuracy]
    count = f"{len(TRANSFORMERS.keys() & {*behind})} of {len(TRANSFORMERS)} Transformers of LRA's table"
    return ", ".join([count, *(name for name in LATER if name in behind)])


def outcome(line):
    """The last line of a cell."""
    memory = f", {line['peak_gb']} GB" if line["peak_gb"] else ""  # only Linux says it
    text = f"test accuracy {line['test_acc']:.2%} ({line['seconds']:.0f} s{memory})"
    if line["smoke"]:
        return f"{text}: a smoke run, it works, the accuracy means nothing"
    full = line["budget"] == "paper" and line["task"] in COLUMNS
    return f"{text}; ahead of {beaten(line['task'], line['test_acc'])}" if full else text


def print_top(args, task, cell, path):
    """Print the heaviest n-grams of each class. Of those that share a column: the most frequent."""
    state = common.load_checkpoint(path, "cpu", remedy="train the cell again with --fresh")
    if state is None or task.docs == 2:
        fault = "--top reads the weights of one document's n-grams" if state else f"{path} is not there"
        raise common.UserError(f"{fault}; train the cell again with --fresh, or leave --top out")
    weight, columns = state["weight"], state["columns"]
    sides = [-weight[:, 0], weight[:, 0]] if task.classes == 2 else weight.T
    heaviest = [side.topk(min(args.top, len(side))) for side in sides]
    wanted = torch.cat([columns[top.indices] for top in heaviest]).unique()
    seen = {}
    for docs in documents(task, "train", args.levels, args.start):
        place, _, column = columns_of(docs, lags_of(cell), TABLE_BITS[task.classes])
        there = torch.isin(column, wanted)
        grams = torch.stack([docs.symbols[place[there] + lag] for lag in lags_of(cell)], 1)
        found, count = torch.cat([column[there, None], grams], 1).unique(dim=0, return_counts=True)
        for (at, *gram), n in zip(found.tolist(), count.tolist()):
            names = seen.setdefault(at, {})
            names[tuple(gram)] = names.get(tuple(gram), 0) + n
    for number, top in enumerate(heaviest):
        print(f"  class {number}:")
        for value, index in zip(top.values.tolist(), top.indices.tolist()):
            names = seen[int(columns[index])]
            print(f"    {value:+.2f}  {readable(task.name, max(names, key=names.get))}")


def readable(name, gram):
    """An n-gram for people: bytes as text, operators and digits of ListOps, grey levels."""
    if name in ("text", "retrieval"):
        return repr(bytes(symbol for symbol in gram if symbol < 256))
    if name == "listops":
        words = [*listops.LISTOPS_SYMBOLS, "(start)"]
        return " ".join(words[symbol] for symbol in gram)
    return " ".join(map(str, gram))


# ------------------------------------------------------------------------------------------ the report


def found_records(args):
    """{budget: records} of this script, yours and this repository's, of each run the newest."""
    yours, ours = records.yours_and_ours(args.out)
    newest = {r["run"]: r for r in sorted(yours + ours, key=lambda r: r["date"])}
    tasks = common.chosen(args.task or ["all"], TASKS)
    found = [r for r in newest.values() if r["exp"] == records.experiment(__file__) and r["task"] in tasks]
    return records.grouped([r for r in found if not r["smoke"]], lambda r: r["budget"])


def report(args):
    titles = dict(paper="full size", reduced="fewer examples", mini="mini tier")
    found = found_records(args)
    for budget in ("mini",) if args.mini else titles:
        print(f"### A linear model of n symbols ({titles[budget]})\n")
        if budget not in found:
            print("not run yet\n")
        for (task, terms), group in records.grouped(
            found.get(budget, []), lambda r: (r["task"], r["terms"])
        ).items():
            print_task(task, terms, group)
    plain = [r for r in found.get("paper", []) if "start" not in r["cell"] and "levels" not in r["cell"]]
    if plain and not args.mini:
        plot_lengths(plain, args.out / "ngrams.png")
        plot_gaps(plain, args.out / "ngrams-gap.png")


def print_task(task, terms, group):
    """The table of one task, and who is behind its best cell (by validation)."""
    rows = []
    for r in sorted(group, key=lambda r: records.naturally(r["row"])):
        mean, error = records.mean_and_error([r])
        cost = [f"{r['penalty']:g}", f"{r['features']:,}", f"{r['cpu_seconds']:.0f}", r["peak_gb"] or "—"]
        rows.append([r["row"], f"{100 * mean:.2f} ± {100 * error:.2f}", f"{100 * r['val_acc']:.2f}", *cost])
    header = [", ".join(filter(None, [data.TITLES[task], terms])), "test % ± standard error", "validation %"]
    print(records.markdown([*header, "penalty", "features", "seconds of a core", "GB"], rows) + "\n")
    if short := [r["row"] for r in group if r["gradient"] > r["hp"]["bound"]]:
        print(f"Not converged within the steps allowed: {'; '.join(short)}.")
    best = max(group, key=lambda r: r["val_acc"])
    if best["budget"] == "paper" and task in COLUMNS:
        print(f"Best validation: {best['row']}; ahead of {beaten(task, best['test_acc'])}.")
    marked = ", not the official images" if best["data"].get("official") is False else ""
    print(f"Chance {100 * best['chance']:.1f}{marked}.\n")


STYLE = {"presence": ("o-", records.BLUE), "counts": ("s-", records.GREEN), "bayes": ("^-", records.ORANGE)}


def plot_lengths(found, path):
    """Accuracy against n, a panel a task; published models as horizontal lines."""
    found = [r for r in found if r["cell"].get("gap") == 1]
    tasks = [task for task in TASKS if any(r["task"] == task for r in found)]
    columns = min(2, len(tasks))
    lines = math.ceil(len(tasks) / columns)
    size = dict(figsize=(0.6 + 4.4 * columns, 0.6 + 3.2 * lines), layout="constrained")
    figure, axes = records.pyplot().subplots(lines, columns, squeeze=False, **size)
    for axis in axes.flat[len(tasks) :]:
        axis.set_axis_off()
    for task, axis in zip(tasks, axes.flat):
        group = [r for r in found if r["task"] == task]
        for weights, (style, colour) in STYLE.items():
            same = [r for r in group if r["cell"]["weights"] == weights]
            dots = sorted((r["cell"]["n"], 100 * r["test_acc"]) for r in same)
            if dots:
                axis.plot(*zip(*dots), style, color=colour, markersize=5, label=weights, zorder=3)
        axis.set_title(panel_title(task, group), fontsize=9, loc="left")
        published = {"chance": 100 * group[0]["chance"]}
        if task in COLUMNS:
            at = COLUMNS.index(task)
            published |= {name: row[at] for name, row in LATER.items()}
            band = [row[at] for row in TRANSFORMERS.values()]
            axis.axhspan(min(band), max(band), color="0.9", label="LRA's eleven Transformers", zorder=0)
        named_lines(axis, published)
        axis.set_xticks(sorted({r["cell"]["n"] for r in group}))
        axis.set(xlabel="n consecutive symbols", ylabel="test accuracy (%)")
        axis.spines[["top", "right"]].set_visible(False)
    records.legend_below(figure, axes.flat[: len(tasks)])
    records.save_figure(figure, path)


def panel_title(task, group):
    """ "Text: n=7, bayes has 91.2 %" and whom it leaves behind; the cell is the best by validation."""
    best = max(group, key=lambda r: r["val_acc"])
    marked = " (not the official images)" if best["data"].get("official") is False else ""
    title = f"{data.TITLES[task]}{marked}\n{best['row']}: {100 * best['test_acc']:.1f} %"
    if task not in COLUMNS:
        return title
    count, *later = beaten(task, best["test_acc"]).split(", ")
    names = ", ".join([count.removesuffix(" of LRA's table"), *later])
    return f"{title}, beats {names}"


def named_lines(axis, values):
    """Horizontal lines, {name: y}, named to the right of the panel, where no name covers another."""
    for value in values.values():
        axis.axhline(value, color="0.45", linewidth=0.8, linestyle="--", zorder=1)
    low, high = axis.get_ylim()
    axis.set_ylim(low, high + (high - low) / 20)
    place = dict(transform=axis.get_yaxis_transform(), fontsize=8, color="0.3", va="center")
    y = -math.inf
    for name, value in sorted(values.items(), key=lambda item: item[1]):
        y = max(value, y + (high - low) / 15)
        axis.text(1.01, y, f"{name} {value:.1f}", **place)


def plot_gaps(found, path):
    """Accuracy against the gap between the symbols, a panel a task; dashed: one symbol alone."""
    tasks = [task for task in TASKS if any(r["task"] == task and r["cell"].get("gap", 1) > 1 for r in found)]
    if not tasks:
        return
    size = dict(figsize=(0.6 + 4.4 * len(tasks), 3.9), layout="constrained")
    figure, axes = records.pyplot().subplots(1, len(tasks), squeeze=False, **size)
    for task, axis in zip(tasks, axes[0]):
        group = [r for r in found if r["task"] == task and "gap" in r["cell"]]
        weights = next(r["cell"]["weights"] for r in group if r["cell"]["gap"] > 1)
        group = [r for r in group if r["cell"]["weights"] == weights]
        for n, marker, colour in ((2, "o", records.BLUE), (3, "s", records.ORANGE)):
            dots = sorted((r["cell"]["gap"], 100 * r["test_acc"]) for r in group if r["cell"]["n"] == n)
            line = [(g, y) for g, y in dots if g & (g - 1) == 0]
            beside = [(g, y) for g, y in dots if g & (g - 1)]
            if line:
                label = f"{n} symbols, g apart"
                axis.plot(*zip(*line), f"{marker}-", color=colour, markersize=5, label=label, zorder=3)
            if beside:  # 31 and 33: the pixels beside the one below
                style = dict(color=colour, markersize=4, fillstyle="none", zorder=3)
                axis.plot(*zip(*beside), marker, **style, label="31 and 33")
        for r in group:
            if r["cell"]["n"] == 1:
                axis.axhline(100 * r["test_acc"], color="0.45", linewidth=0.8, linestyle="--")
                text = f"one symbol: {100 * r['test_acc']:.1f}"
                place = dict(transform=axis.get_yaxis_transform(), ha="left", va="bottom", fontsize=8)
                axis.text(0.01, 100 * r["test_acc"], text, color="0.3", **place)
        if task == "image":
            axis.axvline(32, color="0.8", linewidth=0.8, zorder=0)
            place = dict(transform=axis.get_xaxis_transform(), ha="right", va="top", fontsize=8)
            axis.text(30.5, 0.99, "one row below", color="0.3", **place)
        axis.set_xscale("log", base=2)
        gaps = [g for g in sorted({r["cell"]["gap"] for r in group}) if g & (g - 1) == 0]
        axis.set_xticks(gaps, map(str, gaps))
        axis.minorticks_off()
        marked = " (not the official images)" if group[0]["data"].get("official") is False else ""
        axis.set_title(f"{data.TITLES[task]}{marked}, {weights}", fontsize=10, loc="left")
        axis.set(xlabel="gap g: the symbols stand g positions apart", ylabel="test accuracy (%)")
        axis.spines[["top", "right"]].set_visible(False)
    records.legend_below(figure, axes[0])
    records.save_figure(figure, path)


# ------------------------------------------------------------------------------------------ command line


def lags(text):
    """ "0 1 32" -> the same, in order, for argparse."""
    numbers = sorted({common.natural_int(word) for word in text.split()})
    if not numbers or numbers[0] != 0:
        raise argparse.ArgumentTypeError(
            f'must be whole numbers with 0 among them, such as "0 1 32", not {text!r}'
        )
    return " ".join(map(str, numbers))


def make_parser():
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
    add("--levels", type=int, choices=(8, 16), default=8, help="levels of grey and colours (default 8)")
    add("--start", action="store_true", help="put a start symbol in front of every document")
    add("--limit", type=common.positive_int, metavar="N", help="train on N examples")
    add("--mini", action="store_true", help="the small data of the mini tier")
    add("--smoke", action="store_true", help="check that it runs: seconds, no result")
    add("--top", type=common.positive_int, metavar="N", help="print the N heaviest n-grams of each class")
    add("--report", "--figure", action="store_true", help="print the tables, draw the two figures, and exit")

    add = parser.add_argument_group("execution (does not change which run this is)").add_argument
    add("--data-dir", type=Path, default=Path("data"), metavar="DIR", help="data (default data)")
    add("--out", type=Path, default=Path("runs"), metavar="DIR", help="records, weights (default runs)")
    add("--fresh", action="store_true", help="start over: ignore this cell's record")
    # fmt: on
    return parser


def run_task(args, name):
    """All cells of a task; cells that differ in their weights alone share their features."""
    task = data.load(name, args.data_dir, mini=args.mini, smoke=args.smoke, limit=args.limit, augment="none",
                     levels="hard")  # fmt: skip
    grams = [{"lags": lags} for lags in args.lags or ()]
    grams = grams or [{"n": n, "gap": gap} for n in args.n for gap in (args.gap if n > 1 else [1])]
    more = {"start": "yes"} if args.start else {}
    more |= {"levels": args.levels} if name in GREY and args.levels != 8 else {}
    for gram in grams:
        require_fit(task, lags_of(gram))
        bits = TABLE_BITS[task.classes]
        features = functools.cache(
            functools.partial(counted_splits, task, lags_of(gram), bits, args.levels, args.start)
        )
        default = ["presence"] if name in ("text", "retrieval") else ["counts"]
        for weights in common.chosen(args.weights or default, WEIGHTS):
            run_cell(args, task, gram | {"weights": weights} | more, features)


def require_fit(task, lags):
    """Raise UserError where no document is as long as the n-gram."""
    longest = int(max(task.lengths["train"])) // task.channels
    if max(lags) >= longest:
        advice = f"its longest document has {longest}; give a smaller --n, --gap or --lags"
        raise common.UserError(f"{task.name}: the n-gram spans {max(lags) + 1:,} positions, {advice}")


def main(argv=None):
    args = common.read_args(make_parser(), argv)
    warnings.filterwarnings("ignore", "Sparse")  # torch calls its CSR matrices a beta
    with common.exit_cleanly():
        if args.report:
            return report(args)
        for name in common.chosen(args.task, TASKS):
            run_task(args, name)


if __name__ == "__main__":
    main()
