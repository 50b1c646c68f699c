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
import math
import time
from itertools import product
from pathlib import Path
from typing import NamedTuple

import torch
from torch.nn import functional as F

import common
import data
import records

TASKS = ("text", "listops", "image", "pathfinder", "retrieval", "scifar")
GREY = ("image", "pathfinder", "scifar")  # whose symbols are grey values or colours
WEIGHTS = ("presence", "counts", "bayes")
PENALTIES = (100, 10, 1, 0.1, 0.01, 0.001)  # of sum(losses) + penalty / 2 * sum(weights^2), tried in turn
BOUND = 1e-3  # of the gradient's norm where a fit ends, as a share of that where all weights are 0
TABLE_BITS = {2: 22, 10: 18}  # size of the table of n-grams, by the number of classes
CHUNK = 1 << 22  # symbols that are looked at together

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
            shifted = torch.full((len(symbols) + len(length),), alphabet)
            shifted[torch.arange(len(symbols)) + torch.arange(1, len(length) + 1).repeat_interleave(length)] = symbols
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
    key, moved = torch.cat([key, key[both]]), torch.cat([torch.zeros_like(key), torch.full_like(key[both], size)])
    value = torch.cat([(sides[0] - sides[1]).abs(), sides.prod(0)[both]])
    order = (key // size * 2 * size + key % size + moved).argsort()
    key, moved, value = key[order], moved[order], value[order]
    made = Counts((key // size).int(), (key % size + moved).int(), torch.ones_like(value), counts.docs // 2)
    return made, value


class Rows(NamedTuple):
    """The vectors of a split as a matrix, and its transpose; both sparse, or both dense."""

    matrix: torch.Tensor  # (examples, columns)
    transpose: torch.Tensor | None  # of training alone


def rows_of(counts, value, columns, known, transpose=False):
    """Rows of the columns `known` of the table: others never occur in training, no weight could be learnt."""
    place = torch.full((columns,), -1, dtype=torch.int32)
    place[known] = torch.arange(len(known), dtype=torch.int32)
    column = place[counts.column]
    kept = column >= 0
    document, column, value = counts.document[kept], column[kept], value[kept]
    if len(value) > counts.docs * len(known) / 8:  # few zeros: dense is quicker
        dense = torch.zeros(counts.docs, len(known))
        dense[document.long(), column.long()] = value
        return Rows(dense, dense.T if transpose else None)
    edges = torch.zeros(counts.docs + 1, dtype=torch.int32)
    edges[1:] = torch.bincount(document, minlength=counts.docs).cumsum(0)
    matrix = torch.sparse_csr_tensor(edges, column, value, (counts.docs, len(known)))
    if not transpose:
        return Rows(matrix, None)
    csc = matrix.to_sparse_csc()
    shape = len(known), counts.docs
    return Rows(matrix, torch.sparse_csr_tensor(csc.ccol_indices(), csc.row_indices(), csc.values(), shape))


def log_ratios(document, column, label, classes, columns):
    """Naive Bayes' log ratios (columns, 1) of class 1 against class 0, or (columns, classes) of each class
    against the rest: how often documents of a class have an n-gram, plus one, as a share of all n-grams."""
    had = torch.ones(columns, classes)
    had.view(-1).index_add_(0, column * classes + label[document], torch.ones(len(column)))
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


def fit(rows, label, classes, penalty, factor=1.0, begin=None, bound=BOUND, most=1000):
    """Logistic regression -> Linear: the minimum of sum(losses) + penalty / 2 * sum(inner^2), where
    weight = factor * inner, by L-BFGS from `begin`, another Linear. It ends where the gradient's norm is
    below `bound` of that where all weights are 0, or after `most` steps: the result says which.

    L-BFGS moves z, and inner = scale * z. The scale is about one over the root of the curvature, so that
    frequent and rare n-grams converge alike; it changes the way to the minimum and not the minimum."""
    matrix, transpose = rows
    outputs, n = 1 if classes == 2 else classes, len(label)
    square = sum_of_squares(matrix)[:, None]
    scale = (factor * factor * square / 4 + penalty).rsqrt().expand(-1, outputs)
    if begin:
        z, bias = begin.inner / scale, begin.bias.clone()
    else:
        z, bias = torch.zeros_like(scale), torch.zeros(outputs, dtype=scale.dtype)
    now = {}

    def closure():
        inner = scale * z
        loss, slope = losses_of(scores_of(matrix, factor * inner, bias), label)
        back = (transpose @ slope[:, 0])[:, None] if outputs == 1 else transpose @ slope
        by_inner, by_bias = (factor * back + penalty * inner) / n, slope.sum(0) / n
        z.grad, bias.grad = scale * by_inner, by_bias
        total = loss.sum(dtype=torch.float64) + penalty / 2 * inner.square().sum(dtype=torch.float64)
        now.update(loss=float(total) / n, norm=math.hypot(by_inner.norm(), by_bias.norm()))
        return total / n

    at_zero = gradient_at_zero(rows, label, outputs, factor)
    steps, each = 0, 20
    options = dict(max_iter=each, max_eval=10 * each, tolerance_grad=0, tolerance_change=0, history_size=10)
    optimizer = torch.optim.LBFGS([z, bias], line_search_fn="strong_wolfe", **options)
    closure()
    while now["norm"] > bound * at_zero and steps < most:
        optimizer.step(closure)
        closure()
        steps += each
    inner = scale * z
    return Linear(factor * inner, bias, inner, now["loss"], now["norm"] / at_zero, steps)


def sum_of_squares(matrix):
    """Of each column (columns,)."""
    if not matrix.is_sparse_csr:
        return matrix.square().sum(0)
    total = torch.zeros(matrix.shape[1], dtype=matrix.dtype)
    return total.index_add_(0, matrix.col_indices(), matrix.values() ** 2)


def gradient_at_zero(rows, label, outputs, factor):
    """The norm of the gradient, a training example, where all weights are 0."""
    _, slope = losses_of(torch.zeros(len(label), outputs, dtype=rows.matrix.dtype), label)
    back = factor * (rows.transpose @ slope) / len(label)
    return math.hypot(back.norm(), (slope.sum(0) / len(label)).norm())


def accuracy(model, matrix, label):
    scores = scores_of(matrix, model.weight, model.bias)
    guess = (scores[:, 0] > 0).long() if scores.shape[1] == 1 else scores.argmax(1)
    return float((guess == label).double().mean())
