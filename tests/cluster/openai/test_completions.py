"""POST /v1/completions: prompts in four shapes, sampling fields, stop rules, usage."""

import pytest


def sampling(gateway):
    return gateway.dispatcher.requests[-1].sampling


def test_a_completion_is_answered_in_openais_shape(gateway):
    assert gateway.complete().json() | {"id": ""} == {
        "id": "",
        "object": "text_completion",
        "created": 1_700_000_000,
        "model": "tiny/model",
        "choices": [
            {
                "index": 0,
                "text": "Hello",
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
            }
        ],
        "usage": {
            "prompt_tokens": 3,
            "completion_tokens": 6,
            "total_tokens": 9,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
        "system_fingerprint": "pagoda-1.2.3-abababababab",
    }


def test_the_openai_client_reads_a_completion_and_its_stream(gateway):
    client = gateway.client()
    whole = client.completions.create(model="tiny/model", prompt="Say")
    stream = client.completions.create(model="tiny/model", prompt="Say", stream=True)
    assert whole.choices[0].text == "Hello"
    assert "".join(chunk.choices[0].text for chunk in stream) == "Hello"


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("ab", [(97, 98)]),
        (["ab", "c"], [(97, 98), (99,)]),
        ([97, 98], [(97, 98)]),
        ([[97, 98], [99]], [(97, 98), (99,)]),
    ],
)
def test_a_prompt_comes_in_four_shapes(gateway, prompt, expected):
    assert gateway.complete(prompt=prompt).status_code == 200
    sent = sorted(gateway.dispatcher.requests, key=lambda request: request.request_id)
    assert [request.prompt_token_ids for request in sent] == expected


def test_choices_of_many_prompts_are_numbered_prompt_by_prompt(start_gateway, says):
    gateway = start_gateway(says("a0", "a1"), says("b0", "b1"), says("c0", "c1"))
    answer = gateway.complete(prompt=["A", "B", "C"], n=2).json()
    assert [c["text"] for c in answer["choices"]] == ["a0", "a1", "b0", "b1", "c0", "c1"]
    assert [c["index"] for c in answer["choices"]] == list(range(6))
    assert answer["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 18,
        "total_tokens": 21,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def test_sixteen_tokens_are_the_default(start_gateway, says):
    gateway = start_gateway(says("x" * 100))
    answer = gateway.post("/v1/completions", prompt="Say").json()
    assert answer["usage"]["completion_tokens"] == 16


def test_the_default_length_shrinks_to_what_is_left(start_gateway, says):
    gateway = start_gateway(says("x" * 100), max_model_len=10)
    answer = gateway.post("/v1/completions", prompt="x" * 8).json()
    assert answer["usage"]["completion_tokens"] == 2


def test_every_sampling_field_reaches_the_engine(gateway):
    gateway.complete(
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        min_p=0.1,
        seed=11,
        min_tokens=2,
        ignore_eos=True,
        stop_token_ids=[3, 4],
        max_tokens=9,
        priority=-5,
        n=2,
    )
    request = gateway.dispatcher.requests[-1]
    params = request.sampling
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.5, 0.9, 7, 0.1)
    assert (params.seed, params.min_tokens, params.ignore_eos) == (11, 2, True)
    assert (params.stop_token_ids, params.max_tokens) == ((3, 4), 9)
    assert (request.priority, request.num_choices) == (-5, 2)


def test_top_k_of_minus_one_is_off(gateway):
    gateway.complete(top_k=-1)
    assert sampling(gateway).top_k == 0


def test_a_missing_seed_is_drawn_anew_for_each_request(gateway):
    seeds = {gateway.complete() and sampling(gateway).seed for _ in range(4)}
    assert len(seeds) == 4
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_a_negative_seed_is_legal_and_stable(gateway):
    seeds = {gateway.complete(seed=-3) and sampling(gateway).seed for _ in range(2)}
    assert len(seeds) == 1
    assert seeds.pop() >= 0


def test_blocks_are_named_and_salted(gateway):
    prompt = list(range(40))
    for salt in (None, "a", "b", "a"):
        gateway.complete(prompt=prompt, cache_salt=salt)
    named = [request.block_hashes for request in gateway.dispatcher.requests]
    assert [len(hashes) for hashes in named] == [2, 2, 2, 2]
    assert named[1] == named[3]
    assert len({named[0], named[1], named[2]}) == 3
    assert named[0][0] != gateway.dispatcher.requests[0].root


def test_cached_tokens_are_reported_once_per_prompt(start_gateway, says):
    gateway = start_gateway(says("ab", num_cached_tokens=2), says("ab", num_cached_tokens=1))
    usage = gateway.complete(prompt=["Say", "Say"], n=3).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 3


def test_a_stop_string_ends_one_choice_and_frees_it_in_the_engine(start_gateway, says):
    gateway = start_gateway(says("abc#def", "ghi"))
    answer = gateway.complete(n=2, stop=["#d", "zz"]).json()
    assert [choice["text"] for choice in answer["choices"]] == ["abc", "ghi"]
    assert [choice["stop_reason"] for choice in answer["choices"]] == ["#d", None]
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["stop", "stop"]
    assert gateway.dispatcher.feeds[0].finished_choices == [0]


def test_a_stop_string_can_be_shown(gateway):
    answer = gateway.complete(stop="ll", include_stop_str_in_output=True).json()
    assert answer["choices"][0]["text"] == "Hell"


def test_tokens_up_to_the_stop_string_are_counted(gateway):
    assert gateway.complete(stop="l").json()["usage"]["completion_tokens"] == 3


def test_text_of_the_first_min_tokens_is_not_searched(gateway):
    answer = gateway.complete(stop=["e", "o"], min_tokens=2).json()
    assert answer["choices"][0]["text"] == "Hell"
    assert answer["choices"][0]["stop_reason"] == "o"


def test_a_requested_stop_token_is_the_stop_reason(start_gateway, says):
    gateway = start_gateway(says("Hi", stop_token_id=33))
    answer = gateway.complete(stop_token_ids=[33]).json()
    assert answer["choices"][0]["stop_reason"] == 33
    shown = gateway.complete(stop_token_ids=[33], include_stop_str_in_output=True).json()
    assert shown["choices"][0]["text"] == "Hi!"


def test_text_held_for_a_stop_string_comes_out_when_the_choice_ends(gateway):
    assert gateway.complete(stop="lo!").json()["choices"][0]["text"] == "Hello"


@pytest.mark.parametrize("best_of", [1, 3])
def test_best_of_is_accepted_where_it_changes_nothing(gateway, best_of):
    assert gateway.complete(n=3, best_of=best_of).status_code == 200


def test_requests_of_one_id_have_names_of_their_own_in_the_engine(gateway):
    for _ in range(2):
        answer = gateway.http.post(
            "/v1/completions", json={"prompt": "Say"}, headers={"X-Request-Id": "same"}
        )
        assert answer.json()["id"] == "cmpl-same"
    assert len({request.request_id for request in gateway.dispatcher.requests}) == 2


def test_long_prompts_are_prepared_off_the_loop_with_the_same_result(start_gateway):
    gateway = start_gateway(max_model_len=100_000, num_blocks=10_000)
    texts = ["ab" * 10_000, "c" * 20_000]
    gateway.complete(prompt=texts)
    gateway.complete(prompt=[list(text.encode()) for text in texts])
    gateway.complete(prompt=texts[0][:1000])
    *long, short = gateway.dispatcher.requests
    by_prompt = {request.prompt_token_ids: request.block_hashes for request in long}
    assert {bytes(prompt).decode() for prompt in by_prompt} == set(texts)
    assert len(by_prompt[tuple(texts[0].encode())]) == 20_000 // 16
    assert by_prompt[tuple(texts[0].encode())][: 1000 // 16] == short.block_hashes
