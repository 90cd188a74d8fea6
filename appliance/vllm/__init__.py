"""All that is vLLM's:

- which one is installed: `installation`, `program`, `source` (what its source says);
- what a model takes: `attention_kinds` (the KV cache that a config.json implies, also of models that only vLLM runs),
  `footprint` (an estimate of the rest: weights, activations, CUDA graphs) and `memory` (the plan made of both);
- its command line: `plan`, `settings` and `backends` (flags, a row each), `command_line`;
- its launch: `launch`, `deadlines`, `log_phases`, `selftest`;
- while it serves: `client` and `http` (requests passed on), `figures` (its metrics), `own_questions` (our own probes).
"""
