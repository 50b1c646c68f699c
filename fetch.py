"""Files from the web, whole or not at all: fetch_archive(root, ARCHIVES["text"]) makes root/aclImdb.

DataError and claim (one process makes a file, the others wait) serve data.py too. Below them the archives of
the LRA; then download, which continues broken ones, and extract, which takes nothing but plain wanted files.
"""

import contextlib
import gzip
import hashlib
import http.client
import os
import re
import shutil
import ssl
import tarfile
import time
import urllib.error
import urllib.request
import zlib
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None


class DataError(Exception):
    """Data that is missing, damaged or not what it claims to be. The message is one sentence that says
    what to do."""


class Archive(NamedTuple):
    """A gzipped tar on the web and what to take out of it."""

    url: str
    size: int | None  # bytes
    md5: str | None
    folder: str  # what it is unpacked to
    wanted: str  # regular expression of the members to take; its group is their path in the folder
    files: int  # how many they are


# fmt: off
ARCHIVES = {
    "text": Archive(
        "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz", 84_125_825,
        "7c2ac02c03563afcf9b574c7e56c153a", "aclImdb",
        r"aclImdb/((?:train|test)/(?:pos|neg)/\d+_\d+\.txt)", 50_000,
    ),
    "image": Archive(  # plain bytes; the better-known Python version is a pickle
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", 170_052_171,
        "c32a1d4ab5d03f1284b67883e8d87530", "cifar-10-batches-bin",
        r"cifar-10-batches-bin/((?:data_batch_[1-5]|test_batch)\.bin)", 6,
    ),
    "retrieval": Archive(  # 8.23 GB; nobody publishes its md5, so gzip's own checksum must do
        "https://storage.googleapis.com/long-range-arena/lra_release.gz", None,
        None, "retrieval", r"(?:.*/)?(new_aan_pairs\.(?:train|eval|test)\.tsv)", 3,
    ),
}
# fmt: on
BROKEN = (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError, ssl.SSLError)


@contextlib.contextmanager
def claim(path):
    """While it is held this process alone makes `path`; others wait here (on Windows, without fcntl, nobody
    does). What the file system refuses inside (disk full, read-only) comes out as a DataError."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path.parent / f".{path.name}.lock", "w") as lock:
            if fcntl:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    print(f"waiting for another process that is making {path}", flush=True)
                    fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except OSError as error:
        why = error.strerror or error
        raise DataError(f"cannot write {path} ({why}); free space or choose another --data-dir") from error


def fetch_archive(root, archive, url=None):
    """Make root/<archive.folder> out of its archive: one that lies in `root` by hand, else fetched (from the
    mirror `url`, if given) and deleted in the end. Raises DataError."""
    folder, path = Path(root) / archive.folder, Path(root) / archive.url.rsplit("/", 1)[1]
    if folder.exists():  # perhaps on a disk that cannot be written to
        return
    with claim(folder):
        if folder.exists():
            return
        by_hand = path.exists()
        download(url or archive.url, path, archive.size, archive.md5)
        extract(path, folder, archive.wanted, archive.files)
        if not by_hand:
            path.unlink()


def download(url, path, size=None, md5=None, timeout=30.0, retries=5):
    """Fetch `url` to `path`; a file that is there already is kept if its size (bytes) and md5 are right.

    Bytes go to `path`.part, which a later run continues, and are renamed once verified. A connection that
    breaks, or is silent for `timeout` seconds, is replaced, at most `retries` times without a megabyte
    between them. Raises DataError then, and when the server refuses or sends something else.
    """
    path, part = Path(path), Path(f"{path}.part")
    if path.exists():
        if problem := mismatch(path, size, md5):
            raise DataError(f"{path} is not the file of {url}: {problem}; delete it and try again")
        return
    failures = 0
    while failures <= retries:
        time.sleep(min(2.0 ** (failures - 1), timeout) if failures else 0)
        start = part.stat().st_size if part.exists() else 0
        try:
            receive(url, part, start, size, timeout)
            problem = mismatch(part, size, md5)
            if not problem:
                os.replace(part, path)
                return
            part.unlink()
            if start == 0:
                break  # else an earlier run's part may have spoilt it: once more, from the first byte
        except urllib.error.HTTPError as error:
            problem = f"the server answered {error.code} {error.reason}"
            if error.code == 416:  # the file ends before our part does
                part.unlink()
            elif error.code < 500 and error.code not in (408, 429):
                break
        except BROKEN as error:
            problem = f"{getattr(error, 'reason', None) or error}, at the {failures + 1}. try"
        except ValueError as error:  # no URL, a web page, another size
            problem = error
            break
        grown = part.stat().st_size - start if part.exists() else 0
        failures = 1 if grown >= 1 << 20 else failures + 1
    about = f"the file ({tqdm.format_sizeof(size, 'B')})" if size else "the file"
    advice = f"put {about} at {path} by hand, or run the same command again"
    raise DataError(f"could not fetch {url}: {problem}; {advice}")


def receive(url, part, start, size, timeout):
    """Append the bytes of `url` from `start` on to the file `part`; where the server ignores ranges it begins
    anew. Raises one of BROKEN, and ValueError for something else than a file of `size` bytes."""
    print(f"fetching {url} to {part}" + (f", from byte {start:,} on" if start else ""), flush=True)
    headers = {"User-Agent": "fetch.py", "Accept-Encoding": "identity"}
    headers |= {"Range": f"bytes={start}-"} if start else {}
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=timeout) as response:
        start, mode = (start, "ab") if response.status == 206 else (0, "wb")
        length = response.headers.get("Content-Length")
        total = start + int(length) if length else size
        if response.headers.get_content_type() == "text/html":
            raise ValueError("the server answered with a web page")
        if size not in (None, total):
            raise ValueError(f"the server's file has {total:,} bytes instead of {size:,}")
        with open(part, mode) as out, progress(response, total, start) as stream:
            shutil.copyfileobj(stream, out, 1 << 16)
            if out.tell() < (total or 0):
                raise ConnectionError(f"the connection closed early, at byte {out.tell():,}")


def progress(stream, total, start=0):
    """`stream` with a bar that follows its read()."""
    return tqdm.wrapattr(stream, "read", total=total, initial=start, leave=False, disable=None)


def mismatch(path, size, md5):
    """What is wrong with a file, in words; None if nothing is."""
    digest = hashlib.md5(usedforsecurity=False)
    with open(path, "rb") as file:
        while md5 and (block := file.read(1 << 20)):
            digest.update(block)
        actual = file.seek(0, os.SEEK_END)
    if size not in (None, actual):
        return f"{actual:,} bytes instead of {size:,}"
    return f"md5 {digest.hexdigest()} instead of {md5}" if md5 not in (None, digest.hexdigest()) else None


def extract(archive, folder, wanted, files):
    """Unpack those members of a gzipped tar whose names match the regular expression `wanted` as `folder`,
    under the names that its group gives. Anything but `files` of them is refused, and so are archives with
    links, devices or paths that leave the folder.

    The tar is read once and to its end, where gzip's checksum stands. The folder appears whole or not at all.
    Raises DataError.
    """
    archive, folder = Path(archive), Path(folder)
    private = folder.with_name(folder.name + ".part")
    taken = []

    def members(tar):
        while (member := tar.next()) is not None:
            tar.members.clear()  # tarfile remembers every header; the LRA release has millions
            climbs = member.name.startswith("/") or ".." in re.split(r"[/\\]", member.name)
            if climbs or not (member.isreg() or member.isdir()):
                raise tarfile.TarError(f"{member.name!r} is no plain file inside it")
            if match := re.fullmatch(wanted, member.name):
                taken.append(match[1])
                yield member.replace(name=match[1], deep=False)

    shutil.rmtree(private, ignore_errors=True)  # left by a killed run
    try:
        with open(archive, "rb") as file, progress(file, archive.stat().st_size) as stream:
            plain = gzip.GzipFile(fileobj=stream)
            with tarfile.open(fileobj=plain, mode="r|", bufsize=1 << 20) as tar:
                tar.extractall(private, members(tar), filter="data")
            while plain.read(1 << 20):
                pass
        if len(taken) != files:
            raise tarfile.TarError(f"it holds {len(taken):,} of the {files:,} files of {folder.name}")
        os.rename(private, folder)
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, ValueError) as error:
        raise DataError(f"{archive} is damaged ({error}); delete it and fetch it again") from error
    finally:
        shutil.rmtree(private, ignore_errors=True)
