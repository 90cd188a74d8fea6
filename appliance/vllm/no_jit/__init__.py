"""`jit: forbid`: whatever would be compiled while vLLM runs ends the launch, and is named. `hook.py` runs in each of
vLLM's Python processes and refuses; `watch.py`, in ours, hears of it, and sees compilers that no Python started."""
