"""What a reader sees while a run goes on: widgets in a notebook, plain lines elsewhere."""

import os
import sys
import time

VARIABLE = "BOOTCAMP_WIDGETS"  # 0: the page shows no widgets, so nothing is one
VIEW = "application/vnd.jupyter.widget-view+json"
SHARED_CORES = "It shared its cores with another run: alone it would have been faster."
HINT = f"(A widget, which this page does not show. %env {VARIABLE}=0 gives texts instead.)"


def widgets():
    """The library ipywidgets; None where it is missing or BOOTCAMP_WIDGETS=0."""
    if os.environ.get(VARIABLE) == "0":
        return None
    try:
        import ipywidgets
    except ImportError:
        return None
    return ipywidgets


def show(widget, text: str) -> None:
    """Display a widget. A page that does not know widgets shows the text."""
    from IPython.display import display

    view = {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}
    display({VIEW: view, "text/plain": f"{text}\n{HINT}"}, raw=True)


def display(commands: list[str], steps: int, where: str):
    """The display that fits: a widget in a notebook's kernel, else lines.

    commands: those for a terminal, one, or one for each host.
    """
    kind = _Widget if _in_a_notebook() and widgets() else _Lines
    return kind(commands, steps, where)


def _in_a_notebook() -> bool:
    """Whether this process is a notebook's kernel, not merely one that has loaded its library."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return hasattr(shell, "kernel")


def counter(what: str, until: str):
    """A function that shows how far something has come; called with "" when it is done."""
    if not (_in_a_notebook() and widgets()):
        return lambda done: None
    label = widgets().Label(f"{what}, {until}")
    show(label, label.value)

    def say(done: str) -> None:
        label.value = f"{what}, {until}: {done}" if done else ""
        if not done:
            label.close()

    return say


def _command_lines(commands: list[str], where: str) -> str:
    return "\n".join(f"$ {command}" for command in commands) + f"    # {where}"


def _row(row: dict) -> str:
    loss = "-" if row["loss"] is None else f"{row['loss']:.4f}"
    return f"step {row['step'] + 1}, loss {loss}, {row['samples'] / row['seconds']:,.0f} samples/s"


class Silent:
    """A display that shows nothing."""

    def say(self, text: str) -> None:
        pass

    def step(self, row: dict) -> None:
        pass

    def end(self, summary: dict) -> None:
        pass


class _Lines(Silent):
    """One line at the start, at most one a second meanwhile, one at the end."""

    def __init__(self, commands: list[str], steps: int, where: str):
        self.steps, self.last = steps, 0.0
        print(_command_lines(commands, where), flush=True)

    def say(self, text: str) -> None:
        print(text, flush=True)

    def step(self, row: dict) -> None:
        now = time.monotonic()
        if now - self.last >= 1:
            self.last = now
            print(f"  {_row(row)} (of {self.steps} steps)", flush=True)

    def end(self, summary: dict) -> None:
        print(f"  {_ending(summary)}", flush=True)


class _Widget(Silent):
    """A progress bar with its text, and the command above it for the terminal."""

    def __init__(self, commands: list[str], steps: int, where: str):
        import html

        library = widgets()
        lines = "<br>".join(f"<code>{html.escape(command)}</code>" for command in commands)
        head = f"{lines} <small>({html.escape(where)})</small>"
        self.bar = library.IntProgress(max=steps, description="steps")
        self.text = library.Label("starting")
        row = library.HBox([self.bar, self.text])
        show(library.VBox([library.HTML(head), row]), _command_lines(commands, where))

    def say(self, text: str) -> None:
        self.text.value = text

    def step(self, row: dict) -> None:
        self.bar.value = row["step"] + 1
        self.text.value = _row(row)

    def end(self, summary: dict) -> None:
        self.bar.bar_style = "success" if summary["status"] == "ok" else "danger"
        self.text.value = _ending(summary)


def _ending(summary: dict) -> str:
    if summary["status"] != "ok":
        return f"{summary['status']} after {summary.get('steps', 0)} steps"
    if not summary.get("steps"):
        return "ended"
    loss = summary["final_loss"]
    rate = summary["samples_per_second"]["median"]
    loss = "-" if loss is None else f"{loss:.4f}"
    line = f"{summary['steps']} steps, final loss {loss}, median {rate:,.0f} samples/s"
    return f"{line}. {SHARED_CORES}" if summary.get("shared_cores") else line
