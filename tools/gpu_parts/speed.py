"""Parts `speed_small`, `speed_medium` and `roofline`: lessons 02 and 02b on a real GPU."""

from functools import partial

import torch

from bootcamp.train import benchmark
from bootcamp.train.step_clock import Clock
from gpu_parts.loops import Trainer, Way
from gpu_parts.session import Session

WAYS = {
    "float32": Way(),
    "TF32": Way(tf32=True),
    "bf16 autocast": Way(autocast="bfloat16"),
    "fp16 and scaler": Way(autocast="float16"),
    "bf16, fused optimizer": Way(autocast="bfloat16", fused=True),
    "bf16, activation checkpointing": Way(autocast="bfloat16", checkpointed=True),
    "bf16, compile": Way(autocast="bfloat16", compiled=True),
    "bf16, compile, fused optimizer": Way(autocast="bfloat16", compiled=True, fused=True),
}
BATCH = {"small": 16, "medium": 8}
TRACED_NAMES = 15
LEFT_BYTES = 64 << 20  # workspaces of libraries


def small(session: Session) -> None:
    """Every way at GPT-2's smaller size, batches up to the end of memory, one step looked into."""
    _ways(session, "small")
    session.measure("batches", partial(_batches, session, "small"), 60)
    session.measure("traced step", partial(_traced, session, "small"), 30)
    session.measure("asynchronous", partial(_asynchronous, session, "small"), 20)


def medium(session: Session) -> None:
    """Every way at GPT-2 medium; in a rehearsal, where all sizes are one, only the first."""
    _ways(session, "medium", session.device.choose(len(WAYS), 1))


def _ways(session: Session, size: str, count: int = len(WAYS)) -> None:
    found = session.content["found"].setdefault("ways", [])
    for name, way in list(WAYS.items())[:count]:
        row = session.measure(
            name, partial(_way, session, size, way), seconds=120 if way.compiled else 20
        )
        if row:  # one table for all ways, instead of an entry for each
            found.append({"way": name, **session.content["found"].pop(name)})
            session.write()


def _way(session: Session, size: str, way: Way) -> dict:
    device = session.device
    batch = device.choose(BATCH[size], 2)
    torch._dynamo.reset()  # what an earlier way has compiled would keep its memory
    trainer = Trainer(device, way, batch, device.shape(size))
    speed = trainer.speed(device.choose(15, 2), device.choose(5, 1))
    return speed | trainer.memory()


def _batches(session: Session, size: str) -> dict:
    """Batches twice as large each time, until the memory is used up; then a small one again."""
    device, rows, ended = session.device, [], None
    way = Way(autocast="bfloat16", fused=True)
    before, batch = device.allocated_bytes(), device.choose(4, 16)
    with device.little_memory():
        while ended is None and batch < 1 << 20:
            device.reset_peak()
            try:
                rows.append(Trainer(device, way, batch, device.shape(size)).speed(3, 1))
                rows[-1]["peak_bytes"] = device.peak_bytes()
            except Exception as error:
                if not device.is_out_of_memory(error):
                    raise
                ended = {"batch": batch, "error": f"{type(error).__name__}: {error}"}
            device.forget()
            batch *= 2
    after = device.allocated_bytes()
    again = Trainer(device, way, rows[0]["batch"], device.shape(size)).speed(3, 1)
    if not ended:
        raise RuntimeError(f"memory was not used up by a batch of {batch // 2}")
    if before is not None and after > before + LEFT_BYTES:
        raise RuntimeError(f"{after - before} bytes were still allocated after out of memory")
    return {"rows": rows, "out of memory": ended, "allocated after it": after, "then": again}


def _traced(session: Session, size: str) -> dict:
    """Which kernels (on the CPU: operators) one step was, by the time that they took."""
    device = session.device
    batch = device.choose(BATCH[size], 2)
    trainer = Trainer(device, Way(autocast="bfloat16"), batch, device.shape(size))
    trainer.speed(1, 2)
    with torch.profiler.profile(activities=device.activities()) as profile:
        seconds = device.seconds_each(trainer.step, 1, warm=0)
    on_device = [e for e in profile.key_averages() if device.kind == "cpu" or _is_kernel(e)]
    rows = [
        {"name": e.key[:120], "calls": e.count, "seconds": device.traced_seconds(e)}
        for e in on_device
    ]
    rows.sort(key=lambda row: -row["seconds"])
    busy = sum(row["seconds"] for row in rows)
    kernels = sum(row["calls"] for row in rows)
    found = {"seconds": seconds, "busy_seconds": busy, "kernels": kernels}
    return found | {"longest": rows[:TRACED_NAMES]}


def _is_kernel(event) -> bool:
    of_script = getattr(event, "is_user_annotation", False)
    return "cuda" in str(event.device_type).lower() and not of_script


def _asynchronous(session: Session, size: str) -> dict:
    """What a clock around a step says without waiting for the GPU, with it, and by events."""
    device = session.device
    batch = device.choose(BATCH[size], 2)
    trainer = Trainer(device, Way(autocast="bfloat16", fused=True), batch, device.shape(size))
    trainer.speed(1, 2)
    clock, wall = Clock(torch.device(device.kind)), Clock(torch.device("cpu"))
    found = {}
    for name, waits in (("returned_seconds", False), ("synchronised_seconds", True)):
        device.wait()
        wall.begin()
        clock.begin()
        trainer.step()
        event = clock.end()
        if waits:
            device.wait()
        found[name] = wall.end().get()
        device.wait()
        found[f"event_seconds, {name.partition('_')[0]}"] = event.get()
    return found


def roofline(session: Session) -> None:
    """The roof of this GPU and a GPT's operations below it; copies to and from it."""
    device = session.device
    size, batch = device.choose(("small", 32), ("tiny", 2))
    for dtype in ("float32", "bfloat16"):
        measure = partial(benchmark.measure, device.kind, dtype, size, batch)
        session.measure(f"operations, {dtype}", measure, 60)
    session.measure("matrix products", partial(_matrix_products, session), 30)
    session.measure("copies", partial(_copies, session), 60)


def _matrix_products(session: Session) -> list[dict]:
    device, rows = session.device, []
    for dtype in ("float32", "tf32", "bfloat16", "float16"):
        with device.tf32(dtype == "tf32"):
            kind = "float32" if dtype == "tf32" else dtype
            reached = benchmark.measure_flops_per_second(device.kind, kind)
        peak = device.published_peak(dtype)
        row = {"format": dtype, "flops_per_second": reached, "published": peak}
        rows.append(row | {"share": reached / peak if peak else None})
    return rows


def _copies(session: Session) -> list[dict]:
    """Bytes per second from pageable and from pinned memory, both ways, and on the device."""
    device, rows = session.device, []
    for exponent in device.choose((16, 20, 24, 28, 30), (16,)):
        there = torch.empty(1 << exponent, dtype=torch.uint8, device=device.kind)
        other = torch.empty_like(there)
        pageable = torch.zeros(1 << exponent, dtype=torch.uint8)
        row = {"bytes": 1 << exponent}
        for kind, here in (("pageable", pageable), ("pinned", device.pinned(pageable))):
            to = partial(there.copy_, here, non_blocking=True)
            back = partial(here.copy_, there, non_blocking=True)
            times = device.choose(max(3, min(100, (1 << 30) >> exponent)), 2)
            row[f"{kind}, to the device"] = (1 << exponent) / device.seconds_each(to, times)
            row[f"{kind}, back"] = (1 << exponent) / device.seconds_each(back, times)
        within = device.seconds_each(partial(other.copy_, there), device.choose(50, 2))
        rows.append(row | {"within, read and written": 2 * (1 << exponent) / within})
    return rows
