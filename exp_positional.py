"""Table 4 of paper A: what do the positional encoding and the training techniques each contribute?

    python exp_positional.py --task listops --mini              three positions, minutes a cell
    python exp_positional.py --task listops --position rotary   one cell as the paper ran it: 62.90 %
    python exp_positional.py --task all                         rotary, learned, sinusoidal: 15 cells
    python exp_positional.py --task all --position rotary --no-techniques   the table's third column
    python exp_positional.py --report                           ours beside the paper's

Rotary with the techniques averages 85.69 %. Positions summed to the embeddings lose 5 points (sinusoidal,
most of it on ListOps) or 16 (learned, on Text, ListOps and Image); leaving the techniques out loses 21.
Beyond the table: "none", "rotary-heads" (every head has all frequencies; the paper's heads each have a band
of their own), and `--flip-half` (the opposite of Table 5's choice whether half of the frequencies are zero).

The mini tier's claims, fixed before its runs (CLAIMS): on ListOps rotary is at least 2 points ahead of
sinusoidal (the paper: 15.4) and of learned (21.6); on Image learned is at least 2 points behind (20.3).
Rates on ListOps are the best of 3e-4, 1e-3, 3e-3 on the validation set after a fifth of the steps (NOTES.md).

Paper A: "You Can Train from Scratch: Further Discussion on the Long Range Arena" (OpenReview YuFUUcSUgx).
"""

import json
from itertools import product

import common
import data
import exp_multitask
import records
from exp_multitask import COLUMNS, recipe
from records import markdown, paper_and_ours_rows

# fmt: off
# The hyper-parameters are those of Table 5 (of MINI5 with --mini), see exp_multitask.recipe.
# Table 4: test accuracy in percent. Columns: position, techniques.
COLUMNS4 = (("learned", "yes"), ("sinusoidal", "yes"), ("rotary", "no"), ("rotary", "yes"))
TABLE4 = dict(
    image      = (67.87, 85.52, 58.84, 88.15),
    pathfinder = (90.48, 92.81, 67.09, 96.28),
    text       = (64.49, 88.47, 69.73, 90.33),
    retrieval  = (83.31, 87.06, 85.34, 90.80),
    listops    = (41.30, 47.55, 43.90, 62.90),
    average    = (69.49, 80.28, 64.98, 85.69),
)
MINI_LR = {("listops", "sinusoidal"): 3e-3}  # the mini tier's, where the search found another than MINI5's
# fmt: on

# What the paper says, as differences in points at the mini tier: (words, signed cells, from, to).
ROTARY, SINUSOIDAL, LEARNED = (f"{p}, techniques" for p in ("rotary", "sinusoidal", "learned"))
CLAIMS = [
    ("ListOps: rotary over sinusoidal", [(1, "listops", ROTARY), (-1, "listops", SINUSOIDAL)], 2, None),
    ("ListOps: rotary over learned", [(1, "listops", ROTARY), (-1, "listops", LEARNED)], 2, None),
    ("Image: rotary over learned", [(1, "image", ROTARY), (-1, "image", LEARNED)], 2, None),
]

# ------------------------------------------------------------------------------------------ the idea

POSITIONS = ("rotary", "rotary-heads", "sinusoidal", "learned", "none")


def variant_recipe(name, position, techniques="yes", half="paper", mini=False):
    """Table 5's column with another position; half "flipped": zero frequencies where Table 5 has none, and
    none where it has them."""
    hp = recipe("transformer", name, techniques, mini) | {"position": position}
    if mini:
        hp["lr"] = MINI_LR.get((name, position), hp["lr"])
    return hp | ({"disable_half": not hp["disable_half"]} if half == "flipped" else {})


def label(position, techniques, half="paper"):
    flipped = ", half flipped" if half == "flipped" else ""
    return f"{position}{flipped}, {'techniques' if techniques == 'yes' else 'no techniques'}"


# ------------------------------------------------------------------------------------------ one cell


def run_cell(args, name, position, seed):
    cell = {"position": position, "techniques": "no" if args.no_techniques else "yes"}
    cell |= {"half": "flipped"} if args.flip_half else {}
    paper = variant_recipe(name, **cell, mini=args.mini)
    expected = paper_number(name, label(**cell))
    exp_multitask.train(args, __file__, name, "transformer", cell, paper, seed, expected)


def paper_number(name, row):
    """Table 4's accuracy in percent, or None for what it does not have."""
    return dict(zip([label(*column) for column in COLUMNS4], TABLE4[name])).get(row)


# ------------------------------------------------------------------------------------------ the report


def report(args):
    cell, transformer = ("position", "techniques", "half"), (COLUMNS, ["transformer"])
    found = records.report_records(args, __file__, *transformer, cell)
    # exp_multitask's Transformer is this table's rotary column: the same recipe, so the same run.
    own = {same_run(r) for r in found}
    for r in records.report_records(args, exp_multitask.__file__, *transformer, cell):
        of_data = r["limit"] or r["hp"].get("steps")  # rows of Table 2's own
        if same_run(r) not in own and not of_data:
            found.append(r | {"cell": {"position": "rotary", **r["cell"]}})
    variant = {r["run"]: label(**r["cell"]) for r in found}
    claims = records.report_mini(
        args, found, title="Table 4: which positions does a Transformer need?", tasks=COLUMNS,
        titles=data.TITLES, variants=[label(*column) for column in reversed(COLUMNS4)],
        label=lambda r: variant[r["run"]], paper=paper_number, claims=CLAIMS,
        recipe=lambda r: variant_recipe(r["task"], **r["cell"], mini=True), figure="table4-mini.png",
    )  # fmt: skip
    if args.mini:
        return claims
    paper = {label(*key): [TABLE4[name][i] for name in TABLE4] for i, key in enumerate(COLUMNS4)}
    full = [r for r in found if r["budget"] == "paper"]
    rows = []
    for name in dict.fromkeys([*paper, *sorted(variant[r["run"]] for r in full)]):
        ours = [r for r in full if variant[r["run"]] == name]
        rows += paper_and_ours_rows(name, paper.get(name), ours, COLUMNS)
    print("### Table 4, as the paper ran it\n\nTest accuracy in %\n")
    print(markdown(["Position", *(data.TITLES[name] for name in COLUMNS), "Average"], rows) + "\n")
    print(
        "The paper's columns 'learned' and 'rotary, no techniques' are inferred: our copy of the paper\n"
        "scrambles Table 4; which numbers form a column follows from the printed averages, which of these\n"
        "two is which from the text around it. Rotary with techniques is Table 2's Transformer ‡, and runs\n"
        "of exp_multitask count here. — = not run. An average needs all five. Path-X was not run.\n"
    )
    own_recipe = lambda r: variant_recipe(r["task"], **r["cell"])  # noqa: E731
    records.print_reduced("Table 4", found, variant, own_recipe, data.TITLES)


def same_run(record):
    """What two records share that are one and the same training, whichever script did it."""
    shared = [record[k] for k in ("task", "seed", "limit", "budget", "hp")]
    return json.dumps([*shared, record["data"]["hash"]], sort_keys=True)


# ------------------------------------------------------------------------------------------ command line


def main(argv=None):
    parser = common.make_parser(__doc__, COLUMNS)
    # fmt: off
    parser.add_argument("--position", nargs="+", choices=[*POSITIONS, "all"], metavar="POSITION",
        help=f"{', '.join(POSITIONS)} or all (default: the table's rotary learned sinusoidal; rotary alone "
             "with --no-techniques, --flip-half or --smoke)")
    parser.add_argument("--flip-half", action="store_true",
        help="zero half of the rotary frequencies where Table 5 does not, and none where it does")
    # fmt: on
    args = common.parse_args(parser, argv)
    with common.exit_cleanly():
        if args.report is not None:
            return report(args)
        one = args.smoke or args.no_techniques or args.flip_half
        default = ["rotary"] if one else ["rotary", "learned", "sinusoidal"]
        positions = common.chosen(args.position or default, POSITIONS)
        if args.flip_half and any(not position.startswith("rotary") for position in positions):
            raise common.UserError("--flip-half is about rotary frequencies; give --position rotary")
        names = data.require(common.chosen(args.task, COLUMNS), args)
        records.run_cells(args, product(names, positions), run_cell, report)


if __name__ == "__main__":
    main()
