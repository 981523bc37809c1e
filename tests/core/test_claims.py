"""Results of runs."""

from backburner.core.claims import RunResult
from backburner.core.states import Result, RunState


def test_a_result_with_text_that_utf8_cannot_encode_can_be_stored() -> None:
    ending = RunResult(
        "run", RunState.FAILED, Result.EXIT, 0, 1, "e\udcff", "ü", answer="a\ud83d", output="o\udc80", notes=("n\udcff", "🙂")
    )
    assert ending.storable() == ending._replace(error="e?", answer="a?", output="o?", notes=("n?", "🙂"))
