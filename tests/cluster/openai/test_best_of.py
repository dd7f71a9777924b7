"""best_of shows the likeliest of what was generated; a beam search shows the engine's order."""

from replicas.request import BeamSearch


def test_the_choices_with_the_best_mean_are_shown_best_first(start_gateway, says):
    gateway = start_gateway(says("A", "BB", "CCCC", logprobs=(-3.0, -1.0, -0.75)))
    answer = gateway.complete(n=2, best_of=3).json()
    assert [choice["text"] for choice in answer["choices"]] == ["CCCC", "BB"]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert [choice["logprobs"] for choice in answer["choices"]] == [None, None]
    # What was generated and not shown was paid for as well; each choice has an end token.
    assert answer["usage"]["completion_tokens"] == 2 + 3 + 5


def test_the_engine_computes_what_the_choice_needs_and_no_more(gateway):
    gateway.complete(n=1, best_of=3)
    (request,) = gateway.dispatcher.requests
    assert (request.num_choices, request.sampling.num_logprobs) == (3, 0)


def test_each_prompt_has_its_own_best(start_gateway, says):
    gateway = start_gateway(
        says("A", "B", logprobs=(-1.0, -2.0)), says("C", "D", logprobs=(-2.0, -1.0))
    )
    answer = gateway.complete(prompt=["x", "y"], best_of=2).json()
    assert [choice["text"] for choice in answer["choices"]] == ["A", "D"]


def test_log_probabilities_are_those_of_the_shown_choice(start_gateway, says):
    gateway = start_gateway(says("A", "B", logprobs=(-2.0, -1.0)))
    (choice,) = gateway.complete(best_of=2, logprobs=0).json()["choices"]
    assert choice["text"] == "B"
    assert choice["logprobs"]["token_logprobs"] == [-1.0]


def test_a_beam_search_shows_the_first_of_the_engines_order(start_gateway, says):
    gateway = start_gateway(says("A", "B", "C", logprobs=(-3.0, -2.0, -1.0)))
    answer = gateway.complete(
        n=2, best_of=3, use_beam_search=True, length_penalty=0.5, early_stopping=True, logprobs=0
    ).json()
    assert [choice["text"] for choice in answer["choices"]] == ["A", "B"]
    (request,) = gateway.dispatcher.requests
    assert request.sampling.beam == BeamSearch(0.5, early_stopping=True)
    assert request.sampling.temperature == 0.0
    assert request.num_choices == 3


def test_a_request_that_brings_no_tokens_yet_is_not_given_up(start_gateway, says):
    gateway = start_gateway(says("A" * 30, step_s=0.02), max_silence_s=0.2, keep_alive_s=0.1)
    assert gateway.complete(best_of=2).status_code == 200
