"""Lesson 09b: what the other hosts hear of a failure, and how a job is told of its end."""

from bootcamp.drawing.canvas import arrow, arrows, box, boxes, diagram, label
from bootcamp.drawing.palette import BLUE, LIGHT, VERMILLION
from bootcamp.drawing.style import FOOT


@diagram("What the other hosts hear", 4.4)
def what_is_heard(axes) -> None:
    """Three failures of host1, and what host0 hears. A process dies: host1's kernel closes its
    connections, and host0 hears of it at once, "closed by peer". The host loses power or its
    network: nobody says anything, and host0 waits for its time-out. A rank waits for something
    else: its connections stand, and host0 waits for its time-out as well.
    """
    for y, title, there, heard in (
        (30, "a process dies", "the kernel lives, and\ncloses its connections", "closed by peer"),
        (16, "a host goes silent", "no power, no network:\nnobody closes anything", "nothing"),
        (2, "a rank hangs", "its connections stand,\nit sends nothing", "nothing"),
    ):
        label(axes, 0, y + 5.5, title, at="left", bold=True)
        box(axes, 72, y, 28, 11, f"host1\n{there}", colour=LIGHT.red, size=FOOT)
        waits, colour, ink = ("waits for its time-out", LIGHT.orange, VERMILLION)
        if heard != "nothing":
            waits, colour, ink = "hears of it at once", LIGHT.green, BLUE
        box(axes, 27, y, 22, 11, f"host0\n{waits}", colour=colour, size=FOOT)
        arrow(axes, (71.5, y + 5), (49.5, y + 5), colour=ink)
        label(axes, 60.5, y + 8, heard, ink=ink, bold=True, size=FOOT)


@diagram("A job that is told of its end", 3.4)
def told_in_time(axes) -> None:
    """A time line. Slurm sends USR1 to the shell of the job file a minute before the time limit.
    The shell puts down a file. After their step all ranks agree that it is there, save, and end.
    The shell asks Slurm to queue the job again. Later it starts on other hosts, and goes on at the
    step that was saved.
    """
    steps = (
        (0, 18, "Slurm\nUSR1 to the shell,\na minute before\nthe limit", LIGHT.orange),
        (20.5, 18, "job file\nputs down a\nstop file", LIGHT.blue),
        (41, 18, "ranks\nagree after a step,\nsave, end", LIGHT.green),
        (61.5, 18, "job file\nscontrol requeue", LIGHT.blue),
        (82, 18, "later, anywhere\n--resume: on with\nthe step saved", LIGHT.green),
    )
    boxes(axes, 10, 16, *steps, size=FOOT)
    arrows(axes, *((x - 2.3, 18, x - 0.2, 18) for x, *_ in steps[1:]))
    label(axes, 50, 4, "KILL comes KillWait seconds after TERM: too late to save", ink=VERMILLION)
