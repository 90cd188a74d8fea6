"""Which experts each token goes to, and with what weight."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Routing:
    """How experts are chosen.

    Scores are the softmax or the sigmoid of the router's logits, or the root of their softplus. The `top_k` largest
    are chosen, by score plus bias where there is a bias; with groups, only from the `top_groups` best of `num_groups`
    groups of neighbouring experts. The weights are the scores (without bias), divided by their sum if `renormalise`,
    times `scale`. `num_groups` 0 and 1 both mean no groups: MiniMax-M2's configuration says 0 or nothing (the n_group
    case).
    """

    top_k: int
    scoring: str = "softmax"  # or "sigmoid", "sqrtsoftplus"
    renormalise: bool = True
    num_groups: int = 0
    top_groups: int = 0
    scale: float = 1.0

    @property
    def grouped(self) -> bool:
        return self.num_groups > 1
