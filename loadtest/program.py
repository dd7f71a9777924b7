"""Describes traffic before it is sent: programs of calls, whose prompts are written when due."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Words:
    """Made-up text of `num_tokens` tokens; equal seeds give equal text, so prefixes can match."""

    seed: int
    num_tokens: int


Part = str | Words


@dataclass(frozen=True, slots=True)
class Call:
    """One request to the server.

    `parts` are joined into the new text of this call: the prompt, or the user's next message.
    `prompt_tokens` counts that new text, an estimate unless the source says better (None: count
    when written). `output_tokens` None leaves the length to the server. `messages` stand before
    the new text in a chat (role, text), such as a system prompt or given earlier turns.
    """

    parts: tuple[Part, ...]
    output_tokens: int | None = None
    prompt_tokens: int | None = None
    num_choices: int = 1
    messages: tuple[tuple[str, str | tuple[Part, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """Calls sent together, `pause_s` after the step before has ended in full."""

    calls: tuple[Call, ...]
    pause_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Program:
    """What arrives as one: a request, a conversation, or an agent's run of dependent steps.

    Each step's calls see the texts and answers of the steps before it. `at_s` is the arrival
    in its trace, seconds from the trace's start; None where an arrival process decides.
    """

    steps: tuple[Step, ...]
    at_s: float | None = None
    session: str = ""


def single(call: Call, *, at_s: float | None = None, session: str = "") -> Program:
    """A program of one call."""
    return Program((Step((call,)),), at_s, session)
