"""What an agent says and does, written down in the moment, for a person who reads along: lines of JSON in the folder of its run."""

import json
import os
from typing import Any

from pydantic_ai.messages import ModelResponse, PartDeltaEvent, PartStartEvent, TextPart, TextPartDelta

from backburner.core.terminal_text import shortened
from backburner.system.run_files import STREAM

_LONGEST = 300  # characters of a call's arguments


class LiveStreamWriter:
    """Speaks to whoever reads the file; to nobody where there is no folder. What cannot be written is not missed: the answer is kept."""

    def __init__(self, folder: str | None) -> None:
        self._path = os.path.join(folder, STREAM) if folder is not None else None
        self._heard = False

    def on_model_event(self, event: Any) -> None:
        """A piece of the model's answer."""
        match event:
            case PartStartEvent(part=TextPart(content=text)) | PartDeltaEvent(delta=TextPartDelta(content_delta=text)):
                if text:
                    self._heard = True
                    self._write({"text": text})

    def step(self, response: ModelResponse) -> None:
        """The model has answered: all of it where it was not heard, and what it calls now."""
        said = "".join(part.content for part in response.parts if isinstance(part, TextPart))
        if said and not self._heard:
            self._write({"text": said})
        self._heard = False
        self._write({"end": True})
        for call in response.tool_calls:
            self._write({"tool": call.tool_name, "about": shortened(call.args_as_json_str(), longest=_LONGEST)})

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
