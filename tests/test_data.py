"""data.py: batches, order, corruption, packing, official files, augmentation, recipes, the command line.

pytest tests/test_data.py
"""

import argparse
import functools
import hashlib
import io
import json
import pickle
import shutil
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import exit_code
from PIL import Image

import data

ROOT = Path(__file__).parent.parent


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def smoke(name, **options):
    return data.load(name, "unused", smoke=True, **options)


def documents(split):
    return [bytes(d) for d in np.split(split.tokens.numpy(), split.offsets[1:-1])]


@pytest.mark.parametrize("name", ["retrieval", "image"])
def test_an_epoch_is_a_stable_sort_in_pools_and_covers_every_example_once(name):
    task, size = smoke(name), 4
    order, lengths = seeded(3), task.lengths["train"].tolist()
    index = torch.randperm(len(lengths), generator=order).tolist()
    batches = [index[i : i + size] for i in range(0, len(index), size)]
    assert [batch.tolist() for batch in task.plan(size, seeded(3), bucket=False)] == batches
    if min(lengths) < max(lengths):
        pools = [sorted(index[i : i + 200], key=lengths.__getitem__) for i in range(0, len(index), 200)]
        batches = [pool[i : i + size] for pool in pools for i in range(0, len(pool), size)]
        batches = [batches[i] for i in torch.randperm(len(batches), generator=order)]
    assert [batch.tolist() for batch in task.plan(size, seeded(3))] == batches
    assert sorted(sum(batches, [])) == list(range(len(lengths)))


def test_a_batch_holds_the_documents_and_nothing_else():
    task = smoke("retrieval", max_length=200)
    index = torch.tensor([7, 0, 30])
    batch = task.gather("train", index)
    rows = [row for i in index.tolist() for row in (2 * i, 2 * i + 1)]  # doc1, doc2, doc1, doc2, ...
    for row, tokens, mask in zip(rows, batch.tokens, batch.mask):
        start, stop = task.train.offsets[row : row + 2].tolist()
        document = task.train.tokens[start:stop][:200].long() + task.first_id
        assert torch.equal(tokens[mask], document) and mask[: len(document)].all()
        assert not tokens[~mask].any()  # padding is id 0
    assert torch.equal(batch.label, task.train.label[index]) and (batch.docs, batch.examples) == (2, 3)
    mean = np.diff(task.train.offsets).clip(max=200).sum() / len(task.train.label)
    assert float(batch.positions) == pytest.approx(3 * mean)
    assert float(smoke("scifar").gather("train", index).positions) == 3 * 1024  # of three colours each
    assert batch.tokens.shape[1] == 200  # rounded up to a multiple of 64, but never beyond the task's length
    full = smoke("pathfinder").gather("train", index)
    for part in (full, *full.parts(2), full.share(1, 2)):  # by which models.surely_full knows it
        assert part.mask.stride() == (0, 0) and part.mask.all() and part.mask.shape == part.tokens.shape


def test_evaluation_sees_every_example_once_within_its_budget():
    task = smoke("retrieval")
    batches = list(task.evaluation_batches("test", positions=2000))
    seen = [bytes((row[mask] - 3).byte().numpy()) for b in batches for row, mask in zip(b.tokens, b.mask)]
    assert Counter(seen) == Counter(documents(task.test))
    assert max(b.tokens.numel() for b in batches if len(b.label) > 1) <= 2000
    assert len(list(task.evaluation_batches("test", positions=1))) == len(task.test.label)
    shares = [list(task.evaluation_batches("test", 2000, rank, 3)) for rank in range(3)]
    assert sum(map(len, shares)) == len(batches) > 3
    assert all(torch.equal(b.tokens, shares[i % 3][i // 3].tokens) for i, b in enumerate(batches))


def test_parts_never_cut_a_pair():
    batch = next(smoke("retrieval", technique="denoise").training_batches([torch.arange(5)], seeded(), 0))
    parts = list(batch.parts(2))
    assert [len(p.label) for p in parts] == [2, 2, 1] and [len(p.tokens) for p in parts] == [4, 4, 2]
    for name in ("tokens", "mask", "target", "selected", "label"):
        assert torch.equal(torch.cat([getattr(p, name) for p in parts]), getattr(batch, name))
    assert {(p.examples, float(p.positions)) for p in parts} == {(5, float(batch.positions))}


def test_smaller_limits_are_nested_and_hold_whole_pairs():
    whole, *tasks = (smoke("retrieval", limit=n) for n in (None, 20, 50))
    for split in ("train", "val"):
        texts = [documents(task.splits[split]) for task in tasks]
        index = data.fixed_order(len(whole.splits[split].label))[:20]
        assert texts[0] == texts[1][:40] == documents(data.select(whole.splits[split], index, docs=2))
        assert torch.equal(tasks[0].splits[split].label, whole.splits[split].label[index])
    assert len(tasks[0].test.label) == len(whole.test.label)
    with pytest.raises(data.DataError, match="text has 512 train examples"):
        smoke("text", limit=513)
    orders = [data.fixed_order(n)[:4].tolist() for n in (10, 25_000, 50_000)]  # every record depends on them
    assert orders == [[2, 6, 1, 8], [12542, 12918, 13566, 15968], [37542, 44491, 216, 43688]]


@pytest.mark.parametrize("part, values, words", [
    ("label", [0, 1, 2], "mine, val: labels must be 0 to 1"), ("label", [-1, 1, 1], "labels must be 0 to 1"),
    ("offsets", [0, 3, 2, 6], "mine, val: offsets must be 4, rising"),
    ("offsets", [0, 2, 6], "offsets must be 4"), ("offsets", [1, 2, 4, 6], "offsets must be 4"),
    ("tokens", [9, 0, 0, 0, 0, 16], "mine, val: the largest id is 19; give a larger vocab"),
])  # fmt: skip
def test_splits_that_do_not_fit_together_are_refused(part, values, words):
    sound = data.Split(torch.zeros(6, dtype=torch.uint8), torch.tensor([0, 2, 4, 6]), torch.tensor([0, 1, 1]))
    task = data.Task("mine", 2, 19, 3, 10, sound, sound, sound, source={})
    with pytest.raises(data.DataError, match=words):
        replace(task, val=sound._replace(**{part: torch.tensor(values)}))


@pytest.mark.parametrize("stride", [2, 16, 100, "random", "rotated", "random-rotated"])
@pytest.mark.parametrize("name", ["retrieval", "scifar"])
def test_a_stride_moves_every_document_within_its_own_length(name, stride):
    technique = None if name == "scifar" else "denoise"
    plain, task = (smoke(name, stride=s, technique=technique) for s in (1, stride))
    pairs = list(zip(plain.evaluation_batches("test"), task.evaluation_batches("test")))
    pairs.append([next(t.training_batches([torch.arange(9)], seeded(), 0)) for t in (plain, task)])
    for before, after in pairs:
        assert torch.equal(before.mask, after.mask) and torch.equal(before.label, after.label)
        for field in ("tokens", "target", "selected"):
            if getattr(before, field) is None:
                continue
            rows = (getattr(batch, field) for batch in (before, after))
            for old, new, mask, tokens in zip(*rows, before.mask, before.tokens):
                n = int(mask.sum())
                assert not new[n:].any()
                old, new = old[:n].view(-1, task.channels), new[:n].view(-1, task.channels)
                moved, L = old.clone(), len(old)
                if isinstance(stride, str):
                    if stride != "rotated":  # a permutation that the length alone decides
                        moved = old[data.fixed_order(1 << 16)[:L].argsort()]
                    if stride != "random":  # further by the sum of what the model reads
                        moved = moved.roll(-int(tokens.sum()) % L, 0)
                else:  # the definition, position by position
                    apart = L // stride
                    for i in range(apart * stride):
                        moved[(i % stride) * apart + i // stride] = old[i]
                assert torch.equal(new, moved)
    assert not torch.equal(before.tokens, after.tokens)
    empty = before._replace(mask=torch.zeros_like(before.mask), tokens=torch.zeros_like(before.tokens))
    assert not data.strided(empty, stride, task.channels).tokens.any()


def test_corruption_rates_and_places():
    ids = torch.randint(3, 259, (64, 1000), generator=seeded())
    mask = torch.arange(1000) < torch.arange(64)[:, None] * 15 + 20
    batch = data.corrupt(data.Batch(ids * mask, mask, torch.zeros(64)), seeded(), vocab=259)
    n = int(mask.sum())
    assert abs(batch.selected.sum() / n - 0.3) < 4 * (0.3 * 0.7 / n) ** 0.5
    assert torch.equal(batch.target, ids * mask) and not batch.selected[~mask].any()
    assert torch.equal(batch.tokens[~batch.selected], batch.target[~batch.selected])
    masked = (batch.tokens[batch.selected] == data.MASK).double().mean()
    # Two thirds MASK, and of the random third one id in 259 is MASK as well.
    assert abs(masked - (2 / 3 + 1 / 3 / 259)) < 4 * (2 / 9 / (0.3 * n)) ** 0.5
    others = batch.tokens[batch.selected & (batch.tokens != data.MASK)]
    counts = torch.bincount(others, minlength=259).double()
    expected = counts.sum() / 258
    assert counts[data.MASK] == 0 and len(counts) == 259 and counts[:2].all()  # specials included
    chi2 = ((counts - expected) ** 2 / expected).sum() - expected  # the empty bin of MASK
    assert abs(chi2 - 257) < 5 * (2 * 257) ** 0.5


def small_splits():
    draw = np.random.default_rng(0)
    label = torch.tensor([1, 0, 1])
    texts = {name: [draw.bytes(n) for n in (3, 0, 200)] for name in data.SPLITS}
    return {name: data.Split(*data.ragged(texts[name]), label) for name in data.SPLITS}, {"seed": 0}


def test_what_is_packed_is_whole_and_comes_back(tmp_path, monkeypatch):
    splits, save, made = small_splits()[0], np.save, []

    def make():
        made.append(1)
        return small_splits()

    monkeypatch.setattr(np, "save", lambda path, array: save(path, array[:1]) and None or 1 / 0)  # killed
    with pytest.raises(ZeroDivisionError):
        data.pack(tmp_path, "toy", "test", make)
    monkeypatch.undo()
    assert not (tmp_path / "packed" / "toy").exists()
    with ThreadPoolExecutor(4) as pool:  # of those that pack at once one does
        results = [*pool.map(lambda _: data.pack(tmp_path, "toy", "test", make), range(4))]
    for found, source in (*results, data.pack(tmp_path, "toy", "test", None)):
        assert all(torch.equal(a, b) for name in splits for a, b in zip(splits[name], found[name]))
        assert source["counts"] == {"train": 3, "val": 3, "test": 3}
        assert (source["task"], source["from"], source["seed"]) == ("toy", "test", 0)
    assert {f.name for f in (tmp_path / "packed").iterdir()} == {"toy", ".toy.lock"} and made == [1, 1]
    chosen = data.select(found["train"], [2, 0])
    assert chosen.offsets.tolist() == [0, 200, 203] and chosen.label.tolist() == [1, 1]
    assert documents(chosen) == [documents(found["train"])[i] for i in (2, 0)]
    (tmp_path / "file").touch()
    for action in (lambda root: data.pack(root, "toy", "test", make), data.data_folder):
        with pytest.raises(data.DataError, match="cannot make .*file/.*another --data-dir"):
            action(tmp_path / "file" / "x")
    with pytest.raises(data.DataError, match="cannot make the folder .*file .*another --data-dir"):
        data.data_folder(tmp_path / "file")


def test_damaged_and_foreign_folders_are_refused(tmp_path, monkeypatch):
    data.pack(tmp_path, "toy", "test", small_splits)
    folder, pickled = tmp_path / "packed" / "toy", io.BytesIO()
    np.save(pickled, np.array([None]), allow_pickle=True)
    monkeypatch.delattr(pickle, "load")  # nobody asks for it
    shutil.copytree(folder, tmp_path / "packed" / "text")
    with pytest.raises(data.DataError, match="not those of 'text'.*delete it"):
        data.pack(tmp_path, "text", "test", None)
    whole, sound = ((folder / name).read_bytes() for name in ("val_offsets.npy", "manifest.json"))
    faults = [("val_offsets.npy", x) for x in (whole[:-1] + b"x", whole[:-1], pickled.getvalue(), b"")]
    faults += [("manifest.json", x) for x in (b"[]", b"1", b"{", sound.replace(b'"val": 3', b'"val": 4'))]
    for name, content in faults:
        kept = (folder / name).read_bytes()
        (folder / name).write_bytes(content)
        with pytest.raises(data.DataError, match="incomplete or unreadable.*delete it"):
            data.pack(tmp_path, "toy", "test", None)
        (folder / name).write_bytes(kept)
    data.pack(tmp_path, "toy", "test", None)


def test_imdb_is_read_cut_and_split_and_a_changed_one_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(data.EXPECTED, "text", {"train": 36, "val": 4, "test": 40})
    root = tmp_path / "aclImdb"
    for split, (sentiment, rating) in product(("train", "test"), (("neg", 4), ("pos", 7))):
        (root / split / sentiment).mkdir(parents=True)
        for i in range(20):
            text = f"{split} {sentiment} {i} é".encode() + b"x" * (5000 if i == 3 else i)
            (root / split / sentiment / f"{i}_{rating}.txt").write_bytes(text)
        (root / split / sentiment / "._0_7.txt").write_bytes(b"what macOS leaves beside a file")
    task = data.load("text", tmp_path, mini=True)
    assert task.max_length == 256 and task.source["from"] == "aclImdb"
    texts = {name: documents(split) for name, split in task.splits.items()}
    whole = [f"train {sentiment} {i}".encode() for sentiment in ("neg", "pos") for i in range(20)]
    order = data.fixed_order(40).tolist()
    for name, index in (("train", order[:36]), ("val", order[36:])):  # the last tenth is validation
        assert [b" ".join(text.split()[:3]) for text in texts[name]] == [whole[i] for i in index]
        assert task.splits[name].label.tolist() == [i // 20 for i in index]
    assert all(text.startswith(b"test pos") for text in texts["test"][20:])
    assert task.test.label.tolist() == [0] * 20 + [1] * 20 and max(map(len, texts["test"])) == 4096
    shutil.rmtree(tmp_path / "packed")

    def refused(words):
        with pytest.raises(data.DataError, match=f"{words}.*again"):
            data.load("text", tmp_path)

    (root / "test" / "pos" / "7_7.txt").write_bytes(b"")
    refused(r"test/pos holds 20 reviews \(1 empty\), not 20")
    (root / "test" / "pos" / "7_7.txt").unlink()
    refused(r"test/pos holds 19 reviews")
    shutil.rmtree(root / "test")
    shutil.copytree(root / "train", root / "test")
    refused("holds 40 examples for test, 0 of them new, instead of 40")


def listops_release(folder, values, n=30):
    """The three files; of each split the sums begin with its value."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, value in values.items():
        rows = [f"( ( ( [MAX {value} ) {i % 10} ) ] )\t{max(value, i % 10)}\n" for i in range(n)]
        (folder / f"basic_{split}.tsv").write_text("Source\tTarget\n" + "".join(rows))


def test_official_listops_is_read_from_the_inner_folder_and_stays_official(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(data.EXPECTED, "listops", dict.fromkeys(data.SPLITS, 10))
    (tmp_path / "listops-1000").symlink_to(tmp_path / "nowhere")
    for said in (True, False):  # where they were looked for
        assert data.load("listops", tmp_path).source["from"] == "generated"
        told = f"is generated: there are no official files in {tmp_path / 'listops-1000'}"
        assert (told in capsys.readouterr().out) == said
    inner = tmp_path / "lra_release" / "lra_release" / "listops-1000"
    for values, n, words in (
        (dict(train=3, val=2, test=1), 9, "9 examples for train, 9 of them new, instead of 10"),
        (dict(train=3, val=3, test=3), 10, "10 examples for val, 0 of them new"),  # one file three times
    ):
        listops_release(inner, values, n)
        with pytest.raises(data.DataError, match=words):
            data.load("listops", tmp_path)
    listops_release(inner, dict(train=3, val=2, test=1), 10)
    listops_release(tmp_path / "lra_release" / "listops-1000", dict(train=6, val=5, test=4), 10)
    task = data.load("listops", tmp_path)
    assert task.source["from"] == "lra_release" and documents(task.train)[0] == bytes([10, 3, 0, 14])
    own = data.load("listops", tmp_path / "lra_release")  # which holds the same inner folder
    assert own.source["hash"] == task.source["hash"]
    shutil.rmtree(tmp_path / "lra_release")  # packed, they are still what is loaded
    assert data.load("listops", tmp_path).source["hash"] == task.source["hash"]


def test_fresh_listops_are_what_the_generator_makes_next(tmp_path, monkeypatch):
    monkeypatch.setattr(data, "MINI_COUNTS", {"train": 300, "val": 20, "test": 30})
    few, task, more = (data.load("listops", tmp_path, mini=True, limit=n) for n in (100, None, 400))
    assert [len(t.train.label) for t in (few, task, more)] == [100, 300, 400]
    whole = data.Split(*map(torch.from_numpy, data.listops.generate_listops(450, 0, (20, 96))))
    made = documents(whole)
    assert sum((documents(task.splits[s]) for s in data.SPLITS), []) == made[:350]
    assert torch.equal(torch.cat([task.splits[s].label for s in data.SPLITS]), whole.label[:350])
    kept = data.fixed_order(400).tolist()
    assert documents(more.train) == [(made[:300] + made[350:])[i] for i in kept]
    assert torch.equal(more.test.tokens, task.test.tokens)
    [(commonest, _)] = Counter(task.train.label.tolist()).most_common(1)
    hits = (task.test.label == commonest).double().mean().item()
    rules = task.source["baselines"]
    assert (
        rules.keys() == {"majority", "root rule"} and rules["majority"] == round(hits, 4) < rules["root rule"]
    )


def aan(folder, counts=(20, 6, 4)):
    folder.mkdir(parents=True, exist_ok=True)
    for name, n in zip(data.AAN_FILES.values(), counts):
        rows = [f"{i % 2}.0\tP{i}\tQ{i}\tb'{name} {i}'\tb\"it's\\n{i}\"\n" for i in range(n)]
        (folder / name).write_text("".join(rows))


def test_retrieval_is_read_wherever_its_files_are(tmp_path, monkeypatch):
    monkeypatch.setitem(data.EXPECTED, "retrieval", {"train": 20, "val": 6, "test": 4})
    with pytest.raises(data.DataError, match="python data.py --task retrieval --fetch .*10.6 GB"):
        data.load("retrieval", tmp_path)
    inner = "lra_release/lra_release/tsv_data"
    for place in (".", "aan", "tsv_data", "lra_release/tsv_data", inner, "retrieval"):
        aan(tmp_path / place)
        assert data.find_aan(tmp_path).samefile(tmp_path / place)
    task = data.load("retrieval", tmp_path, mini=True)
    # Quotes go, escapes stay as they are, two characters.
    assert documents(task.val)[2:4] == [b"new_aan_pairs.eval.tsv 1", rb"it's\n1"]
    assert task.val.label.tolist() == [0, 1] * 3 and task.max_length == 256
    place = tmp_path / "retrieval"
    digests = {name: hashlib.sha256((place / name).read_bytes()).hexdigest() for name in data.AAN_LINES}
    assert task.source["files"] == {"sha256": digests}
    for known, words in ((digests, None), ({}, "no longer what was fetched .*fetch it again")):
        shutil.rmtree(tmp_path / "packed")
        (place / "fetched.json").write_text(json.dumps({"url": "http://x", "sha256": known}))
        if words:
            with pytest.raises(data.DataError, match=words):
                data.load("retrieval", tmp_path)
        else:
            found = data.load("retrieval", tmp_path).source  # and now from the packed folder
            assert found["files"]["url"] == "http://x" and data.load("retrieval", tmp_path).source == found
    (place / "fetched.json").unlink()
    aan(place, (20, 5, 4))
    with pytest.raises(data.DataError, match="holds 5 examples for val, 5 of them new, instead of 6"):
        data.load("retrieval", tmp_path)


def test_aan_rows_are_cut_and_malformed_ones_named(tmp_path):
    path, good = tmp_path / "new_aan_pairs.eval.tsv", b"1.0\ta\tb\tb'x'\tb'y'\n"
    path.write_bytes(b"1.0\ta\tb\tb'" + rb"\n" * 5_000 + b"'\tb'" + b"yes" * 2_000 + b"'\r\n")
    tokens, offsets, label = data.read_aan_tsv(path)
    assert offsets.tolist() == [0, 4096, 8192] and label.tolist() == [1]
    assert tokens.numpy().tobytes() == rb"\n" * 2048 + b"yes" * 1365 + b"y"
    path.write_bytes(b"0.0\ta\tb\tb''\tb'y'\n")  # one document of the release is empty
    assert data.read_aan_tsv(path).offsets.tolist() == [0, 0, 1]
    rows = [good + b"\tb'z'", b"1.0\ta\tb\tb'x'", b"label\tid1\tid2\tb'x'\tb'y'", b"", good[:-3]]
    texts = (b"x\tb'y'", b"'x'\tb'y'", b"b'x'\tb'y\"", b"b'\tb'y'")
    rows += [b"1.0\ta\tb\t" + text for text in texts]
    for row in rows:
        path.write_bytes(good * 3 + row.replace(b"\n", b"") + b"\n" + good)
        with pytest.raises(data.DataError, match="eval.tsv, line 4: .*delete its folder and fetch"):
            data.read_aan_tsv(path)


def test_an_own_tsv_is_a_task(tmp_path, capsys):
    path = tmp_path / "mine.tsv"
    path.write_text("".join(f"{('no', 'yes', 'maybe')[i % 3]}\ttext {i} é\n" for i in range(50)), "utf-8")
    task = data.load_tsv(path, max_length=7, limit=30, technique="denoise", stride=2)
    assert (task.name, task.classes, len(task.train.label)) == ("mine", 3, 30)
    order = data.fixed_order(50).tolist()
    for name, index in (("val", order[40:45]), ("test", order[45:])):
        assert documents(task.splits[name]) == [f"text {i} é".encode() for i in index]
        assert task.splits[name].label.tolist() == [(1, 2, 0)[i % 3] for i in index]  # maybe, no, yes
    batch = next(task.training_batches(task.plan(8, seeded()), seeded(), 0))
    assert batch.tokens.shape == (8, 7) and batch.selected.any()
    capsys.readouterr()
    path.write_bytes(b"\xef\xbb\xbf" + b"good\tx\nbad\ty\ngood \tz\n" * 5)
    assert data.load_tsv(path).classes == 2 and "15 lines; bad 5, good 10" in capsys.readouterr().out


@pytest.mark.parametrize("content, words", [
    (b"a\tb\nno tab\n", "line 2: this is not a label"), (b"a\t\n", "line 1"), (b"a\tb\n" * 20, "1 labels"),
    (b"a\tb\nc\td\n" * 4, "8 lines and 2 labels; give at least ten"),
    (b"label\ttext\n" + b"a\tb\nc\td\n" * 9, "line 1: no other line has .*; is it a header"),
    ("a\tb\n".encode("utf-16") * 20, "in UTF-8"), ("a\tb\n".encode("utf-16-le") * 20, "in UTF-8"),
    (None, "cannot read .*mine.tsv"),
])  # fmt: skip
def test_a_file_that_is_no_tsv_is_refused(content, words, tmp_path):
    path = tmp_path / "mine.tsv"
    if content:
        path.write_bytes(content)
    with pytest.raises(data.DataError, match=words):
        data.load_tsv(path)


@pytest.fixture(scope="module")
def cifar(tmp_path_factory):
    """60,000 images whose label is their number modulo 10; a pixel tells number, colour and place."""
    folder = tmp_path_factory.mktemp("data") / "cifar-10-batches-bin"
    folder.mkdir()
    number = np.arange(60_000)
    records = np.empty((60_000, 3073), np.uint8)
    records[:, 0] = number % 10
    for colour in range(3):
        plane = records[:, 1 + 1024 * colour : 1025 + 1024 * colour]
        plane[:] = number[:, None] * (7, 11, 13)[colour] + np.arange(1024) * (1, 3, 5)[colour]
    for i, name in enumerate([f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]):
        records[10_000 * i : 10_000 * (i + 1)].tofile(folder / f"{name}.bin")
    return folder.parent


@pytest.fixture(scope="module")
def images(cifar):
    return data.load("image", cifar, technique="augment paper")


def test_cifar_is_split_turned_grey_and_kept_in_colour(cifar, images, monkeypatch, capsys):
    order = torch.randperm(50_000, generator=seeded(42))
    number = {"train": order[:45_000], "val": order[45_000:], "test": torch.arange(50_000, 60_000)}
    colours, colour = data.load("scifar", cifar), torch.tensor([[7, 11, 13], [1, 3, 5]])
    assert colours.max_length == 3072 and colours.channels == 3 and colours.rgb is None
    assert "not the official CIFAR-10 labels" in capsys.readouterr().out
    for name, n in number.items():
        rgb = n[:9, None, None] * colour[0] + torch.arange(1024)[:, None] * colour[1]
        rgb = (rgb % 256).byte().numpy()
        assert np.array_equal(colours.splits[name].tokens[: 9 * 3072].view(9, 1024, 3), rgb)
        grey = np.stack([Image.fromarray(image.reshape(32, 32, 3)).convert("L") for image in rgb])
        assert np.array_equal(images.splits[name].tokens[: 9 * 1024].view(9, 32, 32), grey)
        assert torch.equal(images.splits[name].label, n % 10) and len(colours.splits[name].label) == len(n)
    assert all(data.dress(images, technique=t).rgb is None for t in (None, "augment flip"))
    few = data.dress(images, limit=40, technique="augment paper")
    kept = order[data.fixed_order(45_000)[:40]]
    for task, n in ((images, order[:40]), (few, kept)):  # colours, grey values, labels: of the same images
        assert torch.equal(task.train.label[:40], n % 10)
        assert np.array_equal(data.grey(task.rgb[:40]).reshape(-1), task.train.tokens[: 40 * 1024])
    assert len(few.rgb) == 40


def test_mini_images_are_means_of_four_pixels():
    pixels = torch.randint(256, (2, 32 * 32 * 3), generator=seeded(), dtype=torch.uint8)
    quads = pixels.view(2, 16, 2, 16, 2, 3).double().mean((2, 4))
    assert torch.equal(data.halved(pixels, 3).view(2, 16, 16, 3), (quads + 0.5).floor().byte())


def test_labels_of_cifar_are_part_of_what_is_known_of_the_data(tmp_path, monkeypatch):
    rgb = np.random.default_rng(0).integers(256, size=(60_000, 2, 2, 3), dtype=np.uint8)
    label = (np.arange(60_000) % 10).astype(np.uint8)
    monkeypatch.setattr(data, "fetch_archive", lambda *args: None)
    monkeypatch.setattr(data, "read_cifar", lambda folder: (rgb, label))
    monkeypatch.setattr(data, "OFFICIAL_CIFAR_MEAN", rgb[:50_000].mean((0, 1, 2)).round(2).tolist())
    sources = [data.load("image", tmp_path).source]
    label[-2:] = label[[-1, -2]]  # the last two are of each other's class
    sources.append(data.load("image", tmp_path).source)
    monkeypatch.setattr(data, "CIFAR_LABELS", hashlib.sha256(label).hexdigest())
    sources.append(data.load("image", tmp_path).source)
    assert len({source["hash"] for source in sources}) == 3
    assert sources[2]["hash"] == hashlib.sha256(rgb).hexdigest()
    assert [source["official"] for source in sources] == [False, False, True]
    rgb[:, 0] = 0  # other pixels
    assert data.load("image", tmp_path).source["official"] is False
    label[0] = 10
    with pytest.raises(data.DataError, match="image, (train|val): labels must be 0 to 9"):
        data.load("image", tmp_path)


def test_a_file_of_cifar_that_is_not_whole_is_refused(tmp_path):
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    (folder / "data_batch_1.bin").write_bytes(b"x")
    with pytest.raises(data.DataError, match="data_batch_1.bin: missing or not 30,730,000 bytes"):
        data.load("image", tmp_path)


def test_augmentation_depends_on_seed_epoch_and_image_alone(images):
    task = data.dress(images, limit=24, technique="augment paper", seed=5)
    plan = [torch.arange(8), torch.arange(8, 24)]
    batches = [*task.training_batches(plan, seeded(), 1)]
    before = torch.get_rng_state()
    views = data.AugmentedImages(task.rgb, 5)
    sent = pickle.loads(pickle.dumps(views))  # as to the workers of macOS and Windows
    for i in range(24):  # so an epoch can be taken up anywhere
        assert torch.equal(torch.cat([b.tokens for b in batches])[i], sent[(1, i)].long() + 3)
    assert torch.equal(before, torch.get_rng_state())  # dropout's generator is left alone
    others = views[(2, 3)], data.AugmentedImages(task.rgb, 6)[(1, 3)], views[(1, 4)]
    assert not any(torch.equal(views[(1, 3)], other) for other in others)
    quarter = data.image_split(data.halved(task.train.tokens.view(-1, 1024)), task.train.label)
    small = replace(task, max_length=256, train=quarter)
    batch = next(small.training_batches(plan, seeded(), 1, rank=1, ranks=2))
    assert torch.equal(batch.tokens[0], data.halved(views[(1, 4)]).long() + 3)


def test_paper_augmentation_has_the_papers_order_ranges_and_rates(monkeypatch):
    import torchvision.transforms as T
    import torchvision.transforms.functional as TF

    flip, auto, _, affine, grey = data.paper_augmentation().transforms
    assert isinstance(flip, T.RandomHorizontalFlip) and flip.p == 0.5
    assert isinstance(auto, T.AutoAugment) and auto.policy == T.AutoAugmentPolicy.CIFAR10
    assert isinstance(affine, T.RandomAffine) and isinstance(grey, T.Grayscale)
    assert (affine.degrees, affine.shear) == ([-10, 10], [-10, 10])
    assert (affine.translate, affine.scale) == ((0.1, 0.1), (0.9, 1.1))
    assert affine.interpolation == T.InterpolationMode.BILINEAR and grey.num_output_channels == 1
    table = {  # in this order: probability, and the range of the magnitude
        "invert": (0.008,), "adjust_contrast": (0.032, 1.0, 1.9), "adjust_sharpness": (0.112, 1.0, 1.9),
        "autocontrast": (0.200,), "equalize": (0.188,), "posterize": (0.012, 0, 6),
        "adjust_saturation": (0.116, 1.0, 1.9), "adjust_brightness": (0.092, 1.0, 1.9),
        "solarize": (0.076, 0, 256),
    }  # fmt: skip
    fired = {name: [] for name in table}
    for name in table:
        where = data if name == "posterize" else TF
        monkeypatch.setattr(where, name, lambda x, *value, name=name: fired[name].append(value) or [*x, name])
    colours, n = data.paper_augmentation.__wrapped__().transforms[2], 6000
    torch.manual_seed(0)
    for _ in range(n):
        order = [[*table].index(name) for name in colours([])]
        assert order == sorted(order)
    for name, (probability, *ends) in table.items():
        share, values = len(fired[name]) / n, [value[0] for value in fired[name] if ends]
        assert abs(share - probability) < 4 * (probability * (1 - probability) / n) ** 0.5, name
        if ends:
            low, high, edge = *ends, 0.03 * (ends[1] - ends[0])
            assert low <= min(values) <= low + edge and high - edge <= max(values) <= high, name
    assert {value for (value,) in fired["posterize"]} == set(range(7))
    monkeypatch.undo()
    pixels = np.arange(256, dtype=np.uint8).reshape(16, 16)
    for bits in range(9):  # down to a black image, which Pillow's own refuses
        kept = pixels & (0xFF00 >> bits & 0xFF)
        assert np.array_equal(data.posterize(Image.fromarray(pixels), bits), kept)


def test_half_of_the_images_are_flipped_left_to_right():
    image, square = torch.arange(9).repeat(8000, 1), torch.arange(9).view(3, 3)
    batch = data.Batch(image, torch.ones_like(image, dtype=torch.bool), None)
    [transform] = smoke("image", technique="augment flip").transforms
    counts = Counter(map(tuple, transform(batch, seeded()).tokens.tolist()))
    assert set(counts) == {tuple(p.flatten().tolist()) for p in (square, square.flip(1))}
    assert all(abs(c - 4000) < 5 * 4000**0.5 for c in counts.values())


def flags(**given):
    common = dict(data_dir=Path("unused"), limit=None, max_length=None, smoke=True, mini=False, augment=None)
    return argparse.Namespace(**common | given)


@pytest.mark.parametrize("name", ("text", "retrieval", "listops"))
def test_techniques_change_what_is_trained_on_and_nothing_that_is_evaluated(name):
    for wanted in (None, "shuffle" if name == "listops" else "denoise"):
        task = smoke(name, technique=wanted)
        seen = next(task.training_batches([torch.arange(8)], seeded(), 0))
        clean = task.gather("train", torch.arange(8))
        assert torch.equal(seen.tokens, clean.tokens) == (not wanted)
        assert (seen.target is not None) == task.denoise == (wanted == "denoise")
        assert next(task.evaluation_batches("test")).target is None


@pytest.mark.parametrize("name, given, words", [
    ("text", dict(technique="augment flip"), "augment flip is for Image, Pathfinder, .*; Text cannot"),
    ("scifar", dict(technique="augment flip"), "sCIFAR cannot follow it"),
    ("pathfinder", dict(technique="augment paper"), "augment paper is for Image; Pathfinder"),
    ("image", dict(technique="augment d4"), "technique 'augment d4': give None or one of augment paper"),
    ("pathx", dict(technique="three sets"), "three sets is for Pathfinder; Path-X cannot"),
    ("listops", dict(max_length=100), "--max-length is for Text, Retrieval; ListOps cannot"),
    ("text", dict(max_length=5000), "at most 4096 bytes"),
    ("text", dict(technique="shuffle"), "shuffle is for ListOps"),
    ("pathfinder", dict(technique="denoise"), "denoise is for Text, Retrieval; Pathfinder"),
    ("pathx", dict(mini=True), "there is no mini Path-X"),
])  # fmt: skip
def test_what_a_task_cannot_follow_is_refused_at_once(name, given, words):
    with pytest.raises(data.DataError, match=words):
        smoke(name, **given)
    technique = given.pop("technique", "none")
    if "max_length" in given or technique in ("augment flip", "augment paper"):  # what flags can ask for
        with pytest.raises(data.DataError, match=words):
            data.require([name], flags(augment=technique.removeprefix("augment "), **given))


def test_one_missing_task_stops_itself_alone(tmp_path, capsys):
    new = tmp_path / "new"
    assert data.require(["text", "retrieval"], flags(data_dir=new, smoke=False)) == ["text", "retrieval"]
    printed = capsys.readouterr()
    assert "warning: Retrieval needs" in printed.err and f"{new} is new" in printed.out.splitlines()[0]
    with pytest.raises(data.DataError, match="Retrieval needs"):
        data.require(["retrieval"], flags(data_dir=new, smoke=False))
    assert data.require(["retrieval"], flags()) == ["retrieval"]


def test_a_recipe_says_how_a_task_is_loaded(monkeypatch):
    monkeypatch.setattr(data, "load", lambda *args, **given: (args, given))
    recipe = {"train": {"technique": "denoise", "stride": 16}}
    given = dict(seed=7, stride=16, technique="denoise", limit=5, max_length=None, smoke=True, mini=False)
    assert data.load_for(flags(limit=5), "text", recipe, 7) == (("text", Path("unused")), given)


def test_sizes_that_no_check_of_the_files_would_catch():
    """Typed again. Other sizes and counts are refused where data are read."""
    assert data.MINI_COUNTS == {"train": 48_000, "val": 2_000, "test": 10_000}
    assert data.listops.LISTOPS_LENGTHS == (501, 1999) and data.listops.MINI_LISTOPS_LENGTHS == (20, 96)
    longest = {  # as the papers have it, in the mini tier
        "listops": (2000, 96), "text": (4096, 256), "retrieval": (4096, 256), "image": (1024, 256),
        "scifar": (3072, 768), "pathfinder": (1024, 256), "pathx": (16_384,), "pathx256": (65_536,),
    }  # fmt: skip
    assert data.SHAPES.keys() == data.TITLES.keys() == longest.keys()
    for name, sizes in longest.items():
        assert tuple(data.length(name, mini) for mini in (False, True)[: len(sizes)]) == sizes


main = functools.partial(exit_code, data.main)


def test_the_command_line_prepares_shows_and_refuses(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(data.EXPECTED, "listops", {"train": 300, "val": 40, "test": 40})
    listops = ("--data-dir", tmp_path, "--task", "listops")
    assert main(*listops, "retrieval", "--prepare") == 2
    shown = capsys.readouterr()  # one that cannot be had does not keep the others from their turn
    assert shown.err.startswith("error: Retrieval needs") and "train: 300 examples" in shown.out
    assert "test accuracy of root rule" in shown.out
    (tmp_path / "packed" / "listops" / "manifest.json").write_text("{}")
    assert main(*listops, "--prepare") == 2
    assert "incomplete or unreadable" in capsys.readouterr().err
    monkeypatch.setattr(data, "load", functools.partial(data.load, smoke=True))
    assert main("--data-dir", tmp_path, "--task", "listops", "text", "pathfinder", "--show") == 0
    shown, task = capsys.readouterr().out, data.load("listops", tmp_path)
    first = " ".join(data.listops.LISTOPS_SYMBOLS[x] for x in documents(task.train)[0])
    assert f"ListOps, label {task.train.label[0]}:\n{first}\n" in shown and shown.count("Text, label") == 3
    assert documents(data.load("text", tmp_path).train)[2].decode() in shown
    assert Image.open(tmp_path / "pathfinder.png").width > 500
    monkeypatch.undo()
    for words in (["--mini", "--fetch", "--url", "http://x"], ["--show", "--mini"]):
        assert main(*listops, *words) == 2


def test_retrieval_is_fetched_only_where_it_is_missing(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(data.EXPECTED, "retrieval", {"train": 20, "val": 6, "test": 4})
    asked = []
    fetch = lambda root, url: asked.append(url) or aan(root / "retrieval")  # noqa: E731
    monkeypatch.setattr(data, "fetch_retrieval", fetch)
    for url in (["--url", "http://mirror/lra"], []):
        assert main("--task", "retrieval", "--fetch", "--data-dir", tmp_path, *url) == 0
        assert "train: 20 examples, val: 6 examples" in capsys.readouterr().out
    assert asked == ["http://mirror/lra"]


def test_sentences_are_encoded_as_the_reviews_of_text_are():
    texts = ["so good", "bad", "caf\u00e9"]
    split = data.Split(*data.ragged([text.encode() for text in texts]), torch.tensor([1, 0, 1]))
    task = data.Task("text", 2, 259, 3, 4096, split, split, split, source={})
    batch, (ids, mask) = task.gather("test", torch.arange(3)), data.encode(texts)
    width = ids.shape[1]
    assert torch.equal(batch.tokens[:, :width], ids) and torch.equal(batch.mask[:, :width], mask)
    assert not batch.mask[:, width:].any() and width == 7
    assert data.encode(["x" * 5000])[0].shape == (1, 4096)


@pytest.mark.processes
def test_nothing_heavy_is_imported_before_it_is_needed():
    code = "import sys, data; sys.exit(str([m for m in ('torchvision', 'matplotlib') if m in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert done.stderr == "[]\n"


def test_one_string_is_no_list_of_sentences():
    with pytest.raises(TypeError, match="takes a list of sentences"):
        data.encode("A wonderful film.")


def test_a_mini_text_is_not_made_longer(monkeypatch, tmp_path):
    small = data.load("text", "", smoke=True)
    monkeypatch.setattr(data, "pack", lambda *_: (small.splits, dict(small.source)))
    with pytest.raises(data.DataError, match="--mini reads 256 bytes of Text"):
        data.load("text", tmp_path, mini=True, max_length=512)
    assert data.load("text", tmp_path, mini=True, max_length=100).max_length == 100
