"""python src/snippets/horovod_mpi.py --steps 12 --global-batch 32

The Horovod script on two ranks that MPI starts: `mpirun -np 2 python src/_train_horovod.py`. Where
there is no MPI, or Horovod was built without it, this says so.
"""

import os
import shutil
import sys
from pathlib import Path


def has_mpi():
    if not shutil.which("mpirun"):
        return False
    import horovod.torch as hvd

    return hvd.mpi_built()


if not has_mpi():
    print("No MPI here: install Open MPI (mpirun and mpicc), then run make horovod.")
    sys.exit()
# Open MPI starts nothing as root unless it is told so twice, and binds each rank to one core.
os.environ |= dict.fromkeys(("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"), "1")
mpirun = ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", "2", sys.executable]
script = Path(__file__).parents[1] / "_train_horovod.py"
os.execvp("mpirun", [*mpirun, str(script), *sys.argv[1:]])
