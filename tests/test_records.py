"""records.py: what a run is, its record, the report. pytest tests/test_records.py"""

import argparse
import fcntl
import json
import math
import multiprocessing
import re
import subprocess
import sys
import types

import numpy
import pytest
import torch
from conftest import TINY, exit_code, flags_of_fit, lines_of, printed_tables, stop_at

import common
import data
import exp_kernels
import exp_locality
import exp_multitask
import models
import records
import tables

# What every table reads of a record.
RECORD = dict(run="a", exp="locality", task="text", model="conv", cell={"kernel": 5}, seed=0, limit=None)
RECORD |= dict(row="K=5", changes={}, tier="paper", date="2026-01-01", val_acc=0.5, test_acc=0.5)
RECORD |= dict(seconds=600.0, hp={}, data={"hash": "a", "counts": {"test": 10_000}}, smoke=False)


@pytest.fixture
def run(tmp_path):
    """exp_locality's exit code for a command whose --out is tmp_path."""
    return lambda *flags: exit_code(exp_locality.main, *flags, "--out", tmp_path)


# ------------------------------------------------------------------------------------------ one run


def test_a_record_has_every_field(run, tmp_path, capsys):
    assert run(*TINY, "--amp", "auto") == 0
    [record] = lines_of(tmp_path / "results.jsonl")
    fields = """exp task model cell seed row changes tier epochs steps test_acc val_acc best_epoch
    test_acc_last chance train_acc params seconds cpu_seconds epoch_seconds peak_gb device torch
    numpy python git dirty code argv hp data smoke mini amp ranks micro_batch compile graphs date""".split()
    assert {*fields} <= record.keys() and records.is_record(record)
    assert (record["row"], record["cell"], record["smoke"]) == ("K=5", {"kernel": 5}, True)
    assert record["data"]["counts"] == {"train": 512, "val": 128, "test": 128} and record["limit"] == 32
    assert len(record["data"]["hash"]) == 64 and record["steps"] == 8 and record["amp"] in ("bf16", "off")
    assert not list(tmp_path.glob("*/last.pt")) and list(tmp_path.glob("*/best.pt"))
    assert "table: smoke runs are in none" in capsys.readouterr().out


def test_a_run_is_done_once_and_a_smoke_run_always_runs(run, real_runs, tmp_path, capsys):
    """A smoke run checks an edit. --fresh trains a finished run again."""
    again = [*real_runs, "--fresh"]
    for flags, trained, is_done in (
        (TINY, 1, False), (TINY, 2, False), (real_runs, 3, False), (real_runs, 3, True), (again, 4, False),
    ):  # fmt: skip
        assert run(*flags) == 0 and len(lines_of(tmp_path / "results.jsonl")) == trained
        assert ("is done" in capsys.readouterr().out) == is_done
    first, second = lines_of(tmp_path / "results.jsonl")[2:]
    assert first["run"] == second["run"] and first["test_acc"] == second["test_acc"]


def planned(monkeypatch, *argv, made="d"):
    """(identity, changes, tier) of each cell of a command; nothing is trained, no data are made."""
    found = []

    def run_cell(args, script, *, row, task, model, cell, hp, table, seed, **rest):
        changes = records.changes_of(hp, table, args.limit)
        identity = records.make_identity(args, script, task, model, cell, seed, hp)
        found.append((identity, changes, records.tier_of(args, changes)))

    with monkeypatch.context() as patch:
        task = types.SimpleNamespace(source={"hash": made})
        patch.setattr(
            data, "load_for", lambda args, name, recipe, seed: task.__setattr__("name", name) or task
        )
        patch.setattr(data, "require", lambda names, args: names)
        patch.setattr(records, "run_cell", run_cell)
        patch.setattr(tables, "report", lambda *args, **more: None)
        exp_locality.main(list(argv))
    return found


def test_a_changed_flag_is_another_cell(monkeypatch):
    """Promise 3: what changes the result; what only says how it is computed is the same cell."""

    def names(flags):
        cells = planned(monkeypatch, "--task", "text", "--kernel", "5", *flags.split())
        return [records.run_name(identity) for identity, *_ in cells]

    changes = "--epochs 3|--steps 3|--lr 0.5|--batch-size 7|--weight-decay 0.25|--set-last-tenth|--no-bucket"
    changes += "|--limit 9|--max-length 99|--seed 1|--no-techniques|--norm-place post|--mini"
    changes += "|--smoke|--kernel 7|--task listops|--epochs 3 --lr 0.5"
    same = "--amp bf16|--micro-batch 2|--compile|--device cpu|--time-limit 9m|--out x|--data-dir x|--fresh"
    [plain], others = names(""), [name for flags in changes.split("|") for name in names(flags)]
    assert len({plain, *others}) == 1 + len(others) == 1 + len(changes.split("|"))
    assert all(names(flags) == [plain] for flags in same.split("|"))
    assert len({*names("--seed 4 --seeds 3")}) == 3


def test_what_is_not_the_papers_recipe_is_in_changes_and_said_in_words(monkeypatch):
    """Promise 7: (changes, their words, tier) of a command. Both readings of the last tenth are A's."""
    wanted = {
        "--task text": ({}, "", "paper"),
        "--task text --kernel 9 --epochs 80 --lr 1e-3": ({}, "", "paper"),
        "--task text --no-techniques": ({}, "", "paper"),
        "--task text --set-last-tenth": ({"set_last_tenth": True}, "last tenth set", "paper"),
        "--task text --mini": ({}, "", "mini"),
        "--task text --mini --lr 0.5": ({"lr": 0.5}, "lr 0.5", "mini"),
        "--task text --epochs 1": ({"epochs": 1}, "1 epoch", "reduced"),
        "--task text --epochs 81": ({"epochs": 81}, "81 epochs", "reduced"),
        "--task text --steps 9000 --limit 5000": (
            {"limit": 5000, "steps": 9000}, "5,000 examples, 9,000 steps", "reduced",
        ),
        "--task text --max-length 1064 --no-bucket": (
            {"max_length": 1064, "bucket": False}, "1,064 bytes, --no-bucket", "reduced",
        ),
        "--task image --augment none": ({"technique": None}, "no augmentation", "reduced"),
        "--task image --augment flip": ({"technique": "augment flip"}, "flips", "reduced"),
    }  # fmt: skip
    for flags, (changes, words, tier) in wanted.items():
        [(_, found, of)] = planned(monkeypatch, "--kernel", "5", *flags.split())
        assert (found, records.in_words(found), of) == (changes, words, tier), flags
    assert planned(monkeypatch, *"--task text --kernel 5 --smoke".split())[0][2] == "reduced"


def test_a_line_of_before_changes_is_shown_under_its_words_and_counts_as_done(reported, tmp_path):
    old = {k: v for k, v in RECORD.items() if k not in ("changes", "tier")}
    old |= {"terms": "4 of 80 epochs", "budget": "reduced", "test_acc": 0.7}
    tables, _ = reported([old], [])
    assert tables[LESS]["Text; 4 of 80 epochs"]["K=5"][0] == "70.00 ± 0.46 (1)"
    assert records.finished(tmp_path / "runs").keys() == {old["run"]}


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
    assert [line["seed"] for line in found] == [4, 5] and found[0]["run"] != found[1]["run"]
    assert all(given.items() <= line["hp"]["train"].items() for line in found)


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


def test_a_finished_run_that_is_trained_anew_can_be_stopped_and_continued(run, real_runs, tmp_path):
    """Promise 1. Until its new record is written the old one is no reason to skip it, and not its weights';
    the old best weights stay until there are better ones."""
    args = types.SimpleNamespace(out=tmp_path, smoke=False, mini=False)
    assert run(*real_runs) == 0 and len(records.finished_runs(args, "text", ("locality",))) == 1
    [best] = tmp_path.glob("*/best.pt")
    old = best.read_bytes()
    stop_at(1, lambda: run(*real_runs, "--fresh"))
    assert best.read_bytes() == old and records.finished_runs(args, "text", ("locality",)) == []
    assert run(*real_runs) == 0
    first, second = lines_of(tmp_path / "results.jsonl")
    assert first["test_acc"] == second["test_acc"] and first["run"] == second["run"]
    assert len(records.finished_runs(args, "text", ("locality",))) == 1


def test_a_command_that_is_refused_drops_nothing(run, tmp_path, capsys):
    """Promise 4: also with --fresh, also where a run has only begun."""
    assert run(*TINY) == 0
    stop_at(3, lambda: run(*TINY, "--seed", 1))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for flags in ([], ["--fresh"]):
        capsys.readouterr()
        assert run(*TINY, "--seeds", 2, "--device", "mps", *flags) == 2
        assert "error: --" in capsys.readouterr().err
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


HOLD = "import fcntl, sys; f = open(sys.argv[1], 'a'); fcntl.lockf(f, 2); print(flush=True); sys.stdin.read()"


def test_a_cell_that_cannot_be_trained_does_not_keep_the_others_from_their_turn(
    run, real_runs, tmp_path, capsys
):
    """Promise 2: one that another process is at is left to it with a note, and the code is 75. One that fails
    is named, and the code is 2. A killed process holds nothing."""
    stop_at(3, lambda: run(*real_runs))
    [folder] = tmp_path.glob("locality-*")
    capsys.readouterr()
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with subprocess.Popen([sys.executable, "-c", HOLD, folder / "lock"], **pipes) as other:
        other.stdout.readline()
        before = (folder / "last.pt").read_bytes()
        assert run(*real_runs, "--kernel", 5, 7) == 75
        err = capsys.readouterr().err
        assert "another process" in err and "error" not in err
        assert (folder / "last.pt").read_bytes() == before
        other.kill()
    assert [line["cell"] for line in lines_of(tmp_path / "results.jsonl")] == [{"kernel": 7}]
    (folder / "last.pt").write_bytes(b"damaged")
    assert run(*real_runs, "--kernel", 5, 7, 9) == 2
    assert "1 of 3 cells did not finish" in capsys.readouterr().err
    (folder / "last.pt").write_bytes(before)
    assert run(*real_runs, "--kernel", 5, 7, 9) == 0
    assert [line["cell"]["kernel"] for line in lines_of(tmp_path / "results.jsonl")] == [7, 9, 5]


def test_a_reason_that_several_cells_share_is_told_once(tmp_path, capsys):
    def fail(args, name, seed):
        raise common.UserError(f"no {name}")

    args = argparse.Namespace(seed=0, seeds=2, out=tmp_path)
    with pytest.raises(common.UserError, match="4 of 4"):
        records.run_cells(args, [("text",), ("image",)], fail)
    told = ["error: no text", "error: the same again", "error: no image", "error: the same again"]
    assert capsys.readouterr().err.splitlines() == told


def test_a_diverged_run_is_named_so_and_not_advised_to_repeat(run, real_runs, tmp_path, capsys):
    assert run(*real_runs, "--lr", "1e10") == 2
    assert "no longer a number" in capsys.readouterr().err
    assert run("--report") == 0
    out = capsys.readouterr().out
    assert "Diverged: " in out and "Not finished" not in out
    stop_at(3, lambda: run(*real_runs))
    assert run("--report") == 0 and "Not finished; repeat its command" in capsys.readouterr().out


def test_a_device_that_is_not_there_is_refused_where_the_cell_is_done(run, real_runs, capsys):
    missing = "mps" if torch.cuda.is_available() else "cuda"
    assert run(*real_runs) == 0 and run(*real_runs, "--device", missing) == 2
    assert f"error: --device {missing}" in capsys.readouterr().err


def test_a_run_ends_with_the_lines_that_load_its_model(run, tmp_path, capsys):
    assert run(*TINY) == 0
    *_, first, second = capsys.readouterr().out.strip().splitlines()
    assert first.split() == ["import", "exp_locality,", "records"]
    found = {}
    exec(f"{first.strip()}\n{second.strip()}", found)
    [best] = tmp_path.glob("*/best.pt")
    weights = torch.load(best, weights_only=True)["model"]
    assert all(torch.equal(p, weights[name]) for name, p in found["model"].state_dict().items())


class Biased(models.ResidualBlock):
    """A convolution behind a bias, which makes padding something else than 0."""

    def __init__(self, d_model):
        super().__init__(d_model)
        self.linear, self.conv = (
            torch.nn.Linear(d_model, d_model),
            torch.nn.Conv1d(d_model, d_model, 3, padding=1),
        )

    def mix(self, z, mask):
        return self.conv(self.linear(z).mT).mT


class Mean(models.ResidualBlock):
    """The mean of what it is given, padding too: what a newcomer writes."""

    def __init__(self, d_model, cut=0):
        super().__init__(d_model)
        self.linear, self.cut = torch.nn.Linear(d_model, d_model), cut

    def mix(self, z, mask):
        return self.linear(z.mean(1, keepdim=True)).expand_as(z)[:, self.cut :]


def test_a_block_that_reads_padding_or_has_a_wrong_shape_is_named(monkeypatch, tmp_path):
    """And none of ours reads it, of single documents or of pairs."""
    monkeypatch.setitem(models.BLOCKS, "mean", Mean)
    tables = exp_kernels.TABLES | exp_multitask.TABLES
    for name in ("text", "retrieval"):
        task = data.load(name, "", smoke=True)
        for bad, what in ((Mean, "features"), (Biased, "features")):
            monkeypatch.setitem(models.BLOCKS, "bad", bad)
            words = f"{bad.__name__} reads padding: longer padding changes its {what} by"
            assert words in records.reads_padding(models.SequenceModel("bad", 1, 8, **task.sizes), task)
        for block, table in tables.items():
            recipe = common.with_rows(common.column(*table, name), exp_kernels.SMOKE)
            model = models.SequenceModel(**recipe["model"], **task.sizes)
            assert records.reads_padding(model, task) == "", block
    short = models.SequenceModel("mean", 1, 8, cut=1, **task.sizes)
    words = r"the block Mean made \(32, \d+, 8\) of \(32, \d+, 8\); it must keep the shape"
    with pytest.raises(common.UserError, match=words):
        with records.faults_in_words(tmp_path, short, 16, None):
            args = flags_of_fit()
            hp = dict(lr=1e-3, weight_decay=0.1, batch_size=16, epochs=1)
            common.fit(short, task, common.classify_loss, hp, args, tmp_path)


def test_a_limit_that_the_task_was_not_cut_to_is_refused(run, tmp_path, monkeypatch, capsys):
    """A record must not say what was not done: data of one's own are cut by the script."""
    monkeypatch.setattr(data, "load_for", lambda args, name, *_: data.load(name, "unused", smoke=True))
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
    for i in range(100):
        records.append_record(path, RECORD | {"worker": worker, "seed": i, "padding": "x" * (i % 300)})
        if i % 25 == 0:
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
    assert sorted(seen) == [(w, i) for w in range(4) for i in range(100)]
    assert capsys.readouterr().err.count("warning") == 1


def test_what_is_no_record_is_left_out_with_one_warning(tmp_path, capsys):
    """Promises 4 and 7: any of its rows missing or of another type, and lines that are no JSON."""
    odd = (None, 7, 7.5, -0.5, "7", [0.5], {"a": 1}, math.nan)
    fits = dict.fromkeys(("run", "exp", "task", "model", "row", "tier", "date"), 1)
    fits |= dict(
        cell=1, changes=1, hp=1, data=0, seed=1, val_acc=3, seconds=3, test_acc=0
    )  # of the odd values, so many
    lines = ["[1]", "7", '"text"', "{", "[" * 100_000, "\x00"]
    for key, count in fits.items():
        assert sum(records.is_record(RECORD | {key: value}) for value in odd) == count, key
        lines.append(json.dumps({k: v for k, v in RECORD.items() if k != key}))
    lines[7:7] = [json.dumps(RECORD), ""]
    path = tmp_path / "r.jsonl"
    path.write_bytes("\n".join(lines).encode() + b"\n\xff\xfe")
    assert records.read_records([path, tmp_path / "none.jsonl"]) == [RECORD]
    err = capsys.readouterr().err
    assert err.count("warning") == 1 and "line 1, 2, 3" in err
    assert records.is_record(RECORD | {"test_acc": -0.5, "score": "R^2"})  # of a pretraining


def test_a_model_is_rebuilt_from_its_best_weights_or_refused(run, tmp_path):
    """Promise 4."""
    assert run(*TINY) == 0
    [best] = tmp_path.glob("*/best.pt")
    model, state = records.rebuild(best)
    assert all(torch.equal(p, state["model"][name]) for name, p in model.state_dict().items())
    wider = state | {"arguments": state["arguments"] | {"d_model": 48}}
    for content in (wider, state | {"arguments": {"a": 1}}, {"model": {}}, [1]):
        common.save_checkpoint(best, content)
        with pytest.raises(common.UserError, match="best.pt"):
            records.rebuild(best)
    with pytest.raises(common.UserError, match="no such file"):
        records.rebuild(tmp_path / "none.pt", models.SequenceModel)


# ------------------------------------------------------------------------------------------ numbers


def seeds(*accuracies, test=10_000, **rows):
    """Records of one row; every seed is a run of its own."""
    recipe = f"{rows.get('tier')} {rows.get('changes')}"
    more = {"hp": {"train": {"recipe": recipe}}, "data": {"hash": "a", "counts": {"test": test}}} | rows
    return [RECORD | dict(run=f"{rows} {i}", seed=i, test_acc=a) | more for i, a in enumerate(accuracies)]


def test_a_standard_error_is_the_larger_of_what_seeds_and_the_test_set_say():
    """By hand: sqrt(0.5 * 0.5 / 10000) = 0.005; seeds 0.4 and 0.6 have the variance 0.02."""
    cells = seeds(0.5), seeds(0.5, 0.5, 0.5, 0.5), seeds(0.4, 0.6), seeds(0.5, test=2_500)
    for cell, error in zip(cells, (0.005, 0.0025, 0.1, 0.01)):
        assert records.mean_and_error(cell) == pytest.approx((0.5, error))


def test_a_rule_without_a_network_has_no_error_of_the_networks_seeds(monkeypatch):
    """By hand: a pooled variance of 0.04 is an error of 0.2; that of 10,000 examples is 0.005."""
    monkeypatch.setattr(records, "pooled_variance", lambda tier, task: (0.04, 3))
    for model, error in (("conv", 0.2), ("linear", 0.005), ("rule", 0.005)):
        assert records.mean_and_error(seeds(0.5, model=model)) == pytest.approx((0.5, error))


def test_a_cost_has_the_pretraining_in_it():
    (first,) = seeds(0.5, exp="spt-pretrain", score="accuracy", cpu_seconds=240)
    (line,) = seeds(0.5, exp="spt", cpu_seconds=120, pretraining={"run": first["run"]})
    (shown,) = records.rows_of([first, line], "spt", {})
    assert tables.cost([shown]) == "6 min" and tables.cost([line]) == "2 min"


def test_summary_shows_mean_error_and_how_many_learnt():
    """By hand: seeds 0.5 and 0.6 differ by a standard error of 0.05."""
    assert tables.summary([]) == "—"
    assert (
        tables.summary(seeds(0.5)) == "50.00 ± 0.50 (1)"
        and tables.summary(seeds(0.5, 0.6)) == "55.00 ± 5.00 (2)"
    )
    assert tables.summary(seeds(0.5, 0.6, tier="mini")) == "55.0 ± 5.0 (2)"
    assert tables.summary(seeds(0.505, 0.905, chance=0.501)) == "70.50 ± 20.00 (2, 1 above chance)"
    assert tables.summary(seeds(0.505, chance=0.501)) == "50.50 ± 0.50 (1, at chance)"


def test_of_several_recipes_the_one_that_validated_best_is_shown_not_the_one_that_tested_best():
    lines = [(1e-3, "a", 0.6, 0.5), (1e-4, "a", 0.5, 0.7), (1e-3, "a", 0.6, 0.52), (1e-3, "b", 0.5, 0.9)]
    found = [
        RECORD | {"hp": {"lr": lr}, "data": {"hash": made}, "val_acc": val, "test_acc": test}
        for lr, made, val, test in lines
    ]
    best, note = records.one_recipe(found)
    assert best == [found[0], found[2]]
    assert note == "K=5: not counted are 1 with lr 0.0001; 1 with other data; validated worse."


# ------------------------------------------------------------------------------------------ reports

COLUMNS, TITLES = ("text", "listops"), {"text": "Text", "listops": "ListOps"}
PAPER = {"K=5": (88.96, 45.24, 67.10), "K=31": (89.33, "infeasible")}


@pytest.fixture
def reported(tmp_path, monkeypatch, capsys):
    """What a report prints of some records: its tables, see printed_tables, and the whole text."""

    def report(yours, ours, *flags, script="exp_locality.py", **more):
        for name, lines in (("runs", yours), ("results", ours)):
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / "results.jsonl").write_text("\n".join(map(json.dumps, lines)))
        monkeypatch.setattr(records, "RESULTS", tmp_path / "results")
        monkeypatch.setattr(tables, "save_figure", lambda figure, path: None)
        argv = ["--report", "--out", str(tmp_path / "runs"), *flags]
        args = common.parse_args(common.make_parser("", COLUMNS), argv)
        leads = {name: tables.Lead(*lead) for name, lead in more.pop("leads", {}).items()}
        tables.report(args, script, "Table 1", COLUMNS, TITLES, PAPER, leads=leads, **more)
        out = capsys.readouterr().out
        return printed_tables(out), out

    return report


FULL, LESS, SMALL = (f"Table 1 ({tier})" for tier in records.TIERS.values())


def test_yours_and_the_repositorys_stand_in_columns_of_their_own(reported):
    """Never one mean of both; a record of yours that lies in results/ is the repository's. Without any of
    yours there is no column for them."""
    ours = seeds(0.8, 0.9)
    tables, out = reported([*seeds(0.5, 0.6, code="x"), ours[0]], ours)
    assert tables[FULL]["Text"]["Text"] == ["yours", "this repository", "cost", "paper", "difference"]
    assert tables[FULL]["Text"]["K=5"] == [
        *("55.00 ± 5.00 (2)", "85.00 ± 5.00 (2)", "10 min", "88.96", "-33.96 ± 5.00")
    ]
    tables, out = reported([], ours)
    assert tables[FULL]["Text"]["K=5"] == ["85.00 ± 5.00 (2)", "10 min", "88.96", "-3.96 ± 5.00"]


def test_a_report_keeps_tiers_changes_and_tasks_apart_and_leaves_smoke_runs_out(reported):
    """Promise 7: what is not the paper's recipe has a table of its own. Of a run that was repeated the
    newest counts."""
    yours = [
        *seeds(0.885, 0.895),
        *seeds(0.85, changes={"epochs": 4}, tier="reduced"),
        *seeds(0.7, tier="mini", chance=0.5),
        *seeds(0.6, tier="mini", changes={"lr": 0.5}),
        *seeds(0.4, task="listops", row="K=31", cell={"kernel": 31}),
        *seeds(0.9999, smoke=True, row="K=31", cell={"kernel": 31}),
        RECORD | dict(run="again", row="K=7", cell={"kernel": 7}, date="2026-01-02", test_acc=0.3),
        RECORD | dict(run="again", row="K=7", cell={"kernel": 7}, date="2026-01-01", test_acc=0.2),
    ]
    tables, out = reported(yours, [])
    full = tables[FULL]
    assert full["Text"]["K=5"] == ["89.00 ± 0.50 (2)", "10 min", "88.96", "+0.04 ± 0.50"]
    assert full["Text"]["K=31"] == ["", "", "89.33", ""] and list(full["Text"]) == ["Text", "K=5", "K=31"]
    assert full["Text; not in the paper's table"]["K=7"][0] == "30.00 ± 0.46 (1)"
    assert full["ListOps"]["K=31"] == ["40.00 ± 0.49 (1)", "10 min", "infeasible"]
    assert tables[LESS] == {
        "Text": {"Text": ["yours", "cost", "paper, full"]},
        "Text; 4 epochs": {"K=5": ["85.00 ± 0.36 (1)", "10 min", "88.96"]},
    }
    assert tables[SMALL]["Text"]["K=5"][0] == "70.0 ± 0.5 (1)" and len(tables[SMALL]["Text"]) == 2
    assert "Other rates, Text: K=5 60.0 ± 0.5 (1) at lr 0.5." in out and "99.99" not in out
    assert reported(yours, [], "--task", "listops", "--mini")[0].get(SMALL, {}) == {}
    tables, out = reported([], yours)  # the repository's other tiers are for those who ask
    assert [*tables] == [FULL] and "--report --mini\n" in out and "--report --all-tiers\n" in out
    assert [*reported([], yours, "--mini")[0]] == [SMALL]
    assert [*reported([], yours, "--all-tiers")[0]] == [LESS, SMALL, FULL]


def test_averages_are_over_whole_rows(reported):
    """By hand: (80 + 50) / 2 = 65."""
    tables, _ = reported(
        [*seeds(0.8), *seeds(0.5, task="listops"), *seeds(0.9, row="K=31", cell={"kernel": 31})], []
    )
    assert tables[FULL]["average of 2"] == {
        "average of 2": ["yours", "paper"],
        "K=5": ["65.00", "67.10"],
    }


def test_a_row_that_no_table_knows_is_shown_and_another_scripts_only_where_it_is_asked_for(reported):
    """A new key in `cell`, with its row, needs nothing else. A training that two scripts have counts once."""
    lines = seeds(0.5, cell={"kernel": 5, "mine": 1}, row="K=5, mine") + seeds(0.6, exp="multitask", row="b")
    tables, out = reported(lines, [])
    assert [*tables[FULL]["Text; not in the paper's table"]] == ["K=5, mine"] and "60.00" not in out
    twin = seeds(0.7, cell={"kernel": 5, "techniques": "no"}, row="K=5, no techniques")
    assert "K=5, no techniques" in reported(twin, [])[0][FULL]["Text"]
    also = {"multitask": lambda r: {part: lines[0][part] for part in ("row", "model", "cell")}}
    for seed, shown in (
        (0, "50.00 ± 0.50 (1)"),
        (1, "55.00 ± 5.00 (2)"),
    ):  # of the same seed this script's counts
        lines[1]["seed"] = seed
        of_mine = reported(lines, [], also=also)[0][FULL]["Text; not in the paper's table"]
        assert of_mine["K=5, mine"][0] == shown


def test_mini_runs_of_another_script_need_one_of_this_on_their_task(reported):
    """And the recipe says how accurate all were in training at their end, but those of a changed recipe."""
    same = dict(tier="mini", train_acc=0.71, hp={"train": {"lr": 1e-3}})
    own, other = (seeds(0.5, exp=exp, **same) for exp in ("locality", "multitask"))
    guests = [r | {"task": task, "run": task, "train_acc": 0.8} for r in other for task in COLUMNS]
    longer = seeds(0.5, tier="mini", changes={"epochs": 9}, train_acc=0.99, row="K=7", cell={"kernel": 7})
    also = {"multitask": lambda r: {"row": "K=31", "cell": {"kernel": 31}}}
    guests += seeds(0.5, task="listops")  # of this script, at full size
    for lines, shown in ((own + longer + guests, {"Text"}), (guests, set())):
        tables, out = reported(lines, [], "--mini", also=also)
        assert {*tables.get(SMALL, {})} & {*TITLES.values()} == shown


LEFT_OUT = "Recipes, other trainings, further rows: --all-tiers\n"


def test_changed_recipes_of_few_seeds_are_left_to_all_tiers_unless_they_are_yours(reported):
    few = seeds(0.5, 0.6, tier="mini", changes={"epochs": 9})
    ours = few + seeds(0.5, 0.6, 0.7, tier="mini", changes={"epochs": 8})
    ours += seeds(0.5, 0.6, 0.7, tier="mini", changes={"limit": 7})
    mine = seeds(0.5, code="x", tier="mini", changes={"epochs": 9})
    left, eight, nine, fewer = LEFT_OUT, "8 epochs", "9 epochs", "7 examples"
    for yours, flags, shown in (
        ([], (), {eight, fewer}), ([], ("--all-tiers",), {eight, nine, fewer}),
        (mine, (), {eight, nine, fewer}),
    ):  # fmt: skip
        tables, out = reported(yours, ours, "--mini", *flags)
        assert {name.split("; ")[-1] for name in tables[SMALL] if "; " in name} == shown
        assert (left in out) == (not flags)


def test_a_task_of_one_row_is_left_to_all_tiers_unless_it_is_yours(reported):
    ours = seeds(0.6, 0.6, 0.6, tier="mini")
    ours += seeds(0.5, 0.5, 0.5, tier="mini", row="K=31", cell={"kernel": 31})
    ours += seeds(0.4, 0.4, 0.4, tier="mini", task="listops")
    mine = seeds(0.4, code="x", tier="mini", task="listops")
    for yours, flags, shown in (([], (), False), ([], ("--all-tiers",), True), (mine, (), True)):
        tables, out = reported(yours, ours, "--mini", *flags)
        assert ("ListOps" in tables[SMALL]) == shown and "Text" in tables[SMALL]
        assert (LEFT_OUT in out) == (not flags)


def test_models_that_the_paper_does_not_have_are_left_to_all_tiers_unless_they_are_yours(reported):
    """K = 5 is a row of the table, "no norm" of a sentence, the bag what they are compared with."""
    ours = seeds(0.6, 0.6, 0.6, tier="mini")
    for row in ("no norm", "my own", "K=1 (bag of symbols)"):
        ours += seeds(0.5, 0.5, 0.5, tier="mini", row=row, cell={"kernel": 1 if "bag" in row else row})
    mine = seeds(0.4, code="x", tier="mini", row="my own", cell={"kernel": "my own"})
    leads = {"lead": ("K=5", "no norm", 0.0), "ours": ("K=5", "my own")}
    for yours, flags, shown in (([], (), False), ([], ("--all-tiers",), True), (mine, (), True)):
        tables, out = reported(yours, ours, "--mini", *flags, leads=leads)
        found = {"K=5", "no norm", "K=1 (bag of symbols)", *["my own"] * shown}
        beyond = tables[SMALL]["Text; not in the paper's table"]
        assert found == {*tables[SMALL]["Text"], *beyond} - {"Text"}
        assert (LEFT_OUT in out) == (not flags)


def test_a_recipe_says_what_few_rows_have_instead(capsys):
    rows = {"S4": (0.003, 4), "S5": (0.003, 4), "K=1": (0.001, 5), "K=5": (0.003, 5), "K=7": (0.001, 4)}
    rows |= {"K=9": (0.001, 5), "S4D": (0.003, 4), "DLR": (0.003, 4)}
    rows = {label: {"lr": lr, "epochs": epochs, "examples": 45_000} for label, (lr, epochs) in rows.items()}
    read = dict(task="image", tier="paper", model="s4", cell={}, data={"official": False})
    tables.print_recipe("Image", rows | {"no network": {}}, [read], "as symbols")
    words = "Recipe, Image: 4 epochs, 45,000 examples, lr 0.003, inputs of at most 1,024 pixels, as symbols. "
    words += "Not the official images. - K=1; K=9: 5 epochs, lr 0.001 - K=5: 5 epochs - K=7: lr 0.001"
    assert " ".join(capsys.readouterr().out.split()) == " ".join(words.split())
    tables.print_recipe("Image", {"no network": {}}, [])
    assert capsys.readouterr().out == ""


def test_no_techniques_are_compared_with_every_technique(reported):
    """By hand: 50 over 30 is +20 by the table's technique, 60 over 30 is +30 by another."""
    plain, other = {"epochs": 9}, {"epochs": 9, "technique": "augment paper"}
    hp = {"model": {}, "train": {"technique": None}}
    ours = [*seeds(0.5, changes=plain), *seeds(0.6, changes=other)]
    ours += seeds(0.3, changes=plain, row="K=5, no techniques", cell={"techniques": "no"}, hp=hp)
    tables, _ = reported([], ours, leads={"techniques": ("K=5", "K=5, no techniques")})
    gaps = tables[FULL]["how far ahead, in points; techniques"]
    assert [(row, cells[0][:5]) for row, cells in gaps.items()] == [
        ("Text, 9 epochs", "+20.0"), ("Text, 9 epochs,", ""), ("A's augmentation", "+30.0"),
    ]  # fmt: skip


def test_how_far_a_row_is_ahead_is_a_table_and_a_rule_without_a_network_stands_below(reported):
    """By hand: 60 over 50 is +10; errors .49 and .5 of one seed with 10,000 examples; the paper has 88.96 and
    89.33."""
    ours = [*seeds(0.6, row="K=31", cell={"kernel": 31}), *seeds(0.5)]
    for changes in ({"lr": 1, "clip": 2}, {"lr": 3}):
        ours += seeds(0.7, row="K=31", cell={"kernel": 31}, changes=changes) + seeds(0.5, changes=changes)
    rule = seeds(0.91, exp="ngrams", cell={"n": 6}, row="six bytes")
    rule += seeds(0.1, exp="ngrams", cell={"n": 6}, row="less", tier="reduced", changes={"limit": 9})
    rule += seeds(0.2, exp="ngrams", cell={"n": 6}, row="another task", task="listops")
    floors = {"text": {"exp": "ngrams", "cell": {"n": 6}}}
    leads = {"wide over narrow": ("K=31", "K=5"), "K=31 over K=7": ("K=31", "K=7")}
    tables, out = reported([], rule[::-1] + ours, leads=leads, floors=floors)
    gaps = tables[FULL]["how far ahead, in points; wide over narrow"]
    assert gaps == {  # no rates that were tried
        "Text": ["+10.00 (1 seed)", "+0.37"],
        "Text, clip 2, lr 1": ["+20.00 (1 seed)", "+0.37"],
    }
    assert "K=31 over K=7" not in out  # no such row
    assert tables[FULL]["Text"]["no network"] == ["91.00 ± 0.29 (1)", "10 min", "", ""]
    assert "of tasks not run here at full size" in out  # ListOps
    (papers,) = [table for table in tables[FULL].values() if "ListOps" in table.get("", [])]
    assert papers["K=5"] == ["45.24", "67.10"]


def test_the_end_of_an_interval_is_on_its_side_of_0_and_2():
    assert tables.ends(-1.24, 1.66) == "[-1.2, 1.7]"
    assert tables.ends(1.98, 4.7) == "[1.98, 4.7]" and tables.ends(-2.04, 0.02) == "[-2.04, 0.02]"


def test_a_mini_gap_has_its_interval_and_its_answer(reported, monkeypatch):
    """By hand: 60 less 60 % of three seeds and 10,000 examples is 0.0 ± 0.4, of 100 it is 5.0 ± 3.8; 60 less
    50 is +10, 40 less 50 -10; the paper has +0.37, or says 0, or has no such row. Two seeds have an error and
    no interval; fewer examples are no longer training. Student's t of 95 % is 2.23."""
    cells = [({}, 4, 0.6, 0.5, 3), ({"epochs": 2}, 2, 0.4, 0.5, 3), ({"epochs": 9}, 9, 0.6, 0.6, 3)]
    cells += [({"limit": 9, "epochs": 20}, 20, 0.65, 0.6, 3), ({"epochs": 99}, 99, 0.9, 0.5, 2)]
    ours = []
    for changes, epochs, one, other, n in cells:
        rows = dict(tier="mini", changes=changes, hp={"model": {}, "train": {"epochs": epochs}})
        rows["test"] = 100 if "limit" in changes else 10_000
        ours += seeds(*[one] * n, row="K=31", cell={"kernel": 31}, **rows) + seeds(*[other] * n, **rows)
    leads = {
        "wide": ("K=31", "K=5"),
        "of words": ("K=31", "K=5", 0.0),
        "nowhere": ("K=31", "K=5", ("a", "b")),
    }
    tables, out = reported([], ours, "--mini", "--all-tiers", leads=leads)
    wanted = {
        ", 4 epochs": ["+10.0 [9.1, 10.9]", "no"],
        ", 2 epochs": ["-10.0 [-10.9, -9.1]", "no"],
        ", 9 epochs": ["+0.0 [-0.9, 0.9]", "yes"],
        ", 99 epochs": ["+40.0 ± 0.4 (2)", ""],
        ", 9 examples, 20 epochs": ["+5.0 [-3.4, 13.4]", "open"],
    }
    for name, paper in (("wide", "+0.37"), ("of words", "≈ 0")):
        rows = tables[SMALL][f"how far ahead, in points; {name}"]
        assert {row.removeprefix("Text"): [cells[0], cells[2]] for row, cells in rows.items()} == wanted
        assert {cells[1] for cells in rows.values()} == {paper}
    assert "- wide: Text -10.0 to +10.0; yes in 1 of 4, no in 2, open in 1\n- of words: " in out
    assert "- nowhere" not in out and "As the paper says, or better: 2 of 8; not: 4; open: 2." in out
    rows = tables[SMALL]["how far ahead, in points; nowhere"]
    assert [cells[1:] for cells in rows.values()] == [["", ""]] * 5
    suits = {side: ("K=31", "K=5", 0.0, side) for side in "+-"}  # a gap even more than none
    suits |= {"four more": ("K=31", "K=5", 4.0), "four less": ("K=31", "K=5", -4.0)}
    tables, _ = reported([], ours, "--mini", "--all-tiers", leads=suits)
    for name, *answers in (
        ("+", "better", "no", "yes"), ("-", "no", "better", "yes"),
        ("four more", "yes", "no", "no"), ("four less", "no", "yes", "no"),
    ):  # fmt: skip
        rows = tables[SMALL][f"how far ahead, in points; {name}"]
        assert [rows[f"Text, {epochs} epochs"][2] for epochs in (4, 2, 9)] == answers
    with monkeypatch.context() as patch:
        patch.setattr("tables.at_bag", bool)  # as if no model had learnt an order
        tables, out = reported([], ours, "--mini", leads=suits)
        assert "- four more: Text -10.0 to +10.0; open in 4 of 4\n" in out
        # A gap of "as good" is judged without an order, too.
        assert "- +: Text -10.0 to +10.0; yes in 1 of 4, better in 1, no in 1, open in 1\n" in out
        for name, answer in (("four more", "open°"), ("+", "better")):
            assert tables[SMALL][f"how far ahead, in points; {name}"]["Text, 4 epochs"][2] == answer
    # If not asked for more, those that the paper has, of three seeds.
    tables, out = reported([], ours, "--mini", leads=leads)
    for name in ("wide", "of words"):
        rows = [*tables[SMALL][f"how far ahead, in points; {name}"]]
        assert rows == [f"Text{words}" for words in (*wanted,) if words != ", 99 epochs"]
    assert "how far ahead, in points; nowhere" not in tables[SMALL]
    assert "how far ahead" not in reported([], ours, leads=leads)[1]  # a report of full size
    # With the rows exchanged it is behind.
    first = [r for r in ours if r["changes"] in ({}, {"epochs": 99})]
    leads["narrow"] = ("K=5", "K=31")
    tables, _ = reported([], first, "--mini", leads=leads)
    for name, gap in (("wide", "+10.0 [9.0, 11.0]"), ("narrow", "-10.0 [-11.0, -9.0]")):  # t: 2.45
        (cells,) = tables[SMALL][f"how far ahead, in points; {name}"].values()
        assert [cells[0], cells[2]] == [gap, "no"]
    # As mini Pathfinder, which is not the paper's task: its table says nothing of it.
    wide = {"wide": ("K=31", "K=5", ("K=31", "K=5")), "of words": ("K=31", "K=5", math.inf)}
    monkeypatch.setattr("tables.OTHER_TASK", {("mini", "text")})
    tables, _ = reported([], first, "--mini", "--all-tiers", leads=wide)
    for name, *paper in (("wide", "", ""), ("of words", "> 0", "yes")):
        rows = tables[SMALL][f"how far ahead, in points; {name}"]  # in two lines
        assert {row: cells[1:] for row, cells in rows.items() if "99" not in row} == {
            "Text, an easy level,": ["", ""], "4 epochs": paper,
        }  # fmt: skip


def test_a_bag_of_symbols_stands_below_the_mini_rows_once(reported):
    """That of exp_locality, K = 1: its own report has it as a row."""
    bag = dict(row="K=1 (bag of symbols)", cell={"kernel": 1}, tier="mini", changes={})
    ours = [r for exp in ("locality", "kernels") for r in seeds(0.6, exp=exp, tier="mini")]
    ours += seeds(0.5, 0.52, exp="locality", **bag)
    for script in ("exp_locality.py", "exp_kernels.py"):
        tables, out = reported([], ours, "--mini", script=script)
        assert tables[SMALL]["Text"]["K=1 (bag of symbols)"][0] == "51.0 ± 1.0 (2)"
        assert out.count("K=1 (bag") == 1


def test_a_rule_of_the_mini_tier_stands_beside_the_best_network_of_its_task(reported, monkeypatch):
    best = seeds(0.6, 0.7, tier="mini", row="K=31", cell={"kernel": 31})  # 65 on average
    others = seeds(0.9) + seeds(0.9, tier="mini", task="listops") + seeds(0.6, tier="mini")
    rule = seeds(0.95, tier="mini", exp="ngrams", model="linear", cell={"n": 6})
    monkeypatch.setattr(records, "published", lambda: best + others + rule)
    assert tables.best_network(rule[0]).endswith("here has 65.0 (K=31)")
    assert (
        tables.best_network(rule[0] | {"tier": "paper"})
        == tables.best_network(rule[0] | {"task": "image"})
        == ""
    )


def test_a_copy_is_compared_with_its_original(reported):
    """By hand: 0.6 against 0.5, of 10,000 test examples each and two seeds: errors sqrt(.24 / 2e4) = .346 and
    sqrt(.25 / 2e4) = .354 points, together .495. Without runs of yours the repository's are the others."""
    argv = ["my.py", "--kernel", "31"]
    mine = [*seeds(0.6, 0.6, exp="my"), *seeds(0.7, exp="my", row="K=31", cell={"kernel": 31}, argv=argv)]
    original = [*seeds(0.5, 0.5), *seeds(0.9, tier="reduced", row="K=31")]
    against = ("--against", "exp_locality.py")
    for yours, ours, whose in ((mine, original, "this repository's"), ([*mine, *original], [], "yours")):
        tables, text = reported(yours, ours, *against, script="my.py")
        assert "needs the original with the same flags: python exp_locality.py --kernel 31\n" in text
        rows = tables[f"my (yours) against locality ({whose})"][""]
        assert rows["Text, K=5"] == [
            "full size", "60.00 ± 0.35 (2)", "50.00 ± 0.35 (2)", "+10.00 ± 0.49",
        ]  # fmt: skip
        assert rows["Text, K=31"][1:] == ["70.00 ± 0.46 (1)", "—", "—"]  # the other was trained for less
    # Its own table has no tables of rows that nobody ran.
    tables, _ = reported(seeds(0.6, exp="my", tier="mini"), original, script="my.py")
    assert tables.keys() == {SMALL}
    own = seeds(0.6, 0.6, exp="my", row="mine", changes={"lr": 0.01})
    other = seeds(0.5, 0.5, changes={"lr": 0.01})
    tables, _ = reported(own, other, "--against", "exp_locality.py:K=5", script="my.py")
    rows = tables["my (yours) against locality (this repository's)"][""]
    assert rows["Text, mine; lr 0.01"][2:] == ["50.00 ± 0.35 (2)", "+10.00 ± 0.49"]
    slow, fast = (dict(train=dict(lr=lr)) for lr in (1, 7))
    mine, other = seeds(0.6, exp="my", hp=slow), seeds(0.5, hp=fast)
    assert "Text, K=5: lr is 1, in the original 7." in reported(mine, other, *against, script="my.py")[1]
    with pytest.raises(common.UserError, match="locality has no row K=9; it has K=5"):
        reported(mine, other, "--against", "exp_locality.py:K=9", script="my.py")
    with pytest.raises(common.UserError, match="no finished run"):
        reported([], original, *against, script="my.py")
    with pytest.raises(common.UserError, match="only smoke runs"):
        reported(seeds(0.6, exp="my", smoke=True), original, *against, script="my.py")
    with pytest.raises(common.UserError, match="no run of other"):
        reported(mine, original, "--against", "other.py", script="my.py")


def test_curves_are_those_of_the_logs(tmp_path, monkeypatch):
    """Two seeds, of 50 and 70 %, are one line: 60 ± 10. Another recipe is another line. A run of the
    repository is drawn by its name."""
    names = "a0.01-s0-00000000", "a0.01-s1-11111111", "a0.05-s0-00000000", "a0.05-s0-22222222"
    drawn, runs = [], [tmp_path / name for name in names]
    recipes = [RECORD | {"run": name, "hp": {"train": {"lr": lr}}} for name, lr in zip(names, (1, 1, 2, 3))]
    (tmp_path / "results.jsonl").write_text("\n".join(map(json.dumps, recipes)))
    for run, val in zip(runs, (0.5, 0.7, 0.9, 0.8)):
        run.mkdir()
        lines = [dict(epoch=step, lr=9 - step, train={"acc": 0.25}, val={"acc": val}) for step in (3, 6)]
        (run / "log.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (tmp_path / "curves").mkdir()
    curve = json.dumps({"run": "ours", "curve": [dict(epoch=9, lr=1, train={"acc": 0.5}, val={"acc": 0.75})]})
    (tmp_path / "curves" / "locality.jsonl").write_text(curve)
    monkeypatch.setattr(records, "RESULTS", tmp_path)
    monkeypatch.setattr(tables, "save_figure", lambda figure, path: drawn.append(figure))
    tables.main(["--plot", *map(str, runs), "ours", "--paper", "88.96", "--out", str(tmp_path)])
    axis = drawn[0].axes[0]
    lines = [line.get_xydata().tolist() for line in axis.lines if line.get_linestyle() != "None"]
    lines = [line for line in lines if line]  # those without points are the legend's
    means = [[[3, n], [6, n]] for n in (60, 90, 80)]
    assert lines[1] == [[3, 25], [6, 25]] and lines[:-1:3] == [*means, [[9, 75]]]
    assert [x for (x, _), _ in lines[2:9:3]] == [3, 3, 3]  # where the rate falls for the last time
    assert [y for _, y in lines[-1]] == [88.96, 88.96]
    bars = axis.containers[0].lines[2][0].get_segments()
    assert numpy.allclose(bars, [[[3, 50], [3, 70]], [[6, 50], [6, 70]]])
    assert exit_code(tables.main, "--plot", tmp_path / "none", "--out", tmp_path) == 2
