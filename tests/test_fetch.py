"""fetch.py against a server on 127.0.0.1 that misbehaves on demand, and against archives that are not what
they claim. pytest tests/test_fetch.py"""

import functools
import gzip
import hashlib
import http.server
import io
import json
import multiprocessing
import re
import resource
import socket
import tarfile
import threading
import urllib.error

import numpy as np
import pytest

import fetch


class Server:
    """Serves `body`, or of a dict the file that is asked for. Attributes switch its faults on; `ranges` and
    `paths` list what was asked for, in order."""

    def __init__(self, body):
        self.body, self.ranges, self.paths, self.over = body, [], [], threading.Event()
        self.drops = []  # close the next connections after these many bytes each
        self.stall = None  # fall silent after so many bytes, on every connection
        self.ignore_range, self.status = False, 200
        calls = {"do_GET": lambda handler: self.answer(handler), "log_message": lambda *args: None}
        handler = type("Handler", (http.server.BaseHTTPRequestHandler,), calls)
        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/top.tar.gz"
        threading.Thread(target=self.http.serve_forever, args=(0.05,), daemon=True).start()

    def answer(self, handler):
        asked = handler.headers.get("Range")
        self.ranges.append(asked)
        self.paths.append(handler.path)
        body = self.body[handler.path.rsplit("/", 1)[1]] if isinstance(self.body, dict) else self.body
        start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1]) if asked and not self.ignore_range else 0
        status = 416 if start and start >= len(body) else self.status
        if status != 200:
            return handler.send_error(status)
        handler.send_response(206 if start else 200)
        handler.send_header("Content-Length", str(len(body) - start))
        handler.end_headers()
        handler.wfile.write(body[start:][: self.drops.pop(0) if self.drops else self.stall])
        if self.stall is not None:
            self.over.wait(30)
        handler.close_connection = True


@pytest.fixture
def serve(monkeypatch):
    """Starts a Server for some bytes; nobody waits between tries."""
    monkeypatch.setattr(fetch.time, "sleep", lambda seconds: None)
    servers = []
    yield lambda body: servers.append(Server(body)) or servers[-1]
    for server in servers:
        server.over.set()
        server.http.shutdown()
        server.http.server_close()


def noise(n, seed=0):
    return np.random.default_rng(seed).bytes(n)


def refused(action, *words):
    """`action` raises a DataError: one sentence on one line, with all of `words`."""
    with pytest.raises(fetch.DataError) as caught:
        action()
    message = str(caught.value)
    assert "\n" not in message and all(str(word) in message for word in words), message


def files(folder):
    return {str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}


@pytest.mark.parametrize("ignore_range", [False, True])
def test_download_continues_where_a_connection_or_a_run_ended(ignore_range, serve, tmp_path):
    server, where = serve(noise(300_000)), tmp_path / "a.gz"
    server.drops = [100_000] * 9
    refused(lambda: fetch.download(server.url, where, attempts=1), "closed early", where, "by hand")
    assert files(tmp_path) == {"a.gz.part": server.body[:100_000]}
    server.ignore_range, server.drops, server.ranges = ignore_range, [50_000], []
    fetch.download(server.url, where)
    assert files(tmp_path) == {"a.gz": server.body}
    assert server.ranges == ["bytes=100000-", f"bytes={50_000 if ignore_range else 150_000}-"]


@pytest.mark.parametrize("fault, tries, words", [
    (dict(status=404), 1, "404"),
    (dict(status=503), 3, "503"),
    (dict(drops=[1_000] * 9), 3, "closed early"),  # a little further every time
    (dict(stall=1_000), 3, "timed out"),
])  # fmt: skip
def test_what_a_server_does_wrong(fault, tries, words, serve, tmp_path):
    server, where = serve(noise(50_000)), tmp_path / "a.gz"
    vars(server).update(fault)
    refused(lambda: fetch.download(server.url, where, timeout=0.3, attempts=3), server.url, where, words)
    assert len(server.ranges) == tries and not where.exists()


def test_a_long_download_may_break_more_often_and_a_whole_part_is_fetched_again(serve, tmp_path):
    server, where = serve(noise(6 << 20)), tmp_path / "a.gz"
    server.drops = [1 << 20] * 5
    fetch.download(server.url, where, attempts=2)
    assert where.read_bytes() == server.body
    where.rename(tmp_path / "a.gz.part")  # killed before it got its name: nothing is behind it
    fetch.download(server.url, where, attempts=2)
    assert where.read_bytes() == server.body and server.ranges[-2:] == [f"bytes={6 << 20}-", None]
    refused(lambda: fetch.download("no url", where), "no url")


def test_who_is_offline_is_told_at_once(tmp_path, monkeypatch):
    def unknown(*args, **kwargs):
        raise urllib.error.URLError(socket.gaierror("no such host"))

    monkeypatch.setattr(fetch.urllib.request, "urlopen", unknown)
    monkeypatch.setattr(fetch.time, "sleep", None)
    refused(lambda: fetch.download("http://x/a.gz", tmp_path / "a.gz"), "there is no network", "a.gz by hand")


def archive(members):
    """A gzipped tar of {name: bytes, or the target of a link as text}, in order."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            if isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
            else:
                info.size = len(content)
            tar.addfile(info, io.BytesIO(content) if info.size else None)
    return out.getvalue()


GOOD = {"top/a/1.txt": b"one", "top/b/2.txt": b"two", "top/unsup/1.html": b"no", "top/../../out/3.txt": b"no"}


def spec(body, known=True):
    """How test archives are fetched: two files are wanted."""
    md5 = hashlib.md5(body).hexdigest() if known else None
    return fetch.Archive("http://127.0.0.1:9/top.tar.gz", md5, "top", r"top/(\w/\d\.txt)", 2)


def test_bad_archives_leave_nothing(tmp_path):
    body = archive({f"top/a/{i}.txt": noise(3_000, i) for i in range(2)})
    flipped = bytearray(gzip.compress(gzip.decompress(body) + bytes(3 << 20)))
    flipped[-6] ^= 1  # in gzip's checksum, far behind the tar's end
    bad = [archive(GOOD | {"top/b/2.txt": "../a/1.txt"}), archive({"top/a/1.txt": b"one"})]  # a link; too few
    bad += [archive(GOOD | {"top/c/3.txt": b"one too many"}), archive({"top/c": "/tmp"} | GOOD)[:-9]]
    bad += [body[:cut] for cut in (0, 1, 5_000, len(body) - 5)] + [bytes(flipped), noise(5_000)]
    for content in bad:
        (tmp_path / "top.tar.gz").write_bytes(content)
        unpack = functools.partial(fetch.fetch_archive, tmp_path, spec(content))
        refused(unpack, "is damaged", "fetch it again")
        assert not (tmp_path / "top").exists()


def test_an_archive_is_fetched_once_and_deleted_but_never_one_put_there_by_hand(serve, tmp_path):
    server, path = serve(archive(GOOD)), tmp_path / "top.tar.gz"
    (tmp_path / "top.part").mkdir()
    (tmp_path / "top.part" / "rest").write_bytes(b"of a killed run")
    for _ in range(2):
        fetch.fetch_archive(tmp_path, spec(server.body), url=server.url)  # a mirror
    assert files(tmp_path / "top") == {"a/1.txt": b"one", "b/2.txt": b"two"} and server.ranges == [None]
    assert {f.name for f in tmp_path.iterdir()} == {"top", ".top.lock"}
    (tmp_path / "top").rename(tmp_path / "aside")
    path.write_bytes(server.body)
    fetch.fetch_archive(tmp_path, spec(server.body))
    assert len(files(tmp_path / "top")) == 2 and path.exists() and server.ranges == [None]
    (tmp_path / "top").rename(tmp_path / "moved")
    path.write_bytes(archive(GOOD | {"top/a/1.txt": b"two"}))
    refused(lambda: fetch.fetch_archive(tmp_path, spec(server.body)), "md5 differs", "delete it")
    assert path.exists() and not (tmp_path / "top").exists()


def fetched(root, server, room=None):
    """What a process does that fetches with `room` bytes left on its disk."""
    if room:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
    fetch.fetch_archive(root, spec(server.body, known=False), url=server.url)


def test_a_full_disk_a_kill_and_two_processes(serve, tmp_path):
    server = serve(archive(GOOD | {"top/rest": noise(300_000)}))
    fork = multiprocessing.get_context("fork")
    fill = functools.partial(fetched, tmp_path, server, 100_000)
    full = fork.Process(target=refused, args=(fill, "cannot make", "free space"))
    full.start()
    full.join()
    part = tmp_path / "top.tar.gz.part"
    assert full.exitcode == 0 and part.stat().st_size == 100_000
    server.stall = 150_000
    killed, waiting = (fork.Process(target=fetched, args=(tmp_path, server)) for _ in range(2))
    killed.start()
    while part.stat().st_size == 100_000:
        assert killed.is_alive()
        threading.Event().wait(0.02)
    waiting.start()
    waiting.join(0.5)
    assert waiting.is_alive() and len(server.ranges) == 2 and not (tmp_path / "top").exists()
    server.stall = None
    killed.kill()
    waiting.join(60)
    assert waiting.exitcode == 0 and len(files(tmp_path / "top")) == 2 and len(server.ranges) == 3
    assert {f.name for f in tmp_path.iterdir()} == {"top", ".top.lock"}


LINES = {"new_aan_pairs.train.tsv": 40, "new_aan_pairs.eval.tsv": 6, "new_aan_pairs.test.tsv": 4}


@pytest.fixture
def aan(serve, monkeypatch):
    """Two sources of Retrieval in miniature: a folder of files, and an archive."""
    texts = {name: b"".join(b"1.0\ta\tb\tb'%d'\tb'y'\n" % i for i in range(n)) for name, n in LINES.items()}
    folder = serve(texts)
    archive_of = serve(archive({f"lra_release/lra_release/tsv_data/{name}": x for name, x in texts.items()}))
    where = archive_of.url.replace("top.tar.gz", "lra_release.gz")
    spec = fetch.ARCHIVES["retrieval"]._replace(url=where)
    monkeypatch.setitem(fetch.ARCHIVES, "retrieval", spec)
    monkeypatch.setattr(fetch, "AAN_URL", folder.url.replace("/top.tar.gz", "/data/aan"))
    monkeypatch.setattr(fetch, "AAN_LINES", LINES)
    return folder, archive_of


def test_retrieval_comes_from_its_three_files_and_their_hashes_are_kept(aan, tmp_path, capsys):
    folder, other = aan
    folder.drops = [300]
    fetch.fetch_retrieval(tmp_path)
    kept = files(tmp_path / "retrieval")
    record = json.loads(kept.pop("fetched.json"))
    assert kept == folder.body and not other.ranges and folder.ranges == [None, "bytes=300-", None, None]
    assert record["sha256"] == {name: hashlib.sha256(x).hexdigest() for name, x in folder.body.items()}
    assert record["url"] == fetch.AAN_URL and folder.paths[0] == "/data/aan/new_aan_pairs.train.tsv"
    printed = capsys.readouterr().out
    assert "attempt 2 of 6, next in 1 s" in printed and record["sha256"]["new_aan_pairs.test.tsv"] in printed


@pytest.mark.parametrize("fault", ["403", "41 lines, not 40"])
def test_where_the_files_fail_the_archive_is_next(fault, aan, tmp_path, capsys):
    folder, other = aan
    if fault == "403":
        folder.status = 403
    else:
        folder.body["new_aan_pairs.train.tsv"] += b"one more"
    fetch.fetch_retrieval(tmp_path)
    assert set(files(tmp_path / "retrieval")) == set(LINES) and other.ranges == [None]
    assert fault in capsys.readouterr().out
    (tmp_path / "retrieval").rename(tmp_path / "aside")
    other.status = 403
    refused(lambda: fetch.fetch_retrieval(tmp_path), "403", "by hand")
    other.body, other.status, other.paths = {name: b"x\n" * n for name, n in LINES.items()}, 200, []
    fetch.fetch_retrieval(tmp_path, other.url.replace("top.tar.gz", "mirror/"))  # there and nowhere else
    assert other.paths == [f"/mirror/{name}" for name in LINES]


def test_a_file_that_came_outlives_the_failure_of_the_next(aan, tmp_path):
    folder, other = aan
    first, second, _ = LINES
    folder.body[second] += b"one more"
    refused(lambda: fetch.fetch_retrieval(tmp_path), second, "another --url")
    assert (tmp_path / "retrieval.part" / first).exists() and not other.ranges


def test_an_archive_of_retrieval_that_lies_there_is_taken(aan, tmp_path):
    folder, other = aan
    (tmp_path / "lra_release.gz").write_bytes(other.body)
    fetch.fetch_retrieval(tmp_path)
    assert set(files(tmp_path / "retrieval")) == set(LINES) and not folder.ranges + other.ranges


def test_a_broken_file_of_retrieval_continues_at_the_next_run(aan, tmp_path):
    folder, other = aan
    folder.drops = [300, *[1] * 20]
    refused(lambda: fetch.fetch_retrieval(tmp_path), "closed early", "the same command again")
    assert not other.ranges  # what has come is worth more than another source
    folder.drops, folder.ranges = [], []
    fetch.fetch_retrieval(tmp_path)
    assert folder.ranges[0] == "bytes=305-" and set(files(tmp_path / "retrieval")) == {*LINES, "fetched.json"}


def test_a_source_that_cannot_be_read_is_no_matter_of_the_disk(tmp_path):
    def action():
        with fetch.making(tmp_path / "packed" / "text"):
            (tmp_path / "aclImdb" / "review.txt").read_bytes()

    refused(action, "No such file", f"check {tmp_path}/aclImdb/review.txt, or remove it")


def test_only_what_a_task_needs_is_unpacked():
    members = {  # as the archives name them -> what they become; None: not wanted
        "text": {"aclImdb/train/pos/0_9.txt": "train/pos/0_9.txt", "aclImdb/train/unsup/0_0.txt": None,
                 "aclImdb/test/neg/12499_1.txt": "test/neg/12499_1.txt", "aclImdb/test/urls_neg.txt": None},
        "image": {"cifar-10-batches-bin/data_batch_5.bin": "data_batch_5.bin",
                  "cifar-10-batches-bin/test_batch.bin": "test_batch.bin",
                  "cifar-10-batches-bin/readme.html": None},
        "retrieval": {"lra_release/lra_release/tsv_data/new_aan_pairs.eval.tsv": "new_aan_pairs.eval.tsv",
                      "lra_release/aan/new_aan_pairs.eval.only_ids.tsv": None},
    }  # fmt: skip
    for name, expected in members.items():
        for member, path in expected.items():
            match = re.fullmatch(fetch.ARCHIVES[name].wanted, member)
            assert (match and match[1]) == path, member
