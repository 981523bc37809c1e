"""What the chat prints above the line being typed, without a terminal: the order of lines and questions."""

import asyncio

from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from backburner.interfaces.tui.chat.screen import ChatScreen


class _Output(DummyOutput):
    """Keeps what is written. With the first line comes a question, behind which everything else has to wait."""

    screen: ChatScreen

    def __init__(self) -> None:
        self.written: list[str] = []

    def write_raw(self, data: str) -> None:
        self.written.append(data.strip())
        if len(self.written) == 1:
            self.screen.show("the question\nits second line")
            self.screen._alone = True


async def test_a_question_that_comes_while_other_lines_are_printed_is_shown() -> None:
    output = _Output()
    with create_pipe_input() as typed, create_app_session(input=typed, output=output):
        output.screen = ChatScreen(None, colour=False)
        output.screen.show("a line")
        async with asyncio.timeout(20):
            await output.screen.settled()
    assert output.written == ["a line", "the question", "its second line"]
