"""Checks whether an agent is available."""

import asyncio

from backburner.core.known_agents import ACP
from backburner.system.home import Home


def check_agent(home: Home, settings: dict[str, str], environ: dict[str, str]) -> str | None:
    """Why an agent is not available, or None if it is. An external agent only gets a handshake, no prompt."""
    return asyncio.run(_check(home, settings, environ))


def describe_agent(settings: dict[str, str], environ: dict[str, str]) -> str:
    """The model of an agent with its address; for an external agent its model or type."""
    if settings["type"]:
        return settings["model"] or settings["type"]
    from backburner.agents.model_factory import model_address

    try:
        return f"{settings['model']} at {model_address(settings, environ)}"
    except Exception:  # check_agent reports the error
        return settings["model"]


async def _check(home: Home, settings: dict[str, str], environ: dict[str, str]) -> str | None:
    if settings["type"] == ACP:
        from backburner.agents.external.acp import AcpAgent

        return await AcpAgent(home).check(settings, environ)
    if settings["type"]:
        from backburner.agents.external.opencode import OpenCode

        return await OpenCode(home).check(settings, environ)
    from backburner.agents.builtin import BuiltinAgent

    return await BuiltinAgent.check(settings, environ)
