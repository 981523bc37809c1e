"""Whether an agent could be asked now."""

import asyncio

from backburner.core.known_agents import ACP
from backburner.system.home import Home


def check_agent(home: Home, settings: dict[str, str], environ: dict[str, str]) -> str | None:
    """Why an agent does not answer; None where it does. One from outside is only greeted: its model is not asked."""
    return asyncio.run(_checked(home, settings, environ))


def described(settings: dict[str, str], environ: dict[str, str]) -> str:
    """The model of an agent with the address at which it is asked; of one from outside what kind it is."""
    if settings["type"]:
        return settings["model"] or settings["type"]
    from backburner.agents.model_factory import address_of

    try:
        return f"{settings['model']} at {address_of(settings, environ)}"
    except Exception:  # what is wrong with it, the check says
        return settings["model"]


async def _checked(home: Home, settings: dict[str, str], environ: dict[str, str]) -> str | None:
    if settings["type"] == ACP:
        from backburner.agents.external.acp import AcpAgent

        return await AcpAgent(home).check(settings, environ)
    if settings["type"]:
        from backburner.agents.external.opencode import OpenCode

        return await OpenCode(home).check(settings, environ)
    from backburner.agents.builtin import BuiltinAgent

    return await BuiltinAgent.check(settings, environ)
