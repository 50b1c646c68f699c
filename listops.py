"""ListOps: nested MIN, MAX, MED and SM of digits; the value is one digit.

Many expressions are one array of symbols end to end, tokens (total,) uint8, and the places where they begin,
offsets (n + 1,) int64. A symbol is its index in LISTOPS_SYMBOLS; models are given symbol + LISTOPS_FIRST_ID.
"""

from itertools import pairwise

import numpy as np
import torch
from tqdm import tqdm

from machine import DataError

LISTOPS_SYMBOLS = (*"0123456789", "[MAX", "[MED", "[MIN", "[SM", "]")
MAX_OP, MED_OP, MIN_OP, SM_OP, CLOSE = range(10, 15)  # symbols; those below MAX_OP are digits
LISTOPS_FIRST_ID = 2
LISTOPS_LENGTHS, MINI_LISTOPS_LENGTHS = (501, 1_999), (20, 96)  # fewest and most symbols; mini is ours
LISTOPS_BLOCK = 4_096  # trees started per random stream: with another number the data are others


def generate_listops(n, seed, lengths=LISTOPS_LENGTHS):
    """n expressions, distributed as by LRA's generator: at most 10 levels, 2 to 10 arguments, `lengths`
    (fewest and most) symbols, round parentheses not counted. -> tokens (total,) uint8 symbols, offsets
    (n + 1,) int64, label (n,) int64. Block b of trees has a random stream of its own, (seed, b), so fewer are
    the first of more. Source: google-research/long-range-arena, lra_benchmarks/data/listops.py, written anew
    from a description."""
    tokens, sizes, labels, made = [], [], [], 0
    with tqdm(total=n, desc="generate listops", unit="ex", leave=False, disable=None) as bar:
        while made < n:
            flat, offsets = _listops_block(np.random.default_rng([seed, len(sizes)]), *lengths)
            offsets = offsets[: n - made + 1]
            tokens.append(flat[: offsets[-1]])
            sizes.append(np.diff(offsets))
            labels.append(evaluate_listops(flat, offsets))
            made += len(sizes[-1])
            bar.update(len(sizes[-1]))
    offsets = np.cumsum(np.concatenate([[0], *sizes]), dtype=np.int64)
    return np.concatenate(tokens), offsets, np.concatenate(labels)


def _listops_block(rng, shortest, longest):
    """The accepted trees of one block: tokens (total,) uint8 symbols, offsets (accepted + 1,) int64.

    Operators alone decide a tree's shape and length, so only they are grown, level by level and all trees at
    once; digits and operator names are drawn for accepted trees. Every tree starts with an operator: the
    bare digits that the original draws three times in four are too short to be accepted."""
    # Per level, one entry per operator: its tree, number of arguments, parent (index into the level above)
    # and place among the parent's arguments; always in reading order.
    levels = []
    tree = np.arange(LISTOPS_BLOCK)
    parent, place, length = np.zeros_like(tree), np.zeros_like(tree), np.zeros_like(tree)
    for depth in range(1, 10):  # level 10 holds digits only
        arity = rng.integers(2, 11, len(tree))
        levels.append((tree, arity, parent, place))
        # Bit j: argument j is an operator. Two fair bits that must both be set give LRA's 0.25 exactly.
        bits = rng.integers(0, 1 << 20, len(tree)) if depth < 9 else np.zeros_like(tree)
        bits &= (bits >> 10) & ((1 << arity) - 1)
        parent, place = np.nonzero((bits[:, None] >> np.arange(10)) & 1)
        own = 2 + arity - np.bincount(parent, minlength=len(tree))  # operator, bracket, digits
        length += np.bincount(tree, own, LISTOPS_BLOCK).astype(np.int64)
        # A tree that is too long already stops growing (and is dropped below): full ones have 10^9 tokens.
        short = length[tree[parent]] <= longest
        parent, place = parent[short], place[short]
        tree = tree[parent]
    accepted = (length >= shortest) & (length <= longest)

    kept, number = [], None  # number: index of an operator in its level -> index among those kept
    for tree, arity, parent, place in levels:
        keep = accepted[tree]
        kept.append((arity[keep], number[parent[keep]] if kept else None, place[keep]))
        number = np.cumsum(keep) - 1
    sizes = [2 + arity for arity, _, _ in kept]  # tokens in each operator's subtree, summed from below
    for depth in range(8, 0, -1):
        parent = kept[depth][1]
        sizes[depth - 1] += np.bincount(parent, sizes[depth] - 1, len(sizes[depth - 1])).astype(np.int64)

    offsets = np.concatenate([[0], np.cumsum(sizes[0])])
    tokens = rng.integers(0, 10, offsets[-1], dtype=np.uint8)  # digits wherever nothing is written below
    start = offsets[:-1]
    for (_, parent, place), size in zip(kept, sizes):
        if parent is not None:
            before = np.cumsum(size - 1) - (size - 1)  # what earlier operators take beyond one token each ...
            first = np.searchsorted(parent, np.arange(len(start)))  # ... counted from the parent's first
            start = start[parent] + 1 + place + before - before[first[parent]]
        tokens[start] = rng.integers(MAX_OP, SM_OP + 1, len(start), dtype=np.uint8)
        tokens[start + size - 1] = CLOSE
    return tokens, offsets


def evaluate_listops(tokens, offsets):
    """Values (n,) int64 of expressions: tokens (total,) uint8 symbols, offsets (n + 1,) int64; -1 for what is
    no tree (a bare digit is one). Depth and number of arguments are not limited."""
    flat, edges = tokens.tobytes(), offsets.tolist()
    return np.array([_value(flat[start:stop]) for start, stop in pairwise(edges)], np.int64)


def _value(expression):
    """Value of one expression (bytes, one a symbol), or -1."""
    arguments, outer = [], []  # of the last open operator; the operators open, each with what stood before it
    for symbol in expression:
        if symbol < MAX_OP:
            arguments.append(symbol)
        elif symbol < CLOSE:
            outer.append((symbol, arguments))
            arguments = []
        elif outer and arguments:
            operator, above = outer.pop()
            above.append(OPERATIONS[operator](arguments))
            arguments = above
        else:
            return -1
    return -1 if outer or len(arguments) != 1 else arguments[0]


def _median(values):
    """LRA's: of an even number of values the mean of the middle two, cut to an integer."""
    values = sorted(values)
    return (values[(len(values) - 1) // 2] + values[len(values) // 2]) // 2


OPERATIONS = {MAX_OP: max, MED_OP: _median, MIN_OP: min, SM_OP: lambda values: sum(values) % 10}


def read_listops_tsv(path):
    """LRA's basic_{train,val,test}.tsv -> tokens (total,) uint8 symbols, offsets (n + 1,), label (n,) int64.
    Round parentheses are dropped: they repeat what the brackets say and triple the length. Raises DataError
    for an expression that is no tree or not worth its target."""
    symbol_of = {word.encode(): symbol for symbol, word in enumerate(LISTOPS_SYMBOLS)}
    expressions, labels = [], []
    rows = path.read_bytes().splitlines() if path.is_file() else []
    remedy = f"fetch the file again, or remove {path.parent} to have ListOps generated"
    if rows[:1] != [b"Source\tTarget"]:
        raise DataError(f"{path}: the file or its header 'Source<TAB>Target' is missing; {remedy}")
    for line, row in enumerate(tqdm(rows[1:], path.name, disable=None), 2):
        source, _, target = row.partition(b"\t")
        words = source.translate(None, b"()").split()
        known = 1 < len(words) <= LISTOPS_LENGTHS[1] and symbol_of.keys() >= set(words)
        expressions.append(bytes(symbol_of[word] for word in words) if known else b"")
        labels.append(_value(expressions[-1]))
        if labels[-1] < 0 or target != b"%d" % labels[-1]:
            what = f"a tree of at most {LISTOPS_LENGTHS[1]:,} symbols, a tab and its value: {row[:40]!r}"
            raise DataError(f"{path}, line {line}: this is not {what}; {remedy}")
    offsets = np.cumsum([0, *map(len, expressions)], dtype=np.int64)
    return np.frombuffer(b"".join(expressions), np.uint8).copy(), offsets, np.array(labels, np.int64)


def shuffle_listops(tokens, mask, generator):
    """The same expressions with the arguments of every operator in a fresh, uniformly random order. Subtrees
    move whole, so values stay (paper A, Section 3). tokens (B, L) int64 ids, mask (B, L) bool, each row one
    whole expression and then padding -> (B, L) int64 ids. Runs on the device of tokens and `generator`, which
    nobody waits for."""
    B, L = tokens.shape
    position = torch.arange(L, device=tokens.device).expand(B, L)
    opens = mask & (tokens >= LISTOPS_FIRST_ID + MAX_OP) & (tokens < LISTOPS_FIRST_ID + CLOSE)
    closes = mask & (tokens == LISTOPS_FIRST_ID + CLOSE)
    step = opens.long() - closes.long()

    # Reading order -> level order: each head is followed by its arguments, an inner operator being
    # represented by its bracket; the k-th head's own bracket is the k-th. Padding is last.
    by_level = step.cumsum(1).masked_fill(~mask, L).argsort(dim=1, stable=True)
    step = step.gather(1, by_level)
    head, bracket = step > 0, step < 0
    node = head.cumsum(1)  # the head that an entry belongs to, counted from 1; 0 for the root's bracket
    inner = bracket.cumsum(1) * bracket  # the head that a bracket closes; else 0, a bin not read
    head_at = torch.zeros_like(tokens).scatter(1, node * head, by_level)  # by head: its position
    size = torch.where(bracket, by_level - head_at.gather(1, inner) + 1, 1)  # tokens that an entry stands for

    # Level order -> the same with each head's arguments in the order of their keys, the head still in front.
    key = torch.randint(1, 1 << 31, (B, L), device=tokens.device, generator=generator) * ~head
    drawn = (key + (node << 31)).masked_fill(~mask, torch.iinfo(torch.int64).max).argsort(dim=1)
    size_drawn = size.gather(1, drawn)
    before = size_drawn.cumsum(1) - size_drawn
    shift = before - (before * head).cummax(1).values  # from the start of the enclosing subtree
    shift = torch.empty_like(shift).scatter(1, drawn, shift)  # back in level order

    # A token's new position is the sum of the shifts of all subtrees around it. In reading order that is a
    # running sum to which a head adds its subtree's shift and from which the bracket takes it again.
    head_shift = torch.zeros_like(shift).scatter(1, inner, shift).gather(1, node * head)
    turn = torch.where(head, head_shift, -shift * bracket)
    rest = torch.where(head, 0, shift + size - 1)
    target = torch.empty_like(turn).scatter(1, by_level, turn).cumsum(1)
    target += torch.empty_like(rest).scatter(1, by_level, rest)
    return torch.empty_like(tokens).scatter(1, torch.where(mask, target, position), tokens)


def root_rule(roots, labels, test_roots):
    """The commonest training label of each root operator, as the answer to every test example that has it:
    roots (n,) first symbols, labels (n,), test_roots (m,), int64 -> (m,) int64."""
    counts = torch.bincount(10 * roots + labels, minlength=10 * len(LISTOPS_SYMBOLS))
    return counts.view(-1, 10).argmax(1)[test_roots]
