"""The panels about tokens that were guessed and then verified several at a time."""

from grafana import ONE_REPLICA, Panel, rate


def speculation() -> list[Panel]:
    """How many guesses are made, and how many are right."""
    guesses = rate("vllm:spec_decode_num_draft_tokens_total", ONE_REPLICA)
    right = rate("vllm:spec_decode_num_accepted_tokens_total", ONE_REPLICA)
    drafts = rate("vllm:spec_decode_num_drafts_total", ONE_REPLICA)
    return [
        Panel("Guesses", [("made", guesses), ("right", right)]),
        Panel(
            "Right guesses for each verification",
            [("", f"{right} / {drafts}")],
            description="A step of a request with guesses yields one token more than this.",
        ),
        Panel(
            "Right guesses by their place",
            [
                (
                    "{{position}}",
                    rate(
                        "vllm:spec_decode_num_accepted_tokens_per_pos_total",
                        ONE_REPLICA,
                        "position",
                    ),
                )
            ],
            stacked=True,
        ),
    ]
