"""The world the gate asks about: which files there are, which program a name means, what a repository's settings run. Reads only."""

import itertools
import os
import pwd
import re
import stat
from collections.abc import Iterable, Mapping

from backburner.approval.effects import looks_secret, relied_on
from backburner.system.git_repository import OddRepository, Repository, content_of, is_commit, repository_of
from backburner.system.home import is_below, project_above
from backburner.system.processes import executable_of
from backburner.system.unapproved import SECRET_NAMES, clean_environment, safe_directories

# Settings of a repository that only say how it is kept. Any other one may make git run something.
_SETTINGS = (
    r"core\.(repositoryformatversion|filemode|bare|logallrefupdates|ignorecase|precomposeunicode|symlinks|autocrlf|eol|quotepath)"
    r"|remote\..*\.(url|fetch|pushurl|tagopt|prune)|branch\..*\.(remote|merge|rebase)|user\.(name|email)|init\.defaultbranch"
    r"|pull\.(rebase|ff)|push\.(default|autosetupremote)|color\..*|gui\..*|gc\..*|fetch\.prune|rerere\.enabled|advice\..*"
)
# Of these, those that name a program are overridden where nobody approved the command, and the others concern verbs that are not allowed.
_OVERRIDDEN = (
    r"|core\.(hookspath|fsmonitor|pager|editor|sshcommand|askpass|longpaths|protectntfs|protecthfs|safecrlf|whitespace|untrackedcache|abbrev)"
    r"|branch\..*\.(pushremote|description|vscode-merge-base|gh-merge-base|github-pr-owner-number)|branch\.autosetup(merge|rebase)"
    r"|remote\..*\.gh-resolved|remote\.pushdefault|(commit|tag)\.gpgsign|user\.signingkey|gpg\..*|log\.(showsignature|date|decorate)|merge\.(ff|tool|conflictstyle)"
    r"|diff\.(algorithm|colormoved|renames|mnemonicprefix|noprefix|tool)|alias\..*|pager\..*|credential\..*|http\..*|lfs\..*|rebase\..*|stash\..*"
    r"|maintenance\..*|column\..*|fetch\..*|sequence\.editor"
)
_SYSTEM_FOLDERS = ("", "etc", "usr", "bin", "sbin", "lib", "lib64", "boot", "dev", "proc", "sys", "var", "opt")
_FOLDERS_OF_MANY = ("/home", "/Users", "/root", "/mnt", "/media", "/srv")
# Folders with other people's code: a name there says little about what a file of code holds.
_VENDORED = r"(^|/)(node_modules|\.?venv|site-packages|__pycache__|target|vendor)/"
_CODE = (
    r"\.(py|pyi|pyc|js|cjs|mjs|jsx|ts|cts|mts|tsx|map|rs|rlib|rmeta|d|o|go|c|cc|cpp|h|hpp|java|class|rb|php|css|scss|html|md|rst|svg|snap)$"
)
_CREDENTIALS = rb"(?i)://[^/\s:@]*:[^/\s@]+@|https?://[^/\s@]+@|extraheader|token|passw|secret"
# How such a name can end. Each begins with the same letters always, which makes the search several times faster.
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
_LARGEST_SETTINGS = 256 * 1024
_LARGEST_INDEX = 64 << 20
_MOST_MATCHES = 10_000
_MOST_SEARCHED = 50_000


def project_for(cwd: str, opened: str | None, trusted: Iterable[str], environ: Mapping[str, str], home: str | None = None) -> str | None:
    """The project that a command in `cwd` is judged by: one that a person trusted, or the one of the folder that its session was opened in.

    None where the command would run anywhere else: then everything is outside. A checkout in `home`, the folder of Backburner, is one, too.
    """
    cwd = os.path.realpath(cwd)
    for root in sorted(trusted, key=len, reverse=True):
        if is_below(cwd, root) and may_be_project(root, environ):
            return root
    if opened is None:
        return None
    folder = os.path.realpath(opened)
    if home and (checkout := _checkout(folder, os.path.realpath(home))):
        return checkout if is_below(cwd, checkout) else None
    if not may_be_project(folder, environ):
        return None
    root = project_above(folder)
    root = root if may_be_project(root, environ) else folder
    return root if is_below(cwd, root) else None


def may_be_project(folder: str, environ: Mapping[str, str]) -> bool:
    """Whether a folder, without links in its path, can be one project: not a home, what is above one, its hidden folders, or a shared place."""
    homes = {os.path.realpath(home) for home in (environ.get("HOME", ""), os.path.expanduser("~"), _own_home()) if os.path.isabs(home)}
    for home in homes:
        if is_below(home, folder) or (is_below(folder, home) and os.path.relpath(folder, home).startswith(".")):
            return False
    try:
        if os.stat(folder).st_mode & stat.S_IWOTH:
            return False
    except OSError:
        return False
    if os.path.exists(os.path.join(folder, ".git")):
        return True
    return folder.split("/")[1] not in _SYSTEM_FOLDERS and folder not in _FOLDERS_OF_MANY


def _checkout(path: str, home: str) -> str | None:
    """The checkout below the folder of Backburner that a path lies in."""
    folder = os.path.join(home, "worktrees", "")
    return folder + path[len(folder) :].split("/")[0] if path.startswith(folder) else None


def _own_home() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return ""


class LocalCommandContext:
    """The machine as a command would find it. Without a `project` all of it is outside; so is `home`, the one of Backburner, always.

    `clean`: it will run as `unapproved` has it.
    """

    def __init__(
        self,
        cwd: str,
        environ: dict[str, str],
        hosts: Iterable[str] = (),
        *,
        project: str | None,
        home: str | None = None,
        clean: bool = True,
    ) -> None:
        self.cwd = os.path.realpath(cwd)
        self.clean = self.ours = clean
        self.project = project
        self._home = os.path.realpath(home) if home else None
        self._resolved: dict[str, str] = {}  # for as long as one question takes
        self._environ = environ
        self._path = environ.get("PATH", os.defpath)
        self.relative_path = not all(map(os.path.isabs, self._path.split(os.pathsep)))
        self._hosts = tuple(hosts)

    @property
    def trustable(self) -> bool:
        """Whether a person could make the project of the folder a trusted one."""
        return self.project is not None or may_be_project(project_above(self.cwd), self._environ)

    def inside(self, path: str) -> bool:
        """Whether a path without links belongs to the project. The folder of Backburner never does, but for the checkouts in it."""
        if self.project is None or not is_below(path, self.project):
            return False
        return self._home is None or not is_below(path, self._home) or _checkout(self.project, self._home) is not None

    def has_variable(self, name: str) -> bool:
        return name in (clean_environment(self._environ) if self.clean else self._environ)

    def resolve(self, path: str) -> str:
        if (found := self._resolved.get(path)) is None:
            found = self._resolved[path] = os.path.realpath(os.path.join(self.cwd, path))
        return found

    def matches(self, folder: str, pattern: str) -> list[str]:
        """As a shell would expand it in a folder: a leading dot is only fitted by a dot."""
        import glob

        found = [os.path.join(folder, hit) for hit in itertools.islice(glob.iglob(pattern, root_dir=folder), _MOST_MATCHES)]
        return found if len(found) < _MOST_MATCHES else [*found, "/"]  # too many to look at all of them

    def exists(self, path: str) -> bool:
        return os.path.lexists(path)

    def is_folder(self, path: str) -> bool:
        return os.path.isdir(path)

    def secrets_below(self, path: str, skipped: Iterable[str], *, ignored: bool) -> str | None:
        """What a search of a folder and all below it would read that may be a secret, or that it reads too much to tell; None where neither.

        `skipped` are the names of folders that it leaves out; with `ignored` it leaves out hidden files, too, and the folders that git ignores.
        """
        left_out = {*skipped, *(self._ignored_folders() if ignored else ())}
        count = 0
        for folder, folders, files in os.walk(path):
            within_git = "/.git" in folder
            folders[:] = [
                name
                for name in folders
                if not (name in left_out or (ignored and name.startswith(".")) or (within_git and name == "objects"))
            ]
            count += len(files)
            if count > _MOST_SEARCHED:
                return f"more than {_MOST_SEARCHED:,} files"
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
        """A path of the project from its root on: what the project itself is called, or lies in, says nothing about a file."""
        return os.path.relpath(path, self.project) if self.project and is_below(path, self.project) else path

    def _ignored_folders(self) -> list[str]:
        """The names that the project's own .gitignore leaves out plainly."""
        try:
            with open(os.path.join(self.project or self.cwd, ".gitignore"), encoding="utf-8", errors="replace") as file:
                lines = [line.strip() for line in file.read(_LARGEST_SETTINGS).splitlines()]
        except OSError:
            return []
        if any(line.startswith("!") for line in lines):
            return []
        return [line.strip("/") for line in lines if re.fullmatch(r"/?[A-Za-z0-9._-]+/?", line)]

    def executable(self, name: str) -> str | None:
        return executable_of(name, self.cwd, self._path)

    def hosts(self) -> Iterable[str]:
        return self._hosts

    def git_config_that_runs_code(self, folders: Iterable[str]) -> list[str]:
        """What would make git run a program in any of these folders, or cannot be told: settings, a hook, submodules, odd layouts."""
        try:
            found = dict.fromkeys(filter(None, map(repository_of, dict.fromkeys(folders))))
        except OddRepository as error:
            return [str(error)]
        several = ["its folders belong to several repositories"] if self.clean and len(found) > 1 else []
        return [*several, *(trap for repository in found for trap in self._traps_of(repository))]

    def _traps_of(self, repository: Repository) -> list[str]:
        top, git, common = repository
        if not self.inside(top):
            return [f"it is {top}, outside the project"]
        if self.inside(common) and not relied_on(self.shortened(common)):
            return [f"{common} is not protected: commands may create files in it"]
        if not all(map(self._may_be_used, {top, git, common})):
            return ["it belongs to somebody else"]
        names = ("modules", "config.worktree", "objects/info/alternates", *(["commondir"] if git == common else []))
        traps = [f"it has {name}" for name in names for place in {git, common} if os.path.lexists(os.path.join(place, name))]
        if not self.clean and os.access(os.path.join(common, "hooks", "post-index-change"), os.X_OK):
            traps.append("its post-index-change hook")
        if os.path.lexists(os.path.join(top, ".gitmodules")) or _holds_submodules(git):
            traps.append("it has submodules")
        return [*traps, *_odd_settings(os.path.join(common, "config"), _SETTINGS + (_OVERRIDDEN if self.clean else ""))]

    def _may_be_used(self, folder: str) -> bool:
        """Whether git would use a repository of its own accord: with its folder given, it does not look at whose it is."""
        try:
            owner = os.stat(folder).st_uid
        except OSError:
            return False
        return owner == os.geteuid() or not {"*", folder, os.path.dirname(folder)}.isdisjoint(safe_directories(self._environ))

    def git_secrets(self, folders: Iterable[str], *, contents: bool) -> list[str]:
        """What git could show of a repository that may be a secret: a password in an address, or with `contents` files that it keeps."""
        found = []
        for folder in dict.fromkeys(folders):
            try:
                repository = repository_of(folder)
            except OddRepository:
                continue  # one of its traps
            if repository and not contents and _holds_credentials(os.path.join(repository.common, "config")):
                found.append("an address with a password")
            if repository and contents and (name := _tracked_secret(repository)):
                found.append(name)
            elif repository and contents and (not self.ours or _prints_secrets(repository)):
                found += self._secrets_of_history(repository)
        return found

    def git_unknown(self, folders: Iterable[str], names: Iterable[str]) -> str | None:
        """The first of these names that may be something else than a commit, or a tag of one."""
        try:
            found = next(filter(None, map(repository_of, folders)), None)
        except OddRepository:
            return None  # one of its traps
        asked = [name for name in names if found and not is_commit(found, name)]
        if not found or not asked:
            return None
        types = self._git(found, "cat-file", "--batch-check=%(objecttype)", given="".join(f"{name}^{{}}\n" for name in asked)) or ""
        return next((name for name, kind in itertools.zip_longest(asked, types.splitlines()) if kind != "commit"), None)

    def _secrets_of_history(self, repository: Repository) -> list[str]:
        """A file with a secret name that any commit changed, where git is not kept from printing it."""
        with open(SECRET_NAMES, encoding="utf-8") as file:
            lines = [line.split() for line in file if not line.startswith("#")]
        paths = [f":({'exclude,' if how == '!diff' else ''}glob){'' if name.startswith('**') else '**/'}{name}" for name, how in lines]
        changed = self._git(repository, "log", "--all", "--reflog", "-n1", "--format=", "--name-only", "--", *paths)
        return ["files of a history that is too long to look through"] if changed is None else changed.splitlines()[:1]

    def _git(self, repository: Repository, *words: str, given: str = "") -> str | None:
        """What git says of a repository without traps; None where that takes too long."""
        import subprocess

        environ = clean_environment(self._environ, [repository.top], self.project)
        try:
            done = subprocess.run(
                ["git", *words], cwd=repository.top, env=environ, input=given, capture_output=True, text=True, errors="replace", timeout=_GIT_TIMEOUT
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout


def _prints_secrets(repository: Repository) -> bool:
    """Whether attributes of a repository itself, which come first, may have git print files with secret names."""
    import fnmatch

    for path in (os.path.join(repository.top, ".gitattributes"), os.path.join(repository.common, "info", "attributes")):
        try:
            lines = content_of(path, _LARGEST_SETTINGS).decode("utf-8", "replace").splitlines()
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
    """Whether settings of git hold a password or a token, or cannot be looked at."""
    try:
        return re.search(_CREDENTIALS, content_of(path, _LARGEST_SETTINGS)) is not None
    except FileNotFoundError:
        return False
    except OSError:
        return True


def _index(git: str) -> bytes | None:
    """The list of files that a repository keeps; None where it cannot be looked at as a whole."""
    try:
        index = content_of(os.path.join(git, "index"), _LARGEST_INDEX + 1)
        split = any(name.startswith("sharedindex") for name in os.listdir(git))
    except FileNotFoundError:
        return b""
    except OSError:
        return None
    return None if split or len(index) > _LARGEST_INDEX else index


def _tracked_secret(repository: Repository) -> str | None:
    """A file with a secret name that a repository keeps now."""
    index = _index(repository.git) or b""
    found = re.search(_TRACKED_SECRET, index) if any(re.search(ending, index) for ending in _TRACKED_ENDINGS) else None
    return found.group(1).decode("utf-8", "replace") if found else None


def _holds_submodules(git: str) -> bool:
    """Whether the index names other repositories (mode 160000), or cannot be looked at as a whole."""
    index = _index(git)
    return index is None or b"\0\0\xe0\0" in index


def _odd_settings(path: str, known: str) -> list[str]:
    """The settings in a file that are not known to be harmless; anything that does not read as plain settings is odd, too."""
    try:
        text = content_of(path, _LARGEST_SETTINGS + 1).decode()
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError):
        return ["its settings cannot be read"]
    if len(text) > _LARGEST_SETTINGS:
        return ["its settings are too long to be read"]
    if any(not c.isprintable() and c not in "\n\t" for c in text.replace("\r\n", "\n")):
        return ["its settings hold hidden characters"]
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
