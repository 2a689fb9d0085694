"""Displays of a run that goes on: widgets in a notebook, plain lines elsewhere."""

import contextlib
import html
import os
import sys
import time

VARIABLE = "BOOTCAMP_WIDGETS"  # 0: the page shows no widgets, so nothing is one
VIEW = "application/vnd.jupyter.widget-view+json"
SHARED_CORES = "It shared its cores with another run: alone it would have been faster."
HINT = f"(A widget, which this page does not show. %env {VARIABLE}=0 gives texts instead.)"


def load_widgets():
    """Return the library ipywidgets; None where it is missing or BOOTCAMP_WIDGETS=0."""
    if os.environ.get(VARIABLE) != "0":
        with contextlib.suppress(ImportError):
            import ipywidgets

            return ipywidgets
    return None


def show(widget, text: str) -> None:
    """Display a widget. A page that does not know widgets shows the text."""
    from IPython.display import display

    view = {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}
    display({VIEW: view, "text/plain": f"{text}\n{HINT}"}, raw=True)


def make_display(commands: list[str], steps: int, where: str):
    """Make the display of a run: a widget in a notebook's kernel, else lines."""
    text = "\n".join(f"$ {command}" for command in commands) + f"    # {where}"
    if not _can_show_widgets():
        return _Lines(text, steps)
    lines = "<br>".join(f"<code>{html.escape(command)}</code>" for command in commands)
    return _Widget(text, f"{lines} <small>({html.escape(where)})</small>", steps)


def _can_show_widgets() -> bool:
    """Whether this process is a notebook's kernel, not merely one that has loaded its library."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return hasattr(shell, "kernel") and load_widgets() is not None


def make_counter(what: str, until: str):
    """Return a function that shows how far something has come; call it with "" at the end."""
    if not _can_show_widgets():
        return lambda done: None
    label = load_widgets().Label(f"{what}, {until}")
    show(label, label.value)

    def say(done: str) -> None:
        label.value = f"{what}, {until}: {done}" if done else ""
        if not done:
            label.close()

    return say


def _describe_step(row: dict) -> str:
    loss = "-" if row["loss"] is None else f"{row['loss']:.4f}"
    return f"step {row['step'] + 1}, loss {loss}, {row['samples'] / row['seconds']:,.0f} samples/s"


def _describe_end(summary: dict) -> str:
    steps = summary.get("steps", 0)
    if summary["status"] != "ok":
        return f"{summary['status']} after {steps} steps"
    if not steps:
        return "ended"
    loss = "-" if summary["final_loss"] is None else f"{summary['final_loss']:.4f}"
    rate = f"{summary['samples_per_second']['median']:,.0f} samples/s"
    shared = f". {SHARED_CORES}" if summary.get("shared_cores") else ""
    return f"{steps} steps, final loss {loss}, median {rate}{shared}"


class Silent:
    """A display that shows nothing."""

    def step(self, row: dict) -> None: ...

    end = step


class _Lines:
    """One line at the start, at most one a second meanwhile, one at the end."""

    def __init__(self, text: str, steps: int):
        self.steps, self.last = steps, 0.0
        print(text, flush=True)

    def step(self, row: dict) -> None:
        now = time.monotonic()
        if now - self.last >= 1:
            self.last = now
            print(f"  {_describe_step(row)} (of {self.steps} steps)", flush=True)

    def end(self, summary: dict) -> None:
        print(f"  {_describe_end(summary)}", flush=True)


class _Widget:
    """A progress bar with its text, and the command above it for the terminal."""

    def __init__(self, text: str, head: str, steps: int):
        library = load_widgets()
        self.bar = library.IntProgress(max=steps, description="steps")
        self.text = library.HTML("starting")  # which wraps
        row = library.HBox([self.bar, self.text])
        show(library.VBox([library.HTML(head), row]), text)

    def step(self, row: dict) -> None:
        self.bar.value = row["step"] + 1
        self.text.value = _describe_step(row)

    def end(self, summary: dict) -> None:
        self.bar.bar_style = "success" if summary["status"] == "ok" else "danger"
        self.text.value = _describe_end(summary)
