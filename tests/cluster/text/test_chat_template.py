"""A conversation becomes the text that the model's own library would have made of it."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from cluster.text.chat_template import MAX_RENDER_S, ChatTemplate, ChatTemplateError
from replicas.models.prepared_model import PreparedModel
from tests.cluster.text import chat_templates

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
STYLES = {
    "chatml": chat_templates.CHATML,
    "llama3": chat_templates.LLAMA3,
    "mistral": chat_templates.MISTRAL,
    "parts": chat_templates.PARTS,
    "text_or_parts": chat_templates.TEXT_OR_PARTS,
}
TALK = [
    {"role": "user", "content": "Bonjour, ça va ? <b>&</b>"},
    {"role": "assistant", "content": "Oui, merci."},
    {"role": "user", "content": "  spaces around  "},
]
TOOL = {"type": "function", "function": {"name": "wëather", "parameters": {"type": "object"}}}


def template(style: str, **options: Any) -> ChatTemplate:
    return ChatTemplate(
        {"default": STYLES.get(style, style)},
        special_tokens=TOKENS,
        now=lambda: datetime(2026, 3, 1),
        **options,
    )


def test_the_demo_model_gets_its_system_message(demo_model: PreparedModel) -> None:
    text = ChatTemplate.load(demo_model).render([{"role": "user", "content": "Hi"}])
    assert text == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, "
        "trained by Hugging Face<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_the_generation_prompt_can_be_left_out() -> None:
    text = template("chatml").render(TALK[:1], add_generation_prompt=False)
    assert text.endswith("<|im_end|>\n")
    assert "assistant" not in text


def test_special_tokens_and_the_date_are_filled_in() -> None:
    text = template("llama3").render(TALK[:1])
    assert text.startswith("<s><|start_header_id|>system<|end_header_id|>\n\nToday: 01 Mar 2026\n")


def test_extra_variables_reach_the_template() -> None:
    assert "Today: tomorrow\n" in template("llama3").render(TALK[:1], date_string="tomorrow")


def test_tools_are_written_without_escapes() -> None:
    assert '"name": "wëather"' in template("llama3").render(TALK[:1], tools=[TOOL])


def test_a_tool_use_template_is_taken_when_there_are_tools() -> None:
    named = ChatTemplate({"default": "plain", "tool_use": "tools"}, special_tokens={})
    assert named.render(TALK[:1]) == "plain"
    assert named.render(TALK[:1], tools=[TOOL]) == "tools"


def test_tool_call_arguments_are_written_as_objects() -> None:
    call = {"function": {"name": "f", "arguments": '{"x": 1}'}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    text = template("llama3").render([TALK[0], message])
    assert '{"name": "f", "parameters": {"x": 1}}<|eot_id|>' in text


def test_tool_call_arguments_that_are_not_json_are_refused() -> None:
    call = {"function": {"name": "f", "arguments": "{x"}}
    message = {"role": "assistant", "tool_calls": [call]}
    with pytest.raises(ChatTemplateError, match=r"messages\[0\].tool_calls: .* not JSON"):
        template("llama3").render([message])


def test_text_parts_become_lines_where_the_template_wants_a_string() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    text = template("chatml").render([{"role": "user", "content": parts}])
    assert "user\none\ntwo<|im_end|>" in text


def test_a_template_that_reads_parts_gets_parts() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert template("parts").render([{"role": "user", "content": parts}]) == "<user>[one][two]"
    assert template("parts").render([{"role": "user", "content": "one"}]) == "<user>[one]"


def test_a_template_that_reads_both_gets_what_was_sent() -> None:
    both = template("text_or_parts")
    parts = [{"type": "text", "text": "one"}]
    assert both.render([{"role": "user", "content": parts}]) == "<user>[one]"
    assert both.render([{"role": "user", "content": "one"}]) == "<user>one"


def test_a_part_that_is_not_text_is_refused_by_name() -> None:
    parts = [{"type": "image_url", "image_url": {"url": "data:"}}]
    with pytest.raises(ChatTemplateError, match=r"messages\[0\].content\[0\].*image_url"):
        template("chatml").render([{"role": "user", "content": parts}])


@pytest.mark.parametrize("style", ["chatml", "llama3", "mistral", "parts", "text_or_parts"])
def test_the_final_message_can_be_continued(style: str) -> None:
    messages = [TALK[0], {"role": "assistant", "content": "Once upon"}]
    text = template(style).render(
        messages, add_generation_prompt=False, continue_final_message=True
    )
    assert text.endswith("Once upon")


def test_a_final_space_stays_unless_the_template_trims() -> None:
    messages = [TALK[0], {"role": "assistant", "content": "Once "}]
    options = {"add_generation_prompt": False, "continue_final_message": True}
    assert template("chatml").render(messages, **options).endswith("Once ")
    assert template("llama3").render(messages, **options).endswith("Once")


def test_continuing_a_message_that_the_template_leaves_out_is_refused() -> None:
    with pytest.raises(ChatTemplateError, match="leaves out or changes the last message"):
        template("fixed text").render(
            TALK, add_generation_prompt=False, continue_final_message=True
        )


def test_continuing_and_prompting_exclude_each_other() -> None:
    with pytest.raises(ChatTemplateError, match="exclude each other"):
        template("chatml").render(TALK, continue_final_message=True)


def test_the_callers_messages_stay_as_they_were() -> None:
    message = {"role": "assistant", "content": [{"type": "text", "text": "x"}], "name": None}
    template("parts").render([message], add_generation_prompt=False, continue_final_message=True)
    assert message == {
        "role": "assistant",
        "content": [{"type": "text", "text": "x"}],
        "name": None,
    }


def test_a_templates_own_objection_reaches_the_client() -> None:
    twice = [TALK[0], TALK[0]]
    with pytest.raises(ChatTemplateError, match="roles must alternate"):
        template("mistral").render(twice)


@pytest.mark.parametrize(
    "text",
    ["{{ 1 / 0 }}", "{{ messages.x.y }}", "{{ 'a' + 1 }}", "{{ [][3].z }}", "{{ tools.foo() }}"],
)
def test_a_fault_in_a_template_is_told_as_one(text: str) -> None:
    with pytest.raises(ChatTemplateError, match="failed on these messages"):
        template(text).render(TALK)


@pytest.mark.parametrize(
    "text",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ '%s'.format.__self__.join }}",
        "{% for i in range(100000001) %}{% endfor %}",
    ],
)
def test_a_template_cannot_leave_its_sandbox(text: str) -> None:
    with pytest.raises(ChatTemplateError):
        template(text).render(TALK)


def test_broken_jinja_names_the_line() -> None:
    with pytest.raises(ChatTemplateError, match="of tiny is not valid: line 2"):
        ChatTemplate({"default": "a\n{% if %}"}, special_tokens={}, model_name="tiny")


def test_a_model_without_template_says_so() -> None:
    empty = ChatTemplate({}, special_tokens={}, model_name="tiny")
    with pytest.raises(ChatTemplateError, match="tiny has no chat template"):
        empty.render(TALK)


def test_no_messages_are_refused() -> None:
    with pytest.raises(ChatTemplateError, match="at least one message"):
        template("chatml").render([])


def test_reserved_variables_cannot_be_passed_in() -> None:
    with pytest.raises(ChatTemplateError, match="messages cannot be set there"):
        template("chatml").render(TALK, messages=[])


def test_a_template_that_runs_too_long_is_cut_off() -> None:
    def ticks() -> Iterator[float]:
        now = 0.0
        while True:
            yield now
            now += MAX_RENDER_S / 10

    clock = ticks()
    endless = template(
        "{% for a in range(90000) %}{% for b in range(90000) %}x{% endfor %}{% endfor %}",
        clock=lambda: next(clock),
    )
    with pytest.raises(ChatTemplateError, match="ran for over"):
        endless.render(TALK)


def test_a_template_that_writes_too_much_is_cut_off() -> None:
    large = template("{% for a in range(9000) %}{{ '" + "x" * 100_000 + "' }}{% endfor %}")
    with pytest.raises(ChatTemplateError, match="wrote more than"):
        large.render(TALK)
