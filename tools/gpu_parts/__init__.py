"""The parts of tools/gpu_record.py, a module each: what a real GPU is asked.

`device` has all that only CUDA has, `loops` the training loops that are timed, `session` writes
down what a part finds. Nothing but torch, numpy and this course's own package;
`without_psutil` stands in for psutil where that is not installed.
"""
