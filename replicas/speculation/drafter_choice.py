"""Chooses who guesses, as the settings say."""

from collections.abc import Callable

from replicas.config import SchedulerConfig
from replicas.runner import CanDraft, Runner
from replicas.speculation.drafter import Drafter
from replicas.speculation.model_drafter import ModelDrafter
from replicas.speculation.ngram_drafter import NgramDrafter
from replicas.step_pipeline import StepPipeline


def drafter_of(
    config: SchedulerConfig, runner: Runner, pipeline: StepPipeline, clock: Callable[[], float]
) -> Drafter | None:
    """Whoever guesses; None for nobody. clock: monotonic seconds.

    auto is for build_engine to decide, which knows the kernels; as it stands it is nobody.
    Asserts that a runner has the small model that the settings ask for.
    """
    match config.speculation.speculative_method:
        case "ngram":
            return NgramDrafter(config.speculation)
        case "draft_model":
            assert isinstance(runner, CanDraft), "the runner has no small model"
            return ModelDrafter(
                lambda batch: pipeline.call(lambda: runner.draft(batch)),
                block_size=config.block_size,
                clock=clock,
            )
        case "off" | "auto":
            return None
