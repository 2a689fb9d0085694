"""Errors as people paste them: each text is explained by its entry, unrelated ones by none.

tests/pasted/*.txt hold the texts, `== entry | whose wording it is` above each, written from the
wording of the libraries. unrelated.txt holds what the index must not know.
"""

import re
from pathlib import Path

import pytest

from bootcamp.classroom import errors

PASTED = Path(__file__).parent / "pasted"
LESSONS = Path(__file__).resolve().parents[1] / "notebooks"


def texts(path):
    """(what stands behind ==, text) of each text of a file."""
    parts = re.split(r"^== ", path.read_text(), flags=re.MULTILINE)[1:]
    return [(head, text.rstrip()) for head, _, text in (part.partition("\n") for part in parts)]


UNRELATED = texts(PASTED / "unrelated.txt")
KNOWN = [
    (*head.split(" | "), text)
    for path in sorted(PASTED.glob("*.txt"))
    if path.name != "unrelated.txt"
    for head, text in texts(path)
]
BY_ENTRY = {
    entry.name: [t for name, _, t in KNOWN if name == entry.name] for entry in errors.ENTRIES
}


def explained(text, entries=errors.ENTRIES):
    found = errors.find(text, entries)
    return found and found.name


@pytest.mark.parametrize("name", BY_ENTRY)
def test_texts_are_explained_by_their_entry(name):
    assert BY_ENTRY[name], "an entry without a text"
    assert [explained(text) for text in BY_ENTRY[name]] == [name] * len(BY_ENTRY[name])


def test_every_text_names_an_entry_and_a_wording():
    assert {name for name, _, _ in KNOWN} == set(BY_ENTRY)
    assert all(wording.strip() for _, wording, _ in KNOWN)
    assert len(KNOWN) >= 300
    assert len({text for _, _, text in KNOWN}) == len(KNOWN)


def test_every_line_of_a_pattern_is_needed():
    """Each of an entry's regular expressions finds some text, pasted or recorded."""
    said = {name: list(map(errors.strip_prefixes, found)) for name, found in BY_ENTRY.items()}
    for record in errors.read_recorded():
        said[record["entry"]].append(errors.strip_prefixes(record["text"]))
    lines = [(e.name, line) for e in errors.ENTRIES for line in e.pattern.splitlines()]
    assert [(n, line) for n, line in lines if not any(re.search(line, t) for t in said[n])] == []


def test_unrelated_errors_stay_unknown():
    assert len(UNRELATED) >= 70
    assert [(head, explained(text)) for head, text in UNRELATED if explained(text)] == []


def test_without_its_entry_no_other_cause_claims_a_text():
    """So an entry that is taken out is missed: its texts are unknown, or told by lesser ones."""
    level = {entry.name: errors.TELLS.index(entry.tells) for entry in errors.ENTRIES}
    for name, _, text in KNOWN:
        said = errors.strip_prefixes(text)
        others = {each.name for each in errors.ENTRIES if each.found_by.search(said)} - {name}
        assert all(level[other] <= level[name] for other in others), (name, others)
    left = tuple(entry for entry in errors.ENTRIES if entry.name != "group_twice")
    assert explained(BY_ENTRY["group_twice"][0], left) is None


def test_the_cause_is_named_wherever_it_stands():
    """One rank's error, another's echo, a time-out and a notice, in any order."""
    cause = "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.95 GiB."
    symptom = (
        "[rank2]: gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 9ms for recv operation"
    )
    echo = "[rank1]: RuntimeError: pair.cc:534] Connection closed by peer [10.0.0.7]:4421"
    notice = "Warning: destroy_process_group() was not called before program exit"
    told = (notice, echo, symptom, cause)
    assert [explained(text) for text in told] == [
        "group_not_destroyed", "peer_is_gone", "timed_out", "gpu_memory",
    ]  # fmt: skip
    for known in range(1, 5):
        both_ways = ("\n".join(told[:known]), "\n".join(reversed(told[:known])))
        assert {explained(text) for text in both_ways} == {explained(told[known - 1])}


@pytest.mark.parametrize(
    "said",
    [
        "[rank1]: {}", "[default3]: {}", "[1,0]<stderr>:{}", "3: {}", "│ {} │",
        "\x1b[31m{}\x1b[0m", "   {}   ",
    ],
)  # fmt: skip
def test_what_launchers_put_before_a_line_does_not_matter(said):
    text = said.format("RuntimeError: one of the variables needed for")
    text += "\n" + said.format("gradient computation has been modified by an inplace operation: [")
    assert explained(text) == "changed_in_place"


def test_entries_are_complete_and_their_lessons_exist():
    numbers = {path.name.partition("_")[0] for path in LESSONS.glob("*.ipynb")}
    assert {entry.lesson for entry in errors.ENTRIES} <= numbers
    assert {entry.tells for entry in errors.ENTRIES} == set(errors.TELLS)
    names = [entry.name for entry in errors.ENTRIES]
    assert len(names) == len(set(names))
    for entry in errors.ENTRIES:
        assert entry.means.endswith((".", ")"))
        assert entry.fix.endswith((".", ")", '"'))
        assert not entry.look_at.endswith(".")
        assert not re.search(entry.pattern.splitlines()[0], ""), "matches nothing at all"


def test_the_index_counts_by_layer():
    table = errors.layers()
    assert sum(table.column("errors")) == len(errors.ENTRIES) == len(errors.table())
    assert sum(table.column("recorded")) == len({r["entry"] for r in errors.read_recorded()})
    assert {"NCCL", "Horovod and MPI", "Checkpoints"} <= set(table.column("layer"))
    assert all("\\" not in row["the error says"] for row in errors.table().rows)
