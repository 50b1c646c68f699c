"""What have the runs decided? The claims of all scripts at the mini tier, in one table and one picture.

    python claims.py              from the records in runs/ and results/ -> runs/claims-mini.png
    python claims.py --out DIR    from those in DIR and results/ -> DIR/claims-mini.png

A claim is a difference of accuracies in points. It has a range, which was fixed before the runs. The runs
support it if the whole of what was measured, 2.5 standard errors to each side, lies in that range; they
contradict it if none of it does.
"""

import argparse
import contextlib
import importlib
import io
import sys
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import common
import records

SCRIPTS = {
    "locality": "Paper A, Table 1: small kernels",
    "multitask": "Paper A, Table 2: the techniques",
    "kernels": "Paper A, Table 3: long kernels",
    "positional": "Paper A, Table 4: positions",
    "spt": "Papers A and B: self-pretraining",
    "range": "Ours: the dial (s = 4, 16, 64: neighbours 64, 16, 4 apart)",
}
COLORS = {"supports": "#009E73", "CONTRADICTS": records.ORANGE, "beyond this tier": records.GREY}


def decided(out):
    """[(one of SCRIPTS, records.Judged)]: the claims that have a verdict."""
    found = []
    for name in SCRIPTS:
        script = importlib.import_module(f"exp_{name}")
        with contextlib.redirect_stdout(io.StringIO()):
            rows = script.main(["--report", "--mini", "--out", str(out)])
        found += [(name, row) for row in rows if row.verdict in COLORS]
    return found


def plot(found, path):
    """A line a claim, below the name of its script: what was measured with 2.5 standard errors, on the range
    that was claimed."""
    lines = []
    for name, group in groupby(found, key=itemgetter(0)):
        lines += [SCRIPTS[name], *(row for _, row in group)]
    rows = {y: row for y, row in enumerate(lines) if isinstance(row, records.Judged)}
    figure, axis = records.pyplot().subplots(figsize=(10, 1.4 + 0.32 * len(lines)), layout="constrained")
    ends = [row.difference + s * records.ERRORS * row.error for row in rows.values() for s in (-1, 1)]
    left, right = min(-5, *ends) - 1, max(ends) + 1
    place = dict(transform=axis.get_yaxis_transform(), va="center")
    for y in {*range(len(lines))} - rows.keys():
        axis.text(0.01, y, lines[y], weight="bold", backgroundcolor="white", **place)
    for y, row in rows.items():
        low, high = max(row.low, left), min(row.high, right)
        axis.barh(y, high - low, 0.7, low, color="#56B4E9", alpha=0.25, label="claimed")
        words = dict(color=COLORS[row.verdict], label=row.verdict.lower())
        axis.errorbar(row.difference, y, xerr=records.ERRORS * row.error, fmt="o", **words)
        axis.text(1.01, y, row.measured, **place)
    axis.axvline(0, color="black", linewidth=0.8)
    axis.set(
        xlim=(left, right),
        ylim=(len(lines) - 0.5, -0.5),
        xlabel="difference in points of test accuracy; lines are 2.5 standard errors, numbers 1",
    )
    axis.set_yticks([*rows], [row.claim for row in rows.values()])
    axis.set_title("What was claimed, and what small runs measured")
    records.legend_below(figure, [axis])
    records.save_figure(figure, path)


def main(argv=None):
    parser = argparse.ArgumentParser(description=common.for_terminals(__doc__),
        formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--out", type=Path, default=Path("runs"), metavar="DIR", help="default runs")
    for stream in (sys.stdout, sys.stderr):  # "±" must not end it where the terminal is not UTF-8
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    out = parser.parse_args(argv).out
    with common.exit_cleanly():
        found = decided(out)
        if not found:
            raise common.UserError("no claim has two seeds yet; train cells with --mini --seeds 2")
        header = ["script", "claim", "measured (points)", "claimed", "verdict"]
        rows = [[f"exp_{name}", row.claim, row.measured, row.bounds, row.verdict] for name, row in found]
        print(records.markdown(header, rows) + "\n")
        plot(found, out / "claims-mini.png")


if __name__ == "__main__":
    main()
