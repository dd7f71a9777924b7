"""What becomes of a session's blocks, from how long it and others have paused before."""

from replicas.policies.session_fate import MAX_SESSIONS, SessionFate, SessionFates


def pause(fates: SessionFates, session: str, seconds: float, *, at: float = 0.0) -> None:
    fates.ended(session, at, device_residence_s=1.0, outside_residence_s=1.0)
    fates.begun(session, at + seconds)


def fate(fates: SessionFates, session: str, *, device: float, outside: float) -> SessionFate:
    return fates.ended(session, 100.0, device_residence_s=device, outside_residence_s=outside)


def test_before_anything_was_measured_blocks_are_kept():
    assert fate(SessionFates(), "a", device=0.0, outside=0.0) is SessionFate.KEEP


def test_a_short_pause_keeps_a_longer_one_swaps_and_a_very_long_one_discards():
    for idle_s, expected in [
        (1.0, SessionFate.KEEP),
        (20.0, SessionFate.SWAP),
        (500.0, SessionFate.DISCARD),
    ]:
        fates = SessionFates()
        pause(fates, "a", idle_s)
        assert fate(fates, "a", device=5.0, outside=100.0) is expected


def test_a_new_session_is_expected_to_pause_as_others_did():
    fates = SessionFates()
    pause(fates, "a", 20.0)
    assert fates.expected_idle_s("new") == 20.0


def test_a_session_is_judged_by_its_own_pauses():
    fates = SessionFates()
    pause(fates, "quick", 1.0)
    for turn in range(20):
        pause(fates, "slow", 1000.0, at=2000.0 * turn)
    assert fates.expected_idle_s("quick") == 1.0
    assert fates.expected_idle_s("slow") == 1000.0


def test_newer_pauses_count_more():
    fates = SessionFates()
    pause(fates, "a", 1.0)
    for turn in range(10):
        pause(fates, "a", 10.0, at=100.0 * (turn + 1))
    expected = fates.expected_idle_s("a")
    assert expected is not None
    assert 9.0 < expected <= 10.0


def test_a_turn_that_begins_without_a_pause_teaches_nothing():
    fates = SessionFates()
    fates.begun("a", 5.0)
    assert fates.expected_idle_s("a") is None


def test_the_sessions_that_are_remembered_are_bounded():
    fates = SessionFates()
    for number in range(MAX_SESSIONS + 10):
        fates.begun(str(number), 0.0)
    assert len(fates) == MAX_SESSIONS
