"""The trainer: intake, planner, feed, learner's loop, checkpoints, replay.

    log ──> intake ──> planner ──> feed ──> loop ──> outcome, policy version, checkpoint
                          │ decision                    │
                          └────────> plan <─────────────┘

`run_trainer` is the whole of it.
"""

import threading

from offbeat.runs import Run


def run_trainer(run: Run, *, stop: threading.Event) -> None:
    """Train until `max_steps` are done or `stop` is set; state is kept either way (see offbeat.trainer.loop).

    Where torchrun started several trainer processes, all but the first do their share of its steps until it ends.
    """
    from offbeat.workloads.launched import launched_rank

    if launched_rank():
        from offbeat.algorithms.determinism import make_deterministic
        from offbeat.workloads import open_workload

        make_deterministic(run.config.training.torch_threads)
        open_workload(run.config, base=run.base).follow()
        return
    from offbeat.trainer.loop import run_trainer as run_loop

    run_loop(run, stop=stop)


__all__ = ["run_trainer"]
