"""Log probabilities in OpenAI's shapes, whole and streamed, and only for who asks."""

import json

import pytest


def frames_of(answer):
    lines = [line for line in answer.text.split("\n\n") if line.startswith("data: {")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def test_a_completion_lists_tokens_their_offsets_and_the_likeliest_ones(start_gateway, says):
    gateway = start_gateway(says("Hi", logprobs=(-0.5,)))
    (choice,) = gateway.complete(logprobs=2).json()["choices"]
    assert choice["logprobs"] == {
        "text_offset": [0, 1],
        "token_logprobs": [-0.5, -0.5],
        "tokens": ["H", "i"],
        "top_logprobs": [{"H": -0.125, "I": -0.25}, {"i": -0.125, "j": -0.25}],
    }


def test_zero_asks_for_the_sampled_tokens_alone(start_gateway, says):
    gateway = start_gateway(says("Hi", logprobs=(-0.5,)))
    (choice,) = gateway.complete(logprobs=0).json()["choices"]
    assert choice["logprobs"]["top_logprobs"] == [{"H": -0.5}, {"i": -0.5}]


def test_a_chat_choice_lists_its_tokens_with_their_bytes(start_gateway, says):
    gateway = start_gateway(says("H", logprobs=(-0.5,)))
    (choice,) = gateway.chat(logprobs=True, top_logprobs=1).json()["choices"]
    own = {"token": "H", "logprob": -0.5, "bytes": [72]}
    likely = {"token": "H", "logprob": -0.25, "bytes": [72]}
    assert choice["logprobs"] == {"content": [own | {"top_logprobs": [likely]}], "refusal": None}


def test_who_does_not_ask_gets_none_and_the_engine_computes_none(gateway):
    assert gateway.chat().json()["choices"][0]["logprobs"] is None
    assert gateway.dispatcher.requests[-1].sampling.num_logprobs is None


def test_the_openai_client_reads_them(start_gateway, says):
    gateway = start_gateway(says("Hi"))
    answer = gateway.client().chat.completions.create(
        model="tiny/model",
        messages=[{"role": "user", "content": "Hi"}],
        logprobs=True,
        top_logprobs=2,
    )
    content = answer.choices[0].logprobs.content
    assert [token.token for token in content] == ["H", "i"]
    assert all(len(token.top_logprobs) == 2 for token in content)


@pytest.mark.parametrize("tokens_per_entry", [1, 3])
def test_a_stream_brings_each_token_once(start_gateway, says, tokens_per_entry):
    gateway = start_gateway(says("Hello", tokens_per_entry=tokens_per_entry))
    answer = gateway.chat(stream=True, logprobs=True)
    choices = [frame["choices"][0] for frame in frames_of(answer)]
    shown = [
        token["token"]
        for choice in choices
        if choice["logprobs"]
        for token in choice["logprobs"]["content"]
    ]
    assert "".join(shown) == "Hello"
    assert len(shown) == 5


def test_a_streams_offsets_go_on_from_frame_to_frame(start_gateway, says):
    gateway = start_gateway(says("Hello"))
    answer = gateway.complete(stream=True, logprobs=1)
    shown = [frame["choices"][0]["logprobs"] for frame in frames_of(answer)]
    assert [each["text_offset"] for each in shown if each] == [[0], [1], [2], [3], [4]]


def test_tokens_of_held_back_text_come_before_the_text(start_gateway, says):
    gateway = start_gateway(says("Hello"))
    answer = gateway.complete(stream=True, logprobs=0, stop="lo!")
    texts = [frame["choices"][0]["text"] for frame in frames_of(answer)]
    tokens = [frame["choices"][0]["logprobs"] for frame in frames_of(answer)]
    assert "".join(texts) == "Hello"
    assert [token for each in tokens if each for token in each["tokens"]] == list("Hello")


def test_a_stop_string_ends_the_tokens_too(start_gateway, says):
    gateway = start_gateway(says("Hello", tokens_per_entry=5))
    (choice,) = gateway.complete(logprobs=0, stop="l").json()["choices"]
    assert choice["text"] == "He"
    assert choice["logprobs"]["tokens"] == ["H", "e", "l"]


def test_half_a_character_is_spelled_out(start_gateway, says):
    gateway = start_gateway(says("é"))
    (choice,) = gateway.complete(logprobs=0).json()["choices"]
    assert choice["text"] == "é"
    assert choice["logprobs"]["tokens"] == ["bytes:\\xc3", "bytes:\\xa9"]


def test_no_figure_is_too_small_for_json(start_gateway, says):
    gateway = start_gateway(says("H", logprobs=(float("-inf"),)))
    (choice,) = gateway.complete(logprobs=0).json()["choices"]
    assert choice["logprobs"]["token_logprobs"] == [-9999.0]
