"""Writes the text and tool calls of an agent while it works, as JSON lines in the folder of its run, for the chat to display."""

import json
import os
from typing import Any

from pydantic_ai.messages import ModelResponse, PartDeltaEvent, PartStartEvent, TextPart, TextPartDelta

from backburner.core.terminal_text import shortened
from backburner.system.run_files import STREAM

_MAX_ARGUMENTS = 300  # characters


class LiveStreamWriter:
    """Appends to the stream file, or does nothing without a folder. Write errors are ignored: the answer itself is stored elsewhere."""

    def __init__(self, folder: str | None) -> None:
        self._path = os.path.join(folder, STREAM) if folder is not None else None
        self._has_streamed_text = False

    def on_model_event(self, event: Any) -> None:
        """Write a piece of the model's answer."""
        match event:
            case PartStartEvent(part=TextPart(content=text)) | PartDeltaEvent(delta=TextPartDelta(content_delta=text)):
                if text:
                    self._has_streamed_text = True
                    self._write({"text": text})

    def on_response(self, response: ModelResponse) -> None:
        """Write the end of a model response: its text, if it was not streamed, and its tool calls."""
        text = "".join(part.content for part in response.parts if isinstance(part, TextPart))
        if text and not self._has_streamed_text:
            self._write({"text": text})
        self._has_streamed_text = False
        self._write({"end": True})
        for call in response.tool_calls:
            self._write({"tool": call.tool_name, "about": shortened(call.args_as_json_str(), longest=_MAX_ARGUMENTS)})

    def _write(self, piece: dict[str, object]) -> None:
        if self._path is None:
            return
        try:
            file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            try:
                os.write(file, json.dumps(piece).encode() + b"\n")
            finally:
                os.close(file)
        except OSError:
            self._path = None
