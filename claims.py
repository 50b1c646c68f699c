"""What do small runs say about the papers? The rows of claims.tsv, judged by one rule from the mini tier.

    python claims.py              judges the records in results/: what is the mini tier worth?
    python claims.py --rows       the rows that test the papers' sentences: did it come as said?
    python claims.py --rows all   all rows, of our own sentences, too
    python claims.py --out DIR    judges those in DIR instead, and draws DIR/claims-mini.png
    python claims.py --write      writes docs/claims.md, docs/results.md and the figures

docs/claims.md says the rule, rule.py follows it.
"""

import argparse
import contextlib
import io
import itertools
import math
import os
import re
import shutil
import tempfile
import textwrap
from pathlib import Path

import common
import data
import exp_kernels
import exp_listops
import exp_locality
import exp_multitask
import exp_ngrams
import exp_patches
import exp_positional
import exp_range
import exp_spt
import floors
import records
import rule
import tables
from machine import UserError
from records import AS_THERE, BAG, FAR, FEW, GAP, OPPOSITE, SAME, SEEDS

ROOT = Path(__file__).parent
FIGURES = ROOT / "results" / "figures"
SCRIPTS = exp_locality, exp_multitask, exp_kernels, exp_positional, exp_spt  # in the order of results.md
SCRIPTS += (exp_range,)
RULES = exp_ngrams, exp_patches, exp_listops
EXPLAINED = {*SCRIPTS, *RULES} - {exp_locality, exp_positional}  # what stands above their tables
PAPERS = "A", "B"
ANSWERS = "yes", "better", "no", "open"
HEADS = "Without a network", "Networks, full size and reduced budgets", "The mini tier"

# ------------------------------------------------------------------------------------------ all pairs


def all_pairs(printed, mini):
    """A rule.Row for any two cells of one script and task that the papers print and that have SEEDS seeds by
    the table's own recipe here; the paper's better one comes first. Of Table 4 what Table 2 has not. printed:
    see rule.printed_cells."""
    found = {}
    for exp, table in printed.items():
        ran = [key for key in table if len(mini.cells.get(key, ())) == SEEDS]
        for pair in itertools.combinations(ran, 2):
            one, other = sorted(pair, key=lambda key: -table[key][1])
            if one.task == other.task:
                shorten = exp_spt.by_positions if exp == "spt" else exp_spt.in_short
                names = (shorten(table[key][0]) for key in (one, other))
                names = (re.sub(", (no techniques|scratch|\\w+ SPT)$", r" (\1)", name) for name in names)
                words = f"{data.TITLES[one.task]}: {' over '.join(names)}"
                gap = round(table[one][1] - table[other][1], 2)
                row = rule.Row(exp, "", words, gap, "", ((1, one), (-1, other)))
                found.setdefault(frozenset(pair), row)
    return [*found.values()]


LARGE = 5.0  # points: from this on our own gap mostly has the paper's sign


def apart(pairs):
    """Those of judged pairs whose gap in the paper exceeds GAP."""
    return [pair for pair in pairs if pair.row.expected > GAP]


def by_size(pairs):
    """(those of judged pairs whose gap in the paper is above FAR, between GAP and FAR, at most GAP)"""
    far = [pair for pair in pairs if pair.row.expected > FAR]
    near = [pair for pair in apart(pairs) if pair.row.expected <= FAR]
    return far, near, [pair for pair in pairs if pair.row.expected <= GAP]


def count_table(pairs):
    """What the mini tier is worth, as a table: how many of the pairs, Judged, have which answer."""
    sizes = f"above {FAR:g} points", f"{GAP:g} to {FAR:g} points", f"at most {GAP:g} points"
    lines = []
    for name, part in zip(sizes, by_size(pairs)):
        answers = [pair.answer for pair in part]
        lines.append([name, len(part), *map(answers.count, AS_THERE)])
    return tables.markdown(["gap in the paper", "pairs", "as in the paper", "not", "open"], lines)


def count(pairs, width):
    """The table of counts between the sentences that it needs; lines of at most `width`."""
    arms = {key for pair in pairs for _, key in pair.row.cells}
    alike = [pair for pair in by_size(pairs)[0] if pair.reading == SAME]
    bags = sum(bool(pair.marks["bag"]) for pair in alike)
    shares = [100 * pair.numbers[0] / pair.row.expected for pair in alike]
    large = [pair for pair in pairs if abs(pair.numbers[0]) >= LARGE]
    signs = [pair.reading for pair in apart(large)]
    size = ""
    if shares:
        ends = tables.least_to_most(shares, "{:.0f}".format)
        size = f"; the gaps of these {len(alike)} are {ends} % as large as the paper's"
    before = (
        "Two rows of one table of a paper: is their gap here as there? All pairs that have "
        f"{SEEDS} seeds each, trained by their table's recipe (longer trainings do not count)."
    )
    kinds = [
        f"as in the paper: the same sign; in the last row: within ±{GAP:g}",
        f"not: the other sign, or no gap; in the last row: beyond ±{GAP:g}",
        f"open: the interval does not tell, or both are at the bag: at most {GAP:g} points above a bag of "
        "symbols, which sees no order",
    ]
    after = (
        f"The {len(pairs)} pairs are made of {len(arms)} rows, so they are not independent. Of the "
        f"{len(alike)} above {FAR:g} points with the same sign, {bags} have one model at the bag{size}. "
        f"Of the {len(large)} gaps of at least {LARGE:g} points here, {signs.count(SAME)} have the "
        f"paper's sign and {signs.count(OPPOSITE)} the other; for {len(large) - len(signs)} the paper has at "
        f"most {GAP:g} points. Which row of A's Table 4 is learned, and which has no techniques, is our "
        "reading: it is scrambled in our copy. Here gaps are compared with the papers' numbers. By "
        'their sentences (--rows) a larger gap can be better: A says that gMLP "even outperforms" S4.'
    )
    turned = [f"{pair.row.words}: {in_numbers(pair)} (paper: {tables.gap_in_words(pair.row.expected)})"
              for pair in pairs if pair.answer == "no"]  # fmt: skip
    parts = [textwrap.fill(before, width), count_table(pairs), tables.bullets(kinds, width)]
    parts += [f"Those that are not:\n\n{tables.bullets(turned, width)}"] * bool(turned)
    return "\n\n".join([*parts, textwrap.fill(after, width)])


def tally(judged, width):
    """Who expected what, and how often it came, of rows that are read: sentences, and a table of the sums of
    each and of each of their sentences."""

    def counts(name, group):
        answers = [one.answer for one in group]
        return [name, *map(answers.count, ANSWERS)]

    expecting = [one for one in judged if one.reading not in ("", FEW, records.NOT_RUN)]
    # Rival guesses exclude each other, so that a sum of them says nothing.
    said, lines, summed = [], [], [one for one in expecting if one.row.heading.who != "rivals"]
    for who, group in records.grouped(summed, lambda one: one.row.heading.who).items():
        sentences = records.grouped(group, lambda one: one.row.heading.short)
        part = [counts(f"{rule.SAYS[who]}, all", group)]
        if len(sentences) > 1:
            part += [counts(f"  {words}", found) for words, found in sentences.items()]
        lines += part
        if who in PAPERS:
            _, yes, better, no, still = part[0]
            came = f"{yes + better} came as said or better, {no} did not, {still} are open"
            said.append(f"Of paper {who}'s {len(group)} rows {came}.")
    better = [one.row.words for one in expecting if one.answer == "better"]
    read = sum(one.reading != BAG for one in summed)
    kinds = [f"better: the gap supports the sentence even more ({'; '.join(better)})"]
    after = (
        "The numbers count rows, but not rows that were not run or have too few seeds. Of intervals of 95 % "
        f"one in twenty misses: of the {read} whose models are not both at the bag, about {read / 20:.0f}. "
        "Nothing is corrected for that. Many rows share runs."
    )
    if either := [one.row.words for one in summed if suits_anyhow(one)]:
        after += f" {len(either)} open rows can only be yes or better ({'; '.join(either)})."
    if summed != expecting:
        after += " Rival guesses of ours exclude each other, and are not counted."
    table = tables.markdown(["did it come as said?", *ANSWERS], lines)
    before, after = (textwrap.fill(words, width) for words in (" ".join(said), after))
    return "\n\n".join([before, table, tables.bullets(kinds, width), after])


def suits_anyhow(judged):
    """Whether a row is open between yes and better alone."""
    _, _, low, high = judged.numbers
    worst = {"+": low, "-": -high}.get(judged.row.heading.side, -math.inf)
    level = judged.row.expected is not None and abs(judged.row.expected) <= GAP
    return judged.answer == "open" and level and worst >= -GAP


def in_numbers(judged):
    """ "+4.9° [3.4, 6.5]": the points of a row, whether one of its models is at the bag, the interval."""
    points, _, low, high = judged.numbers
    return f"{tables.signed(points)}{'°' * bool(judged.marks['bag'])} {tables.ends(low, high)}"


LEGEND = {  # {script: how the figure calls its table; its colour}
    "locality": ("A, Table 1: kernel sizes", tables.ORANGE),
    "multitask": ("A, Table 2: techniques", tables.GREEN),
    "kernels": ("A, Table 3: long kernels", "#CC79A7"),
    "positional": ("A, Table 4: positions", tables.BLUE),
    "spt": ("B, all tables", "0.35"),
}


def plot(pairs, path):
    """The paper's gap against ours, a dot a pair; what has the opposite sign has its name. The paper's gap is
    positive, so of four quadrants there are two."""
    figure, axis = tables.pyplot().subplots(figsize=(9.2, 5.4), layout="constrained")
    end = 1.06 * max(pair.row.expected for pair in pairs)
    low, high = min(pair.numbers[2] for pair in pairs) - 2, max(pair.numbers[3] for pair in pairs) + 2
    for ends, color in (((0, high), tables.GREEN), ((low, 0), tables.ORANGE)):
        axis.axhspan(*ends, color=color, alpha=0.07, linewidth=0)
    axis.axhline(0, color="black", linewidth=0.8)
    axis.plot([0, end], [0, end], color="0.5", linewidth=0.8, linestyle="--", label="the same gap")
    place = dict(xycoords=("axes fraction", "data"), ha="right", va="center", color="0.35")
    axis.annotate("the same sign", (0.985, 1), **place)
    axis.annotate("the opposite sign", (0.985, -1), **place)
    for table, color in (LEGEND[pair.row.heading] for pair in pairs):
        axis.plot([], [], "o", color=color, label=table)
    axis.plot([], [], "o", color="0.5", markerfacecolor="white", label="open, or both at the bag")
    axis.plot([], [], "^", color="0.5", label="one or both at the bag: no order learnt (°)")
    for pair in pairs:
        (points, _, *ends), color = pair.numbers, LEGEND[pair.row.heading][1]
        at, face = pair.row.expected, "white" if pair.answer == "open" else color
        reach = [[abs(x - points)] for x in ends]
        look = "^" if pair.marks["bag"] else "o"
        axis.errorbar(at, points, reach, fmt=look, color=color, markerfacecolor=face, elinewidth=1)
    places, step = [], (high - low) / 26  # the height of a line of text
    for pair in sorted(pairs, key=lambda pair: pair.numbers[0]):
        if pair.reading == OPPOSITE:
            at, y = pair.row.expected, pair.numbers[0]
            near = [other for x, other in places if abs(x - at) < end / 3 and y - other < step]
            y = max([y, *(other + step for other in near)])  # above names that it would cover
            beside = [p.numbers for p in pairs if at < p.row.expected < at + end / 5]
            y -= step * any(low < y < high for *_, low, high in beside)  # and below a bar that it would cross
            places.append((at, y))
            axis.annotate(
                pair.row.words, (at, y), (7, 0), textcoords="offset points", fontsize=8, va="center"
            )
    axis.set(xlim=(0, end), ylim=(low, high), xlabel="the paper's gap, at full size (points)")
    axis.set_ylabel("the same gap here, mini (points; 95 % interval)")
    axis.set_title(
        "Pairs of rows that are over 2 points apart in a paper: how far apart are they here?",
        fontsize=10,
    )
    tables.legend_below(figure, [axis])
    tables.save_figure(figure, path)


# ------------------------------------------------------------------------------------------ as text

HEADER = ["what", "expected", "here ± s.e.", "95 %", "reading", "marks"]


def fields_of(judged):
    """A row as the fields of HEADER."""
    expected, here, interval = judged.row.expected, "—", ""
    if judged.seeds:
        points, error, low, high = judged.numbers
        few = f" (n = {judged.seeds})" if judged.seeds < SEEDS else ""
        here = f"{tables.signed(points)} ± {error:.1f}{few}"
        interval = f"{tables.signed(low)} to {tables.signed(high)}"
    directions = {None: "", math.inf: "> 0", -math.inf: "< 0", 0: "≈ 0"}
    paper = directions[expected] if expected in directions else f"{expected:+.2f}"
    marks = (f"{mark}: {', '.join(map(str, which))}" for mark, which in judged.marks.items() if which)
    of_pair = isinstance(judged.row.heading, str) and expected <= GAP  # of which no sign is expected
    answer = "" if of_pair else judged.answer
    reading = ": ".join(dict.fromkeys(filter(None, [answer, judged.reading])))  # "yes: level", "open"
    return [judged.row.words, paper, here, interval, reading, "; ".join(marks)]


def show(judged):
    """Print a row in at most 80 columns, its words last."""
    words, paper, *_ = fields_of(judged)
    words = words.replace(ENTERED, " †") + " [none]" * bool(judged.marks["nothing restored"])
    here = in_numbers(judged) if judged.seeds else ""
    here = f" {here}" if here[2:3] == "." else here  # +4.9 stands below +11.2
    answer = SHORT_OF.get(judged.answer, judged.answer) + "°" * (judged.reading == BAG)
    before = f"{answer:6} {here:20} {paper:6} "
    whole = words.replace("K = ", "K\xa0=\xa0")  # no line ends within it
    lines = textwrap.fill(whole, 80, initial_indent=before, subsequent_indent=" " * len(before))
    print(lines.replace("\xa0", " "))


ENTERED = " (entered when known)"
SHORT_OF = {FEW: "few", records.NOT_RUN: "none"}
ROWS = """\
How often is it as the papers say, at the mini tier? Each row below is a gap
between two mini models, or a difference of two such gaps, beside what a paper
has of it. Most models are not trained to their end.
"""
MEANINGS = f"""\
    paper    its gap at full size; > 0, < 0, ≈ 0: its words alone
    °        one model learnt no order, or both: at most {GAP:g} points above a bag of
             symbols (K = 1)
    †        the row was entered when its runs were known
    our pairing: the paper does not put these two side by side
"""
REST = f"""\
    [none]   a pretraining learnt nothing
    few      a model has fewer than {SEEDS} seeds; none: not run; empty: nothing said
"""
TWICE = "Differences of two gaps, above 0 where it is as the words say:"


def show_rows(judged):
    """Print how often the papers' and our sentences came, what the words of a row mean, and every row."""
    print(ROWS)
    meanings = (f"{answer}: {meaning}" for answer, meaning in tables.AS_SAID.items())
    tables.print_list("Is a gap as the paper says, by its interval?", meanings)
    print(f"{tally(judged, 80)}\n")
    print(MEANINGS + REST * any(one.answer not in ANSWERS for one in judged))
    print(f"{'said?':6} {' here [95 %]':20} paper\n")
    for said, group in records.grouped(judged, lambda one: one.row.heading).items():
        print(textwrap.fill(f"{rule.SAYS[said.who]}, {said.place}: {said.sentence}", 80))
        kinds = records.grouped(group, lambda one: len(one.row.cells) > 2)
        for of_gaps, rows in sorted(kinds.items()):
            print(f"{TWICE}\n" * of_gaps, end="")
            for one in rows:
                show(one)
        print()


def table_of(group):
    return tables.markdown(HEADER, map(fields_of, group))


SHORT = """\
Do small runs say what the papers say? Each row below puts a difference of the mini tier (small data, small
models) beside the paper's at full size, or beside what we predicted. It says what these runs show, not who
is right. A row can differ from a sentence and agree with the paper's own numbers: its words say so. How often
did it come as said?"""

HOW = f"""\
`python claims.py --write` writes this page from `claims.tsv` and from the records in `results/`.

**The rule was fixed on 2026-11-26, when these numbers were known.** It is one rule for all rows, with one
constant, {GAP:g} points. Until then rows had bounds of our own. [The notebook](notebook.md) has each of them
and what became of it. Four rows that had been taken out when their results were known are back. On 2026-11-30
twelve rows were entered, all known (6 no, 4 yes, 2 open), so that every gap of a report is a row.

- **what**: a difference of test accuracies in points, "X over Y", or of two differences. `claims.tsv` has
  the cells of each row and the day it was entered.
- **expected**: the same difference in the paper's tables, at full size. Where a paper does not print all
  these cells, it is what its sentence says: > 0 or < 0 for a direction, ≈ 0 for no difference. Below
  "Ours" and "Controls" it is the direction that we predicted; the sizes that we predicted, and which of
  them failed, are in the notebook. Empty: nobody predicted anything.
- **here ± s.e.**: ours and its standard error. Each cell is the mean of its first {SEEDS} seeds. A cell has
  three variances: over its own seeds, over the seeds of all cells of its task, and that of a test set of
  its size. The largest counts. Cells count as independent, though all share one test set.
- **95 %**: the interval, two-sided, by Student's t.
- **reading**: is it as expected, yes, no or open, and why? If the paper's gap is above {GAP:g} points, or
  a direction: *same sign* (yes) if the whole interval lies on that side of 0, *opposite* (no) if it lies
  on the other side, *no gap* (no) if it has 0 inside and lies within ±{GAP:g}. If the gap is smaller, or
  ≈ 0: *level* (yes) if the interval lies within ±{GAP:g}, *ahead* or *behind* (no) if it lies outside,
  *maybe ahead* or *maybe behind* (open) if it lies on one side of 0 and only partly within ±{GAP:g}. Else
  *open*. *No order* (open): a gap is expected, and every cell has the mark *bag*, so that no model learnt
  an order. To be ahead can be *better* for a one-sided sentence; which sentences are one-sided was
  entered on 2026-11-28, when the numbers were known. *Too few seeds*: a cell has fewer than {SEEDS}.
- **marks**: what is true of which cells, by their order in `claims.tsv`: of "X over Y" X is 1 and Y is 2.
  They change no reading. *rising*: validation still gained more than 1 point in the last fifth of the
  training (of SPT in that with labels); it may have been higher before. *bag*: at most {GAP:g} points above
  the bag of symbols, K = 1, which sees no order (that with or without techniques, as the cell). *nothing
  restored*: the pretraining learnt no more than the commonest symbol.

Our Image numbers are from a JPEG copy of CIFAR-10. Which row of A's Table 4 is "learned" and which has no
techniques is our reading: our copy is scrambled. The other reading would turn the sign of one pair below."""


def claims_page(judged, pairs):
    """docs/claims.md as text."""
    parts = ["# Claims", SHORT, tally(judged, 110), "## How it is read", HOW]
    parts += ["## What is the mini tier worth?", count(pairs, 110)]
    parts += ["![The papers' gaps against ours](../results/figures/claims-mini.png)", table_of(pairs)]
    for said, group in records.grouped(judged, lambda one: one.row.heading).items():
        parts += [
            f"## {rule.SAYS[said.who]}: {said.place}",
            textwrap.fill(said.sentence, 110),
            table_of(group),
        ]
    return "\n\n".join(parts) + "\n"


RESULTS = """\
`python claims.py --write` writes this page: it is what the scripts print with `--report`, of the records in
`results/`. Our Image numbers are from a JPEG copy of CIFAR-10, not from the official images. What the mini
numbers say about the papers stands in [claims.md](claims.md).

Accuracies are of the test set, in %: mean ± standard error (number of seeds; without a number it is 3).
Cost: of one run, on a CPU in time of one core where it was recorded."""


def report_of(script, *flags, figures=None):
    """What a script prints with --report of this repository's records, at 80 columns; not where its figures
    and other tables are. figures: a folder, whose figures are drawn anew if the script draws them."""
    printed, usual = io.StringIO(), os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "80"
    try:
        with tempfile.TemporaryDirectory() as out, contextlib.redirect_stderr(io.StringIO()):
            with contextlib.redirect_stdout(printed):
                script.main(["--report", *flags, "--out", out])
            for picture in Path(out).glob("*.png"):
                if figures and (figures / picture.name).exists():
                    shutil.copy(picture, figures)
    finally:
        os.environ.pop("COLUMNS") if usual is None else os.environ.update(COLUMNS=usual)
    lines = printed.getvalue().splitlines()
    text = "\n".join(line for line in lines if not line.startswith(("figure: ", "Runs ", "What the mini")))
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def sections_of(script, *flags, figures=None):
    """The sections of a script's report that have a table, each from its heading on; the first with what
    its words mean. figures: see report_of."""
    printed, _, words = report_of(script, *flags, figures=figures).partition(f"\n{tables.WORDS}\n\n")
    found = re.split(r"^(?=### )", printed, flags=re.MULTILINE)
    found = [text.strip() for text in found if text.startswith("###") and "\n|" in text]
    if found and script in EXPLAINED:
        found[0] = found[0].replace("\n", f"\n\n{words}\n\n", 1)
    return [re.sub(r"\n{3,}", "\n\n", text) for text in found]


def results_page(figures=None):
    """docs/results.md as text: rules without a network, networks at full size, the mini tier. figures: see
    report_of."""
    parts = {head: [] for head in HEADS}
    rules, full, mini = parts.values()
    rules.append(floors.table(floors.floors()))
    for script in (*SCRIPTS, *RULES):
        everything = ["--task", "all"] if script in (exp_ngrams, exp_patches) else ["--all-tiers"]
        large = sections_of(script, *everything, figures=figures)
        large = (text for text in large if records.TIERS["mini"] not in text.splitlines()[0])
        (rules if script in RULES else full).extend(large)
        mini += sections_of(script, "--mini", *everything, figures=figures)
    pages = [text for head, texts in parts.items() for text in (f"## {head}", *texts)]
    return "\n\n".join(["# Results", RESULTS, *pages]) + "\n"


# ------------------------------------------------------------------------------------------ command line


def main(argv=None):
    parser = argparse.ArgumentParser(description=common.for_terminals(__doc__),
        formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--out", type=Path, metavar="DIR", help="judge DIR/results.jsonl, not results/")
    parser.add_argument("--rows", nargs="?", const="papers", choices=("papers", "all"),
        help="print the rows that test the papers' sentences (default), or all of claims.tsv")  # fmt: skip
    parser.add_argument(
        "--write", action="store_true", help="write the pages, and the figures that need no model"
    )
    common.print_anywhere()
    args = parser.parse_args(argv)
    with common.exit_cleanly():
        if args.out and args.write:
            raise UserError("--write is for the records in results/; leave out --out")
        printed = rule.printed_cells()
        rows, mini = rule.read_rows(ROOT / "claims.tsv", printed), rule.read(args.out)
        judged = [rule.judge(row, mini) for row in rows]
        pairs = [rule.judge(row, mini) for row in all_pairs(printed, mini)]
        if pairs and not args.rows:
            print(f"What is the mini tier worth?\n\n{count(pairs, 80)}\n")
        if args.out:
            show_rows([one for one in judged if one.seeds])
        elif args.rows:
            asked = (one for one in judged if one.row.heading.who in PAPERS and one.answer in ANSWERS)
            show_rows(judged if args.rows == "all" else [*asked])
        else:
            print("Every sentence of the papers, and the rows that test it: python claims.py --rows")
            print("Of your runs: python claims.py --out runs")
        if args.write:
            (ROOT / "docs" / "claims.md").write_text(claims_page(judged, pairs), encoding="utf-8")
            (ROOT / "docs" / "results.md").write_text(results_page(FIGURES), encoding="utf-8")
            report_of(exp_ngrams, "--task", "text", figures=FIGURES)
            floors.plot(floors.floors(), floors.FIGURE)
        if apart(pairs) and (args.write or args.out):
            plot(apart(pairs), (args.out or FIGURES) / "claims-mini.png")


if __name__ == "__main__":
    main()
