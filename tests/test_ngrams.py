"""exp_ngrams.py: vectors against plain dicts, the optimum against Newton's. pytest tests/test_ngrams.py"""

import builtins
import json
import math
import re
import sys
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch
from conftest import ends_of, exit_code, lines_of
from test_figures import dots, record

import data
import exp_kernels
import exp_ngrams
import records
import tables

sparse = pytest.importorskip("scipy.sparse")
pytest.importorskip("sklearn")


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


def vectors_of(task, split, cell):
    """[{key of an n-gram: value}] of the documents of a split, and all keys."""
    made, known = exp_ngrams.counted(task, cell)
    x = exp_ngrams.vectors(*made[split], cell["weights"])
    rows = [x[i] for i in range(x.shape[0])]
    return [dict(zip(known[row.indices].tolist(), row.data.tolist())) for row in rows], known


def key_of(gram):
    """keys_of once more, modulo 2^64 in Python."""
    key = 0
    for symbol in gram:
        key = (key + symbol + 1) * 0x9E3779B97F4A7C15 % 2**64
        key = (key ^ key >> 32) * 0xBF58476D1CE4E5B9 % 2**64
    return key


def plain_vectors(found, kept):
    """[Counter of n-grams] -> {weights: [{key: value}]} of documents, of the n-grams in `kept`."""
    counts = [{g: math.sqrt(n / sum(had.values())) for g, n in had.items()} for had in found]
    presence = [{g: 1 / math.sqrt(len(had)) for g in had} for had in found]
    return {
        weights: [{key_of(g): value for g, value in row.items() if g in kept} for row in rows]
        for weights, rows in (("counts", counts), ("presence", presence))
    }


@pytest.mark.parametrize("lags", [[0], [0, 1], [0, 1, 2, 3, 4], [0, 3, 6], [0, 1, 32]])
@pytest.mark.parametrize("split", ["train", "test"])
def test_vectors_are_those_of_a_plain_dict(lags, split):
    """Cut at 40 symbols, some documents shorter than the n-gram. Lengths count n-grams training has not."""
    texts = random_texts(80, 6, (1, 60))
    task = task_of(texts, [i % 2 for i in range(80)], max_length=40)

    def grams(part):
        cut = [text[:40] for text in part]
        return [
            Counter(tuple(text[j + lag] for lag in lags) for j in range(len(text) - max(lags)))
            for text in cut
        ]

    kept = set().union(*grams(texts[:40]))
    wanted = plain_vectors(grams(texts[:40] if split == "train" else texts[60:]), kept)
    for weights in wanted:
        cell = {"lags": " ".join(map(str, lags)), "weights": weights}
        found, known = vectors_of(task, split, cell)
        assert found == [pytest.approx(row) for row in wanted[weights]]
        assert known.tolist() == sorted(map(key_of, kept))


def test_words_are_words_and_all_shorter_runs_of_them():
    """Against a plain dict of tuples of words; marks are words, cases and spaces do not count."""
    texts = [b"It's GOOD, good  fun!", b"no fun; caf\xc3\xa9", b"good"] * 8
    words = ["it's good , good fun !", "no fun ; caf\u00e9", "good"] * 8
    task = task_of([list(text) for text in texts], [0, 1] * 12)
    found, known = vectors_of(task, "train", {"unit": "word", "n": 2, "gap": 1, "weights": "counts"})
    runs = []
    for text in words[:12]:
        each = [exp_ngrams.number_of(word.encode()) for word in text.split()]
        runs.append(Counter([(word,) for word in each] + list(zip(each, each[1:]))))
    assert found == [pytest.approx(row) for row in plain_vectors(runs, set().union(*runs))["counts"]]
    assert len(known) == (5 + 5) + (3 + 3)  # new words and pairs of the first text and of the second


@pytest.mark.parametrize("name, text, cell, wanted", [
    ("image", [0, 31, 32, 255, 64, 128, 200, 7], {}, [0, 0, 1, 7, 2, 4, 6, 0]),
    ("scifar", [0, 32, 64, 255, 0, 0], {}, [0 + 1 * 8 + 2 * 64, 7]),
    ("listops", [1, 2, 3, 4, 5], {"start": "yes"}, [exp_ngrams.START, 1, 2, 3, 4]),
    ("text", [*b"/a 4/10:"], {"digits": "no"}, [*b"/a /:"]),
])  # fmt: skip
def test_grey_levels_colours_digits_and_the_start_symbol(name, text, cell, wanted):
    """And a text is cut before the start symbol stands in front."""
    task = task_of([text] * 8, [0, 1] * 4, name, max_length=4 if cell.get("start") else 8)
    assert exp_ngrams.symbols_of(np.array(text, np.uint8), task, cell).tolist() == wanted


def newton(x, label, classes, penalty):
    """The same minimum by Newton's method in float64 -> weights and, in the last row, biases (columns + 1,
    scores). Of two classes the bias is penalised."""
    outputs = 1 if classes == 2 else classes
    shape = x.shape[1] + 1, outputs

    def loss_of(flat):
        inner, bias = flat.view(shape)[:-1], flat.view(shape)[-1]
        scores = x @ inner + bias
        if outputs == 1:
            scores = torch.cat([torch.zeros_like(scores), scores], 1)
        losses = torch.nn.functional.cross_entropy(scores, label, reduction="sum")
        return losses + penalty / 2 * (flat if outputs == 1 else inner).square().sum()

    flat = torch.zeros(shape[0] * outputs, dtype=torch.float64)
    for _ in range(15):
        gradient = torch.func.grad(loss_of)(flat)
        # With a score for each class their common bias is free: lstsq leaves it alone.
        flat = flat - torch.linalg.lstsq(torch.func.hessian(loss_of)(flat), gradient, driver="gelsd").solution
    return flat.view(shape)


@pytest.mark.parametrize("columns", [5, 70])  # by the primal and the dual
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("weighted", [True, False])
def test_the_optimum_is_newtons_from_two_starts(columns, classes, weighted):
    """Weights and biases, from zeros and from another penalty; weighted, each class of three has a model."""
    draw = torch.Generator().manual_seed(1)
    x = torch.rand(60, columns, generator=draw, dtype=torch.float64)
    x = x * (torch.rand(60, columns, generator=draw) < 0.6)
    label, factors = torch.randint(classes, (60,), generator=draw), None
    if weighted:
        factors = torch.randn(1 if classes == 2 else classes, columns, generator=draw, dtype=torch.float64)
        sides = [label] if classes == 2 else [(label == c).long() for c in range(classes)]
        wanted = [newton(x * factor, side, 2, 0.3) for factor, side in zip(factors, sides)]
        wanted = [w * torch.cat([f, torch.ones(1)])[:, None] for w, f in zip(wanted, factors)]
        wanted, factors = torch.cat(wanted, 1).T.numpy(), factors.numpy()
    else:
        wanted = newton(x, label, classes, 0.3).T.numpy()
    matrix, ends = sparse.csr_matrix(x.numpy()), []
    for penalties in ([0.3], [5.0, 0.3]):
        *_, last = exp_ngrams.fits(matrix, label.numpy(), classes, factors, penalties)
        penalty, weight, bias, _, converged = last
        assert converged and penalty == 0.3
        np.testing.assert_allclose(weight, wanted[:, :-1], atol=2e-3)
        middle = bias.mean() if classes == 3 and not weighted else 0
        np.testing.assert_allclose(bias - middle, wanted[:, -1], atol=2e-3)
        ends.append(exp_ngrams.accuracy(matrix, label.numpy(), weight, bias))
    assert ends[0] == ends[1]


def test_a_fit_that_is_stopped_says_so(monkeypatch):
    monkeypatch.setattr(exp_ngrams, "MOST", 1)
    x = sparse.csr_matrix(np.random.default_rng(0).random((60, 5)))
    *_, steps, converged = next(exp_ngrams.fits(x, np.arange(60) % 3, 3, None))
    assert (steps, converged) == (1, False)


def test_pairs_are_the_differences_and_products_of_their_vectors():
    task = task_of(random_texts(48, 5, (5, 12)), [0, 1] * 24)
    made, known = exp_ngrams.counted(task, {"n": 1, "gap": 1, "weights": "counts"})
    x = exp_ngrams.vectors(*made["train"], "counts").toarray()
    found = exp_ngrams.vectors(*made["train"], "counts", docs=2).toarray()
    np.testing.assert_allclose(found, np.concatenate([abs(x[::2] - x[1::2]), x[::2] * x[1::2]], 1))


@pytest.mark.parametrize("classes", [2, 3])
def test_log_ratios_are_those_of_naive_bayes(classes):
    label = np.array([0, 1, 1, 0, classes - 1])
    x = np.array([[1.0, 1, 0], [1, 0, 0], [0, 1, 1], [0, 0, 1], [1, 0, 0]]) / 2
    found = exp_ngrams.log_ratios(sparse.csr_matrix(x), label, classes)

    def share(chosen, j):
        had = [sum(1 for row, own in zip(x, label) if row[k] and own in chosen) for k in range(3)]
        had = [n + len(chosen) for n in had]
        return had[j] / sum(had)

    for j in range(3):
        for at, c in enumerate([1] if classes == 2 else range(classes)):
            ratio = math.log(share([c], j) / share([k for k in range(classes) if k != c], j))
            assert found[at, j] == pytest.approx(ratio, abs=1e-6)


def test_a_planted_n_gram_is_found_by_those_that_reach_it():
    """Class 1 has 1 2 3 and 4 2 5, class 0 has 1 2 5 and 4 2 3: their pairs are the same. Or the label is
    whether two marks stand 10 or 14 apart, all of them at least n g from the ends."""

    def got(texts, **cell):
        task, cell = task_of(texts, labels), cell | {"weights": "counts"}
        return exp_ngrams.learn(task, cell, *exp_ngrams.counted(task, cell))[0]["test_acc"]

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
    assert all(records.is_record(r) and r["converged"] and r["cpu_seconds"] > 0 for r in found)
    assert [found[0][k] for k in ("tried", "test_acc")] == [found[2][k] for k in ("tried", "test_acc")]
    capsys.readouterr()
    assert exit_code(exp_ngrams.main, *command[:2], *command[3:], "--top", 2) == 0
    assert "class 9:" in capsys.readouterr().out
    words = ("--task", "text", "--unit", "word", "--n", 2, "--smoke", "--top", 3)
    assert exit_code(exp_ngrams.main, *words) == 0
    assert re.search(r"  [+-]\d\.\d\d  \w+", capsys.readouterr().out)
    assert exit_code(exp_ngrams.main, "--task", "image", "--smoke", "--lags", "0 2000") == 2
    assert "spans 2,001 positions" in capsys.readouterr().err
    assert exit_code(exp_ngrams.main, "--task", "listops", "--smoke", "--limit", 5) == 2
    assert "give a larger --limit" in capsys.readouterr().err


@pytest.fixture
def whole(tmp_path, monkeypatch):
    """Runs that count: the stand-in passes for the data. -> OUT"""
    load = data.load
    monkeypatch.setattr(data, "load", lambda *args, **how: load(*args, **how | {"smoke": True}))
    monkeypatch.setattr(records, "RESULTS", tmp_path / "none")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


def test_a_finished_cell_is_skipped_and_reported(whole, capsys):
    for _ in range(2):
        assert exit_code(exp_ngrams.main, "--task", "text", "--n", 2, "--gap", 1, 2) == 0
    found = lines_of(whole / "results.jsonl")
    cells = [("n=2, presence", "paper"), ("n=2, gap 2, presence", "paper")]
    assert [(r["row"], r["tier"]) for r in found] == cells
    pytest.importorskip("matplotlib")
    assert exit_code(exp_ngrams.main, "--report", "--task", "text") == 0
    printed = capsys.readouterr().out
    for row, r in zip(("n=2", "gap 1", "gap 2"), (found[0], *found)):
        assert re.search(rf"^\| {row} +\| {100 * r['test_acc']:.2f} +\|", printed, re.MULTILINE)
    assert {path.name for path in whole.glob("*.png")} == {"ngrams-text.png", "ngrams-text-gap.png"}


def test_max_length_is_in_the_cell_at_full_size_and_refused_at_the_mini_tier(whole, capsys):
    """The task is cut there. 4,096 is its own length."""
    flags = "--task", "text", "--n", 1, "--max-length", 8, 4096
    assert exit_code(exp_ngrams.main, *flags) == 0
    short, full = lines_of(whole / "results.jsonl")
    assert (short["cell"]["max_length"], short["tier"], short["row"]) == (
        8,
        "paper",
        "n=1, presence, 8 bytes",
    )
    assert "max_length" not in full["cell"] and full["tier"] == "paper"
    assert short["test_acc"] != full["test_acc"]  # a document of the stand-in is longer than 8
    capsys.readouterr()
    for more, words in (
        (("--mini",), "leave --max-length out"),
        (("--unit", "word", "--task", "image"), "text"),
    ):
        assert exit_code(exp_ngrams.main, *flags, *more) == 2
        said = capsys.readouterr().err
        assert words in said and said.count("\n") == 1


def test_the_report_of_the_mini_tier_has_its_runs_alone(whole, capsys):
    pytest.importorskip("matplotlib")
    for tier in ([], ["--mini"]):
        assert exit_code(exp_ngrams.main, "--task", "text", "--n", 1, "--weights", "counts", *tier) == 0
    full, mini = lines_of(whole / "results.jsonl")
    mini["test_acc"] = 0.625
    (whole / "results.jsonl").write_text("".join(json.dumps(r) + "\n" for r in (full, mini)))
    capsys.readouterr()
    assert exit_code(exp_ngrams.main, "--report", "--mini") == 0
    printed = capsys.readouterr().out
    assert printed.count("| n=1 | 62.50  | ") == 1 and "Transformer" not in printed
    assert "- Text: n=1, counts has 62.5; nothing published is comparable." in " ".join(printed.split())
    assert max(map(len, printed.splitlines())) <= 80
    assert (whole / "ngrams-mini.png").exists()


def test_the_linear_model_stands_beside_what_is_best_on_other_tasks(capsys):
    """At the mini tier in place of what validates best on Text, and of nothing else."""
    line = {"smoke": False, "tier": "mini", "test_acc": 0.5, "row": "n=5", "cell": {"n": 5}, "task": "text"}
    usual = line | {"row": "n=6", "cell": {"n": 6}}
    words = line | {"row": "words", "cell": {"n": 1, "unit": "word"}}
    exp_ngrams.print_best([line, words, line | {"task": "scifar", "row": "n=1"}], [usual])
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.startswith("Text: n=6 has 50.0; ") and 'is called "no network". The best' in printed
    assert "Text: words has" in printed and ": n=1 has" in printed and "n=5" not in printed


def test_without_scikit_learn_a_command_ends_in_one_sentence(tmp_path, monkeypatch, capsys):
    """And the report, which needs none, works."""
    whole = builtins.__import__

    def without(name, *rest, **how):
        if name.split(".")[0] in ("sklearn", "scipy"):
            raise ImportError(name)
        return whole(name, *rest, **how)

    monkeypatch.setattr(builtins, "__import__", without)
    for name in [name for name in sys.modules if name.split(".")[0] == "sklearn"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(records, "RESULTS", tmp_path)
    assert exit_code(exp_ngrams.main, "--task", "text", "--smoke") == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "needs scikit-learn: pip install scikit-learn" in said
    assert exit_code(exp_ngrams.main, "--report") == 0


def test_figures_draw_tests_against_n_and_the_gap(tmp_path, monkeypatch):
    """Of plain cells alone: not of cut texts, words or runs without digits."""
    pytest.importorskip("matplotlib")
    figures, rows = [], {"chance": 0.5, "features": 1, "cpu_seconds": 1.0}
    monkeypatch.setattr(records, "RESULTS", tmp_path / "none")
    monkeypatch.setattr(tables, "save_figure", lambda figure, path: figures.append(figure))
    cells = [
        (1, 1, "presence", 0.6),
        (2, 1, "presence", 0.7),
        (2, 1, "counts", 0.8),
        (2, 4, "presence", 0.65),
    ]
    lines = [
        record("ngrams", "text", "linear", {"n": n, "gap": gap, "weights": weights}, acc, **rows)
        for n, gap, weights, acc in cells
    ]
    for more in ({"max_length": 256}, {"unit": "word"}, {"digits": "no"}):
        cell = {"n": 3, "gap": 1, "weights": "counts"} | more
        lines.append(record("ngrams", "text", "linear", cell, 0.9, **rows))
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    exp_ngrams.main(["--report", "--out", str(tmp_path)])
    (lengths,), (gaps,) = (figure.axes for figure in figures)
    shown = {name: [point[:2] for point in points] for name, points in dots(lengths).items()}
    assert shown == {"which occur": [(1, 60), (2, 70)], "how often": [(2.06, 80)]}  # aside
    known = {line.get_label(): line.get_ydata()[0] for line in lengths.lines}
    assert known["chance"] == 50 and 86.82 in known.values()
    assert {text.get_text(): text.xy[1] for text in lengths.texts}["S4 (Gu et al.): 86.82"] == 86.82
    heights = [text.get_position()[1] for text in lengths.texts]
    bottom, top = lengths.get_ylim()
    assert min(a - b for a, b in pairwise(heights)) > 0.04 * (top - bottom)  # names can be read
    (band,) = [patch for patch in lengths.patches if "Transformers" in patch.get_label()]
    assert ends_of(band) == pytest.approx([52.98, 65.9])
    shown = {name: [point[:2] for point in points] for name, points in dots(gaps).items()}
    assert shown == {"2 symbols, g apart": [(1, 70), (4, 65)]}
    assert [line.get_ydata()[0] for line in gaps.lines if line.get_label() == "one symbol alone"] == [60]


def test_the_table_has_a_column_for_weights_and_one_for_an_n_where_another_thing_is_varied():
    plain = {"n": 2, "gap": 1, "weights": "counts"}
    for more, wide, place in (
        ({}, True, ("n=2", "counts")),
        ({"start": "yes"}, True, ("n=2", "counts, start")),
        ({"unit": "word"}, True, ("n=2", "counts")),
        ({"gap": 16}, False, ("gap 16", "n=2, counts")),
        ({"max_length": 1000}, False, ("1,000 bytes", "n=2, counts")),
        ({"lags": "0 1 32"}, True, ("lags 0 1 32", "counts")),
    ):
        assert exp_ngrams.place_of(plain | more, wide) == place


def test_the_table_says_how_many_features_there_are_where_all_columns_have_as_many(capsys):
    r = {
        "task": "listops",
        "changes": {},
        "data": {"counts": {"test": 2_000}},
        "chance": 0.2,
        "cpu_seconds": 3,
    }
    r |= {"test_acc": 0.5, "model": "linear", "tier": "paper"}
    for start, shown in ((15, True), (16, False)):
        group = [
            r | {"cell": cell, "row": exp_ngrams.label_of(cell), "features": features}
            for more, features in (({}, 15), ({"start": "yes"}, start))
            for cell in [{"n": 1, "gap": 1, "weights": "counts"} | more]
        ]
        exp_ngrams.print_task(group)
        assert ("| features |" in capsys.readouterr().out) == shown


def test_as_s4_is_that_of_its_table():
    known = dict(zip(exp_kernels.COLUMNS, exp_kernels.TABLE3["S4"]))
    assert exp_ngrams.LATER["A's S4"] == tuple(known[task] for task in exp_ngrams.COLUMNS)


def test_transformers_are_beaten_one_by_one():
    """And what lies within two standard errors, here 0.4 points, is level."""
    line = {"smoke": False, "tier": "paper", "model": "linear", "data": {"counts": {"test": 25_000}}}
    line |= {"chance": 0.1}
    text = exp_ngrams.worth(line | {"task": "text", "test_acc": 0.886})
    known = exp_ngrams.leads(line | {"task": "text", "test_acc": 0.886})
    assert known == ["88.6", "+22.7", "-0.4≈", "+1.8", "-2.4", "-1.8", "-2.4"]
    known = exp_ngrams.leads(line | {"task": "pathfinder", "test_acc": 0.505, "chance": 0.5})
    assert known[0] == "50.5¹"
    first, second, third = text.split("; ")
    assert (
        first == "ahead of 11 of 11 Transformers of LRA's table (best Linear Transformer, 65.90), S4 (86.82)"
    )
    assert second == "level with A's K = 5 (88.96)"
    assert third.startswith("behind A's S4 (91.01), MEGA (90.43)")
    text = exp_ngrams.worth(
        line | {"task": "image", "test_acc": 0.4311}
    )  # ± 0.89: 42.77, 42.44, 42.34; 44.24
    best = "best Sparse Transformer, 44.24"
    assert text.startswith(f"ahead of 7 of 11 Transformers of LRA's table ({best}); level with 3 of 11; ")
    assert "; behind 1 of 11, A's K = 5 (46.63)" in text
    text = exp_ngrams.worth(line | {"task": "pathfinder", "test_acc": 0.505, "chance": 0.5})  # ± 0.63
    chance, theirs = text.split("; ")
    assert chance == "level with always the same answer (50.0)"
    assert theirs == "behind 11 of 11 Transformers of LRA's table (best Performer, 77.05)"
