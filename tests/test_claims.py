"""Do verdicts follow from the records by the rules of docs/claims.md? The statistics are computed twice."""

import json
import math
import re
from itertools import count

import pytest

import claims
import common
import records
from claims import SOURCES, Claim

RUNS = count()
ALL = [(who, claim) for (who, *_), group in SOURCES.items() for claim in group]


def record(row, accuracy, seed=0, task="text", exp="locality", **more):
    """A record of a mini run with 10,000 test examples."""
    made = dict(run=f"run-{next(RUNS)}", exp=exp, task=task, model="m", row=row, terms="", budget="mini")
    made |= dict(date="2026-11-24T12:00:00+00:00", val_acc=accuracy, test_acc=accuracy, seconds=1.0)
    made |= dict(seed=seed, cell={}, hp={"model": {"row": row}}, limit=None)
    return made | dict(data={"hash": "h", "counts": {"test": 10_000}}) | more


def cell(row, *accuracies, **more):
    return [record(row, accuracy, seed, **more) for seed, accuracy in enumerate(accuracies)]


def verdict(groups, low=None, high=None, who="A", variance=1e-4, df=30):
    """That of "first row over second row" where these are all cells."""
    cells = {(g[0]["exp"], g[0]["task"], g[0]["row"]): g for g in groups}
    cells_of = claims.lead("locality", "text", groups[0][0]["row"], groups[1][0]["row"])
    claim = Claim("name", "words", low, high, "2026-11-24 13:00", cells_of)
    return claims.judge(claim, who, cells, {"text": (variance, df)}).verdict


# ------------------------------------------------------------------------------------------ statistics


def area(df, end, steps=20_000):
    """The share of Student's t below `end`, by Simpson's rule from 0."""
    scale = math.exp(math.lgamma((df + 1) / 2) - math.lgamma(df / 2)) / math.sqrt(df * math.pi)
    width = end / steps
    heights = [scale * (1 + (i * width) ** 2 / df) ** (-(df + 1) / 2) for i in range(steps + 1)]
    return 0.5 + width / 3 * (heights[0] + 4 * sum(heights[1::2]) + 2 * sum(heights[2:-1:2]) + heights[-1])


@pytest.mark.parametrize("df", claims.T)
def test_quantiles_are_those_of_the_density(df):
    assert area(df, claims.quantile(df, 1)) == pytest.approx(0.95, abs=5e-5)
    assert area(df, claims.quantile(df, 2)) == pytest.approx(0.975, abs=5e-5)


def test_between_two_rows_of_the_table_the_wider_quantile_counts():
    assert claims.quantile(14, 2) == claims.T[10][1] > claims.T[15][1]
    assert claims.quantile(1000, 1) == claims.T[120][0]


def test_the_pooled_variance_weighs_cells_by_their_seeds_less_one():
    groups = [cell("a", 0.50, 0.52), cell("b", 0.30, 0.34, 0.38), cell("c", 0.9)]
    variance, df = claims.pooled(groups)
    assert df == 3 and variance == pytest.approx((0.0002 + 2 * 0.0016) / 3)


def test_a_training_that_two_scripts_list_is_pooled_once():
    group = cell("rotary", 0.50, 0.52)
    cells = {("positional", "text", "rotary"): group, ("multitask", "text", "Transformer"): group}
    assert claims.pooled(claims.by_task(cells)["text"])[1] == 1


def test_a_repeated_training_counts_once_and_a_seed_that_was_not_declared_does_not(tmp_path):
    lines = [*cell("a", 0.50, 0.52, 0.54, 0.90)[::-1], record("a", 0.52, seed=1)]
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(r | {"smoke": False}) + "\n" for r in lines))
    cells, _ = claims.read(tmp_path)
    assert [r["seed"] for r in cells["locality", "text", "a"]] == [0, 1, 2]


@pytest.mark.parametrize(
    "accuracies, pooled, largest",
    [((0.40, 0.60), 1e-4, 0.02), ((0.50, 0.50), 9e-4, 9e-4), ((0.50, 0.50), 1e-6, 0.25 / 10_000)],
)
def test_the_largest_of_three_variances_counts(accuracies, pooled, largest):
    mean, error = records.mean_and_error(cell("a", *accuracies), pooled)
    assert (mean, error) == (pytest.approx(0.5), pytest.approx(math.sqrt(largest / 2)))


def test_errors_of_signed_cells_add_as_squares():
    cells = {("locality", "text", row): cell(row, *acc) for row, acc in
             (("a", (0.7, 0.7)), ("b", (0.6, 0.6, 0.6)))}  # fmt: skip
    points, error, df = claims.difference(
        claims.lead("locality", "text", "a", "b"), cells, {"text": (4e-4, 9)}
    )
    assert (points, df) == (pytest.approx(10), 9)
    assert error == pytest.approx(100 * math.sqrt(4e-4 / 2 + 4e-4 / 3))


# ------------------------------------------------------------------------------------------ verdicts

A = cell("a", 0.700, 0.701, 0.699)  # with pooled deviation 1 the error of a difference of two is 0.82
B = cell("b", 0.650, 0.651, 0.649)
A_OVER_B = Claim("name", "words", 1, None, "2026-11-24 13:00", claims.lead("locality", "text", "a", "b"))


def test_verdicts_follow_the_interval():
    assert verdict([A, B], low=3.5) == "agrees"  # 5 - 1.697 * .816 = 3.61
    assert verdict([A, B], low=3.7) == "undecided"
    assert verdict([A, B], low=6.3) == "undecided"  # 5 + 1.697 * .816 = 6.39
    assert verdict([A, B], low=6.5) == "not reproduced at this budget"
    assert verdict([A, B], high=3.5) == "not reproduced at this budget"
    assert verdict([A, B], high=6.5) == "agrees"


def test_two_bounds_need_the_wider_interval():
    assert verdict([A, B], 3.5, 6.5) == "undecided"  # 5 ± 2.042 * .816 = 3.33 to 6.67
    assert verdict([A, B], 3.3, 6.7) == "agrees"


def test_only_our_own_predictions_are_refuted():
    assert verdict([A, B], low=6.5, who="ours") == "refuted"
    assert all(verdict([A, B], low=6.5, who=who) == "not reproduced at this budget" for who in "AB")


def test_no_verdict_below_three_seeds():
    assert verdict([A[:2], B], low=-50) == verdict([A, B[:2]], low=50) == "too few seeds"
    assert verdict([A, B], low=None) == ""  # exploratory


def test_a_cell_that_is_missing_gives_no_number():
    claim = A_OVER_B
    judged = claims.judge(claim, "A", {("locality", "text", "a"): A}, {"text": (1e-4, 30)})
    assert judged.verdict == "not run" and judged.points is None


def test_a_treated_arm_at_the_bag_is_not_tested():
    bag = cell(claims.BAG, 0.640, 0.640)
    assert verdict([A, B, bag], low=3).startswith("not tested (b")  # 65 is below 64 + 2
    assert verdict([A, cell("b, no techniques", 0.65, 0.65, 0.65), bag], low=3) == "agrees"
    assert verdict([A, B[:2], bag], low=3) == "too few seeds"  # not even that of two
    assert verdict([A, B, bag], low=3, who="ours") == "agrees"
    assert verdict([A, B, cell(claims.BAG, 0.62, 0.62)], low=3) == "agrees"


def test_a_pretraining_that_restored_the_commonest_symbol_is_not_tested():
    def arm(restored, **more):
        return cell("b, masked SPT", 0.65, 0.65, 0.65, pretraining={"restored": restored} | more)

    assert verdict([A, arm(0.25, commonest=0.245)], low=3).startswith("not tested (b, masked SPT")
    assert verdict([A, arm(0.25, commonest=0.245)], low=3, who="ours").startswith("not tested (b, masked SPT")
    assert verdict([A, arm(0.25, commonest=0.200)], low=3) == "agrees"
    assert verdict([A, arm(0.25)], low=3) == "agrees"  # an older record does not say that share


def test_runs_that_had_finished_are_counted_by_their_dates():
    late = [r | {"date": "2026-11-24T13:00:01+00:00"} for r in B[:2]]
    cells = {("locality", "text", "a"): A, ("locality", "text", "b"): late}
    claim = A_OVER_B
    judged = claims.judge(claim, "A", cells, {"text": (1e-4, 30)})
    assert judged.known == (3, 5) and "set after" not in claims.line_of(judged)[1]
    cells["locality", "text", "b"] = B
    assert "set after runs" in claims.line_of(claims.judge(claim, "A", cells, {"text": (1e-4, 30)}))[1]


def test_a_cell_that_is_trained_anew_was_known_since_its_first_number():
    old = cell("b", 0.60, 0.61)
    new = cell("b", 0.65, 0.66, 0.67, date="2026-11-24T13:00:01+00:00", hp={"another": "rate"})
    dates = [r["date"] for r in claims.since_known(new, old + new)]
    assert dates == [old[0]["date"], old[1]["date"], new[2]["date"]]


# ------------------------------------------------------------------------------------------ a verdict's worth


def test_pairs_compare_signs_of_gaps_that_the_paper_has():
    three = {"first": 0.5, "second": 0.6, "third": 0.4, claims.BAG: 0.3, "at the bag": 0.31}
    cells = {("locality", "text", row): cell(row, acc, acc, acc) for row, acc in three.items()}
    cells["locality", "text", "of two"] = cell("of two", 0.1, 0.1)
    cells["locality", "text", "of one"] = cell("of one", 0.9)
    table = {"first": (90.0,), "second": (89.0,), "third": (70.0,), "of one": (10.0,), "not here": (None,)}
    table |= {"of two": (50.0,), "at the bag": (30.0,)}
    found = claims.pairs_of("locality", ("text",), table, cells, {"text": (1e-4, 30)})
    points = {pair.rows: round(pair.mini) for pair in found}
    assert points["first", "third"] == 10 and points["second", "third"] == 20
    assert ("first", "second") not in points and len(points) == 9
    assert {pair.rows for pair in found if pair.decided} == {("first", "third"), ("second", "third")}
    vague = claims.pairs_of("locality", ("text",), table, cells, {"text": (3e-2, 30)})
    assert not any(pair.decided for pair in vague)  # 10 and 20 points, errors of 14


# ------------------------------------------------------------------------------------------ the table

COMING = {"image-12-s5-augment"}  # in NOTES, Wanted runs


def test_every_cell_of_a_claim_has_been_run_or_is_on_todays_plan():
    cells, _ = claims.read(None)
    missing = {c.name for _, c in ALL if not all(tuple(cell) in cells for _, *cell in c.cells)}
    assert missing <= COMING


def test_claims_are_differences_of_different_cells():
    for _, claim in ALL:
        places = [tuple(cell) for _, *cell in claim.cells]
        assert sum(sign for sign, *_ in claim.cells) == 0 and len({*places}) == len(places), claim.name
        assert len({task for _, _, task, _ in claim.cells}) == 1, claim.name


def test_what_has_bounds_has_their_date_and_a_name_of_its_own():
    assert len({claim.name for _, claim in ALL}) == len(ALL)
    for who, claim in ALL:
        bounded = claim.low is not None or claim.high is not None
        assert bounded == (who != "exploratory"), claim.name
        assert not bounded or re.fullmatch(r"2026-11-\d\d \d\d:\d\d", claim.bound), claim.name


# ------------------------------------------------------------------------------------------ the command


def test_another_folder_is_judged_alone(tmp_path):
    made = cell("K=5", 0.5, 0.5)
    lines = "".join(json.dumps(r) + "\n" for r in made)
    (tmp_path / "results.jsonl").write_text(lines)
    cells, pool = claims.read(tmp_path)
    assert {*cells} == {("locality", "text", "K=5")} and pool == {"text": (0.0, 1)}
    verdicts = {judged.verdict for judged in claims.judge_all(cells, pool)}
    assert verdicts == {"not run"}
    with pytest.raises(common.UserError, match="no record of the mini tier"):
        claims.read(tmp_path / "nothing")


def test_the_page_is_what_the_records_give():
    """After new records: python claims.py --write"""
    cells, pool = claims.read(None)
    page = records.RESULTS.parent / "docs" / "claims.md"
    written = claims.page(claims.judge_all(cells, pool), claims.all_pairs(cells, pool))
    assert page.read_text(encoding="utf-8") == written
