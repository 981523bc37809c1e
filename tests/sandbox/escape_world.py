"""A world in which an attempt to leave the sandbox leaves a trace: canaries in files, listeners, a process, and a repository."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import threading
from pathlib import Path
from typing import NamedTuple

from backburner.approval.effects import PROTECTED

ATTEMPTS = Path(__file__).parent / "escape_attempts.tsv"
_HARMLESS_WORDS = ("CANARY-GITCONFIG",)  # printed if git has any settings of the user: in a sandbox these are name and address
_GIT = ("git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main", "-c", "protocol.file.allow=always")


class Attempt(NamedTuple):
    name: str
    goal: str
    trust: str
    line: str


def attempts() -> list[Attempt]:
    """Every attempt of the table."""
    rows = [row.split("\t") for row in ATTEMPTS.read_text(encoding="utf-8", errors="surrogateescape").split("\n") if row]
    return [Attempt(name, goal, trust, _unescaped(line)) for name, goal, trust, line in rows]


def _unescaped(text: str) -> str:
    pieces = text.split("\\\\")
    return "\\".join(piece.replace("\\n", "\n").replace("\\t", "\t") for piece in pieces)


def git(folder: Path, *words: str, home: Path | None = None) -> None:
    environ = {"PATH": os.environ["PATH"], "HOME": str(home or folder), "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    subprocess.run(
        [*_GIT, "-C", str(folder), *words], env=environ, stdin=subprocess.DEVNULL, capture_output=True, timeout=30, check=home is None
    )


def make_template(root: Path) -> None:
    """A project with a submodule, secrets, protected files and links, and the home directory of its user."""
    home, project, out = root / "home", root / "project", root / "out"
    services = (home / ".docker", home / ".kube", home / ".config/gh")
    for folder in (
        home / ".ssh",
        home / ".aws",
        *services,
        home / ".config/git",
        project / "src",
        project / "conf",
        project / ".vscode",
        out,
    ):
        folder.mkdir(parents=True)
    for path, text in {
        home / ".ssh/id_ed25519": "CANARY-SSH-KEY",
        home / ".aws/credentials": "CANARY-AWS",
        home / ".docker/config.json": '{"auths": {"x": {"auth": " CANARY-DOCKER "}}}',
        home / ".kube/config": "token: CANARY-KUBE",
        home / ".config/gh/hosts.yml": "oauth_token: CANARY-GH",
        home / ".bashrc": "# mine",
        home / ".config/git/config": "[user]\n\tname = a\n\temail = a@b\n",
        project / "README.md": "read me",
        project / "src/main.py": "print(1)",
        project / "Makefile": "all:\n\techo made",
        project / "run.sh": "#!/bin/sh\necho run",
        project / "package.json": '{"scripts": {"test": "echo test"}}',
        project / ".vscode/settings.json": "{}",
        project / ".gitignore": ".env\nconf/\n",
        out / "victim.txt": "victim",
    }.items():
        path.write_text(text + "\n")
    (project / "run.sh").chmod(0o755)
    inner = root / "inner"
    inner.mkdir()
    git(inner, "init", "-q")
    git(inner, "commit", "-q", "--allow-empty", "-m", "one")
    git(project, "init", "-q")
    git(project, "submodule", "--quiet", "add", str(inner), "sub")
    git(project, "add", ".")
    git(project, "commit", "-q", "-m", "one")
    (project / ".env").write_text("CANARY-DOTENV\n")
    (project / "conf/credentials.json").write_text("CANARY-CRED\n")


class World:
    """One copy of the template, with its own listeners and a process that must survive."""

    def __init__(self, template: Path, root: Path, bbhome: Path, mark: str) -> None:
        shutil.copytree(template, root, symlinks=True)
        self.root, self.bbhome, self.mark = root, bbhome, mark
        self.home, self.project, self.out = root / "home", root / "project", root / "out"
        (self.project / "link-out").symlink_to(self.out)
        (self.project / "keys").symlink_to(self.home / ".ssh")
        self.reached: list[str] = []
        self._sockets = [
            self._listen("tcp", socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
            self._listen("udp", socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
            self._listen("unix", socket.AF_UNIX, socket.SOCK_STREAM, str(self.out / "s")),
            self._listen("unix in the project", socket.AF_UNIX, socket.SOCK_STREAM, str(self.project / "s")),
            self._listen("abstract", socket.AF_UNIX, socket.SOCK_STREAM, f"\0{mark}"),
        ]
        self._victim = subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL)
        self._before = self._snapshot()

    def _listen(self, name: str, family: int, kind: int, address: object) -> socket.socket:
        server = socket.socket(family, kind)
        server.bind(address)  # type: ignore[arg-type]
        if kind == socket.SOCK_STREAM:
            server.listen()

        def serve() -> None:
            while True:
                try:
                    if kind == socket.SOCK_DGRAM:
                        server.recv(100)
                    else:
                        connection, _ = server.accept()
                        with contextlib.suppress(OSError), connection:
                            connection.sendall(b"CANARY-TCP\n")
                except OSError:
                    return
                self.reached.append(name)

        threading.Thread(target=serve, daemon=True).start()
        return server

    def expand(self, line: str) -> str:
        values = {
            "OUT": self.out,
            "HOME": self.home,
            "BBHOME": self.bbhome,
            "PROJECT": self.project,
            "TCP": self._sockets[0].getsockname()[1],
            "UDP": self._sockets[1].getsockname()[1],
            "UNIX": self.out / "s",
            "UNIXP": self.project / "s",
            "ABSTRACT": self.mark,
            "VICTIM": self._victim.pid,
            "MARK": self.mark,
        }
        for name, value in values.items():
            line = line.replace("{" + name + "}", str(value))
        return line

    def _snapshot(self) -> dict[str, bytes]:
        """Every file and link of this world with its content or target. Sockets and very deep folders are left out."""
        found: dict[str, bytes] = {}
        for folder, folders, names in os.walk(self.root):
            if folder.count("/") > 60:
                folders.clear()
            for name in (*folders, *names):
                path = os.path.join(folder, name)
                with contextlib.suppress(OSError):
                    if os.path.islink(path):
                        found[path] = os.fsencode(os.readlink(path))
                    elif os.path.isdir(path):
                        found[path] = b"folder"
                    elif os.path.isfile(path):
                        with open(path, "rb") as file:
                            found[path] = file.read(1 << 16)
        return found

    def breaches(self, output: str, *, trusted: bool) -> list[str]:
        """What the attempt has reached."""
        found = [f"prints {word}" for word in output.split() if word.startswith("CANARY-") and word not in _HARMLESS_WORDS][:1]
        found += [f"reaches a listener: {name}" for name in dict.fromkeys(self.reached)]
        state = Path(f"/proc/{self._victim.pid}/stat").read_text().rpartition(")")[2].split()[0]
        tracer = next(line for line in Path(f"/proc/{self._victim.pid}/status").read_text().splitlines() if line.startswith("TracerPid"))
        if state not in "SRD" or tracer.split()[1] != "0":
            found.append(f"the victim: state {state}, {tracer}")
        after = self._snapshot()
        changed = [path for path in sorted(after.keys() | self._before.keys()) if after.get(path) != self._before.get(path)]
        found += [f"changed {path}" for path in changed if not trusted or not self._may_change(path)]
        found += [f"changed /tmp/{name}" for name in os.listdir("/tmp") if self.mark in name]
        found += [f"changed {path}" for path in self.bbhome.iterdir() if self.mark in path.name]
        if "CANARY" in (config := (self.bbhome / "config.toml").read_text()) or self.mark in config:
            found.append("changed config.toml")
        trap = self.out / self.mark
        if not trap.exists():
            for words in (
                ("status",),
                ("commit", "-q", "--allow-empty", "-m", "x"),
                ("checkout", "-q", "-b", "other"),
                ("-C", "src", "status"),
            ):
                git(self.project, *words, home=self.home)
            if trap.exists():
                found.append("git runs a planted program")
        return found

    def _may_change(self, path: str) -> bool:
        """Whether a trusted command may change a file: those of the project, but not those of git and of other programs."""
        inside = os.path.relpath(path, self.project).split("/")
        return inside[0] != ".." and PROTECTED.isdisjoint(inside)

    def close(self) -> None:
        for server in self._sockets:
            with contextlib.suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)
            server.close()
        self._victim.send_signal(signal.SIGKILL)
        self._victim.wait()
        subprocess.run(["rm", "-rf", str(self.root)], check=False)
