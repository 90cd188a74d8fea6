"""Behind a sub-layer of manifold-constrained hyper-connections: its result goes into every residual stream."""
