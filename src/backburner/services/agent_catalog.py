"""The agents of a home: their settings, whether they can be used, and the lane of their model."""

import os
from collections.abc import Mapping

from backburner.coordination.config_file import ConfigFile
from backburner.core.errors import BadInput
from backburner.core.models import AGENT_LANE, DISCOVERY, LOCAL_AGENT_LANE, Caller, Submission


class AgentCatalog:
    """Agents that config.toml defines, and known agents whose programs are on the PATH."""

    def __init__(self, config: ConfigFile) -> None:
        self._config = config

    def settings(self, name: str, *, recurring: bool = False, model: str | None = None) -> dict[str, str]:
        """Return the settings of an agent; `default` exists if a model is set. Raises BadInput for an unknown agent."""
        from backburner.core.settings import agent_settings

        return agent_settings(self._config.current, name, recurring=recurring, model=model, path=self._config.path)

    def settings_for(self, submission: Submission) -> dict[str, str]:
        """Return the settings of the agent of a submission."""
        return self.settings(submission.spec.agent_name or "", recurring=submission.is_recurring or submission.session == DISCOVERY)

    def has_models(self) -> bool:
        """Return whether any model is set for the built-in agent."""
        config = self._config.current
        models = (settings.get("model") for settings in config.agents.values() if not settings.get("type"))
        return any([config.text("models.default"), config.text("models.local"), *models])

    def has_any(self, caller: Caller) -> bool:
        """Return whether any agent can be used: the built-in one with a model, or another program."""
        return self.has_models() or any(agent.get("type") for agent in self._config.current.agents.values()) or bool(self.installed(caller))

    def installed(self, caller: Caller) -> list[str]:
        """Return the known agents whose programs are on the caller's PATH; they need no configuration."""
        from backburner.core.known_agents import KNOWN_AGENTS
        from backburner.system.processes import executable_of

        path = caller.environ.get("PATH", os.defpath)
        return [name for name, known in KNOWN_AGENTS.items() if executable_of(known["command"].split()[0], caller.cwd, path)]

    def opencode_servers(self) -> list[dict[str, str]]:
        """Return the settings of all agents that use an OpenCode server with a configured URL."""
        from backburner.core.known_agents import OPENCODE

        agents = self._config.current.agents
        return [self.settings(name) for name, agent in agents.items() if agent.get("type") == OPENCODE and agent.get("url")]

    def lane(self, submission: Submission) -> str:
        """Return the lane of a submission: empty for commands, otherwise determined by where the agent's model runs."""
        if submission.spec.agent_name is None:
            return ""
        recurring, model = submission.is_recurring or submission.session == DISCOVERY, submission.spec.options.model
        return self.lane_of(submission.spec.agent_name, recurring=recurring, model=model)

    def lane_of(self, agent: str, *, recurring: bool = False, model: str | None = None) -> str:
        """Return the lane of an agent's model. Models on this machine have a separate lane."""
        from backburner.core.settings import is_local

        return LOCAL_AGENT_LANE if is_local(self.settings(agent, recurring=recurring, model=model)) else AGENT_LANE

    def asks_before_acting(self, submission: Submission) -> bool:
        """Return whether the agent asks for permission before it changes anything."""
        from backburner.core.known_agents import asks_before_acting

        return asks_before_acting(self.settings_for(submission))

    def require_usable(self, submission: Submission, environ: Mapping[str, str]) -> None:
        """Raise BadInput if the agent does not exist or its program is not installed."""
        from backburner.core.command_words import words_of
        from backburner.system.processes import executable_of

        settings = self.settings_for(submission)
        if settings["type"] and submission.spec.options.chat:
            raise BadInput(
                f"The chat supports only the built-in agent. To use {settings['name']}, run: backburner ask --agent {settings['name']}"
            )
        if settings["type"] and not settings.get("url"):
            program = words_of(settings["command"])[0]
            if executable_of(program, submission.spec.cwd, environ.get("PATH", os.defpath)) is None:
                hint = f" To install it: npm install -g {settings['package']}" if settings.get("package") else ""
                raise BadInput(f"The agent {settings['name']} requires the program {program}, which is not on the PATH.{hint}")
