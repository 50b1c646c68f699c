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
from pathlib import Path

import common
import records

SCRIPTS = ("locality", "multitask", "kernels", "positional", "spt", "range")
COLORS = {"supports": "#009E73", "CONTRADICTS": records.ORANGE, "beyond this tier": records.GREY}


def decided(out):
    """[(script, records.Judged)]: the claims that have a verdict."""
    found = []
    for name in SCRIPTS:
        script = importlib.import_module(f"exp_{name}")
        with contextlib.redirect_stdout(io.StringIO()):
            rows = script.main(["--report", "--mini", "--out", str(out)])
        found += [(f"exp_{name}", row) for row in rows if row.verdict in COLORS]
    return found


def plot(rows, path):
    """A line a claim: what was measured with 2.5 standard errors, on the range that was claimed."""
    figure, axis = records.pyplot().subplots(figsize=(10, 1.4 + 0.32 * len(rows)), layout="constrained")
    spread = [records.ERRORS * row.error for row in rows]
    left = min(-6, *(row.difference - s - 1 for row, s in zip(rows, spread)))
    right = max(row.difference + s + 1 for row, s in zip(rows, spread))
    for y, row in enumerate(rows):
        low, high = max(row.low, left), min(row.high, right)
        axis.barh(y, high - low, 0.7, low, color="#56B4E9", alpha=0.25, label="claimed")
        words = dict(color=COLORS[row.verdict], label=row.verdict.lower())
        axis.errorbar(row.difference, y, xerr=spread[y], fmt="o", **words)
        axis.text(1.01, y, row.measured, transform=axis.get_yaxis_transform(), va="center")
    axis.axvline(0, color="black", linewidth=0.8)
    axis.set(xlim=(left, right), ylim=(len(rows) - 0.5, -0.5), xlabel="difference in points of test accuracy")
    axis.set_yticks(range(len(rows)), [row.claim for row in rows])
    axis.set_title("What was claimed, and what small runs measured")
    records.legend_below(figure, [axis])
    records.save_figure(figure, path)


def main(argv=None):
    parser = argparse.ArgumentParser(description=common.for_terminals(__doc__),
        formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--out", type=Path, default=Path("runs"), metavar="DIR", help="default runs")
    out = parser.parse_args(argv).out
    with common.exit_cleanly():
        found = decided(out)
        if not found:
            raise common.UserError("no claim has two seeds yet; train cells with --mini --seeds 2")
        header = ["script", "claim", "measured (points)", "claimed", "verdict"]
        rows = [[script, row.claim, row.measured, row.bounds, row.verdict] for script, row in found]
        print(records.markdown(header, rows) + "\n")
        plot([row for _, row in found], out / "claims-mini.png")


if __name__ == "__main__":
    main()
