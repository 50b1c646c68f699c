"""exp_ngrams.py: vectors against plain dicts, the optimum against Newton's. pytest tests/test_ngrams.py"""

import math
from collections import Counter

import pytest
import torch
from conftest import exit_code, lines_of

import data
import exp_ngrams
import records


def task_of(texts, labels, name="text", max_length=4096, parts=(0.5, 0.75)):
    """A Task of lists of symbols; half of them are for training and a fourth each for the rest."""
    cuts = [0, *(int(part * len(texts)) for part in parts), len(texts)]
    splits = {}
    for split, start, stop in zip(data.SPLITS, cuts, cuts[1:]):
        tokens, offsets = data.ragged([bytes(text) for text in texts[start:stop]])
        splits[split] = data.Split(tokens, offsets, torch.tensor(labels[start:stop]))
    shape = data.SHAPES[name] | {"max_length": max_length}
    return data.Task(name, **shape, **splits, source={"hash": "0"})


def random_texts(n, alphabet, lengths, seed=0):
    draw = torch.Generator().manual_seed(seed)
    sizes = torch.randint(*lengths, (n,), generator=draw).tolist()
    return [torch.randint(97, 97 + alphabet, (size,), generator=draw).tolist() for size in sizes]


def table_of(found):
    """Vectors as {(document, column): value}."""
    return {
        (i, c): v for i, (cs, vs) in enumerate(found) for c, v in zip(cs.tolist(), vs.tolist(), strict=True)
    }


@pytest.mark.parametrize("lags", [[0], [0, 1], [0, 1, 2, 3, 4], [0, 3, 6], [0, 1, 32]])
def test_vectors_are_those_of_a_plain_dict(lags, monkeypatch):
    """Cut at 40 symbols, some documents shorter than the n-gram. Hashed to 2^12 places: the dict's n-grams by
    Python's own whole numbers, and collisions are counted."""
    bits = 12
    monkeypatch.setitem(exp_ngrams.TABLE_BITS, 2, bits)
    texts = random_texts(40, 4, (1, 60))
    task = task_of(texts, [i % 2 for i in range(40)], max_length=40)

    def place(gram):
        """columns_of and mixed once more, modulo 2^64 in Python."""
        if 256 ** len(gram) <= 1 << bits:
            return sum(symbol * 256**i for i, symbol in enumerate(reversed(gram)))
        key = 0
        for symbol in gram:
            key = (key + symbol + 1) * 0x9E3779B97F4A7C15 % 2**64
            signed = key - 2**64 if key >> 63 else key
            key = (key ^ (signed >> 32) % 2**64) * 0xBF58476D1CE4E5B9 % 2**64
        return key >> (64 - bits)

    counts, presence, grams = {}, {}, set()
    for i, text in enumerate(text[:40] for text in texts[:20]):
        found = [tuple(text[j + lag] for lag in lags) for j in range(len(text) - max(lags))]
        grams.update(found)
        had = Counter(map(place, found))
        counts |= {(i, column): math.sqrt(n / len(found)) for column, n in had.items()}
        presence |= {(i, column): 1 / math.sqrt(len(had)) for column in had}
    for weights, wanted in (("counts", counts), ("presence", presence)):
        cell = {"lags": " ".join(map(str, lags)), "weights": weights}
        assert table_of(exp_ngrams.vectors(task, "train", cell)) == pytest.approx(wanted)
    collisions = len(grams) - len({place(gram) for gram in grams})
    expected = len(grams) - 2**bits * (1 - (1 - 2**-bits) ** len(grams))
    assert collisions <= expected + 4 * math.sqrt(expected) + 1


@pytest.mark.parametrize("name, text, cell, wanted", [
    ("image", [0, 31, 32, 255, 64, 128, 200, 7], {}, [0, 0, 1, 7, 2, 4, 6, 0]),
    ("scifar", [0, 32, 64, 255, 0, 0], {}, [0 + 1 * 8 + 2 * 64, 7]),
    ("listops", [1, 2, 3, 4, 5], {"start": "yes"}, [15, 1, 2, 3, 4]),
    ("text", [*b"/a 4/10:"], {"digits": "no"}, [*b"/a /:"]),
])  # fmt: skip
def test_grey_levels_colours_digits_and_the_start_symbol(name, text, cell, wanted):
    """And a text is cut before the start symbol stands in front."""
    task = task_of([text] * 8, [0, 1] * 4, name, max_length=4 if cell.get("start") else 8)
    assert exp_ngrams.symbols_of(torch.tensor(text, dtype=torch.uint8), task, cell).tolist() == wanted


def newton(x, label, classes, penalty, factor):
    """The same minimum by Newton's method in float64, all in one vector -> (loss, weights)."""
    outputs = 1 if classes == 2 else classes
    shape = x.shape[1] + 1, outputs

    def loss_of(flat):
        inner, bias = flat.view(shape)[:-1], flat.view(shape)[-1]
        scores = x @ (factor * inner) + bias
        if outputs == 1:
            scores = torch.cat([torch.zeros_like(scores), scores], 1)
        losses = torch.nn.functional.cross_entropy(scores, label, reduction="sum")
        return (losses + penalty / 2 * inner.square().sum()) / len(label)

    flat = torch.zeros(shape[0] * outputs, dtype=torch.float64)
    for _ in range(30):
        gradient = torch.func.grad(loss_of)(flat)
        # With a score for each class their common bias is free: lstsq leaves it alone.
        flat = flat - torch.linalg.lstsq(torch.func.hessian(loss_of)(flat), gradient, driver="gelsd").solution
    return float(loss_of(flat)), flat.view(shape)[:-1]


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("weighted", [True, False])
def test_the_optimum_is_newtons(sparse, classes, weighted, monkeypatch):
    """Loss to 1e-8, the gradient below the bound; from zeros and from another penalty."""
    monkeypatch.setattr(exp_ngrams, "BOUND", 1e-6)
    draw = torch.Generator().manual_seed(1)
    x = torch.rand(60, 5, generator=draw, dtype=torch.float64)
    x = x * (torch.rand(60, 5, generator=draw) < 0.6)
    label = torch.randint(classes, (60,), generator=draw)
    factor = torch.ones(5, 1, dtype=torch.float64)
    if weighted:
        factor = torch.randn(5, 1 if classes == 2 else classes, generator=draw, dtype=torch.float64)
    matrix, transpose = (x.to_sparse_csr(), x.T.to_sparse_csr()) if sparse else (x, x.T)
    loss, inner = newton(x, label, classes, 0.3, factor)
    begin = exp_ngrams.fit(matrix, transpose, label, classes, 5.0, factor)[-1]
    for start in (None, begin):
        weight, _, rows, _ = exp_ngrams.fit(matrix, transpose, label, classes, 0.3, factor, start)
        assert rows["loss"] == pytest.approx(loss, abs=1e-8) and rows["gradient"] < 1e-6
        torch.testing.assert_close(weight, factor * inner, atol=1e-4, rtol=0)


def test_pairs_are_the_differences_and_products_of_their_vectors():
    texts = random_texts(24, 5, (5, 12))
    cell = {"n": 1, "gap": 1, "weights": "counts"}
    singles = exp_ngrams.vectors(task_of(texts * 2, [0, 1] * 24), "train", cell)
    tokens, offsets = data.ragged([bytes(text) for text in texts])
    split = data.Split(tokens, offsets, torch.arange(12) % 2)
    task = data.Task("retrieval", **data.SHAPES["retrieval"], train=split, val=split, test=split,
                     source={"hash": "0"})  # fmt: skip
    x, found = torch.zeros(24, 256), torch.zeros(12, 512)
    for (i, column), value in table_of(singles).items():
        x[i, column] = value
    for (i, column), value in table_of(exp_ngrams.vectors(task, "train", cell)).items():
        found[i, column % 256 + 256 * (column >= 1 << 22)] = value
    torch.testing.assert_close(found, torch.cat([(x[::2] - x[1::2]).abs(), x[::2] * x[1::2]], 1))


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("classes", [2, 3])
def test_log_ratios_are_those_of_naive_bayes(sparse, classes):
    label = torch.tensor([0, 1, 1, 0, classes - 1])
    x = torch.tensor([[1.0, 1, 0], [1, 0, 0], [0, 1, 1], [0, 0, 1], [1, 0, 0]]) / 2
    found = exp_ngrams.log_ratios(x.T.to_sparse_csr() if sparse else x.T, label, classes)

    def share(chosen, j):
        had = [sum(1 for row, own in zip(x, label) if row[k] and own in chosen) for k in range(3)]
        had = [n + len(chosen) for n in had]
        return had[j] / sum(had)

    for j in range(3):
        for at, c in enumerate([1] if classes == 2 else range(classes)):
            ratio = math.log(share([c], j) / share([k for k in range(classes) if k != c], j))
            assert float(found[j, at]) == pytest.approx(ratio, abs=1e-6)


def test_a_planted_n_gram_is_found_by_those_that_reach_it():
    """Class 1 has 1 2 3 and 4 2 5, class 0 has 1 2 5 and 4 2 3: their pairs are the same. Or the label is
    whether two marks stand 10 or 14 apart, all of them at least n g from the ends."""

    def got(texts, **cell):
        return exp_ngrams.learn(task_of(texts, labels), cell | {"weights": "counts"})[0]["test_acc"]

    short, long = random_texts(400, 8, (30, 31)), random_texts(400, 8, (60, 61))
    labels, draw = [i % 2 for i in range(400)], torch.Generator()
    starts = torch.randint(2, 10, (400,), generator=draw.manual_seed(2)).tolist()
    marks = torch.randint(10, 35, (400,), generator=draw.manual_seed(3)).tolist()
    for text, marked, label, at, mark in zip(short, long, labels, starts, marks):
        text[at : at + 3] = [1, 2, 3 if label else 5]
        text[at + 12 : at + 15] = [4, 2, 5 if label else 3]
        marked[mark] = marked[mark + (14 if label else 10)] = 1
    assert got(short, n=3, gap=1) == got(short, lags="0 1 2") > 0.99 and got(short, n=2, gap=1) < 0.62
    assert got(long, n=2, gap=10) > 0.99 and got(long, n=3, gap=3) < 0.62


def test_smoke_runs_end_in_records_that_repeat(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    command = "--task", "listops", "retrieval", "--n", 2, "--smoke", "--start", "--weights", "bayes"
    for _ in range(2):
        assert exit_code(exp_ngrams.main, *command) == 0
    found = lines_of(tmp_path / "runs" / "results.jsonl")
    assert [r["row"] for r in found] == ["n=2, bayes, start"] * 4
    assert all(records.is_record(r) and r["gradient"] < 1e-3 for r in found)
    assert [found[0][k] for k in ("loss", "test_acc")] == [found[2][k] for k in ("loss", "test_acc")]
    capsys.readouterr()
    assert exit_code(exp_ngrams.main, *command[:2], *command[3:], "--top", 2) == 0
    assert "class 9:" in capsys.readouterr().out
    assert exit_code(exp_ngrams.main, "--task", "image", "--smoke", "--lags", "0 2000") == 2
    assert "spans 2,001 positions" in capsys.readouterr().err


def test_a_finished_cell_is_skipped_and_reported(tmp_path, monkeypatch, capsys):
    """The stand-in passes for the data, so that the run counts."""
    whole = data.load
    monkeypatch.setattr(data, "load", lambda *args, **how: whole(*args, **how | {"smoke": True}))
    monkeypatch.setattr(records, "RESULTS", tmp_path / "none")
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert exit_code(exp_ngrams.main, "--task", "text", "--n", 2, "--gap", 1, 2) == 0
    found = lines_of(tmp_path / "runs" / "results.jsonl")
    cells = [("n=2, presence", "paper"), ("n=2, gap 2, presence", "paper")]
    assert [(r["row"], r["tier"]) for r in found] == cells
    pytest.importorskip("matplotlib")
    assert exit_code(exp_ngrams.main, "--report", "--task", "text") == 0
    assert f"| n=2, gap 2, presence | {100 * found[1]['test_acc']:.2f} ±" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "runs").glob("*.png")} == {
        "ngrams-text.png",
        "ngrams-text-gap.png",
    }


def test_transformers_are_beaten_one_by_one():
    line = {"smoke": False, "tier": "paper"}
    text = exp_ngrams.worth(line | {"task": "text", "test_acc": 0.663})
    assert text == "ahead of 11 of 11 Transformers of LRA's table"
    assert "10 of 11" in exp_ngrams.worth(line | {"task": "image", "test_acc": 0.4311})
