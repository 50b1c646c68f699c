"""How far does a linear model get that sees n consecutive symbols, and not where they stand?

    python exp_ngrams.py --task text --n 1 2 3 4 5 6         a few minutes a cell on one CPU core
    python exp_ngrams.py --task text --n 5 6 7 --weights bayes    three minutes a cell: 90 to 91 %
    python exp_ngrams.py --task text --unit word --n 2 --weights bayes    words and pairs of words
    python exp_ngrams.py --task text --n 1 --weights counts --max-length 1000         of shorter texts
    python exp_ngrams.py --task text --n 2 --gap 1 2 4 8     two bytes that stand 1, 2, 4, 8 apart
    python exp_ngrams.py --task image --lags "0 1 32"        a pixel, its right and its lower neighbour
    python exp_ngrams.py --task text --n 5 --top 20          what the model has learnt
    python exp_ngrams.py --report                            tables, and two figures in OUT

A document becomes a sparse vector: which n-grams of symbols it has ("presence"), or the square roots of how
often ("counts"), scaled to length 1. Logistic regression (scikit-learn's) reads the vector. So it gets what a
task gives to those who see n symbols only. With "bayes" presence is multiplied by each n-gram's Naive Bayes
log ratio (Wang and Manning 2012: "Baselines and Bigrams"); of ten classes each has a model, against the rest.
N-grams of characters are an old idea; here they are a control.

Grey values are read in 8 levels. A position of sCIFAR is one symbol, the levels of its three
colours. Retrieval: |x1 - x2| and x1 * x2 of the vectors of the two documents.
"""

import argparse
import contextlib
import functools
import hashlib
import io
import json
import math
import re
import textwrap
import time
import warnings
from itertools import product

import numpy as np
import torch

import common
import data
import listops
import machine
import records
import tables
from exp_locality import TABLE1, TASKS7
from exp_spt import PAPER

TASKS = ("text", "listops", "image", "pathfinder", "retrieval", "scifar")
GREY = ("image", "pathfinder", "scifar")  # whose symbols are grey values or colours
LEVELS = 8  # of these
START = 1 << 60  # the start symbol: no other symbol is this number
WORD = re.compile(rb"[\w'\x80-\xff]+|[^\w\s'\x80-\xff]")  # a word, or a mark that is no part of one
WEIGHTS = ("presence", "counts", "bayes")
PENALTIES = (100, 10, 1, 0.1, 0.01, 0.001, 0.0001)  # of sum(losses) + penalty / 2 * sum(weights^2)
# scikit-learn's tolerances, so small that two starts (lbfgs), or the primal and the dual, validate alike.
TOLERANCES = {"lbfgs": 1e-6, "primal": 1e-5, "dual": 1e-4}
MOST = 5000  # steps of a fit

# fmt: off
# Test accuracies in percent. The Transformers are all of LRA's own Table 1 (arXiv 2011.04006): eight stand in
# paper B's Table 1, too; the others are from Tables 1 (K = 5, MEGA) and 3 of paper A (its S4), Tables 1 (S4)
# and 2 of paper B (its Transformer after self-pretraining: 91.02 on Text, the best of both papers).
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
    "A's S4":             (56.00, 91.01, 90.73, 89.59, 93.61),  # of exp_kernels.TABLE3
    "MEGA (Ma et al.)":   PAPER["MEGA (Ma et al.)"][:5],
    "Transformer with SPT": PAPER["rotary Transformer, masked SPT"][:5],
}
# fmt: on

# ------------------------------------------------------------------------------------------ the features


def symbols_of(text, task, cell):
    """A document (L,) uint8 as the model sees it, uint64: cut at the task's length, in words, grey values in
    levels, the colours of a position as one symbol. Where the cell says so: no digits, a start symbol."""
    text = text[: task.max_length]
    if "digits" in cell:
        text = text[(text < ord("0")) | (text > ord("9"))]
    if "unit" in cell:
        text = np.array([number_of(word) for word in WORD.findall(text.tobytes().lower())], np.uint64)
    text = text.astype(np.uint64)
    if task.name in GREY:
        colours = (text * LEVELS // 256).reshape(-1, task.channels)
        text = (colours * LEVELS ** np.arange(task.channels, dtype=np.uint64)).sum(1)
    return np.insert(text, 0, START) if "start" in cell else text


NAMES = {}  # number: word, of all that were met


@functools.cache
def number_of(word):
    """64 bits of a hash of a word: the same in every process."""
    number = int.from_bytes(hashlib.blake2b(word, digest_size=8).digest(), "little")
    NAMES[number] = word.decode(errors="replace")
    return number


def keys_of(symbols, lags):
    """The keys (max(0, L - max(lags)),) uint64 of a document's n-grams: the symbols at the given lags behind
    each position, mixed to 64 bits. The chance that any two of ten million share one is 3 in a million."""
    grams = max(0, len(symbols) - max(lags))
    key = np.zeros(grams, np.uint64)
    for lag in lags:
        key = (key + symbols[lag : lag + grams] + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)  # wraps
        key = (key ^ (key >> np.uint64(32))) * np.uint64(0xBF58476D1CE4E5B9)  # both of splitmix64
    return key


def lags_of(cell):
    """The lags of each kind of n-gram of a cell: of bytes exactly n, of words and all fewer."""
    lags = [i * cell.get("gap", 1) for i in range(cell.get("n", 0))]
    lags = [int(lag) for lag in cell["lags"].split()] if "lags" in cell else lags
    return [lags[:n] for n in range(1 if "unit" in cell else len(lags), len(lags) + 1)]


def documents(task, split, cell):
    """Yield the symbols of each document of a split."""
    tokens, offsets, _ = task.splits[split]
    for text in tokens.split(offsets.diff().tolist()):
        yield symbols_of(text.numpy(), task, cell)


def counted(task, cell):
    """({split: (how often each document has each n-gram (documents, known) CSR, all its n-grams (documents,),
    how many of them differ (documents,))}, the keys (known,) of the n-grams of training, ascending)."""
    from scipy import sparse

    known, made = None, {}
    for split in data.SPLITS:
        each = (
            np.concatenate([keys_of(x, lags) for lags in lags_of(cell)]) for x in documents(task, split, cell)
        )
        found = [np.unique(key, return_counts=True) for key in each]
        total = np.array([count.sum() for _, count in found])
        differ = np.array([len(key) for key, _ in found])
        if known is None:
            known = np.unique(np.concatenate([key for key, _ in found]))
        for i, (key, count) in enumerate(found):
            column = np.searchsorted(known, key).clip(max=len(known) - 1).astype(np.int32)
            had = known[column] == key
            found[i] = column[had], count[had].astype(np.float32)
        edges = np.cumsum([0, *(len(column) for column, _ in found)])
        column, count = (np.concatenate(part) for part in zip(*found))
        made[split] = sparse.csr_matrix((count, column, edges), (len(found), len(known))), total, differ
    return made, known


def vectors(counts, total, differ, weights, docs=1):
    """The vectors (examples, columns) CSR float64 of what `counted` made of one split."""
    from scipy import sparse

    lengths = np.sqrt(total if weights == "counts" else differ).repeat(np.diff(counts.indptr))
    values = np.sqrt(counts.data, dtype=float) / lengths if weights == "counts" else 1 / lengths
    x = with_values(counts, values)
    if docs == 1:
        return x
    return sparse.hstack([abs(x[::2] - x[1::2]), x[::2].multiply(x[1::2])], format="csr")


def with_values(x, values):
    """A CSR matrix with other values at the places of x."""
    return type(x)((values, x.indices, x.indptr), x.shape)


def log_ratios(x, label, classes):
    """Naive Bayes' log ratios (1, columns) of class 1 against class 0, or (classes, columns) of each class
    against the rest: how often documents of a class have an n-gram, plus one, as a share of all n-grams."""
    had = 1 + (with_values(x, np.ones_like(x.data)).T @ np.eye(classes)[label]).T
    rest = had.sum(0) - had
    ratios = np.log(had / had.sum(1, keepdims=True)) - np.log(rest / rest.sum(1, keepdims=True))
    return ratios[1:] if classes == 2 else ratios


# ------------------------------------------------------------------------------------------ the idea


def model_of(x, classes):
    """scikit-learn's model of some vectors: two classes by liblinear, whose dual has an unknown an example
    and whose bias is penalised as a weight is; more by lbfgs, where a fit begins at the end of the last."""
    make = machine.scikit_learn().linear_model.LogisticRegression
    if classes > 2:
        return make(solver="lbfgs", tol=TOLERANCES["lbfgs"], max_iter=MOST, warm_start=True)
    dual = x.shape[1] > x.shape[0]
    tol = TOLERANCES["dual" if dual else "primal"]
    return make(solver="liblinear", dual=dual, tol=tol, max_iter=MOST, random_state=0)


def fits(x, label, classes, factors, penalties=PENALTIES):
    """Logistic regression with each penalty in turn: the minimum of sum(losses) + penalty / 2 * sum(inner^2),
    where weight = factor * inner.

    factors     (1 or classes, columns), one model for each, of a class against the rest; or None: one model
    yields (penalty, weight (scores, columns), bias (scores,), steps, whether all converged)
    """
    warning = machine.scikit_learn().exceptions.ConvergenceWarning
    factors, rest = ([None], False) if factors is None else (factors, classes > 2)
    models = [model_of(x, 2 if rest else classes) for _ in factors]
    for penalty in penalties:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("ignore")  # an older scikit-learn's of a newer scipy
            warnings.simplefilter("always", warning)
            for c, (model, factor) in enumerate(zip(models, factors)):
                scaled = x if factor is None else with_values(x, x.data * factor[x.indices])
                model.set_params(C=1 / penalty).fit(scaled, label == c if rest else label)
        each = zip(models, factors)
        weight = np.concatenate([model.coef_ * (1 if f is None else f) for model, f in each])
        bias = np.concatenate([model.intercept_ for model in models])
        yield penalty, weight, bias, max(int(model.n_iter_.max()) for model in models), not caught


def accuracy(x, label, weight, bias):
    """Of scores (examples, classes), or of one score, that of class 1."""
    scores = x @ weight.T + bias
    return float(np.mean((scores[:, 0] > 0 if len(bias) == 1 else scores.argmax(1)) == label))


def learn(task, cell, made, known):
    """Fit with each penalty in turn, strong ones first, until one validates no better than that before it ->
    of the best: rows of the record, {"weight": (scores, columns), "keys": (known,)} as tensors."""
    x = {split: vectors(*parts, cell["weights"], task.docs) for split, parts in made.items()}
    label = {split: task.splits[split].label.numpy() for split in x}
    if len(np.unique(label["train"])) < task.classes:
        raise common.UserError("a class has no training example; give a larger --limit")
    bayes = cell["weights"] == "bayes"
    factors = log_ratios(x["train"], label["train"], task.classes) if bayes else None
    best, tried = {"val_acc": -1}, {}
    for penalty, weight, bias, steps, converged in fits(x["train"], label["train"], task.classes, factors):
        got = {"penalty": penalty, "steps": steps, "converged": converged}
        got |= {f"{split}_acc": accuracy(x[split], label[split], weight, bias) for split in x}
        tried[str(penalty)] = round(got["val_acc"], 4)
        how = f"{steps} steps" + ("" if converged else ", not converged")
        scores = f"val {got['val_acc']:.2%}, train {got['train_acc']:.2%}"
        print(f"  penalty {penalty:g}: {scores}; {how}", flush=True)
        if got["val_acc"] <= best["val_acc"]:
            break
        best, heaviest, params = got, weight, weight.size + bias.size
    best |= {"params": params, "features": len(known), "tried": tried}
    state = {"weight": torch.from_numpy(heaviest), "keys": torch.from_numpy(known.view(np.int64))}
    return best, state


# ------------------------------------------------------------------------------------------ one cell


def words_of(cell):
    """{key of a cell: its word in a label}, in the order of the label."""
    words = {"unit": cell["unit"] + "s"} if "unit" in cell else {}
    words |= {"n": f"lags {cell['lags']}" if "lags" in cell else f"n={cell['n']}"}
    words |= {"gap": f"gap {cell['gap']}"} if cell.get("gap", 1) > 1 else {}
    words |= {"weights": cell["weights"]} | ({"start": "start"} if "start" in cell else {})
    words |= {"digits": "no digits"} if "digits" in cell else {}
    words |= {"max_length": f"{cell['max_length']:,} bytes"} if "max_length" in cell else {}
    return words


def label_of(cell, without=()):
    """The name of a cell's row, e.g. "n=5, bayes" or "lags 0 1 32, counts"; without some keys of words_of."""
    return ", ".join(word for key, word in words_of(cell).items() if key not in without)


def run_cell(args, task, cell, counts, seed):
    """One cell of the table: nothing where it is done; else it ends with its record. counts: () -> what
    `counted` makes, timed."""
    hp = {"weights": cell["weights"], "grid": PENALTIES, "tol": TOLERANCES}
    hp |= {"levels": LEVELS} if task.name in GREY else {}
    identity = records.make_identity(args, __file__, task, "linear", cell, seed, hp)
    name = records.run_name(identity)
    if not records.is_done(args, __file__, name):
        with records.claim(args, name) as folder:
            train(args, task, cell, identity, folder, counts)
    if args.top:
        print_top(args, task, cell, args.out / name / "weights.pt")


def train(args, task, cell, identity, folder, counts):
    """Fit a cell, keep its weights and append its record."""
    longest = int(min(max(task.lengths["train"]), task.max_length)) // task.channels
    span = max(lags_of(cell)[-1]) + 1
    if span > longest:
        advice = f"its longest document has {longest:,}; give a smaller --n, --gap or --lags"
        raise common.UserError(f"{task.name}: the n-gram spans {span:,} positions, {advice}")
    print(f"\n{folder}\n  {label_of(cell)}: {len(task.train.label):,} examples", flush=True)
    ran = records.where_it_ran(args, __file__) | {"sklearn": machine.scikit_learn().__version__}
    made, known, before = counts()
    got, state, took = timed(learn, task, cell, made, known)
    got |= zip(("seconds", "cpu_seconds"), (round(a + b, 1) for a, b in zip(before, took)))
    device = torch.device("cpu")
    got |= {"peak_gb": common.peak_gb(device)}
    changes = {"limit": args.limit} if args.limit else {}
    line = identity | {"row": label_of(cell), "changes": changes, "run": folder.name}
    line |= {"tier": records.tier_of(args, changes), "device": common.device_name(device)} | ran | got
    line |= {"chance": round(common.chance(task.test), 4), "data": task.source}
    common.save_checkpoint(folder / "weights.pt", state)
    records.append_record(args.out / "results.jsonl", line)
    words = f"test accuracy {got['test_acc']:.2%} ({got['seconds']:.0f} s); {worth(line)}"
    print(textwrap.fill(words, 80), flush=True)


def timed(work, *values):
    """What work(*values), a tuple, returns, and behind it the (seconds, CPU seconds) that it took."""
    began, cpu_began = time.monotonic(), time.process_time()
    result = work(*values)
    return *result, (time.monotonic() - began, time.process_time() - cpu_began)


def worth(line):
    """A record beside what is published: "ahead of 11 of 11 Transformers of LRA's table, S4 (86.82); ...".
    Level is what lies within two standard errors of the difference, if both have the error of this test."""
    if line["smoke"]:
        return "a smoke run: it works, the accuracy means nothing"
    if line["task"] not in COLUMNS or line["tier"] != "paper":
        return tables.best_network(line) or "nothing published is comparable"
    at, (accuracy, error) = COLUMNS.index(line["task"]), (100 * x for x in records.mean_and_error([line]))
    theirs = [row[at] for row in TRANSFORMERS.values()]
    best = max(TRANSFORMERS, key=lambda name: TRANSFORMERS[name][at])
    sides = [records.side(accuracy - value, math.hypot(error, error)) for value in theirs]
    names_of = {side: [] for side in ("ahead", "level", "behind")} | tables.counts(sides)
    first = next(names for names in names_of.values() if names)
    first[0] += f" Transformers of LRA's table (best {best}, {max(theirs):.2f})"
    alike = records.side(accuracy - 100 * line["chance"], error) == "level"  # at chance nothing is compared
    if alike:
        names_of["level"].insert(0, f"always the same answer ({100 * line['chance']:.1f})")
    for name, row in () if alike else LATER.items():
        side = records.side(accuracy - row[at], math.hypot(error, error))
        name = re.sub(r" \(.*\)|convolution, ", "", name)  # the table of networks has it whole
        names_of[side].append(f"{name} ({row[at]:.2f})")
    return tables.by_side(names_of)


def print_top(args, task, cell, path):
    """Print the heaviest n-grams of each class."""
    state = common.load_checkpoint(path, "cpu", remedy="train the cell again with --fresh")
    if state is None:
        raise common.UserError(f"{path} is not there; train the cell again with --fresh, or leave --top out")
    weight, keys, names = state["weight"].numpy(), state["keys"].numpy().view(np.uint64), {}
    sides = np.concatenate([-weight, weight]) if task.classes == 2 else weight
    tops = [np.argsort(-side, kind="stable")[: args.top] for side in sides]
    wanted = keys[np.concatenate(tops)]
    for symbols, lags in product(documents(task, "train", cell), lags_of(cell)):
        key = keys_of(symbols, lags)
        for place in np.isin(key, wanted).nonzero()[0]:
            names.setdefault(int(key[place]), [int(symbols[place + lag]) for lag in lags])
    for number, (top, side) in enumerate(zip(tops, sides)):
        print(f"  class {number}:")
        for index in top:
            print(f"    {side[index]:+.2f}  {readable(task.name, names[int(keys[index])])}")


def readable(name, gram):
    """An n-gram for people: words, bytes as text, operators and digits of ListOps, grey levels."""
    if name == "text" and not NAMES.keys() & {*gram}:
        return repr(bytes(symbol for symbol in gram if symbol < 256))
    words = NAMES | dict(enumerate(listops.LISTOPS_SYMBOLS if name == "listops" else range(256)))
    return " ".join(str(words.get(symbol, "(start)")) for symbol in gram)


# ------------------------------------------------------------------------------------------ the report

# fmt: off
LINES = {  # of the figures: {weights or n: (label, style, colour)}
    "presence": ("which occur", "o-", tables.BLUE),
    "counts": ("how often", "s-", tables.GREEN),
    "bayes": ("Naive Bayes weights", "^-", tables.ORANGE),
    2: ("2 symbols, g apart", "o-", tables.BLUE),
    3: ("3 symbols, g apart", "^-", tables.ORANGE),
}
# fmt: on
METHOD = (
    "A logistic regression reads the n-grams, of texts the first {length:,} bytes; its penalty is chosen by "
    "validation. Training and validation share films, the test has others. Test accuracies in %, with "
    "standard errors by the test's size."
)
MEANINGS = {
    "presence": "which n-grams occur",
    "counts": "the square roots of how often each n-gram occurs",
    "bayes": "which n-grams occur, with the weights of Naive Bayes",
    "start": "a symbol is put in front of every document; on ListOps the pair with the next one shows the "
    "operation of the root",
    "lags 0 1 32": "a pixel, its right and its lower neighbour; with 33 a square",
    "words": "words, and all runs of at most n of them",
    "chance": "the constant answer that is right most often on test",
    "features": "how many n-grams occur in training",
    "Image": "its pixels have 8 grey levels here",
}


BEST = """\
LRA's: the best of the 11 Transformers of LRA's table (of Text they read 4,000
bytes by its paper, 1,000 by its code); K=5: A's convolution; S4: that of Gu et
al., and A's own run; MEGA: that of Ma et al.; SPT: B's rotary Transformer. ≈:
level, within two standard errors.
"""


def report(args):
    """A table a task, and the figures, of your runs and of this repository's where you have none."""
    exp, (yours, ours) = records.experiment(__file__), records.yours_and_ours(args.out)
    wanted = common.chosen(args.task or ["all"], TASKS)
    found = [r for r in {r["run"]: r for r in ours + yours}.values() if r["task"] in wanted]
    found = [r for r in found if r["exp"] == exp and (r["tier"] == "mini") == args.mini]
    found.sort(key=lambda r: (TASKS.index(r["task"]), tables.naturally(r["row"])))
    if not found:
        return print(f"no run yet; {'leave out --mini for full size' if args.mini else 'train one first'}")
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        print(f"### A linear model of n-grams{' (mini tier)' if args.mini else ''}\n")
        as_published = [r for r in found if not r["changes"]]
        by_task = records.grouped(as_published, lambda r: r["task"]).values()
        tier = "mini" if args.mini else "paper"
        usual = tables.floor_of(found, "text", data.FLOORS["text"], tier)
        groups = records.grouped(
            found, lambda r: (r["task"], records.in_words(r["changes"]), kind_of(r["cell"]))
        )
        left = [key for key in groups if not (args.task or (key[0] == "text" and key[2] in ("", "words")))]
        left = left if len(left) < len(groups) else []
        best = [r for group in by_task for r in best_of(group)]
        first_bytes = data.FLOORS["text"]["cell"] | {"max_length": 1_000}
        cut = tables.floor_of(found, "text", data.FLOORS["text"] | {"cell": first_bytes}, tier)
        print_best([r for r in best if args.mini or r["task"] == "text" or not left], usual, cut)
        print(textwrap.fill(METHOD.format(length=data.length("text", args.mini)), 80) + "\n")
        for key in (key for key in groups if key not in left):
            print_task(groups[key] + ungapped(groups[key], found))
        if left:
            print(f"Further tables: python exp_{exp}.py --report{' --mini' * args.mini} --task all\n")
    tables.explain(printed.getvalue(), MEANINGS)
    plain = [r for r in as_published if r["cell"].keys() == {"n", "gap", "weights"}]
    if plain:
        parts = (wanted if len(wanted) < len(TASKS) else []) + (["mini"] if args.mini else [])
        name = "-".join(["ngrams", *parts])
        plot_lengths([r for r in plain if r["cell"]["gap"] == 1], args.out / f"{name}.png")
        plot_gaps(plain, args.out / f"{name}-gap.png")
    tables.print_elsewhere(args, __file__, {"paper"}, {r["tier"] for r in ours if r["exp"] == exp})


def kind_of(cell):
    """What has a table of its own: words, changed texts, symbols that stand apart, and n-grams ("")."""
    if cell.get("unit") == "word":
        return "words"
    if {"max_length", "digits"} & cell.keys():
        return "cut, or without digits"
    return "symbols that stand a gap apart" if cell.get("gap", 1) > 1 else ""


def print_task(group):
    """The test accuracies of one kind of features of one task: a row a feature, a column the weights; where
    that is not n alone, a column an n."""
    (first, *_), kind = group, kind_of(group[0]["cell"])
    cells = {place_of(r["cell"], wide=kind in ("", "words")): r for r in group}
    rows, columns = (sorted(set(names), key=in_order) for names in zip(*cells))
    accuracies = {place: f"{100 * records.mean_and_error([r])[0]:.2f}" for place, r in cells.items()}
    lines = [[row, *(accuracies.get((row, column), "") for column in columns)] for row in rows]
    features = {(row, f"{r['features']:,}") for (row, _), r in cells.items()}
    if len(features) == len(rows):  # alike in all columns
        lines, columns = [[*line, dict(features)[line[0]]] for line in lines], [*columns, "features"]
    words = data.title_of(first), records.in_words(first["changes"]), kind
    heading = f"{', '.join(filter(None, words))}; chance {100 * first['chance']:.1f}:"
    print(textwrap.fill(heading, 80) + "\n")
    tables.show(["", *columns], lines)
    errors = [100 * records.mean_and_error([r])[1] for r in group]
    costs = [r["cpu_seconds"] for r in group]
    took = f"A number takes {tables.least_to_most(costs, '{:,.0f}'.format)} seconds of one core."
    print(f"Errors: {tables.least_to_most(errors, '{:.2f}'.format)}. {took}\n")
    if short := [r["row"] for r in group if not r.get("converged", True)]:
        print(f"Not converged within the steps allowed: {'; '.join(short)}.\n")


def place_of(cell, wide):
    """("n=2", "counts, start"): the row and the column of a cell; ("gap 2", "n=2, counts") if not wide."""
    column = {"weights", "start"} | (set() if wide else {"n"})
    row = label_of(cell, without={"unit", *column})
    return row or "gap 1", label_of(cell, without=words_of(cell).keys() - column)


def in_order(name):
    """A key to sort by: weights as in WEIGHTS, all else naturally."""
    return [WEIGHTS.index(word) for word in name.split(", ") if word in WEIGHTS], tables.naturally(name)


def ungapped(group, found):
    """Of some records those of consecutive symbols that stand beside a group of symbols a gap apart."""

    def of(r):
        return r["task"], r["cell"].get("n"), r["cell"]["weights"], r["changes"]

    apart = [of(r) for r in group if r["cell"].get("gap", 1) > 1]
    return [r for r in found if of(r) in apart and r["cell"].get("gap") == 1 and not kind_of(r["cell"])]


def best_of(group):
    """What is best by validation of a task: a record of bytes and one of words."""
    units = records.grouped(group, lambda r: r["cell"].get("unit", "byte"))
    return [max(units[unit], key=lambda r: r["val_acc"]) for unit in sorted(units)]


def print_best(found, usual, cut=()):
    """What is best by validation: at the mini tier, where nothing published is comparable, a sentence each;
    else a table of how far each is ahead of what is published, and first that which other reports have. cut:
    a record of texts of 1,000 bytes, which LRA's code reads."""
    large = [r for r in found if r["tier"] == "paper" and r["task"] in COLUMNS]
    small = [r for r in usual if r["tier"] == "mini"]
    for r in small:
        line = f'{best_in_words(r)} In the reports of networks this row is called "no network".'
        print(textwrap.fill(line, 80) + "\n")
    said = [(r["task"], r["cell"].get("unit")) for r in small]  # whatever validates best
    rest = [r for r in found if r not in large and (r["task"], r["cell"].get("unit")) not in said]
    tables.print_list("The best by validation:", map(best_in_words, rest))
    if large:
        first = [r for r in usual if r not in large]
        several = len({r["task"] for r in large}) > 1  # tasks, which each row has to name
        lines = [[title_of(r) * several + feature_of(r), *leads(r)] for r in first + large]
        for r in cut:  # beside LRA's alone, whose code reads as much
            lines.append([feature_of(r), *leads(r)[:2], *[""] * len(LATER)])
        for r in first:
            words = f"{title_of(r)}{feature_of(r)} has {100 * r['test_acc']:.1f} %, {beside_the_best(r)}. In "
            print(textwrap.fill(f'{words}the reports of networks this row is "no network".', 80) + "\n")
        where = "" if several else f" on {data.TITLES[large[0]['task']]}"
        print(f"Points ahead of published networks{where}; n=6, and the tables' best:\n")
        tables.show(["", "% test", "LRA's", "K=5", "S4", "A's S4", "MEGA", "SPT"], lines)
        if any("¹" in line[1] for line in lines):
            print("¹: level with always the same answer.\n")
        print(BEST)


def best_in_words(record):
    """ "Text: n=6, bayes has 78.1; ...": what a record has, and what that is worth."""
    title, accuracy = data.TITLES[record["task"]], 100 * record["test_acc"]
    return f"{title}: {record['row']} has {accuracy:.1f}; {worth(record)}."


def feature_of(record):
    """ "n=6", "lags 0 1 32 33": a record in the table of the best; weights if not bayes on texts, or counts
    elsewhere."""
    usual = "bayes" if record["task"] in data.TEXTS else "counts"
    words = label_of(record["cell"], without={"unit", *["weights"] * (record["cell"]["weights"] == usual)})
    unit = record["cell"].get("unit")
    return ", ".join(filter(None, [unit and f"{unit}s", words]))


def title_of(record):
    """ "Text ": the task of a record, in front of its feature."""
    return f"{data.TITLES[record['task']]} "


def beside_the_best(record):
    """ "level with the best of the networks below (SPT, 91.02)": by the errors of both."""
    at, (accuracy, error) = COLUMNS.index(record["task"]), records.mean_and_error([record])
    name, best = max(((name, row[at]) for name, row in LATER.items()), key=lambda pair: pair[1])
    side = records.side(100 * accuracy - best, 100 * math.hypot(error, error))
    return f"{tables.by_side({side: ['the best of the networks below']})} ({name}, {best:.2f})"


def leads(record):
    """A line of the table of the best: the test accuracy, and how far it is ahead of the best of LRA's
    Transformers and of each of LATER, in points."""
    at, (accuracy, error) = COLUMNS.index(record["task"]), (100 * x for x in records.mean_and_error([record]))
    best = max(row[at] for row in TRANSFORMERS.values())
    gaps = [accuracy - value for value in (best, *(row[at] for row in LATER.values()))]
    level = [records.side(gap, math.hypot(error, error)) == "level" for gap in gaps]
    chance = records.side(accuracy - 100 * record["chance"], error) == "level"
    marked = (tables.signed(gap) + "≈" * near for gap, near in zip(gaps, level))
    return [f"{accuracy:.1f}" + "¹" * chance, *marked]


def drawn(found, x, by, least=1, step=0.0):
    """(figure, [(a task's records, its panel)]): accuracy against r["cell"][x], a line a value of by that has
    at least so many points, each so far right of the one before."""
    groups = list(records.grouped(found, lambda r: r["task"]).values())
    titles = [data.title_of(group[0]) for group in groups]
    size = (5, 3.6) if len(groups) > 1 else (8.5, 4.2)  # the legend needs the width
    figure, axes = tables.panels(titles, size, columns=2)
    for group, axis in zip(groups, axes):
        aside = 0.0
        for key, (label, style, colour) in LINES.items():
            chosen = [r for r in group if r["cell"][by] == key]
            chosen.sort(key=lambda r: r["cell"][x])
            if len(chosen) >= least:
                style = style[0] if (x, group[0]["task"]) == ("gap", "image") else style  # rows: no line
                look = dict(fmt=style, color=colour, markersize=4, label=label)
                places = [r["cell"][x] + aside for r in chosen]
                tables.errorbars(axis, places, [[r] for r in chosen], **look)
                aside += step  # beside each other where they coincide
        axis.set_ylabel("test accuracy (%)")
    return figure, list(zip(groups, axes))


def plot_lengths(found, path):
    """Accuracy against n; LRA's Transformers as a band, later models as lines with their names."""
    figure, parts = drawn(found, "n", "weights", step=0.06)
    figure.suptitle("What do n-grams know, wherever they stand?")
    for (first, *_), axis in parts:
        task = first["task"]
        axis.axhline(100 * first["chance"], color="black", linestyle=":", linewidth=1, label="chance")
        if task in COLUMNS and first["tier"] == "paper":
            at = COLUMNS.index(task)
            band = [row[at] for row in TRANSFORMERS.values()]
            axis.axhspan(min(band), max(band), color="0.9", label="LRA's own Transformers", zorder=0)
            draw_published(axis, {name: row[at] for name, row in LATER.items()})
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.set_xlabel(f"n consecutive {tables.UNITS.get(task, 'pixels')}")
    tables.legend_below(figure, [axis for _, axis in parts])
    tables.save_figure(figure, path)


def draw_published(axis, accuracies):
    """A line for each of {name: accuracy}, and its name right of the panel, below the name before it."""
    for accuracy in accuracies.values():
        axis.axhline(accuracy, color="0.5", linewidth=0.8)
    bottom, top = axis.get_ylim()
    at, here = math.inf, axis.get_yaxis_transform()
    for name, accuracy in sorted(accuracies.items(), key=lambda item: -item[1]):
        at = min(accuracy, at - (top - bottom) / 20)
        look = dict(fontsize=8, color="0.3", va="center", xycoords=here, textcoords=here)
        look |= dict(arrowprops=dict(arrowstyle="-", color="0.5", relpos=(0, 0.5)))  # to the text's left end
        axis.annotate(f"{name}: {accuracy:.2f}", (1, accuracy), (1.05, at), **look)


def plot_gaps(found, path):
    """Accuracy against the gap between two or three symbols; dashed: one symbol alone."""
    weights = {r["task"]: r["cell"]["weights"] for r in found if r["cell"]["gap"] > 1}
    found = [r for r in found if r["cell"]["weights"] == weights.get(r["task"])]
    if not found:
        return
    figure, parts = drawn(found, "gap", "n", least=2)
    figure.suptitle("What do two or three symbols know, by their distance?")
    for group, axis in parts:
        for r in group:
            if r["cell"]["n"] == 1:
                axis.axhline(100 * r["test_acc"], color="0.4", linestyle="--", label="one symbol alone")
        if group[0]["task"] == "image":
            axis.axvline(32, color="0.7", linewidth=1, label="one row below")
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_formatter("{x:.0f}")
        axis.set_xlabel(
            f"distance g of the symbols, 1: side by side ({LINES[group[0]['cell']['weights']][0]})"
        )
    tables.legend_below(figure, [axis for _, axis in parts])
    tables.save_figure(figure, path)


# ------------------------------------------------------------------------------------------ command line


def lags(text):
    """ "0 1 32" -> the same, in order, for argparse."""
    numbers = sorted({common.natural_int(word) for word in text.split()})
    if numbers[:1] != [0]:
        raise argparse.ArgumentTypeError(f'must be whole numbers with a 0, such as "0 1 32", not {text!r}')
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
    add("--unit", choices=("byte", "word"), default="byte",
        help="texts: byte (n-grams of exactly n) or word (runs of n and all fewer words)")
    add("--max-length", nargs="+", type=common.positive_int, metavar="L", help="texts: read L bytes of each")
    add("--start", action="store_true", help="put a start symbol in front of every document")
    add("--no-digits", action="store_true",
        help='texts: take every digit out, so that no rating ("4/10") can be read')
    add("--limit", type=common.positive_int, metavar="N", help="train on N examples")
    add("--mini", action="store_true", help="the small data of the mini tier")
    add("--smoke", action="store_true", help="check that it runs: seconds, no result")
    add("--top", type=common.positive_int, metavar="N", help="print the N heaviest n-grams of each class")
    add("--report", "--figure", action="store_true",
        help="print the tables (all of them with --task), draw the two figures, and exit")
    # fmt: on
    common.add_execution(parser)
    return parser


def refuse(args, names):
    """Raise UserError for flags that do not go together."""
    for flag, given in (("--no-digits", args.no_digits), ("--unit word", args.unit == "word")):
        if given and (other := {*names} - {*data.TEXTS}):
            raise common.UserError(f"{flag} is for text and retrieval, not {', '.join(sorted(other))}")
    if args.max_length and args.mini:
        raise common.UserError("--mini has a length of its own (256 bytes of a text); leave --max-length out")
    if args.top and "retrieval" in names:
        raise common.UserError("--top reads the n-grams of single documents; leave retrieval out")
    machine.scikit_learn()  # now, not after the data


def cells_of(args, name, length):
    """Yield (task, cell, () -> what `counted` makes of it, timed) for a task whose documents are cut at
    `length` bytes (None: at the task's own)."""
    how = dict(mini=args.mini, smoke=args.smoke, limit=args.limit, max_length=length)
    task = data.load(name, args.data_dir, **how)
    grams = [{"lags": lags} for lags in args.lags or ()]
    grams = grams or [{"n": n, "gap": gap} for n in args.n for gap in (args.gap if n > 1 else [1])]
    more = {"unit": "word"} if args.unit == "word" else {}
    more |= {"start": "yes"} if args.start else {}
    more |= {"digits": "no"} if args.no_digits else {}
    more |= {"max_length": length} if length not in (None, data.length(name)) else {}
    default = ["presence"] if name in data.TEXTS else ["counts"]
    counts = functools.lru_cache(maxsize=1)(functools.partial(count_anew, task))  # once for all weights
    for gram, weights in product(grams, common.chosen(args.weights or default, WEIGHTS)):
        yield task, gram | {"weights": weights} | more, functools.partial(counts, json.dumps(gram | more))


def count_anew(task, cell):
    """`counted`, timed; the peak of memory begins with it. cell: as JSON, which a cache can compare."""
    common.reset_peak(torch.device("cpu"))
    return timed(counted, task, json.loads(cell))


def main(argv=None):
    parser = make_parser()
    parser.set_defaults(seed=0, seeds=1)  # nothing is drawn
    args = common.read_args(parser, argv)
    with common.exit_cleanly():
        if args.report:
            return report(args)
        names = common.chosen(args.task, TASKS)
        refuse(args, names)
        tasks = product(names, args.max_length or [None])
        records.run_cells(args, [cell for task in tasks for cell in cells_of(args, *task)], run_cell)


if __name__ == "__main__":
    main()
