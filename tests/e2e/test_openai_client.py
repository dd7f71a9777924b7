"""What a user does first: the openai client against the demo model, through the whole service."""

import concurrent.futures

import openai
import pytest

pytestmark = pytest.mark.e2e
MODEL = "SmolLM2-135M-Instruct"
QUESTION = [{"role": "user", "content": "Name three primary colors."}]


@pytest.fixture(scope="module")
def client(base_url):
    with openai.OpenAI(base_url=f"{base_url}/v1", api_key="none", timeout=120) as made:
        yield made


def test_a_question_gets_a_sensible_answer(client):
    answer = client.chat.completions.create(
        model=MODEL, messages=QUESTION, temperature=0, max_tokens=32
    )
    assert "Blue" in answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_stream_says_what_the_whole_answer_says(client):
    whole = client.chat.completions.create(
        model=MODEL, messages=QUESTION, temperature=0, max_tokens=32
    )
    chunks = list(
        client.chat.completions.create(
            model=MODEL,
            messages=QUESTION,
            temperature=0,
            max_tokens=32,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert len([c for c in chunks if c.choices and c.choices[0].delta.content]) > 3


def test_a_completion_goes_on_in_english(client):
    answer = client.completions.create(
        model=MODEL, prompt="Once upon a time, there was a", temperature=0, max_tokens=24
    )
    words = answer.choices[0].text.split()
    assert len(words) > 8
    assert all(word.isascii() for word in words)
    assert answer.choices[0].finish_reason == "length"


def test_four_choices_differ_and_the_seed_brings_them_back(client):
    def ask(seed):
        answer = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Write one sentence about the sea."}],
            n=4,
            seed=seed,
            temperature=1.0,
            max_tokens=16,
        )
        assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
        return [choice.message.content for choice in answer.choices]

    first = ask(7)
    assert len(set(first)) > 1
    assert ask(7) == first
    assert ask(8) != first


def test_a_stop_string_ends_the_text_before_it(client):
    whole = client.completions.create(
        model=MODEL, prompt="One, two, three,", temperature=0, max_tokens=24
    )
    stop = whole.choices[0].text[8:12]
    cut = client.completions.create(
        model=MODEL, prompt="One, two, three,", temperature=0, max_tokens=24, stop=[stop]
    )
    assert cut.choices[0].text == whole.choices[0].text.split(stop)[0]
    assert cut.choices[0].finish_reason == "stop"


def test_a_prompt_that_comes_again_is_found_in_the_cache(client):
    prompt = "A list of words that repeats: " + "apple pear plum cherry grape " * 30
    asked = {"model": MODEL, "prompt": prompt, "temperature": 0, "max_tokens": 4}
    client.completions.create(**asked)
    again = client.completions.create(**asked)
    cached = again.usage.prompt_tokens_details.cached_tokens
    assert again.usage.prompt_tokens - 32 <= cached < again.usage.prompt_tokens


def test_thirty_two_streams_at_once_all_end_whole(client):
    def stream(index):
        chunks = list(
            client.completions.create(
                model=MODEL,
                prompt=f"Story number {index}:",
                temperature=0.8,
                seed=index,
                max_tokens=20,
                stream=True,
                extra_body={"ignore_eos": True},
                stream_options={"include_usage": True},
            )
        )
        return chunks[-1].usage.completion_tokens

    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        assert list(pool.map(stream, range(32))) == [20] * 32


@pytest.mark.parametrize(
    ("wrong", "error", "says"),
    [
        ({"model": "no-such-model"}, openai.NotFoundError, "no-such-model"),
        ({"messages": []}, openai.BadRequestError, "messages"),
        ({"max_tokens": -1}, openai.BadRequestError, "max_tokens"),
        ({"temperature": "hot"}, openai.BadRequestError, "temperature"),
        ({"n": 100_000}, openai.BadRequestError, "n"),
        ({"logit_bias": {"5": 10}}, openai.BadRequestError, "logit_bias"),
        ({"frequency_penalty": 0.5}, openai.BadRequestError, "frequency_penalty"),
    ],
)
def test_what_cannot_be_done_is_said_by_name(client, wrong, error, says):
    asked = {"model": MODEL, "messages": QUESTION, "max_tokens": 8, **wrong}
    with pytest.raises(error, match=says):
        client.chat.completions.create(**asked)


def test_a_prompt_that_is_too_long_is_refused_with_both_numbers(client):
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=MODEL, prompt="word " * 5000, max_tokens=8)
    assert caught.value.code == "context_length_exceeded"
    assert "2048" in str(caught.value)
    assert "500" in str(caught.value)


def test_neutral_values_of_what_is_not_supported_yet_are_accepted(client):
    answer = client.chat.completions.create(
        model=MODEL,
        messages=QUESTION,
        max_tokens=4,
        frequency_penalty=0,
        presence_penalty=0,
        logit_bias=None,
        top_p=1,
        response_format={"type": "text"},
    )
    assert answer.choices[0].finish_reason == "length"
