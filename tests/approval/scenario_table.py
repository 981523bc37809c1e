"""Scenarios: command lines together with directories, links, patterns, variables, git files and programs. Data only.

`test_scenarios.py` runs them. A scenario says what to create, where the session was opened, which directory the caller gives, the line,
and the expected result:

- `ask`: approval is required, or the call is refused. The line is never allowed.
- `allow`: an everyday line that must not require approval.
- `harmless`: approval is required; or the line is allowed, and when the engine runs it, it starts no planted program, prints no secret,
  changes no existing file, and creates nothing outside the project.
- `answers`: the gate returns any decision and does not hang.

These placeholders can be used in every text: `{root}` (the directory of the sandbox), `{home}` (the home of the user), `{project}` (a git
repository in `{home}/code`), `{outside}` (a directory outside the project), `{bbhome}` (the home of Backburner), `{tool}` (a planted
program), `{canary}` (the file that it creates) and `{secret}` (a text that no allowed command may print).
"""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"
SECRET = "TOP-SECRET-4711"
CANARY = "#!/bin/sh\n: > {canary}\n"


class Sandbox(NamedTuple):
    """The directories of one scenario."""

    root: Path
    bbhome: Path

    def expand(self, text: str) -> str:
        values = {
            "{root}": str(self.root),
            "{home}": str(self.root / "home/alice"),
            "{project}": str(self.root / "home/alice/code/project"),
            "{outside}": str(self.root / "outside"),
            "{bbhome}": str(self.bbhome),
            "{canary}": str(self.root / "canary"),
            "{tool}": str(self.root / "outside/bin/canary"),
            "{secret}": SECRET,
        }
        for token, value in values.items():
            text = text.replace(token, value)
        return text

    def path(self, text: str) -> Path:
        """Return a path in this sandbox. Relative paths are in the project."""
        return Path(self.expand("{project}"), self.expand(text))

    @property
    def environ(self) -> dict[str, str]:
        return {
            "PATH": SYSTEM_PATH,
            "HOME": self.expand("{home}"),
            "USER": "alice",
            "LANG": "C.UTF-8",
            "BACKBURNER_HOME": str(self.bbhome),
        }


Step = Callable[[Sandbox], object]


class Scenario(NamedTuple):
    """One command with its setup. A text is a line for /bin/sh; a tuple is a command without a shell."""

    expected: str
    name: str
    line: str | tuple[str, ...]
    steps: tuple[Step, ...] = ()
    session: str = "{project}"
    cwd: str | None = None  # the directory given by the caller; None: the directory of the session
    environ: dict[str, str | None] = {}  # inherited variables of the caller; None removes a variable
    env: dict[str, str] = {}  # variables set with --env
    trusted: tuple[str, ...] = ()
    after_trust: tuple[Step, ...] = ()
    bbhome: str | None = None  # None: the home that all scenarios share, outside their sandboxes
    forbidden_output: tuple[str, ...] = ()  # more texts that an allowed command must not print


# Steps that set up a sandbox.


def file(path: str, text: str = "{secret}\n") -> Step:
    def step(sandbox: Sandbox) -> None:
        target = sandbox.path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(sandbox.expand(text))

    return step


def append(path: str, text: str) -> Step:
    def step(sandbox: Sandbox) -> None:
        with sandbox.path(path).open("a") as target:
            target.write(sandbox.expand(text))

    return step


def program(path: str, text: str = CANARY) -> Step:
    def step(sandbox: Sandbox) -> None:
        file(path, text)(sandbox)
        sandbox.path(path).chmod(0o755)

    return step


def folder(path: str) -> Step:
    return lambda sandbox: sandbox.path(path).mkdir(parents=True, exist_ok=True)


def link(path: str, target: str) -> Step:
    def step(sandbox: Sandbox) -> None:
        location = sandbox.path(path)
        location.parent.mkdir(parents=True, exist_ok=True)
        if location.is_dir() and not location.is_symlink():
            shutil.rmtree(location)
        location.unlink(missing_ok=True)
        location.symlink_to(sandbox.expand(target))

    return step


def hard_link(path: str, target: str) -> Step:
    return lambda sandbox: sandbox.path(path).hardlink_to(sandbox.path(target))


def fifo(path: str) -> Step:
    def step(sandbox: Sandbox) -> None:
        sandbox.path(path).unlink(missing_ok=True)
        os.mkfifo(sandbox.path(path))

    return step


def with_old_timestamp(path: str) -> Step:
    """Change the timestamp of a file but not its content, so that git has to read the file again."""
    return lambda sandbox: os.utime(sandbox.path(path), (1_000_000_000, 1_000_000_000))


def move(path: str, target: str) -> Step:
    return lambda sandbox: shutil.move(sandbox.path(path), sandbox.path(target))


def sh(script: str, where: str = "{project}") -> Step:
    """Run a shell script with the HOME of the sandbox."""

    def step(sandbox: Sandbox) -> None:
        environ = {
            **{name: sandbox.environ[name] for name in ("PATH", "HOME")},
            **{
                f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER") for what, value in (("NAME", "a"), ("EMAIL", "a@example.org"))
            },
            "GIT_CONFIG_NOSYSTEM": "1",
        }
        done = subprocess.run(
            ["/bin/sh", "-ec", sandbox.expand(script)],
            cwd=sandbox.path(where),
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, (script, done.stdout, done.stderr)

    return step


# Pack all objects into one file, because the repository is copied hundreds of times.
_PACK = "git repack -a -d -q && find .git/objects -type d -empty -delete"


def make_template(root: Path) -> None:
    """Create the sandbox that all scenarios copy: a home with private files, two projects, and a directory outside."""
    sandbox = Sandbox(root, root / "nowhere")
    for step in (
        file("README.md", "hello TODO\n"),
        file("LICENSE", "free\n"),
        file("data.csv", "b,2\na,1\n"),
        file("Makefile", "all:\n\t@echo made\n"),
        file("src/main.py", "print('TODO')\n"),
        file("src/util.py", "x = 1\n"),
        file("docs/guide.md", "guide\n"),
        file("docs/deep/more.md", "more\n"),
        file(".gitignore", "build/\n"),
        program("run.sh", "#!/bin/sh\necho ran\n"),
        file("run.py", "print(1)\n"),
        sh("git init -q -b main --template= . && git add . && git commit -q -m one && echo two >> LICENSE && git commit -q -a -m two"),
        append(".git/config", '[remote "origin"]\n\turl = https://example.org/p.git\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n'),
        file("{home}/code/other/README.md"),
        sh("git init -q -b main --template= . && git add . && git commit -q -m '{secret}'", "{home}/code/other"),
        sh(_PACK),
        sh(_PACK, "{home}/code/other"),
        file("{home}/code/.env"),
        file("{home}/code/plain/notes.md", "plain\n"),
        file("{home}/.ssh/id_ed25519"),
        file("{home}/.config/gh/hosts.yml"),
        file("{home}/.config/tool/settings.json"),
        file("{home}/.codex/auth.json"),
        file("{home}/.bashrc"),
        file("{home}/notes/todo.txt", "milk\n"),
        folder("{home}/.local/bin"),
        file("{outside}/data.txt"),
        file("{outside}/README.md"),
        file("{outside}/src/main.py"),
        program("{outside}/bin/canary", '#!/bin/sh\n: > "${0%/outside/bin/canary}/canary"\n'),
        file("{root}/README.md"),
    ):
        step(sandbox)


def scenarios(expected: str, *lines: str | tuple[str, ...], **where: Any) -> list[Scenario]:
    """Return scenarios that differ only in their line, which is also their name."""
    return [Scenario(expected, line if isinstance(line, str) else " ".join(line), line, **where) for line in lines]


def ask(name: str, line: str | tuple[str, ...], *steps: Step, **where: Any) -> Scenario:
    return Scenario("ask", name, line, steps, **where)


def allow(name: str, line: str | tuple[str, ...], *steps: Step, **where: Any) -> Scenario:
    return Scenario("allow", name, line, steps, **where)


def harmless(name: str, line: str | tuple[str, ...], *steps: Step, **where: Any) -> Scenario:
    return Scenario("harmless", name, line, steps, **where)


SCENARIOS: dict[str, list[Scenario]] = {}

_DOTFILES = (sh("git init -q --template= . && git add .bashrc notes && git commit -q -m dotfiles", "{home}"),)
_LINKED_DIRECTORY = (file("{root}/spoof/README.md"), link("{root}/spoof/way", "{project}/src"))

# Which directories a line may read and write: the directory of the session, its git root, and trusted directories.
SCENARIOS["directories"] = [
    ask("a file in a directory given by the caller", "cat data.txt", cwd="{outside}"),
    ask("a list of a directory given by the caller", ("ls",), cwd="{outside}"),
    ask("a search in a directory given by the caller", ("grep", "-rn", "x", "."), cwd="{outside}"),
    ask("find in a directory given by the caller", ("find", ".", "-type", "f"), cwd="{outside}"),
    ask("a new file in a directory given by the caller", ("touch", "new"), cwd="{outside}"),
    ask("a new directory in a directory given by the caller", ("mkdir", "-p", "a/b"), cwd="{outside}"),
    ask("a redirect in a directory given by the caller", "echo x > new", cwd="{outside}"),
    ask("a copy in a directory given by the caller", ("cp", "README.md", "new"), cwd="{outside}"),
    ask("a directory for the settings of git", ("mkdir", "-p", "git"), cwd="{home}/.config"),
    ask("the settings of git", r"printf '[core]\n\tfsmonitor = x\n' > config", folder("{home}/.config/git"), cwd="{home}/.config/git"),
    ask("the token of gh", ("cat", "hosts.yml"), cwd="{home}/.config/gh"),
    ask("settings of a tool", ("cat", "settings.json"), cwd="{home}/.config/tool"),
    ask("the login of codex", ("cat", "auth.json"), cwd="{home}/.codex"),
    ask("a program in the PATH of the user", ("touch", "ls"), cwd="{home}/.local/bin"),
    ask("a copied program in the PATH of the user", ("cp", "{project}/run.sh", "ls"), cwd="{home}/.local/bin"),
    ask("a login script from the home", "echo x > .bash_login", cwd="{home}"),
    ask("a login script from above the home", "echo x > alice/.bash_login", cwd="{root}/home"),
    ask("a start file of fish", "echo x > x.fish", folder("{home}/.config/fish/conf.d"), cwd="{home}/.config/fish/conf.d"),
    ask("an autostart entry", "echo x > x.desktop", folder("{home}/.config/autostart"), cwd="{home}/.config/autostart"),
    ask("a unit of systemd", "echo x > x.service", folder("{home}/.config/systemd/user"), cwd="{home}/.config/systemd/user"),
    ask("hooks of an agent", "echo x > settings.json", folder("{home}/.claude"), cwd="{home}/.claude"),
    ask("a key, by its directory", ("cat", "id_ed25519"), cwd="{home}/.ssh"),
    ask("a list of keys, by their directory", ("ls",), cwd="{home}/.ssh"),
    ask("a file of another project", ("cat", "README.md"), cwd="{home}/code/other"),
    ask("the log of another project", ("git", "log"), cwd="{home}/code/other"),
    ask("the changes of another project", ("git", "diff"), append("{home}/code/other/README.md", "x\n"), cwd="{home}/code/other"),
    ask("a project with the same name prefix", ("cat", "x.md"), file("{home}/code/project-two/x.md"), cwd="{home}/code/project-two"),
    ask("a path to a project with the same name prefix", ("cat", "../project-two/x.md"), file("{home}/code/project-two/x.md")),
    ask("the directory above the project", ("ls",), cwd="{home}/code"),
    ask("the root of the machine", ("ls",), cwd="/"),
    ask("a system directory", ("cat", "hostname"), cwd="/etc"),
    ask("shared memory", ("touch", "backburner-test-never-made"), cwd="/dev/shm"),
    ask("a directory of a process", ("cat", "environ"), cwd="/proc/self"),
    ask("a directory by a link in the project", ("cat", "data.txt"), link("out", "{outside}"), cwd="{project}/out"),
    ask("a directory by a link to a link", ("cat", "data.txt"), link("{root}/b", "{outside}"), link("a", "{root}/b"), cwd="{project}/a"),
    ask("the home by a link in the project", "echo x > .bash_login", link("h", "{home}"), cwd="{project}/h"),
    ask("a directory through ..", ("cat", "README.md"), cwd="{project}/../other"),
    ask("a relative directory through ..", ("cat", "README.md"), cwd="../other"),
    ask("a directory through .. after a link", ("cat", "data.txt"), link("in", "{outside}/src"), cwd="{project}/in/.."),
    ask("a directory that does not exist yet", ("touch", "x"), cwd="{outside}/new"),
    ask("a hidden directory that does not exist yet", ("touch", "x"), cwd="{home}/.newtool"),
    ask("a file as a directory", ("ls",), cwd="{outside}/data.txt"),
    ask("out of the project by cd", "cd .. && cat other/README.md"),
    ask("to the home by cd", "cd && cat .bashrc"),
    ask("to the home by cd and a tilde", "cd ~ && cat .bashrc"),
    ask("back by cd", "cd - && ls"),
    ask("through a link by cd", "cd out && cat data.txt", link("out", "{outside}")),
    ask("through a link and .. by cd -P", "cd -P out/.. && cat README.md", link("out", "{outside}/src")),
    harmless("through a link and .. by cd", "cd out/.. && cat README.md", link("out", "{outside}/src")),
    harmless("cd from a directory that was named by a link", "cd .. && cat README.md", *_LINKED_DIRECTORY, cwd="{root}/spoof/way"),
    harmless(
        "cd where PWD names a link to this directory",
        "cd .. && cat README.md",
        *_LINKED_DIRECTORY,
        session="{project}/src",
        environ={"PWD": "{root}/spoof/way"},
    ),
    harmless("pwd -L where PWD names another directory", ("pwd", "-L"), environ={"PWD": "{outside}"}),
    harmless("the current directory of the reading process", ("ls", "-a"), cwd="/proc/self/cwd", forbidden_output=("engine.lock", "etc\n")),
    harmless(
        "a file in the current directory of the reading process",
        ("cat", "etc/hostname"),
        file("etc/hostname", "mine\n"),
        cwd="/proc/self/cwd",
    ),
    harmless("the directory of the current thread", ("ls", "-a"), cwd="/proc/thread-self/cwd", forbidden_output=("engine.lock", "etc\n")),
    harmless("a session in the project, a file in the home", "cat ~/.bashrc"),
    ask("a file beside the project", ("cat", "../.env")),
    ask("a new file beside the project", ("touch", "../new")),
    ask("a new file through .. components", ("touch", "src/../../new")),
    ask("a new file through .. after a missing directory", ("touch", "a/b/../../../new")),
    ask("a directory through .. after a missing directory", ("mkdir", "-p", "a/../../new")),
    ask(".. after a file", ("cat", "README.md/../../other/README.md")),
    # the directory of the session
    ask("a session in the home reads", ("cat", "notes/todo.txt"), session="{home}"),
    ask("a session in the home lists", ("ls",), session="{home}"),
    ask("a session in the home creates", ("touch", "new"), session="{home}"),
    ask("a session above the home reads", ("cat", "alice/notes/todo.txt"), session="{root}/home"),
    ask("a session above the home creates", "echo x > alice/.zshenv", session="{root}/home"),
    ask("a session in the root lists", ("ls",), session="/"),
    ask("a session in the root reads", ("cat", "etc/hostname"), session="/"),
    ask("a session in /etc", ("cat", "hostname"), session="/etc"),
    ask("a session in /home", ("ls",), session="/home"),
    ask("a session in a directory of settings reads", ("cat", "settings.json"), session="{home}/.config/tool"),
    ask("a session in a directory of settings creates", ("touch", "new"), session="{home}/.config/tool"),
    ask(
        "a session in a repository of settings",
        ("cat", "settings.json"),
        sh("git init -q .", "{home}/.config/tool"),
        session="{home}/.config/tool",
    ),
    ask("a session in ~/.ssh", ("ls",), session="{home}/.ssh"),
    ask("a session in ~/.local/bin", ("touch", "ls"), session="{home}/.local/bin"),
    ask(
        "a session deep below a hidden directory",
        ("cat", "x"),
        file("{home}/.local/share/app/deep/x"),
        session="{home}/.local/share/app/deep",
    ),
    ask("a session in the home by a link", ("cat", "notes/todo.txt"), link("{root}/way", "{home}"), session="{root}/way"),
    ask(
        "a session in settings by a link from a project", ("cat", "settings.json"), link("s", "{home}/.config/tool"), session="{project}/s"
    ),
    ask(
        "a session in an inner repository reads the outer one", ("cat", "../README.md"), sh("git init -q inner"), session="{project}/inner"
    ),
    ask(
        "a session in an inner repository names the outer one",
        ("cat", "README.md"),
        sh("git init -q inner"),
        session="{project}/inner",
        cwd="{project}",
    ),
    # a home that is a repository, as is common for dotfiles
    ask("a home that is a repository: reading above", ("cat", "../.bashrc"), *_DOTFILES, session="{home}/notes"),
    ask("a home that is a repository: a login script", "echo x > ../.bash_login", *_DOTFILES, session="{home}/notes"),
    ask("a home that is a repository: a key", ("cat", "../.ssh/id_ed25519"), *_DOTFILES, session="{home}/notes"),
    ask("a home that is a repository: a session in it", ("cat", "notes/todo.txt"), *_DOTFILES, session="{home}"),
    ask("a home that is a repository: a list of it", ("ls", ".."), *_DOTFILES, session="{home}/notes"),
    harmless(
        "a home that is a repository: its changes", ("git", "diff"), *_DOTFILES, append("{home}/.bashrc", "x\n"), session="{home}/notes"
    ),
    harmless("a home that is a repository: its history", ("git", "log", "-p"), *_DOTFILES, session="{home}/notes"),
    harmless("a home that is a repository: a file of a commit", ("git", "show", "HEAD:.bashrc"), *_DOTFILES, session="{home}/notes"),
    ask("a repository above the home", ("cat", "../.bashrc"), sh("git init -q --template= .", "{root}"), session="{home}/notes"),
    ask(
        "a .git file that makes the home a repository",
        ("cat", "../.bashrc"),
        file("{home}/.git", "gitdir: code/other/.git\n"),
        session="{home}/notes",
    ),
    # values of HOME
    ask("HOME with a trailing slash", ("cat", "notes/todo.txt"), session="{home}", environ={"HOME": "{home}/"}),
    ask("HOME with two slashes", ("cat", "notes/todo.txt"), session="{home}", environ={"HOME": "{root}//home/./alice"}),
    ask("HOME through ..", ("cat", "settings.json"), session="{home}/.config/tool", environ={"HOME": "{home}/notes/.."}),
    ask("HOME that is a link", ("cat", "notes/todo.txt"), link("{root}/h", "{home}"), session="{home}", environ={"HOME": "{root}/h"}),
    ask(
        "HOME that is a link, and a hidden directory",
        ("cat", "settings.json"),
        link("{root}/h", "{home}"),
        session="{home}/.config/tool",
        environ={"HOME": "{root}/h"},
    ),
    ask(
        "HOME that is a link, and the directory above",
        ("touch", "alice/.zshenv"),
        link("{root}/h", "{home}"),
        session="{root}/home",
        environ={"HOME": "{root}/h"},
    ),
    ask("HOME that is relative", "echo x > .bash_login", session="{home}", environ={"HOME": "."}),
    harmless("HOME that is empty", "cat ~/.bashrc", environ={"HOME": ""}),
    harmless("no HOME at all", "cat ~/.bashrc", environ={"HOME": None}),
    harmless("HOME in the project", "cat ~/../../other/README.md", environ={"HOME": "{project}/docs"}),
    # trusted directories
    ask("a home that was trusted", ("touch", ".bash_login"), session="{project}", cwd="{home}", trusted=("{home}",)),
    ask("a directory of settings that was trusted", ("touch", "new"), cwd="{home}/.config", trusted=("{home}/.config",)),
    ask("a trusted project and a directory beside it", ("cat", "README.md"), cwd="{home}/code/other", trusted=("{project}",)),
    ask(
        "a trusted link that has another target now",
        ("cat", "id_ed25519"),
        link("{root}/way", "{home}/code/other"),
        cwd="{root}/way",
        trusted=("{root}/way",),
        after_trust=(link("{root}/way", "{home}/.ssh"),),
    ),
    ask("a trusted project: a script outside", ("sh", "{outside}/bin/canary"), trusted=("{project}",)),
    ask("a trusted project: a script by a link", ("./go",), link("go", "{tool}"), trusted=("{project}",)),
    ask(
        "a trusted project: make in another directory",
        ("make", "-C", "{outside}"),
        file("{outside}/Makefile", "all:\n"),
        trusted=("{project}",),
    ),
    ask("a trusted project: a directory that is a link", ("sh", "out/bin/canary"), link("out", "{outside}"), trusted=("{project}",)),
    ask(
        "a trusted project: a script of its inner repository by name",
        ("sh", "../run.sh"),
        sh("git init -q inner"),
        session="{project}/inner",
        trusted=("{project}/inner",),
    ),
    ask("a script of the project", ("./run.sh",)),
    ask("a script of another trusted project", ("./run.sh",), trusted=("{home}/code/other",)),
    # everyday commands
    allow("the project", ("ls", "-la")),
    allow("a file", ("cat", "README.md")),
    allow("a directory of the project", ("cat", "main.py"), cwd="{project}/src"),
    allow("a relative directory of the project", ("cat", "main.py"), cwd="src"),
    allow("a directory with a trailing slash", ("cat", "README.md"), cwd="{project}/"),
    allow("a directory with .. components", ("cat", "README.md"), cwd="{project}/src/.."),
    allow("a session in a directory of the project, a file above", ("cat", "../README.md"), session="{project}/src"),
    allow("a session in a directory of the project, with the project as directory", ("ls",), session="{project}/src", cwd="{project}"),
    allow("a link from outside to the project", ("cat", "main.py"), link("{root}/way", "{project}/src"), cwd="{root}/way"),
    allow("a session by a link", ("cat", "README.md"), link("{root}/way", "{project}"), session="{root}/way"),
    allow("cd within the project", "cd src && cat main.py"),
    allow("`..` within the project", ("cat", "docs/../README.md")),
    allow("an inner repository", ("cat", "x.md"), sh("git init -q inner && echo x > inner/x.md"), cwd="{project}/inner"),
    allow("a session without a repository", ("cat", "notes.md"), session="{home}/code/plain"),
    allow("a new file without a repository", ("touch", "new.md"), session="{home}/code/plain"),
    allow("a session in a directory of the home", ("cat", "todo.txt"), session="{home}/notes"),
    allow("a home that is a repository: a directory in it", ("cat", "todo.txt"), *_DOTFILES, session="{home}/notes"),
    allow(
        "a hidden directory that is not directly in the home",
        ("cat", "x.md"),
        file("{home}/code/.try/p/x.md", "x\n"),
        session="{home}/code/.try/p",
    ),
    allow("a trusted directory given by the caller", ("cat", "README.md"), cwd="{home}/code/other", trusted=("{home}/code/other",)),
    allow(
        "a new file in a trusted directory given by the caller", ("touch", "new"), cwd="{home}/code/other", trusted=("{home}/code/other",)
    ),
    allow("a trusted project's script", ("./run.sh",), trusted=("{project}",)),
    allow("a trusted project's build", ("make",), trusted=("{project}",)),
    allow("HOME outside the project", ("cat", "README.md"), environ={"HOME": "{outside}"}),
    allow("no HOME, and a file of the project", ("cat", "README.md"), environ={"HOME": None}),
]

_OUT = link("out", "{outside}")
_KEY = link("notes.md", "{home}/.ssh/id_ed25519")

# Which file a path means.
SCENARIOS["links"] = [
    *scenarios(
        "ask",
        *[
            (*words, "notes.md")
            for words in (
                ("cat",),
                ("head", "-n", "1"),
                ("tail", "-f"),
                ("wc", "-c"),
                ("sort",),
                ("grep", "x"),
                ("od", "-c"),
                ("sed", "-n", "1p"),
            )
        ],
        steps=(_KEY,),
    ),
    ask("a redirect from a link", "cat < notes.md", _KEY),
    ask("a copy of a link", ("cp", "notes.md", "copy.md"), _KEY),
    ask("a comparison with a link", ("diff", "README.md", "notes.md"), _KEY),
    ask("a link to a link", ("cat", "a"), link("a", "b"), link("b", "c"), link("c", "{outside}/data.txt")),
    ask("a relative link", ("cat", "a"), link("a", "../../../../outside/data.txt")),
    ask("a file in a linked directory", ("cat", "out/data.txt"), _OUT),
    ask("a list of a linked directory", ("ls", "out/"), _OUT),
    ask("find in a linked directory", ("find", "out/", "-type", "f"), _OUT),
    ask("a search in a linked directory", ("grep", "-r", "x", "out"), _OUT),
    ask("a search that follows links", ("grep", "-R", "x", "."), _OUT),
    ask("a search by rg that follows links", ("rg", "--follow", "x"), _OUT),
    ask("a search by rg -L", ("rg", "-L", "x"), _OUT),
    ask("find that follows links", ("find", "-L", ".", "-type", "f"), _OUT),
    ask(".. after a link", ("cat", "out/../README.md"), _OUT),
    ask("a link after .. components", ("cat", "docs/../out/./data.txt"), _OUT),
    ask("a new file in a linked directory", ("touch", "out/new"), _OUT),
    ask("a new directory in a linked directory", ("mkdir", "-p", "out/a/b"), _OUT),
    ask("a redirect into a linked directory", "echo x > out/new", _OUT),
    ask("a copy into a linked directory", ("cp", "README.md", "out"), _OUT),
    ask("tee into a linked directory", "echo x | tee out/new", _OUT),
    *scenarios(
        "ask",
        ("touch", "gone"),
        "echo x > gone",
        "echo x >> gone",
        ("cp", "README.md", "gone"),
        "echo x | tee gone",
        ("mkdir", "gone"),
        steps=(link("gone", "{home}/.bash_login"),),
    ),
    ask("a new file through two broken links", "echo x > a", link("a", "b"), link("b", "{home}/.zshenv")),
    ask("an append to a hard link", "echo x >> twin", hard_link("twin", "{home}/.bashrc")),
    ask("tee to a hard link", "echo x | tee -a twin", hard_link("twin", "{home}/.bashrc")),
    ask("reading a link to git's settings", ("cat", "cfg"), link("cfg", ".git/config")),
    ask("writing through a link to git's hooks", ("touch", "h/pre-commit"), folder(".git/hooks"), link("h", ".git/hooks")),
    ask("a link to a secret inside", ("cat", "settings.txt"), file(".env"), link("settings.txt", ".env")),
    ask("a pattern that matches a link", "cat src/*", link("src/x.py", "{outside}/data.txt")),
    ask("a leading pattern that matches a link", "cat *.md", _KEY),
    ask("a list by a pattern that matches a linked directory", "ls *", _OUT),
    ask("a pattern below a linked directory", "cat out/*.txt", _OUT),
    ask("a pattern for the link itself", "cat o*/data.txt", _OUT),
    ask("cd into a linked directory, and a new file", "cd out && touch new", _OUT),
    ask("a link to a process directory", ("cat", "p/environ"), link("p", "/proc/self")),
    ask("a link to the root", ("cat", "r/etc/hostname"), link("r", "/")),
    ask("a link to the root of a process", ("cat", "r/etc/hostname"), link("r", "/proc/self/root")),
    ask("a link to a process current directory", ("cat", "here/README.md"), link("here", "/proc/self/cwd/..")),
    ask("find by the age of a link's target", ("find", ".", "-newer", "out/data.txt"), _OUT),
    harmless("a link to itself", ("cat", "loop"), link("loop", "loop")),
    harmless("a link to the project in the project, and ..", ("cat", "me/../../code/other/README.md"), link("me", ".")),
    harmless("a search beside a linked directory", ("grep", "-rn", "x", "src"), link("src/out", "{outside}")),
    harmless("a recursive list beside a linked directory", ("ls", "-R"), _OUT, forbidden_output=("data.txt",)),
    harmless("the size of all, with a linked directory", ("du", "-a"), _OUT, forbidden_output=("data.txt",)),
    allow("a link inside the project", ("cat", "alias.md"), link("alias.md", "docs/guide.md")),
    allow("a linked directory inside the project", ("cat", "d/guide.md"), link("d", "docs")),
    allow("a link to the project itself", ("cat", "me/me/README.md"), link("me", ".")),
    allow("a search beside links", ("grep", "-rn", "TODO", "src"), _OUT),
    allow("find beside links", ("find", ".", "-name", "*.py"), _OUT),
]

_FILES_BESIDE_PROJECT = (file("{home}/code/x"), file("{home}/code/README.md"))
# Patterns, also in shells in which they can match `.` and `..`.
SCENARIOS["patterns"] = [
    *scenarios(
        "ask",
        "cat .*/.en*",
        "cat .*/x",
        "cat .?/x",
        "cat .[.]/x",
        "cat .[!a]/x",
        "cat .[^a]/x",
        "cat .[.-z]/x",
        "cat .[[:punct:]]/x",
        "cat ./.*/x",
        "cat src/.*/.*/x",
        "cat src/.?/.?/x",
        "cat src/../.*/x",
        "cat '.'*/x",
        'cat ".".*/x',
        "cat .''*/x",
        r"cat \.*/x",
        "cat .*",
        "cat .*/ho*/x",
        "cat .*/.*/.ssh/id_*",
        "ls .*",
        "ls -d .*",
        "ls -la .?",
        "stat .?",
        "echo .*",
        "head .*/x",
        "head -n 1 ./.?/x",
        "wc -l .*/x",
        "grep -n e .*/x",
        "sort .?/x",
        "du -s .*",
        "find .* -name x",
        "find .? -type f",
        "diff README.md .?/x",
        "cp .*/x copy",
        "cat < .*/x",
        "cat < .?/x",
        "cat < *.md",
        "cat < src/ma*",
        "echo x > *.new",
        "echo x > src/?",
        "echo x >> .*/x",
        "bash -c 'cat .*/x'",
        "sh -c 'cat .?/x'",
        "bash -O dotglob -c 'cat *'",
        "nice cat .*/x",
        "env cat .*/x",
        "timeout 5 cat .?/x",
        "cat .{.,}/x",
        "cat .@(.)/x",
        "cat */../../x",
        "cat src/*/../../../x",
        "cat ~/*",
        "cat ~/.bashrc",
        "cat ~root/.bashrc",
        "ls ~root",
        "cat ~+/../x",
        "cat ~-/x",
        "x=~/.bashrc; cat $x",
        "x=..; cat $x/x",
        "cd .? && cat x",
        "cd .* && cat x",
        steps=_FILES_BESIDE_PROJECT,
    ),
    ask(".. after a pattern that matches a link", "cat */../README.md", link("out", "{outside}/src")),
    *scenarios(
        "harmless",
        "cat ??/x",
        "cat [.]*/x",
        "cat [.][.]/x",
        "cat ?./x",
        "cat *./x",
        "cat [!a]./x",
        "cat */*/.*",
        "cat ?env",
        "cat [.]env",
        "cat *nv",
        steps=(*_FILES_BESIDE_PROJECT, file(".env")),
    ),
    harmless("a file name as options of ls", "ls *", link("src/out", "{outside}"), file("-LR", ""), forbidden_output=("data.txt",)),
    harmless("a file name as an option of wc", "wc -l *.py", file("--files0-from=list.py", ""), link("list.py", "{outside}/data.txt")),
    harmless("a file name as an option of sort", "sort *.csv", file("-odata.csv", "")),
    harmless(
        "a file name as an option of grep",
        "grep -n x *.txt",
        file("-fx.txt", ""),
        link("x.txt", "{outside}/data.txt"),
        file("y.txt", "TOP\n"),
    ),
    harmless("a file name as a program of rg", "rg x *.py", program("--pre=canary.py"), file("y.py", "x\n")),
    *scenarios(
        "allow",
        "ls *.md",
        "cat *.md",
        "cat src/*.py",
        "ls src/*",
        "cat docs/*.md",
        "cat docs/gu?de.md",
        "ls src/*.py docs/*.md",
        "find . -name '*.py'",
        "grep -rn 'a.*b' src",
        "find . -name '.git*' -maxdepth 1",
    ),
]

# The home of Backburner is not part of any project.
_HOME_IN_PROJECT = "{project}/bb"
SCENARIOS["backburner's home"] = [
    ask("its settings, by its directory", "echo x > config.toml", session="{project}", cwd="{root}/state", bbhome="{root}/state"),
    ask("a list, by its directory", ("ls",), cwd="{root}/state", bbhome="{root}/state"),
    ask("its settings, by a path", ("cat", "{root}/state/config.toml"), bbhome="{root}/state"),
    ask("a session in it lists", ("ls",), session="{root}/state", bbhome="{root}/state"),
    ask("a session in it reads", ("cat", "ledger.db"), session="{root}/state", bbhome="{root}/state"),
    ask("a session in it creates settings", "echo x > config.toml", session="{root}/state", bbhome="{root}/state"),
    ask("a session in it creates a file", ("touch", "new"), session="{root}/state", bbhome="{root}/state"),
    ask("a session in a directory of it", ("ls",), session="{root}/state/tasks", bbhome="{root}/state"),
    ask(
        "a session in it that is a repository",
        ("touch", "new"),
        sh("git init -q --template= .", "{root}/state"),
        session="{root}/state",
        bbhome="{root}/state",
    ),
    ask("a session above it reads", ("cat", "state/config.toml"), session="{root}/place", bbhome="{root}/place/state"),
    ask("a session above it creates", ("touch", "state/new"), session="{root}/place", bbhome="{root}/place/state"),
    ask("a session above it searches", ("grep", "-r", "x", "."), session="{root}/place", bbhome="{root}/place/state"),
    ask("trusted by mistake", ("touch", "new"), cwd="{root}/state", bbhome="{root}/state", trusted=("{root}/state",)),
    ask(
        "its own programs after it was trusted",
        ("sh", "x.sh"),
        file("{root}/state/x.sh", "id\n"),
        cwd="{root}/state",
        bbhome="{root}/state",
        trusted=("{root}/state",),
    ),
    ask("in the project: its settings", ("cat", "bb/config.toml"), bbhome=_HOME_IN_PROJECT),
    ask("in the project: a list", ("ls", "bb"), bbhome=_HOME_IN_PROJECT),
    ask("in the project: new settings", "echo x > bb/config.toml", bbhome=_HOME_IN_PROJECT),
    ask("in the project: any new file", ("touch", "bb/new"), bbhome=_HOME_IN_PROJECT),
    ask("in the project: output of tasks", ("cat", "bb/tasks/x/output.log"), file("bb/tasks/x/output.log"), bbhome=_HOME_IN_PROJECT),
    ask("in the project: a copy of the ledger", ("cp", "bb/ledger.db", "copy"), bbhome=_HOME_IN_PROJECT),
    ask("in the project: a search", ("grep", "-r", "x", "."), bbhome=_HOME_IN_PROJECT),
    ask("in the project: a search of it", ("grep", "-r", "x", "bb"), bbhome=_HOME_IN_PROJECT),
    ask("in the project: a pattern", "cat b*/config.toml", bbhome=_HOME_IN_PROJECT),
    ask("in the project: cd", "cd bb && cat config.toml", bbhome=_HOME_IN_PROJECT),
    ask("in the project: cd and a new file", "cd bb && touch new", bbhome=_HOME_IN_PROJECT),
    ask("in the project: a list of all by a pattern", "ls *", bbhome=_HOME_IN_PROJECT),
    ask("in the project, hidden: a new file", ("touch", ".bb/new"), bbhome="{project}/.bb"),
    ask("in a trusted project: a new file", ("touch", "bb/new"), bbhome=_HOME_IN_PROJECT, trusted=("{project}",)),
    ask(
        "in a trusted project: a script there", ("sh", "bb/x.sh"), file("bb/x.sh", "id\n"), bbhome=_HOME_IN_PROJECT, trusted=("{project}",)
    ),
    ask("by a link in the project: reading", ("cat", "l/config.toml"), link("l", "{root}/state"), bbhome="{root}/state"),
    ask("by a link in the project: writing", "echo x > l/config.toml", link("l", "{root}/state"), bbhome="{root}/state"),
    ask(
        "named by a link, read by its real path",
        ("cat", "config.toml"),
        folder("{root}/real"),
        link("{root}/l", "{root}/real"),
        session="{root}/real",
        bbhome="{root}/l",
    ),
    ask(
        "named by a link, written by its real path",
        "echo x > config.toml",
        folder("{root}/real"),
        link("{root}/l", "{root}/real"),
        session="{root}/real",
        bbhome="{root}/l",
    ),
    ask(
        "named by a link in the project, which points to the project",
        ("touch", "store/new"),
        folder("store"),
        link("l", "store"),
        bbhome="{project}/l",
    ),
    ask("with a trailing slash", ("touch", "bb/new"), bbhome="{project}/bb/"),
    ask("with ..", ("touch", "bb/new"), bbhome="{project}/src/../bb"),
    ask("the default home", ("cat", "{home}/.backburner/config.toml")),
    ask("a session in the default home", ("touch", "new"), session="{home}/.backburner", bbhome="{home}/.backburner"),
    ask("the project itself", ("touch", "new"), bbhome="{project}"),
    allow("beside a file of the project", ("cat", "README.md"), bbhome=_HOME_IN_PROJECT),
    allow("beside a search of the sources", ("grep", "-rn", "TODO", "src"), bbhome=_HOME_IN_PROJECT),
    allow(
        "beside a file of the directory above",
        ("cat", "n.md"),
        file("{root}/place/n.md", "x\n"),
        session="{root}/place",
        bbhome="{root}/place/state",
    ),
    allow("a name with the same prefix", ("cat", "bb.md"), file("bb.md", "x\n"), bbhome=_HOME_IN_PROJECT),
]

_PROJECT_PATH = {"PATH": "{project}/.venv/bin:" + SYSTEM_PATH}
_OUTSIDE_PATH = {"PATH": "{outside}/bin:" + SYSTEM_PATH}


def _venv(name: str) -> Step:
    return program(f".venv/bin/{name}")


# Which program a name means.
SCENARIOS["programs"] = [
    *(
        ask(f"a program of the project with an option for its version: {' '.join(words)}", words, _venv(words[0]), environ=_PROJECT_PATH)
        for words in (
            ("npm", "--version"),
            ("node", "--version"),
            ("python3", "--version"),
            ("python3", "-V"),
            ("go", "version"),
            ("cargo", "--version"),
            ("uv", "--version"),
            ("git", "--version"),
            ("bash", "--version"),
            ("pytest", "--version"),
            ("perl", "--help"),
        )
    ),
    *(
        ask(f"a program of the project with a known name: {' '.join(words)}", words, _venv(words[0]), environ=_PROJECT_PATH)
        for words in (("ls",), ("cat", "README.md"), ("git", "status"), ("true",), ("pwd",), ("echo", "hi"), ("sleep", "0"), ("date",))
    ),
    *(
        ask(f"a program of the project, through another: {line}", line, _venv("ls"), environ=_PROJECT_PATH)
        for line in (
            "env ls",
            "nice ls",
            "timeout 5 ls",
            "nohup ls",
            "command ls",
            "exec ls",
            "bash -c ls",
            "echo src | xargs ls",
            "find . -maxdepth 1 -exec ls {} +",
            "ls | cat",
        )
    ),
    ask("a shell of the project", "bash -c 'ls'", _venv("bash"), environ=_PROJECT_PATH),
    ask(
        "a PATH that points to the project by a link",
        ("ls",),
        _venv("ls"),
        link("{root}/sys", "{project}/.venv/bin"),
        environ={"PATH": "{root}/sys:" + SYSTEM_PATH},
    ),
    ask(
        "a PATH that points to the project through ..",
        ("ls",),
        _venv("ls"),
        environ={"PATH": "{outside}/../home/alice/code/project/.venv/bin:" + SYSTEM_PATH},
    ),
    ask(
        "a program outside the project that is a link to the project",
        ("ls",),
        program("evil"),
        link("{outside}/bin/ls", "{project}/evil"),
        environ=_OUTSIDE_PATH,
    ),
    ask("a link in the project to a system program", ("ls",), link(".venv/bin/ls", "/usr/bin/ls"), environ=_PROJECT_PATH),
    ask(
        "a link in the project to another program of the system",
        ("ls", "README.md"),
        link(".venv/bin/ls", "/bin/rm"),
        environ=_PROJECT_PATH,
    ),
    *(
        harmless(
            f"a program in a directory that is not a system directory: {' '.join(words)}",
            words,
            program(f"{{outside}}/bin/{words[0]}"),
            environ=_OUTSIDE_PATH,
        )
        for words in (
            ("ls",),
            ("cat", "README.md"),
            ("git", "status"),
            ("echo", "hi"),
            ("true",),
            ("pwd",),
            ("printf", "x"),
            ("test", "-f", "README.md"),
            ("sleep", "0"),
            ("find", "."),
            ("[", "-f", "x", "]"),
        )
    ),
    harmless(
        "a program of the user that shadows a system program",
        ("grep", "-n", "x", "README.md"),
        program("{home}/.local/bin/grep"),
        environ={"PATH": "{home}/.local/bin:" + SYSTEM_PATH},
    ),
    *(
        harmless(f"PATH with {what}", ("ls",), program("ls"), program("bin/ls"), program("~/bin/ls"), environ={"PATH": path})
        for what, path in (
            ("an empty place in front", ":" + SYSTEM_PATH),
            ("an empty place in between", "/nonexistent::" + SYSTEM_PATH),
            ("a dot", ".:" + SYSTEM_PATH),
            ("a relative folder", "bin:" + SYSTEM_PATH),
            ("a tilde", "~/bin:" + SYSTEM_PATH),
            ("dots", "/usr/../{project}/bin:" + SYSTEM_PATH),
            ("the current folder of a process", "/proc/self/cwd:" + SYSTEM_PATH),
            ("the current folder of a process, and a folder in it", "/proc/self/cwd/bin:" + SYSTEM_PATH),
        )
    ),
    harmless("PATH with an empty entry at the end", ("canary-program",), program("canary-program"), environ={"PATH": SYSTEM_PATH + ":"}),
    harmless("an empty PATH", ("ls",), program("ls"), environ={"PATH": ""}),
    harmless("no PATH", ("ls",), program("ls"), environ={"PATH": None}),
    harmless("a shell in SHELL", "ls", program("sh"), environ={"SHELL": "{project}/sh"}),
    ask("PATH in the line", "PATH=. ls", program("ls")),
    ask("PATH in the line, with what it was", "PATH=$PATH:. ls", program("ls")),
    ask("PATH for the task", ("ls",), program("ls"), env={"PATH": "{project}"}),
    # programs given by a path
    ask(
        "a link and .. in a program path",
        ("far/../../../../usr/bin/ls",),
        program("{outside}/usr/bin/ls"),
        folder("{outside}/a/b/c/d"),
        link("far", "{outside}/a/b/c/d"),
    ),
    ask("a link and one step back", ("out/../bin/ls",), program("{outside}/bin/ls"), link("out", "{outside}/src")),
    ask("`..` in a program path", ("/usr/bin/../bin/ls",)),
    ask("`..` from the project to the system", ("../../../../../../../../../../../../usr/bin/ls",)),
    ask("the root of a process", ("/proc/self/root/usr/bin/ls",)),
    ask("the current directory of a process", ("/proc/self/cwd/run.sh",)),
    ask("a link to a directory of the system", ("sys/cat", "README.md"), link("sys", "/usr/bin")),
    ask("a link to a program of the system", ("./tool", "README.md"), link("tool", "/usr/bin/cat")),
    ask("a link to another program than its name says", ("./cat", "README.md"), link("cat", "/bin/sh")),
    ask("a directory in the project with the name of a system directory", ("./usr/bin/ls",), program("usr/bin/ls")),
    ask("a relative path like a system path", ("usr/bin/ls",), program("usr/bin/ls")),
    ask("a program outside, by its path", ("{outside}/bin/canary",)),
    ask("a program outside with a known name", ("{outside}/bin/ls",), program("{outside}/bin/ls")),
    ask("a program of the project with an option for its version, by its path", ("./run.sh", "--version")),
    ask("an interpreter of the project, by its path", (".venv/bin/python3", "--version"), _venv("python3")),
    ask("a link to an interpreter in the project", (".venv/bin/python3", "-V"), link(".venv/bin/python3", "/usr/bin/python3")),
    ask("alternatives of the system", ("/etc/alternatives/awk", "{print}")),
    ask("a program after cd, by a relative path", "cd docs && ./ls", program("docs/ls")),
    ask("a script whose first line is a reader", ("./notes.sh",), program("notes.sh", "#!/bin/cat\n")),
    ask("a loader of programs", ("/lib64/ld-linux-x86-64.so.2", "/bin/ls")),
    ask("a program by a descriptor", ("/dev/fd/0",)),
    harmless("two slashes in a program path", ("//usr/bin/ls",)),
    harmless("a single dot in a program path", ("/usr/./bin/ls",)),
    allow("a system program, by its path", ("/usr/bin/ls",)),
    allow("a system program, by the old path", ("/bin/cat", "README.md")),
    allow(
        "a trusted project's program with an option for its version",
        ("npm", "--version"),
        _venv("npm"),
        environ=_PROJECT_PATH,
        trusted=("{project}",),
    ),
    allow("a trusted project's interpreter", ("python3", "run.py"), _venv("python3"), environ=_PROJECT_PATH, trusted=("{project}",)),
    allow("a PATH in which the project has other programs", ("ls",), _venv("mytool"), environ=_PROJECT_PATH),
    allow("a PATH with a directory that does not exist", ("ls",), environ={"PATH": "/nonexistent:" + SYSTEM_PATH}),
    allow(
        "a PATH with the user's programs",
        ("git", "status"),
        program("{home}/.local/bin/mytool"),
        environ={"PATH": "{home}/.local/bin:" + SYSTEM_PATH},
    ),
]

_EVIL_GIT = (
    sh("git init -q --template= {outside}/evil && git -C {outside}/evil config core.fsmonitor {tool}", "{outside}"),
    sh("echo {secret} > s.txt && git add s.txt && git -c core.fsmonitor=false commit -q -m {secret}", "{outside}/evil"),
)
_EVIL_CONFIG = "[core]\n\tfsmonitor = {tool}\n\tpager = {tool}\n[diff]\n\texternal = {tool}\n"
_LOADER_ERRORS = ("error while loading", "cannot be preloaded", "cannot be loaded")

# Variables that are inherited from the caller.
SCENARIOS["environment"] = [
    harmless(
        "LD_LIBRARY_PATH to the project",
        ("ls",),
        file("libc.so.6", "x"),
        file("libselinux.so.1", "x"),
        environ={"LD_LIBRARY_PATH": "{project}"},
        forbidden_output=_LOADER_ERRORS,
    ),
    harmless(
        "LD_LIBRARY_PATH with an empty entry",
        ("ls",),
        file("libc.so.6", "x"),
        file("libselinux.so.1", "x"),
        environ={"LD_LIBRARY_PATH": ":/usr/local/cuda/lib64"},
        forbidden_output=_LOADER_ERRORS,
    ),
    harmless(
        "LD_LIBRARY_PATH with an empty entry, and git",
        ("git", "status"),
        file("libz.so.1", "x"),
        environ={"LD_LIBRARY_PATH": "/usr/lib:"},
        forbidden_output=_LOADER_ERRORS,
    ),
    harmless("LD_PRELOAD", ("ls",), file("evil.so", "x"), environ={"LD_PRELOAD": "{project}/evil.so"}, forbidden_output=_LOADER_ERRORS),
    harmless("LD_AUDIT", ("ls",), file("evil.so", "x"), environ={"LD_AUDIT": "{project}/evil.so"}, forbidden_output=_LOADER_ERRORS),
    harmless("LD_DEBUG with a file", ("ls",), environ={"LD_DEBUG": "libs", "LD_DEBUG_OUTPUT": "{canary}"}),
    harmless("LD_DEBUG alone", ("ls",), environ={"LD_DEBUG": "files"}, forbidden_output=("calling init",)),
    harmless("LD_TRACE_LOADED_OBJECTS", ("echo", "printed"), environ={"LD_TRACE_LOADED_OBJECTS": "1"}, forbidden_output=("libc.so",)),
    *(
        harmless(f"{name} to a file", ("git", "status"), environ={name: "{canary}"})
        for name in (
            "GIT_TRACE",
            "GIT_TRACE2",
            "GIT_TRACE2_EVENT",
            "GIT_TRACE2_PERF",
            "GIT_TRACE_SETUP",
            "GIT_TRACE_PERFORMANCE",
            "GIT_TRACE_REFS",
        )
    ),
    harmless("GIT_DIR", ("git", "status"), *_EVIL_GIT, environ={"GIT_DIR": "{outside}/evil/.git"}),
    harmless("GIT_DIR, and a log", ("git", "log"), *_EVIL_GIT, environ={"GIT_DIR": "{outside}/evil/.git"}),
    harmless("GIT_COMMON_DIR", ("git", "status"), *_EVIL_GIT, environ={"GIT_COMMON_DIR": "{outside}/evil/.git"}),
    harmless("GIT_WORK_TREE", ("git", "diff"), environ={"GIT_WORK_TREE": "{outside}"}),
    harmless("GIT_CONFIG_GLOBAL", ("git", "status"), file("{outside}/cfg", _EVIL_CONFIG), environ={"GIT_CONFIG_GLOBAL": "{outside}/cfg"}),
    harmless("GIT_CONFIG_SYSTEM", ("git", "status"), file("{outside}/cfg", _EVIL_CONFIG), environ={"GIT_CONFIG_SYSTEM": "{outside}/cfg"}),
    harmless(
        "GIT_CONFIG_COUNT",
        ("git", "status"),
        environ={"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "core.fsmonitor", "GIT_CONFIG_VALUE_0": "{tool}"},
    ),
    harmless(
        "GIT_CONFIG_COUNT of many",
        ("git", "status"),
        environ={
            "GIT_CONFIG_COUNT": "9",
            **{f"GIT_CONFIG_KEY_{n}": "core.fsmonitor" for n in range(9)},
            **{f"GIT_CONFIG_VALUE_{n}": "{tool}" for n in range(9)},
        },
    ),
    harmless("GIT_CONFIG_PARAMETERS", ("git", "status"), environ={"GIT_CONFIG_PARAMETERS": "'core.fsmonitor={tool}'"}),
    harmless("GIT_EXTERNAL_DIFF", ("git", "diff"), append("README.md", "x\n"), environ={"GIT_EXTERNAL_DIFF": "{tool}"}),
    harmless("GIT_PAGER", ("git", "log"), environ={"GIT_PAGER": "{tool}", "PAGER": "{tool}", "GIT_PAGER_IN_USE": "1"}),
    harmless(
        "XDG_CONFIG_HOME with settings of git",
        ("git", "status"),
        file("{outside}/git/config", _EVIL_CONFIG),
        environ={"XDG_CONFIG_HOME": "{outside}"},
    ),
    harmless(
        "XDG_CONFIG_HOME with attributes of git",
        ("git", "log", "-p"),
        file("{outside}/git/config", '[diff "e"]\n\ttextconv = {tool}\n'),
        file("{outside}/git/attributes", "* diff=e\n"),
        environ={"XDG_CONFIG_HOME": "{outside}"},
    ),
    harmless("HOME with settings of git", ("git", "status"), file("{outside}/.gitconfig", _EVIL_CONFIG), environ={"HOME": "{outside}"}),
    harmless(
        "HOME in the project with settings of git",
        ("git", "diff"),
        append("README.md", "x\n"),
        file(".gitconfig", _EVIL_CONFIG),
        environ={"HOME": "{project}"},
    ),
    harmless("BASH_ENV", "bash -c 'ls'", file("rc", ": > {canary}\n"), environ={"BASH_ENV": "{project}/rc"}),
    harmless("ENV", "sh -c 'ls'", file("rc", ": > {canary}\n"), environ={"ENV": "{project}/rc"}),
    harmless("a function named ls", ("bash", "-c", "ls"), environ={"BASH_FUNC_ls%%": "() { : > {canary}\n}"}),
    harmless("a function named echo", ("bash", "-c", "echo hi"), environ={"BASH_FUNC_echo%%": "() { : > {canary}\n}"}),
    harmless("a function named cd", ("bash", "-c", "cd src && ls"), environ={"BASH_FUNC_cd%%": "() { : > {canary}\n}"}),
    harmless("a function, and a line of sh", "ls", environ={"BASH_FUNC_ls%%": "() { : > {canary}\n}"}),
    harmless("SHELLOPTS and PS4", "bash -c 'ls'", environ={"SHELLOPTS": "xtrace", "PS4": "$(: > {canary})"}),
    harmless("BASHOPTS that changes patterns", "bash -c 'cat *'", file(".env"), environ={"BASHOPTS": "dotglob"}),
    harmless("CDPATH", "cd src && cat main.py", environ={"CDPATH": "{outside}"}),
    harmless("OLDPWD", "cd - && cat data.txt", environ={"OLDPWD": "{outside}"}),
    harmless(
        "PERL5OPT",
        ("perl", "--version"),
        file("Evil.pm", 'open(F, ">", "{canary}"); 1;\n'),
        environ={"PERL5OPT": "-MEvil", "PERL5LIB": "{project}"},
    ),
    harmless("RIPGREP_CONFIG_PATH", ("rg", "x"), file("rc", "--pre={tool}\n"), environ={"RIPGREP_CONFIG_PATH": "{project}/rc"}),
    harmless("TMPDIR", ("sort", "data.csv"), environ={"TMPDIR": "{home}"}),
    # secrets in variables
    *(
        harmless(
            f"a secret in a variable: {line}",
            line,
            environ={
                "http_proxy": "http://u:{secret}@h:1",
                "database_url": "{secret}",
                "apikey": "{secret}",
                "GITHUB_TOKEN": "{secret}",
                "Pw": "{secret}",
                "x": "{secret}",
            },
        )
        for line in (
            "echo $http_proxy",
            "echo $database_url",
            "echo $apikey",
            'echo "$database_url"',
            "echo a$x",
            "printf %s $database_url",
            "echo $GITHUB_TOKEN",
            "echo $Pw",
            "bash -c 'echo $database_url'",
            "sh -c 'echo $http_proxy'",
            "basename $database_url",
            "y=$database_url; echo $y",
            "expr $database_url",
            "printenv",
            "printenv database_url",
            "env",
            "set",
            "export -p",
            "ps eww",
        )
    ),
    ask("the environment of a process", ("cat", "/proc/self/environ")),
    *(
        ask(f"{name} for the task", ("ls",), env={name: value})
        for name, value in (
            ("LD_PRELOAD", "x.so"),
            ("LD_LIBRARY_PATH", "."),
            ("HOME", "{outside}"),
            ("XDG_CONFIG_HOME", "{outside}"),
            ("BASH_ENV", "x"),
            ("BACKBURNER_HOME", "{outside}"),
            ("PWD", "{outside}"),
            ("TMPDIR", "{home}"),
        )
    ),
    *(
        ask(f"{name} for git", ("git", "status"), env={name: value})
        for name, value in (("GIT_DIR", "x"), ("GIT_CONFIG_COUNT", "0"), ("GIT_TRACE", "{canary}"), ("GIT_EXTERNAL_DIFF", "{tool}"))
    ),
    allow("a language for the task", ("ls",), env={"LANG": "C"}),
    allow("a time zone for the task", ("date",), env={"TZ": "UTC"}),
    allow("no colour for the task", ("ls",), env={"NO_COLOR": "1"}),
    allow("a variable of the caller that no program reads", ("ls",), environ={"MY_APP_MODE": "dev"}),
    allow("an editor of the caller", ("git", "log", "--oneline"), environ={"EDITOR": "vim", "VISUAL": "vim"}),
    allow(
        "a session of a terminal",
        ("git", "status"),
        environ={"TERM": "xterm-256color", "COLORTERM": "truecolor", "SSH_AUTH_SOCK": "/nonexistent/agent"},
    ),
    allow("the home directory", "echo $HOME"),
    allow("the user name", "echo $USER"),
]

_STATUS, _DIFF, _LOG, _SHOW = ("git", "status"), ("git", "diff"), ("git", "log", "-p"), ("git", "show")
_CHANGED = append("README.md", "x\n")
_OLD_TIMESTAMP = with_old_timestamp("README.md")


def _settings(text: str, path: str = ".git/config") -> Step:
    """Append settings to a file, and create the file if it does not exist."""

    def step(sandbox: Sandbox) -> None:
        sandbox.path(path).parent.mkdir(parents=True, exist_ok=True)
        append(path, text)(sandbox)

    return step


def _driver(name: str, kind: str, key: str, config: str = ".git/config", attributes: str = ".gitattributes") -> tuple[Step, ...]:
    """Define a driver for all files. Its name may contain unusual characters."""
    quoted = name.replace("\\", "\\\\").replace('"', '\\"')
    return (
        _settings(f'[{kind} "{quoted}"]\n\t{key} = {{tool}}\n\trequired = false\n', config),
        _settings(f"* {kind}={name}\n", attributes),
    )


# A commit with a signature: git runs the signature program to check it.
_SIGNED = sh(
    r"""c=$(git cat-file commit HEAD | sed '/^committer/a gpgsig -----BEGIN PGP SIGNATURE-----\n \n AAAA\n -----END PGP SIGNATURE-----' |"""
    " git hash-object -t commit -w --stdin); git update-ref HEAD $c"
)
# A repository with a missing object, which git would fetch from the address in its settings.
_PARTIAL = (
    sh(
        "mv .git/objects/pack p && for f in p/*.pack; do git unpack-objects -q < $f; done; rm -rf p;"
        " b=$(git rev-parse HEAD~1:LICENSE); rm .git/objects/$(echo $b | cut -c1-2)/$(echo $b | cut -c3-); git config core.repositoryformatversion 1;"
        " git config extensions.partialClone origin; git config remote.origin.promisor true"
    ),
)
_SUBMODULE = (
    sh(
        "git -c protocol.file.allow=always submodule add -q {home}/code/other sub && git commit -q -m sub && git config --remove-section submodule.sub || :"
    ),
    sh("git config submodule.sub.url https://example.org/other.git; git config submodule.sub.active true"),
)
_WORKTREE = (sh("git worktree add -q {home}/code/wt -b wt"),)
_BARE = (
    sh("mkdir -p d/objects d/refs d/inner && echo 'ref: refs/heads/main' > d/HEAD"),
    file("d/config", "[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tworktree = {project}\n\tfsmonitor = {tool}\n"),
)
_NESTED = (
    sh("git init -q --template= inner && cd inner && echo x > x && git add x && git commit -q -m x && git config core.fsmonitor {tool}"),
)
_STORE = (
    sh(
        "git init -q --template= store && cd store && echo {secret} > s.txt && git add s.txt && git commit -q -m {secret} && git config core.fsmonitor {tool}",
        "{outside}",
    ),
)

# No file that git reads may make an allowed git command run a program.
SCENARIOS["git runs nothing"] = [
    *(
        harmless(f"{key} of the repository: {' '.join(line)}", line, _CHANGED, _settings(f"[{section}]\n\t{key} = {{tool}}\n"))
        for section, key, line in (
            ("core", "fsmonitor", _STATUS),
            ("core", "fsmonitor", _DIFF),
            ("core", "fsmonitor", ("git", "ls-files", "--modified")),
            ("core", "pager", ("git", "log")),
            ("pager", "log", ("git", "log")),
            ("diff", "external", _DIFF),
            ("core", "sshCommand", _STATUS),
            ("credential", "helper", ("git", "log")),
        )
    ),
    harmless("FSMonitor in mixed case", _STATUS, _settings("[CORE]\n\tFsMonitor={tool}\n")),
    harmless("fsmonitor on a continued line", _STATUS, _settings("[core] fsmonitor = \\\n{tool}\n")),
    harmless("fsmonitor after another value", _STATUS, _settings("[core]\n\tfsmonitor = false\n\tfsmonitor = {tool}\n")),
    harmless("fsmonitor, version 2", _STATUS, _settings("[core]\n\tfsmonitor = {tool}\n\tfsmonitorHookVersion = 2\n")),
    harmless(
        "fsmonitor in settings with a byte order mark",
        _STATUS,
        sh(r"printf '\357\273\277' | cat - .git/config > c && mv c .git/config"),
        _settings("[core]\n\tfsmonitor = {tool}\n"),
    ),
    harmless("fsmonitor with Windows line ends", _STATUS, _settings("[core]\r\n\tfsmonitor = {tool}\r\n")),
    harmless("a hook after a change of the index: status", _STATUS, program(".git/hooks/post-index-change"), _OLD_TIMESTAMP),
    harmless("a hook after a change of the index: diff", _DIFF, program(".git/hooks/post-index-change"), _OLD_TIMESTAMP),
    harmless(
        "hooks outside the project",
        _STATUS,
        program("{outside}/hooks/post-index-change"),
        _settings("[core]\n\thooksPath = {outside}/hooks\n"),
        _OLD_TIMESTAMP,
    ),
    harmless(
        "hooks in the project", _STATUS, program(".husky/post-index-change"), _settings("[core]\n\thooksPath = .husky\n"), _OLD_TIMESTAMP
    ),
    harmless(
        "hooks by a link", _STATUS, program("{outside}/hooks/post-index-change"), link(".git/hooks", "{outside}/hooks"), _OLD_TIMESTAMP
    ),
    harmless(
        "hooks of the user's settings",
        _STATUS,
        program("{outside}/hooks/post-index-change"),
        _settings("[core]\n\thooksPath = {outside}/hooks\n", "{home}/.gitconfig"),
        _OLD_TIMESTAMP,
    ),
    *(
        harmless(f"a {kind} driver's {key} named {name!r}: {' '.join(line)}", line, *_driver(name, kind, key), *steps)
        for kind, key, name, line, steps in (
            ("filter", "clean", "evil", _STATUS, (_OLD_TIMESTAMP,)),
            ("filter", "clean", "evil", _DIFF, (_CHANGED,)),
            ("filter", "process", "evil", _STATUS, (_OLD_TIMESTAMP,)),
            ("filter", "process", "evil", _DIFF, (_CHANGED,)),
            ("filter", "clean", "lfs", _DIFF, (_CHANGED,)),
            ("filter", "clean", "a=b", _DIFF, (_CHANGED,)),
            ("filter", "clean", "a.b", _DIFF, (_CHANGED,)),
            ("filter", "clean", "A", _DIFF, (_CHANGED,)),
            ("filter", "clean", "é", _DIFF, (_CHANGED,)),
            ("filter", "clean", "a'b", _DIFF, (_CHANGED,)),
            ("filter", "process", "a=b.clean=x", _DIFF, (_CHANGED,)),
            ("diff", "textconv", "evil", _DIFF, (_CHANGED,)),
            ("diff", "textconv", "evil", _LOG, ()),
            ("diff", "textconv", "evil", _SHOW, ()),
            ("diff", "textconv", "evil", ("git", "blame", "README.md"), ()),
            ("diff", "textconv", "a=b", _LOG, ()),
            ("diff", "textconv", "a=b", ("git", "blame", "README.md"), ()),
            ("diff", "textconv", "a.b", _SHOW, ()),
            ("diff", "command", "evil", _DIFF, (_CHANGED,)),
            ("diff", "command", "a=b", _DIFF, (_CHANGED,)),
            ("diff", "textconv", "python", _DIFF, (_CHANGED,)),
        )
    ),
    harmless("textconv by .git/info/attributes", _LOG, *_driver("evil", "diff", "textconv", attributes=".git/info/attributes")),
    harmless(
        "textconv in another directory's attributes",
        _LOG,
        *_driver("evil", "diff", "textconv", attributes="src/.gitattributes"),
        sh("echo y >> src/main.py && git commit -q -a -m y"),
    ),
    harmless(
        "clean by the user's attributes",
        _DIFF,
        *_driver("evil", "filter", "clean", attributes="{home}/.config/git/attributes"),
        _CHANGED,
    ),
    harmless(
        "attributes outside the project",
        _DIFF,
        *_driver("evil", "filter", "clean", attributes="{outside}/attributes"),
        _settings("[core]\n\tattributesFile = {outside}/attributes\n"),
        _CHANGED,
    ),
    harmless("a driver of the user's settings", _DIFF, *_driver("evil", "filter", "clean", "{home}/.gitconfig"), _CHANGED),
    harmless(
        "a driver of the user's settings, with an unusual name", _DIFF, *_driver("a=b", "diff", "textconv", "{home}/.gitconfig"), _CHANGED
    ),
    harmless(
        "a driver in an included file",
        _LOG,
        *_driver("evil", "diff", "textconv", "{outside}/more"),
        _settings("[include]\n\tpath = {outside}/more\n"),
    ),
    harmless("included settings", _STATUS, file("{outside}/more", _EVIL_CONFIG), _settings("[include]\n\tpath = {outside}/more\n")),
    harmless("included settings by a relative path", _STATUS, file("more", _EVIL_CONFIG), _settings("[include]\n\tpath = ../more\n")),
    harmless(
        "included settings under a condition",
        _STATUS,
        file("{outside}/more", _EVIL_CONFIG),
        _settings('[includeIf "gitdir:**"]\n\tpath = {outside}/more\n'),
    ),
    harmless(
        "included settings for a branch",
        _STATUS,
        file("{outside}/more", _EVIL_CONFIG),
        _settings('[includeIf "onbranch:main"]\n\tpath = {outside}/more\n'),
    ),
    harmless(
        "included settings over two files",
        _STATUS,
        file("{outside}/more", "[include]\n\tpath = most\n"),
        file("{outside}/most", _EVIL_CONFIG),
        _settings("[include]\n\tpath = {outside}/more\n"),
    ),
    harmless("settings that are a link", _STATUS, file("{outside}/cfg", _EVIL_CONFIG), link(".git/config", "{outside}/cfg")),
    harmless("~/.gitconfig: status", _STATUS, file("{home}/.gitconfig", _EVIL_CONFIG)),
    harmless("~/.gitconfig: diff", _DIFF, _CHANGED, file("{home}/.gitconfig", _EVIL_CONFIG)),
    harmless("~/.config/git/config", _STATUS, file("{home}/.config/git/config", _EVIL_CONFIG)),
    harmless(
        "~/.gitconfig that includes", _STATUS, file("{home}/more", _EVIL_CONFIG), file("{home}/.gitconfig", "[include]\n\tpath = ~/more\n")
    ),
    harmless(
        "settings of a worktree", _STATUS, _settings("[extensions]\n\tworktreeConfig = true\n"), file(".git/config.worktree", _EVIL_CONFIG)
    ),
    harmless(
        "settings of a worktree, in a worktree",
        _STATUS,
        *_WORKTREE,
        _settings("[extensions]\n\tworktreeConfig = true\n"),
        file(".git/worktrees/wt/config.worktree", _EVIL_CONFIG),
        session="{home}/code/wt",
    ),
    harmless(
        "settings of the repository, in a worktree",
        _DIFF,
        *_WORKTREE,
        append("{home}/code/wt/README.md", "x\n"),
        _settings(_EVIL_CONFIG),
        session="{home}/code/wt",
    ),
    harmless(
        "hooks of the repository, in a worktree",
        _STATUS,
        *_WORKTREE,
        program(".git/hooks/post-index-change"),
        with_old_timestamp("{home}/code/wt/README.md"),
        session="{home}/code/wt",
    ),
    harmless("a common directory outside the project", _STATUS, *_STORE, file(".git/commondir", "{outside}/store/.git\n")),
    harmless(
        "a common directory in the project",
        _STATUS,
        sh("cp -r .git common"),
        append("common/config", _EVIL_CONFIG),
        file(".git/commondir", "../common\n"),
    ),
    # signatures
    harmless(
        "a program for signatures: log", ("git", "log"), _SIGNED, _settings("[log]\n\tshowSignature = true\n[gpg]\n\tprogram = {tool}\n")
    ),
    harmless("a program for signatures: show", _SHOW, _SIGNED, _settings("[log]\n\tshowSignature = true\n[gpg]\n\tprogram = {tool}\n")),
    harmless(
        "a program for signatures by the name of OpenPGP",
        ("git", "log"),
        _SIGNED,
        _settings('[log]\n\tshowSignature = true\n[gpg "openpgp"]\n\tprogram = {tool}\n'),
    ),
    harmless(
        "a format of logs that checks signatures",
        ("git", "log"),
        _SIGNED,
        _settings("[format]\n\tpretty = %G?\n[gpg]\n\tprogram = {tool}\n"),
    ),
    harmless(
        "a named format of logs that checks signatures",
        ("git", "log", "--pretty=mine"),
        _SIGNED,
        _settings("[pretty]\n\tmine = %G?\n[gpg]\n\tprogram = {tool}\n"),
    ),
    ask("a log with signatures", ("git", "log", "--show-signature"), _SIGNED),
    ask("a format that checks signatures", ("git", "log", "--format=%G?"), _SIGNED),
    # missing objects that git would fetch
    harmless(
        "a missing object, and a program to fetch it: log",
        _LOG,
        *_PARTIAL,
        _settings('[remote "origin"]\n\turl = {outside}\n\tuploadpack = {tool}\n'),
        sh("git config --unset-all remote.origin.url; git config remote.origin.url {outside}"),
    ),
    harmless(
        "a missing object, and a program to fetch it: diff",
        ("git", "diff", "HEAD~1"),
        *_PARTIAL,
        sh("git config --replace-all remote.origin.url {outside}; git config remote.origin.uploadpack {tool}"),
    ),
    harmless(
        "a missing object, and a program to fetch it: show",
        ("git", "show", "HEAD"),
        *_PARTIAL,
        sh("git config --replace-all remote.origin.url {outside}; git config remote.origin.uploadpack {tool}"),
    ),
    harmless(
        "a missing object, and a program to fetch it: blame",
        ("git", "blame", "LICENSE"),
        *_PARTIAL,
        sh("git config --replace-all remote.origin.url {outside}; git config remote.origin.uploadpack {tool}"),
    ),
    harmless(
        "a missing object, and an address that is a program",
        _LOG,
        *_PARTIAL,
        sh("git config --replace-all remote.origin.url 'ext::{tool}'; git config protocol.ext.allow always"),
    ),
    harmless(
        "a missing object, and a command to connect to a host",
        _LOG,
        *_PARTIAL,
        sh("git config --replace-all remote.origin.url ssh://127.0.0.1:1/x; git config core.sshCommand {tool}"),
    ),
    harmless(
        "a missing object, and a proxy program",
        _LOG,
        *_PARTIAL,
        sh("git config --replace-all remote.origin.url git://127.0.0.1:1/x; git config core.gitProxy {tool}"),
    ),
    harmless(
        "a missing object, and a rewritten address",
        _LOG,
        *_PARTIAL,
        sh(
            "git config --replace-all remote.origin.url https://127.0.0.1:1/x; git config url.ext::{tool}.insteadOf https://127.0.0.1:1/x; git config protocol.ext.allow always"
        ),
    ),
    harmless(
        "a missing object, and a remote helper in PATH",
        _LOG,
        *_PARTIAL,
        program("{home}/.local/bin/git-remote-evil"),
        sh("git config --replace-all remote.origin.url evil::x; git config remote.origin.vcs evil"),
        environ={"PATH": "{home}/.local/bin:" + SYSTEM_PATH},
    ),
    # repositories in the project
    harmless("a directory with the layout of a repository", _STATUS, *_BARE, cwd="{project}/d"),
    harmless("a directory inside one with the layout of a repository", _STATUS, *_BARE, cwd="{project}/d/inner"),
    harmless("cd to a directory with the layout of a repository", "cd d && git status", *_BARE),
    harmless("cd to a directory with the layout of a repository, and a log", "cd d && git diff", *_BARE),
    harmless("an inner repository", _STATUS, *_NESTED, cwd="{project}/inner"),
    harmless("cd to an inner repository", "cd inner && git status", *_NESTED),
    harmless("an inner repository that is part of the index", _STATUS, *_NESTED, sh("git -c core.fsmonitor=false add inner 2>/dev/null")),
    harmless(
        "an inner repository that is part of the index, and a diff",
        _DIFF,
        *_NESTED,
        sh("git add inner 2>/dev/null"),
        append("inner/x", "x\n"),
    ),
    harmless(
        "a .git file to a directory of the project",
        _STATUS,
        sh("cp -r .git store && mkdir w"),
        append("store/config", _EVIL_CONFIG),
        file("w/.git", "gitdir: ../store\n"),
        cwd="{project}/w",
    ),
    harmless(
        "a .git file to a directory outside",
        _STATUS,
        *_STORE,
        folder("w"),
        file("w/.git", "gitdir: {outside}/store/.git\n"),
        cwd="{project}/w",
    ),
    harmless(
        "a .git link to a directory outside", _STATUS, *_STORE, folder("w"), link("w/.git", "{outside}/store/.git"), cwd="{project}/w"
    ),
    harmless("the project's own .git as a file", _STATUS, *_STORE, sh("rm -rf .git"), file(".git", "gitdir: {outside}/store/.git\n")),
    harmless("the project's own .git as a link", _STATUS, *_STORE, sh("rm -rf .git"), link(".git", "{outside}/store/.git")),
    harmless("cd to a .git file", "cd w && git status", *_STORE, file("w/.git", "gitdir: {outside}/store/.git\n")),
    harmless("git in the git directory", _STATUS, _settings(_EVIL_CONFIG), cwd="{project}/.git"),
    # submodules
    *(
        harmless(f"settings of a submodule: {' '.join(line)}", line, *_SUBMODULE, *steps)
        for line, steps in (
            (_STATUS, (_settings(_EVIL_CONFIG, ".git/modules/sub/config"),)),
            (_DIFF, (_settings(_EVIL_CONFIG, ".git/modules/sub/config"), append("sub/README.md", "x\n"))),
            (("git", "status", "--short"), (program(".git/modules/sub/hooks/post-index-change"), with_old_timestamp("sub/README.md"))),
        )
    ),
    harmless(
        "a driver of a submodule",
        _STATUS,
        *_SUBMODULE,
        *_driver("evil", "filter", "clean", ".git/modules/sub/config", "sub/.gitattributes"),
        with_old_timestamp("sub/README.md"),
    ),
    harmless(
        "a driver of a submodule with an unusual name",
        _STATUS,
        *_SUBMODULE,
        *_driver("a=b", "filter", "process", ".git/modules/sub/config", "sub/.gitattributes"),
        with_old_timestamp("sub/README.md"),
    ),
    harmless(
        "a submodule shown as a log",
        _DIFF,
        *_SUBMODULE,
        _settings("[diff]\n\tsubmodule = diff\n"),
        _settings(_EVIL_CONFIG, ".git/modules/sub/config"),
        append("sub/README.md", "x\n"),
        forbidden_output=(),
    ),
    harmless(
        "a summary of submodules",
        _STATUS,
        *_SUBMODULE,
        _settings("[status]\n\tsubmoduleSummary = true\n"),
        _settings(_EVIL_CONFIG, ".git/modules/sub/config"),
    ),
    harmless("a submodule whose .git points outside", _STATUS, *_SUBMODULE, *_STORE, file("sub/.git", "gitdir: {outside}/store/.git\n")),
    # names of subcommands
    ask("an alias of the repository", ("git", "st"), _settings("[alias]\n\tst = !{tool}\n")),
    ask("an alias of the user", ("git", "st"), file("{home}/.gitconfig", "[alias]\n\tst = !{tool}\n")),
    harmless("an alias named like a verb", _STATUS, _settings("[alias]\n\tstatus = !{tool}\n")),
    ask(
        "a program named like a verb",
        ("git", "evil"),
        program("{home}/.local/bin/git-evil"),
        environ={"PATH": "{home}/.local/bin:" + SYSTEM_PATH},
    ),
    *scenarios(
        "ask",
        ("git", "-c", "core.fsmonitor={tool}", "status"),
        ("git", "--git-dir={outside}/evil/.git", "status"),
        ("git", "--work-tree={outside}", "diff"),
        ("git", "-C", "{outside}", "status"),
        ("git", "-C", "..", "log"),
        ("git", "--exec-path={outside}", "status"),
        ("git", "--config-env=core.fsmonitor=USER", "status"),
        ("git", "--namespace=x", "push"),
        ("git", "diff", "--ext-diff"),
        ("git", "diff", "--output=new"),
        ("git", "diff", "--no-index", "README.md", "{outside}/data.txt"),
        ("git", "diff", "README.md", "{outside}/data.txt"),
        ("git", "grep", "-O{tool}", "TODO"),
        ("git", "log", "--textconv"),
        ("git", "config", "core.fsmonitor", "{tool}"),
        ("git", "config", "--global", "alias.x", "!id"),
        ("git", "-p", "log"),
    ),
    # everyday commands
    *scenarios(
        "allow",
        ("git", "status"),
        ("git", "status", "--short"),
        ("git", "log", "--oneline", "-5"),
        ("git", "diff"),
        ("git", "diff", "--stat"),
        ("git", "show", "HEAD"),
        ("git", "branch"),
        ("git", "log", "--oneline", "--", "README.md"),
        ("git", "blame", "README.md"),
        ("git", "rev-parse", "--abbrev-ref", "HEAD"),
        "git status && git diff --stat",
        "cd src && git status",
    ),
    allow("a worktree: status", _STATUS, *_WORKTREE, session="{home}/code/wt"),
    allow("a worktree: log", ("git", "log", "--oneline", "-5"), *_WORKTREE, session="{home}/code/wt"),
    allow("a worktree: diff", _DIFF, *_WORKTREE, append("{home}/code/wt/README.md", "x\n"), session="{home}/code/wt"),
    allow("a worktree in the project", _STATUS, sh("git worktree add -q .trees/wt -b wt"), cwd="{project}/.trees/wt"),
    allow("a repository with worktrees", _STATUS, *_WORKTREE),
    harmless("a submodule: status of the whole", _STATUS, *_SUBMODULE),
    harmless("a submodule: log of the whole", ("git", "log", "--oneline", "-5"), *_SUBMODULE),
    harmless("a submodule: status in it", _STATUS, *_SUBMODULE, cwd="{project}/sub"),
    allow("settings of an editor for a branch", _STATUS, _settings('[branch "main"]\n\tvscode-merge-base = origin/main\n')),
    allow("settings of gh for a remote", _STATUS, _settings('[remote "origin"]\n\tgh-resolved = base\n')),
    allow("hooks of a tool", _STATUS, program(".husky/pre-commit", "#!/bin/sh\n"), _settings("[core]\n\thooksPath = .husky\n")),
    allow("commits that are signed", ("git", "log", "--oneline"), _settings("[commit]\n\tgpgsign = true\n")),
    allow("settings of the user", _STATUS, file("{home}/.gitconfig", "[user]\n\tname = Alice\n[pull]\n\trebase = true\n")),
    allow("a session in a directory of the repository", _STATUS, session="{project}/src"),
]

_TOKEN = sh("git config --replace-all remote.origin.url https://u:{secret}@example.org/p.git")
_TRACKED = sh("echo {secret} > .env && git add -f .env && git commit -q -m env")
# Names that look like secrets, and searches and git commands that would show one.
SCENARIOS["secrets"] = [
    *(
        ask(f"{name}, by {' '.join(words)}", (*words, name), file(name))
        for name, words in (
            ("terraform.tfstate", ("cat",)),
            ("terraform.tfstate.backup", ("head",)),
            ("kubeconfig", ("cat",)),
            ("kubeconfig.yaml", ("tail",)),
            ("serviceAccount.json", ("cat",)),
            ("service-account.json", ("cat",)),
            ("serviceAccountKey.json", ("cat",)),
            ("gcp-key.json", ("grep", "x")),
            (".vault_pass", ("cat",)),
            ("AuthKey_ABC.p8", ("cat",)),
            ("login.ppk", ("od", "-c")),
            (".my.cnf", ("cat",)),
            (".s3cfg", ("sort",)),
            (".dockercfg", ("cat",)),
            ("auth.json", ("cat",)),
            ("oauth_creds.json", ("cat",)),
            ("apikey.txt", ("cat",)),
            ("api_key.txt", ("sed", "-n", "1p")),
            ("api-keys.json", ("cat",)),
            ("local.settings.json", ("cat",)),
            ("config/kubeconfig", ("cat",)),
            ("deploy/Terraform.TFState", ("cat",)),
            (".ENV", ("cat",)),
            (".env~", ("cat",)),
            (".env.bak", ("cat",)),
            (".Env.Local", ("cat",)),
            ("ID_RSA", ("cat",)),
            ("server.PEM", ("cat",)),
            ("Secrets/db.yaml", ("cat",)),
            (".netrc", ("cat",)),
            (".pypirc", ("wc", "-c")),
        )
    ),
    ask("a copy under another name", ("cp", "terraform.tfstate", "x.txt"), file("terraform.tfstate")),
    ask("a redirect", "cat < kubeconfig", file("kubeconfig")),
    ask("a pattern that matches a secret", "cat *.json", file("auth.json")),
    ask("a comparison", ("diff", "README.md", "apikey.txt"), file("apikey.txt")),
    ask("after cd", "cd conf && cat auth.json", file("conf/auth.json")),
    ask("settings of git", ("cat", ".git/config"), _TOKEN),
    ask("settings of git, through ..", ("cat", "src/../.git/config"), _TOKEN),
    ask("settings of git, by two slashes", ("cat", ".git//config"), _TOKEN),
    ask("settings of git, after cd", "cd .git && cat config", _TOKEN),
    ask("settings of git, from its directory", ("cat", "config"), _TOKEN, cwd="{project}/.git"),
    ask("settings of git, by a search", ("grep", "url", ".git/config"), _TOKEN),
    ask("settings of git, by a pattern", "cat .git/conf*", _TOKEN),
    ask("settings of a submodule", ("cat", ".git/modules/sub/config"), file(".git/modules/sub/config")),
    ask("settings of a worktree", ("cat", ".git/config.worktree"), file(".git/config.worktree")),
    ask("settings of an inner repository", ("cat", "inner/.git/config"), file("inner/.git/config")),
    ask("credentials that git stored", ("cat", ".git/credentials"), file(".git/credentials")),
    *(
        harmless(f"a token in git's settings: {line}", line, _TOKEN)
        for line in (
            "grep -r example .",
            "grep -rn example .git",
            "grep -r example .git/",
            "grep -r . .",
            "grep -rI --exclude-dir=node_modules example .",
            "git remote -v",
            "git remote show origin",
            "git remote get-url origin",
            "git config --list",
            "git config -l",
            "git config --get remote.origin.url",
            "git config --get-regexp remote",
            "git ls-remote --get-url",
            "cd .git && grep -r example .",
            "find .git -name config -exec cat {} +",
            "find . -path './.git/config' -exec grep u {} +",
            "find .git -name config | xargs cat",
            "rg --hidden example",
            "rg -uuu example",
            "rg example .git/config",
            "sort .git/config",
            "cp .git/config x.txt",
            "diff .git/config README.md",
        )
    ),
    harmless(
        "a token in an address that the user's settings rewrite",
        ("git", "remote", "-v"),
        file("{home}/.gitconfig", '[url "https://u:{secret}@example.org/"]\n\tinsteadOf = https://example.org/\n'),
    ),
    *(
        harmless(f"a secret in a subdirectory: {path}, by {line}", line, file(path, "needle {secret}\n"))
        for path, line in (
            ("__pycache__/id_rsa", "grep -r needle ."),
            ("src/a/b/c/d/e/kubeconfig", "grep -r needle src"),
            ("src/a/terraform.tfstate", "grep -rn needle src"),
            ("inner/.git/config", "grep -r needle inner"),
            ("docs/.my.cnf", "grep -r needle docs"),
            ("docs/.my.cnf", "grep --recursive needle docs"),
            ("docs/.my.cnf", "egrep -rn needle docs"),
            ("docs/.my.cnf", "grep -e needle -r docs"),
            ("docs/.my.cnf", "cd docs && grep -r needle"),
            ("docs/apikey.txt", "rg needle docs"),
            ("docs/apikey.txt", "find docs -type f -exec cat {} +"),
            ("docs/apikey.txt", "find docs -type f | xargs cat"),
            ("docs/apikey.txt", "cat docs/*"),
            ("docs/apikey.txt", "diff -r docs src"),
            ("docs/apikey.txt", "diff -rN docs src"),
        )
    ),
    *(
        harmless(f"a secret in the history: {line}", line, _TRACKED, sh("git rev-parse HEAD:.env > .git/refs/tags/blob"))
        for line in (
            "git show HEAD:.env",
            "git show HEAD:./.env",
            "git show HEAD:src/../.env",
            "git show :.env",
            "git show :0:.env",
            "git show blob",
            "git show tags/blob",
            "git show HEAD",
            "git show",
            "git log -p",
            "git log -p -1",
            "git diff HEAD~1",
            "git diff HEAD~1 HEAD",
            "git diff HEAD~1 HEAD -- .env",
            "git log -p -- .",
            "git blame .env",
            "git cat-file -p HEAD:.env",
            "git cat-file blob blob",
            "git grep -n TOP",
            "git show HEAD --raw -p",
        )
    ),
    harmless("a secret that changed", ("git", "diff"), _TRACKED, append(".env", "{secret}\n")),
    harmless("a secret that is staged", ("git", "diff", "--cached"), file(".env"), sh("git add -f .env")),
    harmless(
        "a repository that uses the objects of another one",
        ("git", "log", "-p", "leak"),
        file(".git/objects/info/alternates", "{home}/code/other/.git/objects\n"),
        sh("mkdir -p .git/refs/heads; git -C {home}/code/other rev-parse HEAD > .git/refs/heads/leak"),
    ),
    harmless(
        "a .git file that points to another project: log",
        ("git", "log"),
        file("w/.git", "gitdir: {home}/code/other/.git\n"),
        cwd="{project}/w",
    ),
    harmless(
        "a .git file that points to another project: show",
        ("git", "show"),
        file("w/.git", "gitdir: {home}/code/other/.git\n"),
        cwd="{project}/w",
    ),
    harmless("a work tree outside: diff", ("git", "diff"), _settings("[core]\n\tworktree = {outside}\n")),
    harmless(
        "a work tree outside: status", ("git", "status"), _settings("[core]\n\tworktree = {home}\n"), forbidden_output=(".bashrc", ".ssh")
    ),
    harmless(
        "a work tree outside, of a directory with the layout of a repository",
        "cd d && git status",
        sh("cp -r .git d"),
        sh("git config -f d/config core.worktree {home}"),
        forbidden_output=(".bashrc", ".ssh"),
    ),
    harmless("ignored names from a file outside", ("git", "status"), _settings("[core]\n\texcludesFile = {home}/.ssh/id_ed25519\n")),
    *scenarios(
        "ask", ("cat", "/etc/shadow"), ("cat", "/proc/1/environ"), ("cat", "{home}/.ssh/id_ed25519"), ("cat", "{home}/.config/gh/hosts.yml")
    ),
    allow("a list beside a secret", ("ls", "-la"), file(".env")),
    allow("a search of the sources beside a secret", ("grep", "-rn", "TODO", "src"), file(".env")),
    allow("status beside a secret", ("git", "status"), file(".env")),
    allow("a test for a secret's file", "test -f .env && echo there", file(".env")),
    allow("a harmless name that resembles a secret", ("cat", "src/keyboard.py"), file("src/keyboard.py", "x\n")),
    allow("another harmless name that resembles a secret", ("cat", "docs/author.json"), file("docs/author.json", "{}\n")),
    allow("a file of plain settings", ("cat", "package.json"), file("package.json", "{}\n")),
    allow("remotes without their addresses", ("git", "remote"), _TOKEN),
    allow("a log of names", ("git", "log", "--oneline", "--stat"), _TRACKED),
    allow("a diff of names", ("git", "diff", "--stat"), _TRACKED, append(".env", "x\n")),
]

_AUTOMATICALLY_USED = (
    ".claude/settings.json",
    ".claude/settings.local.json",
    ".claude/commands/x.md",
    ".mcp.json",
    ".vscode/tasks.json",
    ".vscode/settings.json",
    ".vscode/launch.json",
    ".idea/workspace.xml",
    ".cursor/mcp.json",
    ".gemini/settings.json",
    ".codex/config.toml",
    ".qwen/settings.json",
    "opencode.json",
    "opencode.jsonc",
    ".opencode/plugin/x.js",
    ".husky/pre-commit",
    ".git/hooks/pre-commit",
    ".git/info/attributes",
    ".git/config.worktree",
    ".devcontainer/devcontainer.json",
    ".devcontainer.json",
    ".zed/tasks.json",
    ".envrc",
    ".github/workflows/ci.yml",
    ".gitlab-ci.yml",
    ".pre-commit-config.yaml",
)


def _parent(path: str) -> tuple[Step, ...]:
    return (folder(os.path.dirname(path)),) if "/" in path else ()


# Files that other programs use automatically are not created without approval.
SCENARIOS["automatically used files"] = [
    *(ask(f"a redirect to {path}", f"echo x > {path}", *_parent(path)) for path in _AUTOMATICALLY_USED),
    *(ask(f"touch {path}", ("touch", path), *_parent(path)) for path in _AUTOMATICALLY_USED[::4]),
    *(ask(f"a copy to {path}", ("cp", "README.md", path), *_parent(path)) for path in _AUTOMATICALLY_USED[1::4]),
    *(ask(f"tee {path}", f"echo x | tee {path}", *_parent(path)) for path in _AUTOMATICALLY_USED[2::4]),
    *(
        ask(f"mkdir {path}", ("mkdir", "-p", path))
        for path in (
            ".claude",
            ".claude/hooks",
            ".husky",
            ".github/workflows",
            ".git/hooks",
            ".devcontainer",
            ".opencode/plugin",
            ".vscode",
            "inner/.git",
        )
    ),
    *(
        ask(f"in other case: {path}", ("touch", path), *_parent(path))
        for path in (
            ".Claude/settings.json",
            ".MCP.json",
            ".VSCode/tasks.json",
            ".GIT/hooks/pre-commit",
            ".Git/config",
            "OpenCode.json",
            ".GitHub/Workflows/x.yml",
            ".ENVRC",
        )
    ),
    *(
        ask(f"deeper in the project: {path}", ("touch", path), *_parent(path))
        for path in (
            "packages/a/.claude/settings.json",
            "packages/a/.vscode/tasks.json",
            "packages/a/.mcp.json",
            "packages/a/.envrc",
            "inner/.git/config",
            "inner/.git/hooks/post-index-change",
        )
    ),
    ask("a .git file", "echo 'gitdir: x' > src/.git"),
    ask("a .git directory", ("mkdir", "src/.git")),
    ask("after cd", "cd .claude && echo x > settings.json", folder(".claude")),
    ask("from the directory itself", "echo x > settings.json", folder(".claude"), cwd="{project}/.claude"),
    ask("a session in the directory itself", "echo x > settings.json", folder(".claude"), session="{project}/.claude"),
    ask("by a link to the directory", ("touch", "c/settings.json"), folder(".claude"), link("c", ".claude")),
    ask("by a broken link", ("touch", "m"), link("m", ".mcp.json")),
    ask("through slashes and dots", ("touch", ".//.claude/./settings.json"), folder(".claude")),
    ask("through .. components", ("touch", "src/../.mcp.json")),
    ask("by its full path", ("touch", "{project}/.mcp.json")),
    ask("by a pattern", "touch .cl*/settings.json", folder(".claude")),
    ask("into the directory by a copy", ("cp", "README.md", ".husky"), folder(".husky")),
    ask("by uniq", ("uniq", "README.md", ".mcp.json")),
    ask("by sort", ("sort", "-o", ".mcp.json", "README.md")),
    ask("by find", ("find", ".", "-fprint", ".mcp.json")),
    ask("by git", ("git", "log", "--output=.mcp.json")),
    ask("by git, in another way", ("git", "diff", "--output", ".mcp.json")),
    ask("by an append", "echo x >> .mcp.json"),
    ask("by a redirect of errors", "ls 2> .mcp.json"),
    ask("by a redirect of both outputs", "ls > .mcp.json 2>&1"),
    ask("with a hidden character in it", "touch .cl\u200caude"),
    ask(
        "in a trusted directory given by the caller",
        ("touch", ".git/hooks/pre-commit"),
        folder("{home}/code/other/.git/hooks"),
        cwd="{home}/code/other",
        trusted=("{home}/code/other",),
    ),
    *scenarios(
        "allow",
        ("touch", "notes.txt"),
        ("mkdir", "-p", "build/out"),
        "echo x > result.txt",
        ("cp", "README.md", "docs/copy.md"),
        "echo x | tee result.log",
        ("touch", "src/new.py"),
        ("touch", "docs/claude.md"),
        ("touch", "src/mcp.json"),
        ("mkdir", "-p", "src/idea"),
        ("touch", "src/github.py"),
        "ls > listing.txt 2>&1",
        "grep -n TODO src/main.py > found.txt",
    ),
]

# Names and paths that are not what they seem to be.
SCENARIOS["names"] = [
    *scenarios(
        "ask",
        ("cat", "//etc/hostname"),
        ("cat", "/./etc/hostname"),
        ("cat", "/etc/../etc/hostname"),
        ("cat", "/proc/self/root/etc/hostname"),
        ("cat", "/proc/self/cwd/README.md"),
        ("cat", "/proc/thread-self/root/etc/hostname"),
        ("cat", "/dev/../etc/hostname"),
        ("cat", "//proc/self/environ"),
        ("cat", "/./proc/self/environ"),
        ("cat", "src/../../../../../../../../../../../proc/self/environ"),
        ("cat", "/dev/fd/3"),
        ("cat", "/dev/mem"),
        ("head", "-c", "9", "/dev/urandom"),
        ("ls", "/dev/fd"),
        "cat < /dev/fd/3",
        "cat < /proc/self/environ",
        "bash -c 'cat < /dev/tcp/127.0.0.1/9'",
        "bash -c 'echo x > /dev/tcp/127.0.0.1/9'",
        "bash -c 'echo x > /dev/udp/127.0.0.1/9'",
        "echo x > /dev/shm/backburner-test-never-made",
        "echo x > //dev/shm/backburner-test-never-made",
        "echo x > /dev/fd/../shm/backburner-test-never-made",
        "echo x > /dev/sda",
        "echo x > /proc/self/comm",
        "echo x > /tmp/backburner-test-never-made",
        ("touch", "/tmp/backburner-test-never-made"),
        ("cat", "{project}/../other/README.md"),
        ("cat", "{root}//outside/data.txt"),
        ("cat", "./" * 5 + "../" * 4 + "outside/data.txt"),
        ("ls", "-R", "/"),
        ("du", "-s", ".."),
        ("find", "/", "-maxdepth", "1"),
        ("find", "..", "-name", "x"),
        ("tree", "{home}"),
        ("grep", "-f", "{outside}/data.txt", "README.md"),
        ("grep", "-f{outside}/data.txt", "README.md"),
        ("wc", "--files0-from={outside}/data.txt"),
        ("sort", "--files0-from=x"),
        ("sort", "-T", "{home}", "data.csv"),
        ("date", "-f", "{outside}/data.txt"),
        ("date", "-r", "{outside}/data.txt"),
        ("file", "-m", "{outside}/data.txt", "README.md"),
        ("file", "-f", "{outside}/data.txt"),
        ("stat", "{home}/.ssh/id_ed25519"),
        ("tail", "--pid=1", "-f", "{outside}/data.txt"),
        ("ls", "--hyperlink", "/"),
        ("diff", "--from-file={outside}/data.txt", "README.md"),
        ("cp", "--target-directory={outside}", "README.md"),
        ("cp", "-t", "{outside}", "README.md"),
        ("du", "--files0-from={outside}/data.txt"),
        ("rg", "--pre={tool}", "x"),
        ("rg", "-f", "{outside}/data.txt"),
        ("tree", "--fromfile", "{outside}/data.txt"),
        ("tree", "-o", "new"),
        ("mkdir", "-m", "777", "x"),
        ("touch", "-r", "{outside}/data.txt", "x"),
        ("touch", "-d", "2001-01-01", "README.md"),
        ("cat", "x" * 5000),
    ),
    ask("a line with a hidden character", "cat README\u200b.md"),
    ask("a line with right-to-left text", "cat \u202edm.EMDAER"),
    ask("a line with a non-breaking space", "cat\u00a0README.md"),
    harmless("a directory named like the home, as a word", ("cat", "~/.bashrc"), file("~/.bashrc", "mine\n")),
    harmless("a directory named like the home, quoted", "cat '~/.bashrc'", file("~/.bashrc", "mine\n")),
    harmless("words that look like a line", ("cat", "README.md; touch {canary}")),
    harmless("words that look like a substitution", ("echo", "$(touch {canary})")),
    harmless("words that look like a variable", ("echo", "$HOME", "`touch {canary}`")),
    harmless("a file named like options, as a word", ("cat", "-rf"), file("-rf", "x\n")),
    harmless("a file named like a program of rg", ("rg", "x", "--pre={tool}")),
    harmless("a decomposed name", ("cat", "cafe\u0301.md"), link("cafe\u0301.md", "{outside}/data.txt"), file("caf\u00e9.md", "mine\n")),
    harmless("a name of a link with a line end", ("cat", "a\nb"), link("a\nb", "{outside}/data.txt")),
    harmless("a quoted name of a link with a space", "cat 'a b'", link("a b", "{outside}/data.txt"), file("a", "x\n"), file("b", "x\n")),
    harmless("a name of a link with a backslash", ("cat", "a\\b"), link("a\\b", "{outside}/data.txt")),
    harmless("a name of a link with a star, quoted", "cat '*.md'", link("*.md", "{outside}/data.txt")),
    harmless("a name of a link in brackets, as a word", ("cat", "[x]"), link("[x]", "{outside}/data.txt"), file("x", "mine\n")),
    harmless("a name of a link with a dollar sign, quoted", "cat '$HOME'", link("$HOME", "{outside}/data.txt")),
    harmless("a commit named like a link", ("git", "log", "-p", "out"), _OUT),
    Scenario("answers", "a pipe as a file", ("cat", "pipe"), (fifo("pipe"),)),
    Scenario("answers", "a pipe below a search", ("grep", "-r", "x", "src"), (fifo("src/pipe"),)),
    Scenario("answers", "a pipe as settings of git", ("git", "status"), (fifo(".git/config"),)),
    Scenario("answers", "a pipe as attributes of git", ("git", "status"), (fifo(".gitattributes"),)),
    Scenario("answers", "a pipe as a .git file", ("git", "status"), (folder("w"), fifo("w/.git")), cwd="{project}/w"),
    Scenario("answers", "a pipe as settings of the user", ("git", "status"), (fifo("{home}/.gitconfig"),)),
    Scenario("answers", "a pipe as a file of submodules", ("git", "status"), (fifo(".gitmodules"),)),
    Scenario("answers", "links that form a loop", ("cat", "a/b/c"), (link("a", "b"), link("b", "a"))),
    Scenario("answers", "settings of git that include themselves", ("git", "status"), (_settings("[include]\n\tpath = config\n"),)),
    allow("a name with a space", "cat 'a b.md'", file("a b.md", "x\n")),
    allow("a name beyond ASCII", ("cat", "caf\u00e9.md"), file("caf\u00e9.md", "x\n")),
    allow("a name with a dash, by a path", ("cat", "./-rf"), file("-rf", "x\n")),
    allow("a name with a dash, after two dashes", ("cat", "--", "-rf"), file("-rf", "x\n")),
    *(
        allow(
            f"a project named {name!r}: {' '.join(line)}",
            line,
            file(f"{{home}}/code/{name}/README.md", "x\n"),
            sh("git init -q --template= .", f"{{home}}/code/{name}"),
            session=f"{{home}}/code/{name}",
        )
        for name, line in (
            ("my project", ("cat", "README.md")),
            ("my project", ("git", "status")),
            ("[x]*", ("cat", "README.md")),
            ("[x]*", ("git", "status")),
            ("-rf", ("ls",)),
            ("caf\u00e9", ("git", "log", "--oneline")),
            ("a=b:c", ("git", "status")),
            ("it's", ("git", "diff")),
        )
    ),
    allow("a pattern in a project with brackets", "cat *.md", file("{home}/code/[x]/README.md", "x\n"), session="{home}/code/[x]"),
    allow("output to /dev/null", "ls > /dev/null"),
    allow("errors to /dev/null", "ls nothing 2>/dev/null"),
    harmless("output to /dev/stdout", "echo x > /dev/stdout"),
    allow("the full path of a file", ("cat", "{project}/README.md")),
    allow("a path with slashes and dots", ("cat", ".//src/./main.py")),
]
