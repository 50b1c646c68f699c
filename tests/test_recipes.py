"""results/ against today's tables: the command of each record, given again, asks for the record's recipe.

A record whose `changes` are empty claims the recipe of its table. So this fails for a rate, a size or a
number of epochs that is changed in a table while its records stay as they are. Those then say in `changes`
what they had.
"""

import collections
import copy
import json

import pytest
from conftest import exit_code

import common
import data
import exp_kernels
import exp_locality
import exp_multitask
import exp_positional
import exp_range
import exp_spt
import records
import tables

SCRIPTS = {
    records.experiment(script.__file__): script
    for script in (exp_locality, exp_multitask, exp_kernels, exp_positional, exp_range, exp_spt)
}
# What does not change which run it is, and the number of words that follow.
EXECUTION = {"--out": 1, "--data-dir": 1, "--time-limit": 1, "--amp": 1, "--device": 1, "--micro-batch": 1}
EXECUTION |= {"--fresh": 0, "--compile": 0}
PARTS = "hp", "changes", "tier", "row"
NOT_IN_A_RECIPE = "weight of the denoising loss"  # what the code of that day did otherwise


def asked_for(argv):
    """The words of a command that say which cells to train."""
    words, rest = [], iter(argv)
    for word in rest:
        if word in EXECUTION:
            for _ in range(EXECUTION[word]):
                next(rest)
        else:
            words.append(word)
    return tuple(words)


def place(record):
    return json.dumps([record[part] for part in ("exp", "task", "model", "cell", "seed")])


@pytest.fixture
def recipes(monkeypatch, tmp_path):
    """recipes(script, words) -> {place: what the records of that command say of PARTS}. Nothing is loaded or
    trained."""
    stands_in = {name: data.load(name, "", smoke=True) for name in data.SHAPES}

    def load(name, *args, limit=None, max_length=None, **more):
        task = copy.copy(stands_in[name])
        task.max_length = max_length or task.max_length
        if limit:
            task.train = task.train._replace(label=range(limit))
        return task

    def train(args, *, script, identity, row, changes, **rest):
        asked = {"hp": identity["hp"], "changes": changes, "tier": records.tier_of(args, changes), "row": row}
        made[place(identity)] = asked
        return identity | asked

    made = {}
    for module, name, stand_in in (
        (data, "load", load),
        (data, "require", lambda names, args: names),
        (data, "load_for", lambda args, name, *_: load(name, limit=args.limit, max_length=args.max_length)),
        (records, "train", train),
        (records, "is_done", lambda *args: False),
        (records, "finished", lambda out: collections.defaultdict(lambda: {"test_acc": 0})),
        (records, "outcome", lambda *args: ""),
        (tables, "report", lambda *args, **more: None),
        (common, "load_checkpoint", lambda *args, **more: {"model": {}}),
        (exp_spt, "prepare", lambda task, cell, pretraining: task),
        (exp_spt, "commonest", lambda task, cell: 0),
        (exp_spt, "report", lambda args: None),
        (exp_range, "report", lambda args: None),
        (exp_multitask, "plot_series", lambda *args: None),
    ):
        monkeypatch.setattr(module, name, stand_in)

    def ask(script, words):
        made.clear()
        assert exit_code(script.main, *words, "--out", tmp_path) == 0, words
        return dict(made)

    return ask


@pytest.mark.processes
def test_what_a_record_says_of_its_recipe_is_what_the_tables_say_today(recipes):
    commands = collections.defaultdict(list)
    for r in records.published():
        exp = r["exp"].removesuffix("-pretrain")
        if exp in SCRIPTS:
            commands[exp, asked_for(r["argv"][1:])].append(r)
    assert len(commands) > 300
    wrong = []
    for (exp, words), found in commands.items():
        today = recipes(SCRIPTS[exp], words)
        for r in found:
            r["changes"].pop(NOT_IN_A_RECIPE, None)
            now = today.get(place(r))
            if now and now["hp"] == r["hp"]:
                wrong += [(r["run"], part, r[part], now[part]) for part in PARTS if r[part] != now[part]]
            elif not r["changes"]:
                wrong.append((r["run"], "another recipe today, and `changes` do not say what it had"))
    assert not wrong, "\n".join(map(str, wrong))
