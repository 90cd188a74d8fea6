"""Before a sub-layer of manifold-constrained hyper-connections (mHC, Xie et al., 2026, arXiv 2512.24880): one input of
several residual streams, and how they are mixed behind it."""
