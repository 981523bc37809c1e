"""The agents of a home: their settings, whether they can be used, and the lane that their model is served in."""

import os
from collections.abc import Mapping

from backburner.coordination.config_file import ConfigFile
from backburner.core.errors import BadInput
from backburner.core.models import AGENT_LANE, DISCOVERY, LOCAL_AGENT_LANE, Caller, Submission


class AgentCatalog:
    """Agents as config.toml sets them up, and those whose programs are on the PATH."""

    def __init__(self, config: ConfigFile) -> None:
        self._config = config

    def settings(self, name: str, *, standing: bool = False, model: str | None = None) -> dict[str, str]:
        """The settings of an agent; `default` exists wherever a model is set. BadInput if there is no such agent."""
        from backburner.core.settings import agent_settings

        return agent_settings(self._config.current, name, standing=standing, model=model)

    def settings_for(self, submission: Submission) -> dict[str, str]:
        """The settings of the agent that a submission names."""
        return self.settings(submission.spec.agent_name or "", standing=submission.is_recurring or submission.session == DISCOVERY)

    def has_models(self) -> bool:
        """Whether the built-in agent has any model."""
        config = self._config.current
        named = (about.get("model") for about in config.agents.values() if not about.get("type"))
        return any([config.text("models.default"), config.text("models.local"), *named])

    def installed(self, caller: Caller) -> list[str]:
        """The known agents whose programs are on the caller's PATH; they need no settings."""
        from backburner.core.known_agents import KNOWN_AGENTS
        from backburner.system.processes import executable_of

        path = caller.environ.get("PATH", os.defpath)
        return [name for name, about in KNOWN_AGENTS.items() if executable_of(about["command"].split()[0], caller.cwd, path)]

    def opencode_servers(self) -> list[dict[str, str]]:
        """The settings of the agents that run in OpenCode servers with a fixed URL."""
        from backburner.core.known_agents import OPENCODE

        agents = self._config.current.agents
        return [self.settings(name) for name, about in agents.items() if about.get("type") == OPENCODE and about.get("url")]

    def lane(self, submission: Submission) -> str:
        """The lane that serves a submission: empty for commands, otherwise by where the agent's model runs."""
        if submission.spec.agent_name is None:
            return ""
        standing, model = submission.is_recurring or submission.session == DISCOVERY, submission.spec.options.model
        return self.lane_of(submission.spec.agent_name, standing=standing, model=model)

    def lane_of(self, agent: str, *, standing: bool = False, model: str | None = None) -> str:
        """The lane of an agent's model: a model on this machine has a lane of its own."""
        from backburner.core.settings import is_local

        return LOCAL_AGENT_LANE if is_local(self.settings(agent, standing=standing, model=model)) else AGENT_LANE

    def asks_before_acting(self, submission: Submission) -> bool:
        """Whether the agent asks for permission before it changes anything."""
        from backburner.core.known_agents import asks_before_acting

        return asks_before_acting(self.settings_for(submission))

    def require_usable(self, submission: Submission, environ: Mapping[str, str]) -> None:
        """Raise BadInput if the agent does not exist or its program is not installed."""
        from backburner.core.command_words import words_of
        from backburner.system.processes import executable_of

        settings = self.settings_for(submission)
        if settings["type"] and submission.spec.options.chat:
            raise BadInput(
                f"The chat is with the built-in agent; ask {settings['name']} in the background: backburner ask --agent {settings['name']}"
            )
        if settings["type"] and not settings.get("url"):
            program = words_of(settings["command"])[0]
            if executable_of(program, submission.spec.cwd, environ.get("PATH", os.defpath)) is None:
                how = f" Get it with: npm install -g {settings['package']}" if settings.get("package") else ""
                raise BadInput(f"The agent {settings['name']} needs the program {program}, which is not on the PATH.{how}")
