"""Which address and which API key a model uses, from its name and the settings."""

import json
from collections.abc import Iterator

import pytest
from conftest import CONFIG, HomeCli, wait_until

from backburner.agents.model_factory import ModelCache
from backburner.core.settings import agent_settings, resolve
from backburner.testing.scripted_model import ScriptedModel

TEAM, ANTHROPIC = "key-of-the-team", "key-of-anthropic"
MODELS = """
[models]
default = "openai-chat:one"
base_url = "http://shared/v1"
api_key_env = "TEAM_KEY"
"""


class Servers:
    """The server that [models] names, and the own addresses of two providers, all on loopback."""

    def __init__(self, home_cli: HomeCli, shared: ScriptedModel, openai: ScriptedModel, anthropic: ScriptedModel) -> None:
        self.shared, self.openai, self.anthropic = shared, openai, anthropic
        home_cli.environ |= {"OPENAI_API_KEY": "key-of-openai", "TEAM_KEY": TEAM, "ANTHROPIC_API_KEY": ANTHROPIC}
        home_cli.environ |= {"OPENAI_BASE_URL": f"{openai.url}/v1", "ANTHROPIC_BASE_URL": anthropic.url}

    @property
    def keys(self) -> list[set[str]]:
        """The API keys that each server received."""
        return [{key.removeprefix("Bearer ") for key in one.keys} for one in (self.shared, self.openai, self.anthropic)]


@pytest.fixture
def servers(home_cli: HomeCli) -> Iterator[Servers]:
    with ScriptedModel() as shared, ScriptedModel() as openai, ScriptedModel() as anthropic:
        yield Servers(home_cli, shared, openai, anthropic)
        home_cli.stop_all()


def configure(home_cli: HomeCli, servers: Servers, text: str) -> None:
    home_cli.configure(f"{CONFIG}{text.replace('http://shared', servers.shared.url)}")


def ask(home_cli: HomeCli, agent: str) -> dict[str, object]:
    prompt = f"Please [[script: {json.dumps([{'say': 'fine'}])}]]"
    task_id = home_cli.ok("ask", "--agent", agent, prompt).strip()
    wait_until(lambda: home_cli.status(task_id)["status"] in ("completed", "failed"), "the answer", 60)
    return home_cli.status(task_id)


@pytest.mark.parametrize(
    "text, name, recurring, model, wanted",
    [
        pytest.param("", "default", False, "", ("openai-chat:one", "http://shared/v1", "TEAM_KEY"), id="default"),
        pytest.param('[agents.a]\nmodel = "anthropic:x"', "a", False, "", ("anthropic:x", "", ""), id="another provider"),
        pytest.param('[agents.a]\nmodel = "openai:x"', "a", False, "", ("openai:x", "http://shared/v1", "TEAM_KEY"), id="same provider"),
        pytest.param('[agents.a]\nmodel = "ollama:x"', "a", False, "", ("ollama:x", "", ""), id="ollama is another provider"),
        pytest.param('[agents.a]\nbase_url = "http://own"', "a", False, "", ("openai-chat:one", "http://own", ""), id="own address"),
        pytest.param(
            '[agents.a]\napi_key_env = "MINE"', "a", False, "", ("openai-chat:one", "http://shared/v1", "MINE"), id="own key alone"
        ),
        pytest.param(
            '[agents.a]\nmodel = "openai-chat:x"\nbase_url = ""', "a", False, "", ("openai-chat:x", "", ""), id="the provider's own address"
        ),
        pytest.param(
            '[agents.a]\nmodel = "anthropic:x"\nbase_url = "http://own"\napi_key_env = "MINE"',
            "a",
            False,
            "openai-chat:two",
            ("openai-chat:two", "http://shared/v1", "TEAM_KEY"),
            id="a model chosen for one task has the address of its own provider",
        ),
        pytest.param(
            '[agents.a]\nmodel = "anthropic:x"\nbase_url = "http://own"',
            "a",
            False,
            "anthropic:y",
            ("anthropic:y", "http://own", ""),
            id="a model chosen for one task, of the agent's provider",
        ),
        pytest.param(
            'local = "openai-chat:two"', "default", True, "", ("openai-chat:two", "http://shared/v1", "TEAM_KEY"), id="local, same provider"
        ),
        pytest.param('local = "ollama:two"', "default", True, "", ("ollama:two", "", ""), id="local, another provider"),
        pytest.param(
            'local = "openai-chat:two"\nlocal_base_url = "http://near"',
            "default",
            True,
            "",
            ("openai-chat:two", "http://near", ""),
            id="local at an address of its own",
        ),
        pytest.param(
            'local = "openai-chat:two"\nlocal_base_url = "http://near"\n[agents.a]\nmodel = "openai-chat:x"',
            "a",
            True,
            "",
            ("openai-chat:x", "http://shared/v1", "TEAM_KEY"),
            id="the address of local is for local alone",
        ),
    ],
)
def test_address_and_key_of_a_model(text: str, name: str, recurring: bool, model: str, wanted: tuple[str, str, str]) -> None:
    settings = agent_settings(resolve(MODELS + text), name, recurring=recurring, model=model)
    assert (settings["model"], settings["base_url"], settings["api_key_env"]) == wanted


@pytest.mark.parametrize(
    "text, recurring, wanted",
    [
        pytest.param("", False, ("openai-chat:two", "http://second", "SECOND"), id="shared"),
        pytest.param('[agents.a]\nfallback = "anthropic:x"', False, ("anthropic:x", "", ""), id="another provider"),
        pytest.param('[agents.a]\nfallback = "openai:x"', False, ("openai:x", "http://second", "SECOND"), id="same provider"),
        pytest.param('remote = "openai-chat:far"\n[agents.a]', True, ("openai-chat:far", "", ""), id="remote"),
        pytest.param(
            'remote = "openai-chat:far"\nremote_base_url = "http://far"\n[agents.a]\nfallback = "anthropic:x"',
            True,
            ("anthropic:x", "", ""),
            id="another provider than remote",
        ),
    ],
)
def test_address_and_key_of_a_fallback_model(text: str, recurring: bool, wanted: tuple[str, str, str]) -> None:
    second = 'fallback = "openai-chat:two"\nfallback_base_url = "http://second"\nfallback_api_key_env = "SECOND"\n'
    agent = "" if "[agents.a]" in text else "[agents.a]\n"
    settings = agent_settings(resolve(MODELS + second + text + agent), "a", recurring=recurring)
    assert (settings["fallback"], settings["fallback_base_url"], settings["fallback_api_key_env"]) == wanted


def test_an_agent_of_another_provider_uses_that_providers_address_and_key(home_cli: HomeCli, servers: Servers) -> None:
    configure(home_cli, servers, MODELS + '[agents.other]\nmodel = "anthropic:x"\n[agents.same]\nmodel = "openai-chat:x"\n')
    assert ask(home_cli, "other")["status"] == "completed"
    assert servers.keys == [set(), set(), {ANTHROPIC}]
    assert ask(home_cli, "same")["status"] == "completed"
    assert servers.keys == [{TEAM}, set(), {ANTHROPIC}]


def test_api_key_env_also_applies_at_the_providers_own_address(home_cli: HomeCli, servers: Servers) -> None:
    configure(home_cli, servers, '[models]\ndefault = "openai-chat:x"\napi_key_env = "TEAM_KEY"\n')
    assert ask(home_cli, "default")["status"] == "completed"
    assert servers.keys == [set(), {TEAM}, set()]


def test_the_local_model_uses_the_address_of_the_default_model(home_cli: HomeCli, servers: Servers) -> None:
    configure(home_cli, servers, MODELS + 'local = "openai-chat:two"\n')
    done = {"tool": "final_result", "args": {"report": True, "state": "seen", "message": "Fine."}}
    home_cli.ok("add", "look", "--every", "1h", "--prompt", f"Look. [[script: {json.dumps([done])}]]")
    home_cli.ok("run-now", "look")
    wait_until(lambda: home_cli.status("look")["run_status"] in ("completed", "failed"), "the run", 60)
    assert home_cli.status("look")["run_status"] == "completed" and servers.keys == [{TEAM}, set(), set()]
    assert [request["model"] for request in servers.shared.requests] == ["two"]
    home_cli.ok("cancel", "look")


def test_doctor_checks_every_model_at_its_own_address(home_cli: HomeCli, servers: Servers) -> None:
    nowhere = "http://127.0.0.1:9/v1"
    configure(
        home_cli,
        servers,
        f'{MODELS}local = "ollama:near"\nlocal_base_url = "{nowhere}"\n[agents.other]\nmodel = "anthropic:x"\n'
        f'[agents.lost]\nmodel = "openai-chat:y"\nbase_url = "{nowhere}"\nfallback = "anthropic:x"\n',
    )
    lines = home_cli.cli("doctor").stdout.splitlines()
    found = {line.split(" (")[0].split(maxsplit=1)[1]: line for line in lines if "agent " in line or "model" in line}
    assert found["agent default"].startswith("ok") and f"(openai-chat:one at {servers.shared.url}/v1)" in found["agent default"]
    assert found["agent other"].startswith("ok") and f"(anthropic:x at {servers.anthropic.url})" in found["agent other"]
    assert found["agent lost"].startswith("BAD") and nowhere in found["agent lost"]
    assert found["model of recurring tasks"].startswith("BAD") and nowhere in found["model of recurring tasks"]
    assert servers.keys == [{TEAM}, set(), {ANTHROPIC}]


@pytest.mark.parametrize("name", ["nonsense", "nonsense:x", "openai-chat:"])
def test_an_invalid_model_name_gives_an_error_with_examples(home_cli: HomeCli, servers: Servers, name: str) -> None:
    configure(home_cli, servers, f'{MODELS}[agents.odd]\nmodel = "{name}"\n')
    error = str(ask(home_cli, "odd")["error"])
    assert f"'{name}' is not a model" in error and "PROVIDER:NAME, such as ollama:qwen3" in error
    assert servers.keys == [set(), set(), set()]


def test_runs_with_the_same_settings_and_keys_share_a_model() -> None:
    cache, settings = ModelCache(), {"model": "openai-chat:a", "base_url": "http://127.0.0.1:9/v1", "api_key_env": "MY_KEY"}
    first = cache.get(settings, {"MY_KEY": "1", "OTHER": "x"}, 10.0)
    assert cache.get(dict(settings), {"MY_KEY": "1", "OTHER": "y"}, 10.0) is first
    others = [
        cache.get(settings, {"MY_KEY": "2"}, 10.0),
        cache.get(settings, {"MY_KEY": "1"}, 20.0),
        cache.get({**settings, "base_url": "http://127.0.0.1:8/v1"}, {"MY_KEY": "1"}, 10.0),
        cache.get({**settings, "model": "openai-chat:b"}, {"MY_KEY": "1"}, 10.0),
    ]
    assert len({id(model) for model in (first, *others)}) == 5
    assert cache.get(settings, {"MY_KEY": "1"}, 10.0) is first


def test_only_the_models_used_last_are_kept() -> None:
    cache, settings = ModelCache(), {"model": "openai-chat:a", "base_url": "http://127.0.0.1:9/v1"}
    first = cache.get(settings, {}, 10.0)
    for number in range(20):
        cache.get({**settings, "model": f"openai-chat:{number}"}, {}, 10.0)
    assert cache.get(settings, {}, 10.0) is not first
