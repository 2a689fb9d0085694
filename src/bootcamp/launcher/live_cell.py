"""One cell on live ranks: sent, awaited, freed where ranks wait for others (live_ranks.py)."""

import time

from bootcamp.launcher.live_set import POLL_SECONDS, RETURN_SECONDS, LiveRanks, RankRaised

STUCK_SECONDS = 1.0  # so long all ranks that still run must wait in collectives to be freed
MEETING_SECONDS = 15.0  # the same where all are in the same one, and may only be slow
LOOK_SECONDS = 0.1


class Cell:
    """One cell on some ranks: what they were asked, what they have answered, how it ended."""

    def __init__(self, live: LiveRanks, code: str, ranks: list[int]):
        self.live, self.ranks = live, ranks
        self.replies: dict[int, dict] = {}
        self.waited_in: dict[int, str] = {}  # collectives that ranks had to be freed from
        self.began = self._looked = time.monotonic()
        self.pending = live.ask(ranks, "run_cell", code)

    def wait(self) -> None:
        """Until every rank has answered; free those that wait for ranks that do not come."""
        while self.pending:
            self.collect()
            self.live.check_alive()
            now = time.monotonic()
            if self.pending and now - max(self.began + STUCK_SECONDS, self._looked) > LOOK_SECONDS:
                self._looked = now
                self._free_if_stuck()
            time.sleep(POLL_SECONDS)

    def collect(self) -> None:
        """Take the answers that have arrived."""
        for rank in [rank for rank, asked in self.pending.items() if asked.done()]:
            asked = self.pending.pop(rank)
            try:
                self.replies[rank] = asked.get()
            except Exception as error:  # an interrupt between the cell's end and the answer
                self.replies[rank] = {"text": "", "calls": None, "error": _error(error)}
            self.live.calls[rank] = self.replies[rank]["calls"]

    def _free_if_stuck(self) -> None:
        states = {rank: self.live.state(rank) for rank in self.pending}
        where = {(state.get("in"), state.get("calls")) for state in states.values()}
        meet = len(states) == self.live.count and len(where) == 1  # in the same call, however slow
        patience = MEETING_SECONDS if meet else STUCK_SECONDS
        if all(state.get("seconds", 0) > patience for state in states.values()):
            self.waited_in |= {rank: state["in"] for rank, state in states.items()}
            self.live.cut(self.pending)

    def interrupt(self) -> None:
        """Bring every rank out of the cell, out of a collective too."""
        self.waited_in |= dict.fromkeys(self.pending, "the interrupted cell")
        deadline = time.monotonic() + RETURN_SECONDS
        while self.pending and not self.live.why_gone:
            if time.monotonic() > deadline:
                who = _ranks(self.pending)
                self.live.end(f"{who} did not end the interrupted cell in {RETURN_SECONDS} s")
            self.live.cut(self.pending)
            self.live.interrupt(self.pending)
            again = time.monotonic() + 1
            while self.pending and time.monotonic() < again:
                self.collect()
                time.sleep(POLL_SECONDS)

    def repair(self) -> bool:
        """Make the process group anew if the ranks may have lost each other in it; if it did."""
        failed = any(reply["error"] for reply in self.replies.values())
        apart = failed and len(set(self.live.calls.values())) > 1
        if (self.waited_in or apart) and not self.live.why_gone:
            try:
                self.live.meet()
            except TimeoutError as error:
                self.live.end(str(error))
        self.live.check_alive()
        return bool(self.waited_in or apart)

    def text(self) -> str:
        """What the ranks printed and showed, in order of rank."""
        blocks = {rank: self.replies[rank]["text"].rstrip("\n") for rank in sorted(self.replies)}
        return "\n".join(_labelled(rank, text) for rank, text in blocks.items() if text)

    def failure(self, anew: bool) -> RankRaised | None:
        """The error of a cell that a rank did not end well in; None if all did."""
        errors = {r: reply["error"] for r, reply in self.replies.items() if reply["error"]}
        freed = {r: errors[r]["lost"] for r in sorted(errors) if errors[r]["lost"]}
        raised: dict[tuple, list[int]] = {}
        for rank in sorted(set(errors) - set(freed)):
            raised.setdefault((errors[rank]["name"], errors[rank]["message"]), []).append(rank)
        if not errors:
            return None
        parts = [f"{_ranks(who)} raised {name}: {said}" for (name, said), who in raised.items()]
        parts += [self._who_waited(freed, bool(raised))] if freed else []
        parts += ["All ranks met in a new process group; their variables are kept."] if anew else []
        traces = [f"{_ranks(who)}:\n{errors[who[0]]['traceback']}" for who in raised.values()]
        return RankRaised("\n\n".join(["\n".join(parts), *traces]))

    def _who_waited(self, freed: dict[int, str], somebody_raised: bool) -> str:
        calls = {name: [rank for rank in freed if freed[rank] == name] for name in freed.values()}
        where = " and ".join(f"{_ranks(who)} waited in {name}" for name, who in calls.items())
        away = set(range(self.live.count)) - set(freed)
        if len(calls) > 1 or not away:
            return f"{where}. Every rank must call the same collectives in the same order."
        if somebody_raised:
            return f"{where} for what did not come, and had to be freed."
        return f"{where}, but {_ranks(away)} did not come."


def _error(error: BaseException) -> dict:
    name, message = getattr(error, "ename", type(error).__name__), str(error)
    return {"name": name, "message": message, "traceback": message, "lost": None}


def _ranks(ranks) -> str:
    """[0, 2, 3] -> "ranks 0, 2 and 3"."""
    numbers = [str(rank) for rank in sorted(ranks)]
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    return f"ranks {', '.join(numbers[:-1])} and {numbers[-1]}"


def _labelled(rank: int, text: str) -> str:
    """The text of a rank after its number, with further lines set in as far."""
    label = f"rank {rank}: "
    return label + text.replace("\n", "\n" + " " * len(label))
