"""Records of the code before this edition, brought into today's shape. Run it with that old code on the path:

    PYTHONPATH=OLD_CLONE python results/migrate.py results/*.jsonl      # in place; new lines stay as they are

Each record gets `row` (its label in a table) and `terms` (what differs from the table's recipe, in words), both
worked out by the code that trained it; `hp` becomes {"model": {...}, "train": {...}}. No number changes. This
file goes when the last run of the old code has ended.
"""

import json
import sys
from pathlib import Path

import common
import exp_kernels
import exp_locality
import exp_multitask
import exp_positional
import exp_range
import exp_spt
import records

ROWS = {"‡ (paper A's block)": "(paper A's block)", " ‡": "", " †": "", ", techniques": "", "convolution K": "K"}
ROWS |= {"bag of symbols": "K=1 (bag of symbols)", "K=1 (K=1 (bag of symbols))": "K=1 (bag of symbols)"}
ROWS |= {"Transformer, rotary": "Transformer", "MEGA (Ma et al.)": "MEGA", "MEGA (paper A's block)": "paper A's MEGA"}
TERMS = {"denoise_norm None": "earlier weight of the denoising loss"}
TECHNIQUES = {"denoising": "denoise", "shuffling": "shuffle", "three sets": "three sets", "none": None}
SPT = dict(transformer="Transformer", rotary="rotary Transformer", s4="S4", dlr="DLR")
SPT |= dict(none="from scratch", masked="masked SPT", causal="causal SPT", random="random start")
NOT_MODEL = {*common.TRAINING, *exp_spt.TRAINING, "max_length"}
# Of today's scripts, what tells a block apart stands in hp["model"].
BLOCKS = {"locality": "conv", "range": "conv"}


def row_and_terms(r):
    """(label, what differs from the recipe) as the old reports worked them out."""
    mini, cell, exp = r["budget"] == "mini", r["cell"], r["exp"]
    r = r | {"data": r["data"] | {"official": None}}  # said by data["official"]
    if exp == "locality":
        return exp_locality.label(cell), records.terms(r, exp_locality.recipe(r["task"], mini=mini, **cell))
    if exp == "multitask":
        label = exp_multitask.LABELS[r["model"], cell["techniques"]]
        return label, records.terms(r, exp_multitask.recipe(r["model"], r["task"], **cell, mini=mini))
    if exp == "kernels":
        recipe = exp_kernels.recipe(r["model"], r["task"], **cell, mini=mini)
        return exp_kernels.label(r["model"], **cell), records.terms(r, recipe)
    if exp == "positional":
        recipe = exp_positional.variant_recipe(r["task"], **cell, mini=mini)
        return exp_positional.label(**cell), records.terms(r, recipe)
    if exp == "range":
        recipe = exp_range.recipe(r["model"], r["task"], mini=mini, **cell)
        return exp_range.place(r)[1], records.terms(r, recipe)
    if exp == "listops":
        return cell["rule"], ""
    spt = exp_spt.Cell(r["model"], **cell)
    paper = exp_spt.recipe(r["task"], spt, mini=mini)[1]
    if exp == "spt-pretrain":
        return str(spt), ""
    if mini:
        return str(spt), records.terms(r | {"hp": exp_spt.in_all(r["hp"])}, exp_spt.in_all(paper))
    hp = r["hp"]
    unit = "steps" if hp.get("steps") else "epochs"
    words = {unit: exp_spt.in_all(hp)[unit]}
    rest = ("lr", "batch_size", "weight_decay", "augment", "max_length", "hours", "bucket")
    words |= {row: hp[row] for row in rest if row in hp and hp[row] != paper.get(row)}
    return str(spt._replace(share=spt.share or None)), records.terms(r | {"hp": words}, {})


def renamed(text, names):
    for old, new in names.items():
        text = text.replace(old, new)
    return text


def spelled_out(label):
    """ "s4 masked random 1%" -> "S4, masked SPT, random start, 1%"."""
    model, *rest = label.replace("% SPT", "%_SPT").split(" ")
    return ", ".join(SPT.get(word, word) for word in (model, *rest)).replace("%_SPT", "% SPT")


def split(r):
    """hp -> {"model": {...}, "train": {...}}, and for exp_spt "pretrain", what differs in its first half."""
    hp = {k: v for k, v in r["hp"].items() if k not in ("denoise_norm", "technique", "augment")}
    technique = r["hp"].get("technique", "augmentation" if r["hp"].get("augment") else "none")
    if technique == "augmentation":
        technique = {"paper": "augment paper", "flip": "augment flip", "none": "none"}[r["hp"]["augment"]]
    train = {"technique": TECHNIQUES.get(technique, technique)}
    train |= {k: v for k, v in hp.items() if k in NOT_MODEL and k not in ("pretrain", "max_length")}
    if r["exp"] == "locality" and "max_length" in hp:  # the other scripts' is the task's own
        train |= {"max_length": hp["max_length"]} if hp["max_length"] else {}
    model = {k: v for k, v in hp.items() if k not in (*NOT_MODEL, "attention")}  # MEGA's: softmax always
    if r["exp"] in BLOCKS or not r["exp"].startswith(("spt", "listops")):
        model = {"block": BLOCKS.get(r["exp"], r["model"])} | model
    new = {"model": model, "train": train}
    if r["hp"].get("denoise_norm", "set") is None:
        train["denoise_norm"] = None
    return new | ({"pretrain": hp["pretrain"]} if "pretrain" in hp else {})


def migrated(r, pretrained):
    row, terms = row_and_terms(r)
    row = spelled_out(row) if r["exp"].startswith("spt") else renamed(row, ROWS)
    cell = {k: v for k, v in r["cell"].items() if (k, v) != ("techniques", "yes")}
    new = {k: r[k] for k in ("exp", "task", "model")} | {"cell": cell, "row": row, "terms": renamed(terms, TERMS)}
    new |= {k: r[k] for k in ("seed", "limit", "budget", "smoke")} | {"hp": split(r)}
    new |= {k: v for k, v in r.items() if k not in new and k not in ("mini", "hp")}
    new.setdefault("cpu_seconds", None)  # the first records have the clock's alone
    if "pretraining" in new and (first := pretrained.get(new["pretraining"]["run"])):
        new["pretraining"] = new["pretraining"] | {"restored": first["test_acc"], "score": first.get("score")}
    return new


def main(paths):
    """Rewrite the files of records `paths` in place; lines that have a row already stay."""
    files = {path: [json.loads(line) for line in Path(path).read_text().splitlines()] for path in paths}
    everything = [r for lines in files.values() for r in lines]
    pretrained = {r["run"]: r for r in everything if r["exp"] == "spt-pretrain"}
    for path, lines in files.items():
        new = [r if "row" in r else migrated(r, pretrained) for r in lines]
        Path(path).write_text("".join(json.dumps(r) + "\n" for r in new))


if __name__ == "__main__":
    main(sys.argv[1:])
