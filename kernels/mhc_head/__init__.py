"""Behind the last layer of manifold-constrained hyper-connections: one hidden state of several residual streams."""
