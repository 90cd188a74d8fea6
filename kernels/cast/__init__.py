"""Compiling every declared variant for one architecture, on a machine that needs no GPU, and what comes of it.

A cast is a folder: `manifest.json`, `triton/<key>/...` (a kernel or a host stub each) and, where FlashInfer is
installed, `flashinfer/<module>/<module>.so`. `plan.py` says what belongs into it, `build.py` makes it, `check.py`
judges it without a GPU and without Triton, and `kernels/seal.py` runs from it.
"""
