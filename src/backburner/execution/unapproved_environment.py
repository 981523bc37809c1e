"""The environment of a command that only the built-in rule for harmless commands allowed."""

from backburner.approval.programs import folders_of
from backburner.approval.shell_parser import parse_commands
from backburner.core.models import Task
from backburner.system.command_context import LocalCommandContext, may_be_project, project_for
from backburner.system.unapproved import clean_environment


def unapproved_environment(task: Task, environment: dict[str, str], home: str) -> dict[str, str]:
    """A clean environment, with the git repository of the folders that the command may run in, and without programs of its project."""
    anywhere = LocalCommandContext(task.spec.cwd, environment, project="/")  # whether the folders are inside the project was checked before
    changes_folder = task.spec.command.shell and "cd" in task.spec.command.words[0]
    folders, _ = (
        folders_of(parse_commands(task.spec.command.words, task.spec.command.shell), anywhere) if changes_folder else ([anywhere.cwd], None)
    )
    project_root = task.project if may_be_project(task.project, environment) else None
    return clean_environment(environment, folders, project_for(task.spec.cwd, task.opened, (), environment, home) or project_root)
