"""Brings a client's chat messages into the shape that a model's template was written for."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from jinja2 import nodes

ContentShape: TypeAlias = Literal["text", "parts", "text_or_parts"]

_TESTS_OF_SHAPE = ("string", "iterable", "sequence", "mapping")


class ChatTemplateError(ValueError):
    """Messages cannot be rendered for this model; the text is fit for a client."""


def content_shape(template: nodes.Template) -> ContentShape:
    """The shape of `content` that a template can read, told from its syntax tree.

    It reads parts if a `for` runs over `x.content`, `x['content']`, or a name that was set to one
    of these, and a plain string too if it asks anywhere whether a value is one.
    """
    aliases = {
        assigned.target.name
        for assigned in template.find_all(nodes.Assign)
        if isinstance(assigned.target, nodes.Name) and _is_content(assigned.node)
    }
    reads_parts = any(
        _is_content(loop.iter) or (isinstance(loop.iter, nodes.Name) and loop.iter.name in aliases)
        for loop in template.find_all(nodes.For)
    )
    if not reads_parts:
        return "text"
    asks = any(test.name in _TESTS_OF_SHAPE for test in template.find_all(nodes.Test))
    return "text_or_parts" if asks else "parts"


def template_messages(
    messages: Sequence[Mapping[str, Any]], *, shape: ContentShape
) -> list[dict[str, Any]]:
    """Fresh copies of `messages` whose content the template can read.

    For a template of strings, text parts are joined by line ends; for one of parts, a string
    becomes a part. Missing content becomes empty, tool-call arguments become objects, and other
    nulls go away.
    Raises ChatTemplateError for a part that is not text.
    """
    return [_message(message, place, shape=shape) for place, message in enumerate(messages)]


def _message(message: Mapping[str, Any], place: int, *, shape: ContentShape) -> dict[str, Any]:
    ready = {key: value for key, value in message.items() if value is not None}
    content = ready.get("content", "")
    if isinstance(content, str):
        ready["content"] = [_part(content)] if shape == "parts" else content
    elif isinstance(content, Sequence):
        texts = list(_texts(content, place))
        ready["content"] = "\n".join(texts) if shape == "text" else [_part(t) for t in texts]
    else:
        raise ChatTemplateError(f"messages[{place}].content: expected a string or a list of parts")
    if "tool_calls" in ready:
        ready["tool_calls"] = [_tool_call(call, place) for call in ready["tool_calls"]]
    return ready


def _part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def _texts(parts: Sequence[Any], place: int) -> Iterator[str]:
    for number, part in enumerate(parts):
        if isinstance(part, str):
            yield part
            continue
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        text = part.get("text") if isinstance(part, Mapping) else None
        if kind != "text" or not isinstance(text, str):
            raise ChatTemplateError(
                f"messages[{place}].content[{number}]: a part of type {kind} is not supported; "
                "this model reads text"
            )
        yield text


def _tool_call(call: Mapping[str, Any], place: int) -> dict[str, Any]:
    """Clients send arguments as JSON text; templates print objects."""
    function = call.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return dict(call)
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except ValueError as error:
        raise ChatTemplateError(
            f"messages[{place}].tool_calls: arguments are not JSON ({error})"
        ) from error
    return {**call, "function": {**function, "arguments": arguments}}


def _is_content(node: nodes.Node) -> bool:
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const):
        return bool(node.arg.value == "content")
    return False
