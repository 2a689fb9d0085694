"""The index of errors: each text is explained by its entry, unrelated ones by none.

tests/pasted/*.txt hold errors as people paste them, `== entry | whose wording it is` above each,
written from the wording of the libraries. unrelated.txt holds what the index must not know.
Recorded texts are of errors that were provoked (logs/README.md).
"""

import re
import subprocess
import sys
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


def test_pip_refuses_the_options_that_built_apex_from_25_3_on():
    release = tuple(map(int, pytest.importorskip("pip").__version__.split(".")[:2]))
    command = [sys.executable, "-m", "pip", "install", "--global-option=--cpp_ext", "--help"]
    said = subprocess.run(command, capture_output=True, text=True).stderr
    assert ("no such option: --global-option" in said) == (release >= (25, 3)), said


def test_texts_and_entries_are_there_once_and_name_lessons_and_known_errors():
    numbers = {path.name.partition("_")[0] for path in NOTEBOOKS.glob("*.ipynb")}
    assert {entry.lesson for entry in errors.ENTRIES} <= numbers
    assert {name for name, _, _ in KNOWN} == set(BY_ENTRY)
    assert {record["entry"] for record in RECORDED} <= set(BY_ENTRY)
    assert len(BY_ENTRY) == len(errors.ENTRIES), "two have the same name"
    assert len({text for _, _, text in KNOWN}) == len(KNOWN)


def test_unrelated_errors_stay_unknown():
    assert [(head, explained(text)) for head, text in UNRELATED if explained(text)] == []
    assert "does not know" in str(errors.explain("KeyError: 'cheese'"))


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


def test_explain_takes_exceptions_and_the_last_one(monkeypatch):
    wrong = RuntimeError("Distributed package doesn't have NCCL built in")
    assert errors.explain(wrong).entry.name == "no_nccl"
    monkeypatch.setattr(errors.sys, "last_value", wrong, raising=False)
    assert errors.explain().entry.name == "no_nccl"
    monkeypatch.delattr(errors.sys, "last_value")
    with pytest.raises(ValueError, match="paste a text"):
        errors.explain()


def test_index_is_searched_by_words_and_by_a_pasted_error(displayed):
    assert len(errors.table()) == len(errors.ENTRIES)
    assert 0 < len(errors.table("optimizer")) < len(errors.ENTRIES)
    assert len(errors.table("no such words in it")) == 0
    assert len(errors.table("pair.cc:5] Connection closed by peer [10.0.0.7]:4421. GLHF")) == 1
    assert sum(errors.layers().column("errors")) == len(errors.ENTRIES)
    assert errors.index()["words"].description == "search"
    assert "<table>" in displayed.html
