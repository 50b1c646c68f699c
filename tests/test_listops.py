"""ListOps: the generator against LRA's statistics, labels, files, shuffling."""

import hashlib

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import listops

SYMBOLS = "0 1 2 3 4 5 6 7 8 9 [MAX [MED [MIN [SM ]".split()


def parse(symbols):
    """Text symbols of one expression -> nested lists ["[MAX", argument, ...]; digits become integers."""
    stack = [[]]
    for symbol in symbols:
        if symbol == "]":
            node = stack.pop()
            assert len(node) > 1, "an operator without arguments"
            stack[-1].append(node)
        elif symbol[0] == "[":
            stack.append([symbol])
        else:
            stack[-1].append(int(symbol))
    assert len(stack) == 1 and len(stack[0]) == 1, "not one tree"
    return stack[0][0]


def value(tree):
    if isinstance(tree, int):
        return tree
    values = [value(argument) for argument in tree[1:]]
    answers = {"[MAX": max, "[MIN": min, "[SM": lambda v: sum(v) % 10, "[MED": lambda v: int(np.median(v))}
    return answers[tree[0]](values)


def depth(tree):
    return 0 if isinstance(tree, int) else 1 + max(map(depth, tree[1:]))


def symbols(tree):
    if isinstance(tree, int):
        return [str(tree)]
    return [tree[0], *(symbol for argument in tree[1:] for symbol in symbols(argument)), "]"]


def unordered(tree):
    """The tree with all arguments sorted: equal for trees that differ in the order of arguments only."""
    return tree if isinstance(tree, int) else (tree[0], *sorted(map(unordered, tree[1:]), key=repr))


def parenthesised(tree):
    """As in LRA's files: MAX of 2 and 9 is ( ( ( [MAX 2 ) 9 ) ] )."""
    if isinstance(tree, int):
        return str(tree)
    arguments = "".join(f" {parenthesised(argument)} )" for argument in tree[1:])
    return "( " * len(tree) + tree[0] + arguments + " ] )"


def encode(text):
    return np.array([SYMBOLS.index(symbol) for symbol in text.split()], np.uint8)


def decode(tokens):
    return [SYMBOLS[token] for token in tokens.tolist()]


def rows(tokens, offsets):
    return [tokens[start:stop] for start, stop in zip(offsets[:-1], offsets[1:])]


def uniform(count):
    """Whether counts are those of equally likely cells (chi-square); the bound, mean + 5 standard deviations,
    is passed by chance about once in 10,000 comparisons."""
    expected, cells = sum(count) / len(count), len(count) - 1
    return sum((c - expected) ** 2 for c in count) / expected < cells + 5 * (2 * cells) ** 0.5


@pytest.fixture(scope="module")
def generated():
    return listops.generate_listops(2500, seed=7)


@pytest.fixture(scope="module")
def trees(generated):
    return [parse(decode(row)) for row in rows(*generated[:2])]


def test_every_label_is_the_value_of_its_tree_and_no_tree_comes_twice(generated, trees):
    assert [value(tree) for tree in trees] == generated[2].tolist()
    assert len({row.tobytes() for row in rows(*generated[:2])}) == 2500


def test_generator_has_the_published_statistics(generated, trees):
    """Against 20,000 examples of LRA's own generator. Tolerances are 4 standard errors of the difference
    between a share in 2,500 and one in 20,000 examples, plus the rounding of the published figures."""
    tokens, offsets, label = generated
    length = np.diff(offsets)

    def agree(shares, percent):
        p = np.asarray(percent) / 100
        tolerance = 4 * np.sqrt(p * (1 - p) * (1 / 2500 + 1 / 20_000)) + 0.0005
        assert (np.abs(np.asarray(shares) - p) < tolerance).all(), (shares, percent)

    assert 501 <= length.min() < 510 and 1980 < length.max() <= 1999
    agree([(length < edge).mean() for edge in (539, 701, 953, 1309, 1804)], [5, 25, 50, 75, 95])
    agree(np.bincount(label) / 2500, [16.8, 9.3, 7.3, 8.2, 8.9, 8.8, 7.7, 7.5, 8.5, 17.0])
    arity = np.bincount([len(tree) - 1 for tree in trees], minlength=11)
    agree(arity[2:] / 2500, [4.6, 6.5, 8.1, 10.3, 11.7, 13.2, 14.3, 15.2, 16.1])
    assert {depth(tree) for tree in trees} == {9} and not arity[:2].any()
    # Shares among 2.5 million tokens. Draws of digits and names are independent; operators against digits
    # vary from tree to tree, hence 0.15 points on the bracket.
    off = np.bincount(tokens, minlength=15) / len(tokens) * 100 - ([7.16] * 10 + [3.56] * 4 + [14.2])
    assert (np.abs(off) < [0.08] * 10 + [0.06] * 4 + [0.15]).all()
    root = np.array([tree[0] for tree in trees])
    agree([(root == name).mean() for name in SYMBOLS[10:14]], [25, 25, 25, 25])
    rule = np.select([root == "[MIN", root == "[MAX", root == "[MED"], [0, 9, 4], label[::-1])
    agree((rule == label).mean(), 36.3)


def test_seed_decides_the_data_and_fewer_are_the_first_of_more(generated):
    tokens, offsets, label = listops.generate_listops(1500, seed=7)  # more than one block
    assert np.array_equal(tokens, generated[0][: offsets[-1]])
    assert np.array_equal(offsets, generated[1][:1501]) and np.array_equal(label, generated[2][:1500])
    assert not np.array_equal(listops.generate_listops(10, seed=8)[0][:500], tokens[:500])
    assert tokens.dtype == np.uint8 and offsets.dtype == label.dtype == np.int64
    # Records of different machines are comparable only if seed 0 is the same data everywhere. After a
    # deliberate change of the generator (or of numpy's streams) put the new value here; data packed before
    # are then others.
    full = listops.generate_listops(100, seed=0)[0]
    mini = listops.generate_listops(3000, 0, listops.MINI_LISTOPS_LENGTHS)[0]
    digests = [hashlib.sha256(tokens).hexdigest()[:16] for tokens in (full, mini)]
    assert digests == ["edf283e0910995b7", "0479f234e264306e"]


def test_evaluator_by_hand():
    answers = {
        "[MIN [MAX 1 [SM 8 7 ] 0 ] 7 [MED 9 9 6 ] ]": 5, "[MED 2 3 ]": 2, "[MED 9 1 2 3 ]": 2,
        "[MAX 1 " * 300 + "0" + " ]" * 300: 1, "[SM" + " 9" * 300 + " ]": 0,  # deeper, wider than generated
        "7": 7, "[MAX 2 9 ] 9": -1,  # no tree
    }  # fmt: skip
    assert all(answer < 0 or answer == value(parse(text.split())) for text, answer in answers.items())
    parts = [encode(text) for text in answers]
    together = listops.evaluate_listops(np.concatenate(parts), np.cumsum([0, *map(len, parts)]))
    assert together.tolist() == [*answers.values()]


def write(path, lines, header="Source\tTarget", end="\n"):
    path.write_bytes(end.join([header, *lines, ""]).encode())
    return path


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_official_files_are_read_with_and_without_parentheses(tmp_path, trees, end):
    some = [["[MAX", 2, 9], *trees[:3]]
    assert parenthesised(some[0]) == "( ( ( [MAX 2 ) 9 ) ] )"
    lines = [f"{parenthesised(tree)}\t{value(tree)}" for tree in some] + ["[MED 2 3 ]\t2"]
    tokens, offsets, label = listops.read_listops_tsv(write(tmp_path / "basic_val.tsv", lines, end=end))
    assert [parse(decode(row)) for row in rows(tokens, offsets)] == [*some, ["[MED", 2, 3]]
    assert label.tolist() == [*map(value, some), 2]
    assert tokens.dtype == np.uint8 and offsets.dtype == label.dtype == np.int64


MALFORMED = ["[MAX 2 9 ]\t9\t9", "[MAX 2 9 ]", "[MAX 2 9 ]\t8", "[MAX 2 12 ]\t9", "[FIRST 2 9 ]\t2"]
MALFORMED += ["MAX 2 9\t9", "[MAX 2 [MIN 9 ]\t9", "[MAX 2 9 ] ]\t9", "[MAX 2 9 ] 9\t9", "[MAX 9 [MIN ] ]\t9"]
MALFORMED += ["] 9 [MAX\t9", "9\t9", "\t9", "", "[MAX" + " 9" * 1998 + " ]\t9"]


@pytest.mark.parametrize("row", MALFORMED)
def test_a_malformed_row_is_named(row, tmp_path):
    path = write(tmp_path / "basic_train.tsv", ["[MAX 2 9 ]\t9"] * 3 + [row] + ["[MAX 2 9 ]\t9"])
    with pytest.raises(listops.DataError, match="train.tsv, line 5: this is not .*fetch the file again"):
        listops.read_listops_tsv(path)
    write(path, ["[MAX 2 9 ]\t9"], header="Quelle\tZiel")
    for other in (path, tmp_path / "basic_test.tsv"):
        with pytest.raises(listops.DataError, match="the file or its header .* is missing"):
            listops.read_listops_tsv(other)


def batch(examples):
    """Examples as padded ids (B, L) and mask (B, L); id = symbol + 2, padding 0."""
    ids = [torch.from_numpy(tokens).long() + listops.LISTOPS_FIRST_ID for tokens in examples]
    ids = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)
    return ids, ids > 0


def shuffled(ids, mask, seed=0):
    return listops.shuffle_listops(ids, mask, torch.Generator(ids.device).manual_seed(seed))


def test_shuffling_changes_nothing_but_the_order_of_arguments(generated, trees):
    others = "[MAX 1 2 " * 40 + "[SM" + " 3" * 50 + " 4 ]" + " ]" * 40, "[MIN 7 ]", "[SM 1 [MED 3 ] ]", ""
    ids, mask = batch([*rows(*generated[:2])[:64], *map(encode, others)])
    before = ids.clone()
    out = shuffled(ids, mask)
    assert torch.equal(ids, before), "the input was written to"
    assert out.dtype == torch.int64 and torch.equal(out > 0, mask), "padding moved"
    after = [unordered(parse(decode(row[row > 0] - 2))) for row in out[:-1]]
    assert after == [unordered(tree) for tree in [*trees[:64], *(parse(t.split()) for t in others[:-1])]]
    assert ((out != ids) & mask).sum() / mask.sum() > 0.8  # two random symbols differ in 92 % of cases
    assert torch.equal(out, shuffled(ids, mask, seed=0)) and not torch.equal(out, shuffled(ids, mask, seed=1))


@pytest.mark.parametrize("together, expression, orders", [
    (1, "[SM 1 2 3 4 ]", 24),
    (1, "[SM 1 [MIN 5 6 7 ] 2 ]", 6 * 6),
    (1, "[SM [MAX 1 2 3 ] [MIN 5 6 ] [MED 8 ] ]", 6 * 6 * 2),
    (1, "[SM 1 [MIN 5 [MAX 7 8 9 ] ] 2 ]", 6 * 2 * 6),
    (2, "[SM 1 2 3 ]", 6 * 6),  # neighbouring rows are independent of each other
])  # fmt: skip
def test_orders_are_uniform_and_independent(together, expression, orders):
    """Of a node's arguments, digits and subtrees of different sizes alike, of a node and the one inside it,
    of two siblings, of three levels: every joint order equally often."""
    ids, mask = batch([encode(expression)] * 7200)
    rows = shuffled(ids, mask, seed=orders).view(7200 // together, -1)
    found, number = torch.unique(rows, dim=0, return_counts=True)
    assert len(found) == orders and uniform(number.tolist())


def test_shuffling_never_waits_for_the_device(generated):
    """Fake tensors hold nothing that could be read: asking the device for a value would raise."""
    ids, mask = batch(rows(*generated[:2])[:64])
    with FakeTensorMode(allow_non_fake_inputs=True) as fake:
        nothing = shuffled(fake.from_tensor(ids), fake.from_tensor(mask))
    assert nothing.shape == ids.shape


def test_the_root_rule_answers_the_commonest_label_of_each_operator():
    roots, labels = torch.tensor([10, 10, 10, 12, 12, 13]), torch.tensor([9, 9, 1, 0, 0, 5])
    answers = listops.root_rule(roots, labels, torch.tensor([13, 12, 10, 10]))
    assert answers.tolist() == [5, 0, 9, 9]
