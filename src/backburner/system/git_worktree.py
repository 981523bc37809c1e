"""A git worktree for an agent task: a separate checkout and branch, so that the user's working tree is not touched.

The result is on the branch. The checkout is removed when the task ends, and created again when the conversation is resumed.
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
_GIT_TIMEOUT = 120
# Prevents git from running programs that the repository names.
_SAFE = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "safe.bareRepository=explicit",  # ignore folders laid out like a repository: commands that nobody approved can create one
    "commit.gpgSign=false",
    "user.name=Backburner",
    "user.email=backburner@localhost",
)
_BASE = "refs/backburner/base/"


class Worktree(NamedTuple):
    """`project` is the repository, `path` the location of the checkout."""

    project: str
    path: str
    task_id: str

    @property
    def branch(self) -> str:
        return _BRANCH + self.task_id

    def make(self) -> None:
        """Create the checkout: from the existing branch, or from HEAD of the user's working tree."""
        if os.path.exists(os.path.join(self.path, ".git")):
            return
        os.makedirs(os.path.dirname(self.path), 0o700, exist_ok=True)
        shutil.rmtree(self.path, ignore_errors=True)
        self._git("worktree", "prune")
        if self._ref_exists(f"refs/heads/{self.branch}"):
            self._git("worktree", "add", "--quiet", self.path, self.branch)
            return
        self._git("worktree", "add", "--quiet", "-b", self.branch, self.path, "HEAD")
        self._git("update-ref", _BASE + self.task_id, "HEAD")

    def finish(self, message: str, folder: str | None = None) -> str:
        """Commit all changes to the branch and remove the checkout; returns a short description of the result.

        If `folder` is given, the diff is written to `work/` of that run folder.
        """
        if not os.path.exists(os.path.join(self.path, ".git")):
            return ""
        self._git("add", "--all", in_checkout=True)
        if self._git("status", "--porcelain", in_checkout=True):
            self._git("commit", "--quiet", "--no-verify", "--message", message, in_checkout=True)
        base = _BASE + self.task_id
        diff = self._git("diff", "--no-ext-diff", "--no-textconv", "--binary", base, self.branch)
        self._git("worktree", "remove", "--force", self.path)
        if not diff:
            self._git("branch", "--quiet", "-D", self.branch)
            self._git("update-ref", "-d", base)
            return "It changed nothing."
        if folder is not None:
            self._write_diff(diff, folder)
        count = self._git("diff", "--shortstat", base, self.branch).decode().strip()
        return f"{count}, on the branch {self.branch}: git merge {self.branch}"

    def diff(self) -> bytes:
        """What has changed since the worktree was created; also what is not committed yet, while the checkout exists."""
        base = _BASE + self.task_id
        if os.path.exists(os.path.join(self.path, ".git")):
            return self._git("diff", "--no-ext-diff", "--no-textconv", base, in_checkout=True, may_fail=True)
        return self._git("diff", "--no-ext-diff", "--no-textconv", base, self.branch, may_fail=True)

    def _write_diff(self, diff: bytes, folder: str) -> None:
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
        """Remove the checkout of a cleared task; its changes stay on the branch."""
        with contextlib.suppress(WorktreeFailed):
            self.finish("Changes at the time when the task was cleared")
            self._git("update-ref", "-d", _BASE + self.task_id)
        shutil.rmtree(self.path, ignore_errors=True)

    def _ref_exists(self, name: str) -> bool:
        return bool(self._git("rev-parse", "--verify", "--quiet", name, may_fail=True))

    def _git(self, *words: str, in_checkout: bool = False, may_fail: bool = False) -> bytes:
        settings = [word for setting in _SAFE for word in ("-c", setting)]
        command = ["git", *settings, "-C", self.path if in_checkout else self.project, *words]
        environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        try:
            done = subprocess.run(command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, timeout=_GIT_TIMEOUT)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise WorktreeFailed(task_id=self.task_id, reason=str(error)) from None
        if done.returncode and not may_fail:
            messages = done.stderr.decode("utf-8", "replace").strip().splitlines()
            raise WorktreeFailed(task_id=self.task_id, reason=messages[-1] if messages else f"git {words[0]} failed")
        return done.stdout
