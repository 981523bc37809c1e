"""Models that fail: the run fails too, with a sentence of ours that names the address."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import CONFIG, HomeCli

from backburner.testing.scripted_model import ScriptedModel

NOWHERE = "http://127.0.0.1:9/v1"
HTTP_ERRORS = {
    401: "The model server at {url} refused the API key (HTTP 401): scripted error 401",
    404: "The model server at {url} does not have the model 'one' (HTTP 404): scripted error 404",
    400: "The model server at {url} refused the request (HTTP 400): scripted error 400",
    429: "The model server at {url} accepts no more requests at the moment (HTTP 429): scripted error 429",
    500: "The model server at {url} has an error (HTTP 500): scripted error 500",
}


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    with ScriptedModel() as scripted:
        yield scripted


def configure(home_cli: HomeCli, text: str) -> None:
    home_cli.configure(f"{CONFIG}[tasks]\nmax_concurrent = 8\n{text}")


def ask_all(home_cli: HomeCli, *scripts: list[dict[str, Any]], options: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    """Ask an agent once for each script, all at the same time; return how each ended and its error."""
    asked = [home_cli.ok("ask", *options, f"Go. [[script: {json.dumps(script)}]]").strip() for script in scripts]
    home_cli.cli("wait", *asked, "--timeout", "60")
    return [(str(status["status"]), str(status["error"])) for status in map(home_cli.status, asked)]


@pytest.mark.parametrize("name", ["openai-chat:one", "anthropic:one"])
def test_an_answer_that_is_cut_off_fails_the_run(home_cli: HomeCli, model: ScriptedModel, name: str) -> None:
    address = f"{model.url}/v1" if name.startswith("openai") else model.url
    configure(home_cli, f'[models]\ndefault = "{name}"\nbase_url = "{address}"\n')
    # The number of events after which the text, or the arguments of the call, have been sent.
    sent = 1 if name.startswith("openai") else 3
    call = {"tool": "write_file", "args": {"path": "made.txt", "text": "x"}}
    ended = ask_all(home_cli, [{"say": "half an ans", "events": sent}], [{**call, "events": sent}], [{"say": "whole"}])
    assert ended[:2] == [("failed", f"The model server at {address} ended the connection in the middle of an answer.")] * 2
    assert ended[2][0] == "completed" and not (home_cli.cwd / "made.txt").exists()


@pytest.mark.parametrize("name", ["openai-chat:one", "anthropic:one"])
def test_an_answer_that_reached_the_limit_of_the_model_says_that_it_is_incomplete(
    home_cli: HomeCli, model: ScriptedModel, name: str
) -> None:
    address = f"{model.url}/v1" if name.startswith("openai") else model.url
    configure(home_cli, f'[models]\ndefault = "{name}"\nbase_url = "{address}"\n')
    step = {"say": "First, seco", "finish": "length" if name.startswith("openai") else "max_tokens"}
    answer = home_cli.ok("ask", "--wait", f"Go. [[script: {json.dumps([step])}]]")
    assert "First, seco\n" in answer and "The answer is incomplete: the model reached its limit of output tokens." in answer


@pytest.mark.parametrize("name", ["openai-chat:one", "anthropic:one"])
def test_half_a_character_in_an_answer_is_replaced(home_cli: HomeCli, model: ScriptedModel, name: str) -> None:
    """JSON can hold one half of a surrogate pair, which no file and no further request can."""
    address = f"{model.url}/v1" if name.startswith("openai") else model.url
    configure(home_cli, f'[models]\ndefault = "{name}"\nbase_url = "{address}"\n')
    steps = [
        {"say": "Now: \udc00", "tool": "write_file", "args": {"path": "made.txt", "content": "left \ud83d right"}},
        {"say": "half: \ud83d."},
    ]
    answer = home_cli.cli("ask", "--wait", f"Go. [[script: {json.dumps(steps)}]]")
    assert (answer.stdout, answer.returncode) == ("half: \N{REPLACEMENT CHARACTER}.\n", 0), answer.stderr
    assert (home_cli.cwd / "made.txt").read_text() == "left \N{REPLACEMENT CHARACTER} right"
    assert home_cli.ok("resume", "last", "--wait", "And?") == "ok\n"


def test_errors_of_a_model_name_the_address_and_the_reason(home_cli: HomeCli, model: ScriptedModel) -> None:
    url = f"{model.url}/v1"
    configure(home_cli, f'[models]\ndefault = "openai-chat:one"\nbase_url = "{url}"\n')
    found = ask_all(
        home_cli,
        *([{"error": status, "times": 50}] for status in HTTP_ERRORS),
        [{"raw": "<html>Not found</html>"}],
        [{"raw": "data: {not json}\n\n"}],
    )
    assert found[:-2] == [("failed", text.format(url=url)) for text in HTTP_ERRORS.values()]
    assert found[-2] == (
        "failed",
        f"The model server at {url} gave no valid answer. Is the address right, and can model openai-chat:one call tools?",
    )
    assert found[-1] == ("failed", f"The model server at {url} sent something that is not an answer of a model. Is the address right?")


def test_a_model_server_that_does_not_run_is_named(home_cli: HomeCli) -> None:
    fallback = 'fallback = "anthropic:two"\nfallback_base_url = "http://localhost:9"\n'
    configure(home_cli, f'[models]\ndefault = "openai-chat:one"\nbase_url = "{NOWHERE}"\n[agents.second]\n{fallback}')
    sentence = f"No model server at {NOWHERE}. Is it running?"
    assert ask_all(home_cli, []) == [("failed", sentence)]
    assert ask_all(home_cli, [], options=("--agent", "second")) == [
        ("failed", f"{sentence} No model server at http://localhost:9. Is it running?")
    ]
    assert sentence in home_cli.cli("doctor").stdout


def test_a_model_without_its_key_or_its_package_says_what_is_missing(home_cli: HomeCli) -> None:
    configure(home_cli, '[models]\ndefault = "anthropic:one"\n[agents.other]\nmodel = "cohere:one"\n')
    ((status, error),) = ask_all(home_cli, [])
    assert status == "failed" and error.startswith("There is no API key for 'anthropic:one'. Set ANTHROPIC_API_KEY, or name")
    ((status, error),) = ask_all(home_cli, [], options=("--agent", "other"))
    assert status == "failed" and error.startswith("Models of 'cohere' need a Python package that is not installed: pip install ")
