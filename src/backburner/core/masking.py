"""Hides secrets in the words of a command, for lists, audit, events, notices and logs. Pure.

Where a person decides about a command, and in the ledger, it stands as it is.
"""

import functools
import re
from collections.abc import Sequence

from backburner.core.formatting import command_line

MASK = "***"
# A whole name that holds one of these; written so that a long line takes time in proportion to its length.
_WORDS = r"token|secret|passw|passphrase|api[_-]?key|access[_-]?key|private[_-]?key|credential|cookie|session[_-]?id|auth(?!or(?!iz))"
_NAME = rf"(?<![\w-])(?=[\w-]*?(?:{_WORDS}))[\w-]++"
_VALUE = r"""(?:'[^']*'|"[^"]*"|[^\s'"&;|]+)"""
_OPTION = rf"(?=--?\w){_NAME}"
_SIGN_IN = r"-u|-U|--user|--proxy-user"


@functools.cache  # compiled when first needed
def _patterns() -> tuple[re.Pattern[str], ...]:
    patterns = (
        rf"{_WORDS}|://|curl",  # without any of these there is nothing to hide
        rf"({_NAME}\s*:\s*)[^\s'\"][^'\"\n]*",  # Authorization: Bearer abc
        r"(://[^\s/:@'\"]*:)[^\s/'\"]+(?=@)",  # https://user:password@host
        r"(https?://)[^\s/:@'\"]+(?=@)",  # https://token@host
        rf"({_NAME}=){_VALUE}",  # TOKEN=abc, --token=abc, ?token=abc
        rf"((?<!\S){_OPTION}\s+)(?!-){_VALUE}",  # --token abc
        rf"(\bcurl\b[^\n|;&]{{0,400}}?\s(?:{_SIGN_IN})[\s=]*['\"]?[^\s:'\"]+:)[^\s'\"]+",  # curl -u user:password
    )
    return tuple(re.compile(pattern, re.IGNORECASE) for pattern in patterns)


def hide_secrets(text: str) -> str:
    """A text that may quote a command, with `***` in place of what looks like a secret."""
    may_hold, *patterns = _patterns()
    if may_hold.search(text):
        for pattern in patterns:
            text = pattern.sub(rf"\1{MASK}", text)
    return text


def masked_words(command: Sequence[str]) -> list[str]:
    """The words of a command, its secrets hidden."""
    curl = any(word.rpartition("/")[2] == "curl" for word in command)
    words, before = [], ""
    for word in command:
        if re.fullmatch(_OPTION, before, re.IGNORECASE) and not word.startswith("-"):
            words.append(MASK)
        elif curl and re.fullmatch(_SIGN_IN, before) and ":" in word:
            words.append(f"{word.partition(':')[0]}:{MASK}")
        else:
            words.append(hide_secrets(word))
        before = word
    return words


def masked_line(command: Sequence[str], shell: bool) -> str:
    """A command as one would type it, its secrets hidden."""
    return command_line(masked_words(command), shell).replace(f"'{MASK}'", MASK)
