"""Patches, read and applied to text; no I/O.

Two forms are read. The one that coding models write most reliably:

    *** Begin Patch
    *** Update File: path            (or `*** Add File:`, every line with +; or `*** Delete File:`)
    *** Move to: other/path          (optional, updates only)
    @@ def function_it_is_in():      (optional: where to look from; may be repeated to go deeper)
     context
    -old
    +new
    *** End of File                  (optional: the hunk ends where the file ends)
    *** End Patch

and unified diffs, as `diff -u` and `git diff` write them.

Models miscount lines and lose spaces, but they rarely invent content. So the place of a hunk is found by its content:
exactly first, then ignoring space at the ends of lines, then ignoring any space around them. Line numbers only choose
among several such places. A hunk whose content is not in the file fails the whole patch with a message that shows the
closest place. Nothing is guessed: a change at the wrong place costs more than a second try.

Lines that a hunk keeps are taken from the file and not from the patch, so that ignored spaces stay as they were.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

BEGIN, END, END_OF_FILE = "*** Begin Patch", "*** End Patch", "*** End of File"
ADD, DELETE, UPDATE, MOVE = "*** Add File: ", "*** Delete File: ", "*** Update File: ", "*** Move to: "
NO_NEWLINE = "\\ No newline at end of file"
NOWHERE = "/dev/null"
BLANK_CONTEXT = " "
"""A blank line of context in a diff, which can be its last line."""
CLOSEST_LINES_SHOWN: Final = 6
"""Enough for the model to recognise the place, in a message that stays short."""

_RANGE = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


class PatchError(ValueError):
    """The patch cannot be read or does not fit. The model reads the text: what is wrong, where, and what to do."""


@dataclass(frozen=True, slots=True)
class Hunk:
    """One change at one place of a file."""

    old: tuple[str, ...]
    """The lines that must be in the file: context and removed ones."""
    new: tuple[str, ...]
    """The lines that take their place: context and added ones."""
    anchors: tuple[str, ...] = ()
    """Lines after which the hunk is looked for, each after the one before."""
    line: int | None = None
    """The line at which it starts, from 1, according to a unified diff."""
    at_end: bool = False
    """Whether the hunk must end where the file ends."""
    final_newline: bool | None = None
    """Whether the file ends with a newline afterwards. None: as before."""


@dataclass(frozen=True, slots=True)
class AddFile:
    """A new file. The tool refuses it if the file exists, so that a patch never overwrites by accident."""

    path: str
    content: str


@dataclass(frozen=True, slots=True)
class DeleteFile:
    """A file to delete. Its old content is not compared: deleting is what the model asked for."""

    path: str


@dataclass(frozen=True, slots=True)
class UpdateFile:
    """Changes inside a file, a move, or both."""

    path: str
    hunks: tuple[Hunk, ...]
    move_to: str | None = None


FilePatch: TypeAlias = AddFile | DeleteFile | UpdateFile


def parse_patch(text: str) -> tuple[FilePatch, ...]:
    """Read a patch of either form, also inside a code fence. Raises PatchError."""
    lines = _unwrapped(text)
    if lines and lines[0].strip() == BEGIN:
        return _parse_envelope(lines)
    if any(line.startswith("--- ") for line in lines) or any(line.startswith("diff --git ") for line in lines):
        return _parse_unified(lines)
    raise PatchError(
        f"This is no patch: its first line must be `{BEGIN}`, or it must be a unified diff (`--- a/file`)."
    )


def apply_hunks(path: str, text: str, hunks: Sequence[Hunk]) -> str:
    """Return the text after all hunks, which must be in the order of the file.

    A file with Windows line ends keeps them. Raises PatchError for the first hunk that does not fit.
    """
    # Models write patches with plain newlines, whatever the file has.
    windows = "\r\n" in text and "\n" not in text.replace("\r\n", "")
    body = text.replace("\r\n", "\n") if windows else text
    final_newline = body.endswith("\n") or not body
    lines = body.split("\n")
    if final_newline:
        lines.pop()
    result: list[str] = []
    taken = 0
    for number, hunk in enumerate(hunks, start=1):
        place = _place(path, lines, hunk, taken, number)
        result += lines[taken:place]
        result += _with_file_context(hunk, lines, place)
        taken = place + len(hunk.old)
        if hunk.final_newline is not None:
            final_newline = hunk.final_newline
    result += lines[taken:]
    patched = "\n".join(result) + ("\n" if final_newline and result else "")
    return patched.replace("\n", "\r\n") if windows else patched


def _with_file_context(hunk: Hunk, lines: Sequence[str], place: int) -> list[str]:
    """Return the hunk's new lines. Lines that it keeps are taken from the file, whose spaces may differ."""
    there = lines[place : place + len(hunk.old)]
    if tuple(there) == hunk.old:
        return list(hunk.new)
    before = _common(hunk.old, hunk.new)
    after = _common(hunk.old[before:][::-1], hunk.new[before:][::-1])
    return [*there[:before], *hunk.new[before : len(hunk.new) - after], *there[len(there) - after :]]


def _common(left: Sequence[str], right: Sequence[str]) -> int:
    """Return how many lines the two have in common at their start."""
    return next(
        (at for at, (one, other) in enumerate(zip(left, right, strict=False)) if one != other),
        min(len(left), len(right)),
    )


# Where a hunk goes


def _place(path: str, lines: Sequence[str], hunk: Hunk, start: int, number: int) -> int:
    """Return the index of the line at which the hunk applies, at or after `start`. Raises PatchError.

    Weaker comparisons are tried only after stricter ones have found no place at all. A hunk without old lines is an
    insertion: it goes after its anchor or its line number, else to the end of the file.
    """
    start = _after_anchors(path, lines, hunk, start, number)
    if not hunk.old:
        if hunk.line is not None:
            # A unified diff's insertion without context goes after the line it names.
            return min(max(hunk.line, start), len(lines))
        return start if hunk.anchors else len(lines)
    for same in (_exact, _without_end_space, _without_space):
        places = [
            at
            for at in range(start, len(lines) - len(hunk.old) + 1)
            if all(same(lines[at + offset], wanted) for offset, wanted in enumerate(hunk.old))
        ]
        if hunk.at_end:
            places = [at for at in places if at + len(hunk.old) == len(lines)] or places[-1:]
        if places:
            wanted_line = hunk.line
            return places[0] if wanted_line is None else min(places, key=lambda at: abs(at + 1 - wanted_line))
    raise PatchError(_not_found(path, lines, hunk, start, number))


def _after_anchors(path: str, lines: Sequence[str], hunk: Hunk, start: int, number: int) -> int:
    """Return the index after the last anchor, from which the hunk is looked for. Raises PatchError."""
    for anchor in hunk.anchors:
        found = next(
            (
                at
                for same in (_exact, _without_end_space, _without_space)
                for at in range(start, len(lines))
                if same(lines[at], anchor)
            ),
            None,
        )
        if found is None:
            raise PatchError(
                f"{path}, hunk {number}: its `@@ {anchor}` names a line that is not in the file after line {start}. "
                "Nothing was changed. Read the file again and name a line that is there, or leave it out."
            )
        start = found + 1
    return start


def _exact(line: str, wanted: str) -> bool:
    return line == wanted


def _without_end_space(line: str, wanted: str) -> bool:
    return line.rstrip() == wanted.rstrip()


def _without_space(line: str, wanted: str) -> bool:
    return line.strip() == wanted.strip()


def _not_found(path: str, lines: Sequence[str], hunk: Hunk, start: int, number: int) -> str:
    """Return a message by which a model can mend its patch: what was looked for, and what is there instead."""
    wanted = "\n".join(hunk.old[:CLOSEST_LINES_SHOWN])
    message = (
        f"{path}, hunk {number}: these lines are not in the file{f' after line {start}' if start else ''}, so nothing "
        f"was changed:\n{wanted}"
    )
    first = next((line.strip() for line in hunk.old if line.strip()), "")
    near = next((at for at in range(start, len(lines)) if lines[at].strip() == first), None) if first else None
    if near is not None:
        there = "\n".join(lines[near : near + CLOSEST_LINES_SHOWN])
        message += f"\nThe closest place, at line {near + 1}, reads:\n{there}"
    elif any(lines[at : at + len(hunk.old)] == list(hunk.old) for at in range(start)):
        message += "\nThey are further up: hunks must be in the order of the file."
    return message + "\nRead the file again and send the patch with its lines as they are."


# The form between *** Begin Patch and *** End Patch


@dataclass(slots=True)
class _Building:
    """A hunk while its lines are read."""

    anchors: list[str] = field(default_factory=list)
    old: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)
    line: int | None = None
    at_end: bool = False
    final_newline: bool | None = None
    last: Literal[" ", "-", "+", ""] = ""

    def take(self, line: str) -> bool:
        """Take in one line of a hunk; return False if it is none."""
        sign, rest = (line[:1], line[1:]) if line else (" ", "")
        match sign:
            case " ":
                self.old.append(rest)
                self.new.append(rest)
                self.last = " "
            case "-":
                self.old.append(rest)
                self.last = "-"
            case "+":
                self.new.append(rest)
                self.last = "+"
            case _:
                return False
        return True

    def built(self) -> Hunk:
        return Hunk(tuple(self.old), tuple(self.new), tuple(self.anchors), self.line, self.at_end, self.final_newline)

    @property
    def empty(self) -> bool:
        return not self.old and not self.new


def _parse_envelope(lines: Sequence[str]) -> tuple[FilePatch, ...]:
    """Read the form between the two markers. A patch without its end was cut off and must not be applied in part."""
    end = next((at for at in range(len(lines) - 1, 0, -1) if lines[at].strip() == END), None)
    if end is None:
        raise PatchError(f"The patch has no `{END}`; was it cut off? Send it whole.")
    patches: list[FilePatch] = []
    at = 1
    while at < end:
        line = lines[at]
        body_end = next((after for after in range(at + 1, end) if _starts_file(lines[after])), end)
        body = lines[at + 1 : body_end]
        if line.startswith(ADD):
            patches.append(_added(_path(line, ADD), body))
        elif line.startswith(DELETE):
            if any(extra.strip() for extra in body):
                raise PatchError(f"{_path(line, DELETE)}: nothing may follow `*** Delete File:`.")
            patches.append(DeleteFile(_path(line, DELETE)))
        elif line.startswith(UPDATE):
            patches.append(_updated(_path(line, UPDATE), body))
        elif line.strip():
            raise PatchError(
                f"Line {at + 1} of the patch, {line[:80]!r}, is no `*** Add File: `, `*** Update File: ` or "
                "`*** Delete File: `."
            )
        else:
            body_end = at + 1
        at = body_end
    return _some(patches)


def _starts_file(line: str) -> bool:
    return line.startswith((ADD, DELETE, UPDATE))


def _path(line: str, marker: str) -> str:
    path = line.removeprefix(marker).strip()
    if not path:
        raise PatchError(f"`{marker.strip()}` names no file.")
    return path


def _added(path: str, body: Sequence[str]) -> AddFile:
    wrong = next((line for line in body if line and not line.startswith("+")), None)
    if wrong is not None:
        raise PatchError(f"{path}: every line of an added file starts with `+`; {wrong[:80]!r} does not.")
    content = [line[1:] for line in body if line.startswith("+")]
    return AddFile(path, "".join(f"{line}\n" for line in content))


def _updated(path: str, body: Sequence[str]) -> UpdateFile:
    move_to = None
    if body and body[0].startswith(MOVE):
        move_to, body = _path(body[0], MOVE), body[1:]
    hunks: list[Hunk] = []
    building = _Building()
    for line in body:
        if line == "@@" or line.startswith("@@ "):
            if not building.empty:
                hunks.append(building.built())
                building = _Building()
            ranged = _RANGE.match(line)
            if ranged is not None:
                building.line = int(ranged[1])
            elif anchor := line[2:].strip().removesuffix("@@").rstrip():
                building.anchors.append(anchor)
        elif line.strip() == END_OF_FILE:
            building.at_end = True
        elif not building.take(line):
            raise PatchError(
                f"{path}, hunk {len(hunks) + 1}: {line[:80]!r} starts with none of ` `, `-`, `+` and `@@`; a line of "
                "context starts with a space."
            )
    if not building.empty:
        hunks.append(_without_blank_end(building).built())
    if not hunks and move_to is None:
        raise PatchError(f"{path}: the patch updates it but holds no change.")
    return UpdateFile(path, tuple(hunks), move_to)


def _without_blank_end(building: _Building) -> _Building:
    """Drop blank lines at the end: they separate files in the patch, and are not context."""
    while building.last == " " and building.old and building.old[-1] == "" == building.new[-1] and not building.at_end:
        building.old.pop()
        building.new.pop()
        if not building.old or not building.new:
            break
    return building


# Unified diffs


def _parse_unified(lines: Sequence[str]) -> tuple[FilePatch, ...]:
    """Read a unified diff. Lines that git adds and that change nothing here, such as `index`, are skipped."""
    patches: list[FilePatch] = []
    at = 0
    renamed_from: str | None = None
    while at < len(lines):
        line = lines[at]
        if line.startswith("rename from "):
            renamed_from = line.removeprefix("rename from ").strip()
        elif line.startswith("rename to ") and renamed_from is not None:
            renamed_to = line.removeprefix("rename to ").strip()
            if not _hunks_follow(lines, at):
                patches.append(UpdateFile(renamed_from, (), renamed_to))
            renamed_from = None
        elif line.startswith(("GIT binary patch", "Binary files ")):
            raise PatchError("Binary patches cannot be applied; write the file with another tool.")
        elif line.startswith("--- ") and at + 1 < len(lines) and lines[at + 1].startswith("+++ "):
            old, new = _unified_paths(line, lines[at + 1])
            hunks, at = _unified_hunks(new if old == NOWHERE else old, lines, at + 2)
            patches.append(_unified_file(old, new, hunks))
            continue
        at += 1
    return _some(patches)


def _hunks_follow(lines: Sequence[str], at: int) -> bool:
    following = next((line for line in lines[at + 1 :] if line.startswith(("--- ", "diff --git "))), "")
    return following.startswith("--- ")


def _unified_paths(old_line: str, new_line: str) -> tuple[str, str]:
    """Return both paths, without the prefixes `a/` and `b/` if both lines have theirs."""
    old, new = (line[4:].split("\t")[0].strip().strip('"') for line in (old_line, new_line))
    prefixed = (old.startswith("a/") or old == NOWHERE) and (new.startswith("b/") or new == NOWHERE)
    return (old.removeprefix("a/"), new.removeprefix("b/")) if prefixed else (old, new)


def _unified_hunks(path: str, lines: Sequence[str], at: int) -> tuple[tuple[Hunk, ...], int]:
    """Return the hunks from there on, and the line at which they end.

    Each header says how many lines its hunk has. Models miscount, so a hunk continues up to the next header.
    """
    hunks: list[Hunk] = []
    while at < len(lines) and (ranged := _RANGE.match(lines[at])) is not None:
        # An empty old side counts from the line before.
        building = _Building(line=int(ranged[1]))
        old_left, new_left = int(ranged[2] or 1), int(ranged[4] or 1)
        at += 1
        while at < len(lines) and not _ends_hunk(lines, at, old_left <= 0 and new_left <= 0):
            line = lines[at]
            if line.startswith("\\"):
                if building.last in {"+", " "}:
                    building.final_newline = False
                elif building.final_newline is None:
                    building.final_newline = True
            elif building.take(line):
                old_left -= building.last in {" ", "-"}
                new_left -= building.last in {" ", "+"}
            else:
                raise PatchError(f"{path}, hunk {len(hunks) + 1}: {line[:80]!r} starts with none of ` `, `-` and `+`.")
            at += 1
        hunks.append(building.built())
    return tuple(hunks), at


def _ends_hunk(lines: Sequence[str], at: int, complete: bool) -> bool:
    """Return whether the hunk ends before this line. `complete`: it has all lines that its header promised."""
    line = lines[at]
    if line.startswith(("@@ ", "diff --git ", "index ")):
        return True
    if line.startswith("--- ") and at + 1 < len(lines) and lines[at + 1].startswith("+++ "):
        return True
    return complete and not line.startswith(("\\", "+", "-", " "))


def _unified_file(old: str, new: str, hunks: tuple[Hunk, ...]) -> FilePatch:
    """Return what the pair of paths means: /dev/null on one side is a new or a deleted file."""
    if new == NOWHERE:
        return DeleteFile(old)
    if old == NOWHERE:
        text = "\n".join(line for hunk in hunks for line in hunk.new)
        newline = "" if (hunks and hunks[-1].final_newline is False) or not text else "\n"
        return AddFile(new, text + newline)
    if not hunks and old == new:
        raise PatchError(f"{old}: the patch updates it but holds no change.")
    return UpdateFile(old, hunks, None if old == new else new)


def _unwrapped(text: str) -> list[str]:
    """Return the lines, without blank lines and a code fence around them."""
    lines = text.replace("\r\n", "\n").split("\n")
    while lines and not lines[0].strip():
        lines.pop(0)
    while lines and not lines[-1].strip() and lines[-1] != BLANK_CONTEXT:
        lines.pop()
    if len(lines) >= 2 and lines[0].startswith("```") and lines[-1].strip() == "```":
        return _unwrapped("\n".join(lines[1:-1]))
    return lines


def _some(patches: list[FilePatch]) -> tuple[FilePatch, ...]:
    if not patches:
        raise PatchError("The patch changes no file.")
    return tuple(patches)
