"""The gate: a command and where it would run in, `allow | ask | deny` with reasons out. Pure.

This first gate knows a short list of harmless commands; everything else asks.
"""

import os
from enum import StrEnum
from typing import NamedTuple

from backburner.models import Submission
from backburner.text import visible

HARMLESS = frozenset(
    [
        "arch",
        "basename",
        "date",
        "dirname",
        "echo",
        "expr",
        "false",
        "factor",
        "groups",
        "id",
        "ls",
        "nproc",
        "printf",
        "pwd",
        "seq",
        "sleep",
        "true",
        "tty",
        "uname",
        "uptime",
        "whoami",
    ]
)
_SYSTEM = ("/bin", "/usr/bin", "/usr/local/bin", "/opt/homebrew/bin")
_INJECTING = ("LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "DYLD_INSERT_LIBRARIES", "PATH")


class Decision(StrEnum):
    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"


class Verdict(NamedTuple):
    decision: Decision
    reasons: tuple[str, ...]


def judge(submission: Submission, executable: str | None) -> Verdict:
    """`executable` is what the command's first word resolves to, None where nothing was found."""
    reasons = []
    name = visible(submission.command[0])
    if submission.shell:
        reasons.append("it is a shell line")
    elif os.path.basename(name) != name:
        reasons.append("it names its program by a path")
    elif name not in HARMLESS:
        reasons.append(f"'{name}' is not on the list of harmless commands")
    elif executable and os.path.dirname(executable) not in _SYSTEM:
        reasons.append(f"'{name}' would run {executable}, which is not the system's own")
    if name == "date" and any(not word.startswith("+") and word not in ("-u", "--utc", "-R", "-I") for word in submission.command[1:]):
        reasons.append("it could set the clock")
    if changed := [variable for variable in _INJECTING if variable in submission.env]:
        reasons.append(f"it changes {', '.join(changed)}")
    if reasons:
        return Verdict(Decision.ASK, tuple(reasons))
    return Verdict(Decision.ALLOW, (f"'{name}' is on the list of harmless commands",))
