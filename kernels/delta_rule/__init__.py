"""The recurrence of gated delta layers (Yang et al., 2024, arXiv 2412.06464).

Each value head keeps a matrix S of keys by values, which token t first lets decay, then corrects at its key:

    S = exp(g_t) S;  S = S + k_t (beta_t (v_t - k_t^T S))^T;  o_t = q_t^T S

A decode does just that. A prefill takes a chunk of tokens at a time: with G_i the sum of g up to token i of a chunk,
and S the state before it, the corrections u_i = beta_i (v_i - k_i^T S_i) solve a unit lower triangular system,

    (I + A) U = diag(beta) V - diag(beta exp(G)) K S,  A_ij = beta_i exp(G_i - G_j) k_i.k_j for j < i,

so that U = U0 - W S, where U0 and W do not depend on the state (the WY representation), and

    O = diag(exp(G)) Q S + P U,  P_ij = exp(G_i - G_j) q_i.k_j for j <= i;  S' = exp(G_C) S + K^T diag(exp(G_C - G)) U.
"""

from typing import Final

CHUNK: Final = 64
"""Tokens of a prefill that the CPU takes together."""

NORM_EPS: Final = 1e-6
"""What is added to the squared length of a query and of a key before they are normalised."""
