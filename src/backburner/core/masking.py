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
_NEXT_OPTION = r"(?-i:-\w|--[a-z][a-z0-9-]*(?:=\S*)?)(?!\S)"  # what follows an option and is one itself, rather than its value
_SIGN_IN = r"-u|-U|--user|--proxy-user"
_QUOTED = r"""'[^'\n]*'|"[^"\n]*\""""
# Options that hold a password for these programs alone: with the value in the same word only, or also in the next one.
_JOINED = r"(?:mysql|mariadb)[\w-]*"
_EITHER = {"sshpass": "-p", "redis-cli": "-a|--pass"}


_MAY_HOLD = rf"{_WORDS}|://|curl|{_JOINED}|{'|'.join(_EITHER)}"  # without any of these there is nothing to hide


@functools.cache  # compiled when first needed: few commands hold a secret, and compiling takes 2 ms
def _patterns() -> tuple[re.Pattern[str], ...]:
    patterns = (
        rf"((?P<quote>['\"]){_NAME}\s*:\s*)[^\s'\"](?:(?!(?P=quote))[^\n])*",  # 'Authorization: Bearer "abc"', up to the same quote
        rf"({_NAME}[\"']\s*:\s*)(?:{_QUOTED})",  # {{"password": "abc"}}
        rf"({_NAME}\s*:\s*)[^\s'\"][^'\"\n]*(?:(?<=[\s=])(?:{_QUOTED})[^'\"\n]*)*",  # Authorization: Bearer abc
        r"(://[^\s/:@'\"]*:)(?!\d{1,5}/)(?:[^\s/'\"]+|[^\s'\"]{1,200}?)(?=@)",  # https://user:password@host
        r"(https?://)[^\s/:@'\"]+(?=@)",  # https://token@host
        rf"({_NAME}=){_VALUE}",  # TOKEN=abc, --token=abc, ?token=abc
        rf"((?<!\S){_OPTION}\s+)(?!{_NEXT_OPTION}){_VALUE}",  # --token abc
        rf"(\bcurl\b[^\n|;&]{{0,400}}?\s(?:{_SIGN_IN})[\s=]*['\"]?[^\s:'\"]+:)[^\s'\"]+",  # curl -u user:password
        rf"(\b{_JOINED}\b[^\n|;&]{{0,400}}?\s(?-i:-p)){_VALUE}",  # mysql -pabc
        *(rf"(\b{name}\b[^\n|;&]{{0,400}}?\s(?-i:{options})[\s=]*){_VALUE}" for name, options in _EITHER.items()),  # sshpass -p abc
    )
    return tuple(re.compile(pattern, re.IGNORECASE) for pattern in patterns)


def hide_secrets(text: str) -> str:
    """A text that may quote a command, with `***` in place of what looks like a secret."""
    if re.search(_MAY_HOLD, text, re.IGNORECASE):
        for pattern in _patterns():
            text = pattern.sub(rf"\1{MASK}", text)
    return text


def masked_words(command: Sequence[str]) -> list[str]:
    """The words of a command, its secrets hidden."""
    names = {word.rpartition("/")[2] for word in command}
    passwords = "|".join(options for name, options in _EITHER.items() if name in names)
    joined = "|".join(filter(None, [passwords, "-p" if any(re.fullmatch(_JOINED, name) for name in names) else ""]))
    words, before = [], ""
    for word in command:
        secret = re.fullmatch(_OPTION, before, re.IGNORECASE) and not re.fullmatch(_NEXT_OPTION, word)
        if secret or (passwords and re.fullmatch(passwords, before)):
            words.append(MASK)
        elif joined and (found := re.match(rf"({joined})=?(?=[^=])", word)):
            words.append(found.group() + MASK)
        elif "curl" in names and re.fullmatch(_SIGN_IN, before) and ":" in word:
            words.append(f"{word.partition(':')[0]}:{MASK}")
        elif header := re.match(rf"(-H|--header=)?{_NAME}\s*:\s*(?=\S)", word, re.IGNORECASE):
            words.append(header.group() + MASK)
        else:
            words.append(hide_secrets(word))
        before = word
    return words


def masked_line(command: Sequence[str], shell: bool) -> str:
    """A command as one would type it, its secrets hidden."""
    return command_line(masked_words(command), shell).replace(f"'{MASK}'", MASK)
