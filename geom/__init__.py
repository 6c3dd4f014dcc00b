"""The geometry of weights: continuity probes and manifold optimizers in JAX.

Every public name has one import path, the module that defines it:
`from geom.probes.continuity import adjacent_cosines`. Packages re-export
nothing.
"""

__version__ = "0.1.0"
