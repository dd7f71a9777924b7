"""Holds what is known of each replica in the form in which policies read it, ready at any moment.

A choice is made for every request and a status comes with every step, so the candidates are kept
made, and only the one that changed is made again.
"""

from router.pace import Pace, PaceMeter, mean_pace
from router.replica_status import ReplicaRole, ReplicaState, ReplicaStatus
from router.routing_policy import Candidate

# What others had admitted between two statuses comes in bursts; one burst is not a habit.
_UNSEEN_GAIN = 0.2
_UNSEEN_DECAY = 0.95


class _Entry:
    """One replica: its status, what was sent there meanwhile, its pace, and what others send."""

    def __init__(self, status: ReplicaStatus) -> None:
        self.status = status
        self.reserved_tokens = 0
        self.reserved_prompt_tokens = 0
        self.num_reserved = 0
        self.unseen_tokens = 0.0
        self.meter = PaceMeter()
        self.others_total = 0
        self.candidate: Candidate | None = None


class ReplicaBook:
    """Candidates by replica. gateway_id: whose own admissions are not those of others."""

    def __init__(self, *, gateway_id: str) -> None:
        self._gateway_id = gateway_id
        self._entries: dict[str, _Entry] = {}
        self._by_state: dict[ReplicaState, list[str]] = {}

    def update(self, status: ReplicaStatus) -> None:
        """Take in what a replica said last, or that its state changed."""
        entry = self._entries.get(status.replica_id)
        if entry is None:
            entry = self._entries[status.replica_id] = _Entry(status)
            entry.others_total = self._admitted_of_others(status)
            self._by_state.clear()
        elif entry.status.state is not status.state:
            self._by_state.clear()
        entry.status = status
        entry.candidate = None
        if status.last_step is not None:
            entry.meter.see(
                status.last_step,
                finished_total=status.finished_total,
                generated_total=status.generated_total,
            )
        self._see_others(entry)

    def forget(self, replica_id: str) -> None:
        """The replica is gone."""
        if self._entries.pop(replica_id, None) is not None:
            self._by_state.clear()

    def reserve(self, replica_id: str, *, work_tokens: int, prompt_tokens: int, num: int) -> None:
        """Add what was sent there; negative amounts take it back. Unknown replicas are fine."""
        entry = self._entries.get(replica_id)
        if entry is None:
            return
        entry.reserved_tokens += work_tokens
        entry.reserved_prompt_tokens += prompt_tokens
        entry.num_reserved += num
        entry.candidate = None

    def candidates(
        self, state: ReplicaState, *, exclude: frozenset[str], roles: frozenset[ReplicaRole]
    ) -> list[Candidate]:
        """Those in that state and one of these roles, in the order of their ids."""
        ids = self._by_state.get(state)
        if ids is None:
            found = [name for name, entry in self._entries.items() if entry.status.state is state]
            ids = self._by_state[state] = sorted(found)
        entries = self._entries
        if exclude:
            ids = [replica_id for replica_id in ids if replica_id not in exclude]
        return [
            entry.candidate or self._candidate(entry)
            for entry in [entries[replica_id] for replica_id in ids]
            if entry.status.role in roles
        ]

    @property
    def statuses(self) -> dict[str, ReplicaStatus]:
        """Every replica known, by id."""
        return {replica_id: entry.status for replica_id, entry in self._entries.items()}

    @property
    def paces(self) -> dict[str, Pace]:
        """How fast each replica was measured to be, by id."""
        return {replica_id: entry.meter.pace for replica_id, entry in self._entries.items()}

    def reserved_tokens(self, replica_id: str) -> int:
        """Work that was sent there; 0 for a replica that is not known."""
        entry = self._entries.get(replica_id)
        return 0 if entry is None else entry.reserved_tokens

    def reserved_prompt_tokens(self, replica_id: str) -> int:
        """Prompt tokens that were sent there; 0 for a replica that is not known."""
        entry = self._entries.get(replica_id)
        return 0 if entry is None else entry.reserved_prompt_tokens

    def _candidate(self, entry: _Entry) -> Candidate:
        pace = entry.meter.pace
        role = entry.status.role
        # A replica that only prefills is never seen to decode.
        if not (pace.prefill_token_s if role == "prefill" else pace.is_measured):
            peers = [e.meter.pace for e in self._entries.values() if e.status.role == role]
            pace = mean_pace(peers)
        entry.candidate = Candidate(
            entry.status,
            reserved_tokens=entry.reserved_tokens,
            reserved_prompt_tokens=entry.reserved_prompt_tokens,
            num_reserved=entry.num_reserved,
            unseen_tokens=entry.unseen_tokens,
            pace=pace,
        )
        return entry.candidate

    def _see_others(self, entry: _Entry) -> None:
        total = self._admitted_of_others(entry.status)
        sent_tokens = total - entry.others_total
        entry.others_total = total
        if sent_tokens > 0:
            entry.unseen_tokens += _UNSEEN_GAIN * (sent_tokens - entry.unseen_tokens)
        else:
            # The same figures come again when only a state changed, and totals that fell are a
            # replica's that began anew.
            entry.unseen_tokens *= _UNSEEN_DECAY

    def _admitted_of_others(self, status: ReplicaStatus) -> int:
        return sum(
            admission.admitted_tokens_total
            for admission in status.admissions
            if admission.gateway_id != self._gateway_id
        )
