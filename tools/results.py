"""python tools/results.py [--name NAME]        what a learner has done, as one file
python tools/results.py --class FILE [FILE ...]  one page for the teacher from such files

The file has the exercises solved, the predictions with what was measured, and the claims that the
cells tested on this machine: what the course keeps beside the learner's scripts and under logs/.
It stays on this machine until its owner sends it to somebody.
"""

import argparse
import getpass
import json
import sys
from collections import Counter, defaultdict
from pathlib import Path
from statistics import median

import course

from bootcamp import machine
from bootcamp.classroom import journal, prediction_scores
from bootcamp.experiments import claims
from bootcamp.files import write_json
from bootcamp.paths import LOGS, OWN, shown
from bootcamp.table import Table
from bootcamp.units import number
from bootcamp_lessons import lesson_times


def collect(name: str) -> dict:
    """Collect what this learner has done on this machine."""
    return {
        "name": name,
        "machine": machine.describe(),
        "lessons": journal.progress().rows,
        "minutes": lesson_times.minutes(),
        "predictions": prediction_scores.list_predictions(),
        "claims": claims.read_notes(),
    }


def table_learners(learners: list[dict]) -> Table:
    """Table the learners, those with the fewest exercises first."""
    rows = []
    for each in learners:
        verdicts = [claim["verdict"] for claim in each["claims"].values()]
        rows.append(
            {
                "learner": each["name"],
                "exercises solved": sum(count_solved(lesson) for lesson in each["lessons"]),
                "predictions": len(each["predictions"]),
                "right": sum(one["right"] for one in each["predictions"]),
                "typically off by a factor of": typical_factor(each["predictions"]),
                "claims contradicted": verdicts.count(claims.CONTRADICTED),
                "machine": f"{each['machine']['cpu']}, {each['machine']['cores']} cores",
            }
        )
    rows.sort(key=lambda row: row["exercises solved"])
    return Table(rows, f"{len(rows)} learners, those with the fewest exercises solved first")


def count_solved(lesson: dict) -> int:
    """Return how many exercises of a lesson a learner has solved."""
    return int(lesson["exercises solved"].partition(" ")[0])


def typical_factor(predictions: list[dict]) -> float | None:
    """Return the median factor by which predictions were off; None without one."""
    factors = [one["factor"] for one in predictions if one["factor"]]
    return median(factors) if factors else None


def table_lessons(learners: list[dict]) -> Table:
    """Table the lessons in which somebody has solved an exercise, and what is left in them.

    Minutes are those that kernels of JupyterLab were used: a class corrects notebooks/lessons.toml.
    """
    begun = defaultdict(list)
    for lesson in (lesson for each in learners for lesson in each["lessons"]):
        if count_solved(lesson):
            begun[lesson["lesson"]].append(filter(None, lesson["still to solve"].split(", ")))
    rows = []
    for name, those in sorted(begun.items()):
        left = Counter(exercise for unsolved in those for exercise in unsolved).most_common()
        words = ", ".join(f"{exercise} ({count})" for exercise, count in left)
        times = [each["minutes"][name] for each in learners if name in each.get("minutes", {})]
        row = {"lesson": name, "learners": len(those), "not solved (by how many)": words}
        rows.append(row | {"minutes (median)": median(times) if times else None})
    return Table(rows, "Lessons in which somebody has solved an exercise")


def table_predictions(learners: list[dict]) -> Table:
    """Table the questions: what was answered and measured, those that most got wrong first."""
    asked, rows = defaultdict(list), []
    for one in (one for each in learners for one in each["predictions"]):
        asked[one["lesson"], one["question"], one["unit"]].append(one)
    for (lesson, question, unit), those in asked.items():
        answers = [one["answer"] for one in those]
        rows.append(
            {
                "lesson": lesson,
                "question": question,
                "answers": len(those),
                "right": sum(one["right"] for one in those),
                "said": f"{number(min(answers))} to {number(max(answers))} {unit}",
                "measured": f"{number(median(one['measured'] for one in those))} {unit}",
                "typically off by a factor of": typical_factor(those),
            }
        )
    rows.sort(key=lambda row: row["right"] / row["answers"])
    return Table(rows, "Predictions, those that most got wrong first")


def table_claims(learners: list[dict]) -> Table:
    """Table the claims that were not supported on somebody's machine."""
    tested = defaultdict(Counter)
    for claim in (claim for each in learners for claim in each["claims"].values()):
        tested[claim["sentence"]][claim["verdict"]] += 1
    rows = [
        {"claim": sentence} | {verdict: found[verdict] for verdict in claims.MARKS}
        for sentence, found in tested.items()
        if found[claims.SUPPORTED] < found.total()
    ]
    return Table(rows, f"Of {len(tested)} claims those that some machine does not support")


def write_page(learners: list[dict], target: Path) -> None:
    """Write the teacher's page."""
    tables = (table_learners, table_lessons, table_predictions, table_claims)
    body = "".join(found._repr_html_() for make in tables if (found := make(learners)).rows)
    course.write_page("The class", body, target)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--name", default=getpass.getuser(), help="default: the user's name")
    parser.add_argument("--class", nargs="+", type=Path, dest="files", metavar="FILE")
    chosen = parser.parse_args()
    if not chosen.files:
        name = "".join(each if each.isalnum() else "-" for each in chosen.name)
        target = LOGS / "results" / f"{name}.json"
        target.parent.mkdir(parents=True, exist_ok=True)
        write_json(target, collect(chosen.name))
        print(f"{shown(target)}: it stays here until you send it to somebody.")
        return 0
    try:
        learners = [json.loads(path.read_text()) for path in chosen.files]
        write_page(learners, target := OWN / "slides" / "build" / "class.html")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        sys.exit(f"A file is not one of `make results`: {type(error).__name__}, {error}")
    print(shown(target))
    return 0


if __name__ == "__main__":
    sys.exit(main())
