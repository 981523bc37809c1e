"""TRACEPARENT is parsed as the standard requires, and a formatted one can be parsed again."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backburner.core import trace_context
from backburner.core.trace_context import ParentSpan

T, S = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize(
    "text",
    [
        f"00-{T}-{S}-01",
        f"00-{T}-{S}-00",
        f"00-{T}-{S}-ff",
        f"  00-{T}-{S}-01\n",
        f"01-{T}-{S}-01",
        f"cc-{T}-{S}-01-what-the-future-will-be-like",
        f"cc-{T}-{S}-01-",
    ],
)
def test_a_valid_traceparent_gives_the_parent_span(text: str) -> None:
    assert trace_context.parse(text) == ParentSpan(T, S)


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "nonsense",
        f"00-{T}-{S}",
        f"00-{T}-{S}-1",
        f"00-{T}-{S}-01-more",
        f"00-{T}-{S}-01-",
        f"ff-{T}-{S}-01",
        f"0-{T}-{S}-01",
        f"00-{'0' * 32}-{S}-01",
        f"00-{T}-{'0' * 16}-01",
        f"00-{T.upper()}-{S}-01",
        f"00-{T[1:]}-{S}-01",
        f"00-{T}-{S}g-01",
        f"00_{T}_{S}_01",
        f"00-{T}-{S}-01,00-{T}-{S}-01",
        f"cc-{T}-{S}-01.more",
        f"00-{T}-{S}-0\u0661",
    ],
)
def test_an_invalid_traceparent_is_ignored(text: str | None) -> None:
    assert trace_context.parse(text) is None


@given(st.text(max_size=80))
def test_parsing_any_traceparent_does_not_raise(text: str) -> None:
    assert trace_context.parse(text) is None


def test_a_formatted_traceparent_can_be_parsed() -> None:
    made = [(trace_context.new_trace_id(), trace_context.new_span_id()) for _ in range(50)]
    assert [trace_context.parse(trace_context.traceparent(*ids)) for ids in made] == made
    assert len({trace_id for trace_id, _ in made}) == len({span_id for _, span_id in made}) == 50
    assert all(re.fullmatch("[0-9a-f]{32}", trace_id) and re.fullmatch("[0-9a-f]{16}", span_id) for trace_id, span_id in made)
