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
import re
from pathlib import Path

import common
import records

SCRIPTS = ("locality", "multitask", "kernels", "positional", "spt", "range")
ROW = re.compile(r"\| (.+?) +\| ([-+][\d.]+) ± ([\d.]+) \(n=(\d+)\) +\| (.+?) +\| (.+?) +\|")
COLORS = {"supports": "#009E73", "CONTRADICTS": records.ORANGE, "beyond this tier": records.GREY}


def measured(out):
    """[(script, claim, difference, standard error, n, bounds, verdict)] of what the scripts print."""
    found = []
    for name in SCRIPTS:
        script = importlib.import_module(f"exp_{name}")
        with contextlib.redirect_stdout(io.StringIO()) as text:
            script.main(["--report", "--mini", "--out", str(out)])
        found += [(f"exp_{name}", *row) for row in ROW.findall(text.getvalue()) if row[-1] in COLORS]
    return found


def ends(bounds, low, high):
    """ "≥ 5" -> (5, high), "≤ 2" -> (low, 2), "-1.5 to 1.5" -> (-1.5, 1.5)."""
    if " to " in bounds:
        return tuple(map(float, bounds.split(" to ")))
    sign, value = bounds.split()
    return (float(value), high) if sign == "≥" else (low, float(value))


def plot(found, path):
    """A line a claim: what was measured with 2.5 standard errors, on the range that was claimed."""
    figure, axis = records.pyplot().subplots(figsize=(10, 1.4 + 0.32 * len(found)), layout="constrained")
    most = [abs(float(row[2])) + records.ERRORS * float(row[3]) for row in found]
    left, right = -max([5, *(m for m, row in zip(most, found) if row[2][0] == "-")]) - 1, max(most) + 1
    for y, (_, _, difference, error, n, bounds, verdict) in enumerate(found):
        low, high = ends(bounds, left, right)
        axis.barh(y, high - low, 0.7, low, color="#56B4E9", alpha=0.25, label="claimed")
        x, spread = float(difference), records.ERRORS * float(error)
        axis.errorbar(x, y, xerr=spread, fmt="o", color=COLORS[verdict], label=verdict.lower())
        axis.text(
            1.01, y, f"{difference} ± {error}, n={n}", transform=axis.get_yaxis_transform(), va="center"
        )
    axis.axvline(0, color="black", linewidth=0.8)
    axis.set(
        xlim=(left, right), ylim=(len(found) - 0.5, -0.5), xlabel="difference in points of test accuracy"
    )
    axis.set_yticks(range(len(found)), [row[1] for row in found])
    axis.set_title("What was claimed, and what small runs measured")
    records.legend_below(figure, [axis])
    records.save_figure(figure, path)


def main(argv=None):
    parser = argparse.ArgumentParser(description=common.for_terminals(__doc__),
        formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--out", type=Path, default=Path("runs"), metavar="DIR", help="default runs")
    out = parser.parse_args(argv).out
    with common.exit_cleanly():
        found = measured(out)
        if not found:
            raise common.UserError("no claim has two seeds yet; train cells with --mini --seeds 2")
        header = ["script", "claim", "measured (points)", "claimed", "verdict"]
        rows = [[s, c, f"{d} ± {e} (n={n})", bounds, v] for s, c, d, e, n, bounds, v in found]
        print(records.markdown(header, rows) + "\n")
        plot(found, out / "claims-mini.png")


if __name__ == "__main__":
    main()
