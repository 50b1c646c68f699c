"""records.py: what a run is, its record, reports, the mini tier. pytest tests/test_records.py"""

import fcntl
import json
import math
import multiprocessing
import re
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch
from conftest import TINY, exit_code, lines_of, stop_at

import common
import data
import exp_locality
import models
import records

ROOT = Path(__file__).parent.parent

# What every table reads of a record.
RECORD = dict(run="a", exp="locality", task="text", model="conv", cell={"kernel": 5}, seed=0, limit=None)
RECORD |= dict(
    budget="paper", date="2026-01-01", val_acc=0.5, test_acc=0.5, seconds=60.0, hp={}, data={"hash": "a"}
)


@pytest.fixture
def run(tmp_path):
    """exp_locality's exit code for a command whose --out is tmp_path."""
    return lambda *flags: exit_code(exp_locality.main, *flags, "--out", tmp_path)


# ------------------------------------------------------------------------------------------ one run


def test_a_record_has_every_field_and_the_run_is_done_once(run, tmp_path, capsys):
    assert run(*TINY, "--amp", "auto") == 0
    [record] = lines_of(tmp_path / "results.jsonl")
    fields = """exp task model cell seed budget epochs steps test_acc val_acc best_epoch test_acc_last chance
    train_acc params seconds cpu_seconds epoch_seconds peak_gb device torch git dirty code argv hp data smoke
    amp ranks micro_batch compile date""".split()
    assert {*fields} <= record.keys() and records.is_record(record)
    assert record["cell"] == {"kernel": 5} and record["smoke"] is True and record["budget"] == "reduced"
    assert record["data"]["counts"] == {"train": 512, "val": 128, "test": 128} and record["limit"] == 32
    assert len(record["data"]["hash"]) == 64 and record["steps"] == 8 and record["amp"] in ("bf16", "off")
    assert not list(tmp_path.glob("*/last.pt")) and list(tmp_path.glob("*/best.pt"))
    assert "table: smoke runs are in none" in capsys.readouterr().out
    assert run(*TINY) == 0 and "is done" in capsys.readouterr().out
    assert len(lines_of(tmp_path / "results.jsonl")) == 1


def planned(monkeypatch, *argv, made="d"):
    """(identity, budget) of each cell of a command; nothing is trained, no data are made."""
    found = []

    def load(name, args, hp, seed):
        return types.SimpleNamespace(name=name, source={"hash": made})

    def run_cell(args, *, script, task, model, cell, hp, paper, seed, **rest):
        identity = records.make_identity(args, script, task, model, cell, seed, hp)
        found.append((identity, records.budget(args, hp, paper)))

    with monkeypatch.context() as patch:
        patch.setattr(data, "load_recipe", load)
        patch.setattr(records, "run_cell", run_cell)
        patch.setattr(exp_locality, "report", lambda args: None)
        exp_locality.main(list(argv))
    return found


def test_a_changed_flag_is_another_cell(monkeypatch):
    """Promise 3: what changes the result; what only says how it is computed is the same cell."""

    def names(flags):
        cells = planned(monkeypatch, "--task", "text", "--kernel", "5", *flags.split())
        return [records.run_name(identity) for identity, _ in cells]

    changes = "--epochs 3|--steps 3|--lr 0.5|--batch-size 7|--weight-decay 0.25|--set-last-tenth|--no-bucket"
    changes += "|--limit 9|--max-length 99|--seed 1|--no-techniques|--norm-place post|--mini|--smoke"
    changes += "|--kernel 7|--task listops|--epochs 3 --lr 0.5"
    same = "--amp bf16|--micro-batch 2|--compile|--device cpu|--time-limit 9m|--out x|--data-dir x|--fresh"
    [plain], others = names(""), [name for flags in changes.split("|") for name in names(flags)]
    assert len({plain, *others}) == 1 + len(others) == 1 + len(changes.split("|"))
    assert all(names(flags) == [plain] for flags in same.split("|"))
    assert len({*names("--seed 4 --seeds 3")}) == 3


def test_what_is_not_the_papers_recipe_is_marked(monkeypatch):
    """Promise 7."""
    budgets = {"paper": "--kernel 9|--epochs 80|--set-last-tenth", "mini": "--mini|--mini --lr 1"}
    budgets["reduced"] = "--epochs 81|--steps 9|--limit 5|--smoke|--max-length 64|--no-bucket"
    for budget, flags in budgets.items():
        for words in flags.split("|"):
            [(_, found)] = planned(monkeypatch, "--task", "text", "--kernel", "5", *words.split())
            assert found == budget, words


def test_seeds_are_runs_of_their_own_and_flags_reach_the_recipe(run, tmp_path, monkeypatch):
    """Each seed starts from weights of its own, and sees its own batches, corrupted in its own way."""
    starts, whole = [], common.multitask_loss

    def loss_fn(model, batch):
        if model.training:
            starts.append((model.embedding.weight.sum().item(), batch.tokens.sum().item()))
        return whole(model, batch)

    monkeypatch.setattr(common, "multitask_loss", loss_fn)
    given = dict(lr=0.5, weight_decay=0.25, batch_size=32, epochs=1)
    flags = [word for row, value in given.items() for word in (common.flag(row), value)]
    assert run(*TINY, *flags, "--seed", 4, "--seeds", 2) == 0
    (one, same_batch), (other, another_batch) = starts
    assert one != other and same_batch != another_batch  # each batch is the whole training set
    found = lines_of(tmp_path / "results.jsonl")
    assert [line["seed"] for line in found] == [4, 5] and found[0]["test_acc"] != found[1]["test_acc"]
    assert all(given.items() <= line["hp"].items() for line in found)


def test_changed_code_is_noticed_and_a_copy_has_runs_of_its_own(tmp_path, monkeypatch, capsys):
    """Promise 3: one note, for a finished run and for one that continues; nothing is refused."""
    script = tmp_path / "exp_mine.py"
    shutil.copy(ROOT / "exp_locality.py", script)

    def mine(*flags):
        module = types.ModuleType("exp_mine")
        module.__file__ = str(script)
        exec(script.read_text(), module.__dict__)
        code = exit_code(module.main, *TINY, *flags, "--out", tmp_path)
        return code, capsys.readouterr().out.count("the code has changed since")

    assert mine() == (0, 0) and mine() == (0, 0)
    stop_at(3, lambda: mine("--seed", 1)[0])
    script.write_text(
        script.read_text().replace("def reach(", "def reach_of(").replace("{reach(", "{reach_of(")
    )
    assert mine() == (0, 1)  # still done
    assert mine("--seed", 1) == (0, 1)
    first, second = lines_of(tmp_path / "results.jsonl")
    assert first["exp"] == "mine" and first["run"].startswith("smoke-mine-text")
    assert [start["code"] for start in second["starts"]] == [first["code"], second["code"]]
    assert first["code"] != second["code"] and second["steps"] == 8
    (tmp_path / "models.py").write_text("another")
    monkeypatch.setattr(records, "__file__", str(tmp_path / "records.py"))
    assert records.code_hash(script) != second["code"]


def test_a_record_tells_every_start_of_its_run(run, tmp_path, monkeypatch):
    """Begun from uncommitted code in bf16, it ended committed in float32: neither is hidden. The commit is
    the one that was started, whatever lies there hours later."""
    commits, cast = iter([("before", True), ("after", False), ("later", True)]), []
    whole = common.multitask_loss
    monkeypatch.setattr(common, "git_state", lambda: next(commits))

    def loss_fn(model, batch):
        cast.append(torch.is_autocast_enabled("cpu"))
        return whole(model, batch)

    monkeypatch.setattr(common, "multitask_loss", loss_fn)
    stop_at(3, lambda: run(*TINY, "--amp", "bf16"))
    begun = len(cast)
    assert run(*TINY) == 0 and all(cast[:begun]) and len(cast) > begun + 5 and not any(cast[begun:])
    [record] = lines_of(tmp_path / "results.jsonl")
    assert (record["git"], record["dirty"], record["amp"]) == ("after", True, "off")
    assert [start["git"] for start in record["starts"]] == ["before", "after"]
    assert [start["amp"] for start in record["starts"]] == ["bf16", "off"]


def test_a_finished_run_that_is_trained_anew_can_be_stopped_and_continued(run, tmp_path):
    """Promise 1. Until its new record is written the old one is no reason to skip it, and not its weights';
    the old best weights stay until there are better ones."""
    args = types.SimpleNamespace(out=tmp_path, smoke=True, mini=False)
    assert run(*TINY) == 0 and len(records.finished_runs(args, "text", ("locality",))) == 1
    [best] = tmp_path.glob("*/best.pt")
    old = best.read_bytes()
    stop_at(1, lambda: run(*TINY, "--fresh"))
    assert best.read_bytes() == old and records.finished_runs(args, "text", ("locality",)) == []
    assert run(*TINY) == 0
    first, second = lines_of(tmp_path / "results.jsonl")
    assert first["test_acc"] == second["test_acc"] and first["run"] == second["run"]
    assert len(records.finished_runs(args, "text", ("locality",))) == 1


@pytest.mark.parametrize("fault", [["--device", "mps"], ["--micro-batch", 4, "--compile", "reduce-overhead"]])
def test_a_command_that_is_refused_drops_nothing(fault, run, tmp_path, capsys):
    """Promise 4: also with --fresh, also where a run has only begun."""
    assert run(*TINY) == 0
    stop_at(3, lambda: run(*TINY, "--seed", 1))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for flags in ([], ["--fresh"]):
        capsys.readouterr()
        assert run(*TINY, "--seeds", 2, *fault, *flags) == 2
        assert "error: --" in capsys.readouterr().err
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


HOLD = "import fcntl, sys; f = open(sys.argv[1], 'a'); fcntl.lockf(f, 2); print(flush=True); sys.stdin.read()"


def test_a_cell_that_cannot_be_trained_does_not_keep_the_others_from_their_turn(run, tmp_path, capsys):
    """Promise 2: one that another process is at is left to it with a note, and the code is 75. One that fails
    is named, and the code is 2. A killed process holds nothing."""
    stop_at(3, lambda: run(*TINY))
    [folder] = tmp_path.glob("smoke-*")
    capsys.readouterr()
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with subprocess.Popen([sys.executable, "-c", HOLD, folder / "lock"], **pipes) as other:
        other.stdout.readline()
        before = (folder / "last.pt").read_bytes()
        assert run(*TINY, "--kernel", 5, 7) == 75
        err = capsys.readouterr().err
        assert "another process" in err and "error" not in err
        assert (folder / "last.pt").read_bytes() == before
        other.kill()
    assert [line["cell"] for line in lines_of(tmp_path / "results.jsonl")] == [{"kernel": 7}]
    (folder / "last.pt").write_bytes(b"damaged")
    assert run(*TINY, "--kernel", 5, 7, 9) == 2
    assert "1 of 3 cells did not finish" in capsys.readouterr().err
    (folder / "last.pt").write_bytes(before)
    assert run(*TINY, "--kernel", 5, 7, 9) == 0
    assert [line["cell"]["kernel"] for line in lines_of(tmp_path / "results.jsonl")] == [7, 9, 5]


def test_a_limit_that_the_task_was_not_cut_to_is_refused(run, tmp_path, monkeypatch, capsys):
    """A record must not say what was not done: data of one's own are cut by the script."""
    monkeypatch.setattr(data, "load_recipe", lambda name, *_: data.load(name, "unused", smoke=True))
    assert run(*TINY) == 2
    assert "--limit" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_code_that_is_in_no_commit_is_dirty(tmp_path, monkeypatch):
    def git(*args):
        who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *who, *args], cwd=tmp_path, check=True, capture_output=True)

    script, copy = tmp_path / "exp_a.py", tmp_path / "exp_mine.py"
    monkeypatch.setattr(common, "__file__", str(script))
    script.write_text("1")
    for command in ("init", "add .", "commit -m a"):
        git(*command.split())
    (tmp_path / "notes.txt").touch()
    commit, dirty = common.git_state()
    assert re.fullmatch("[0-9a-f]{12}", commit) and not dirty
    copy.write_text("2")
    assert common.git_state() == (commit, True)
    copy.unlink()
    script.write_text("3")
    assert common.git_state() == (commit, True)


# ------------------------------------------------------------------------------------------ records


def append_many(path, worker):
    for i in range(200):
        records.append_record(path, RECORD | {"worker": worker, "seed": i, "padding": "x" * (i % 300)})
        if i % 50 == 0:
            with open(path, "ab") as f:  # one that is killed in the middle, when it has the lock
                fcntl.flock(f, fcntl.LOCK_EX)
                f.write(b'{"run": "half')


def test_many_processes_append_and_a_torn_piece_hides_no_line(tmp_path, capsys):
    """Promise 2. Pieces run into each other, never into a record."""
    path = tmp_path / "results.jsonl"
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=append_many, args=(path, w)) for w in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    with open(path, "a") as f:
        f.write(json.dumps(RECORD | {"worker": 4}))  # whole, without the end of its line: an editor's
    records.append_record(path, RECORD | {"worker": 5})
    *seen, last, after = ((line["worker"], line["seed"]) for line in records.read_records([path]))
    assert (last, after) == ((4, 0), (5, 0))
    assert sorted(seen) == [(w, i) for w in range(4) for i in range(200)]
    assert capsys.readouterr().err.count("warning") == 1


def test_what_is_no_record_is_left_out_with_one_warning(tmp_path, capsys):
    """Promises 4 and 7: any of its rows missing or of another type, and lines that are no JSON."""
    odd = (None, 7, 7.5, -0.5, "7", [0.5], {"a": 1}, math.nan)
    fits = dict.fromkeys(("run", "exp", "task", "model", "budget", "date"), 1)
    fits |= dict(cell=1, hp=1, data=0, val_acc=3, test_acc=0, seed=1, limit=2)  # of the odd values, so many
    lines = ["[1]", "7", '"text"', "{", "[" * 100_000, "\x00"]
    for key, count in fits.items():
        assert sum(records.is_record(RECORD | {key: value}) for value in odd) == count, key
        lines.append(json.dumps({k: v for k, v in RECORD.items() if k != key}))
    lines[7:7] = [json.dumps(RECORD), ""]
    path = tmp_path / "r.jsonl"
    path.write_bytes("\n".join(lines).encode() + b"\n\xff\xfe")
    found = records.read_records([path, tmp_path / "none.jsonl"])
    assert found == [RECORD, {k: v for k, v in RECORD.items() if k != "limit"}]  # without: all examples
    err = capsys.readouterr().err
    assert err.count("warning") == 1 and "line 1, 2, 3" in err


def test_a_report_takes_the_newest_of_equal_cells_and_only_its_tables_cells(tmp_path):
    """Promise 7: smoke runs and other scripts' never enter."""
    others = {"smoke": True}, {"task": "mine"}, {"model": "mine"}, {"exp": "mine"}
    others += ({"cell": {"kernel": 5, "gate": "mine"}}, {"task": "image", "run": "g"})
    found = [RECORD | {"date": "2026-01-02T00:00:00+00:00", "test_acc": 0.6}, RECORD]
    found += [RECORD | {"run": f"other {i}"} | rows for i, rows in enumerate(others)]
    path = tmp_path / "r.jsonl"
    path.write_text("\n".join(map(json.dumps, found)))
    for task, wanted in ((None, {"a": 0.6, "g": 0.5}), (["image"], {"g": 0.5})):
        args = types.SimpleNamespace(out=tmp_path, report=[path], task=task)
        chosen = records.report_records(args, "exp_locality.py", ("text", "image"), ("conv",), ["kernel"])
        assert {r["run"]: r["test_acc"] for r in chosen} == wanted


def test_a_plain_report_marks_short_runs_and_takes_a_task_without_records(tmp_path, capsys):
    line = RECORD | {"budget": "reduced", "hp": {"steps": 40, "limit_test": 200}}
    (tmp_path / "r.jsonl").write_text(json.dumps(line))
    args = types.SimpleNamespace(out=tmp_path, report=[tmp_path / "r.jsonl"], task=None)
    records.report_plain(args, "exp_locality.py")
    assert "| 40 steps, tested on 200 |" in capsys.readouterr().out
    args.task = ["listops"]
    records.report_plain(args, "exp_locality.py")
    assert "text" not in capsys.readouterr().out


def test_a_model_is_rebuilt_from_its_best_weights_or_refused(run, tmp_path):
    """Promise 4."""
    assert run(*TINY) == 0
    [best] = tmp_path.glob("*/best.pt")
    model, state = records.rebuilt(best, models.SequenceModel)
    assert all(torch.equal(p, state["model"][name]) for name, p in model.state_dict().items())
    wider = state | {"arguments": state["arguments"] | {"d_model": 48}}
    for content in (wider, state | {"arguments": {"a": 1}}, {"model": {}}, {}, [1]):
        common.save_checkpoint(best, content)
        with pytest.raises(common.UserError, match="best.pt"):
            records.rebuilt(best, models.SequenceModel)
    with pytest.raises(common.UserError, match="no such file"):
        records.rebuilt(tmp_path / "none.pt", models.SequenceModel)


# ------------------------------------------------------------------------------------------ old results


RECORDED = [line for path in sorted((ROOT / "results").glob("*.jsonl")) for line in lines_of(path)]


@pytest.mark.parametrize("line", [r for r in RECORDED if r["exp"] == "locality"], ids=lambda r: r["run"])
def test_a_recorded_run_of_table_1_has_the_identity_of_its_command(line, monkeypatch):
    """Of Text the denoising loss has changed since, and with it one row of the recipe, nothing else."""
    assert len(RECORDED) > 40 and all(map(records.is_record, RECORDED))
    rows = ("lr", "epochs") if line.get("mini") else ()  # changed after the first runs
    flags = [str(word) for row in rows for word in (f"--{row}", line["hp"][row])]
    found = [one for one, _ in planned(monkeypatch, *line["argv"][1:], *flags, made=line["data"]["hash"])]
    [identity] = [one for one in found if all(one[key] == line[key] for key in ("task", "cell", "seed"))]
    if line["hp"]["technique"] == "denoising" and "denoise_norm" not in line["hp"]:
        assert identity["hp"].pop("denoise_norm") == "set"
        if line["hp"].get("max_length", 0) is None:  # the oldest record says that no length was given
            identity["hp"]["max_length"] = None
    assert records.run_name(identity) == line["run"]


# ------------------------------------------------------------------------------------------ numbers


def test_summary_shows_mean_spread_and_n():
    reduced = {"budget": "reduced", "data": {"official": False}, "hp": {}}
    half, more = ({"test_acc": accuracy} | reduced for accuracy in (0.5, 0.6))
    assert records.summary([]) == "—"
    assert records.summary([half]) == "50.00 (n=1)"
    assert records.summary([half, more]) == "55.00 ± 7.07 (n=2)"
    stuck, learnt = ({"test_acc": accuracy, "chance": 0.501} | reduced for accuracy in (0.505, 0.905))
    assert records.summary([stuck, learnt]) == "70.50 ± 28.28 (n=2, 1 learnt)"
    assert records.summary([learnt | {"budget": "paper"}]) == "90.50 (n=1, not the official images)"


def test_of_several_recipes_the_one_that_validated_best_is_shown_not_the_one_that_tested_best():
    lines = [(1e-3, "a", 0.6, 0.5), (1e-4, "a", 0.5, 0.7), (1e-3, "a", 0.6, 0.52), (1e-3, "b", 0.5, 0.9)]
    found = [
        RECORD | {"hp": {"lr": lr}, "data": {"hash": made}, "val_acc": val, "test_acc": test}
        for lr, made, val, test in lines
    ]
    assert records.best_recipe(found) == [found[0], found[2]]


def seeds(*accuracies, test=10_000):
    return [RECORD | dict(test_acc=a, data={"hash": "a", "counts": {"test": test}}) for a in accuracies]


def test_a_standard_error_is_the_larger_of_what_seeds_and_the_test_set_say():
    """By hand: sqrt(0.5 * 0.5 / 10000) = 0.005; seeds 0.4 and 0.6 have the variance 0.02."""
    cells = seeds(0.5), seeds(0.5, 0.5, 0.5, 0.5), seeds(0.4, 0.6), seeds(0.5, test=2_500)
    for cell, error in zip(cells, (0.005, 0.0025, 0.1, 0.01)):
        assert records.mean_and_error(cell) == pytest.approx((0.5, error))


def test_a_claim_is_supported_contradicted_or_beyond_this_tier():
    """2.5 standard errors to each side: all of the interval inside what is claimed, none of it, or some."""
    wanted = {
        (8.0, 1.0, 5.0, math.inf): "supports",  # 5.5 to 10.5
        (7.4, 1.0, 5.0, math.inf): "beyond this tier",  # from 4.9
        (2.6, 1.0, 5.0, math.inf): "beyond this tier",  # to 5.1
        (2.4, 1.0, 5.0, math.inf): "CONTRADICTS",  # to 4.9
        (0.5, 0.3, -1.5, 1.5): "supports",  # -0.25 to 1.25
        (0.0, 1.0, -1.5, 1.5): "beyond this tier",  # on both sides
        (4.1, 1.0, -1.5, 1.5): "CONTRADICTS",  # from 1.6
        (-4.1, 1.0, -math.inf, -1.5): "supports",  # to -1.6
    }
    assert {case: records.verdict(*case) for case in wanted} == wanted


def test_claims_are_judged_from_signed_sums_of_at_least_two_seeds():
    """By hand: 60 - 50 = 10 points, errors 0.346 and 0.354 of the test set, together 0.495."""
    cells = {("image", "a"): seeds(0.6, 0.6), ("image", "b"): seeds(0.5, 0.5), ("image", "c"): seeds(0.9)}
    claims = [
        ("ahead", [(1, "image", "a"), (-1, "image", "b")], 5, None),
        ("equal", [(1, "image", "a"), (-1, "image", "b")], -1.5, 1.5),
        ("behind", [(-1, "image", "a"), (1, "image", "b")], None, -9),
        ("alone", [(1, "image", "a"), (-1, "image", "c")], 5, None),
        ("none", [(1, "image", "a"), (-1, "image", "d")], 5, None),
        ("one cell", [(1, "image", "a")], 55, None),
    ]
    shown = [[row.claim, row.measured, row.bounds, row.verdict] for row in records.judged(claims, cells)]
    assert shown == [
        ["ahead", "+10.0 ± 0.5 (n=2)", "≥ 5", "supports"],
        ["equal", "+10.0 ± 0.5 (n=2)", "-1.5 to 1.5", "CONTRADICTS"],
        ["behind", "-10.0 ± 0.5 (n=2)", "≤ -9", "beyond this tier"],
        ["alone", "-30.0 ± 0.5 (n=1 to 2)", "≥ 5", "one seed: not yet"],
        ["none", "—", "≥ 5", "not yet"],
        ["one cell", "+60.0 ± 0.3 (n=2)", "≥ 55", "supports"],
    ]


# ------------------------------------------------------------------------------------------ reports


def test_a_report_without_records_prints_the_papers_table(tmp_path, capsys, monkeypatch):
    """Promise 7: no file at all (of an empty one see test_scripts.py)."""
    monkeypatch.setattr(records, "__file__", str(tmp_path / "records.py"))  # beside it no results/
    monkeypatch.chdir(tmp_path)
    assert exit_code(exp_locality.main, "--report") == 0
    mini, full = capsys.readouterr().out.split("as the paper ran it")
    assert "not run yet" in mini and mini.count("not yet |") == 7
    table = [line for line in full.splitlines() if line.startswith("| ")]
    assert len(table) == 1 + 6 + 2 and len({line.count("|") for line in table}) == 1
    assert "| — / 88.96 |" in table[1] and "| — / 72.28 " in table[6] and len(table[1]) < 100
    assert Path("runs/table1.png").stat().st_size > 10_000


def test_reports_keep_budgets_apart_and_average_seeds(tmp_path, capsys):
    """Promise 7: paper, reduced, mini and smoke; two data sets under one recipe are not one mean either."""
    hp, mini = exp_locality.recipe("text", kernel=5), exp_locality.recipe("text", mini=True, kernel=5)
    half, small = hp | {"epochs": 4, "lr": 0.01}, RECORD | dict(budget="mini", mini=True, chance=0.5)
    found = [
        RECORD | dict(run="a", hp=hp, test_acc=0.89),
        RECORD | dict(run="b", hp=hp, test_acc=0.88, seed=1),
        RECORD | dict(run="c", hp=half, test_acc=0.85, budget="reduced"),
        RECORD | dict(run="d", hp=half, test_acc=0.9999, budget="reduced", smoke=True),
        RECORD | dict(run="e", hp=hp, test_acc=0.10, val_acc=0.4, data={"hash": "b", "official": False}),
        *(small | dict(run=f"m{i}", hp=mini, test_acc=0.7) for i in (0, 1)),
        small | dict(run="n", hp=mini | {"lr": 0.5}, test_acc=0.6),
    ]
    (tmp_path / "r.jsonl").write_text("\n".join(map(json.dumps, found)))
    assert exit_code(exp_locality.main, "--report", tmp_path / "r.jsonl", "--out", tmp_path) == 0
    out = capsys.readouterr().out
    small, rest = out.split("### Table 1, as the paper ran it")
    full, reduced = rest.split("### Table 1 at reduced budgets")
    assert "88.50 ± 0.71 (n=2) / 88.96 (97.87 of MEGA)" in full and "10.00" not in full
    assert "| 85.00 (n=1)" in reduced and "4 of 80 epochs, lr 0.01" in reduced and "88.50" not in reduced
    rows = [line for line in small.splitlines() if line.startswith("| K=5")]
    assert len(rows) == 2 and "70.0 ± 0.3 n=2 1 min (paper 89.0)" in rows[0]
    assert "K=5; lr 0.5" in rows[1] and "60.0 ± 0.5 n=1" in rows[1]
    assert "99.99" not in out and "70.00 (" not in rest and "88.50" not in small


def test_a_report_refuses_flags_that_it_would_not_heed(run, capsys):
    assert run("--report", "--kernel", "5", "--lr", "1e-3") == 2
    assert "--kernel" in (said := capsys.readouterr().err) and "--lr" in said
    assert run("--report", "--mini", "--task", "text") == 0
