"""Frames built from parts are the JSON that serialising them whole would give."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.openai.api_error import ErrorBody
from cluster.openai.choice_text import ChoiceEnd
from cluster.openai.event_frames import ChatFrames, CompletionFrames, error_frame
from cluster.openai.responses import PromptTokensDetails, ResponseIdentity, Usage

IDENTITY = ResponseIdentity('id"\\', 5, "mödel/ä", "fp")
USAGE = Usage(1, 2, 3, PromptTokensDetails(0))
CONSTANT = {"id": 'id"\\', "created": 5, "model": "mödel/ä", "system_fingerprint": "fp"}


def parsed(frame):
    text = frame.decode()
    assert text.startswith("data: ")
    assert text.endswith("\n\n")
    assert "\n" not in text[:-2]
    return json.loads(text[6:])


@given(st.text(), st.integers(0, 3), st.booleans())
def test_a_text_frame_is_whole_json_for_any_text(text, choice, has_usage):
    frames = ChatFrames(IDENTITY, num_choices=4, has_usage=has_usage)
    body = parsed(frames.text(choice, text, None))
    assert body == CONSTANT | {
        "object": "chat.completion.chunk",
        "choices": [
            {
                "index": choice,
                "delta": {"content": text},
                "logprobs": None,
                "finish_reason": None,
            }
        ],
    } | ({"usage": None} if has_usage else {})


@pytest.mark.parametrize("make", [ChatFrames, CompletionFrames])
@pytest.mark.parametrize("stop_reason", [None, 'a"b', 7])
def test_a_finish_frame_names_its_reason(make, stop_reason):
    frames = make(IDENTITY, num_choices=2, has_usage=True)
    body = parsed(frames.finish(1, ChoiceEnd("stop", stop_reason), USAGE))
    assert body["choices"][0]["index"] == 1
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["choices"][0]["stop_reason"] == stop_reason
    assert body["usage"]["total_tokens"] == 3


def test_a_completion_has_no_opening():
    assert CompletionFrames(IDENTITY, num_choices=1, has_usage=False).opening(0, None) == b""


def test_an_error_frame_holds_the_error_body():
    body = parsed(error_frame(ErrorBody("No\nway", "server_error", code="x")))
    assert body == {
        "error": {"message": "No\nway", "type": "server_error", "param": None, "code": "x"}
    }
