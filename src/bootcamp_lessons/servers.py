"""Lesson 11: which server for what, as of November 2026, and what each is missing.

Sources: each project's own documentation and releases; TorchServe's repository, archived on GitHub
in August 2025; what lesson 11 measures of Triton.
"""

AS_OF = "November 2026"
ROWS = [
    {
        "server": "your own, as here",
        "for": "one model, full control, learning",
        "missing": "all that you do not write",
    },
    {
        "server": "Triton",
        "for": "many models and formats on GPUs; batching, versions, metrics",
        "missing": "checks of requests, repair of dead instances; most examples for its PyTorch "
        "backend load TorchScript, which torch has deprecated",
    },
    {
        "server": "vLLM, SGLang, TensorRT-LLM",
        "for": "language models: continuous batching, a KV cache in pages",
        "missing": "other kinds of models",
    },
    {
        "server": "ONNX Runtime, OpenVINO",
        "for": "CPUs, GPUs and small devices, as a library in your program",
        "missing": "queue and instances, unless OpenVINO Model Server is around it",
    },
    {
        "server": "LitServe, BentoML, Ray Serve",
        "for": "Python around a model; batches and replicas are there",
        "missing": "the speed of a front end in C++",
    },
    {
        "server": "KServe",
        "for": "any of these on Kubernetes: routing, scaling, canaries",
        "missing": "a way without Kubernetes",
    },
    {
        "server": "TorchServe",
        "for": "nothing new: archived in August 2025",
        "missing": "maintenance",
    },
]
