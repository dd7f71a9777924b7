"""POST /v1/chat/completions through the openai client."""

import json

import pytest

MESSAGES = [{"role": "user", "content": "Hi"}]


def test_a_chat_is_answered_in_openais_shape(gateway):
    assert gateway.chat(model="tiny/model").json() | {"id": ""} == {
        "id": "",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "tiny/model",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "Hello",
                    "refusal": None,
                    "tool_calls": None,
                },
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
            }
        ],
        "usage": {
            "prompt_tokens": 20,
            "completion_tokens": 6,
            "total_tokens": 26,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
        "system_fingerprint": "pagoda-1.2.3-abababababab",
    }


def test_the_openai_client_reads_an_answer(gateway):
    answer = gateway.client().chat.completions.create(model="tiny/model", messages=MESSAGES)
    assert answer.id.startswith("chatcmpl-")
    assert answer.choices[0].message.content == "Hello"
    assert answer.choices[0].message.role == "assistant"
    assert answer.usage.total_tokens == 26


def test_the_openai_client_reads_a_stream(gateway):
    stream = gateway.client().chat.completions.create(
        model="tiny/model", messages=MESSAGES, stream=True
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello"
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert len({(chunk.id, chunk.created) for chunk in chunks}) == 1


def test_each_choice_has_its_own_text(start_gateway, says):
    client = start_gateway(says("One", "Two and", "3")).client()
    answer = client.chat.completions.create(model="tiny/model", messages=MESSAGES, n=3)
    assert [choice.message.content for choice in answer.choices] == ["One", "Two and", "3"]
    assert [choice.index for choice in answer.choices] == [0, 1, 2]


def test_messages_go_through_the_chat_template(gateway, prompt_text):
    messages = [{"role": "system", "content": "Be kind."}, *MESSAGES]
    gateway.chat(messages=messages)
    assert prompt_text(gateway) == "<system>Be kind.\n<user>Hi\n<assistant>"


def test_text_parts_are_joined(gateway, prompt_text):
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    gateway.chat(messages=[{"role": "user", "content": parts}])
    assert prompt_text(gateway) == "<user>one\ntwo\n<assistant>"


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool"])
def test_every_role_reaches_the_template(gateway, prompt_text, role):
    gateway.chat(messages=[{"role": role, "content": "x", "tool_call_id": "1", "name": "n"}])
    assert prompt_text(gateway) == f"<{role}>x\n<assistant>"


def test_the_final_message_can_be_continued(gateway, prompt_text):
    messages = [*MESSAGES, {"role": "assistant", "content": "Hello wor"}]
    answer = gateway.chat(
        messages=messages, add_generation_prompt=False, continue_final_message=True
    )
    assert answer.status_code == 200
    assert prompt_text(gateway) == "<user>Hi\n<assistant>Hello wor"


def test_template_variables_can_be_set(start_gateway, prompt_text):
    gateway = start_gateway(template="{{ mood }}|{{ messages[0].content }}")
    gateway.chat(chat_template_kwargs={"mood": "happy"})
    assert prompt_text(gateway) == "happy|Hi"


def test_a_template_that_refuses_the_messages_is_a_400(start_gateway):
    gateway = start_gateway(template="{{ raise_exception('roles must alternate') }}")
    answer = gateway.chat()
    assert answer.status_code == 400
    assert "roles must alternate" in answer.json()["error"]["message"]


def test_a_reply_may_fill_the_context_by_default(start_gateway, says):
    gateway = start_gateway(says("x" * 500))
    answer = gateway.chat().json()
    assert answer["usage"]["total_tokens"] == 256
    assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_a_reply_is_as_long_as_asked(gateway, name):
    answer = gateway.chat(**{name: 3}).json()
    assert answer["choices"][0]["message"]["content"] == "Hel"
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 3


def test_a_reply_can_be_sent_back_as_it_came(gateway):
    client = gateway.client()
    reply = client.chat.completions.create(model="tiny/model", messages=MESSAGES)
    history = [*MESSAGES, reply.choices[0].message, *MESSAGES]
    again = client.chat.completions.create(model="tiny/model", messages=history)
    assert again.choices[0].message.content == "Hello"
    raw = [*MESSAGES, gateway.chat().json()["choices"][0]["message"], *MESSAGES]
    assert gateway.chat(messages=raw).status_code == 200


def test_special_tokens_are_hidden_unless_wanted(start_gateway, says):
    script = says("Hi", stop_token_id=256)
    gateway = start_gateway(script)
    wanted = {"skip_special_tokens": False, "include_stop_str_in_output": True}
    shown = gateway.chat(**wanted).json()["choices"][0]["message"]["content"]
    hidden = gateway.chat().json()["choices"][0]["message"]["content"]
    assert (shown, hidden) == ("Hi<end>", "Hi")


def test_characters_beyond_ascii_come_whole(start_gateway, says):
    text = "Grüße, 世界 🏯"
    gateway = start_gateway(says(text))
    frames = gateway.chat(stream=True).text.split("\n\n")
    deltas = [json.loads(frame[6:])["choices"][0]["delta"] for frame in frames if "{" in frame]
    assert "".join(delta.get("content", "") for delta in deltas) == text
    assert not any("\ufffd" in delta.get("content", "") for delta in deltas)
