"""Numbers that docs/ prints against the records in results/. (docs/claims.md is written from them.)

pytest tests/test_pages.py
"""

import functools
import re
from pathlib import Path

import pytest

import claims
import records
from claims import BAG, PLAIN, ROTARY, dial, gain, kernels, multitask, orders, spt

ROOT = Path(__file__).parent.parent
judged = functools.cache(lambda: claims.read(None))

# ------------------------------------------------------------------------------------------ accuracies


def at(exp, task, *labels):
    return [(exp, task, label) for label in labels]


def table1(kernel, text):
    return [*at("locality", "image", kernel), *at("locality", "listops", kernel), *text]


def dialled(home, row, task="text"):
    """A row of the dial, neighbours from side by side to anywhere."""
    start = f"{row}{PLAIN}" + (", s=1" if home == "range" else "")
    far = [f"{row}{PLAIN}, s={s}" for s in (64, 16, 4, "random")]
    return at(home, task, start) + at("range", task, *far)


def treated(model, task, terms="", objective="masked SPT"):
    """From scratch, and after self-pretraining."""
    share = ", 75% SPT" if terms else ""
    return at("spt", task, f"{model}, from scratch{terms}", f"{model}, {objective}{share}{terms}")


def one_way(model):
    """From scratch in one direction, and after causal self-pretraining."""
    return at("spt", "text", f"{model}, from scratch, one-way", f"{model}, causal SPT")


def moved(model, objective, s):
    """From scratch, and after self-pretraining, in another order of the positions."""
    return at("spt", "text", f"{model}, from scratch, s={s}", f"{model}, {objective}, s={s}")


def against_s4(model, *where):
    return treated(model, *where) + treated("S4", *where)


def started(model):
    """Structured, then random start: from scratch, and after self-pretraining."""
    halves = [f"{model}, {half}{start}" for start in ("", START) for half in ("from scratch", "masked SPT")]
    return at("spt", "image", *halves)


def both_starts(model, terms):
    """After a longer self-pretraining, from the structured and from the random start."""
    return at("spt", "image", f"{model}, masked SPT{terms}", f"{model}, masked SPT{START}{terms}")


def shuffled(terms):
    return at("multitask", "listops", "Transformer" + PLAIN + terms, "Transformer" + terms)


def techniques(row):
    return at("multitask", "text", row, row + PLAIN)


def decayed(row):
    return [cell for task in ("image", "listops", "text") for cell in at("kernels", task, row)]


def positions(row, listops):
    return [listops, *at("positional", "image", row)]


LATER = ("", "; 12 epochs")
START = ", random start"
LONG, LONGEST = ", 75% SPT; 8 epochs", ", 90% SPT; 20 epochs"
LABELS = at("spt", "text", ROTARY + ", masked SPT", ROTARY + ", multitask; 4 of 8 epochs")
BOTH = at("spt", "text", ROTARY + ", multitask")
# {page: {first column: the cells of the accuracies in this row, in their order}}
SHOWN = {
    "results": {
        "K = 5": table1("K=5", at("locality", "text", "K=5", "K=5; 30 epochs", "K=5" + PLAIN)),
        "K = 11": table1("K=11", []),
        "K = 31": table1("K=31", at("locality", "text", "K=31", "K=31; 30 epochs", "K=31" + PLAIN)),
        "Transformer": techniques("Transformer"),
        "MEGA (Ma et al.)": techniques("MEGA"),
        "paper A's MEGA block": techniques("paper A's MEGA"),
        "3,000, 6,000 steps": shuffled("; 3,000 examples, 6,000 steps"),
        "12,000, 15,000 steps (40 epochs)": shuffled("; 12,000 examples, 40 epochs"),
        "48,000, 9,000 steps (6 epochs)": shuffled(""),
        "48,000, 60,000 steps (40 epochs)": shuffled("; 40 epochs"),
        "192,000, 6,000 steps, none seen twice": shuffled("; 192,000 examples, 6,000 steps"),
        "gMLP (free kernels)": at("kernels", "image", *("gMLP" + t for t in LATER))
        + at("kernels", "text", "gMLP"),
        "S4": at("kernels", "image", *("S4" + t for t in LATER)) + at("kernels", "text", "S4"),
        "S5": at("kernels", "image", *("S5" + t for t in LATER)),
        "LRU": at("kernels", "image", "LRU"),
        "S4D": at("kernels", "image", "S4D"),
        "SGConv": at("kernels", "image", "SGConv") + at("kernels", "text", "SGConv"),
        "free taps in S4's block": at("kernels", "image", *("free taps in S4's block" + t for t in LATER)),
        "`decay-none`": decayed("decay-none"),
        "`decay-fixed`": decayed("decay-fixed"),
        "`decay-selective`": decayed("decay-selective"),
        "Mamba-2's block": decayed("Mamba-2's block"),
        "rotary": positions("rotary", ("multitask", "listops", "Transformer")),
        "sinusoidal": positions("sinusoidal", ("positional", "listops", "sinusoidal")),
        "learned": positions("learned", ("positional", "listops", "learned")),
    },
    "self-pretraining": {
        "Text, sinusoidal (B's Table 1), masked, 8, 4": against_s4("Transformer", "text"),
        "Text, rotary (B's Table 2, and A's), masked, 8, 4": treated(ROTARY, "text") + treated("S4", "text"),
        "Text, rotary, masked, 16, 12": against_s4(ROTARY, "text", "; 16 epochs"),
        "Text, rotary, causal, 8, 4": against_s4(ROTARY, "text", "", "causal SPT"),
        "Text, rotary, causal, 8, 4, one-way": one_way(ROTARY) + one_way("S4"),
        "Image, sinusoidal, masked, 4, 2": against_s4("Transformer", "image"),
        "masked SPT, equal steps": at("spt", "text", ROTARY + ", masked SPT") + BOTH,
        "causal SPT, equal steps": at("spt", "text", ROTARY + ", causal SPT") + BOTH,
        "masked SPT, equal epochs of labels, half of the steps": LABELS,
        "S4, 4, 2": started("S4"),
        "S4, 8, 6": both_starts("S4", LONG),
        "S4, 20, 18": both_starts("S4", LONGEST),
        "DLR, 4, 2": started("DLR"),
        "DLR, 20, 18": both_starts("DLR", LONGEST),
        "1 apart": treated(ROTARY, "text", objective="causal SPT") + treated("S4", "text"),
        "16 apart": moved(ROTARY, "causal SPT", 16) + moved("S4", "masked SPT", 16),
        "anywhere": moved(ROTARY, "causal SPT", "random"),
        "450 (1 %)": at("spt", "image", "S4, from scratch, 1%", "S4, masked SPT, 1%"),
        "4,500 (10 %)": at("spt", "image", "S4, from scratch, 10%", "S4, masked SPT, 10%"),
        "45,000": treated("S4", "image"),
    },
    "dial": {
        "K = 5": dialled("locality", "K=5"),
        "K = 31": dialled("locality", "K=31"),
        "S4": dialled("kernels", "S4"),
        "gMLP (free kernels over the whole input)": dialled("kernels", "gMLP"),
        "Transformer": dialled("multitask", "Transformer"),
        "bag of symbols": dialled("range", BAG),
        **{
            f"Image: {row.split(' (')[0].replace('=', ' = ')}": dialled("range", row, "image")
            for row in ("K=5", "K=31", "S4", "gMLP", "Transformer", BAG)
        },
    },
}


def rows(page):
    """(first column, the accuracies that stand alone in a cell) of every row of a table that has some. From
    the dial's second table on, the first column is led by "Image: "."""
    image = ""
    for line in (ROOT / "docs" / f"{page}.md").read_text("utf-8").splitlines():
        first, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        accuracies = [cell for cell in cells if re.fullmatch(r"\d\d\.\d", cell)]
        if first.startswith("Image, no techniques"):
            image = "Image: "
        if line.startswith("|") and accuracies:
            yield image + first, accuracies


@pytest.mark.parametrize("page", SHOWN)
def test_tables_show_the_accuracies_of_the_records(page):
    cells, pool = judged()
    for first, accuracies in rows(page):
        means = [
            100 * records.mean_and_error(cells[cell], pool[cell[1]][0])[0] for cell in SHOWN[page][first]
        ]
        assert accuracies == [f"{mean:.1f}" for mean in means], (page, first)
    assert {first for first, _ in rows(page)} == {*SHOWN[page]}


def test_the_table_of_n_grams_on_text_is_that_of_the_records():
    lines = (ROOT / "docs" / "ngrams.md").read_text("utf-8").splitlines()
    found = records.newest(sorted(records.RESULTS.glob("*.jsonl")))
    found = {r["row"]: r for r in found if r["exp"] == "ngrams" and r["task"] == "text"}
    for words in ("presence", "counts", "bayes", "bayes, no digits"):
        (line,) = (
            line for line in lines if re.match(rf"\| {words} +\| \d\d", line) and line.count("|") == 10
        )
        _, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        runs = [found.get(f"n={n}, {words}") for n in range(1, 9)]
        assert cells == [f"{100 * r['test_acc']:.1f}" if r else "—" for r in runs], words


# ------------------------------------------------------------------------------------------ differences

K5_PLAIN, GMLP_PLAIN = *at("locality", "text", "K=5" + PLAIN), *at("kernels", "text", "gMLP" + PLAIN)
# What docs/claims.md does not list: {page: {the difference and its error: signed cells}}.
OTHERS = {
    "results": {
        "1.7 ± 0.8": multitask("text", "MEGA", "MEGA" + PLAIN),
        "-1.1 ± 1.3": multitask("text", "paper A's MEGA", "paper A's MEGA" + PLAIN),
        "12.3 ± 0.9": kernels("listops", "decay-fixed", "decay-none"),
        "3.6 ± 1.1": kernels("listops", "decay-selective", "decay-fixed"),
        "1.1 ± 1.0": kernels("text", "decay-fixed", "decay-none"),
        "1.1 ± 1.4": kernels("text", "decay-selective", "decay-fixed"),
        "5.5 ± 0.6": kernels("image", "Mamba-2's block", "decay-selective"),
        "2.5 ± 1.0": kernels("listops", "Mamba-2's block", "decay-selective"),
        "10.4 ± 1.2": kernels("text", "Mamba-2's block", "decay-selective"),
    },
    "self-pretraining": {
        "13.5 ± 1.0": gain("text", ROTARY, "causal SPT"),
        "7.6 ± 0.8": gain("text", "S4", "causal SPT"),
        "1.0 ± 1.0": spt("text", f"{ROTARY}, from scratch, one-way", f"{ROTARY}, from scratch"),
        "1.1 ± 0.8": spt("text", "S4, from scratch, one-way", "S4, from scratch"),
        "10.4 ± 1.7": gain("text", ROTARY),
        "7.5 ± 0.8": gain("text", "S4"),
        "-1.6 ± 0.6": gain("image", "S4"),
        "0.4 ± 0.6": gain("image", "S4", terms=", 1%"),
        "-1.6 ± 0.9": gain("image", "S4", terms=", 10%"),
    },
    "dial": {
        "6.8 ± 0.8": dial("kernels", "text", "S4", 16),
        "5.4 ± 0.9": ((1, *K5_PLAIN), (-1, *GMLP_PLAIN)),
        "9.3 ± 0.8": orders("text", f"gMLP{PLAIN}, s=16", f"K=5{PLAIN}, s=16"),
        "1.1 ± 0.7": dial("range", "image", "gMLP", 16),
        "4.6 ± 0.8": dial("range", "image", "K=31", 16),
        "5.5 ± 0.8": dial("range", "image", "S4", 16),
        "7.4 ± 0.8": dial("range", "image", "Transformer", 16),
        "5.5 ± 0.7": orders("image", f"gMLP{PLAIN}, s=random", f"gMLP{PLAIN}, s=random-rotated"),
        "3.1 ± 0.7": orders("image", f"K=5{PLAIN}, s=random-rotated", f"{BAG}{PLAIN}, s=random"),
        "4.5 ± 0.7": orders("image", f"K=31{PLAIN}, s=random-rotated", f"{BAG}{PLAIN}, s=random"),
        "4.9 ± 0.7": orders("image", f"S4{PLAIN}, s=random-rotated", f"{BAG}{PLAIN}, s=random"),
    },
}


def numbers(text):
    return {*re.findall(r"\d+\.\d ± \d+\.\d", text)}


@pytest.mark.parametrize("page", OTHERS)
def test_differences_are_those_of_the_records(page):
    for printed, cells in OTHERS[page].items():
        points, error, _ = claims.difference(cells, *judged())
        assert printed == f"{points:.1f} ± {error:.1f}", page
    of_claims, shown = (
        numbers((ROOT / "docs" / f"{name}.md").read_text("utf-8")) for name in ("claims", page)
    )
    assert shown <= of_claims | numbers(" ".join(OTHERS[page]))
