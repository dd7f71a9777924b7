"""Arms have their turns one after the other, and what was disturbed is run again, within bounds."""

from cluster.bench.peers.plan import Plan, Turn, workloads_by_arm
from cluster.bench.peers.results import TurnResult, WorkloadRun
from cluster.bench.peers.rows import rows_of

PLAN = Plan({"pagoda": ("W1", "W4"), "vllm": ("W1", "W4")}, rounds=2)


def result_of(turn: Turn, *, foreign: float = 0.0, only: tuple[str, ...] | None = None):
    ran = turn.workloads if only is None else only
    runs = tuple(WorkloadRun(name, 0.0, 1.0, {}, foreign) for name in ran)
    return TurnResult(turn.arm, turn.round, turn.attempt, turn.workloads, runs)


def play(plan: Plan, answer) -> list[Turn]:
    turns, done = [], []
    while (turn := plan.next_turn(done)) is not None:
        turns.append(turn)
        done.append(answer(turn))
    return turns


def test_ours_and_the_peer_alternate_in_every_round():
    turns = play(PLAN, result_of)
    assert [(turn.round, turn.arm) for turn in turns] == [
        (1, "pagoda"),
        (1, "vllm"),
        (2, "pagoda"),
        (2, "vllm"),
    ]


def test_only_what_was_disturbed_is_run_again_and_at_once():
    def answer(turn: Turn):
        if turn.attempt == 1 and turn.arm == "vllm" and turn.round == 1:
            runs = (WorkloadRun("W1", 0, 1, {}, 0.31), WorkloadRun("W4", 0, 1, {}, 0.3))
            return TurnResult(turn.arm, 1, 1, turn.workloads, runs)
        return result_of(turn)

    turns = play(PLAN, answer)
    assert turns[1:3] == [Turn("vllm", 1, 1, ("W1", "W4")), Turn("vllm", 1, 2, ("W1",))]
    assert len(turns) == 5


def test_a_machine_that_never_gets_quiet_does_not_keep_us_for_ever():
    turns = play(PLAN, lambda turn: result_of(turn, foreign=1.0))
    assert len(turns) == 2 * 2 * PLAN.max_attempts


def test_an_arm_of_which_nothing_runs_is_given_up_after_the_first_round():
    turns = play(PLAN, lambda turn: result_of(turn, only=() if turn.arm == "vllm" else None))
    assert [turn.round for turn in turns if turn.arm == "vllm"] == [1, 1]
    assert [turn.round for turn in turns if turn.arm == "pagoda"] == [1, 2]


def test_rows_that_are_added_later_find_a_turn_of_their_own():
    done = [result_of(Turn("pagoda", 1, number, ("W1",))) for number in (1, 2)]
    plan = Plan({"pagoda": ("W1", "W5")}, rounds=1)
    assert plan.next_turn(done) == Turn("pagoda", 1, 3, ("W5",))


def test_an_arm_runs_what_its_rows_need_and_nothing_else():
    wanted = workloads_by_arm(rows_of(["w1-int8", "http"]), ["pagoda", "vllm", "pagoda-int8"])
    assert wanted == {"pagoda": ("W1",), "pagoda-int8": ("W1",)}


def test_memory_is_measured_under_load():
    wanted = workloads_by_arm(rows_of(["memory"]), ["pagoda", "vllm"])
    assert wanted == {"pagoda": ("W1", "memory"), "vllm": ("W1", "memory")}


def test_a_start_alone_needs_no_load():
    assert workloads_by_arm(rows_of(["start"]), ["vllm-serve"]) == {"vllm-serve": ("start-up",)}
