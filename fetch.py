"""Files from the web, whole or not at all: fetch_archive(root, ARCHIVES["text"]) makes root/aclImdb.

This file has no command of its own: `python data.py --task retrieval --fetch`.
"""

import gzip
import hashlib
import http.client
import json
import re
import shutil
import socket
import ssl
import tarfile
import time
import urllib.error
import urllib.request
import zlib
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from machine import DataError, making


class SourceError(DataError):
    """A source does not give what it should; another one may."""


class Archive(NamedTuple):
    """A gzipped tar on the web and what to take out of it."""

    url: str  # which ends with its name in the data folder
    md5: str | None
    folder: str  # what it is unpacked to
    wanted: str  # regular expression of the members to take; its group is their path in the folder
    files: int  # how many they are


# fmt: off
ARCHIVES = {
    "text": Archive(
        "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz", "7c2ac02c03563afcf9b574c7e56c153a",
        "aclImdb", r"aclImdb/((?:train|test)/(?:pos|neg)/\d+_\d+\.txt)", 50_000),
    "image": Archive(  # plain bytes; the better-known Python version is a pickle
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530",
        "cifar-10-batches-bin", r"cifar-10-batches-bin/((?:data_batch_[1-5]|test_batch)\.bin)", 6),
    "retrieval": Archive(  # 8.23 GB; nobody publishes its md5, so gzip's own checksum must do
        "https://storage.googleapis.com/long-range-arena/lra_release.gz", None,
        "retrieval", r"(?:.*/)?(new_aan_pairs\.(?:train|eval|test)\.tsv)", 3),
}
# fmt: on
# The files of Retrieval by themselves, of 8.53, 1.05 and 1.04 GB. The archive answers 403 to several users;
# this copy stays as it is, because its revision is named.
AAN_URL = (
    "https://huggingface.co/datasets/OpenNLPLab/lra/resolve/6cb133c44f406da743661488df9e977b87d98775/data/aan"
)
AAN_LINES = {  # how many each has
    "new_aan_pairs.train.tsv": 147_086,
    "new_aan_pairs.eval.tsv": 18_090,
    "new_aan_pairs.test.tsv": 17_437,
}
FETCHED = "fetched.json"  # beside those files: where they are from, and the sha256 of each
BROKEN = (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError, ssl.SSLError)


def fetch_retrieval(root, url=None):
    """Make root/retrieval: of the three files by themselves or, where those fail, of the archive; with
    `url` from there alone, a folder with the files or an archive (its name ends in gz). Raises DataError."""
    archive = ARCHIVES["retrieval"]
    sources = [url] if url else [AAN_URL, archive.url]
    if not url and (Path(root) / Path(archive.url).name).exists():  # put there by hand
        sources = [archive.url]
    for source in sources:
        try:
            if source.endswith("gz"):
                return fetch_archive(root, archive, source)
            return fetch_files(Path(root) / archive.folder, source)
        except SourceError as error:
            came = any((Path(root) / f"{archive.folder}.part").glob("*.tsv"))  # the archive would begin anew
            if came or source == sources[-1]:
                raise
            print(f"{error}\nthe next source is tried", flush=True)


def fetch_files(folder, url):
    """Make `folder` of the files of Retrieval, which lie under `url`. Prints the sha256 of each and writes
    them to the folder's FETCHED. A file that has come is kept when the next one does not. Raises SourceError
    where one has another number of lines."""
    with making(folder, keep=True) as private:
        if not private:
            return
        private.mkdir(exist_ok=True)
        found = {}
        for name, expected in AAN_LINES.items():
            path = private / name
            if not path.exists():
                download(f"{url.rstrip('/')}/{name}", path)
            found[name], lines = digest_of(path)
            if lines != expected:
                path.unlink()
                fault = f"{lines:,} lines, not {expected:,}"
                raise SourceError(f"{url} gives another {name} ({fault}); choose another --url")
            print(f"{name}: sha256 {found[name]}", flush=True)
        (private / FETCHED).write_text(json.dumps({"url": url, "sha256": found}, indent=1))


def digest_of(path):
    """The sha256 of a file, in hexadecimal digits, and how many lines it has."""
    digest, lines = hashlib.sha256(), 0
    with open(path, "rb") as file:
        for line in tqdm(file, path.name, leave=False, disable=None):
            digest.update(line)
            lines += 1
    return digest.hexdigest(), lines


def fetch_archive(root, archive, url=None):
    """Make root/<archive.folder> out of its archive: one that lies in `root`, else fetched (from `url`, if
    given) and deleted in the end (one that a killed run fetched counts as put there). Raises DataError."""
    path = Path(root) / Path(archive.url).name
    with making(Path(root) / archive.folder) as private:
        if not private:
            return
        by_hand = path.exists()
        if not by_hand:
            download(url or archive.url, path)
        if archive.md5 and archive.md5 != hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest():
            raise DataError(f"{path} is not that of {archive.url} (md5 differs); delete it and try again")
        extract(path, private, archive)
        if not by_hand:
            path.unlink()


def download(url, path, timeout=30.0, attempts=6):
    """Fetch `url` to `path`, by way of `path`.part, which a later run continues where the server allows it. A
    connection that breaks or is silent for `timeout` seconds is replaced, up to `attempts` in a row without a
    megabyte between them. Raises SourceError or, where a part has come and can be continued, DataError."""
    part, failures = Path(f"{path}.part"), 0
    print(f"fetching {url} to {part}", flush=True)
    while True:
        start = size_of(part)
        try:
            fetch_from(url, part, start, timeout)
            part.rename(path)
            return
        except (*BROKEN, ValueError) as error:  # ValueError: this is no URL
            code = getattr(error, "code", None)  # of HTTP; 416: there is nothing behind our part
            if code == 416:
                part.unlink()
            failures = 1 if size_of(part) - start >= 1 << 20 else failures + 1
            refused = type(error) is ValueError or code in {*range(400, 500)} - {408, 416, 429}
            offline = isinstance(getattr(error, "reason", None), socket.gaierror) and not start
            if refused or offline or failures >= attempts:
                advice = f"put the file at {path} by hand, or run the same command again"
                why = "there is no network, or no such address" if offline else error
                kind = DataError if part.exists() else SourceError
                raise kind(f"could not fetch {url}: {why}; {advice}") from error
            wait = 2 ** (failures - 1)
            print(f"{error}: attempt {failures + 1} of {attempts}, next in {wait} s", flush=True)
            time.sleep(wait)


def size_of(path):
    """Bytes of a file; 0 where there is none."""
    return path.stat().st_size if path.exists() else 0


def fetch_from(url, part, start, timeout):
    """Append what `url` has from byte `start` on to the file `part`, or write it anew where the server sends
    all. Raises one of BROKEN."""
    headers = {"User-Agent": "fetch.py"} | ({"Range": f"bytes={start}-"} if start else {})
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=timeout) as response:
        had = start if response.status == 206 else 0
        total = had + int(response.headers.get("Content-Length", 0))  # without it no more than had
        bar = tqdm.wrapattr(response, "read", total, leave=False, disable=None, initial=had)
        with open(part, "ab" if had else "wb") as out, bar as stream:
            shutil.copyfileobj(stream, out, 1 << 16)
            if out.tell() < total:
                raise ConnectionError(f"the connection closed early, at byte {out.tell():,}")


def extract(path, folder, archive):
    """Unpack the wanted files of a gzipped tar into `folder`, under the names that the expression's group
    gives, so that nothing lands elsewhere. Raises DataError."""
    taken, size = 0, path.stat().st_size
    try:
        with open(path, "rb") as file, tqdm.wrapattr(file, "read", size, leave=False, disable=None) as stream:
            plain = gzip.GzipFile(fileobj=stream)
            with tarfile.open(fileobj=plain, mode="r|", bufsize=1 << 20) as tar:
                for member in iter(tar.next, None):
                    tar.members.clear()  # tarfile remembers every header; the LRA release has millions
                    match = re.fullmatch(archive.wanted, member.name)
                    if match and member.isreg():
                        place = folder / match[1]
                        place.parent.mkdir(parents=True, exist_ok=True)
                        with open(place, "wb") as out:
                            shutil.copyfileobj(tar.extractfile(member), out)
                        taken += 1
            while plain.read(1 << 20):  # to the end, where gzip's checksum stands
                pass
        if taken != archive.files:
            raise ValueError(f"it holds {taken:,} of the {archive.files:,} files of {archive.folder}")
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, ValueError) as error:
        raise DataError(f"{path} is damaged ({error}); delete it and fetch it again") from error
