"""Writes a conversation as the one text that a chat model was trained to continue."""

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import Template, TemplateError, TemplateSyntaxError

from cluster.text.template_environment import TemplateRefusal, template_environment
from cluster.text.template_messages import (
    ChatTemplateError,
    ContentShape,
    content_shape,
    template_messages,
)
from replicas.models.prepared_model import PreparedModel

__all__ = ["ChatTemplate", "ChatTemplateError"]

MAX_OUTPUT_CHARACTERS = 64 * 1024 * 1024
MAX_RENDER_S = 5.0
# Put after the text to be continued, to find its end in the output. Ends with a space, which a
# template that trims its messages takes away.
_END_MARK = "\ue000END OF FINAL MESSAGE\ue000 "
# What other people's template code may run into, besides Jinja's own errors.
_TEMPLATE_FAULTS = (
    TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


class ChatTemplate:
    """One model's chat template, compiled once.

    templates: Jinja text by name; "default" is used, or "tool_use" when there are tools.
    special_tokens: variables such as bos_token. now: what strftime_now reads. clock: seconds, for
    the bound on rendering time.
    """

    def __init__(
        self,
        templates: Mapping[str, str],
        *,
        special_tokens: Mapping[str, str],
        model_name: str = "this model",
        now: Callable[[], datetime] = datetime.now,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._special_tokens = dict(special_tokens)
        self._model_name = model_name
        self._clock = clock
        self._environment = template_environment(now=now)
        self._templates = {name: self._compile(text) for name, text in templates.items()}

    @classmethod
    def load(cls, model: PreparedModel) -> "ChatTemplate":
        """Read the prepared folder's template. A model without one can be loaded, not rendered.

        Raises ChatTemplateError if the template is not valid Jinja.
        """
        folder = Path(model.folder)
        named = sorted(folder.glob("additional_chat_templates/*.jinja"))
        templates = {path.stem: path.read_text(encoding="utf-8") for path in named}
        default = folder / "chat_template.jinja"
        if default.is_file():
            templates["default"] = default.read_text(encoding="utf-8")
        return cls(templates, special_tokens=model.special_tokens, model_name=model.name)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        continue_final_message: bool = False,
        **kwargs: Any,
    ) -> str:
        """The text of `messages`, in OpenAI's shape, ready to be encoded without special tokens.

        add_generation_prompt: end with the start of the assistant's turn. continue_final_message:
        end in the middle of the last message instead, so that the model carries it on. kwargs:
        further variables for the template (`chat_template_kwargs`).
        Raises ChatTemplateError, also for a template that runs too long or writes too much.
        """
        self._check(messages, add_generation_prompt, continue_final_message, kwargs)
        template, shape = self._choose(has_tools=bool(tools))
        ready = template_messages(messages, shape=shape)
        final_text = _mark_end(ready[-1]) if continue_final_message else ""
        variables = {
            **self._special_tokens,
            **kwargs,
            "messages": ready,
            "tools": list(tools) if tools else None,
            "add_generation_prompt": add_generation_prompt,
        }
        text = self._run(template, variables)
        return _cut_at_mark(text, final_text) if continue_final_message else text

    def _compile(self, text: str) -> tuple[Template, ContentShape]:
        try:
            return (
                self._environment.from_string(text),
                content_shape(self._environment.parse(text)),
            )
        except TemplateSyntaxError as error:
            raise ChatTemplateError(
                f"the chat template of {self._model_name} is not valid: "
                f"line {error.lineno}: {error.message}"
            ) from error

    def _check(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool,
        continue_final_message: bool,
        kwargs: Mapping[str, Any],
    ) -> None:
        if not messages:
            raise ChatTemplateError("messages: expected at least one message")
        if add_generation_prompt and continue_final_message:
            raise ChatTemplateError(
                "continue_final_message and add_generation_prompt exclude each other"
            )
        if "messages" in kwargs:
            raise ChatTemplateError("chat_template_kwargs: messages cannot be set there")

    def _choose(self, *, has_tools: bool) -> tuple[Template, ContentShape]:
        name = "tool_use" if has_tools and "tool_use" in self._templates else "default"
        if name not in self._templates:
            raise ChatTemplateError(
                f"{self._model_name} has no chat template; use /v1/completions instead"
            )
        return self._templates[name]

    def _run(self, template: Template, variables: Mapping[str, Any]) -> str:
        deadline = self._clock() + MAX_RENDER_S
        written: list[str] = []
        num_characters = 0
        try:
            for piece in template.generate(variables):
                written.append(piece)
                num_characters += len(piece)
                if num_characters > MAX_OUTPUT_CHARACTERS:
                    raise ChatTemplateError(
                        f"the chat template wrote more than {MAX_OUTPUT_CHARACTERS} characters"
                    )
                if self._clock() > deadline:
                    raise ChatTemplateError(f"the chat template ran for over {MAX_RENDER_S} s")
        except ChatTemplateError:
            raise
        except TemplateRefusal as error:
            raise ChatTemplateError(
                f"the chat template of {self._model_name} refused the messages: {error}"
            ) from error
        except _TEMPLATE_FAULTS as error:
            raise ChatTemplateError(
                f"the chat template of {self._model_name} failed on these messages: {error}"
            ) from error
        return "".join(written)


def _mark_end(message: dict[str, Any]) -> str:
    """Put the end mark behind the last text of `message`; returns that text."""
    content = message["content"]
    if isinstance(content, str):
        message["content"] = content + _END_MARK
        return content
    if not content:
        raise ChatTemplateError("continue_final_message: the last message holds no text")
    text = str(content[-1]["text"])
    content[-1] = {"type": "text", "text": text + _END_MARK}
    return text


def _cut_at_mark(rendered: str, final_text: str) -> str:
    end = rendered.rfind(_END_MARK.rstrip())
    if end < 0 or final_text.strip() not in rendered[:end]:
        raise ChatTemplateError(
            "continue_final_message: the chat template leaves out or changes the last message"
        )
    text = rendered[:end]
    # A template that trims its messages would have trimmed this one, had it ended here.
    return text if rendered.startswith(_END_MARK, end) else text.rstrip()
