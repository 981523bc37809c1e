"""Discord, against a fake of it on loopback: what is sent arrives once and whole, and what the right people answer is heard."""

import asyncio
import contextlib
import re
import threading
from collections.abc import AsyncGenerator, Callable, Iterator

import pytest
from fake_discord import BOT, CHANNEL, PERSON, STRANGER, TOKEN, FakeDiscord

from backburner.core.errors import ConfigError
from backburner.core.ports import ChannelReply, DeliveryFailed, OutgoingMessage
from backburner.integrations.channels.discord import NO, YES, Discord, open_channel

MESSAGES = f"POST /channels/{CHANNEL}/messages"


@pytest.fixture
def fake() -> Iterator[FakeDiscord]:
    before = set(threading.enumerate())
    with FakeDiscord() as server:
        yield server
    left = [thread for thread in threading.enumerate() if thread not in before]
    for thread in left:
        thread.join(3)
    assert not [thread for thread in left if thread.is_alive()]


@pytest.fixture(autouse=True)
def _no_long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The seconds of politeness to the real Discord."""

    async def at_once(*_: object, **__: object) -> None:
        pass

    monkeypatch.setattr("discord.Client.before_identify_hook", at_once)
    for name in ("_FIRST_WAIT", "_LOOK_WAIT"):
        monkeypatch.setattr(f"backburner.integrations.channels.discord.{name}", 0.05)


def channel_to(fake: FakeDiscord, **settings: str) -> Discord:
    given = {"type": "discord", "target": CHANNEL, "people": PERSON, "base_url": fake.base_url, **settings}
    return open_channel("chat", given, {"DISCORD_TOKEN": TOKEN})


@contextlib.asynccontextmanager
async def opened(fake: FakeDiscord, **settings: str) -> AsyncGenerator[Discord]:
    """A channel that leaves no task of its own behind."""
    before = asyncio.all_tasks()
    channel = channel_to(fake, **settings)
    try:
        yield channel
    finally:
        await channel.close()
    await until(lambda: not asyncio.all_tasks() - before, "its tasks to end")


@contextlib.asynccontextmanager
async def listening(fake: FakeDiscord, channel: Discord) -> AsyncGenerator[list[ChannelReply]]:
    """Its answers as they come in, from when the gateway is open."""
    heard: list[ChannelReply] = []

    async def listen() -> None:
        async for answer in channel.answers():
            heard.append(answer)

    seen = fake.connections
    task = asyncio.create_task(listen())
    try:
        await until(lambda: fake.connections > seen or task.done(), "the gateway")
        yield heard
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(predicate: Callable[[], object], what: str, seconds: float = 4.5) -> None:
    deadline = asyncio.get_running_loop().time() + seconds
    while not predicate():
        assert asyncio.get_running_loop().time() < deadline, f"waited {seconds} s for {what}"
        await asyncio.sleep(0.01)


def once(heard: list[ChannelReply]) -> list[ChannelReply]:
    """Without repetitions: an answer soon after its question, or around a new connection, may come twice."""
    return list(dict.fromkeys(heard))


def letter(text: str = "All 47 tests pass.", *, key: str = "n1", title: str = "check-ci", question: bool = False) -> OutgoingMessage:
    return OutgoingMessage(key, "t-1", title, text, 0, 0, question)


async def asked(channel: Discord, key: str = "q1") -> str:
    message_id = await channel.send(letter("Watch the deploy?", key=key, question=True))
    assert message_id
    return message_id


async def undelivered(channel: Discord) -> DeliveryFailed:
    with pytest.raises(DeliveryFailed) as caught:
        await channel.send(letter())
    return caught.value


async def test_a_letter_arrives_with_its_title_and_opens_no_gateway(fake: FakeDiscord) -> None:
    async with opened(fake) as channel:
        message_id = await channel.send(letter(title="check *ci*"))
    assert fake.contents() == ["**check \\*ci\\***\nAll 47 tests pass."]
    assert list(fake.messages) == [message_id]
    assert fake.connections == 0
    assert message_id and fake.reactions(message_id) == {}


async def test_a_letter_to_a_person_is_a_direct_message(fake: FakeDiscord) -> None:
    async with opened(fake, target=f"user:{PERSON}", people="") as channel:
        message_id = await asked(channel)
        async with listening(fake, channel) as heard:
            fake.react(message_id, STRANGER, YES)
            fake.react(message_id, PERSON, YES)
            await until(lambda: heard, "the answer")
    assert once(heard) == [ChannelReply(message_id, PERSON, True)]
    assert len(fake.contents(fake.direct[PERSON])) == 1


async def test_nobody_is_pinged_and_no_address_is_fetched(fake: FakeDiscord) -> None:
    async with opened(fake) as channel:
        message_id = await channel.send(letter("@everyone look at https://example.com/?secret=1"))
    assert message_id and "@everyone" in fake.messages[message_id]["content"]
    assert not fake.messages[message_id]["mention_everyone"]
    assert fake.messages[message_id]["flags"] == 4  # embeds suppressed


async def test_a_question_is_answered_by_the_right_person_alone(fake: FakeDiscord) -> None:
    async with opened(fake) as channel, listening(fake, channel) as heard:
        first, second = await asked(channel), await asked(channel, "q2")
        assert fake.reactions(first) == {YES: [BOT], NO: [BOT]}
        fake.react(first, STRANGER, YES)
        fake.react(first, PERSON, "🙂")
        fake.react(second, PERSON, NO)
        fake.react(first, PERSON, YES)
        await until(lambda: len(once(heard)) == 2, "two answers")
    assert once(heard) == [ChannelReply(second, PERSON, False), ChannelReply(first, PERSON, True)]
    assert fake.heartbeats


async def test_a_reaction_to_somebody_elses_message_is_no_answer(fake: FakeDiscord) -> None:
    async with opened(fake) as channel, listening(fake, channel) as heard:
        theirs, ours = fake.says(STRANGER, "Shall we?"), await asked(channel)
        fake.react(theirs, PERSON, YES)
        fake.react(ours, PERSON, YES)
        await until(lambda: heard, "the answer")
        assert await channel.catch_up([theirs]) == []
    assert once(heard) == [ChannelReply(ours, PERSON, True)]


async def test_a_reaction_in_another_place_of_the_same_bot_is_no_answer_here(fake: FakeDiscord) -> None:
    async with opened(fake) as channel, opened(fake, target=f"user:{PERSON}") as direct, listening(fake, channel) as heard:
        there, here = await asked(direct), await asked(channel)
        fake.react(there, PERSON, YES)
        fake.react(here, PERSON, NO)
        await until(lambda: heard, "the answer")
    assert once(heard) == [ChannelReply(here, PERSON, False)]


async def test_without_people_nobody_can_answer_and_nothing_listens(fake: FakeDiscord) -> None:
    async with opened(fake, people="") as channel:
        message_id = await asked(channel)
        fake.react(message_id, PERSON, YES)
        assert [answer async for answer in channel.answers()] == []
        assert await channel.catch_up([message_id]) == []
    assert fake.connections == 0
    assert fake.reactions(message_id) == {YES: [PERSON]}
    assert "React" not in fake.contents()[0]


async def test_what_was_answered_while_nothing_of_ours_ran_is_found_after_a_restart(fake: FakeDiscord) -> None:
    async with opened(fake) as channel:
        first, second, third = await asked(channel), await asked(channel, "q2"), await asked(channel, "q3")
    fake.react(first, STRANGER, NO)
    fake.react(first, PERSON, YES)
    fake.react(second, PERSON, NO, burst=True)
    gone = await _deleted(fake)
    async with opened(fake) as channel:
        found = await channel.catch_up([first, second, third, gone, "not an id"])
        assert found == [ChannelReply(first, PERSON, True), ChannelReply(second, PERSON, False)]
        async with listening(fake, channel) as heard:
            fake.react(third, PERSON, YES)
            await until(lambda: heard, "the answer")
    assert once(heard) == [ChannelReply(third, PERSON, True)]


async def _deleted(fake: FakeDiscord) -> str:
    async with opened(fake) as channel:
        message_id = await asked(channel, "gone")
    fake.delete(message_id)
    return message_id


async def test_a_yes_and_a_no_are_a_no_first(fake: FakeDiscord) -> None:
    async with opened(fake, people=f"{PERSON}, {STRANGER}") as channel:
        message_id = await asked(channel)
        fake.react(message_id, PERSON, YES)
        fake.react(message_id, STRANGER, NO)
        assert await channel.catch_up([message_id]) == [ChannelReply(message_id, STRANGER, False), ChannelReply(message_id, PERSON, True)]


async def test_a_reaction_of_one_among_hundreds_is_found(fake: FakeDiscord) -> None:
    last = str(int(PERSON) + 1000)
    async with opened(fake, people=last) as channel:
        message_id = await asked(channel)
        for number in range(250):
            fake.react(message_id, str(int(PERSON) + number), YES)
        fake.react(message_id, last, YES)
        assert await channel.catch_up([message_id]) == [ChannelReply(message_id, last, True)]


async def test_an_answer_that_is_faster_than_we_are_comes_once_more_when_we_know_the_question(
    fake: FakeDiscord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backburner.integrations.channels.discord._SETTLED_SECONDS", 0.2)
    fake.fail("PUT", 429, retry_after=0.3)
    async with opened(fake) as channel, listening(fake, channel) as heard:
        sending = asyncio.create_task(asked(channel))
        await until(lambda: fake.messages, "the message")
        fake.react(next(iter(fake.messages)), PERSON, YES)
        await until(lambda: heard, "the answer")
        assert not sending.done()
        answer = ChannelReply(await sending, PERSON, True)
        heard.clear()
        await until(lambda: heard, "the answer again")
        assert heard == [answer]
        fake.drop_gateway(resumable=False)
        await until(lambda: fake.connections == 2, "the gateway to be back")
        other = await asked(channel, "q2")
        fake.react(other, PERSON, NO)
        await until(lambda: len(once(heard)) > 1, "the other answer")
    assert once(heard) == [answer, ChannelReply(other, PERSON, False)]
    assert heard.count(answer) == 1  # one that was heard when its question was known is not looked for again


@pytest.mark.parametrize("abort", [False, True])
async def test_a_dropped_gateway_loses_no_answer(fake: FakeDiscord, abort: bool) -> None:
    async with opened(fake) as channel, listening(fake, channel) as heard:
        message_id = await asked(channel)
        fake.hold_gateway()
        fake.drop_gateway(abort=abort)
        fake.react(message_id, PERSON, YES)
        fake.admit()
        await until(lambda: heard, "the answer")
        await until(lambda: fake.connected, "the gateway to be back")
        other = await asked(channel, "q2")
        fake.react(other, PERSON, NO)
        await until(lambda: heard[-1] == ChannelReply(other, PERSON, False), "the second answer")
    assert set(heard) == {ChannelReply(message_id, PERSON, True), ChannelReply(other, PERSON, False)}
    assert fake.resumed == 1


async def test_a_gateway_that_forgot_us_loses_no_answer(fake: FakeDiscord) -> None:
    async with opened(fake) as before:
        earlier = await asked(before)
    async with opened(fake) as channel:
        assert await channel.catch_up([earlier]) == []
        async with listening(fake, channel) as heard:
            message_id = await asked(channel, "q2")
            fake.hold_gateway()
            fake.drop_gateway(resumable=False)
            fake.react(message_id, PERSON, YES)
            fake.react(earlier, PERSON, NO)
            fake.admit()
            await until(lambda: len(once(heard)) == 2, "the answers")
    assert set(heard) == {ChannelReply(message_id, PERSON, True), ChannelReply(earlier, PERSON, False)}
    assert fake.resumed == 0


async def test_a_bad_event_ends_nothing(fake: FakeDiscord) -> None:
    async with opened(fake) as channel, listening(fake, channel) as heard:
        message_id = await asked(channel)
        fake.hold_gateway()
        fake.dispatch("MESSAGE_REACTION_ADD", {"emoji": 7})
        await until(lambda: not fake.connected, "the connection to break")
        fake.react(message_id, PERSON, YES)
        fake.admit()
        await until(lambda: heard, "the answer")
    assert once(heard) == [ChannelReply(message_id, PERSON, True)]


async def test_looking_for_answers_again_gets_over_a_trouble(fake: FakeDiscord) -> None:
    async with opened(fake) as channel, listening(fake, channel) as heard:
        message_id = await asked(channel)
        fake.fail(f"GET /channels/{CHANNEL}/messages", 503, times=3)
        fake.hold_gateway()
        fake.drop_gateway(resumable=False)
        fake.react(message_id, PERSON, YES)
        fake.admit()
        await until(lambda: heard, "the answer")
    assert once(heard) == [ChannelReply(message_id, PERSON, True)]


async def test_a_rate_limit_is_sat_out_and_loses_nothing(fake: FakeDiscord) -> None:
    fake.fail(MESSAGES, 429, times=2, retry_after=0.1)
    fake.fail("PUT", 429, retry_after=0.1)
    async with opened(fake) as channel:
        message_id = await asked(channel)
    assert fake.requests.count(MESSAGES) == 3
    assert len(fake.contents()) == 1
    assert fake.reactions(message_id) == {YES: [BOT], NO: [BOT]}


async def test_a_long_rate_limit_is_handed_on_with_its_time(fake: FakeDiscord) -> None:
    fake.fail(MESSAGES, 429, retry_after=120.0)
    async with opened(fake) as channel:
        problem = await undelivered(channel)
        assert (problem.retry_after, problem.for_good) == (120.0, False)
        assert "wait" in str(problem)
        await channel.send(letter())
    assert len(fake.contents()) == 1


async def test_a_server_error_is_tried_again(fake: FakeDiscord) -> None:
    fake.fail(MESSAGES, 503)
    async with opened(fake) as channel:
        problem = await undelivered(channel)
        assert (problem.retry_after, problem.for_good) == (None, False)
        assert "503" in str(problem)
        await channel.send(letter())
    assert len(fake.contents()) == 1


async def test_a_response_lost_after_storing_gives_one_message(fake: FakeDiscord) -> None:
    fake.lose_response(MESSAGES)
    async with opened(fake) as channel:
        problem = await undelivered(channel)
        assert not problem.for_good
        message_id = await channel.send(letter())
    assert list(fake.messages) == [message_id]


async def test_a_letter_sent_again_after_a_crash_appears_once(fake: FakeDiscord) -> None:
    text = "line\n" * 1000
    sent = []
    for _ in range(2):
        async with opened(fake) as channel:
            sent.append(await channel.send(letter(text)))
    assert len(fake.messages) == 3
    assert sent[0] == sent[1] == list(fake.messages)[-1]
    async with opened(fake) as channel:
        await channel.send(letter(text, key="n2"))
    assert len(fake.messages) == 6


async def test_the_same_letter_to_two_places_appears_in_both(fake: FakeDiscord) -> None:
    async with opened(fake) as channel, opened(fake, target=f"user:{PERSON}") as direct:
        await channel.send(letter())
        await direct.send(letter())
    assert len(fake.contents()) == len(fake.contents(fake.direct[PERSON])) == 1


async def test_the_rest_of_a_letter_is_sent_however_late_without_its_beginning(fake: FakeDiscord) -> None:
    text = "line\n" * 1000
    fake.fail(MESSAGES, 503, after=1)
    async with opened(fake) as channel:
        with pytest.raises(DeliveryFailed):
            await channel.send(letter(text))
        assert len(fake.messages) == 1
        fake.forget_nonces()
        await channel.send(letter(text))
    assert len(fake.messages) == 3


async def test_5000_characters_with_a_code_fence_arrive_as_valid_chunks(fake: FakeDiscord) -> None:
    code = "".join(f"line {number}: x = {number}\n" for number in range(220))
    text = f"The build failed.\n\n```python\n{code}```\n" + "It was fine yesterday. " * 80
    assert len(text) > 5000
    async with opened(fake) as channel:
        message_id = await channel.send(letter(text))
    contents = fake.contents()
    assert 3 <= len(contents) <= 5
    assert list(fake.messages)[-1] == message_id
    assert all(len(content) <= 2000 and content.count("```") % 2 == 0 for content in contents)
    blocks = [block for content in contents for block in re.findall(r"```python\n(.*?)```", content, re.DOTALL)]
    assert "".join(blocks) == code
    assert "".join(contents).count("yesterday") == 80


async def test_a_long_question_is_one_message_with_all_of_it_in_a_file(fake: FakeDiscord) -> None:
    text = "```sh\n" + "rm -r build\n" * 400 + "```\nThe end. \udc80"
    async with opened(fake) as channel:
        message_id = await channel.send(letter(text, question=True))
        assert await channel.send(letter(text, question=True)) == message_id
    assert message_id and list(fake.messages) == [message_id]
    content = fake.contents()[0]
    assert len(content) <= 2000 and content.count("```") == 2
    assert "attached" in content and content.endswith(f"React with {YES} for yes or {NO} for no.")
    assert fake.file(message_id).endswith("The end. ?") and fake.file(message_id).count("rm -r build") == 400
    assert fake.reactions(message_id) == {YES: [BOT], NO: [BOT]}


async def test_a_letter_of_a_megabyte_is_no_storm_of_messages(fake: FakeDiscord) -> None:
    text = "many words " * 100_000
    async with opened(fake) as channel:
        message_id = await channel.send(letter(text))
    assert message_id and list(fake.messages) == [message_id]
    assert fake.file(message_id).count("many words") == 100_000


async def test_a_letter_without_words_still_arrives(fake: FakeDiscord) -> None:
    async with opened(fake) as channel:
        await channel.send(letter("\n", title=""))
    assert fake.contents() == ["t-1"]


async def test_a_wrong_token_is_for_good_says_what_to_do_and_is_not_tried_again(fake: FakeDiscord) -> None:
    channel = open_channel("chat", {"target": CHANNEL, "people": PERSON, "base_url": fake.base_url}, {"DISCORD_TOKEN": "wrong"})
    problem = await undelivered(channel)
    assert problem.for_good
    assert str(problem) == "Discord does not accept the bot's token: put a valid one into DISCORD_TOKEN"
    with pytest.raises(DeliveryFailed, match="DISCORD_TOKEN"):
        async for _ in channel.answers():
            pass
    assert len(fake.requests) == 1
    await channel.close()


async def test_a_wrong_token_in_the_file_is_named_there(fake: FakeDiscord) -> None:
    async with opened(fake, token="wrong") as channel:
        assert str(await undelivered(channel)).endswith("put a valid one into 'token' of [channels.chat]")


async def test_a_token_taken_back_is_for_good(fake: FakeDiscord) -> None:
    async with opened(fake) as channel:
        await channel.send(letter())
        fake.fail(MESSAGES, 401)
        with pytest.raises(DeliveryFailed, match="token") as caught:
            await channel.send(letter(key="n2"))
        assert caught.value.for_good


async def test_a_gateway_that_refuses_the_token_ends_the_answers_with_the_reason(fake: FakeDiscord) -> None:
    async with opened(fake) as channel:
        answers = channel.answers()
        waiting = asyncio.ensure_future(anext(answers))
        await until(lambda: fake.connected, "the gateway")
        fake.drop_gateway(code=4004)
        with pytest.raises(DeliveryFailed, match="DISCORD_TOKEN") as caught:
            await asyncio.wait_for(waiting, 4)
        assert caught.value.for_good


@pytest.mark.parametrize(
    ("settings", "failure", "words"),
    [
        ({}, 403, "Send Messages"),
        ({}, 404, "correct 'target' of [channels.chat]"),
        ({"target": f"user:{PERSON}"}, 403, "allow direct messages"),
        ({"target": "user:999"}, 0, "does not know the user 999"),
    ],
)
async def test_what_cannot_get_better_is_for_good_and_says_what_to_fix(
    fake: FakeDiscord, settings: dict[str, str], failure: int, words: str
) -> None:
    if failure:
        fake.fail("messages", failure, code=50007)
    async with opened(fake, **settings) as channel:
        problem = await undelivered(channel)
    assert problem.for_good
    assert words in str(problem)


async def test_a_bot_that_may_not_react_still_asks(fake: FakeDiscord) -> None:
    fake.fail("PUT", 403, code=50013)
    async with opened(fake) as channel:
        message_id = await asked(channel)
        fake.react(message_id, PERSON, YES)
        assert await channel.catch_up([message_id]) == [ChannelReply(message_id, PERSON, True)]


async def test_a_discord_that_is_not_there_is_tried_again() -> None:
    channel = open_channel("chat", {"target": CHANNEL, "base_url": "http://127.0.0.1:9/api/v10"}, {"DISCORD_TOKEN": TOKEN})
    problem = await undelivered(channel)
    assert not problem.for_good
    assert "could not be reached" in str(problem)
    await channel.close()


async def test_closing_ends_the_answers_and_every_connection(fake: FakeDiscord) -> None:
    channel = channel_to(fake)
    answers = channel.answers()
    waiting = asyncio.ensure_future(anext(answers, None))
    await until(lambda: fake.connected, "the gateway")
    await channel.close()
    assert await asyncio.wait_for(waiting, 4) is None
    await until(lambda: not fake.connected, "the gateway to be left")
    assert [answer async for answer in channel.answers()] == []
    with pytest.raises(DeliveryFailed, match="closed"):
        await channel.send(letter())
    await channel.close()


async def test_only_reactions_are_asked_for_at_the_gateway(fake: FakeDiscord) -> None:
    async with opened(fake) as channel, listening(fake, channel):
        assert fake.identified[0]["intents"] == (1 << 10) | (1 << 13)


@pytest.mark.parametrize(
    ("settings", "environ", "words"),
    [
        ({"target": CHANNEL}, {}, "DISCORD_TOKEN"),
        ({"target": CHANNEL, "token_env": "MY_BOT"}, {"DISCORD_TOKEN": TOKEN}, "MY_BOT"),
        ({}, {"DISCORD_TOKEN": TOKEN}, "'target'"),
        ({"target": "#general"}, {"DISCORD_TOKEN": TOKEN}, "'#general'"),
        ({"target": CHANNEL, "people": f"{PERSON}, me"}, {"DISCORD_TOKEN": TOKEN}, "'me'"),
        ({"target": CHANNEL, "base_url": "http://example.com/api"}, {"DISCORD_TOKEN": TOKEN}, "'base_url'"),
        ({"target": CHANNEL, "base_url": "http://127.0.0.1.example.com/api"}, {"DISCORD_TOKEN": TOKEN}, "'base_url'"),
        ({"target": CHANNEL, "base_url": "http://127.0.0.1@example.com/api"}, {"DISCORD_TOKEN": TOKEN}, "'base_url'"),
    ],
)
def test_a_wrong_setting_is_named(settings: dict[str, str], environ: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_channel("chat", settings, environ)
    assert words in str(caught.value) and "channels.chat" in str(caught.value)
    assert TOKEN not in str(caught.value)
