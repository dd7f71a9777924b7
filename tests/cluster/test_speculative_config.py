"""vLLM's --speculative-config means the same settings here."""

import pytest

from cluster.config_loading import load_config
from cluster.settings import SettingError
from replicas.speculation.config import SpeculationConfig


def speculation(text, **flags):
    return load_config({"speculative_config": text, **flags}, {}).engine.scheduler.speculation


def test_prompt_lookup_is_asked_for_as_with_vllm():
    text = (
        '{"method": "ngram", "num_speculative_tokens": 4, '
        '"prompt_lookup_min": 3, "prompt_lookup_max": 5}'
    )
    assert speculation(text) == SpeculationConfig("ngram", 4, 3, 5)


def test_a_model_alone_is_a_draft_model():
    found = speculation('{"model": "some/small", "num_speculative_tokens": 3}')
    assert (found.speculative_method, found.speculative_model) == ("draft_model", "some/small")


def test_a_single_flag_goes_before_the_object():
    found = speculation(
        '{"method": "ngram"}', **{"engine.scheduler.speculation.num_speculative_tokens": "9"}
    )
    assert found.num_speculative_tokens == 9


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "--speculative-config: not JSON"),
        ("[]", "expected a JSON object"),
        ('{"methods": "ngram"}', "methods: no such key; expected method, model"),
        ('{"method": "eagle"}', "--speculative-config: method"),
        ('{"num_speculative_tokens": "many"}', "--speculative-config: num_speculative_tokens"),
        ('{"method": "draft_model"}', "speculative_model"),
    ],
)
def test_a_bad_object_says_what_is_wrong_with_it(text, message):
    with pytest.raises(SettingError, match=message):
        speculation(text)
