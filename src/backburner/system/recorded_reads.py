"""Remembers what a decision has read from the machine, so that it need not be made again while all of that is unchanged."""

from collections.abc import Callable

from backburner.core.light_typing import Any, Generic, TypeVar

_Found = TypeVar("_Found")
_Answer = TypeVar("_Answer")
_MAX_KEPT = 32  # each with the environment of a command, some kilobytes


class RecordedReads:
    """The functions that a decision has called to read the machine, with what they returned. Each is called once per decision."""

    def __init__(self) -> None:
        self._found: dict[tuple[Callable[..., Any], tuple[str, ...]], Any] = {}
        self._is_complete = True

    def __call__(self, look: Callable[..., _Found], *arguments: str) -> _Found:
        """What `look` returns for these arguments."""
        key = look, arguments
        if key not in self._found:
            try:
                self._found[key] = look(*arguments)
            except BaseException:
                self._is_complete = False
                raise
        return self._found[key]

    def mark_incomplete(self) -> None:
        """Note that the decision also depends on something that is not recorded here."""
        self._is_complete = False

    @property
    def are_current(self) -> bool:
        """Whether everything would be found as it was."""
        try:
            return self._is_complete and all(look(*arguments) == found for (look, arguments), found in self._found.items())
        except (OSError, ValueError):
            return False


class Answers(Generic[_Answer]):
    """The latest answers, each with its question and what was read to answer it."""

    def __init__(self) -> None:
        self._kept: dict[object, tuple[object, RecordedReads, _Answer]] = {}

    def find(self, about: object, question: object) -> _Answer | None:
        """The answer to the same question, if everything that was read for it is unchanged. Only the latest one `about` a thing is kept."""
        kept = self._kept.get(about)
        return kept[2] if kept and kept[0] == question and kept[1].are_current else None

    def keep(self, about: object, question: object, reads: RecordedReads, answer: _Answer) -> None:
        self._kept.pop(about, None)
        self._kept[about] = question, reads, answer
        if len(self._kept) > _MAX_KEPT:
            del self._kept[next(iter(self._kept))]  # the oldest
