"""Sampling the next token of each sequence from its logits.

What a row may sample, and with which probability, is the same for every backend:

1. Penalties change the logits of tokens seen before, which stay finite; then a row's biases are added to single logits.
   Forbidden tokens, and those that a row's grammar does not allow, become -inf. Whether a row is finite is tested on
   the model's own logits before that, so that no request can make its model look damaged.
2. Temperature 0 takes the largest logit; of equal ones that with the lowest id. Otherwise a token weighs
   exp((logit - largest) / temperature).
3. top-k keeps the tokens whose logit is at least the k-th largest; all of those that equal it.
4. top-p keeps, of these, the tokens for which the share of all strictly larger ones is less than p: the smallest set of
   most likely tokens that holds at least p, with all that equal its least likely one.
5. min-p keeps, of these, the tokens that weigh at least p times what the heaviest weighs.
6. The sampled token is the first, in the order of the vocabulary, at which the running sum of the weights kept exceeds
   `uniform` times their total.

Equal logits are thus kept or dropped together, which a search for a threshold can do without sorting. Sums are rounded
differently by each backend, and by torch on a GPU perhaps in each call: a uniform number within about 1e-6 of a
boundary between two tokens may sample either of them. A token e^32 times less likely than the best one may be taken for
one that is never sampled.

In Triton, and in torch on a CPU, a row's token is a function of its own logits, parameters and uniform number: the
rows beside it have no part in it. The logits are not promised here: a model's products may be rounded differently in
another batch, and a row whose logits differ by that may sample another token.
"""
