"""`find` and `xargs`: the commands they run, the words they add, and the directories they read."""

from pathlib import Path

import pytest

from approval.command_world import make_project_with_traps, verdict

LINES = [
    ("echo rm | xargs -I ls ls README.md", "xargs replaces the name of the program"),
    ("echo '; reboot' | xargs -I X sh -c 'echo X'", "xargs replaces text inside a shell line"),
    ("echo README.md | xargs --replace rm ls {}", "--replace takes its value only in the same word"),
    ("echo -o README.md | xargs tree", "words from standard input can be options"),
    ("find . -exec sort + -o README.md {} \\;", "+ ends the command only after {}"),
    ("find . -exec xargs -I + rm README.md \\;", "+ ends the command only after {}"),
    ("find /etc -name passwd -execdir cat passwd \\;", "runs in the directory of each file it finds"),
    ("find / -maxdepth 1 -execdir touch newfile \\;", "writes in the directory of each file it finds"),
    ("find . -execdir git status \\;", "uses the repository of another directory"),
    ("find . -exec reboot \\;", ""),
    ("find /etc", "searches outside the project"),
    ("find / -name x", "searches outside the project"),
    ("find out/ -type f", "searches outside the project"),
    ("find -L . -name passwd", "follows links to directories outside the project"),
    ("echo / | xargs ls", "lists paths from standard input"),
    ("find . -newermt x -delete", ""),
    ("find . -fprintf README.md x", ""),
    ("find . -fls README.md", ""),
    ("x='1 rm README.md'; xargs -n $x echo", "an expansion or a pattern can become several words"),
    ("echo 5 rm README.md | xargs nice -n", "xargs can add several words"),
    ("echo 9 5 rm README.md | xargs timeout -s", "xargs can add several words"),
    ("echo 1 rm README.md | xargs -n9 xargs -n", "xargs can add several words"),
    ("echo 1 -o README.md LICENSE | xargs sort -k", "xargs can add several words"),
    ("x='a -delete'; find . -name $x", "an expansion or a pattern can become several words"),
    ("echo a -delete | xargs find . -name", "xargs can add several words"),
    ("find . -name [*-]*", "an expansion or a pattern can become several words"),
    ("echo 1 --output=README.md | xargs git log --since", "xargs can add several words"),
]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project_with_traps(tmp_path)


@pytest.mark.parametrize(("line", "reason"), LINES, ids=[repr(line) for line, _ in LINES])
def test_a_harmful_find_or_xargs_requires_approval(project: Path, line: str, reason: str) -> None:
    assert verdict(project, line).decision == "ask", reason or "not harmless"
