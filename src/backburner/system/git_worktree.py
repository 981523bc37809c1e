"""A git worktree for an agent's task: a checkout and a branch of its own, so that nothing of the person's tree is touched.

The branch has the result; the checkout is gone when nobody works in it, and comes back when the conversation is gone on with.
"""

import contextlib
import os
import shutil
import subprocess
from typing import NamedTuple

from backburner.core.errors import WorktreeFailed
from backburner.system.run_files import open_work

DIFF = "changes.diff"
_BRANCH = "backburner/"
_PATIENCE_SECONDS = 120
# Nothing that a repository names is run for our own steps.
_SAFE = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "safe.bareRepository=explicit",  # a folder that is laid out as a repository is none: commands that nobody approved can make one
    "commit.gpgSign=false",
    "user.name=Backburner",
    "user.email=backburner@localhost",
)
_BASE = "refs/backburner/base/"


class Worktree(NamedTuple):
    """`project` is the repository it belongs to, `path` where it is checked out."""

    project: str
    path: str
    task_id: str

    @property
    def branch(self) -> str:
        return _BRANCH + self.task_id

    def make(self) -> None:
        """Check it out: anew from where the person's tree stands, or the branch of before."""
        if os.path.exists(os.path.join(self.path, ".git")):
            return
        os.makedirs(os.path.dirname(self.path), 0o700, exist_ok=True)
        shutil.rmtree(self.path, ignore_errors=True)
        self._git("worktree", "prune")
        if self._known(f"refs/heads/{self.branch}"):
            self._git("worktree", "add", "--quiet", self.path, self.branch)
            return
        self._git("worktree", "add", "--quiet", "-b", self.branch, self.path, "HEAD")
        self._git("update-ref", _BASE + self.task_id, "HEAD")

    def finish(self, message: str, folder: str | None = None) -> str:
        """Put what was done onto the branch and give the checkout back; in a few words what it is.

        The difference is left in `work/` of the run's folder, where that is given.
        """
        if not os.path.exists(os.path.join(self.path, ".git")):
            return ""
        self._git("add", "--all", here=True)
        if self._git("status", "--porcelain", here=True):
            self._git("commit", "--quiet", "--no-verify", "--message", message, here=True)
        base = _BASE + self.task_id
        diff = self._git("diff", "--no-ext-diff", "--no-textconv", "--binary", base, self.branch)
        self._git("worktree", "remove", "--force", self.path)
        if not diff:
            self._git("branch", "--quiet", "-D", self.branch)
            self._git("update-ref", "-d", base)
            return "It changed nothing."
        if folder is not None:
            self._leave(diff, folder)
        count = self._git("diff", "--shortstat", base, self.branch).decode().strip()
        return f"{count}, on the branch {self.branch}: git merge {self.branch}"

    def _leave(self, diff: bytes, folder: str) -> None:
        try:
            work = open_work(folder)
            try:
                with open(os.open(DIFF, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600, dir_fd=work), "wb") as file:
                    file.write(diff)
            finally:
                os.close(work)
        except OSError as error:
            raise WorktreeFailed(task_id=self.task_id, reason=f"{DIFF} could not be written ({error.strerror})") from None

    def forget(self) -> None:
        """Its task is cleared: the checkout goes; what was done stays on the branch, for whoever wants it."""
        with contextlib.suppress(WorktreeFailed):
            self.finish("What was there when the task was cleared")
            self._git("update-ref", "-d", _BASE + self.task_id)
        shutil.rmtree(self.path, ignore_errors=True)

    def _known(self, name: str) -> bool:
        return bool(self._git("rev-parse", "--verify", "--quiet", name, fails=True))

    def _git(self, *words: str, here: bool = False, fails: bool = False) -> bytes:
        settings = [word for setting in _SAFE for word in ("-c", setting)]
        command = ["git", *settings, "-C", self.path if here else self.project, *words]
        environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        try:
            done = subprocess.run(command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PATIENCE_SECONDS)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise WorktreeFailed(task_id=self.task_id, reason=str(error)) from None
        if done.returncode and not fails:
            said = done.stderr.decode("utf-8", "replace").strip().splitlines()
            raise WorktreeFailed(task_id=self.task_id, reason=said[-1] if said else f"git {words[0]} failed")
        return done.stdout
