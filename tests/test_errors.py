"""The index of errors: each text is explained by its entry, unrelated ones by none.

tests/pasted/*.txt hold errors as people paste them, `== entry | whose wording it is` above each,
written from the wording of the libraries. unrelated.txt holds what the index must not know.
Recorded texts are of errors that were provoked (logs/README.md).
"""

import re
from pathlib import Path

import pytest

from bootcamp.classroom import errors
from bootcamp.paths import NOTEBOOKS

PASTED = Path(__file__).parent / "pasted"
RECORDED = errors.read_recorded()


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
    recorded = [record["text"] for record in RECORDED if record["entry"] == name]
    (entry,) = (entry for entry in errors.ENTRIES if entry.name == name)
    for text in [*BY_ENTRY[name], *recorded]:
        assert explained(text) == name, text
        assert entry.means in str(errors.explain(text))
    for text in recorded:
        assert explained(f"noise before\n{text}\n") == name, text
    needed = [errors.strip_prefixes(text) for text in [*BY_ENTRY[name], *recorded]]
    for line in entry.pattern.splitlines():
        assert not re.search(line, ""), "matches nothing at all"
        assert any(re.search(line, text) for text in needed), f"no text needs {line}"


def test_texts_name_an_entry_and_a_wording():
    assert {name for name, _, _ in KNOWN} == set(BY_ENTRY)
    assert all(wording.strip() for _, wording, _ in KNOWN)
    assert len(KNOWN) >= 300
    assert len({text for _, _, text in KNOWN}) == len(KNOWN)


def test_records_are_of_known_errors_and_name_no_machine():
    assert len(RECORDED) >= 90
    assert {record["entry"] for record in RECORDED} <= set(BY_ENTRY)
    assert all(record["torch"] and record["machine"] for record in RECORDED)
    text = errors.RECORDED.read_text()
    assert not [place for place in ("/work/", "/home/", "/tmp/", "/root/") if place in text]


def test_unrelated_errors_stay_unknown():
    assert len(UNRELATED) >= 70
    assert [(head, explained(text)) for head, text in UNRELATED if explained(text)] == []
    told = errors.explain("KeyError: 'cheese'")
    assert "does not know" in str(told)
    assert all(thing in str(told) for thing in errors.UNKNOWN.values())
    assert "<dl>" in told._repr_html_()


def test_texts_are_claimed_by_no_other_cause():
    """So an entry that is taken out is missed: its texts are unknown, or told by lesser ones."""
    level = {entry.name: errors.TELLS.index(entry.tells) for entry in errors.ENTRIES}
    for name, _, text in KNOWN:
        said = errors.strip_prefixes(text)
        others = {each.name for each in errors.ENTRIES if each.found_by.search(said)} - {name}
        assert all(level[other] <= level[name] for other in others), (name, others)
    left = tuple(entry for entry in errors.ENTRIES if entry.name != "group_twice")
    assert explained(BY_ENTRY["group_twice"][0], left) is None


def test_causes_are_named_wherever_they_stand():
    """One rank's error, another's echo, a timeout and a notice, in any order."""
    cause = "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.95 GiB."
    symptom = (
        "[rank2]: gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 9ms for recv operation"
    )
    echo = "[rank1]: RuntimeError: pair.cc:534] Connection closed by peer [10.0.0.7]:4421"
    notice = "Warning: destroy_process_group() was not called before program exit"
    told = {
        "group_not_destroyed": notice,
        "peer_is_gone": echo,
        "timed_out": symptom,
        "gpu_memory": cause,
    }
    for known, name in enumerate(told, start=1):
        lines = list(told.values())[:known]
        assert explained("\n".join(lines)) == explained("\n".join(lines[::-1])) == name


@pytest.mark.parametrize(
    "said",
    [
        "[rank1]: {}", "[default3]: {}", "[1,0]<stderr>:{}", "3: {}", "│ {} │",
        "\x1b[31m{}\x1b[0m", "   {}   ",
    ],
)  # fmt: skip
def test_prefixes_of_launchers_do_not_matter(said):
    text = said.format("RuntimeError: one of the variables needed for")
    text += "\n" + said.format("gradient computation has been modified by an inplace operation: [")
    assert explained(text) == "changed_in_place"


def test_entries_are_complete_and_their_lessons_exist():
    numbers = {path.name.partition("_")[0] for path in NOTEBOOKS.glob("*.ipynb")}
    assert {entry.lesson for entry in errors.ENTRIES} <= numbers
    assert {entry.tells for entry in errors.ENTRIES} == set(errors.TELLS)
    assert len(BY_ENTRY) == len(errors.ENTRIES), "two have the same name"
    for entry in errors.ENTRIES:
        assert entry.means.endswith((".", ")"))
        assert entry.fix.endswith((".", ")", '"'))
        assert not entry.look_at.endswith(".")


def test_explain_takes_exceptions_and_the_last_one(monkeypatch):
    wrong = RuntimeError("Distributed package doesn't have NCCL built in")
    assert errors.explain(wrong).entry.name == "no_nccl"
    monkeypatch.setattr(errors.sys, "last_value", wrong, raising=False)
    assert errors.explain().entry.name == "no_nccl"
    monkeypatch.delattr(errors.sys, "last_value")
    with pytest.raises(ValueError, match="paste a text"):
        errors.explain()


def test_index_is_searched_by_words_and_by_a_pasted_error(monkeypatch):
    import IPython.display

    assert len(errors.table()) == len(errors.ENTRIES)
    assert 0 < len(errors.table("optimizer")) < len(errors.ENTRIES)
    assert len(errors.table("no such words in it")) == 0
    assert len(errors.table("pair.cc:5] Connection closed by peer [10.0.0.7]:4421. GLHF")) == 1
    layers = errors.layers()
    assert sum(layers.column("errors")) == len(errors.ENTRIES)
    assert sum(layers.column("recorded")) == len({record["entry"] for record in RECORDED})
    assert all("\\" not in row["the error says"] for row in errors.table().rows)
    shown = []
    monkeypatch.setattr(IPython.display, "display", lambda it, **_: shown.append(it))
    assert errors.index()["words"].description == "search"
    assert any("<table>" in getattr(it, "data", "") for it in shown)
