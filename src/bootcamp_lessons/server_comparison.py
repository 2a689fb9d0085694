"""Lesson 11: which server for what, as of November 2026, and what each is missing.

Sources: each project's own documentation and releases; TorchServe's repository, archived on GitHub
in August 2025; what lesson 11 measures of Triton.
"""

AS_OF = "November 2026"
COLUMNS = ("server", "for", "missing")
SERVERS = (
    ("your own, as here", "one model, full control, learning", "all that you do not write"),
    (
        "Triton",
        "many models and formats on GPUs; batching, versions, metrics",
        "checks of requests, repair of dead instances; most examples for its PyTorch backend load "
        "TorchScript, which torch has deprecated",
    ),
    (
        "vLLM, SGLang, TensorRT-LLM",
        "language models: continuous batching, a KV cache in pages",
        "other kinds of models",
    ),
    (
        "ONNX Runtime, OpenVINO",
        "CPUs, GPUs and small devices, as a library in your program",
        "queue and instances, unless OpenVINO Model Server is around it",
    ),
    (
        "LitServe, BentoML, Ray Serve",
        "Python around a model; batches and replicas are there",
        "the speed of a front end in C++",
    ),
    (
        "KServe",
        "any of these on Kubernetes: routing, scaling, canaries",
        "a way without Kubernetes",
    ),
    ("TorchServe", "nothing new: archived in August 2025", "maintenance"),
)
ROWS = [dict(zip(COLUMNS, row, strict=True)) for row in SERVERS]
