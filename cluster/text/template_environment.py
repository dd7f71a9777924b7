"""The sandbox in which chat templates run: Hugging Face's dialect of Jinja and nothing more."""

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

from jinja2 import Environment, TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class TemplateRefusal(TemplateError):
    """A template called raise_exception: these messages are not what it can render."""


class GenerationTag(Extension):
    """Lets `{% generation %} ... {% endgeneration %}` through, which marks text for training."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The tag's body, as if the tag were not there."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def template_environment(*, now: Callable[[], datetime]) -> Environment:
    """An environment in which templates written for transformers give the same text.

    Templates come with models, so they are other people's code: no attribute that starts with an
    underscore, nothing that changes a value passed in, no range beyond 100,000.
    """
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[GenerationTag, "jinja2.ext.loopcontrols"],
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda pattern: now().strftime(pattern)
    # The class itself would offer more than a new dictionary.
    environment.globals["dict"] = lambda *args, **kwargs: dict(*args, **kwargs)
    return environment


def _to_json(value: Any, **options: Any) -> str:
    """Jinja's own filter escapes HTML, and json.dumps by itself all that is not ASCII."""
    options.setdefault("ensure_ascii", False)
    return json.dumps(value, **options)


def _raise_exception(message: str) -> None:
    raise TemplateRefusal(message)
