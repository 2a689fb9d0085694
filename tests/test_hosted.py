"""tools/hosted.py in an environment that is not the course's: it adds, and changes nothing.

pip is real; the index is a folder of wheels that are made here, with a tempting newer torch.
"""

import os
import shutil
import subprocess
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
from processes import run_program

from bootcamp.paths import ROOT

PYPROJECT = """\
[project]
dependencies = ["torch>=2.11", "helper>=1"]
[project.optional-dependencies]
kernel = ["widgets>=8.1", "gone>=3", "windows-only; sys_platform == 'win32'"]
more = ["extra>=1"]
"""
PINS = "# pins\ntorch==2.13.0\nhelper==2.0\nextra==1.0\n"
WHEELS = [
    ("torch", "2.13.0", ""),
    ("helper", "1.0", "torch"),
    ("helper", "2.0", "torch>=2.13"),
    ("widgets", "8.2", ""),
    ("extra", "1.0", "widgets"),
    ("extra", "2.0", "widgets"),
]


def metadata(name: str, version: str, needs: str = "") -> str:
    needed = f"Requires-Dist: {needs}\n" if needs else ""
    return f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needed}"


def write_wheel(folder: Path, name: str, version: str, needs: str) -> None:
    about = f"{name}-{version}.dist-info"
    contents = {
        f"{name}.py": f"version = {version!r}\n",
        f"{about}/METADATA": metadata(name, version, needs),
        f"{about}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{about}/RECORD": "",
    }
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for place, text in contents.items():
            wheel.writestr(place, text)


class Host:
    """A Python with some packages, and a clone of a small course beside it."""

    def __init__(self, folder: Path, **packages: str):
        self.clone, self.wheels = folder / "a clone", folder / "wheels"
        venv.create(folder / "env", with_pip=False)
        self.python = folder / "env" / "bin" / "python"
        self.site = next((folder / "env" / "lib").glob("python*/site-packages"))
        for name, version in packages.items():
            self._put(name, version)
        for module in ("pip", "packaging"):  # as every kernel has them
            (self.site / module).symlink_to(Path(sysconfig.get_path("purelib"), module))
        for name in ("tools", "src", "notebooks"):
            (self.clone / name).mkdir(parents=True)
        for name in ("hosted.py", "install.py"):
            shutil.copy2(ROOT / "tools" / name, self.clone / "tools")
        (self.clone / "pyproject.toml").write_text(PYPROJECT)
        (self.clone / "constraints.txt").write_text(PINS)
        (self.clone / "src" / "course.py").write_text("import helper")
        self.wheels.mkdir()
        for wheel in WHEELS:
            write_wheel(self.wheels, *wheel)

    def _put(self, name: str, version: str) -> None:
        about = self.site / f"{name}-{version}.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(metadata(name, version))
        (about / "INSTALLER").write_text("pip")
        (about / "RECORD").write_text(f"{name}.py,,\n")
        (self.site / f"{name}.py").write_text(f"version = {version!r}\n")

    def run(self, *groups: str) -> subprocess.CompletedProcess:
        """As a notebook's %run does, and then import the course here and in a new process."""
        code = (
            "import runpy, sys, subprocess, os\n"
            f"sys.argv = ['hosted.py', *{groups!r}]\n"
            f"runpy.run_path({str(self.clone / 'tools' / 'hosted.py')!r}, run_name='__main__')\n"
            "import course\n"
            "subprocess.run([sys.executable, '-c', 'import course'], check=True)\n"
            "print('in', os.getcwd())\n"
        )
        own = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "PYTHON"))}
        own |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": self.wheels.as_uri()}
        own |= {"PIP_CONFIG_FILE": os.devnull}
        return run_program([self.python, "-c", code], cwd=self.clone.parent, env=own)

    def packages(self) -> dict[str, str]:
        names = [path.name.removesuffix(".dist-info") for path in self.site.glob("*.dist-info")]
        return dict(name.split("-") for name in names)


@pytest.mark.slow
def test_packages_that_are_there_stay_and_what_is_missing_comes(tmp_path):
    host = Host(tmp_path, torch="2.12.1", widgets="7.7.1")
    done = host.run("more")
    assert done.returncode == 0, done.stderr
    # the newest helper, and the course's pin of it, would have brought another torch
    kept, brought = {"torch": "2.12.1", "widgets": "7.7.1"}, {"helper": "1.0", "extra": "1.0"}
    assert host.packages() == kept | brought
    assert "widgets is 7.7.1, the course was tested with widgets>=8.1: it stays." in done.stdout
    assert "gone>=3 was not installed: what needs it will say so." in done.stdout
    assert "Installed: helper>=1, extra>=1. torch 2.12.1 stays as it was." in done.stdout
    assert f"in {host.clone / 'notebooks'}" in done.stdout, "nor does a blank in the path matter"


REFUSED = [  # packages that are there, groups, what is said
    ({}, (), "Here there is no torch, and the course needs torch>=2.11. Nothing was changed."),
    ({"torch": "2.10.0"}, (), "Here torch is 2.10.0, and the course needs torch>=2.11."),
    ({"torch": "2.12.0", "helper": "0.9"}, (), "helper is 0.9, and the course needs helper>=1"),
    ({"torch": "2.12.0"}, ("mroe",), "There is no group mroe: there are kernel, more."),
]


@pytest.mark.parametrize(("packages", "groups", "says"), REFUSED)
def test_environment_that_will_not_do_is_refused_and_not_changed(packages, groups, says, tmp_path):
    host = Host(tmp_path, **packages)
    done = host.run(*groups)
    assert (done.returncode, says in done.stderr) == (1, True), done.stderr
    assert host.packages() == packages
