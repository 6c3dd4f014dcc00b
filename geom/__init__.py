"""The geometry of weights: probes of continuity, and models to see it in.

Every public name has one import path, the module that defines it:
`from geom.probes.continuity import adjacent_cosines`. Packages re-export
nothing.
"""

import os

# One thread for LAPACK, which is called on many small matrices: with more, its
# threads wait for each other, and an eigh of a stack of 16 takes seconds
# instead of .1 s. OpenBLAS reads this once, when scipy loads it.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

__version__ = "0.1.0"
