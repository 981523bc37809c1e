"""Where a run starts that was submitted on another host: in which folder of this one."""

import os

from backburner.core.claims import ClaimedRun
from backburner.core.models import Task
from backburner.core.ports import CannotStart
from backburner.core.queues import labels_of, lane_of
from backburner.core.settings import Config

PROJECT = "repo:"  # label of a lane whose hosts have a project of this name
_NOT_FOUND = 125  # exit code: the command was not tried


def placed(work: ClaimedRun, host_id: str, host_name: str, config: Config) -> ClaimedRun:
    """A run with its folder on this host: that of the project that its lane names, otherwise the same path. CannotStart if there is none."""
    task = work.task
    if task.origin_host == host_id:
        return work
    label = next((label for label in labels_of(lane_of(task.place)) if label.startswith(PROJECT)), "")
    root = os.path.expanduser(config.projects.get(label.removeprefix(PROJECT), "")) if label else ""
    if not root:
        cwd = task.spec.cwd
        if not os.path.isdir(cwd):
            name = label.removeprefix(PROJECT) or os.path.basename(task.project) or "NAME"
            hint = f'map it there ([worker.projects] {name} = "…") and submit with --lane {PROJECT}{name}'
            raise CannotStart(f"host {host_name} has no {cwd}: {hint}", _NOT_FOUND)
        return work
    cwd = os.path.normpath(os.path.join(root, _below(task)))
    if not os.path.isdir(cwd):
        raise CannotStart(f"host {host_name} has no {cwd}, where its project {label.removeprefix(PROJECT)} should have it", _NOT_FOUND)
    return work._replace(task=task._replace(spec=task.spec._replace(cwd=cwd), project=root, opened=root))


def _below(task: Task) -> str:
    """The path of a task's folder relative to its project."""
    relative = os.path.relpath(task.spec.cwd, task.project)
    return "." if relative.startswith("..") else relative
