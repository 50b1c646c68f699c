"""What every other module needs of the machine: mistakes in one sentence, folders that are whole or not there
at all, and how many cores there are."""

import contextlib
import os
import shutil
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: nobody waits for anybody
    fcntl = None


class UserError(Exception):
    """A mistake that the user can mend. The message is one sentence that says how."""


class DataError(UserError):
    """Data that is missing, damaged or not what it claims to be, in one sentence that says what to do."""


def usable_cores():
    """How many cores this process may use: under Slurm or taskset often fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def scikit_learn():
    """The module sklearn, with linear_model and cluster. It is imported where it is used, so that all other
    scripts run without it. Raises UserError where it is not installed."""
    try:
        import sklearn.cluster
        import sklearn.linear_model
    except ImportError:
        raise UserError("a rule without a network needs scikit-learn: pip install scikit-learn") from None
    return sklearn


@contextlib.contextmanager
def making(folder, keep=False):
    """Yields where to make `folder`, which gets its own name at the end, or None where it is there already.
    One process makes it; others wait (not on Windows, which has no fcntl). What a killed run left is removed,
    or with `keep` left for the caller to go on with. An OSError becomes a DataError: of a file elsewhere,
    which was to be read, or of the disk (full, no permission)."""
    if folder.exists():  # perhaps on a disk that cannot be written to
        yield None
        return
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with open(folder.parent / f".{folder.name}.lock", "w") as lock:
            if fcntl:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    print(f"waiting for another process that is making {folder}", flush=True)
                    fcntl.flock(lock, fcntl.LOCK_EX)
            if folder.exists():
                yield None
                return
            private = folder.with_name(f"{folder.name}.part")
            if not keep:
                shutil.rmtree(private, ignore_errors=True)
            yield private
            private.rename(folder)
    except OSError as error:
        place = Path(error.filename or folder.parent)  # a write to a full disk names no file
        remedy = f"check {place}, or remove it and get it again"
        if folder.parent in (place, *place.parents) or place in folder.parents:
            remedy = "free space or choose another --data-dir"
        raise DataError(f"cannot make {folder} ({error}); {remedy}") from error
