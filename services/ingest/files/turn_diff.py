"""What a turn did to files, from the changes that its calls recorded: as a diff, and as the call that puts the files
back. Pure.

The diff can be applied by `git apply`. A restore is an input that asks for a tool call: the executor checks each file's
hash again before it writes, so a change that nobody recorded is never overwritten.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal, NamedTuple, TypeAlias

from pydantic import JsonValue

from schemas.canonical import call_hash
from schemas.events import InputSubmitted, RequestedCall, TextItem
from services.ingest.commands.accepting.accept import Accepted, Command
from services.ingest.http.problems import FILES_CHANGED_SINCE, NOTHING_TO_RESTORE, TOO_LARGE, Problem

RESTORE_TOOL = "restore_files"
"""Name of the tool that puts files back."""
FILES_MAX = 500
"""Files that one restore puts back: the limit of its tool."""
CONTEXT_LINES = 3
"""Unchanged lines that a diff shows around a change, as git does."""
MATCHED_LINES_MAX = 5_000
"""Lines between the common beginning and end of both versions. More lines are shown as replaced, because matching takes
time.
"""
MATCHING_STEPS_MAX = 8_000_000
"""Steps of matching, estimated from lines that repeat. Above it the lines are shown as replaced; at the limit matching
takes two seconds.
"""

Status: TypeAlias = Literal["created", "deleted", "modified"]


class RecordedChange(NamedTuple):
    """What one call recorded about one file: hashes of the content before and after; None where the file did not
    exist.
    """

    call: str
    seq: int
    """Number of the record that settled the call."""
    path: str
    before: str | None
    after: str | None
    mode: int | None
    """The file's permissions; None if they were not recorded."""


@dataclass(frozen=True, slots=True)
class NetChange:
    """What one turn did to one file, from its content before the first call to its content after the last."""

    path: str
    before: str | None
    after: str | None
    mode: int | None
    seq: int
    """Number of the record with the last change."""
    calls: tuple[str, ...]
    """The calls that changed the file, in order."""

    @property
    def status(self) -> Status:
        return "created" if self.before is None else "deleted" if self.after is None else "modified"


class FileDiff(NamedTuple):
    """This is the diff of one file."""

    text: str
    binary: bool = False
    """Whether a version is no text, so that no lines are shown."""
    cut: bool = False
    """Whether the diff is incomplete, or is missing because the file is too large."""
    missing: bool = False
    """Whether the artifact store lacks a content."""


def net_changes(changes: Iterable[RecordedChange]) -> list[NetChange]:
    """Return what became of each file, by path. The changes must come in the order of their records. A file that is as
    before is left out.
    """
    net: dict[str, NetChange] = {}
    for one in changes:
        first = net.get(one.path)
        if first is None:
            net[one.path] = NetChange(one.path, one.before, one.after, one.mode, one.seq, (one.call,))
        else:
            mode = one.mode if first.mode is None else first.mode
            calls = (*first.calls, one.call)
            net[one.path] = NetChange(one.path, first.before, one.after, mode, one.seq, calls)
    return [net[path] for path in sorted(net) if net[path].before != net[path].after]


# Putting back


def restore(
    command: Command, turn: int, net: Sequence[NetChange], latest: Mapping[str, RecordedChange], refusal: Problem | None
) -> Accepted | Problem:
    """Accept that the turn's changes are put back. `latest` is the last recorded change of each file; `refusal` is why
    the tool cannot be called now.
    """
    if not net:
        return Problem(NOTHING_TO_RESTORE, f"Turn {turn} recorded no changes of files.")
    if len(net) > FILES_MAX:
        return Problem(TOO_LARGE, f"Turn {turn} changed {len(net)} files; {FILES_MAX} can be put back at once.")
    args: dict[str, JsonValue] = {
        "files": [
            {"path": one.path, "expected": one.after, "wanted": one.before}
            | ({} if one.mode is None or one.before is None else {"mode": one.mode})
            for one in net
        ]
    }
    asked = RequestedCall(
        tool=RESTORE_TOOL, args=args, call_hash=call_hash(RESTORE_TOOL, args), by=command.principal.actor
    )
    input_id = command.event_id(InputSubmitted)
    text = TextItem(text=f"Put the files back that turn {turn} changed.")
    submitted = InputSubmitted(input=input_id, items=(text,), mode="reject", call=asked)
    return Accepted(
        command,
        ((input_id, submitted),),
        "room",
        judged=True,
        shown={"input": input_id, "files": len(net)},
        refusal=_changed_since(net, latest) or refusal,
    )


def _changed_since(net: Sequence[NetChange], latest: Mapping[str, RecordedChange]) -> Problem | None:
    """A later change that left the file as the turn did is none. What no call recorded, the tool finds out."""
    touched: list[JsonValue] = [
        {"path": one.path, "call": last.call, "seq": last.seq, "expected": one.after, "found": last.after}
        for one in net
        if (last := latest.get(one.path)) is not None and last.seq > one.seq and last.after != one.after
    ]
    if not touched:
        return None
    names = ", ".join(str(one["path"]) for one in touched[:5] if isinstance(one, dict))
    more = "" if len(touched) <= 5 else f" and {len(touched) - 5} more"
    return Problem(FILES_CHANGED_SINCE, f"Later calls changed {names}{more}.", {"files": touched})


# Diffs


def diff_of(change: NetChange, before: bytes | None, after: bytes | None, bytes_max: int) -> FileDiff:
    """Return the diff in the form of `git diff`. Above `bytes_max` bytes a line says that the diff continues."""
    header = _header(change)
    old, new = _lines(before), _lines(after)
    if old is None or new is None:
        return FileDiff(f"{header}Binary files differ\n", binary=True)
    names = (
        ("/dev/null" if before is None else _quoted(f"a/{change.path}")),
        ("/dev/null" if after is None else _quoted(f"b/{change.path}")),
    )
    parts = [header, f"--- {names[0]}\n", f"+++ {names[1]}\n"] if old or new else [header]
    size = 0
    for line in _hunks(old, new):
        size += len(line.encode())
        if size > bytes_max:
            return FileDiff("".join([*parts, "… the diff goes on\n"]), cut=True)
        parts.append(line)
    return FileDiff("".join(parts))


def named_only(change: NetChange, why: str, *, cut: bool = False, missing: bool = False) -> FileDiff:
    """Return the header of a file's diff, and a line that says why the rest is not shown."""
    return FileDiff(f"{_header(change)}{why}\n", cut=cut, missing=missing)


def _header(change: NetChange) -> str:
    """Return the lines that git writes before a file's diff."""
    mode = f"100{(change.mode if change.mode is not None else 0o644) & 0o777:03o}"
    names = f"diff --git {_quoted(f'a/{change.path}')} {_quoted(f'b/{change.path}')}\n"
    if change.status == "modified":
        return names
    return f"{names}{'new' if change.status == 'created' else 'deleted'} file mode {mode}\n"


def _quoted(name: str) -> str:
    """Return the name as git writes it if it would break its line: in quotes, with octal escapes."""
    if not any(letter in '"\\' or not letter.isprintable() for letter in name):
        return name
    escaped = "".join(
        chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\{byte:03o}"
        for byte in name.encode(errors="surrogateescape")
    )
    return f'"{escaped}"'


def _lines(content: bytes | None) -> list[str] | None:
    """Return the lines of a text; None if the content is no text. Only a line feed ends a line."""
    if content is None:
        return []
    if b"\x00" in content:
        return None
    try:
        parts = content.decode().split("\n")
    except UnicodeDecodeError:
        return None
    return [f"{part}\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def _hunks(old: Sequence[str], new: Sequence[str]) -> Iterator[str]:
    """Return the lines of the diff."""
    for group in _groups(old, new):
        yield _place(group)
        for tag, old_from, old_to, new_from, new_to in group:
            if tag == "equal":
                yield from (_shown(" ", line) for line in old[old_from:old_to])
                continue
            yield from (_shown("-", line) for line in old[old_from:old_to])
            yield from (_shown("+", line) for line in new[new_from:new_to])


Opcode: TypeAlias = tuple[str, int, int, int, int]


def _groups(old: Sequence[str], new: Sequence[str]) -> Iterator[list[Opcode]]:
    """Return changes that are close to each other together, with some unchanged lines around them."""
    group: list[Opcode] = []
    for tag, old_from, old_to, new_from, new_to in _opcodes(old, new):
        length = old_to - old_from
        if tag != "equal":
            group.append((tag, old_from, old_to, new_from, new_to))
            continue
        after = min(length, CONTEXT_LINES)
        if group and length > 2 * CONTEXT_LINES:
            yield [*group, (tag, old_from, old_from + after, new_from, new_from + after)]
            group = []
        if group:
            group.append((tag, old_from, old_to, new_from, new_to))
        else:
            group = [(tag, old_to - after, old_to, new_to - after, new_to)]
    if any(opcode[0] != "equal" for opcode in group):
        last = group[-1]
        if last[0] == "equal":
            after = min(last[2] - last[1], CONTEXT_LINES)
            group[-1] = (last[0], last[1], last[1] + after, last[3], last[3] + after)
        yield group


def _opcodes(old: Sequence[str], new: Sequence[str]) -> Iterator[Opcode]:
    """Return how the new lines come from the old. The common beginning and end are left out of the matching, since most
    edits are small.
    """
    shorter = min(len(old), len(new))
    head = next((place for place in range(shorter) if old[place] != new[place]), shorter)
    tail = next((place for place in range(shorter - head) if old[-1 - place] != new[-1 - place]), shorter - head)
    old_end, new_end = len(old) - tail, len(new) - tail
    if head:
        yield "equal", 0, head, 0, head
    if _takes_long(old[head:old_end], new[head:new_end]):
        yield "replace", head, old_end, head, new_end
    else:
        for tag, *places in SequenceMatcher(None, old[head:old_end], new[head:new_end]).get_opcodes():
            old_from, old_to, new_from, new_to = [place + head for place in places]
            yield tag, old_from, old_to, new_from, new_to
    if tail:
        yield "equal", old_end, len(old), new_end, len(new)


def _takes_long(old: Sequence[str], new: Sequence[str]) -> bool:
    """Return whether matching would take too long.

    At worst, each line that is found to match needs a look at all pairs of equal lines. The matcher ignores lines that
    are very frequent in a long text, so they do not count.
    """
    if max(len(old), len(new)) > MATCHED_LINES_MAX:
        return True
    often = len(new) // 100 + 1 if len(new) >= 200 else len(new)
    times = Counter(new)
    pairs = sum([times[line] for line in old if times[line] <= often])
    return pairs * min(len(old), len(new)) > MATCHING_STEPS_MAX


def _place(group: Sequence[Opcode]) -> str:
    """Return the line that says which lines a group covers."""
    first, last = group[0], group[-1]
    return f"@@ -{_range(first[1], last[2])} +{_range(first[3], last[4])} @@\n"


def _range(start: int, end: int) -> str:
    """Return the range in the form of the format: an empty range names the line before it."""
    length = end - start
    if length == 1:
        return str(start + 1)
    return f"{start + 1 if length else start},{length}"


def _shown(sign: str, line: str) -> str:
    """Return a line of the diff with its sign, and the note that git adds to a last line without line feed."""
    return f"{sign}{line}" if line.endswith("\n") else f"{sign}{line}\n\\ No newline at end of file\n"
