"""The tasks of the Long Range Arena: fetch or generate -> pack -> batch -> augment -> corrupt -> reorder.
Knows no model.

    task = data.load("listops", "data")     # ready tensors: made or fetched once, then read back
    plan = task.plan(batch_size, order)     # an epoch: index tensors, neighbours in length together
    for batch in task.training_batches(plan, noise, epoch):
        batch.tokens, batch.mask, batch.label

Every data set is small enough to live on the device: symbols end to end as uint8 with offsets ("ragged"), so
a batch is one index gather, and padding (id 0) exists only inside a batch. Ids are `symbol + first_id`.
docs/data.md says what the tasks are and where their files are looked for.
"""

import argparse
import functools
import hashlib
import json
import math
import multiprocessing
import os
import re
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise, product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from tqdm import tqdm

import listops
import pathfinder
from fetch import AAN_LINES, ARCHIVES, FETCHED, digest_of, fetch_archive, fetch_retrieval
from machine import DataError, making, usable_cores

MASK = 2  # an id; 1 is CLS in the authors' code and unused in both papers' tables
SPLITS = ("train", "val", "test")
PATHFINDER_SIZE = {"pathfinder": 32, "pathx": 128, "pathx256": 256}  # pixels a side
SHAPES = {  # of each task: arguments of Task
    "listops": dict(classes=10, vocab=17, first_id=listops.LISTOPS_FIRST_ID, max_length=2000),
    "text": dict(classes=2, vocab=259, first_id=3, max_length=4096),
    "retrieval": dict(classes=2, vocab=259, first_id=3, max_length=4096, docs=2),
    "image": dict(classes=10, vocab=259, first_id=3, max_length=1024),
    "scifar": dict(classes=10, vocab=259, first_id=3, max_length=3072, channels=3),
}
SHAPES |= {
    name: dict(classes=2, vocab=258, first_id=2, max_length=side**2) for name, side in PATHFINDER_SIZE.items()
}
MINI_LENGTHS = dict(listops=96, text=256, retrieval=256, image=256, scifar=768, pathfinder=256)
TITLES = dict(listops="ListOps", text="Text", retrieval="Retrieval", image="Image", scifar="sCIFAR")
TITLES |= dict(pathfinder="Pathfinder", pathx="Path-X", pathx256="Path-X-256")  # of tables and figures
# The rules without a network that tables show beside models: what their records have.
PATCHES = {"exp": "patches", "cell": {"patch": "6x6", "centres": 400, "pool": "quarters"}}
WINDOW = {"exp": "listops", "cell": {"rule": "window", "W": 16, "sm": "known"}}
GUESSING = {"exp": "listops", "cell": WINDOW["cell"] | {"sm": "guessed"}}  # sums, as paper A's models do
FLOORS = {
    "text": {"exp": "ngrams", "cell": {"n": 6, "gap": 1, "weights": "bayes"}},
    "image": PATCHES,
    "pathfinder": PATCHES,
    "listops": WINDOW,
}
INPUTS = dict.fromkeys(("image", "pathfinder", "pathx"), "grey values as symbols")  # in paper A's scripts
SHORT_TITLES = TITLES | dict(
    listops="List.", retrieval="Retr.", pathfinder="Pathf."
)  # of tables with many columns
EXPECTED = {  # examples of the official files; official data with others are refused
    "listops": {"train": 96_000, "val": 2_000, "test": 2_000},
    "text": {"train": 22_500, "val": 2_500, "test": 25_000},
    "retrieval": dict(zip(SPLITS, AAN_LINES.values())),
}
MINI_COUNTS = {"train": 48_000, "val": 2_000, "test": 10_000}  # of ListOps in the mini tier
TEXTS = ("text", "retrieval")  # what can be cut: a cut expression has no value, a cut image no meaning
TASKS_WITH_TECHNIQUE = {  # paper A's techniques (Section 3), as recipes name them: the tasks that can follow
    "augment paper": ("image",),
    "augment flip": ("image", *PATHFINDER_SIZE),
    "three sets": ("pathfinder",),
    "shuffle": ("listops",),
    "denoise": TEXTS,
}


def length(name, mini=False):
    """Symbols of the longest document of a task. Raises DataError where there is no mini tier."""
    if mini and name not in MINI_LENGTHS:
        raise DataError(f"--mini: there is no mini {TITLES[name]}; choose another task or leave --mini out")
    return MINI_LENGTHS[name] if mini else SHAPES[name]["max_length"]


# ------------------------------------------------------------------------------------------ shapes of things


class Split(NamedTuple):
    """One split, ragged. Document i is tokens[offsets[i] : offsets[i + 1]]."""

    tokens: torch.Tensor  # (total,) uint8 symbols
    offsets: torch.Tensor  # (docs * n + 1,) int64
    label: torch.Tensor  # (n,) int64


class Batch(NamedTuple):
    """B examples; with docs = 2 the rows are doc1, doc2, doc1, doc2, ..."""

    tokens: torch.Tensor  # (B * docs, L) int64 ids, corrupted where the task corrupts
    mask: torch.Tensor  # (B * docs, L) bool, True at real positions
    label: torch.Tensor  # (B,) int64
    docs: int = 1
    target: torch.Tensor | None = None  # (B * docs, L) int64 ids before corruption
    selected: torch.Tensor | None = None  # (B * docs, L) bool, positions chosen for corruption
    # What losses are divided by: examples of the whole global batch, and real positions that so many training
    # examples have on average (common.multitask_loss says why not the batch's own).
    examples: int = 0
    positions: torch.Tensor | None = None

    def cut(self, start, stop):
        """Examples start to stop, with the counts of the whole: losses of parts add up to the batch's."""
        rows = slice(start * self.docs, stop * self.docs)
        whole = {k: getattr(self, k) for k in ("tokens", "mask", "target", "selected")}
        cut = {k: x[rows] for k, x in whole.items() if x is not None}
        return self._replace(label=self.label[start:stop], **cut)

    def parts(self, size):
        """The batch cut into batches of at most `size` examples."""
        return (self.cut(i, i + size) for i in range(0, len(self.label), size))

    def share(self, rank, ranks):
        """What process `rank` of `ranks` computes of this batch."""
        start, stop, copies = share_of(len(self.label), rank, ranks)
        part = self.cut(start, stop)
        return part._replace(examples=copies * self.examples, positions=copies * self.positions)


def share_of(n, rank, ranks):
    """(start, stop, copies): which of a batch's n examples process `rank` of `ranks` computes, and how many
    processes compute the same: all of them if n < ranks, for an empty share would be a deadlock."""
    return (0, n, ranks) if n < ranks else (rank * n // ranks, (rank + 1) * n // ranks, 1)


@dataclass
class Task:
    """A task ready to train on. Raises DataError where splits, classes and docs do not fit together."""

    name: str
    classes: int
    vocab: int  # number of ids, specials included
    first_id: int  # id of symbol 0
    max_length: int  # symbols; longer documents are cut at the end
    train: Split
    val: Split
    test: Split
    source: dict  # where the examples came from, counts, content hash: goes into the record
    docs: int = 1
    channels: int = 1  # symbols that stand for one position
    transforms: list[Callable] = field(default_factory=list)  # of training: (Batch, torch.Generator) -> Batch
    rgb: np.ndarray | None = None  # (n, 32, 32, 3) uint8 training images where augmentation needs colour
    denoise: bool = False  # whether batches are corrupted for paper A's denoising loss
    stride: int | str = 1  # order of the positions in all batches, see strided
    seed: int = 0  # of the per-image augmentation streams

    def __post_init__(self):
        self.lengths = {}  # symbols of each example (n,), of a pair the longer document's; on the CPU
        for name, (tokens, offsets, label) in self.splits.items():
            edges, n, wrong = offsets.cpu(), self.docs * len(label), None
            ends = [len(edges), int(edges[0]), int(edges[-1])]
            if ends != [n + 1, 0, len(tokens)] or (edges.diff() < 0).any():
                wrong = f"offsets must be {n + 1}, rising from 0 to the number of tokens"
            elif ((label < 0) | (label >= self.classes)).any():
                wrong = f"labels must be 0 to {self.classes - 1}; give other labels or more classes"
            # A vocabulary that has room for every byte needs no look at the tokens.
            elif len(tokens) and self.first_id + 256 > self.vocab <= self.first_id + int(tokens.max()):
                wrong = f"the largest id is {self.first_id + int(tokens.max())}; give a larger vocab"
            if wrong:
                raise DataError(f"{self.name}, {name}: {wrong}")
            documents = edges.diff().clamp(max=self.max_length)
            self.lengths[name] = documents.view(-1, self.docs).amax(1)
            if name == "train":
                symbols = float(documents.sum()) / max(1, len(label))
                self.mean_positions = symbols / self.channels  # of an example

    @property
    def one_length(self):
        """Whether all examples have the same number of positions."""
        return len({int(n) for lengths in self.lengths.values() for n in lengths.aminmax()}) == 1

    @property
    def sizes(self):
        """What a model must know of the task: arguments of models.SequenceModel."""
        return {name: getattr(self, name) for name in ("vocab", "classes", "docs", "max_length", "denoise")}

    @property
    def splits(self):
        return {name: getattr(self, name) for name in SPLITS}

    def to(self, device):
        return replace(self, **{name: Split(*(t.to(device) for t in s)) for name, s in self.splits.items()})

    def plan(self, batch_size, order, bucket=True):
        """One training epoch as a list of index tensors that covers every example once, in an order drawn
        from `order`, a CPU generator. With `bucket` examples are sorted by length inside pools of 50 batches
        and the batches are shuffled: neighbours in length share a batch (IMDB in random batches of 16 is 62 %
        padding), and still others meet every epoch."""
        lengths = self.lengths["train"]
        index = torch.randperm(len(lengths), generator=order)
        if bucket and lengths.min() < lengths.max():
            pools = [pool[lengths[pool].argsort(stable=True)] for pool in index.split(50 * batch_size)]
            batches = [batch for pool in pools for batch in pool.split(batch_size)]
            return [batches[i] for i in torch.randperm(len(batches), generator=order)]
        return list(index.split(batch_size))

    def training_batches(self, plan, noise, epoch, rank=0, ranks=1):
        """Augmented (and corrupted) batches of a plan; of each, the share of process `rank` of `ranks`. All
        ranks draw from `noise`, a generator on the data's device, for the whole batch, so that their number
        does not change what is drawn. With colour augmentation each image has its own stream instead."""
        coloured = self.rgb is not None
        plain = (self.gather("train", index) for index in plan)
        for batch in augmented_images(self, plan, epoch, rank, ranks) if coloured else plain:
            for transform in self.transforms:
                batch = transform(batch, noise)
            batch = strided(batch, self.stride, self.channels)
            yield batch if coloured or ranks == 1 else batch.share(rank, ranks)

    def evaluation_batches(self, split, positions=1 << 16, rank=0, ranks=1):
        """Clean batches of about `positions` padded positions each, shortest documents first. Each of `ranks`
        processes gets every ranks-th."""
        lengths = self.lengths[split]
        index, plan = lengths.argsort(stable=True), []
        while len(index):
            # Lengths ascend, so the first n cost n * lengths[n - 1]: take the largest n that fits.
            cost = torch.arange(1, len(index) + 1) * self.padded(lengths[index]) * self.docs
            n = max(1, int((cost <= positions).sum()))
            plan.append(index[:n])
            index = index[n:]
        for index in plan[rank::ranks]:
            yield strided(self.gather(split, index), self.stride, self.channels)

    def padded(self, lengths):
        """Lengths rounded up to a multiple of 16, above 128 of 64, above 1,024 of 256: so batches come in few
        shapes (Text in 25 and not 61, at 8.1 % padding and not 5.0)."""
        step = torch.where(lengths > 1024, 256, torch.where(lengths > 128, 64, 16))
        return ((lengths + step - 1) // step * step).clamp(max=self.max_length)

    def gather(self, split, index):
        """The examples `index` (B,) of a split as one padded Batch."""
        tokens, offsets, label = self.splits[split]
        lengths = self.lengths[split][index]  # on the CPU: choosing L must not wait for the device
        length = int(self.padded(lengths.max()))
        index = index.to(tokens.device, non_blocking=True)
        rows = document_rows(index, self.docs)
        start, stop = offsets[rows], offsets[rows + 1]
        column = torch.arange(length, device=tokens.device)
        if self.docs == 1 and lengths.min() == length:  # by its strides of 0 models.surely_full knows it
            mask = torch.ones(1, 1, dtype=torch.bool, device=tokens.device).expand(len(rows), length)
        else:
            mask = column < (stop - start)[:, None]
        ids = tokens[(start[:, None] + column).clamp_(max=len(tokens) - 1)].long() + self.first_id
        positions = torch.full((), len(index) * self.mean_positions, device=tokens.device)
        return Batch(ids * mask, mask, label[index], self.docs, examples=len(index), positions=positions)


def document_rows(index, docs):
    """Numbers (B * docs,) of the documents of the examples `index` (B,), those of an example together."""
    return (index[:, None] * docs + torch.arange(docs, device=index.device)).view(-1)


# ------------------------------------------------------------------------------------------ corrupt, reorder


def corrupt(batch, noise, vocab, mask_id=MASK, channels=1):
    """Paper A's corruption for denoising (Section 3, A.4): each real position is selected with probability
    0.3; of the selected, a third becomes any id (specials too, as in the authors' code), the rest `mask_id`.
    All channels of a position share its fate. The clean ids stay in `batch.target`."""
    real, device = batch.mask[:, ::channels], batch.tokens.device
    selected = (torch.rand(real.shape, generator=noise, device=device) < 0.3) & real
    random = torch.rand(real.shape, generator=noise, device=device) < 1 / 3
    ids = torch.randint(vocab, batch.tokens.shape, generator=noise, device=device)
    ids, tokens = (x.unflatten(1, (-1, channels)) for x in (ids, batch.tokens))  # (B, L, channels)
    tokens = torch.where(selected.unsqueeze(2), torch.where(random.unsqueeze(2), ids, mask_id), tokens)
    return batch._replace(tokens=tokens.flatten(1), target=batch.tokens, selected=selected)


ROTATED = {"rotated": 1, "random-rotated": "random"}  # strides that rotate, and their order before that


def strided(batch, stride, channels=1):
    """The batch with the positions of every document in another order, always the same for its length.

    Of L positions the first n = L - L % stride move, i to (i % stride) * (n // stride) + i // stride, so that
    neighbours come to lie n // stride apart (an image of that side is transposed); the rest and the padding
    stay. stride "random": a permutation of all L, fixed for each L. "rotated", "random-rotated": as 1 and
    "random", but then every document is rotated by a number of its own, the sum of its ids, so that the
    distance to the ends does not tell which position it is."""
    if stride == 1:
        return batch
    device, width = batch.tokens.device, batch.tokens.shape[1]
    length = batch.mask.sum(1, keepdim=True) // channels
    place = torch.arange(width // channels, device=device)  # source[b, place]: the position that comes there
    order = ROTATED.get(stride, stride)
    if order == "random":
        keys = fixed_order(1 << 16, device)[: len(place)]  # a number for each position, all different
        source = torch.where(place < length, keys, (1 << 16) + place).argsort(1)
    else:
        apart = length // order
        moved = place % apart.clamp(min=1) * order + place // apart.clamp(min=1)
        source = torch.where(place < apart * order, moved, place)
    if stride in ROTATED:
        turned = (place + batch.tokens.sum(1, keepdim=True)) % length.clamp(min=1)
        source = source.gather(1, torch.where(place < length, turned, place))
    source = (source[:, :, None] * channels + torch.arange(channels, device=device)).flatten(1)
    fields = {name: getattr(batch, name) for name in ("tokens", "target", "selected")}
    return batch._replace(**{name: x.gather(1, source) for name, x in fields.items() if x is not None})


# ------------------------------------------------------------------------------------------ pack


def describe(splits, made):
    """The `source` of a task whose splits were made by `made`. Runs of one hash have seen the same data."""
    digest = hashlib.sha256()
    for name, part in product(SPLITS, Split._fields):
        digest.update(np.ascontiguousarray(getattr(splits[name], part)))
    return {"from": made, "counts": {s: len(splits[s].label) for s in SPLITS}, "hash": digest.hexdigest()}


def pack(root, task, made, make):
    """({split: Split}, source) of the folder root/packed/<task>. Where it is missing, it is written, whole or
    not at all, from make() -> {split: Split} and what else the source says beside `made`. Raises DataError
    for a folder of another task or with bytes that differ from its manifest."""
    folder = root / "packed" / task
    with making(folder) as private:
        if private:
            splits, more = make()
            private.mkdir()
            for name, part in product(SPLITS, Split._fields):
                np.save(private / f"{name}_{part}.npy", getattr(splits[name], part))
            manifest = {"task": task} | describe(splits, made) | more
            (private / "manifest.json").write_text(json.dumps(manifest, indent=1))
    try:
        manifest, splits = json.loads((folder / "manifest.json").read_text()), {}
        for name in SPLITS:
            arrays = (np.load(folder / f"{name}_{part}.npy") for part in Split._fields)
            splits[name] = Split(*map(torch.from_numpy, arrays))
        expected = {"task": task} | describe(splits, made)
        if {key: manifest[key] for key in expected} != expected:
            raise ValueError(f"other data than its manifest says, or not those of '{task}'")
        return splits, manifest
    except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
        remedy = "delete it to have it made again, or choose another --data-dir"
        raise DataError(f"{folder} is incomplete or unreadable ({error}); {remedy}") from error


def ragged(documents):
    """List of bytes or arrays of them -> (tokens uint8 (total,), offsets int64 (n + 1,))."""
    offsets = np.cumsum([0, *map(len, documents)], dtype=np.int64)
    tokens = np.frombuffer(bytearray().join(documents), np.uint8)
    return torch.from_numpy(tokens), torch.from_numpy(offsets)


@functools.cache
def fixed_order(n, device="cpu"):
    """The permutation of n examples that splits and smaller sets are cut from: always the same one."""
    return torch.randperm(n, generator=torch.Generator().manual_seed(42)).to(device)


def select(split, index, docs=1):
    """The examples `index` of a ragged split, in that order, as a new Split."""
    index, tokens = torch.as_tensor(index), split.tokens.numpy()
    rows = document_rows(index, docs)
    bounds = zip(split.offsets[rows].tolist(), split.offsets[rows + 1].tolist())
    # Document by document: an index for each token would take 24 times the memory of the tokens.
    return Split(*ragged([tokens[start:stop] for start, stop in bounds]), split.label[index])


def example_keys(split, docs=1):
    """A number for each example (of a pair, for both documents), equal for equal ones."""
    tokens = split.tokens.numpy()
    return [hash(tokens[start:stop].tobytes()) for start, stop in pairwise(split.offsets[::docs].tolist())]


# ------------------------------------------------------------------------------------------ official files

# Where an unpacked release lies: it holds itself once more, and everyone uses the inner one.
RELEASE = ("lra_release/lra_release", "lra_release", "")
AAN_FILES = dict(zip(SPLITS, AAN_LINES))
# label, id1, id2, text1, text2 with tabs between; a text can be empty
AAN_ROW = re.compile(rb"""([01])(?:\.0)?\t[^\t]*\t[^\t]*\tb(['"])([^\t]*)\2\tb(['"])([^\t]*)\4[\r\n]*""")


def data_folder(root):
    """The data folder as a Path. One that is not there is made, and that is said: it may be a slip."""
    root = Path(root)
    try:
        if not root.is_dir():
            root.mkdir(parents=True, exist_ok=True)  # another rank may be quicker
            print(f"{root.absolute()} is new; data are made or fetched into it", flush=True)
    except OSError as error:
        why = "it is a file" if os.path.isfile(root) else error
        raise DataError(f"cannot make the folder {root} ({why}); choose another --data-dir") from error
    return root


def released(root, name):
    """The folder `name` of the unpacked release, or None."""
    return next((root / top / name for top in RELEASE if (root / top / name).is_dir()), None)


def say_generated(folder, official):
    """Say when data are generated: official files may lie elsewhere."""
    if not folder.exists():
        print(f"{folder} is generated: there are no official files in {official}", flush=True)


def read_official(root, name):
    """{split: Split} of the official files of ListOps, Text or Retrieval, and a dict of what else is known of
    them. Raises DataError for files that are cut or hold the same examples twice (one file under two names,
    a row many times). The real ones have few duplicates: 0.5 % of IMDB."""
    more = {}
    if name == "text":
        fetch_archive(root, ARCHIVES["text"])
        folder = root / "aclImdb"
        splits = read_imdb(folder)
    elif name == "retrieval":
        folder = find_aan(root)
        splits = {split: read_aan_tsv(folder / file) for split, file in AAN_FILES.items()}
        more = {"files": aan_files(folder)}
    else:
        folder = released(root, "listops-1000")
        files = {split: listops.read_listops_tsv(folder / f"basic_{split}.tsv") for split in SPLITS}
        splits = {split: Split(*map(torch.from_numpy, arrays)) for split, arrays in files.items()}
    seen = set()
    for split, expected in EXPECTED[name].items():
        keys = example_keys(splits[split], SHAPES[name].get("docs", 1))
        new = set(keys) - seen
        seen |= new
        if len(keys) != expected or len(new) < expected / 2:
            found = f"{len(keys):,} examples for {split}, {len(new):,} of them new, instead of {expected:,}"
            raise DataError(f"{folder} holds {found}; it is not the official data of {name}, get it again")
    return splits, more


def read_imdb(folder):
    """The labelled reviews of an unpacked aclImdb/ as {split: Split}, cut at 4,096 bytes; label 1 = positive.
    Validation is a tenth of train (paper A holds out as many, without a seed). Raises DataError when a review
    is missing or empty."""
    counts, each, sets = EXPECTED["text"], EXPECTED["text"]["test"] // 2, {}
    for split in ("train", "test"):
        texts = []
        for sentiment in ("neg", "pos"):
            place = folder / split / sentiment
            # <id>_<rating>.txt, ordered by id: the order of a directory listing differs between file systems.
            files = [file for file in place.glob("*") if re.fullmatch(r"\d+_\d+\.txt", file.name)]
            files.sort(key=lambda file: int(file.name.split("_")[0]))
            bar = tqdm(files, str(place), leave=False, disable=None)
            reviews = [file.read_bytes()[:4096] for file in bar]
            if len(files) != each or b"" in reviews:
                found = f"{len(files):,} reviews ({reviews.count(b'')} empty)"
                raise DataError(f"{place} holds {found}, not {each:,}; unpack aclImdb again")
            texts += reviews
        sets[split] = Split(*ragged(texts), torch.arange(2).repeat_interleave(each))
    train, val = fixed_order(2 * each).split([counts["train"], counts["val"]])
    return {"train": select(sets["train"], train), "val": select(sets["train"], val), "test": sets["test"]}


def find_aan(root):
    """The folder under `root` with the three AAN files. Raises DataError, which says how to get them."""
    tops = (root / top / "tsv_data" for top in RELEASE)
    for folder in (root / "retrieval", *tops, root / "aan", root):
        if all((folder / name).is_file() for name in AAN_FILES.values()):
            return folder
    command = f"python data.py --task retrieval --fetch --data-dir {root}"
    advice = f"put them into {root / 'retrieval'}, or remove that folder and run `{command}` (10.6 GB)"
    raise DataError(f"Retrieval needs {', '.join(AAN_FILES.values())}: {advice}")


def aan_files(folder):
    """The sha256 of each AAN file in `folder` and, of fetched ones, from where. Raises DataError where they
    are no longer what was fetched."""
    known = {"sha256": {name: digest_of(folder / name)[0] for name in AAN_LINES}}
    if (folder / FETCHED).exists():
        fetched = json.loads((folder / FETCHED).read_text())
        if fetched["sha256"] != known["sha256"]:
            fault = "is no longer what was fetched (sha256 differs)"
            raise DataError(f"{folder} {fault}; delete it, fetch it again")
        return fetched
    return known


def read_aan_tsv(path):
    """new_aan_pairs.*.tsv -> Split of documents doc1, doc2, doc1, doc2, ..., each cut at 4,096 bytes;
    label 1 = one paper cites the other. Escapes inside b'...' stay as they are (a line feed is a backslash
    and an n), as every reference reads them. Raises DataError."""
    documents, label = [], []
    with open(path, "rb") as file:
        for number, row in enumerate(tqdm(file, path.name, leave=False, disable=None), 1):
            fields = AAN_ROW.fullmatch(row)
            if not fields:
                fault = "this is not 0.0 or 1.0, two ids and two texts as b'..'"
                raise DataError(f"{path}, line {number}: {fault}; delete its folder and fetch it again")
            documents += [fields[3][:4096], fields[5][:4096]]
            label.append(int(fields[1]))
    return Split(*ragged(documents), torch.tensor(label))


def listops_splits(counts, seed, lengths=listops.LISTOPS_LENGTHS):
    """counts {name: n} -> {name: Split}: the generator's examples cut in pieces."""
    examples = listops.generate_listops(sum(counts.values()), seed, lengths)
    whole = Split(*map(torch.from_numpy, examples))
    pieces = torch.arange(len(whole.label)).split([*counts.values()])
    return {name: select(whole, piece) for name, piece in zip(counts, pieces)}


def load_listops(root, mini=False, limit=None):
    """Splits and source of LRA's own files where they are, else of the generator; in the mini tier always of
    the generator, and short. A limit above their number adds those that the generator makes next."""
    # The official examples have a pack of their own, not to be mistaken for generated ones; it outlives them.
    if not mini and (released(root, "listops-1000") or (root / "packed" / "listops-official").exists()):
        return pack(root, "listops-official", "lra_release", lambda: read_official(root, "listops"))
    if mini:
        name, counts, lengths = "listops-mini", MINI_COUNTS, listops.MINI_LISTOPS_LENGTHS
    else:
        name, counts, lengths = "listops", EXPECTED["listops"], listops.LISTOPS_LENGTHS
        say_generated(root / "packed" / name, root / "listops-1000")
    generate = functools.partial(listops_splits, seed=0, lengths=lengths)
    splits, source = pack(root, name, "generated", lambda: (generate(counts), {"seed": 0}))
    if limit and limit > counts["train"]:
        fresh = torch.arange(limit - counts["train"]) + sum(counts.values())
        whole = generate({"all": sum(counts.values()) + len(fresh)})["all"]
        splits["train"] = select(whole, torch.cat([torch.arange(counts["train"]), fresh]))
    return splits, source


# ------------------------------------------------------------------------------------------ image

OFFICIAL_CIFAR_MEAN = [125.31, 122.95, 113.87]  # of the 50,000 official training images, per colour
# sha256 of the 60,000 official labels, one byte each, training images first
CIFAR_LABELS = "3edb456524d5918aefded81f5aef7c32efab2a788211df998a4eb0c8957baa1f"


def read_cifar(folder):
    """cifar-10-batches-bin/ -> (images (60000, 32, 32, 3) uint8 RGB, label (60000,) uint8), training images
    first. Raises DataError for wrong sizes."""
    files = [folder / f"{name}.bin" for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")]
    for file in files:
        if not file.is_file() or file.stat().st_size != 10_000 * 3073:
            raise DataError(f"{file}: missing or not 30,730,000 bytes; unpack cifar-10-binary.tar.gz again")
    # A record is one label byte and 3,072 pixels, planes R, G, B.
    records = np.concatenate([np.fromfile(file, np.uint8).reshape(-1, 3073) for file in files])
    images = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), np.ascontiguousarray(records[:, 0])


def grey(rgb):
    """RGB uint8 (n, ..., 3) -> grey uint8 (n, ...) by Pillow, as torchvision makes it."""
    image = Image.fromarray(rgb.reshape(len(rgb), -1, 3)).convert("L")
    return np.array(image).reshape(rgb.shape[:-1])


def image_split(pixels, label):
    """Images (n, pixels) uint8, or symbols of pixels, as a Split."""
    tokens, label = torch.as_tensor(pixels), torch.as_tensor(label).long()
    return Split(tokens.reshape(-1), torch.arange(len(label) + 1) * tokens.shape[1], label)


def halved(pixels, channels=1):
    """Means of 2 x 2 pixels of square images (..., W * W * channels) uint8, as the mini tier has them."""
    side = math.isqrt(pixels.shape[-1] // channels)
    quads = pixels.reshape(*pixels.shape[:-1], side // 2, 2, side // 2, 2, channels).to(torch.int32)
    return ((quads.sum((-4, -2)) + 2) // 4).to(torch.uint8).flatten(-3)


def load_image(root, name="image", mini=False):
    """CIFAR-10 in grey, or ("scifar") with its three colours at every position."""
    fetch_archive(root, ARCHIVES["image"])
    rgb, label = read_cifar(root / "cifar-10-batches-bin")
    known = hashlib.sha256(label).hexdigest() == CIFAR_LABELS
    official = known and rgb[:50_000].mean((0, 1, 2)).round(2).tolist() == OFFICIAL_CIFAR_MEAN
    if not official:
        fault = "pixels" if known else "labels"
        print(f"warning: not the official CIFAR-10 {fault}; say so beside any number")
    pixels = torch.from_numpy(grey(rgb) if name == "image" else rgb).flatten(1)
    if mini:
        pixels = halved(pixels, SHAPES[name].get("channels", 1))
    train, val = fixed_order(50_000).split([45_000, 5_000])
    index = {"train": train, "val": val, "test": torch.arange(50_000, 60_000)}
    splits = {split: image_split(pixels[i], label[i]) for split, i in index.items()}
    # Where the labels are the official ones the pixels alone are hashed: they tell copies apart.
    digest = hashlib.sha256(rgb.tobytes() + (b"" if known else label.tobytes())).hexdigest()
    counts = {split: len(i) for split, i in index.items()}
    source = {"from": "cifar-10-batches-bin", "counts": counts, "hash": digest, "official": official}
    coloured = rgb[train] if name == "image" else None
    return Task(name, **SHAPES[name], **splits, source=source, rgb=coloured)


@functools.cache
def paper_augmentation():
    """Paper A's CIFAR-10 augmentation on a PIL RGB image: flip, AutoAugment, nine colour operations, affine,
    grey. The nine fire independently, each with the mean probability that it has over AutoAugment's 25 CIFAR
    sub-policies; orders and ranges follow the authors' code. Nothing else imports torchvision."""
    import torchvision.transforms as T
    import torchvision.transforms.functional as TF

    def uniform(low, high):
        return float(torch.empty(1).uniform_(low, high))

    operations = (
        (0.008, TF.invert),
        (0.032, lambda x: TF.adjust_contrast(x, uniform(1.0, 1.9))),
        (0.112, lambda x: TF.adjust_sharpness(x, uniform(1.0, 1.9))),
        (0.200, TF.autocontrast),
        (0.188, TF.equalize),
        (0.012, lambda x: posterize(x, int(uniform(0, 7)))),
        (0.116, lambda x: TF.adjust_saturation(x, uniform(1.0, 1.9))),
        (0.092, lambda x: TF.adjust_brightness(x, uniform(1.0, 1.9))),
        (0.076, lambda x: TF.solarize(x, uniform(0, 256))),
    )

    def colours(x):
        for probability, operation in operations:
            if uniform(0, 1) < probability:
                x = operation(x)
        return x

    flip, auto = T.RandomHorizontalFlip(), T.AutoAugment(T.AutoAugmentPolicy.CIFAR10)
    affine = T.RandomAffine(10, (0.1, 0.1), (0.9, 1.1), 10, interpolation=T.InterpolationMode.BILINEAR)
    return T.Compose([flip, auto, colours, affine, T.Grayscale()])


def posterize(image, bits):
    """Keep the upper `bits` of each channel of a PIL image, 0 to 8. Pillow's own refuses 0: a black image."""
    kept = 256 - (1 << (8 - bits))
    return image.point(lambda value: value & kept)


class AugmentedImages(torch.utils.data.Dataset):
    """Item (epoch, i) -> grey pixels (1024,) uint8 of training image i, augmented from its own random stream,
    whichever worker computes it and wherever an interrupted epoch is taken up."""

    def __init__(self, rgb, seed):
        self.rgb, self.seed = rgb, seed

    def __getitem__(self, item):
        epoch, i = item
        stream = np.random.SeedSequence((self.seed, epoch, i)).generate_state(1, np.uint64)[0]
        with torch.random.fork_rng(devices=[]):  # torchvision draws from torch's global generator
            torch.default_generator.manual_seed(int(stream) >> 1)  # the CPU's alone: quicker
            image = paper_augmentation()(Image.fromarray(self.rgb[i]))
        return torch.from_numpy(np.array(image, np.uint8).reshape(-1))


def augmented_images(task, plan, epoch, rank=0, ranks=1):
    """Batches of a plan (of each, one rank's share), augmented by worker processes ahead of the step."""
    shares = [index[slice(*share_of(len(index), rank, ranks)[:2])].tolist() for index in plan]
    here = int(os.environ.get("LOCAL_WORLD_SIZE", 1))  # processes that share this machine's cores
    loader = torch.utils.data.DataLoader(
        AugmentedImages(task.rgb, task.seed),
        batch_sampler=[[(epoch, i) for i in share] for share in shares],
        num_workers=max(1, min(16, usable_cores() // here - 1)),
        # A forked worker has the images; to another kind they are sent.
        multiprocessing_context="fork" if sys.platform == "linux" else None,
        prefetch_factor=8,
        worker_init_fn=ignore_signals,
        generator=torch.Generator(),  # unused, but without it an epoch draws from torch's global one
    )
    for index, pixels in zip(plan, work_off(loader)):
        batch = task.gather("train", index).share(rank, ranks)
        pixels = pixels if pixels.shape[1] == task.max_length else halved(pixels)
        ids = pixels.to(batch.tokens.device, non_blocking=True).long() + task.first_id
        yield batch._replace(tokens=ids)


def work_off(loader):
    """Yield what a loader's workers compute. They are gone however this ends: they ignore SIGTERM, so that
    Python, which joins them when it ends, would wait for ever. Raises DataError for a worker that was
    killed."""
    others = multiprocessing.active_children()
    try:
        batches = iter(loader)
        if hasattr(signal, "SIGCHLD") and threading.current_thread() is threading.main_thread():
            # torch's handler would raise anywhere. Without it a death shows where we wait for a batch.
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        yield from batches
    except Exception as error:
        told = str(error)
        killed = isinstance(error, (ConnectionError, EOFError)) or "DataLoader worker" in told
        if not killed or " Traceback " in told:  # raised by code, here or, as torch hands it on, there
            raise
        why = "was killed (memory full?); the same command continues"
        raise DataError(f"a worker that augments images {why}") from error
    finally:
        for worker in {*multiprocessing.active_children()} - {*others}:
            worker.kill()
            worker.join()


def ignore_signals(worker):
    """SIGTERM and SIGINT reach the whole process group; the loop ends its workers after the checkpoint."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


def shuffled(batch, noise):
    """A batch of ListOps, the arguments of every operator in a fresh order."""
    return batch._replace(tokens=listops.shuffle_listops(batch.tokens, batch.mask, noise))


def flipped(batch, noise):
    """A batch of grey square images, each mirrored left to right or not: a coin an image."""
    x = batch.tokens.unflatten(1, [math.isqrt(batch.tokens.shape[1])] * 2)
    coin = torch.rand(len(x), 1, 1, generator=noise, device=x.device) < 0.5
    return batch._replace(tokens=torch.where(coin, x.flip(2), x).flatten(1))


# ------------------------------------------------------------------------------------------ pathfinder


def load_pathfinder(root, name, three_sets=False, mini=False):
    """Official PNG folders where they are, or were when they were packed; else our own sets: the hard level,
    with `three_sets` all three; the mini tier has the easy one."""
    size, n, known = PATHFINDER_SIZE[name], pathfinder.OFFICIAL_IMAGES, pathfinder.FOLDERS
    levels = [*known] if three_sets else ["hard"]
    if mini:  # harder levels stay at chance for longer than a mini cell lasts
        n, size, levels = 40_000, 16, ["easy"]
    hard = released(root, f"pathfinder{size}/{known['hard']}")
    packs = {level: root / "packed" / f"{name}-{level}" for level in known}
    # Once the official folder is gone its packed levels stay; what is not packed is then refused.
    official = not mini and (hard or any(pack.exists() for pack in packs.values()))
    sets = []
    for level in levels:
        top, folder = root / f"pathfinder{size}", root / f"pathfinder{size}-{level}"
        if official:
            sets.append(pathfinder.pack_png_folder(packs[level], hard.parent if hard else top, size, level))
            continue
        if not mini:
            say_generated(folder, top)
        sets.append(pathfinder.generate_set(folder, size, level, n))
    splits = pathfinder_splits(sets)
    source = {"from": "lra_release"} if official else {"from": "generated", "seed": 0}
    source["hash"] = hashlib.sha256("".join(digest for _, _, digest in sets).encode()).hexdigest()
    source["counts"] = {split: len(s.label) for split, s in splits.items()}
    return Task(name, **SHAPES[name], **splits, source=source)


def pathfinder_splits(sets):
    """Sets (images (n, W * W), label (n,), ...), the hardest last -> {split: Split}. Each is cut 80 / 10 / 10
    by fixed_order; the validation and test images of all but the hardest are dropped (paper A)."""
    splits, train = {}, []
    for images, label, *_ in sets:
        n = len(label)
        for split, index in zip(SPLITS, fixed_order(n).tensor_split([n * 8 // 10, n * 9 // 10])):
            index = index.sort().values.numpy()  # memory-mapped images are read front to back
            splits[split] = images[index], label[index]
        train.append(splits["train"])
    if len(train) > 1:
        splits["train"] = map(np.concatenate, zip(*train))
    return {split: image_split(*arrays) for split, arrays in splits.items()}


# ------------------------------------------------------------------------------------------ smoke

SMOKE_LENGTH = 256  # bytes of a stand-in's text


def smoke_text(n, draw, docs):
    """n texts of 64 to 256 random letters, 60 % of them from the half of the alphabet that the label names
    (of a pair: label 1 when both favour the same half). No single position tells it."""
    half, texts = draw.integers(0, 2, (n, docs)), []
    for share in np.where(half.flat, 0.6, 0.4):
        second = draw.random(draw.integers(64, SMOKE_LENGTH + 1)) < share
        texts.append((97 + 13 * second + draw.integers(0, 13, len(second))).astype(np.uint8))
    label = half[:, 0] if docs == 1 else half[:, 0] == half[:, 1]
    return Split(*ragged(texts), torch.from_numpy(label).long())


def smoke_image(n, draw, channels):
    """n images of noise, brighter from class to class. One pixel tells the class 3 times in 20."""
    label = np.arange(n) % 10
    pixels = draw.normal(80 + 8 * label[:, None], 40, (n, 1024 * channels)).clip(0, 255)
    return image_split(pixels.astype(np.uint8), label)


def smoke_task(name):
    """The stand-in of a task: a few hundred examples, from the real generator where there is one."""
    made, draw, shape, rgb = "generated", np.random.default_rng(0), SHAPES[name], None
    if name == "listops":
        splits = listops_splits({"train": 240, "val": 60, "test": 60}, seed=1)
    elif name in PATHFINDER_SIZE:
        n = 300 if name == "pathfinder" else 40
        images, label = pathfinder.generate_block(PATHFINDER_SIZE[name], "easy", seed=1, block=0, n=n)
        splits = pathfinder_splits([(images.reshape(n, -1), label)])
    else:
        made = "stand-in"
        if name in ("text", "retrieval"):
            shape = shape | {"max_length": SMOKE_LENGTH}
            splits = {s: smoke_text(n, draw, shape.get("docs", 1)) for s, n in zip(SPLITS, (512, 128, 128))}
        else:
            width = shape.get("channels", 1)
            splits = {s: smoke_image(n, draw, width) for s, n in zip(SPLITS, (500, 100, 100))}
    if name == "image":  # three equal colours: grey again what they were, and augmented like CIFAR-10's
        rgb = splits["train"].tokens.numpy().reshape(-1, 32, 32, 1).repeat(3, axis=3)
    return Task(name, **shape, **splits, source=describe(splits, made), rgb=rgb)


# ------------------------------------------------------------------------------------------ load


def load(name, root, *, mini=False, smoke=False, **how):
    """The task `name`, ready to train on.

    root   data folder; what is missing is generated or fetched into it, once
    mini   the real data, smaller: ListOps of 20 to 96 tokens, 256 bytes of a text, images of 16 x 16
           pixels; with the accuracy of rules that need no model in task.source["baselines"]
    smoke  small stand-ins (ListOps, Pathfinder: the real generators), no network
    how    limit, max_length, technique, seed, stride: see dress

    Raises DataError for data that cannot be had or are damaged, and for arguments that a task cannot follow.
    """
    technique, limit = how.get("technique"), how.get("limit")
    refuse(name, technique, how.get("max_length"))
    small, root = length(name, mini), Path(root) if smoke else data_folder(root)
    if smoke:
        task = smoke_task(name)
    elif name in PATHFINDER_SIZE:
        task = load_pathfinder(root, name, technique == "three sets", mini)
    elif name in ("image", "scifar"):
        task = load_image(root, name, mini)
    else:
        if name == "listops":
            splits, source = load_listops(root, mini, limit)
        else:
            made = "aclImdb" if name == "text" else "lra_release"
            splits, source = pack(root, name, made, lambda: read_official(root, name))
        task = Task(name, **SHAPES[name], **splits, source=source)
    if mini and not smoke:
        task.source["baselines"] = baselines(task)
        how["max_length"] = how.get("max_length") or small
        if how["max_length"] > small:
            raise DataError(f"--mini reads {small} bytes of {TITLES[name]}; give no larger --max-length")
    return dress(task, **how)


def dress(task, limit=None, max_length=None, technique=None, seed=0, stride=1):
    """A task that is all there, as it is trained on.

    limit       keep so many training examples, and no more for validation; smaller sets are nested in larger
                ones. Of our own ListOps `load` makes more than the set has
    max_length  cut documents after that many bytes
    technique   of training (paper A): "augment paper", "augment flip" (left to right), "shuffle" (arguments),
                "denoise" (corrupted texts), "three sets" (of Pathfinder; validation and test are hard)
    seed        of the per-image augmentation streams
    stride      order of the positions: 1 as they are, else see strided
    """
    rgb = task.rgb if technique == "augment paper" else None
    task = replace(task, max_length=max_length or task.max_length, stride=stride, seed=seed, rgb=rgb)
    if limit is not None:
        task = first_of(task, "train", limit)
        if rgb is not None:
            task.rgb = rgb[fixed_order(len(rgb))[:limit].numpy()]
        if limit < len(task.val.label):
            task = first_of(task, "val", limit)
    known = {"augment flip": flipped, "shuffle": shuffled}
    known["denoise"] = functools.partial(corrupt, vocab=task.vocab)
    transforms = [known[technique]] if technique in known else []
    return replace(task, transforms=transforms, denoise=technique == "denoise")


def refuse(name, technique=None, max_length=None):
    """Raise DataError for arguments of load that a task cannot follow."""
    if technique not in (None, *TASKS_WITH_TECHNIQUE):
        raise DataError(f"technique {technique!r}: give None or one of {', '.join(TASKS_WITH_TECHNIQUE)}")
    for what, able in (
        (technique, TASKS_WITH_TECHNIQUE.get(technique)),
        ("--max-length", max_length and TEXTS),
    ):
        if able and name not in able:
            others = ", ".join(TITLES[other] for other in able)
            raise DataError(f"{what} is for {others}; {TITLES[name]} cannot follow it, leave it out")
    if max_length and max_length > length(name):  # the model would grow and the data would not
        raise DataError(f"--max-length: {TITLES[name]} has at most {length(name)} bytes, give no more")


def first_of(task, split, n):
    """The task with the first n examples of a split in fixed_order, so that fewer are part of more. Raises
    DataError where there are fewer than n."""
    whole = task.splits[split]
    if n > len(whole.label):
        raise DataError(f"--limit {n}: {task.name} has {len(whole.label)} {split} examples; give no more")
    return replace(task, **{split: select(whole, fixed_order(len(whole.label))[:n], task.docs)})


def load_tsv(path, max_length=4096, **options):
    """A task of one's own: lines label<TAB>text in UTF-8 -> Task, cut 80 / 10 / 10 by fixed_order, texts as
    bytes. Labels are words, without the blanks around them; classes are in their order and are printed.
    Options as in load: technique, limit, stride. Raises DataError for a file that is not like that."""
    path = Path(path)
    try:
        # Without the mark that Windows begins a file with.
        lines = path.read_bytes().decode("utf-8-sig").encode().splitlines()
    except (OSError, ValueError) as error:
        remedy = "give a text file in UTF-8, a line for each example: a label, a tab and a text"
        raise DataError(f"cannot read {path} ({error}); {remedy}") from error
    labels, texts = [], []
    for number, line in enumerate(lines, 1):
        label, _, text = line.partition(b"\t")
        labels.append(label.decode().strip())
        texts.append(text)
        if not labels[-1] or not text or b"\0" in line:
            raise DataError(f"{path}, line {number}: this is not a label, a tab and a text in UTF-8")
    n, classes = len(labels), sorted(set(labels))
    if len(classes) < 2 or n < 10:
        raise DataError(f"{path} has {n} lines and {len(classes)} labels; give at least ten and two")
    counts = {label: labels.count(label) for label in classes}
    for label in classes:
        if counts[label] == 1:
            what = f"no other line has the label {label!r}; is it a header or a slip? Delete or mend it"
            raise DataError(f"{path}, line {labels.index(label) + 1}: {what}")
    print(f"{path.name}: {n:,} lines; " + ", ".join(f"{label} {count:,}" for label, count in counts.items()))
    whole = Split(*ragged(texts), torch.tensor([classes.index(label) for label in labels]))
    parts = fixed_order(n).tensor_split([n * 8 // 10, n * 9 // 10])
    splits = {name: select(whole, index) for name, index in zip(SPLITS, parts)}
    task = Task(path.stem, len(classes), 259, 3, max_length, **splits, source=describe(splits, path.name))
    return dress(task, **options)


def title_of(record):
    """The title of a record's task; images that are not the official ones are marked."""
    marked = " (not the official images)" if record["data"].get("official") is False else ""
    return TITLES[record["task"]] + marked


def encode(texts):
    """A list of sentences as a batch of Text: ids (B, L) int64, mask (B, L) bool of their first 4,096 bytes.
    Raises TypeError for one string, whose letters would be a review each."""
    if isinstance(texts, str):
        raise TypeError("encode takes a list of sentences; put yours into [ ]")
    shape = SHAPES["text"]
    tokens, offsets = ragged([text.encode()[: shape["max_length"]] for text in texts])
    rows = torch.nn.utils.rnn.pad_sequence(
        tokens.long().split(offsets.diff().tolist()), True, -shape["first_id"]
    )
    return rows + shape["first_id"], rows >= 0


def load_for(args, name, recipe, seed):
    """The task `name` as the common flags `args` and a recipe want it; see load."""
    wanted = {flag: getattr(args, flag) for flag in ("limit", "max_length", "smoke", "mini")}
    wanted |= {row: recipe["train"][row] for row in ("technique", "stride") if row in recipe["train"]}
    return load(name, args.data_dir, seed=seed, **wanted)


def require(names, args):
    """Check all tasks before the first is trained -> `names`. Raises DataError for flags that one of them
    cannot follow, and for Retrieval where it is missing, which among several tasks is only a warning."""
    technique = f"augment {args.augment}" if args.augment not in (None, "none") else None
    for name in names:
        refuse(name, technique, args.max_length)
        if args.smoke and name != "listops" and name not in PATHFINDER_SIZE:
            print(f"smoke: {name} is a small synthetic stand-in, not the real data")
    if "retrieval" in names and not args.smoke:
        root = data_folder(args.data_dir)
        try:
            if not (root / "packed" / "retrieval").exists():
                find_aan(root)
        except DataError as error:
            if len(names) == 1:
                raise
            print(f"warning: {error}; the other tasks are trained", file=sys.stderr)
    return names


# ------------------------------------------------------------------------------------------ look inside


def baselines(task):
    """{rule: test accuracy} of rules that need no model."""
    label, test = task.train.label, task.test.label
    right = {"majority": test == torch.bincount(label).argmax()}
    if task.name == "listops":
        root, test_root = (split.tokens[split.offsets[:-1]].long() for split in (task.train, task.test))
        right["root rule"] = listops.root_rule(root, label, test_root) == test
    return {rule: round(float(hits.double().mean()), 4) for rule, hits in right.items()}


def print_facts(task):
    """What to compare before trusting an accuracy."""
    shares = 100 * torch.bincount(task.train.label, minlength=task.classes) / len(task.train.label)
    lengths = torch.cat([*task.lengths.values()])
    print(f"{task.name}, from {task.source['from']}, hash {task.source['hash'][:12]}")
    print(f"shares of the classes in train: {shares.min():.1f} to {shares.max():.1f} %")
    print(f"positions: {lengths.min()} to {lengths.max()}, median {lengths.median()}")
    for rule, accuracy in baselines(task).items():
        print(f"test accuracy of {rule}: {100 * accuracy:.1f} %")
    print(
        ", ".join(f"{name}: {len(split.label):,} examples" for name, split in task.splits.items()), flush=True
    )
    print()


def show(name, root):
    """Print three documents of ListOps or a text, or save 18 pictures of images to <root>/<name>.png."""
    if name not in TASKS_WITH_TECHNIQUE["augment flip"]:
        task = load(name, root)
        for i, (start, stop) in enumerate(pairwise(task.train.offsets[:4].tolist())):
            symbols = bytes(task.train.tokens[start:stop].tolist())
            words = (listops.LISTOPS_SYMBOLS[x] for x in symbols) if name == "listops" else ()
            print(f"{TITLES[name]}, label {int(task.train.label[i // task.docs])}:")
            print(" ".join(words) or symbols.decode("ascii", "backslashreplace"), end="\n\n")
        return
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise DataError("figures need matplotlib: pip install matplotlib") from None

    figure = Figure(figsize=(13, 5.5), layout="constrained")
    for axis, (picture, title) in zip(figure.subplots(3, 6).flat, pictures(name, root)):
        axis.imshow(picture, cmap="gray", vmin=0, vmax=255)
        axis.set_title(title, fontsize=9)
        axis.set_axis_off()
    figure.savefig(root / f"{name}.png", dpi=120)
    print(f"figure: {root / name}.png")


def pictures(name, root):
    """Pictures with their titles. Pathfinder: six images of each level. Image: three images, as they are,
    grey, and four times as paper A's augmentation shows them to the model."""
    if name == "image":
        rgb = load(name, root, technique="augment paper").rgb
        views = AugmentedImages(rgb, seed=0)
        for i in range(3):
            yield from ((rgb[i], "original"), (grey(rgb[i]), "grey"))
            yield from ((views[(epoch, i)].view(32, 32), f"epoch {epoch + 1}") for epoch in range(4))
        return
    for level in pathfinder.FOLDERS:
        images, label = pathfinder.generate_block(PATHFINDER_SIZE[name], level, seed=0, block=0, n=6)
        yield from zip(images, (f"{level}: {'' if y else 'not '}connected" for y in label))


HELP = """\
Prepare, fetch and look at the data of the Long Range Arena.

    python data.py --prepare --task text      make a task ready, print facts
    python data.py --fetch --task retrieval   the one that no training fetches
    python data.py --show --task listops      print some examples

ListOps and Pathfinder are generated; Text and Image are fetched (84 and 170
MB); Retrieval (10.6 GB) only with --fetch. Files put into the data folder by
hand take precedence and, except CIFAR-10's, are cached: after changing them
remove DIR/packed/TASK*.
"""


def main(argv=None):
    tasks = [name for name in SHAPES if name != "scifar"]  # whose files are Image's
    parser = argparse.ArgumentParser(
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=HELP,
    )
    add, what = parser.add_argument, parser.add_mutually_exclusive_group(required=True)
    # fmt: off
    add("--task", nargs="+", choices=[*tasks, "all"], default=["all"], metavar="TASK",
        help=f"one or more of {', '.join(tasks)}, or all (default all)")
    add("--data-dir", type=Path, default=Path("data"), metavar="DIR", help="data folder (default data)")
    add("--mini", action="store_true", help="the tasks of the mini tier")
    add("--url", metavar="URL", help="with --fetch of one task: its archive, or the folder of Retrieval's "
        "three files, on a mirror")
    what.add_argument("--prepare", action="store_true", help="make the tasks ready, print facts about them")
    what.add_argument("--fetch", action="store_true", help="the same, and fetch Retrieval too")
    what.add_argument("--show", action="store_true", help="print texts, draw images to DIR/<task>.png")
    # fmt: on
    args = parser.parse_args(argv)
    if args.url and (not args.fetch or args.task not in ([name] for name in ARCHIVES)):
        parser.error(f"--url goes with --fetch and one --task of {', '.join(ARCHIVES)}")
    if args.url and not args.url.startswith(("http://", "https://", "file://")):
        parser.error(f"--url {args.url}: it must begin with http://, https:// or file://")
    if args.show and args.mini:
        parser.error("--show has the full tasks; leave --mini out")
    if "all" in args.task:
        args.task = [name for name in tasks if name in MINI_LENGTHS or not args.mini]
    code = 0
    for name in args.task:
        try:
            root = data_folder(args.data_dir)
            if args.show:
                show(name, root)
                continue
            if args.fetch and name in ARCHIVES and not (root / "packed" / name).exists():
                if name == "retrieval":
                    fetch_retrieval(root, args.url)
                else:
                    fetch_archive(root, ARCHIVES[name], args.url)
            print_facts(load(name, root, mini=args.mini))
        except KeyboardInterrupt:
            parser.exit(130, "interrupted; the same command continues\n")
        except (DataError, OSError) as error:  # does not keep the other tasks from their turn
            print(f"error: {error}", file=sys.stderr)
            code = 2
    if code:
        parser.exit(code)


if __name__ == "__main__":
    main()
