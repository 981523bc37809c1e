"""Commands that nobody approved, run through the command line in the sandbox that this machine offers. It must be a full one."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import NO_TERMINAL, HomeCli, wait_until
from terminal import Terminal

from backburner.execution.sandbox_ending import monitor_of
from backburner.system import processes

GIT = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]


def git(folder: Path, *words: str) -> str:
    return subprocess.run([*GIT, "-C", str(folder), *words], check=True, capture_output=True, text=True).stdout


@pytest.fixture(params=["bubblewrap", "sandbox starter"])
def project(home_cli: HomeCli, request: pytest.FixtureRequest) -> Path:
    """A git repository that is not trusted, with a secret, protected files, and a home directory of the user.

    The first sandboxed command of an engine is started by bubblewrap, later ones by the sandbox starter, unless only bubblewrap can.
    """
    home_cli.configure(NO_TERMINAL)
    if request.param == "sandbox starter":
        home_cli.await_sandbox_starter()
    home = Path(home_cli.environ["HOME"])
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh/id_ed25519").write_text("CANARY-KEY\n")
    (home / ".gitconfig").write_text('[user]\n\tname = A\n\temail = a@b\n[credential]\n\thelper = "!touch /"\n')
    git(home_cli.cwd, "init", "-q")
    (home_cli.cwd / "a.txt").write_text("one\n")
    (home_cli.cwd / ".vscode").mkdir()
    (home_cli.cwd / ".vscode/settings.json").write_text("{}")
    git(home_cli.cwd, "add", ".")
    git(home_cli.cwd, "commit", "-q", "-m", "first")
    (home_cli.cwd / ".env").write_text("KEY=CANARY-ENV\n")
    return home_cli.cwd


@pytest.fixture
def trusted(home_cli: HomeCli, project: Path) -> Path:
    home_cli.ok("trust")
    return project


@pytest.fixture
def listener() -> Iterator[tuple[int, list[bytes]]]:
    """A TCP port of this machine, and what it receives."""
    received: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    received.append(connection.recv(100))
                    connection.sendall(b"HTTP/1.0 200 OK\r\n\r\nCANARY-TCP")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1], received
        server.shutdown(socket.SHUT_RDWR)
    thread.join(5)


def script(project: Path, text: str, name: str = "run.py") -> list[str]:
    """A script of the project: the gate does not read it."""
    (project / name).write_text(text)
    return ["python3" if name.endswith(".py") else "sh", name]


def last(home_cli: HomeCli) -> dict[str, object]:
    return home_cli.status("last")


def test_this_machine_offers_a_full_sandbox(home_cli: HomeCli) -> None:
    """The other tests in this folder need it. Without user namespaces or bubblewrap they fail rather than test nothing."""
    shown = home_cli.cli("doctor").stdout
    assert "sandbox: full" in shown and "read-only" not in shown and "servers" not in shown, shown


def test_a_command_sees_little_of_the_machine(home_cli: HomeCli, project: Path) -> None:
    text = f"""
import os, subprocess
def shown(path):
    try:
        return os.listdir(path)
    except OSError as error:
        return type(error).__name__
print(open(".env").read() == "", shown(os.path.expanduser("~/.ssh")), sorted(shown(os.path.expanduser("~"))), shown("{home_cli.root}"))
print([name for name in os.environ if "SECRET" in name], os.environ["GIVEN"], len([name for name in os.listdir("/proc") if name.isdigit()]) < 10)
"""
    words = script(project, text)
    done = home_cli.cli("run", "--wait", "--env", "GIVEN=yes", "--", *words, env={"MY_SECRET": "CANARY"})
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == "True FileNotFoundError ['.cache', '.gitattributes', '.gitconfig'] ['tasks']"
    assert second == "[] yes True"


def test_gradle_can_write_its_state_which_is_discarded(home_cli: HomeCli, trusted: Path) -> None:
    state = Path(home_cli.environ["HOME"]) / ".gradle"
    (state / "daemon").mkdir(parents=True)
    (state / "daemon/registry").write_text("outside\n")
    (state / "gradle.properties").write_text("password=CANARY\n")
    words = script(
        trusted,
        "cat ~/.gradle/*.properties\necho inside >> ~/.gradle/daemon/registry && touch ~/.gradle/x && cat ~/.gradle/daemon/registry",
        "run.sh",
    )
    done = home_cli.cli("run", "--wait", "--", *words)
    assert (done.returncode, done.stdout) == (0, "outside\ninside\n"), done.stderr
    assert sorted(os.listdir(state)) == ["daemon", "gradle.properties"] and (state / "daemon/registry").read_text() == "outside\n"


def test_a_command_gets_no_open_files_but_its_streams(home_cli: HomeCli, project: Path) -> None:
    """An open folder would be a way out of the sandbox."""
    git(project, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(project), "sub")
    words = script(project, "import os\nprint([number for number in range(3, 1000) if os.path.exists(f'/proc/self/fd/{number}')])\n")
    assert home_cli.ok("run", "--wait", "--", *words) == "[]\n"
    home_cli.ok("trust")
    assert home_cli.ok("run", "--wait", "--", *words) == "[]\n"
    assert home_cli.ok("run", "--wait", "--", "ls", "/proc/self/fd").split() == ["0", "1", "2", "3"]
    task_id = home_cli.ok("run", "--ready-when", r"\[", "--", *words).strip()
    home_cli.ok("wait", task_id)
    assert home_cli.log(task_id) == b"[]\n"


def test_changes_are_made_to_a_copy_and_applied_after_an_approval(home_cli: HomeCli, project: Path) -> None:
    done = home_cli.cli("run", "--wait", "--shell", "--", "echo two > a.txt; echo new > b.txt; mkdir d; echo x > d/x; cat a.txt")
    assert (done.returncode, done.stdout) == (0, "two\n")
    assert (project / "a.txt").read_text() == "one\n" and not (project / "b.txt").exists()
    task_id = str(last(home_cli)["task_id"])
    note = f"3 changes to the project are kept in a copy; to apply: backburner apply {task_id}"
    assert last(home_cli)["notes"] == [note]
    for shown in (done.stderr, home_cli.ok("wait", task_id)):
        assert f"{task_id} completed (exit 0, " in shown and shown.endswith(f": two\nNote: {note}\n")
    shown = home_cli.ok("apply", task_id, "--diff")
    assert "-one\n+two" in shown and "+++ b/d/x" in shown
    fingerprint = shown.splitlines()[-1].removeprefix("Fingerprint: ")
    assert home_cli.cli("apply", task_id, "--seen", "0" * 12).returncode == 3
    assert home_cli.ok("apply", task_id, "--seen", fingerprint).startswith("Applied 3 changes")
    assert (project / "a.txt").read_text() == "two\n" and (project / "d/x").read_text() == "x\n"
    assert "no changes" in home_cli.cli("apply", task_id, "--diff").stderr


def test_changes_are_not_applied_to_a_project_that_has_changed(home_cli: HomeCli, project: Path) -> None:
    home_cli.ok("run", "--wait", "--shell", "--", "echo two > a.txt; echo new > b.txt")
    (project / "a.txt").write_text("edited\n")
    fingerprint = home_cli.ok("apply", "last", "--diff").splitlines()[-1].removeprefix("Fingerprint: ")
    done = home_cli.cli("apply", "last", "--seen", fingerprint)
    assert done.returncode == 1 and "a.txt" in done.stderr
    assert (project / "a.txt").read_text() == "edited\n" and not (project / "b.txt").exists()


def test_an_agent_cannot_apply_changes(home_cli: HomeCli, project: Path) -> None:
    home_cli.ok("run", "--wait", "--shell", "--", "echo two > a.txt")
    fingerprint = home_cli.ok("apply", "last", "--diff").splitlines()[-1].removeprefix("Fingerprint: ")
    done = home_cli.cli("apply", "last", "--seen", fingerprint, env={"CLAUDECODE": "1"})
    assert done.returncode == 3 and (project / "a.txt").read_text() == "one\n"


def test_a_trusted_project_is_writable_but_for_git_and_protected_files(home_cli: HomeCli, trusted: Path) -> None:
    lines = (
        "echo two > a.txt",
        "echo x > .git/config",
        "echo x > .git/hooks/pre-commit",
        "mv .git .g",
        "echo x > .vscode/settings.json",
        "rm -rf .vscode",
        "echo x > .env",
    )
    words = script(trusted, "\n".join(lines) + "\nexit 0\n", "run.sh")
    before = {
        path: path.read_bytes() for path in [*trusted.rglob(".git/*"), *trusted.rglob(".vscode/*"), trusted / ".env"] if path.is_file()
    }
    assert home_cli.cli("run", "--wait", "--", *words).returncode == 0
    assert (trusted / "a.txt").read_text() == "two\n"
    assert {path: path.read_bytes() for path in before} == before and not (trusted / ".git/hooks/pre-commit").exists()


def test_new_files_that_other_programs_use_are_moved_away(home_cli: HomeCli, trusted: Path) -> None:
    (trusted / "sub/.vscode").mkdir(parents=True)
    (trusted / "sub/.vscode/settings.json").write_text("{}")
    (trusted / ".claude").symlink_to("a.txt")
    planted = "rm .claude; ln -s b.txt .claude; mkdir -p .idea deep/.git/hooks; echo x > .idea/a; echo x > deep/.git/hooks/post-checkout; echo x > .mcp.json\n"
    swapped = "mv sub other; mkdir -p sub/.vscode; echo x > sub/.vscode/tasks.json; echo done > fine.txt\n"
    words = script(trusted, planted + swapped, "run.sh")
    assert home_cli.cli("run", "--wait", "--", *words).returncode == 0
    names = (".idea", "deep/.git", ".mcp.json", "sub/.vscode", ".claude")
    assert [name for name in names if os.path.lexists(trusted / name)] == []
    assert (trusted / "fine.txt").exists() and (home_cli.folder(str(last(home_cli)["task_id"])) / "removed/.idea/a").exists()
    notes = last(home_cli)["notes"]
    assert isinstance(notes, list) and len(notes) >= 4 and all("other programs use automatically" in note for note in notes)


REPOSITORY = "mkdir -p src/objects src/refs; echo 'ref: refs/heads/main' > src/HEAD; printf '[core]\\n\\tbare = false\\n\\tworktree = .\\n\\tfsmonitor = touch planted\\n' > src/config"


def test_a_folder_that_git_takes_for_a_repository_is_none_after_the_run(home_cli: HomeCli, trusted: Path) -> None:
    home_cli.ok("run", "--wait", "--shell", "--", REPOSITORY)
    assert "removed src/HEAD" in home_cli.ok("status", "last")
    git(trusted, "-C", "src", "status")
    assert not list(trusted.rglob("planted"))
    assert git(trusted, "-C", "src", "rev-parse", "--show-toplevel").strip() == str(trusted)


@pytest.mark.parametrize("place", ["target", "node_modules/x", "of a sandbox"])
def test_a_link_to_a_repository_in_a_folder_that_is_not_searched_is_moved_away(home_cli: HomeCli, trusted: Path, place: str) -> None:
    (trusted / "lib").mkdir()
    (trusted / "kept").symlink_to("lib")
    made = place if place != "of a sandbox" else "/tmp/x"
    line = REPOSITORY.replace("src/", f"{made}/")
    if place == "of a sandbox":
        home_cli.ok("run", "--wait", "--", *script(trusted, "open('/tmp/mark', 'w')"))
        (mark,) = (home_cli.root / "sandbox/tmp").glob("*/mark")
        place = f"{mark.parent}/x"
    home_cli.ok("run", "--wait", "--", *script(trusted, f"{line}; ln -s {place} linked", "make.sh"))
    assert not (trusted / "linked").is_symlink() and (trusted / "kept").is_symlink()


def test_a_repository_of_the_project_stays_and_runs_nothing_new(home_cli: HomeCli, trusted: Path) -> None:
    git(trusted, "init", "-q", "--bare", "fixture")
    before = (trusted / "fixture/config").read_text()
    home_cli.cli(
        "run", "--wait", "--shell", "--", "echo '[core]' >> fixture/config; echo x > fixture/hooks/update; echo y > fixture/commondir"
    )
    assert (trusted / "fixture/config").read_text() == before
    assert not (trusted / "fixture/hooks/update").exists() and not (trusted / "fixture/commondir").exists()
    assert git(trusted / "fixture", "rev-parse", "--is-bare-repository").strip() == "true"


def test_git_does_not_complete_a_repository(home_cli: HomeCli, trusted: Path) -> None:
    """The other files are in a commit, and HEAD is a file that git does not track."""
    git(trusted, "checkout", "-q", "-b", "topic")
    for name in ("objects/x", "refs/x", "config"):
        (trusted / "src" / name).parent.mkdir(parents=True, exist_ok=True)
        (trusted / "src" / name).write_text("x\n")
    git(trusted, "add", "src")
    git(trusted, "commit", "-q", "-m", "two")
    git(trusted, "checkout", "-q", "main")
    (trusted / "src").mkdir()
    (trusted / "src/HEAD").write_text("ref: refs/heads/main\n")
    home_cli.ok("run", "--wait", "--", "git", "switch", "-q", "topic")
    assert not (trusted / "src/HEAD").exists()


def test_a_command_that_plants_a_file_with_an_unprintable_name_ends_like_any_other(home_cli: HomeCli, trusted: Path) -> None:
    task_id = home_cli.ok("run", "--", *script(trusted, "import os\nos.makedirs(b'a\\xff\\nb/.idea')\n")).strip()
    wait_until(lambda: home_cli.status(task_id)["status"] == "completed", "it to end")
    notes = home_cli.status(task_id)["notes"]
    assert isinstance(notes, list) and len(notes) == 1 and notes[0].startswith("removed a\\udcff\\nb/.idea, which")


def test_what_is_left_in_a_sandbox_ends_with_its_command(home_cli: HomeCli, trusted: Path) -> None:
    words = script(trusted, "setsid sh -c 'sleep 2; mkdir .idea' >/dev/null 2>&1 & exit 0\n", "run.sh")
    assert home_cli.cli("run", "--wait", "--", *words).returncode == 0
    assert not [process for process in home_cli.processes() if b"sleep 2" in Path(f"/proc/{process.pid}/cmdline").read_bytes()]


def test_a_line_with_a_command_in_the_background_ends_with_it(home_cli: HomeCli, trusted: Path) -> None:
    done = home_cli.cli("run", "--wait", "--shell", "--", "(sleep 0.3; echo late > late.txt) & echo first; false")
    assert (done.returncode, done.stdout) == (1, "first\n") and (trusted / "late.txt").exists()


def test_there_is_no_network(home_cli: HomeCli, project: Path, listener: tuple[int, list[bytes]]) -> None:
    port, received = listener
    code = f"import socket\ntry:\n    socket.create_connection(('127.0.0.1', {port}), 2)\nexcept OSError as error:\n    print(type(error).__name__)\n"
    done = home_cli.cli("run", "--wait", "--", *script(project, code))
    assert done.stdout == "ConnectionRefusedError\n" and received == []


def test_a_server_of_a_trusted_project_can_be_reached_but_cannot_connect(
    home_cli: HomeCli, trusted: Path, listener: tuple[int, list[bytes]]
) -> None:
    port, received = listener
    text = f"""
import socket
server = socket.create_server(("127.0.0.1", 0))
print("port", server.getsockname()[1], flush=True)
for kind, target in ((socket.SOCK_STREAM, ("127.0.0.1", {port})), (socket.SOCK_DGRAM, ("127.0.0.1", {port}))):
    try:
        with socket.socket(socket.AF_INET, kind) as client:
            client.connect(target)
            client.send(b"x")
            print("sent", flush=True)
    except OSError as error:
        print(error.strerror, flush=True)
connection, _ = server.accept()
connection.sendall(b"hello")
connection.close()
"""
    task_id = home_cli.ok("run", "--ready-when", "port", "--", *script(trusted, text)).strip()
    home_cli.ok("wait", "--ready", "--timeout", "20", task_id)
    wait_until(lambda: len(home_cli.log(task_id).splitlines()) == 3, "its lines")
    first, *refused = home_cli.log(task_id).decode().splitlines()
    assert refused == ["Permission denied", "Permission denied"] and received == []
    with socket.create_connection(("127.0.0.1", int(first.split()[1])), 5) as client:
        assert client.recv(10) == b"hello"
    home_cli.ok("wait", task_id)


def test_a_server_that_cannot_be_reached_says_so(home_cli: HomeCli, project: Path) -> None:
    text = "import socket\nserver = socket.create_server(('127.0.0.1', 8000))\nprint('port', flush=True)\nserver.accept()"
    task_id = home_cli.ok("run", "--ready-when", "8000", "--", *script(project, text)).strip()
    ready = home_cli.ok("wait", "--ready", "--timeout", "20", task_id)
    assert ready == f"{task_id} ready, listening on 8000 (only inside its sandbox; servers can be reached in trusted projects)\n"
    assert "Listening on: 8000 (only inside its sandbox" in home_cli.ok("status", task_id)
    home_cli.ok("cancel", task_id)


def test_curl_reads_a_port_of_this_machine_in_a_trusted_project(
    home_cli: HomeCli, trusted: Path, listener: tuple[int, list[bytes]]
) -> None:
    port, _ = listener
    assert home_cli.ok("run", "--wait", "--", "curl", "-s", f"http://127.0.0.1:{port}/").strip() == "CANARY-TCP"
    assert home_cli.cli("check", "--", "curl", "-s", "-d", "x", f"http://127.0.0.1:{port}/").returncode == 3


def test_an_answer_of_this_machine_is_stored_in_a_trusted_project(
    home_cli: HomeCli, trusted: Path, listener: tuple[int, list[bytes]]
) -> None:
    line = f"for i in 1 2 3; do curl -sf localhost:{listener[0]} -o answer.txt && break; sleep 1; done"
    home_cli.ok("run", "--wait", "--shell", "--", line)
    assert (trusted / "answer.txt").read_text() == "CANARY-TCP"


def test_a_line_reaches_only_what_it_starts_in_the_background(home_cli: HomeCli, trusted: Path, listener: tuple[int, list[bytes]]) -> None:
    (trusted / "serve.py").write_text(
        "import socket\nserver = socket.create_server(('127.0.0.1', 8000))\nopen('ready', 'w').close()\n"
        "connection, _ = server.accept()\nconnection.recv(100)\nconnection.sendall(b'HTTP/1.0 200 OK\\r\\n\\r\\nmine')\n"
    )
    line = f"python3 serve.py & while [ ! -e ready ]; do sleep 0.1; done; curl -s localhost:8000; curl -s localhost:{listener[0]} || true; wait"
    assert home_cli.cli("run", "--wait", "--shell", "--", line).stdout.strip() == "mine"
    assert listener[1] == []


def test_a_port_in_the_settings_can_be_connected_to(home_cli: HomeCli, trusted: Path, listener: tuple[int, list[bytes]]) -> None:
    port, _ = listener
    home_cli.configure(f"{NO_TERMINAL}[sandbox]\nconnect = [{port}]\n")
    code = f"import socket\nclient = socket.create_connection(('127.0.0.1', {port}), 2)\nclient.send(b'x')\nprint(client.recv(100)[-10:])\n"
    assert home_cli.ok("run", "--wait", "--", *script(trusted, code)) == "b'CANARY-TCP'\n"


def test_a_port_is_asked_about_once_per_project(home_cli: HomeCli, trusted: Path, listener: tuple[int, list[bytes]]) -> None:
    port, _ = listener
    code = f"import socket\ntry:\n    client = socket.create_connection(('127.0.0.1', {port}), 2)\nexcept OSError as error:\n    raise SystemExit(f'connect to 127.0.0.1:{port}: {{error.strerror}}')\nclient.send(b'x')\nprint(client.recv(100)[-10:])\n"
    words = script(trusted, code)
    done = home_cli.cli("run", "--wait", "--", *words)
    assert done.returncode == 3 and f"backburner trust --connect {port}" in done.stderr
    assert home_cli.cli("run", "--wait", "--", *words).returncode == 3, "the same command is not tried in the same sandbox again"
    assert home_cli.cli("trust", "--connect", "70000").returncode == 2
    assert home_cli.cli("trust", "--connect", str(port), env={"CLAUDECODE": "1"}).returncode == 3
    assert f"may now connect to port {port}" in home_cli.ok("trust", "--connect", str(port))
    assert home_cli.ok("run", "--wait", "--", *words) == "b'CANARY-TCP'\n"
    assert home_cli.ok("run", "--wait", "--", "python3", "./run.py") == "b'CANARY-TCP'\n", "other commands of the project may connect too"
    listed = home_cli.ok("trust", "--list").splitlines()
    assert f"may connect to port {port}" in listed[1]
    home_cli.ok("trust", "--revoke", listed[1].split()[0])
    assert home_cli.cli("run", "--wait", "--", *words).returncode == 3


def test_the_question_about_a_port_can_be_answered_at_the_terminal(
    home_cli: HomeCli, trusted: Path, listener: tuple[int, list[bytes]]
) -> None:
    port, _ = listener
    code = f"import asyncio\nreader, writer = asyncio.run(asyncio.open_connection('127.0.0.1', {port}))\nprint('connected')\n"
    command = [sys.executable, "-m", "backburner", "run", "--wait", "--", *script(trusted, code)]
    with Terminal(command, cwd=trusted, env=home_cli.environ) as terminal:
        terminal.wait("Run it without the sandbox? [y/n, c: permit this project to connect to port")
        terminal.type("c\r")
        assert terminal.ended() == 0
        assert "connected" in terminal.text


@pytest.mark.parametrize(
    "line", ["bash -c 'missing-program'", "ls | xargs missing-program", "timeout 5 missing-program", "jq . x.json | missing-program"]
)
def test_a_program_that_is_missing_everywhere_is_not_offered(home_cli: HomeCli, project: Path, line: str) -> None:
    done = home_cli.cli("run", "--wait", "--shell", "--", line)
    assert done.returncode == 127 and "because of the sandbox" not in done.stderr


def test_a_command_that_failed_because_of_the_sandbox_is_offered_without_it(home_cli: HomeCli, project: Path) -> None:
    words = ("python3", "-c", "import socket; place = ('192.0.2.1', 80); socket.create_connection(place, 2)")
    done = home_cli.cli("run", "--wait", "--", *words)
    task_id = done.stderr.splitlines()[0].strip()
    assert done.returncode == 3 and f"backburner approve {task_id}_outside" in done.stderr
    assert home_cli.status(task_id)["status"] == "failed" and home_cli.status(f"{task_id}_outside")["status"] == "proposed"
    assert home_cli.status(f"{task_id}_outside")["restarted_from"] == task_id
    again = home_cli.cli("run", "--wait", "--", *words)
    assert (again.returncode, again.stdout.strip()) == (3, f"{task_id}_outside"), "one question for one command"
    other = home_cli.cli("run", "--wait", "--env", "A=1", "--", *words)
    assert other.returncode == 3 and home_cli.status(other.stdout.strip())["status"] == "proposed", "another question for another command"
    assert "to run it without the sandbox" in home_cli.ok("status", task_id).lower()


def test_a_command_that_fails_outside_as_well_runs_in_the_sandbox_again(home_cli: HomeCli, project: Path) -> None:
    words = script(project, "raise SystemExit('connect: Network is unreachable')")
    done = home_cli.cli("run", "--wait", "--", *words)
    task_id = done.stderr.splitlines()[0].strip()
    assert done.returncode == 3 and home_cli.cli("check", "--", *words).returncode == 3
    home_cli.ok("approve", f"{task_id}_outside")
    home_cli.cli("wait", f"{task_id}_outside")
    assert home_cli.ok("check", "--", *words).startswith("sandbox:")


def test_a_label_means_the_failed_command_and_to_approve_it_means_its_offer(home_cli: HomeCli, project: Path) -> None:
    words = script(project, "raise SystemExit('connect: Network is unreachable')")
    task_id = home_cli.cli("run", "--wait", "--name", "net", "--", *words).stderr.splitlines()[0].strip()
    assert [home_cli.status(reference)["task_id"] for reference in ("net", "last", task_id[5:20])] == [task_id] * 3
    assert home_cli.ok("approve", "net") == f"Task {task_id}_outside approved.\n"
    home_cli.cli("wait", f"{task_id}_outside")
    assert home_cli.status("net")["task_id"] == f"{task_id}_outside"


def test_an_ordinary_failure_is_not_blamed_on_the_sandbox(home_cli: HomeCli, project: Path) -> None:
    done = home_cli.cli("run", "--wait", "--shell", "--", "grep nothing a.txt; ls missing")
    assert done.returncode == 2 and "sandbox" not in done.stderr


def test_git_commands_that_add_to_the_repository(home_cli: HomeCli, trusted: Path) -> None:
    (trusted / "b.txt").write_text("b\n")
    assert home_cli.cli("run", "--wait", "--shell", "--", "git add b.txt && git commit -q -m second").returncode == 0
    assert git(trusted, "log", "--format=%s %an") == "second A\nfirst a\n"
    for words in (("tag", "v1"), ("checkout", "-q", "-b", "topic"), ("stash",)):
        assert home_cli.cli("run", "--wait", "--", "git", *words).returncode == 0, words
    hook = trusted / ".git/hooks/pre-commit"
    hook.write_text("#!/bin/sh\n")
    hook.chmod(0o755)
    assert home_cli.cli("run", "--", "git", "commit", "-m", "x").returncode == 3


def test_git_merges_and_moves_branches(home_cli: HomeCli, trusted: Path) -> None:
    git(trusted, "checkout", "-q", "-b", "topic")
    (trusted / "b.txt").write_text("two\n")
    git(trusted, "add", "b.txt")
    git(trusted, "commit", "-q", "-m", "second")
    for line in ("checkout main", "cherry-pick topic", "revert --no-edit HEAD", "merge --no-ff topic", "reset --soft HEAD~1"):
        done = home_cli.cli("run", "--wait", "--", "git", *line.split())
        assert done.returncode == 0, (line, done.stdout, done.stderr)
    assert git(trusted, "log", "--format=%s") == 'Revert "second"\nsecond\nfirst\n'
    assert (trusted / "b.txt").read_text() == "two\n"
    assert home_cli.cli("run", "--", "git", "mv", "a.txt", ".mcp.json").returncode == 3
    assert not (trusted / ".mcp.json").exists()


def test_a_rebase_and_a_merge_continue_after_a_conflict(home_cli: HomeCli, trusted: Path) -> None:
    git(trusted, "checkout", "-q", "-b", "topic")
    (trusted / "a.txt").write_text("topic\n")
    git(trusted, "commit", "-q", "-am", "topic")
    git(trusted, "checkout", "-q", "main")
    (trusted / "a.txt").write_text("main\n")
    git(trusted, "commit", "-q", "-am", "main")
    _continue_after_conflict(home_cli, trusted, "merge", "topic")
    assert git(trusted, "log", "-1", "--format=%s").strip() == "Merge branch 'topic'"
    git(trusted, "reset", "-q", "--hard", "HEAD~1")
    git(trusted, "checkout", "-q", "topic")
    _continue_after_conflict(home_cli, trusted, "rebase", "main")
    assert git(trusted, "log", "-2", "--format=%s").split() == ["topic", "main"]
    home_cli.ok("run", "--wait", "--", "git", "notes", "add", "-m", "seen")
    assert git(trusted, "notes", "show").strip() == "seen"


def _continue_after_conflict(home_cli: HomeCli, project: Path, verb: str, branch: str) -> None:
    assert home_cli.cli("run", "--wait", "--", "git", verb, branch).returncode == 1
    (project / "a.txt").write_text("both\n")
    home_cli.ok("run", "--wait", "--", "git", "add", "a.txt")
    home_cli.ok("run", "--wait", "--", "git", verb, "--continue")
    assert git(project, "status", "--porcelain", "--untracked-files=no") == ""


def test_a_line_posts_to_its_own_server_and_ends_it(home_cli: HomeCli, trusted: Path, listener: tuple[int, list[bytes]]) -> None:
    port, received = listener
    server = (
        "import http.server as h\n"
        "class Handler(h.BaseHTTPRequestHandler):\n"
        "    def do_POST(self):\n"
        "        self.send_response(200); self.end_headers(); self.wfile.write(b'own ' + self.rfile.read(int(self.headers['content-length'])))\n"
        f"h.HTTPServer(('127.0.0.1', {port}), Handler).serve_forever()\n"
    )
    (trusted / "server.py").write_text(server)
    line = (
        f"python3 server.py 2>/dev/null & PID=$!; "
        f"curl -s --retry 50 --retry-connrefused --retry-delay 0 -X POST -d hello http://localhost:{port}/; kill $PID"
    )
    done = home_cli.cli("run", "--wait", "--shell", "--", line)
    assert "own hello" in done.stdout, done.stdout + done.stderr
    assert received == []


def test_a_secret_that_git_tracks_as_an_empty_file_is_hidden(home_cli: HomeCli, trusted: Path) -> None:
    assert home_cli.cli("run", "--", "git", "add", "-A").returncode == 3, "it would add the secret"
    git(trusted, "add", "--intent-to-add", ".env")
    assert home_cli.ok("run", "--wait", "--", *script(trusted, "print(repr(open('.env').read()))")).strip() == "''"


def test_git_reads_in_a_worktree(home_cli: HomeCli, project: Path) -> None:
    other = project.parent / "linked"
    git(project, "worktree", "add", "-q", str(other))
    done = home_cli.cli("run", "--wait", "--shell", "--", "git status --short; git log --format=%s; echo x > .git", cwd=other)
    assert done.returncode == 3, "it would write .git"
    done = home_cli.cli("run", "--wait", "--shell", "--", "git status --short; git log --format=%s", cwd=other)
    assert (done.returncode, done.stdout) == (0, "first\n")


def test_passwords_in_git_settings_are_not_shown(home_cli: HomeCli, project: Path) -> None:
    git(project, "remote", "add", "origin", "https://me:CANARY-TOKEN@example.org/x.git")
    done = home_cli.cli("run", "--wait", "--shell", "--", "git remote -v; grep -r CANARY .git; grep -rh url .git; true")
    assert done.returncode == 0 and "CANARY" not in done.stdout and "https://example.org/x.git" in done.stdout


def test_tracked_files_are_not_hidden(home_cli: HomeCli, project: Path) -> None:
    (project / "server.pem").write_text("for tests\n")
    git(project, "add", "server.pem")
    assert home_cli.ok("run", "--wait", "--", *script(project, "print(open('server.pem').read())")).strip() == "for tests"


def test_variables_of_the_command_do_not_reach_the_programs_outside(home_cli: HomeCli, project: Path, tmp_path: Path) -> None:
    """The shim and bubblewrap are not confined, so they must not be started with LD_PRELOAD and the like."""
    source, library = tmp_path / "x.c", project / "x.so"
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler, "this test needs a C compiler"
    source.write_text(f'#include <stdio.h>\n__attribute__((constructor)) void f(void) {{ fclose(fopen("{tmp_path}/canary", "w")); }}\n')
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    home_cli.cli("run", "--wait", "--env", f"LD_PRELOAD={library}", "--env", "ENV=./x", "--", "true")
    assert not (tmp_path / "canary").exists()


def test_a_cancelled_command_has_its_own_exit_code(home_cli: HomeCli, project: Path) -> None:
    words = script(project, "trap 'exit 7' TERM\necho ready\nwhile :; do sleep 0.05; done\n", "run.sh")
    task_id = home_cli.ok("run", "--", *words).strip()
    wait_until(lambda: home_cli.log(task_id) == b"ready\n", "it to run")
    home_cli.ok("cancel", task_id)
    assert (home_cli.status(task_id)["status"], home_cli.status(task_id)["exit_code"]) == ("cancelled", 7)
    task_id = home_cli.ok("run", "--", "sleep", "600").strip()
    wait_until(lambda: home_cli.status(task_id)["pid"], "it to run")
    home_cli.ok("cancel", task_id)
    assert home_cli.status(task_id)["exit_code"] == 128 + 15


@pytest.mark.parametrize("others", [0, 1])
def test_a_cancelled_command_has_its_own_exit_code_even_if_its_monitor_is_slow(home_cli: HomeCli, project: Path, others: int) -> None:
    """Without others, the engine itself starts the command; otherwise its log writer does. With an input, it needs bubblewrap."""
    other = home_cli.ok("run", "--", "sleep", "600").strip() if others else ""
    wait_until(lambda: not other or home_cli.status(other)["pid"], "the other command to run")
    words = script(project, "trap 'exit 7' TERM\necho ready\nwhile :; do sleep 0.05; done\n", "run.sh")
    task_id = home_cli.ok("run", "--stdin", "--", *words).strip()
    wait_until(lambda: home_cli.log(task_id) == b"ready\n", "it to run")
    wait_until(lambda: home_cli.status(task_id)["pid"], "its process to be recorded")
    monitor = monitor_of(processes.members(None, processes.tag_of(home_cli.status(task_id)["pid"]) or ""))
    assert monitor
    os.kill(monitor.pid, signal.SIGSTOP)
    home_cli.ok("cancel", task_id, *filter(None, [other]))
    assert (home_cli.status(task_id)["status"], home_cli.status(task_id)["exit_code"]) == ("cancelled", 7)


def test_a_command_stays_confined_when_the_engine_is_killed(home_cli: HomeCli, trusted: Path) -> None:
    text = "echo ready; read x; touch /usr/x 2>/dev/null && echo escaped; echo x > .git/y; cat .env; mkdir .idea; exit 5\n"
    task_id = home_cli.ok("run", "--yes", "--stdin", "--", "true").strip()  # starts the engine
    task_id = home_cli.ok(
        "run", "--name", "held", "--", *script(trusted, text.replace("read x;", "while [ ! -e go ]; do sleep 0.05; done;"), "run.sh")
    ).strip()
    wait_until(lambda: home_cli.log(task_id) == b"ready\n", "it to run")
    home_cli.kill_engine()
    (trusted / "go").write_text("")
    home_cli.cli("wait", task_id)
    found = home_cli.status(task_id)
    assert (found["status"], found["exit_code"]) == ("failed", 5)
    assert "escaped" not in str(found["output"]) and "CANARY" not in str(found["output"]) and not (trusted / ".git/y").exists()
    assert not (trusted / ".idea").exists()


def test_without_a_sandbox_every_command_asks(home_cli: HomeCli, project: Path) -> None:
    home_cli.configure(f'{NO_TERMINAL}[sandbox]\nlevel = "none"\n')
    assert home_cli.cli("run", "--", "ls").returncode == 3
    assert "sandbox: none" in home_cli.cli("doctor").stdout


def test_a_sandbox_that_is_not_available_any_more_asks(home_cli: HomeCli, project: Path) -> None:
    task_id = home_cli.ok("run", "--in", "1s", "--", "ls").strip()
    home_cli.configure(f'{NO_TERMINAL}[sandbox]\nlevel = "none"\n')
    wait_until(lambda: home_cli.status(task_id)["status"] == "waiting", "it to ask")
    assert "no sandbox" in str(home_cli.status(task_id)["error"])


def test_with_landlock_alone_the_project_is_read_only(home_cli: HomeCli, project: Path, listener: tuple[int, list[bytes]]) -> None:
    home_cli.configure(f'{NO_TERMINAL}[sandbox]\nlevel = "partial"\n')
    port, received = listener
    text = f"""
import os, socket, tempfile
def tried(act):
    try:
        act()
        return "done"
    except OSError as error:
        return type(error).__name__
outside = os.environ["BACKBURNER_HOME"]
print(open("a.txt").read().strip(), tempfile.mkstemp() and "temporary")
print([tried(act) for act in (
    lambda: open("a.txt", "w"), lambda: open(".env"), lambda: os.listdir(outside), lambda: open("{project.parent}/person/.ssh/id_ed25519"),
    lambda: socket.create_connection(("127.0.0.1", {port})), lambda: socket.socket(socket.AF_UNIX), lambda: os.kill({os.getpid()}, 0))])
"""
    done = home_cli.cli("run", "--wait", "--", *script(project, text))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["one temporary", str(["PermissionError"] * 7)] and received == []
    assert home_cli.cli("run", "--shell", "--", "echo x > a.txt").returncode == 3


def test_with_landlock_alone_each_start_sees_the_files_of_now(home_cli: HomeCli, project: Path) -> None:
    """The rules for the machine are kept between two starts."""
    home_cli.configure(f'{NO_TERMINAL}[sandbox]\nlevel = "partial"\n')
    tools = Path(home_cli.environ["HOME"]) / ".cargo"
    tools.mkdir()
    (tools / "tool").write_text("a tool\n")
    words = script(project, f"cat a.txt {tools}/tool {tools}/credentials.toml other/output.log 2>&1; true\n", "run.sh")
    first = home_cli.cli("run", "--wait", "--", *words)
    assert [line.rpartition(": ")[2] for line in first.stdout.splitlines()] == ["one", "a tool", *["No such file or directory"] * 2]
    (tools / "credentials.toml").write_text("CANARY\n")
    shutil.copytree(project, project.parent / "copy", symlinks=True)
    project.rename(project.parent / "old")
    (project.parent / "copy").rename(project)
    (project / "other").symlink_to(home_cli.folder(str(last(home_cli)["task_id"])))
    second = home_cli.cli("run", "--wait", "--", *words)
    assert [line.rpartition(": ")[2] for line in second.stdout.splitlines()] == ["one", "a tool", *["Permission denied"] * 2]


def test_with_landlock_alone_git_reads_in_a_worktree(home_cli: HomeCli, project: Path) -> None:
    home_cli.configure(f'{NO_TERMINAL}[sandbox]\nlevel = "partial"\n')
    other = project.parent / "linked"
    git(project, "worktree", "add", "-q", str(other))
    done = home_cli.cli("run", "--wait", "--shell", "--", "git status --short; git log --format=%s", cwd=other)
    assert (done.returncode, done.stdout) == (0, "first\n")
    text = f"cat {project}/a.txt {project}/.env 2>&1; echo x > {project}/.git/x; true\n"
    done = home_cli.cli("run", "--wait", "--", *script(other, text, "run.sh"), cwd=other)
    assert done.stdout.count("Permission denied") == 3 and "CANARY" not in done.stdout
    assert not (project / ".git/x").exists()


def test_with_landlock_alone_the_secrets_of_a_project_among_the_tools_are_hidden(home_cli: HomeCli, project: Path) -> None:
    home_cli.configure(f'{NO_TERMINAL}[sandbox]\nlevel = "partial"\n')
    inner = Path(home_cli.environ["HOME"]) / "go/src/inner"
    shutil.copytree(project, inner, symlinks=True)
    (inner.parent / "library.go").write_text("a library\n")
    done = home_cli.cli("run", "--wait", "--", *script(inner, "cat a.txt ../library.go .env 2>&1; true\n", "run.sh"), cwd=inner)
    assert done.stdout == "one\na library\ncat: .env: Permission denied\n"


def test_settings_of_the_kernel_cannot_be_changed(home_cli: HomeCli, trusted: Path) -> None:
    """Root owns them, so it could write to them even without capabilities."""
    before = Path("/proc/sys/vm/swappiness").read_text()
    text = f"try:\n    open('/proc/sys/vm/swappiness', 'w').write({before!r})\n    print('written')\nexcept OSError as error:\n    print(type(error).__name__)\n"
    assert "Error" in home_cli.ok("run", "--wait", "--", *script(trusted, text))


def test_programs_of_the_project_are_not_found_where_more_is_permitted(home_cli: HomeCli, trusted: Path) -> None:
    """They could be written by another command after the gate has looked."""
    (trusted / ".venv/bin").mkdir(parents=True)
    (trusted / ".venv/bin/tool").write_text("#!/bin/sh\n")
    (trusted / ".venv/bin/tool").chmod(0o755)
    env = {"PATH": f"{trusted}/.venv/bin:{os.environ['PATH']}"}
    assert home_cli.cli("run", "--wait", "--shell", "--", "which tool", env=env).returncode == 0
    for line in ("ps -p 1; which tool", "git add a.txt && which tool"):
        assert home_cli.cli("run", "--wait", "--shell", "--", line, env=env).returncode == 1, line


def test_the_paths_of_control_groups_are_those_of_the_machine(home_cli: HomeCli, project: Path) -> None:
    """Java finds its memory limit by these paths, and some versions fail if one of them leads upwards."""
    done = home_cli.cli(
        "run", "--wait", "--shell", "--", "cat /proc/self/cgroup; grep -e ' - cgroup' /proc/self/mountinfo | cut -d' ' -f4 | sort -u"
    )
    mounts = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if " - cgroup" in line]
    assert done.stdout.split() == [*Path("/proc/self/cgroup").read_text().split(), *sorted({line.split()[3] for line in mounts})]


@pytest.mark.skipif(not shutil.which("systemctl"), reason="systemctl is not installed")
def test_a_system_that_does_not_answer_is_not_blamed_on_the_sandbox(home_cli: HomeCli, project: Path) -> None:
    """With systemd it answers that there is no such unit; without it, the program fails outside of a sandbox as well."""
    home_cli.cli("run", "--wait", "--", "systemctl", "is-active", "no-such-unit")
    assert "because of the sandbox" not in home_cli.ok("status", "last")


def test_a_program_that_is_missing_everywhere_is_an_ordinary_failure(home_cli: HomeCli, project: Path, tmp_path: Path) -> None:
    done = home_cli.cli("run", "--wait", "--shell", "--", "no-such-program --version")
    assert done.returncode == 127 and "sandbox" not in done.stderr
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "my-tool").write_text("#!/bin/sh\necho here\n")
    (hidden / "my-tool").chmod(0o755)
    path = f"{hidden}:{home_cli.environ['PATH']}"
    (project / "run.sh").write_text("exec my-tool\n")
    assert home_cli.ok("run", "--wait", "--", "sh", "run.sh", env={"PATH": path}) == "here\n", "a folder in PATH is part of the sandbox"


def test_temporary_files_are_the_same_in_both_places(home_cli: HomeCli, trusted: Path) -> None:
    home_cli.ok("run", "--wait", "--", *script(trusted, "open('/var/tmp/a.log', 'w').write('kept')"))
    assert "kept" in home_cli.ok("run", "--wait", "--", "cat", "/tmp/a.log")
    assert not Path("/var/tmp/a.log").exists()
