"""Changes of several files at once: all of them or none, even if the process is killed at any instruction.

Theory of operation. The plan is written into a journal next to the workspace, out of reach of what runs in it:

    prepare {files}    new contents are written next to their files; the old contents get a second name there
    apply              new contents take the names of their files, deleted files lose theirs
    done               the second names are removed
    over               nothing is left to do

A journal that stands at `prepare` or `apply` was left by a process that died: everything is put back as it was. At
`done` the change counts, and only the second names are removed. Whoever changes files or enters the workspace does this
first. A lock on the journal keeps a change that is still under way from being taken for a dead one; the kernel drops
the lock with its process.

A change that is over stays in the journal until the next one, with what its call reported. The process may die before
the call's end is in the log. When the call runs again it finds its files already as it wants them, and repeats that
report instead of claiming that nothing has changed.

Nothing is synced to disk: the journal protects against the death of the process, not against a power failure.
"""

import contextlib
import fcntl
import json
import os
import shutil
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import JsonValue

from services.chassis.clock import draw_id

NEW_SUFFIX = ".threadlog-new"
OLD_SUFFIX = ".threadlog-old"
MODE_DEFAULT = 0o644
LOCK_SECONDS: Final = 5.0
"""How long a change waits for another one of the same thread. Changes take milliseconds, so longer is a fault."""
LOCK_LOOK_SECONDS: Final = 0.02
"""The pause between two tries for the lock: waiting for it in the kernel could not be limited."""
OVER = "over"
_OVER_LINE = b"\nover\n"


class FileBusyError(Exception):
    """Another call changes files of the workspace, or a file has changed since it was read. Nothing was changed."""


@dataclass(frozen=True, slots=True)
class Found:
    """A file as it was read. The signature shows whether it was changed since."""

    content: bytes
    mode: int
    signature: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a file should become."""

    content: bytes | None
    """None: the file is deleted."""
    mode: int | None = None
    """None: the mode that the file has, or 0644 for a new one."""


@dataclass(frozen=True, slots=True)
class Said:
    """What a call reports about its changes, kept for the same call if it runs again."""

    key: str = ""
    changes: tuple[dict[str, JsonValue], ...] = ()


@dataclass(frozen=True, slots=True)
class _Entry:
    path: Path
    beside: str
    """What its second names begin with. It is drawn, so that nothing that a command has left can be in the way, and it
    does not contain the file's own name, which may be as long as a name can be.
    """
    had: bool
    wants: bool
    made: tuple[str, ...]
    """Directories that are created for it, the outermost first."""

    @property
    def new(self) -> Path:
        return self.path.with_name(f"{self.beside}{NEW_SUFFIX}")

    @property
    def old(self) -> Path:
        return self.path.with_name(f"{self.beside}{OLD_SUFFIX}")


@dataclass(frozen=True, slots=True)
class _Journal:
    entries: list[_Entry]
    state: str
    said: Said = Said()


def journal_of(workspace: Path) -> Path:
    """Return the journal of the workspace. No thread can have this name, since names do not begin with a dot."""
    return workspace.with_name(f".{workspace.name}.changes")


def recover(workspace: Path) -> None:
    """Put back what a process that died has left half done. In the usual case this reads a few bytes.

    Raises OSError if it cannot be put back; whoever comes next tries again. A change that is under way is left alone.
    """
    journal = journal_of(workspace)
    if _is_over(journal):
        return
    with suppress(FileBusyError), _locked(journal, 0) as descriptor:
        _recover(descriptor)


def said_before(workspace: Path, key: str) -> tuple[dict[str, JsonValue], ...]:
    """Return the changes that an earlier run of the same call has completed, unless another change came after it."""
    journal = journal_of(workspace)
    if not journal.exists():
        return ()
    with _locked(journal, LOCK_SECONDS) as descriptor:
        found = _read(descriptor)
    return found.said.changes if found.state == OVER and found.said.key == key else ()


def look(path: Path) -> Found | None:
    """Read the file; return None if there is none. Raises OSError for anything that is not a regular file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(file.fileno())
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(21, "It is a directory", str(path))
        if not stat.S_ISREG(found.st_mode):
            raise OSError(22, "It is no regular file", str(path))
        return Found(file.read(), stat.S_IMODE(found.st_mode), _signature(found))


def mode_at(path: Path) -> int | None:
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return None


def size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        return 0


def apply(
    workspace: Path, wanted: Mapping[Path, Wanted], found: Mapping[Path, Found | None], said: Said = Said()
) -> None:
    """Make all the changes, or none.

    Raises FileBusyError if a file is not as it was found, and OSError if the disk refuses; nothing has changed then.
    """
    with _locked(journal_of(workspace), LOCK_SECONDS) as descriptor:
        _recover(descriptor)
        for path, before in found.items():
            if _signature_at(path) != (None if before is None else before.signature):
                raise FileBusyError(f"{path.relative_to(workspace)} was changed at this very moment.")
        drawn = draw_id()
        entries = [
            _entry(path, want, found[path], f".{drawn}-{number}") for number, (path, want) in enumerate(wanted.items())
        ]
        try:
            _begin(descriptor, entries, said)
            for entry in entries:
                _prepare(entry, wanted[entry.path], found[entry.path])
            _write(descriptor, "apply")
            for entry in entries:
                if entry.wants:
                    entry.new.replace(entry.path)
                else:
                    entry.path.unlink(missing_ok=True)
            _write(descriptor, "done")
        except OSError:
            _recover(descriptor)
            raise
        with suppress(OSError):  # the files have changed; whoever comes next clears away
            _recover(descriptor)


def _entry(path: Path, want: Wanted, before: Found | None, beside: str) -> _Entry:
    made = [] if want.content is None else [str(parent) for parent in path.parents if not parent.exists()]
    return _Entry(path, beside, before is not None, want.content is not None, tuple(reversed(made)))


def _prepare(entry: _Entry, want: Wanted, before: Found | None) -> None:
    if want.content is not None:
        entry.path.parent.mkdir(parents=True, exist_ok=True)
        # O_EXCL and O_NOFOLLOW: nothing that a command planted under this name is written through.
        descriptor = os.open(entry.new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, MODE_DEFAULT)
        with os.fdopen(descriptor, "wb") as file:
            file.write(want.content)
            # Whatever the umask: it is what the call says of the file.
            os.fchmod(file.fileno(), mode_of(want, before))
    if before is not None:
        try:
            os.link(entry.path, entry.old, follow_symlinks=False)
        except OSError:  # a file system without hard links
            shutil.copy2(entry.path, entry.old, follow_symlinks=False)


def mode_of(want: Wanted, before: Found | None) -> int:
    if want.mode is not None:
        return want.mode
    return MODE_DEFAULT if before is None else before.mode


def _recover(descriptor: int) -> None:
    found = _read(descriptor)
    if found.state == OVER:
        return
    for entry in reversed(found.entries):
        if found.state == "apply":
            _put_back(entry)
        for beside in (entry.new, entry.old):
            with suppress(OSError):  # where none could be made, none can be removed
                beside.unlink()
        if found.state != "done":
            for made in reversed(entry.made):
                with suppress(OSError):
                    Path(made).rmdir()
    if found.state == "done":
        _write(descriptor, OVER)
    else:
        os.ftruncate(descriptor, 0)


def _put_back(entry: _Entry) -> None:
    """Put the old file back. This may be repeated: a file that was put back has no second name any more."""
    if not entry.had:
        if not entry.new.exists():
            entry.path.unlink(missing_ok=True)
    elif entry.old.exists():
        entry.old.replace(entry.path)  # which does nothing where both names are of one file


def _begin(descriptor: int, entries: list[_Entry], said: Said) -> None:
    files = [[str(one.path), one.beside, one.had, one.wants, list(one.made)] for one in entries]
    os.ftruncate(descriptor, 0)
    os.lseek(descriptor, 0, os.SEEK_SET)
    _write(descriptor, f"prepare {json.dumps([files, said.key, said.changes])}")


def _write(descriptor: int, line: str) -> None:
    data = f"{line}\n".encode()
    while data:
        data = data[os.write(descriptor, data) :]


def _read(descriptor: int) -> _Journal:
    """Return the state that the last complete line names, and leave the write position behind that line.

    A line without its end was cut off by the death of its process. If it is the first, nothing had been done yet.
    Raises OSError if the file is not a journal.
    """
    os.lseek(descriptor, 0, os.SEEK_SET)
    with os.fdopen(os.dup(descriptor), "rb") as file:
        lines = [line for line in file if line.endswith(b"\n")]
    os.lseek(descriptor, sum(map(len, lines)), os.SEEK_SET)
    if not lines:
        return _Journal([], "prepare")
    try:
        files, key, changes = json.loads(lines[0].removeprefix(b"prepare "))
        entries = [_Entry(Path(path), beside, had, wants, tuple(made)) for path, beside, had, wants, made in files]
    except (ValueError, TypeError) as error:
        raise OSError(22, "The journal of the last change of files is damaged") from error
    state = "prepare" if len(lines) == 1 else lines[-1].decode().rstrip("\n")
    return _Journal(entries, state, Said(key, tuple(changes)))


def _is_over(journal: Path) -> bool:
    """Return whether the last change is over, or there was none. It reads the end of the file only."""
    try:
        with journal.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - len(_OVER_LINE)))
            return not size or file.read() == _OVER_LINE
    except FileNotFoundError:
        return True


@contextlib.contextmanager
def _locked(journal: Path, seconds: float) -> Iterator[int]:
    """Hold the lock of the journal. Raises FileBusyError if another holds it for longer than `seconds`."""
    descriptor = os.open(journal, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + seconds
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise FileBusyError("Another call is changing files of this thread.") from None
                time.sleep(LOCK_LOOK_SECONDS)
        yield descriptor
    finally:
        os.close(descriptor)


def _signature_at(path: Path) -> tuple[int, ...] | None:
    try:
        return _signature(path.lstat())
    except (FileNotFoundError, NotADirectoryError):
        return None


def _signature(found: os.stat_result) -> tuple[int, ...]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_mode
