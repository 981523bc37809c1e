"""Programs that run another command: the command inside is checked as well."""

from pathlib import Path

import pytest

from approval.command_world import make_project_with_traps, verdict

LINES = [
    ("env -C /etc cat passwd", "runs in another directory"),
    ("env --chdir=/etc cat passwd", "runs in another directory"),
    ("env -S 'reboot'", ""),
    ("env - reboot", ""),
    ("nice -5 reboot", ""),
    ("timeout 5s reboot", ""),
    ("nohup reboot", ""),
    ("busybox reboot", ""),
    ("command reboot", ""),
    ("exec -a ls reboot", ""),
    ("eval reboot", ""),
    ("trap reboot EXIT", ""),
    ("trap -- reboot EXIT", ""),
    ("sh -c reboot", ""),
    ("sh -c -- reboot", ""),
    ("sh -ex -o noglob -c reboot", ""),
    ("bash -c --init-file ./run.sh -i ls", "another script runs before the line"),
    ("chrt -o rm ls", "the priority is optional"),
    ("x='5 rm README.md'; nice -n $x ls", "an expansion or a pattern can become several words"),
    ("x='9 5 rm README.md'; timeout -s $x 5 ls", "an expansion or a pattern can become several words"),
    ("x='L rm README.md'; stdbuf -o $x ls", "an expansion or a pattern can become several words"),
    ("x='1 rm README.md'; ionice -n $x ls", "an expansion or a pattern can become several words"),
    ("x='X rm README.md'; env -u $x ls", "an expansion or a pattern can become several words"),
    ("x='ls rm README.md'; exec -a $x ls", "an expansion or a pattern can become several words"),
    ("nice -n * ls", "an expansion or a pattern can become several words"),
    ("nice -n [+-]* ls", "an expansion or a pattern can become several words"),
]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project_with_traps(tmp_path)


@pytest.mark.parametrize(("line", "reason"), LINES, ids=[repr(line) for line, _ in LINES])
def test_a_wrapped_command_requires_approval(project: Path, line: str, reason: str) -> None:
    assert verdict(project, line).decision == "ask", reason or "not harmless"
