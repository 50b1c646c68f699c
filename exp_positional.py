"""Table 4 of paper A: what do the positional encoding and the training techniques each contribute?

    python exp_positional.py --task listops --mini              three positions, minutes a cell
    python exp_positional.py --task listops --position rotary   one cell at full size; paper: 62.90 %
    python exp_positional.py --task all --position rotary --no-techniques   the row without techniques
    python exp_positional.py --report                           ours beside the paper's

In the paper rotary with the techniques averages 85.69 %. Positions summed to the embeddings lose 5 points
(sinusoidal, most of it on ListOps) or 16 (learned, on Text, ListOps and Image). No techniques: 21 lost.
Beyond the table: "none", and "rotary-heads", where every head has all frequencies (the paper's heads each
have a band of their own).

The paper's rows "learned" and "rotary, no techniques" are inferred: our copy of the paper scrambles Table 4.
Which numbers form a row follows from the printed averages, which of these two is which from the text.

Paper A: "You Can Train from Scratch: Further Discussion on the Long Range Arena" (OpenReview YuFUUcSUgx).
"""

from itertools import product

import common
import data
import models
import records
import tables
from exp_multitask import COLUMNS, MINI, SMOKE, TABLE5, TASKS5  # the Transformer: its parent, one row changed

POSITIONS = ("rotary", "rotary-heads", "sinusoidal", "learned", "none")
# Rates of the mini tier where a search found another than MINI's, which they win over: on Image and, of the
# texts, without techniques that of exp_multitask's Transformer.
RATES = {("listops", "sinusoidal"): 3e-3}
for position in POSITIONS:
    RATES |= {("image", position): 3e-3, ("image", f"{position}, no techniques"): 3e-3}
    RATES |= {(task, f"{position}, no techniques"): 1e-3 for task in ("text", "retrieval")}

# fmt: off
# Table 4: test accuracy in percent, columns as COLUMNS, and the printed average.
TABLE4 = {
    "rotary":                (88.15, 96.28, 90.33, 90.80, 62.90, 85.69),
    "rotary, no techniques": (58.84, 67.09, 69.73, 85.34, 43.90, 64.98),
    "sinusoidal":            (85.52, 92.81, 88.47, 87.06, 47.55, 80.28),
    "learned":               (67.87, 90.48, 64.49, 83.31, 41.30, 69.49),
}
# fmt: on

# ------------------------------------------------------------------------------------------ one cell


def run_cell(args, name, position, seed):
    cell = {"position": position} | ({"techniques": "no"} if args.no_techniques else {})
    row = row_of(cell)
    recipe, table = common.recipe_for(
        args, name, (TABLE5, TASKS5), (MINI, COLUMNS), smoke=SMOKE, rate=RATES.get((name, row)),
        model={"position": position},
    )  # fmt: skip
    task = data.load_for(args, name, recipe, seed)
    records.run_cell(
        args, __file__, row=row, task=task, model="transformer", cell=cell, hp=recipe, table=table, seed=seed,
        build=lambda: models.SequenceModel(**recipe["model"], **task.sizes), loss_fn=common.multitask_loss,
        paper=tables.paper_number(TABLE4, row, COLUMNS, name),
    )  # fmt: skip


def rotary(record):
    """The row of a run of exp_multitask here: its Transformer is this table's rotary one, the same recipe."""
    if record["model"] == "transformer" and not {"limit", "steps"} & record["changes"].keys():
        cell = {"position": "rotary"} | record["cell"]
        return {"row": row_of(cell), "cell": cell}


def row_of(cell):
    """ "rotary, no techniques": the label of a cell."""
    return cell["position"] + (", no techniques" if cell.get("techniques") == "no" else "")


# ------------------------------------------------------------------------------------------ command line


LEADS = {f"rotary over {other}": tables.Lead("rotary", other) for other in ("sinusoidal", "learned")}
LEADS["sinusoidal over learned"] = tables.Lead("sinusoidal", "learned")


def report(args):
    """Ours beside the paper's."""
    tables.report(
        args, __file__, "Paper A, Table 4: positional encodings", COLUMNS, data.TITLES, TABLE4,
        short=data.SHORT_TITLES, floors=data.FLOORS, also={"multitask": rotary},
        leads=LEADS, first="--task listops --position rotary",
        meanings={"learned": tables.OUR_READING},
        said='Paper A: "The learned embeddings are very inferior to the other two, and rotary embeddings are '
        'superior to the summed sinusoidal ones".',
    )  # fmt: skip


def main(argv=None):
    parser = common.make_parser(__doc__, COLUMNS)
    parser.add_argument(
        "--position", nargs="+", choices=[*POSITIONS, "all"], metavar="POSITION",
        help=f"{', '.join(POSITIONS)} or all (default: the table's rotary learned sinusoidal; rotary alone "
             "with --no-techniques or --smoke)",
    )  # fmt: skip
    args = common.parse_args(parser, argv)
    with common.exit_cleanly():
        if not args.report:
            one = args.smoke or args.no_techniques
            default = ["rotary"] if one else ["rotary", "learned", "sinusoidal"]
            names = data.require(common.chosen(args.task, COLUMNS), args)
            positions = common.chosen(args.position or default, POSITIONS)
            records.run_cells(args, product(names, positions), run_cell)
        report(args)


if __name__ == "__main__":
    main()
