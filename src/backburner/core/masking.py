"""Masks secrets in commands, for lists, audit, events, notices and logs.

Approval questions and the ledger contain the command unmasked.
"""

from backburner.core.formatting import command_line

TYPE_CHECKING = False

if TYPE_CHECKING:
    import re
    from collections.abc import Sequence

MASK = "***"
# A name that contains one of these words. The pattern takes linear time on long lines.
_WORDS = r"token|secret|passw|passphrase|api[_-]?key|access[_-]?key|private[_-]?key|credential|cookie|session[_-]?id|auth(?!or(?!iz))"
_NAME = rf"(?<![\w-])(?=[\w-]*?(?:{_WORDS}))[\w-]++"
_VALUE = r"""(?:'[^']*'|"[^"]*"|[^\s'"&;|]+)"""
_OPTION = rf"(?=--?\w){_NAME}"
_NEXT_OPTION = r"(?-i:-\w|--[a-z][a-z0-9-]*(?:=\S*)?)(?!\S)"  # another option after an option, rather than its value
_SIGN_IN = r"-u|-U|--user|--proxy-user"
_QUOTED = r"""'[^'\n]*'|"[^"\n]*\""""
# Programs with password options of their own: -pPASSWORD (joined only), or the password joined or as the next argument.
_JOINED = r"(?:mysql|mariadb)[\w-]*"
_JOINED_OR_NEXT = {"sshpass": "-p", "redis-cli": "-a|--pass"}


_POSSIBLE_SECRET = rf"{_WORDS}|://|curl|{_JOINED}|{'|'.join(_JOINED_OR_NEXT)}"  # text without a match contains no secret
# ASCII text without any of these contains no secret. Few commands do, so that `re` is loaded only for those.
_HINTS = ("token", "secret", "pass", "key", "credential", "cookie", "session", "auth", "://", "curl", "mysql", "mariadb", "redis-cli")


def _may_contain_secret(text: str) -> bool:
    lower = text.lower()
    return not text.isascii() or any(hint in lower for hint in _HINTS)


_compiled: "tuple[re.Pattern[str], ...]" = ()


def _patterns() -> "tuple[re.Pattern[str], ...]":
    global _compiled
    import re

    if _compiled:
        return _compiled
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
        *(rf"(\b{name}\b[^\n|;&]{{0,400}}?\s(?-i:{options})[\s=]*){_VALUE}" for name, options in _JOINED_OR_NEXT.items()),  # sshpass -p abc
    )
    _compiled = tuple(re.compile(pattern, re.IGNORECASE) for pattern in patterns)
    return _compiled


def hide_secrets(text: str) -> str:
    """Replace everything in a text that looks like a secret with `***`."""
    if not _may_contain_secret(text):
        return text
    import re

    if re.search(_POSSIBLE_SECRET, text, re.IGNORECASE):
        for pattern in _patterns():
            text = pattern.sub(rf"\1{MASK}", text)
    return text


def masked_words(command: "Sequence[str]") -> list[str]:
    """Return the arguments of a command with its secrets masked."""
    if not any(map(_may_contain_secret, command)):
        return list(command)
    import re

    names = {word.rpartition("/")[2] for word in command}
    passwords = "|".join(options for name, options in _JOINED_OR_NEXT.items() if name in names)
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


def masked_line(command: "Sequence[str]", shell: bool) -> str:
    """Format a command as it would be typed, with its secrets masked."""
    return command_line(masked_words(command), shell).replace(f"'{MASK}'", MASK)
