"""Read what a pipeline's ranks recorded of their actions."""

import json

from bootcamp.costs.pipeline_schedules import Action, Span, makespan
from bootcamp.records.runs import Run


def recorded(run: Run, step: int | None = None) -> list[Span]:
    """Read what a run's ranks did in one step from `ranks/<k>.actions.jsonl`.

    step: None takes the one of median length after the first, which also does what is done only
    once. Ranks of several hosts have clocks of their own: their times can't be compared.
    """
    files = sorted((run.folder / "ranks").glob("*.actions.jsonl"))
    if not files:
        raise FileNotFoundError(f"{run.folder} has no record of actions: it is no pipeline's run")
    steps: dict[int, list[Span]] = {}
    for file in files:
        for line in file.read_text().splitlines():
            row = json.loads(line)
            action = Action(row["action"], row["stage"], row["micro_batch"])
            span = Span(int(file.name.split(".")[0]), action, row["began"], row["ended"])
            steps.setdefault(row["step"], []).append(span)
    if step is None:
        later = sorted([n for n in steps if n] or steps, key=lambda n: makespan(steps[n]))
        step = later[(len(later) - 1) // 2]
    begin = min(span.began for span in steps[step])
    return [s._replace(began=s.began - begin, ended=s.ended - begin) for s in steps[step]]
