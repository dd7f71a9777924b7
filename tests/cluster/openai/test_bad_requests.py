"""Each bad input gets the right 4xx, in OpenAI's shape, and names what is wrong."""

import json

import pytest

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
USER = [{"role": "user", "content": "Hi"}]


def error_of(answer, status):
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return error


def refused(gateway, path, fields, status=400):
    base = {"messages": USER} if path == CHAT else {"prompt": "Say"}
    num_requests = len(gateway.dispatcher.requests)
    error = error_of(gateway.post(path, **base | fields), status)
    assert len(gateway.dispatcher.requests) == num_requests
    return error


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", 5),
        ("max_tokens", "5"),
        ("max_tokens", 5.0),
        ("max_tokens", True),
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("max_tokens", 10**30),
        ("temperature", "1"),
        ("temperature", -0.1),
        ("temperature", True),
        ("top_p", 0),
        ("top_p", 1.1),
        ("top_k", -2),
        ("top_k", 1.5),
        ("min_p", 1.5),
        ("n", 0),
        ("n", "2"),
        ("n", 2.0),
        ("stop", 5),
        ("stop", [1]),
        ("stop", ""),
        ("stop", ["a", ""]),
        ("stop", ["a"] * 17),
        ("stop_token_ids", 5),
        ("stop_token_ids", ["5"]),
        ("stop_token_ids", [257]),
        ("stop_token_ids", [-1]),
        ("min_tokens", -1),
        ("min_tokens", 250),
        ("ignore_eos", "yes"),
        ("include_stop_str_in_output", 1),
        ("skip_special_tokens", "true"),
        ("seed", 1.5),
        ("seed", "7"),
        ("seed", 2**63),
        ("stream", 1),
        ("stream", "true"),
        ("priority", 1.5),
        ("cache_salt", ""),
        ("cache_salt", 3),
        ("request_id", "two words"),
        ("user", 5),
    ],
)
def test_a_wrong_type_or_value_is_refused_by_name(shared_gateway, path, field, value):
    error = refused(shared_gateway, path, {field: value})
    assert error["type"] == "invalid_request_error"
    assert error["param"].split("[")[0] == field
    assert field in error["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": "Hi"}, "messages"),
        ({"messages": ["Hi"]}, "messages[0]"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"content": "Hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "wizard", "content": "Hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": ["Hi"]}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "Hi", "x": 1}]}, "messages[0].x"),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls"),
        ({"max_completion_tokens": "5"}, "max_completion_tokens"),
        ({"max_completion_tokens": 5, "max_tokens": 6}, "max_tokens"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs"),
        ({"continue_final_message": True}, "messages"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"speed": 1}}, "stream_options.speed"),
        ({"stream": True, "stream_options": 1}, "stream_options"),
    ],
)
def test_a_faulty_chat_is_refused_by_name(shared_gateway, fields, param):
    assert refused(shared_gateway, CHAT, fields)["param"] == param


def test_an_image_is_refused_by_its_type(shared_gateway):
    part = {"type": "image_url", "image_url": {"url": "data:,"}}
    error = refused(shared_gateway, CHAT, {"messages": [{"role": "user", "content": [part]}]})
    assert "image_url" in error["message"]


@pytest.mark.parametrize(
    "prompt",
    [None, 5, {}, "", [], [""], ["a", ""], [[]], ["a", 1], [1, "a"], [True], [1.5], [[1], ["a"]]],
)
def test_a_prompt_of_no_known_shape_or_without_tokens_is_refused(shared_gateway, prompt):
    assert refused(shared_gateway, COMPLETIONS, {"prompt": prompt})["param"] == "prompt"


@pytest.mark.parametrize("prompt", [[257], [-1], [[1], [99999]], [2**40]])
def test_token_ids_outside_of_the_vocabulary_are_refused(shared_gateway, prompt):
    assert "0 to 256" in refused(shared_gateway, COMPLETIONS, {"prompt": prompt})["message"]


def test_too_many_prompts_are_refused(start_gateway):
    error = refused(start_gateway(max_prompts=2), COMPLETIONS, {"prompt": ["a", "b", "c"]})
    assert "at most 2" in error["message"]


def test_too_many_choices_of_all_prompts_together_are_refused(start_gateway):
    gateway = start_gateway(max_prompts=3, max_num_choices=4)
    error = refused(gateway, COMPLETIONS, {"prompt": ["a", "b", "c"], "n": 2})
    assert error["param"] == "n"
    assert "at most 4 choices in all" in error["message"]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_too_many_choices_are_refused(start_gateway, path):
    error = refused(start_gateway(max_num_choices=4), path, {"n": 5})
    assert error["param"] == "n"
    assert "4" in error["message"]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (COMPLETIONS, {"suffix": "end"}),
        (COMPLETIONS, {"echo": True}),
        (CHAT, {"tools": [{"type": "function", "function": {"name": "f"}}]}),
        (CHAT, {"tool_choice": "required"}),
        (CHAT, {"functions": [{"name": "f"}]}),
        (CHAT, {"response_format": {"type": "json_object"}}),
        (CHAT, {"reasoning_effort": "high"}),
        (CHAT, {"modalities": ["text", "audio"]}),
        (CHAT, {"chat_template": "{{ 1 }}"}),
        (CHAT, {"presence_penalty": 0.5}),
        (CHAT, {"frequency_penalty": -1}),
        (CHAT, {"repetition_penalty": 1.1}),
        (CHAT, {"logit_bias": {"5": 1}}),
        (CHAT, {"prompt_logprobs": 0}),
        (CHAT, {"structured_outputs": {"json": {}}}),
        (CHAT, {"allowed_token_ids": [1]}),
        (CHAT, {"bad_words": ["x"]}),
        (CHAT, {"truncate_prompt_tokens": 5}),
        (CHAT, {"kv_transfer_params": {"do_remote_decode": True}}),
    ],
)
def test_what_is_not_supported_yet_is_refused_by_name(shared_gateway, path, fields):
    error = refused(shared_gateway, path, fields)
    assert error["param"] == next(iter(fields))
    assert error["code"] == "unsupported_parameter"


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (COMPLETIONS, {"logprobs": 21}),
        (CHAT, {"top_logprobs": 21, "logprobs": True}),
        (CHAT, {"top_logprobs": 2}),
        (CHAT, {"top_logprobs": 2, "logprobs": False}),
        (COMPLETIONS, {"best_of": 2, "n": 3}),
        (COMPLETIONS, {"best_of": 2, "stream": True}),
        (CHAT, {"best_of": 129}),
        (CHAT, {"length_penalty": 0.5}),
        (CHAT, {"early_stopping": True}),
        (CHAT, {"use_beam_search": True, "stream": True}),
        (CHAT, {"temperature": 0.5, "use_beam_search": True}),
        (COMPLETIONS, {"top_p": 0.5, "use_beam_search": True}),
        (COMPLETIONS, {"top_k": 5, "use_beam_search": True}),
    ],
)
def test_what_makes_no_sense_together_is_refused_by_name(shared_gateway, path, fields):
    assert refused(shared_gateway, path, fields)["param"] == next(iter(fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"presence_penalty": 0, "frequency_penalty": 0.0, "repetition_penalty": 1},
        {"logit_bias": {}, "tools": [], "tool_choice": "none", "logprobs": False},
        {"response_format": {"type": "text"}, "top_logprobs": 0, "modalities": ["text"]},
        {"tools": None, "logprobs": None, "stop": None, "seed": None, "n": None, "stream": None},
        {"user": "me", "metadata": {"a": "b"}, "store": True, "service_tier": "auto"},
        {"parallel_tool_calls": True, "session_id": "s", "use_beam_search": False},
        {"length_penalty": 1, "early_stopping": False, "best_of": 1},
        {"prompt_cache_key": "k", "safety_identifier": "s", "stop": [], "stop_token_ids": []},
    ],
)
def test_neutral_values_are_accepted(shared_gateway, fields):
    assert shared_gateway.chat(**fields).status_code == 200


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_an_unknown_parameter_is_refused_by_name(shared_gateway, path):
    error = refused(shared_gateway, path, {"temprature": 0.5})
    assert (error["param"], error["code"]) == ("temprature", "unknown_parameter")


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_an_unknown_model_is_a_404(shared_gateway, path):
    error = refused(shared_gateway, path, {"model": "gpt-9"}, status=404)
    assert (error["param"], error["code"]) == ("model", "model_not_found")


def test_the_model_may_be_left_out(shared_gateway):
    assert shared_gateway.chat().json()["model"] == "tiny/model"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "invalid_json"),
        (b"{", "invalid_json"),
        (b'{"prompt": NaN}', "invalid_json"),
        (b'{"prompt": "\xff"}', "invalid_json"),
        (b'{"prompt": "\\ud800"}', "invalid_json"),
        (b"[" * 100_000, "invalid_json"),
        (b"[]", "invalid_json"),
        (b'"text"', "invalid_json"),
    ],
)
def test_a_body_that_is_no_json_object_is_a_400(shared_gateway, body, code):
    for path in (CHAT, COMPLETIONS):
        assert error_of(shared_gateway.http.post(path, content=body), 400)["code"] == code


def test_a_prompt_beyond_the_context_is_refused_with_both_numbers(shared_gateway):
    error = refused(shared_gateway, COMPLETIONS, {"prompt": "x" * 300})
    assert error["code"] == "context_length_exceeded"
    assert "256" in error["message"]
    assert "300" in error["message"]


@pytest.mark.parametrize("length", [256, 257])
def test_a_prompt_that_leaves_no_room_is_refused(shared_gateway, length):
    error = refused(shared_gateway, COMPLETIONS, {"prompt": "x" * length})
    assert error["code"] == "context_length_exceeded"


def test_prompt_and_output_together_must_fit_the_context(shared_gateway):
    error = refused(shared_gateway, CHAT, {"max_tokens": 240})
    assert error["code"] == "context_length_exceeded"
    assert error["param"] == "messages"
    assert all(number in error["message"] for number in ("256", "20", "240", "260"))
    assert shared_gateway.chat(max_tokens=236).status_code == 200


def test_one_prompt_of_many_that_is_too_long_refuses_all(shared_gateway):
    refused(shared_gateway, COMPLETIONS, {"prompt": ["a", "x" * 300]})


def test_a_prompt_that_can_never_fit_the_cache_is_refused(start_gateway):
    gateway = start_gateway(num_blocks=4)
    error = refused(gateway, COMPLETIONS, {"prompt": "x" * 64, "max_tokens": 1})
    assert error["code"] == "prompt_never_fits"
    assert gateway.complete(prompt="x" * 63, max_tokens=1).status_code == 200


def test_a_body_over_the_limit_is_a_413(start_gateway):
    gateway = start_gateway(max_body_bytes=1000)
    error = refused(gateway, COMPLETIONS, {"prompt": "x" * 1000}, status=413)
    assert "1000" in error["message"]
    assert gateway.complete(prompt="x" * 100, max_tokens=1).status_code == 200


def test_a_body_of_ten_megabytes_is_a_413_by_default(shared_gateway):
    refused(shared_gateway, COMPLETIONS, {"prompt": "x" * 10_000_000}, status=413)


def test_a_chunked_body_over_the_limit_is_a_413_too(start_gateway):
    gateway = start_gateway(max_body_bytes=1000)
    body = json.dumps({"prompt": "x" * 5000}).encode()
    chunks = (body[start : start + 100] for start in range(0, len(body), 100))
    error_of(gateway.http.post(COMPLETIONS, content=chunks), 413)
    small = json.dumps({"prompt": "x" * 50, "max_tokens": 1}).encode()
    assert gateway.http.post(COMPLETIONS, content=iter([small])).status_code == 200


def test_messages_tell_nothing_of_the_inside(start_gateway):
    gateway = start_gateway(template="{{ messages[0].content.x.y.z }}")
    for answer in (gateway.chat(), gateway.http.post(CHAT, content=b"{"), gateway.http.get("/x")):
        assert "Traceback" not in answer.text
        assert ".py" not in answer.text
