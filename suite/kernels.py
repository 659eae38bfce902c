"""The operators, which lie in `kernels/` at the top of a checkout and in `suite/shipped/kernels` of a wheel.

That folder is no package of its own: the top-level name `kernels` belongs to another project on PyPI, which
`transformers` looks for, also in the working folder. As submodules of this module its files are imported as
`suite.kernels.registry`, `suite.kernels.attention` and so on.
"""

from suite.resources import resource_dir

__path__ = [str(resource_dir("kernels"))]
