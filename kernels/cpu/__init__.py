"""Kernels for processors, in C++: compiled once for each instruction set (`build`), opened where they run (`library`).

They need nothing of torch or Python, and an op keeps its signature: `paged_attention/cpp.py` and others call them.
"""
