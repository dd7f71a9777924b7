"""Reads what a caller's headers say about where and how soon a request should be served.

x-session-id names a conversation, so that its turns find the same replica (Ray Serve's header);
x-slo-ttft-ms and x-slo-tpot-ms state latencies beyond which the answer is worthless (llm-d's), and
go before the settings of the same meaning. A proxy may set them, so a header goes before the body.
"""

import re
from collections.abc import Mapping
from dataclasses import replace

from cluster.openai.api_error import bad_request
from cluster.openai.generation import GenerationPlan

SESSION_HEADER = "x-session-id"
TTFT_HEADER = "x-slo-ttft-ms"
TPOT_HEADER = "x-slo-tpot-ms"

_MAX_SESSION_CHARACTERS = 256
_MAX_SLO_MS = 86_400_000.0


def with_routing_headers(
    plan: GenerationPlan, headers: Mapping[str, str], *, session_id: str | None
) -> GenerationPlan:
    """The plan with the caller's wishes in each request; session_id: what the body says.

    Raises ApiError 400 for a header that cannot be used.
    """
    session_id = _session_of(headers, session_id)
    ttft_slo_s = _seconds_of(headers, TTFT_HEADER)
    tpot_slo_s = _seconds_of(headers, TPOT_HEADER)
    if session_id is None and ttft_slo_s is None and tpot_slo_s is None:
        return plan
    requests = tuple(
        replace(request, session_id=session_id, ttft_slo_s=ttft_slo_s, tpot_slo_s=tpot_slo_s)
        for request in plan.requests
    )
    return replace(plan, requests=requests)


def _session_of(headers: Mapping[str, str], in_body: str | None) -> str | None:
    session_id = headers.get(SESSION_HEADER, in_body)
    if session_id is None:
        return None
    if not 0 < len(session_id) <= _MAX_SESSION_CHARACTERS:
        raise bad_request(
            f"'{SESSION_HEADER}' has {len(session_id)} characters: expected 1 to "
            f"{_MAX_SESSION_CHARACTERS}.",
            param=SESSION_HEADER if SESSION_HEADER in headers else "session_id",
        )
    return session_id


def _seconds_of(headers: Mapping[str, str], name: str) -> float | None:
    text = headers.get(name)
    if text is None:
        return None
    is_number = re.fullmatch(r"\d{1,12}(\.\d{1,9})?", text.strip())
    if not is_number or not 0.0 < float(text) <= _MAX_SLO_MS:
        raise bad_request(
            f"'{name}' is {text[:40]!r}: expected a number of milliseconds above 0.", param=name
        )
    return float(text) / 1000.0
