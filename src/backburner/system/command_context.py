"""What the gate may know about the machine: existing files, the program of a name, settings of a repository that run code. Reads only."""

import contextlib
import functools
import itertools
import os
import pwd
import stat
from collections.abc import Callable, Iterable, Mapping

from backburner.approval.effects import looks_secret, relied_on
from backburner.core.deferred_modules import re
from backburner.core.light_typing import Protocol, TypeVar
from backburner.system import toolchains
from backburner.system.git_repository import OddRepository, Repository, content_of, is_commit, repository_of
from backburner.system.paths import is_below, project_above, real_path
from backburner.system.processes import executable_of
from backburner.system.recorded_reads import RecordedReads
from backburner.system.sandbox_environment import SECRET_NAMES, environment_for_git, passed_variables, safe_directories

_Found = TypeVar("_Found")


class Read(Protocol):
    def __call__(self, look: Callable[..., _Found], *arguments: str) -> _Found: ...


# Settings of a repository that cannot run a program. Any other setting might.
_SETTINGS = (
    r"core\.(repositoryformatversion|filemode|bare|logallrefupdates|ignorecase|precomposeunicode|symlinks|autocrlf|eol|quotepath)"
    r"|remote\..*\.(url|fetch|pushurl|tagopt|prune)|branch\..*\.(remote|merge|rebase)|user\.(name|email)|init\.defaultbranch"
    r"|pull\.(rebase|ff)|push\.(default|autosetupremote)|color\..*|gui\..*|gc\..*|fetch\.prune|rerere\.enabled|advice\..*"
)
# Settings that name a program: overridden for commands that nobody approved, or only used by git commands that are not allowed.
_OVERRIDDEN = (
    r"|core\.(hookspath|fsmonitor|pager|editor|sshcommand|askpass|longpaths|protectntfs|protecthfs|safecrlf|whitespace|untrackedcache|abbrev)"
    r"|branch\..*\.(pushremote|description|vscode-merge-base|gh-merge-base|github-pr-owner-number)|branch\.autosetup(merge|rebase)"
    r"|remote\..*\.gh-resolved|remote\.pushdefault|(commit|tag)\.gpgsign|user\.signingkey|gpg\..*|log\.(showsignature|date|decorate)|merge\.(ff|tool|conflictstyle)"
    r"|diff\.(algorithm|colormoved|renames|mnemonicprefix|noprefix|tool)|alias\..*|pager\..*|credential\..*|http\..*|lfs\..*|rebase\..*|stash\..*"
    r"|maintenance\..*|column\..*|fetch\..*|sequence\.editor"
)
_SYSTEM_FOLDERS = ("", "etc", "usr", "bin", "sbin", "lib", "lib64", "boot", "dev", "proc", "sys", "var", "opt")
_VISIBLE = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt", "/nix", "/etc", "/proc", "/sys", "/dev")
# They lead elsewhere for every process, as `/proc/NUMBER/` does when the command runs.
_OF_EACH_PROCESS = ("/proc/self/", "/proc/thread-self/", "/dev/fd/")
_OF_ANY_PROCESS = r"(/proc/(self|thread-self|\d+)|/dev/fd)/(?!(\w+|fd/\d+|net/\w+)$)"  # folders of processes, which lead anywhere
_SHARED_FOLDERS = ("/home", "/Users", "/root", "/mnt", "/media", "/srv")
# Folders with third-party code, in which the name of a source file says little about its content.
_VENDORED = r"(^|/)(node_modules|\.?venv|site-packages|__pycache__|target|vendor)/"
_CODE = (
    r"\.(py|pyi|pyc|js|cjs|mjs|jsx|ts|cts|mts|tsx|map|rs|rlib|rmeta|d|o|go|c|cc|cpp|h|hpp|java|class|rb|php|css|scss|html|md|rst|svg|snap)$"
)
_CREDENTIALS = rb"(?i)://[^/\s:@]*:[^/\s@]+@|https?://[^/\s@]+@|extraheader|token|passw|secret"
# How such a name can end. Each pattern begins with fixed letters, which makes the search several times faster.
_TRACKED_ENDINGS = (
    rb"\.(?:env(?:\.\w{1,11})?|netrc|git-credentials|p12|pfx|p8|ppk|jks|keystore|kdbx|tfstate)\0",
    rb"id_(?:rsa|dsa|ecdsa|ed25519)\0",
    rb"credentials\.json\0",
    rb"secrets\.ya?ml\0",
)
_TRACKED_SECRET = (
    rb"(?:^|[/\0-\x1f])(\.env(?:\.(?:local|prod|production|dev|development|staging|test))?|id_(?:rsa|dsa|ecdsa|ed25519)|[^/\0]{1,80}\.(?:p12|pfx|p8|ppk|jks|keystore|kdbx)"
    rb"|\.netrc|\.git-credentials|terraform\.tfstate|credentials\.json|secrets\.ya?ml)\0"
)
_SECRET_SAMPLES = (
    ".env",
    "prod.env",
    "id_rsa",
    "server.pem",
    "server.key",
    ".npmrc",
    "credentials.json",
    "secrets.yml",
    "terraform.tfstate",
)
_GIT_TIMEOUT = 2.0  # seconds
_MAX_SETTINGS_BYTES = 256 * 1024
_MAX_INDEX_BYTES = 64 << 20
_MAX_MATCHES = 10_000
_MAX_SEARCHED_FILES = 50_000


def read(look: Callable[..., _Found], *arguments: str) -> _Found:
    """Read something from the machine. A `RecordedReads` does the same and remembers it."""
    return look(*arguments)


def project_for(
    cwd: str, opened: str | None, trusted: Iterable[str], environ: Mapping[str, str], home: str | None = None, look: Read = read
) -> str | None:
    """The project that a command in `cwd` is judged by: a trusted project, or the project in which its session was opened.

    None if the command runs anywhere else: then every path is outside. A checkout below `home`, Backburner's home, is a project too.
    """
    cwd = look(real_path, cwd)
    home = look(real_path, home) if home else None
    for root in sorted(trusted, key=len, reverse=True):
        allowed = is_below(cwd, root) and may_be_project(root, environ, look)
        if allowed and not (home and is_below(root, home) and not _checkout(root, home)):
            return root
    if opened is None:
        return None
    folder = look(real_path, opened)
    if home and (checkout := _checkout(folder, home)):
        return checkout if is_below(cwd, checkout) else None
    if (home and (is_below(folder, home) or is_below(cwd, home))) or not may_be_project(folder, environ, look):
        return None
    root = look(project_above, folder)
    root = root if root == folder or may_be_project(root, environ, look) else folder
    return root if is_below(cwd, root) else None


def may_be_project(folder: str, environ: Mapping[str, str], look: Read = read) -> bool:
    """Whether a folder (without links in its path) can be a project: not a home directory, its parents or hidden folders, or a shared folder."""
    homes = {environ.get("HOME", ""), os.path.expanduser("~"), _own_home()}
    for home in {look(real_path, home) for home in homes if home.startswith("/")}:
        if is_below(home, folder) or (is_below(folder, home) and os.path.relpath(folder, home).startswith(".")):
            return False
    if look(_others_may_write, folder):
        return False
    if look(os.path.exists, os.path.join(folder, ".git")):
        return True
    return folder.split("/")[1] not in _SYSTEM_FOLDERS and folder not in _SHARED_FOLDERS


def _others_may_write(folder: str) -> bool:
    """Whether every user may write to a folder, or it cannot be read."""
    try:
        return bool(os.stat(folder).st_mode & stat.S_IWOTH)
    except OSError:
        return True


def _checkout(path: str, home: str) -> str | None:
    """The checkout in Backburner's home that contains a path; None if there is none."""
    folder = os.path.join(home, "worktrees", "")
    return folder + path[len(folder) :].split("/")[0] if path.startswith(folder) else None


@functools.cache
def _own_home() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return ""


class LocalCommandContext:
    """The machine as a command would see it. Without a `project` every path is outside; Backburner's own `home` always is.

    `project` may be a function that finds it when it is needed. `clean`: the command runs in a sandbox, with few variables of the
    caller. `reads` records what was read.
    """

    def __init__(
        self,
        cwd: str,
        environ: dict[str, str],
        hosts: Iterable[str] = (),
        *,
        project: str | Callable[[Read], str | None] | None,
        home: str | None = None,
        clean: bool = True,
        confined: bool = False,
    ) -> None:
        self.reads = RecordedReads()
        self.cwd = self.reads(real_path, cwd)
        self._repositories: dict[str, Repository | None] = {}
        self.clean = self.ours = clean
        self.confined = confined
        self._project, self._home_path = project, home
        self._environ = environ
        self._path = environ.get("PATH", os.defpath)
        self._hosts = tuple(hosts)

    @functools.cached_property
    def project(self) -> str | None:
        return self._project if isinstance(self._project, str | None) else self._project(self.reads)

    @functools.cached_property
    def user_home(self) -> str:
        return self.reads(real_path, self._environ.get("HOME") or _own_home())

    @functools.cached_property
    def relative_path(self) -> bool:
        return not all(map(os.path.isabs, self._path.split(os.pathsep)))

    @functools.cached_property
    def _home(self) -> str | None:
        return self.reads(real_path, self._home_path) if self._home_path else None

    def unconfined(self) -> "LocalCommandContext":
        """The same machine for a command without a sandbox."""
        import copy  # only for commands that are read a second time

        other = copy.copy(self)
        other.confined = False
        return other

    @property
    def trustable(self) -> bool:
        """Whether a user could trust the project of the current folder."""
        return self.project is not None or may_be_project(self.reads(project_above, self.cwd), self._environ, self.reads)

    @property
    def is_checkout(self) -> bool:
        """Whether the project is a worktree in Backburner's home."""
        return self.project is not None and self._home is not None and _checkout(self.project, self._home) == self.project

    def inside(self, path: str) -> bool:
        """Whether a path (without links) belongs to the project. Backburner's home never does, except for the checkouts in it."""
        if self.project is None or not is_below(path, self.project):
            return False
        return self._home is None or not is_below(path, self._home) or _checkout(self.project, self._home) is not None

    def is_temporary(self, path: str) -> bool:
        own = (self._home, self.user_home)
        return is_below(path, "/tmp") and not any(folder and is_below(path, folder) for folder in own)

    def is_visible(self, path: str) -> bool:
        """Whether a sandbox contains a path outside the project: a file of the system, a tool of the user, or a temporary file of a sandbox."""
        if (self._home is not None and is_below(path, self._home)) or (
            path.startswith(("/proc/", "/dev/")) and re.match(_OF_ANY_PROCESS, path)
        ):
            return False
        if path == "/" or any(is_below(path, folder) for folder in (*_VISIBLE, *self._tools)):
            return True
        return self.is_temporary(path) and (path == "/tmp" or not (self.exists(path) or is_below(path, self.cwd)))

    @functools.cached_property
    def _tools(self) -> list[str]:
        return self.reads(toolchains.readable, self.user_home, self._path)

    def has_variable(self, name: str) -> bool:
        return name in (passed_variables(self._environ) if self.clean else self._environ)

    def caller_has_variable(self, name: str) -> bool:
        return name in self._environ

    def resolve(self, path: str) -> str:
        if path.startswith(_OF_EACH_PROCESS) or (path.startswith("/proc/") and path.split("/", 3)[2].isdigit()):
            return path if ".." in path.split("/") else os.path.normpath(path)
        whole = os.path.join(self.cwd, path)
        folder, name = os.path.split(whole)
        if name not in ("", ".", "..") and not self.exists(whole):
            return f"{self.reads(real_path, folder).rstrip('/')}/{name}"  # the folder is usually known already
        return self.reads(real_path, whole)

    def matches(self, folder: str, pattern: str) -> list[str]:
        """The paths that a shell would expand a pattern to in a folder: a leading dot must be matched explicitly."""
        import glob

        self.reads.mark_incomplete()
        found = [os.path.join(folder, hit) for hit in itertools.islice(glob.iglob(pattern, root_dir=folder), _MAX_MATCHES)]
        return found if len(found) < _MAX_MATCHES else [*found, "/"]  # too many to check: the root stands for the rest

    def exists(self, path: str) -> bool:
        return self.reads(os.path.lexists, path)

    def is_folder(self, path: str) -> bool:
        return self.reads(os.path.isdir, path)

    def secrets_below(self, path: str, skipped: Iterable[str], *, ignored: bool) -> str | None:
        """A possible secret that a recursive search of a folder would read, or that it reads too many files to tell; None if neither.

        `skipped` are names of folders that the search skips; with `ignored` it also skips hidden files and folders that git ignores.
        """
        self.reads.mark_incomplete()
        skipped_names = {*skipped, *(self._ignored_folders() if ignored else ())}
        count = 0
        for folder, folders, files in os.walk(path):
            within_git = "/.git" in folder
            folders[:] = [
                name
                for name in folders
                if not (name in skipped_names or (ignored and name.startswith(".")) or (within_git and name == "objects"))
            ]
            count += len(files)
            if count > _MAX_SEARCHED_FILES:
                return f"more than {_MAX_SEARCHED_FILES:,} files"
            for name in files if not ignored else [name for name in files if not name.startswith(".")]:
                file = os.path.join(folder, name)
                if not self.inside(file):
                    return f"{file}, outside the project"
                if self._may_hold_secret(file):
                    return f"{self.shortened(file)}, which may be a secret"
        if os.path.isfile(path) and self._may_hold_secret(path):
            return f"{os.path.basename(path)}, which may be a secret"
        return None

    def _may_hold_secret(self, file: str) -> bool:
        name = self.shortened(file)
        if re.search(r"(^|/)\.git/(.*/)?config(\.worktree)?$", name):
            return _holds_credentials(file)
        return looks_secret(name) and not (re.search(_VENDORED, name) and re.search(_CODE, name))

    def shortened(self, path: str) -> str:
        """A path relative to the project's root: the name and location of the project say nothing about a file."""
        return os.path.relpath(path, self.project) if self.project and is_below(path, self.project) else path

    def _ignored_folders(self) -> list[str]:
        """The plain names in the project's own .gitignore."""
        try:
            with open(os.path.join(self.project or self.cwd, ".gitignore"), encoding="utf-8", errors="replace") as file:
                lines = [line.strip() for line in file.read(_MAX_SETTINGS_BYTES).splitlines()]
        except OSError:
            return []
        if any(line.startswith("!") for line in lines):
            return []
        return [line.strip("/") for line in lines if re.fullmatch(r"/?[A-Za-z0-9._-]+/?", line)]

    def executable(self, name: str) -> str | None:
        return self.reads(executable_of, name, self.cwd, self._path)

    def hosts(self) -> Iterable[str]:
        return self._hosts

    def _repository_of(self, folder: str) -> Repository | None:
        """The repository of a folder, which is looked for once per decision."""
        if folder not in self._repositories:
            self._repositories[folder] = repository_of(folder)
        return self._repositories[folder]

    def git_config_that_runs_code(self, folders: Iterable[str]) -> list[str]:
        """What could make git run a program in any of these folders: settings, a hook, submodules, or an unusual layout."""
        self.reads.mark_incomplete()
        try:
            found = dict.fromkeys(filter(None, map(self._repository_of, dict.fromkeys(folders))))
        except OddRepository as error:
            return [str(error)]
        several = ["its folders belong to several repositories"] if self.clean and len(found) > 1 else []
        return [*several, *(risk for repository in found for risk in self._risks_of(repository))]

    def git_hooks(self, folders: Iterable[str]) -> list[str]:
        """The hooks that git would run in the repositories of these folders."""
        self.reads.mark_incomplete()
        try:
            found = dict.fromkeys(filter(None, map(self._repository_of, dict.fromkeys(folders))))
        except OddRepository:
            return []  # reported by git_config_that_runs_code
        names = []
        own = [real_path(os.path.join(self.user_home, name)) for name in (".gitconfig", ".config/git/config")]
        for repository in found:
            for path in (os.path.join(repository.common, "config"), *own, "/etc/gitconfig"):
                with contextlib.suppress(OSError):
                    text = content_of(path, _MAX_SETTINGS_BYTES).decode("utf-8", "replace")
                    for named in re.findall(r"(?i)^\s*hookspath\s*=\s*(.*?)\s*$", text, re.MULTILINE):
                        folder = os.path.join(repository.top, re.sub("^~(?=/)", self.user_home, named))
                        names += _hooks_in(folder) if re.fullmatch(r"[\w./~-]+", named) and os.path.isdir(folder) else ["core.hooksPath"]
            names += _hooks_in(os.path.join(repository.common, "hooks"))
        return sorted(set(names))

    def _risks_of(self, repository: Repository) -> list[str]:
        top, git, common = repository
        if not self.inside(top):
            return [f"it is {top}, outside the project"]
        if self.inside(common) and not relied_on(self.shortened(common)):
            return [f"{common} is not protected: commands may create files in it"]
        if not all(map(self._may_be_used, {top, git, common})):
            return ["it belongs to another user"]
        names = ("modules", "config.worktree", "objects/info/alternates", *(["commondir"] if git == common else []))
        risks = [f"it has {name}" for name in names for place in {git, common} if os.path.lexists(os.path.join(place, name))]
        if not self.clean and os.access(os.path.join(common, "hooks", "post-index-change"), os.X_OK):
            risks.append("its post-index-change hook")
        if os.path.lexists(os.path.join(top, ".gitmodules")) or _holds_submodules(git):
            risks.append("it has submodules")
        return [*risks, *_odd_settings(os.path.join(common, "config"), _SETTINGS + (_OVERRIDDEN if self.clean else ""))]

    def _may_be_used(self, folder: str) -> bool:
        """Whether git would accept the owner of a repository; git does not check that if GIT_DIR is given."""
        try:
            owner = os.stat(folder).st_uid
        except OSError:
            return False
        return owner == os.geteuid() or not {"*", folder, os.path.dirname(folder)}.isdisjoint(safe_directories(self._environ))

    def git_secrets(self, folders: Iterable[str], *, contents: bool) -> list[str]:
        """What git could print of a repository that may be a secret: a password in a URL, or with `contents` tracked files."""
        self.reads.mark_incomplete()
        found = []
        for folder in dict.fromkeys(folders):
            try:
                repository = self._repository_of(folder)
            except OddRepository:
                continue  # reported by git_config_that_runs_code
            if repository and not contents and _holds_credentials(os.path.join(repository.common, "config")):
                found.append("a URL with a password")
            if repository and contents and (name := _tracked_secret(repository)):
                found.append(name)
            elif repository and contents and (not self.ours or _prints_secrets(repository)):
                found += self._secrets_of_history(repository)
        return found

    def git_unknown(self, folders: Iterable[str], names: Iterable[str]) -> str | None:
        """The first of these names that might not be a commit or the tag of a commit."""
        self.reads.mark_incomplete()
        try:
            found = next(filter(None, map(self._repository_of, folders)), None)
        except OddRepository:
            return None  # reported by git_config_that_runs_code
        unknown = [name for name in names if found and not is_commit(found, name)]
        if not found or not unknown:
            return None
        types = self._git(found, "cat-file", "--batch-check=%(objecttype)", stdin="".join(f"{name}^{{}}\n" for name in unknown)) or ""
        return next((name for name, kind in itertools.zip_longest(unknown, types.splitlines()) if kind != "commit"), None)

    def git_names(self, folders: Iterable[str], *words: str) -> list[str] | None:
        """The files that a git command lists, separated by zeros and relative to the repository; none if it fails, None if it takes too long."""
        self.reads.mark_incomplete()
        try:
            found = next(filter(None, map(repository_of, folders)), None)
        except OddRepository:
            return None
        listed = self._git(found, *words) if found else ""
        return None if listed is None else [name for name in listed.split("\0") if name]

    def git_steps(self, folders: Iterable[str]) -> list[str] | None:
        """The steps that a stopped rebase has left to do; none if there is no rebase, None if it is not one that picks commits."""
        self.reads.mark_incomplete()
        try:
            found = next(filter(None, map(repository_of, folders)), None)
            if not found or not os.path.lexists(folder := os.path.join(found.git, "rebase-merge")):
                return None if found and os.path.lexists(os.path.join(found.git, "rebase-apply")) else []
            text = content_of(os.path.join(folder, "git-rebase-todo"), _MAX_SETTINGS_BYTES).decode("utf-8", "replace")
        except (OSError, OddRepository):
            return None
        return [line for line in text.splitlines() if line and not line.startswith("#")]

    def _secrets_of_history(self, repository: Repository) -> list[str]:
        """A file with a secret name that any commit changed and that git is not configured to hide."""
        with open(SECRET_NAMES, encoding="utf-8") as file:
            lines = [line.split() for line in file if not line.startswith("#")]
        paths = [
            f":({'exclude,' if attribute == '!diff' else ''}glob){'' if name.startswith('**') else '**/'}{name}"
            for name, attribute in lines
        ]
        changed = self._git(repository, "log", "--all", "--reflog", "-n1", "--format=", "--name-only", "--", *paths)
        return ["files of a history that is too long to check"] if changed is None else changed.splitlines()[:1]

    def _git(self, repository: Repository, *words: str, stdin: str = "") -> str | None:
        """The output of git in a repository without such risks; None if it takes too long."""
        import subprocess

        environ = environment_for_git(self._environ, repository.top)
        try:
            done = subprocess.run(
                ["git", *words], cwd=repository.top, env=environ, input=stdin, capture_output=True, text=True, errors="replace", timeout=_GIT_TIMEOUT
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout


def _hooks_in(folder: str) -> list[str]:
    """The active hooks in a folder. Husky has a file for each hook in a folder `_`, which runs the one of the same name above it, if any."""
    try:
        names = [name for name in os.listdir(folder) if not name.endswith(".sample") and os.access(os.path.join(folder, name), os.X_OK)]
    except OSError:
        return []
    above = os.path.dirname(folder)
    return [name for name in names if os.path.basename(folder) != "_" or os.path.exists(os.path.join(above, name))]


def _prints_secrets(repository: Repository) -> bool:
    """Whether the repository's own attributes, which take precedence, may make git print files with secret names."""
    import fnmatch

    for path in (os.path.join(repository.top, ".gitattributes"), os.path.join(repository.common, "info", "attributes")):
        try:
            lines = content_of(path, _MAX_SETTINGS_BYTES).decode("utf-8", "replace").splitlines()
        except FileNotFoundError:
            continue
        except OSError:
            return True
        for line in lines:
            pattern, *attributes = line.split() or ("#",)
            sets_diff = any(re.match(r"!?diff(=|$)", attribute) for attribute in attributes)
            name = pattern.rstrip("/").rpartition("/")[2]
            if sets_diff and (pattern.startswith(("[attr]", '"')) or any(fnmatch.fnmatch(secret, name) for secret in _SECRET_SAMPLES)):
                return True
    return False


def _holds_credentials(path: str) -> bool:
    """Whether git settings contain a password or a token, or cannot be read."""
    try:
        return re.search(_CREDENTIALS, content_of(path, _MAX_SETTINGS_BYTES)) is not None
    except FileNotFoundError:
        return False
    except OSError:
        return True


def _index(git: str) -> bytes | None:
    """The content of a repository's index; None if it cannot be read completely."""
    try:
        index = content_of(os.path.join(git, "index"), _MAX_INDEX_BYTES + 1)
        split = any(name.startswith("sharedindex") for name in os.listdir(git))
    except FileNotFoundError:
        return b""
    except OSError:
        return None
    return None if split or len(index) > _MAX_INDEX_BYTES else index


def _tracked_secret(repository: Repository) -> str | None:
    """A tracked file with a secret name."""
    index = _index(repository.git) or b""
    found = re.search(_TRACKED_SECRET, index) if any(re.search(ending, index) for ending in _TRACKED_ENDINGS) else None
    return found.group(1).decode("utf-8", "replace") if found else None


def _holds_submodules(git: str) -> bool:
    """Whether the index contains submodules (mode 160000), or cannot be read completely."""
    index = _index(git)
    return index is None or b"\0\0\xe0\0" in index


def _odd_settings(path: str, known: str) -> list[str]:
    """The settings in a file that are not known to be harmless; text that is not in the plain format counts too."""
    try:
        text = content_of(path, _MAX_SETTINGS_BYTES + 1).decode()
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError):
        return ["its settings cannot be read"]
    return ["its settings are too large to read"] if len(text) > _MAX_SETTINGS_BYTES else _odd_lines(text, known)


@functools.lru_cache(8)
def _odd_lines(text: str, known: str) -> list[str]:
    if not text.replace("\r\n", "").replace("\n", "").replace("\t", "").isprintable():
        return ["its settings contain hidden characters"]
    section, odd = "", []
    for line in (line.strip(" \t\r") for line in text.split("\n")):
        if not line or line.startswith(("#", ";")):
            continue
        if head := re.fullmatch(r'\[([A-Za-z0-9-]+)(?:\s+"([^"\\]*)")?\]', line):
            section = head.group(1).lower() + (f".{head.group(2)}" if head.group(2) is not None else "")
            continue
        pair = re.fullmatch(r"([A-Za-z][A-Za-z0-9-]*)\s*(?:=\s*(.*))?", line)
        name = f"{section}.{pair.group(1).lower()}" if pair else line
        url = pair is not None and name.endswith("url") and "::" in (pair.group(2) or "")
        if not pair or line.endswith("\\") or url or not re.fullmatch(known, name):
            odd.append(name[:60])
    return odd
