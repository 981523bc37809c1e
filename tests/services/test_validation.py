"""Invalid submissions are rejected with one sentence, and valid ones are accepted."""

from pathlib import Path
from typing import Any

import pytest

from backburner.core.errors import BadInput
from backburner.core.models import Submission
from backburner.services.validation import LIMITS, validate
from backburner.testing.records import request

LONE = "\ud800"  # a lone surrogate, which cannot be encoded
RAW = b"\xff".decode("utf-8", "surrogateescape")  # a byte that is not valid UTF-8, as a command line may contain


def make_submission(directory: Path, **more: Any) -> Submission:
    return request(**{"command": ("make", "all"), "cwd": str(directory), "environment": {}, **more})


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"command": ("make", "", RAW, "x" * (128 * 1024 - 1))},
        {"command": ("  echo hi  ",), "shell": True},
        {"env": {"A": RAW, "é": "", "a.b": "c=d"}},
        {"name": "nightly build", "description": "über\nzwei Zeilen", "batch": "b", "key": "k" * 200},
        {"timeout_ms": 1},
        {"priority": -1},
        {"limits": {name: least for name, (least, _) in LIMITS.items()}},
        {"limits": {name: most for name, (_, most) in LIMITS.items()}},
        {"restarts": 1000},
        {"start_at": 1},
        *(
            {"ready_when": text}
            for text in ("1", "8080", "65535", "00080", "listening on", r"^ready \d+$", "(a+)+$", "", "é", "-1", "80/tcp")
        ),
    ],
    ids=lambda more: str(more)[:60],
)
def test_a_valid_submission_is_accepted(tmp_path: Path, more: dict[str, Any]) -> None:
    validate(make_submission(tmp_path, **more))


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"command": ()}, "No command"),
        ({"command": ("",)}, "No command"),
        ({"command": (" \n", "x")}, "No command"),
        ({"command": ("a\0b",)}, "NUL"),
        ({"env": {"A": "\0"}}, "NUL"),
        ({"env": {"\0": ""}}, "NUL"),
        ({"command": ("echo", "x" * 128 * 1024)}, "longer than 131,071 bytes"),
        ({"command": ("echo", "é" * 64 * 1024)}, "longer than 131,071 bytes"),
        ({"env": {"A": "x" * 128 * 1024}}, "longer than 131,071 bytes"),
        ({"env": {"": "x"}}, "not a valid name"),
        ({"env": {"A=B": "x"}}, "not a valid name"),
        ({"command": ("echo", LONE)}, "UTF-8"),
        ({"env": {"A": LONE}}, "UTF-8"),
        ({"env": {LONE: "x"}}, "UTF-8"),
        *(({name: f"x{bad}"}, "UTF-8") for name in ("description", "name", "batch", "key", "ready_when") for bad in (LONE, RAW)),
        ({"cwd": "/nowhere/at/all"}, "does not exist"),
        ({"cwd": __file__}, "does not exist"),
        *(({name: bad}, f"Invalid {name} ") for name in ("batch", "key") for bad in ("", " ", "a\nb", "\x1b[2J", "x" * 201, "a\u202eb")),
        ({"timeout_ms": 0}, "timeout"),
        ({"timeout_ms": -1}, "timeout"),
        ({"priority": 2}, "high, normal or low"),
        ({"priority": 9}, "high, normal or low"),
        ({"limits": {"disk_mb": 1}}, "Unknown limit 'disk_mb'"),
        *(({"limits": {name: bad}}, name) for name, (least, most) in LIMITS.items() for bad in (least - 1, most + 1, 1.5, "5")),
        ({"restarts": -1}, "restarts"),
        *(({name: 1 << 63}, word) for name, word in (("restarts", "restarts"), ("timeout_ms", "timeout"), ("start_at", "start"))),
        *(({"ready_when": port}, "not a valid port") for port in ("0", "00", "65536", "99999999999", "0000065536", "0000165536")),
        *(({"ready_when": text}, "neither a port nor") for text in ("(", "[z-a]", "a{99999999999}", "(?P<x", "(" * 5000, "*")),
    ],
    ids=lambda one: str(one)[:50],
)
def test_an_invalid_submission_is_rejected_with_the_reason(tmp_path: Path, more: dict[str, Any], why: str) -> None:
    with pytest.raises(BadInput, match=why):
        validate(make_submission(tmp_path, **more))
