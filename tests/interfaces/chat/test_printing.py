"""The order in which the chat prints lines and questions, tested without a terminal."""

import asyncio

from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from backburner.interfaces.tui.chat.screen import ChatScreen


class _RecordingOutput(DummyOutput):
    """Records what is written. Shows a question while the first line is being written."""

    screen: ChatScreen

    def __init__(self) -> None:
        self.written: list[str] = []

    def write_raw(self, data: str) -> None:
        self.written.append(data.strip())
        if len(self.written) == 1:
            self.screen.show("the question\nits second line")
            self.screen._question_shown = True


async def test_a_question_that_appears_while_other_lines_are_printed_is_shown() -> None:
    output = _RecordingOutput()
    with create_pipe_input() as typed, create_app_session(input=typed, output=output):
        output.screen = ChatScreen(None, colour=False)
        output.screen.show("a line")
        async with asyncio.timeout(20):
            await output.screen.wait_printed()
    assert output.written == ["a line", "the question", "its second line"]
