"""Who can approve: a process of an agent cannot hide that by removing environment variables."""

import os
import subprocess
import sys

from backburner.services.identity import AGENT_VARIABLES


def test_a_process_without_the_agent_variables_of_its_parent_cannot_approve() -> None:
    """The parent process still has the variable."""
    inner = "from backburner.services.identity import require_no_agent; require_no_agent({})"
    outer = f"import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', {inner!r}], env={{}}).returncode)"
    environ = {name: value for name, value in os.environ.items() if name not in AGENT_VARIABLES}
    assert subprocess.run([sys.executable, "-c", outer], env=environ, capture_output=True).returncode == 0
    agent_environ = {**environ, next(iter(AGENT_VARIABLES)): "1"}
    by_agent = subprocess.run([sys.executable, "-c", outer], env=agent_environ, capture_output=True, text=True)
    assert by_agent.returncode == 1 and "NotAPerson" in by_agent.stderr
