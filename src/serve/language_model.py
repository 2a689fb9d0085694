"""python src/serve/language_model.py

Serve the course's GPT as language models are served, in small. Requests for text join and leave a
batch at every step (Orca, Yu et al., OSDI 2022); keys and values lie in blocks that are taken as
needed (PagedAttention, Kwon et al., arXiv:2309.06180), and that prompts with the same beginning
share; a smaller model guesses bytes, which the large one checks in one pass (speculative decoding,
Leviathan et al., arXiv:2211.17192). None of it changes a byte of any text. Prints a line of JSON
for each way to serve.
"""

import json
import random
import time
from collections import Counter, deque
from dataclasses import dataclass, field

import numpy
import torch
from torch import nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

from bootcamp import corpus
from bootcamp.train.models import gpt

BLOCK, PLACES, GUESSES = 8, 8, 4
REQUESTS, PREFACE, PROMPT, LONGEST = 48, 40, 56, 96  # bytes; PREFACE: with which all prompts begin
ROOM = 1 + PLACES * ((PROMPT + LONGEST + GUESSES + BLOCK - 1) // BLOCK)  # blocks, one for padding


@dataclass(eq=False)  # two with the same prompt differ
class Request:
    """A request for `length` bytes behind a prompt; its server does not know how many."""

    prompt: list[int]
    length: int
    due: float = 0.0  # in seconds, as `seconds`: when each byte of the text was there
    text: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    table: list[int] = field(default_factory=list)  # the blocks that hold its keys and values
    kept: int = 0  # of how many bytes they hold them

    @property
    def ids(self) -> list[int]:
        return self.prompt + self.text


def read(model, cache, batch, guesses=None):
    """Read of each text what the cache lacks: a prompt, the newest byte, guesses behind it.

    Returns a list for each: the likeliest byte behind every byte that was read.
    """
    texts = [one.ids + more for one, more in zip(batch, guesses or [[]] * len(batch), strict=True)]
    new = [text[one.kept :] for one, text in zip(batch, texts, strict=True)]
    ids, tables = pad(new), pad([one.table for one in batch])
    own = torch.arange(ids.shape[1]) < torch.tensor([[len(row)] for row in new])  # not padding
    position = (torch.tensor([[one.kept] for one in batch]) + torch.arange(ids.shape[1])) * own
    slot = tables.gather(1, position // BLOCK) * BLOCK + position % BLOCK
    slot = slot * own  # the keys and values of padding go to block 0, which is nobody's
    sees = torch.arange(tables.shape[1] * BLOCK) <= position[:, None, :, None]
    embedding, *blocks, head = model
    x = embedding.byte(ids) + embedding.position(position)
    for block, keys, values in zip(blocks, cache.keys, cache.values, strict=True):
        attention, normed = block.attention, block.attention_norm(x)
        query, key, value = (
            projection(normed).unflatten(-1, (-1, x.shape[-1] // attention.heads))
            for projection in (attention.query, attention.key, attention.value)
        )
        keys.flatten(0, 1)[slot], values.flatten(0, 1)[slot] = key, value
        gathered = (each[tables].flatten(1, 2).transpose(1, 2) for each in (keys, values))
        mixed = scaled_dot_product_attention(query.transpose(1, 2), *gathered, attn_mask=sees)
        x = x + attention.out(mixed.transpose(1, 2).flatten(2))
        x = x + block.down(gelu(block.up(block.mlp_norm(x))))
    best = head(x).argmax(dim=-1).tolist()
    return [row[: len(unread)] for row, unread in zip(best, new, strict=True)]


def pad(rows):
    widest = max(map(len, rows))
    return torch.tensor([row + [0] * (widest - len(row)) for row in rows])


class Cache:
    """Keys and values in blocks (count, BLOCK, heads, width of a head) for each layer.

    users: how many texts hold a block. shared: the block that holds a piece of prompt, by the hash
    of the piece and of all before it; a free block keeps its piece until it is taken anew.
    """

    def __init__(self, model, count):
        _, *blocks, _ = model
        shape = count, BLOCK, blocks[0].attention.kv_heads, -1
        zeros = torch.zeros(count, BLOCK * blocks[0].attention.key.out_features)
        zeros = zeros.to(blocks[0].attention.key.weight.dtype)
        self.keys = [zeros.clone().view(shape) for _ in blocks]
        self.values = [zeros.clone().view(shape) for _ in blocks]
        self.free, self.users = deque(range(1, count)), Counter()
        self.shared, self.hashes = {}, {}

    def hold(self, request, length):
        """Take blocks for so many bytes of a request's text; whether there were enough."""
        while len(request.table) * BLOCK < length:
            if not self.free:
                return False
            block = self.free.popleft()
            self.shared.pop(self.hashes.pop(block, None), None)
            self.users[block] = 1
            request.table.append(block)
        return True

    def release(self, request):
        for block in reversed(request.table):  # the end of a prompt is overwritten first
            self.users[block] -= 1
            if not self.users[block]:
                self.free.append(block)
        request.table, request.kept = [], 0

    def find(self, request):
        """Begin a request's table with blocks that hold its prompt's beginning already."""
        for piece, end in pieces(request.prompt[:-1]):  # the last byte is read, to choose the next
            if piece not in self.shared:
                break
            block = self.shared[piece]
            if not self.users[block]:
                self.free.remove(block)
            self.users[block] += 1
            request.table.append(block)
            request.kept = end

    def offer(self, request):
        for (piece, _), block in zip(pieces(request.prompt), request.table, strict=False):
            if piece not in self.shared:
                self.shared[piece], self.hashes[block] = block, piece


def pieces(prompt):
    """Cut a prompt into full blocks, each with a hash of all bytes up to its end."""
    piece = 0
    for end in range(BLOCK, len(prompt) + 1, BLOCK):
        piece = hash((piece, *prompt[end - BLOCK : end]))
        yield piece, end


class Draft:
    """A smaller model with a cache of its own, which guesses the next bytes of texts."""

    def __init__(self, model):
        self.model, self.cache, self.own = model, Cache(model, ROOM), {}

    def guess(self, batch):
        for key in self.own.keys() - set(batch):  # complete, or put back
            self.cache.release(self.own.pop(key))
        mine = [self.own.setdefault(one, Request(one.prompt, 0)) for one in batch]
        guesses = [[] for _ in batch]
        for _ in range(GUESSES):
            for each, one, more in zip(mine, batch, guesses, strict=True):
                # what was guessed wrongly is not kept
                each.text, each.kept = one.text + more, min(each.kept, len(one.ids + more) - 1)
                self.cache.hold(each, len(each.ids))
            found = read(self.model, self.cache, mine)
            for each, more, best in zip(mine, guesses, found, strict=True):
                each.kept = len(each.ids)
                more.append(best[-1])
        return guesses


def accept(guesses, best):
    """Return the bytes that the large model would choose: right guesses, and one of its own.

    best: the likeliest byte behind the text, and behind each guess.
    """
    right = 0
    while right < len(guesses) and guesses[right] == best[right]:
        right += 1
    return best[: right + 1]


@torch.inference_mode()
def serve(model, requests, continuous=True, blocks=None, reserve=0, share=False, draft=None):
    """Answer all requests, and count.

    blocks: of the cache, enough for any request, by default for all places. reserve: bytes for
    which a request takes blocks at once. The clock is this thread's CPU time; while there is
    nothing to do, it jumps.
    """
    cache, count = Cache(model, blocks or ROOM), Counter()
    waiting, running, began = deque(requests), [], time.thread_time()
    ahead = GUESSES if draft else 0
    while waiting or running:
        # 1. Requests that have come take free places: at once, or only when all places are free
        now = time.thread_time() - began
        if continuous or not running:
            while waiting and waiting[0].due <= now and len(running) < PLACES:
                if share:
                    cache.find(waiting[0])
                if not cache.hold(waiting[0], max(reserve, len(waiting[0].ids))):
                    cache.release(waiting[0])
                    break
                running.append(waiting.popleft())
        if not running:
            began -= waiting[0].due - now  # the clock jumps
            continue
        # 2. Each gets blocks for what comes next; if there are none, the last one is put back
        for one in list(running):
            while one in running and not cache.hold(one, len(one.ids) + ahead):
                cache.release(running[-1])
                waiting.appendleft(running.pop())
                count["put back"] += 1
        # 3. Newcomers read their prompt (prefill), the others their newest byte (decode)
        unread = [one for one in running if len(one.ids) - one.kept > 1]
        others = [one for one in running if one not in unread]
        if unread:
            count["read in prefills"] += sum(len(one.ids) - one.kept for one in unread)
            for one, best in zip(unread, read(model, cache, unread), strict=True):
                add(one, best[-1:], began)
                if share:
                    cache.offer(one)
        if others:
            guesses = draft.guess(others) if draft else [[]] * len(others)
            found = read(model, cache, others, guesses)
            for one, guessed, best in zip(others, guesses, found, strict=True):
                more = accept(guessed, best)
                add(one, more, began)
                count["text passes"] += 1
                count["bytes of them"] += len(more)
            count["decode steps"] += 1
        count["held"] += sum(len(one.table) * BLOCK for one in running)
        count["filled"] += sum(one.kept for one in running)
        # 4. Complete texts leave
        for one in [one for one in running if len(one.text) == one.length]:
            running.remove(one)
            cache.release(one)
    return count


def add(request, more, began):
    request.text = (request.text + more)[: request.length]
    request.kept = len(request.ids) - 1  # the newest byte is not read yet
    new = len(request.text) - len(request.seconds)
    request.seconds += [time.thread_time() - began] * new


def make_requests(per_second=float("inf"), seed=0):
    """Make prompts that begin alike, whose texts are mostly short and sometimes long.

    They are due at random times, as of many people: a Poisson process.
    """
    draw, written, due, requests = random.Random(seed), corpus.text(), 0.0, []
    for _ in range(REQUESTS):
        due += draw.expovariate(1) / per_second
        start = draw.randrange(len(written) - PROMPT)
        prompt = written[:PREFACE] + written[start : start + draw.randint(1, PROMPT - PREFACE)]
        length = min(LONGEST, 1 + int(draw.lognormvariate(2, 1.2)))
        requests.append(Request(list(prompt), length, due))
    return requests


@torch.inference_mode()
def is_the_models(model, one):
    """Whether a complete text is what the model alone chooses, byte for byte, without a cache."""
    best = model(torch.tensor([one.ids]))[0, len(one.prompt) - 1 : -1].argmax(dim=-1)
    return len(one.text) == one.length and best.tolist() == one.text


def build(layers, steps=0, seed=0):
    """Build a GPT in float64, where rounding does not decide between two bytes; train it a bit."""
    torch.manual_seed(seed)
    stages = gpt.stages(layers, 64, 4, PROMPT + LONGEST + GUESSES)
    model = nn.Sequential(*(make() for _, make in stages))
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-3)
    written = torch.tensor(list(corpus.text()[:200_000]))
    for _ in range(steps):
        starts = torch.randint(len(written) - PROMPT, (8, 1))
        ids = written[starts + torch.arange(PROMPT)]
        cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.double().eval()


def measure(model, per_second=float("inf"), **how):
    """Serve requests in an open loop. how: as serve's. Returns a row of times and counts.

    waits: of each request for its first byte, in seconds.
    """
    requests = make_requests(per_second)
    row = {"requests": len(requests), "bytes": sum(one.length for one in requests)}
    row |= serve(model, requests, **how)
    assert all(is_the_models(model, one) for one in requests), "another text than the model's"
    row["waits"] = first = [one.seconds[0] - one.due for one in requests]
    further = [
        (one.seconds[-1] - one.seconds[0]) / (one.length - 1) for one in requests if one.length > 1
    ]
    row["requests/s"] = len(requests) / max(one.seconds[-1] for one in requests)
    row |= {f"first byte, ms, p{each}": 1e3 * numpy.percentile(first, each) for each in (50, 99)}
    return row | {"ms for each further byte, p50": 1e3 * numpy.percentile(further, 50)}


def main():
    large, small = build(layers=3, steps=100), build(layers=1, steps=100)
    rate = 0.7 * measure(large)["requests/s"]  # of what continuous batching can answer
    reserved = {"reserve": PROMPT + LONGEST}
    ways = {
        "static batching": {"per_second": rate, "continuous": False},
        "continuous batching": {"per_second": rate},
        "all at once": {},
        "blocks taken as needed, a third of them": {"blocks": ROOM // 3},
        "room reserved, a third of it": {"blocks": ROOM // 3, **reserved},
        "shared prefixes": {"share": True},
        "a draft": {"draft": Draft(small)},
    }
    for way, how in ways.items():
        row = {"way": way, **measure(large, **how)}
        print(json.dumps({name: number for name, number in row.items() if name != "waits"}))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
