"""python src/serve/export.py CHECKPOINT FOLDER [--formats safetensors,pt2,aoti,onnx,ts]

From a checkpoint of --save to files that a server loads, each held against the model it came from.

Every file takes any batch, and any length up to the model's context. What this machine lacks the
means to export is named and left out; a file that is not the model ends the script with exit
code 1. bootcamp/serving/artifacts.py has the formats, and reads them.
"""

import argparse
import importlib.util
import json
import logging
import os
import sys
import tempfile
import time
import warnings
from pathlib import Path

import consolidate
import torch

from bootcamp import machine, units
from bootcamp.files import write_whole
from bootcamp.serving import artifacts, protocol
from bootcamp.train.models import NextByte
from bootcamp.train.process_end import ConfigError, refuse

FORMATS = ("safetensors", "pt2", "aoti", "onnx", "ts")
ONNX = ("onnx", "onnxscript", "onnxruntime")
LARGEST_BATCH = 1024
LARGEST_MESSAGE = 2**31 - 2**24  # bytes of parameters: 16 MiB for the graph

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("checkpoint", type=Path, help="a file or a folder that --save has written")
parser.add_argument("folder", type=Path, help="for the files, made if it is not there")
parser.add_argument("--formats", default=",".join(FORMATS), help="which of them")
args = parser.parse_args()
chosen = args.formats.split(",")
if unknown := sorted(set(chosen) - set(FORMATS)):
    refuse(f"--formats {unknown[0]}: no such format. Choose from {','.join(FORMATS)}.")

has = importlib.util.find_spec
lacking = {
    "aoti": machine.find_missing_for_inductor(torch.__path__[0]),
    "onnx": None if all(map(has, ONNX)) else f"one of the packages {', '.join(ONNX)}",
}
for wanted in [name for name in chosen if lacking.get(name)]:
    print(f"{wanted} is left out: this machine lacks {lacking[wanted]}.")
    chosen.remove(wanted)
if not has("safetensors"):
    refuse("the package safetensors is not installed: pip install safetensors.")

# What torch says about its own inside: that operators of torchvision can't be exported without it,
# that an LSTM keeps its weights in a list too, and checks its input's shape
logging.getLogger("torch.onnx").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", message="The tensor attributes .*_flat_weights")
warnings.filterwarnings("ignore", message=".*treespec, LeafSpec")
of_lstm = {"category": torch.jit.TracerWarning, "module": "torch.nn.modules.rnn"}
warnings.filterwarnings("ignore", **of_lstm)

# 1. Parameters: one file, whatever number of ranks has saved them; the optimizer is left behind
started = time.perf_counter()
parameters = args.folder / "parameters.safetensors"
try:
    info = consolidate.write(args.checkpoint, parameters)
except ConfigError as error:
    refuse(str(error))
place = {name: args.folder / f"{info.model}.{name}" for name in FORMATS}
place["aoti"] = args.folder / f"{info.model}.aoti.pt2"
os.replace(parameters, place["safetensors"])
seconds = {"safetensors": time.perf_counter() - started}
if "onnx" in chosen and place["safetensors"].stat().st_size > LARGEST_MESSAGE:
    print("onnx is left out: a protocol buffer holds 2 GiB at most, this model is larger.")
    chosen.remove("onnx")

# 2. What is exported: the model for inference, without dropout, that answers for the last byte
model = artifacts.rebuild(place["safetensors"])
fixed_length = info.context if info.model == "striped-lstm" else None  # see NextByte
served = NextByte(model, pad_to=fixed_length).eval()
example = torch.zeros(2, info.context // 2, dtype=torch.int64)  # 1 would be taken for a constant
settings = {artifacts.SETTINGS: json.dumps(info.as_texts())}

# 3. torch.export: a graph in which batch and length are symbols
started = time.perf_counter()
batch = torch.export.Dim("batch", max=LARGEST_BATCH)
length = torch.export.Dim("length", max=info.context)
with torch.no_grad():
    graph = torch.export.export(served, (example,), dynamic_shapes=({0: batch, 1: length},))
graph_seconds = time.perf_counter() - started
if "pt2" in chosen:
    started = time.perf_counter()
    write_whole(place["pt2"], lambda file: torch.export.save(graph, file, extra_files=settings))
    seconds["pt2"] = graph_seconds + time.perf_counter() - started

# 4. AOTInductor: the graph as C++, compiled for this machine's CPU
if "aoti" in chosen:
    started = time.perf_counter()
    options = {
        "aot_inductor.metadata": info.as_texts(),
        "aot_inductor.precompile_headers": False,  # they would stay in a folder of the machine
    }
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
        write_whole(
            place["aoti"],
            lambda file: torch._inductor.aoti_compile_and_package(
                graph, package_path=file, inductor_configs=options
            ),
        )
        del os.environ["TORCHINDUCTOR_CACHE_DIR"]
    seconds["aoti"] = graph_seconds + time.perf_counter() - started

# 5. ONNX: the graph in operators that other runtimes know
if "onnx" in chosen:
    started = time.perf_counter()
    names = {"input_names": [protocol.INPUT], "output_names": [protocol.OUTPUT]}
    program = torch.onnx.export(graph, dynamo=True, verbose=False, **names)
    program.model.metadata_props.update(info.as_texts())
    content = program.model_proto.SerializeToString()
    write_whole(place["onnx"], lambda file: file.write(content))
    seconds["onnx"] = graph_seconds + time.perf_counter() - started

# 6. TorchScript, the format before torch.export: what one call did, its branches fixed
if "ts" in chosen:
    started = time.perf_counter()
    with torch.no_grad():
        trace = torch.jit.trace(served, (example,))
    write_whole(place["ts"], lambda file: torch.jit.save(trace, file, _extra_files=settings))
    seconds["ts"] = time.perf_counter() - started

# 7. Proof: each file is read anew, and gives the scores of the model with the checkpoint's own
# parameters, on shapes that were not exported
model.load_state_dict(consolidate.read(args.checkpoint)[0])


def eager(ids):
    return model(torch.from_numpy(ids))[:, -1].numpy()


wrong = []
for name in [name for name in FORMATS if name in seconds]:
    difference = artifacts.furthest(
        artifacts.compare(artifacts.load(place[name]), eager, info.context)
    )
    size = units.size(place[name].stat().st_size)
    print(f"{place[name].name:<24} {size:>9} {seconds[name]:7.1f} s   {difference:.1e} apart")
    wrong += [place[name].name] if not difference <= artifacts.TOLERANCE else []
for name in wrong:
    (args.folder / name).unlink()  # before anybody serves it
if wrong:
    sys.exit(f"{', '.join(wrong)}: not the model, beyond {artifacts.TOLERANCE:g}")
