"""Compiling at run time, and tools for it that are missing or too old: nvcc, ninja, headers, ptxas, DeepGEMM."""

from appliance.diagnosis.cause import Cause

_CAST = "Run from a cast, which compiles nothing, or use an image with "

CAUSES = (
    Cause(
        family="jit-toolchain",
        name="python-headers-missing",
        signs=("python.h",),
        pattern=r"Python\.h['\"]?:? ?(?:no such file|not found|file not found)",
        summary="A kernel build failed: Python.h is missing.",
        fix=_CAST + "the Python headers.",
        command="apt-get install python3-dev",
        line=True,
    ),
    Cause(
        family="jit-toolchain",
        name="nvcc-missing",
        signs=("nvcc", "cuda_home", "cuda_path", "cuda toolkit"),
        pattern=r"nvcc['\"]?:? ?(?:command )?not found|No such file or directory: '[^']{0,200}nvcc'"
        r"|could not find nvcc|nvcc.{0,40}(?:not found|does not exist|is not installed|no such file)|CUDA_(?:HOME"
        r"|PATH).{0,60}(?:not set|undefined|not found|is None)|CUDA toolkit.{0,40}not (?:found|installed)"
        r"|could not find (?:the )?CUDA",
        summary="The engine tried to compile a kernel, and nvcc is missing.",
        fix=_CAST + "the CUDA toolkit and CUDA_HOME set.",
        command="which nvcc; echo $CUDA_HOME",
        line=True,
    ),
    Cause(
        family="jit-toolchain",
        name="ninja-missing",
        signs=("ninja",),
        pattern=r"ninja is required|No such file or directory: '(?:[^']{0,200}/)?ninja'"
        r"|ninja['\"]?:? ?(?:command )?not found|could not find ninja|no module named 'ninja'",
        summary="The engine tried to compile a kernel, and ninja is missing.",
        fix=_CAST + "ninja on its PATH.",
        command="which ninja",
        line=True,
    ),
    Cause(
        family="jit-toolchain",
        name="compiler-missing",
        signs=("failed to find c compiler", "no such file or directory: 'gcc'", "no such file or directory: 'g++'",
               "no such file or directory: 'cc'", "no such file or directory: 'c++'", "gcc: not found",
               "g++: not found", "cc: not found", "c++: not found", "invalidcxxcompiler", "no working c++ compiler",
               "cc1plus", "gcc: command not found", "g++: command not found"),
        summary="The engine tried to compile a kernel, and there is no C or C++ compiler.",
        fix=_CAST + "gcc and g++.",
        command="apt-get install build-essential",
        line=True,
    ),
    Cause(
        family="jit-toolchain",
        name="ptxas-too-old",
        signs=("ptxas", "compute_", "gpu-name", "gpu-architecture", "gpu architecture"),
        pattern=r"(?:Value '(?P<architecture>\w{1,60})' is not defined for option"
        r"|unsupported gpu architecture '?(?P<also>\w{0,60})'?|ptxas fatal\s{0,4}: Unsupported \.?(?:version|target)"
        r"|not supported on \.target)",
        summary="The assembler or compiler is too old for this GPU's architecture.",
        fix="Use a newer CUDA toolkit's tools (TRITON_PTXAS_PATH for Triton, CUDA_HOME for the others), or run from "
        "a cast for this architecture.",
        command="export TRITON_PTXAS_PATH=/usr/local/cuda/bin/ptxas",
        line=True,
    ),
    Cause(
        family="jit-toolchain",
        name="header-missing",
        signs=("fatal error", "cannot open source file", "no such file or directory"),
        pattern=r"fatal error: (?P<header>[\w./+-]{1,120}): No such file"
        r"|cannot open source file \"(?P<also>[^\"]{1,120})\"",
        summary="A kernel build failed: a header is missing: {header}.",
        fix=_CAST + "the complete CUDA toolkit, including headers.",
        line=True,
    ),
    Cause(
        family="jit-toolchain",
        name="linker-library-missing",
        signs=("cannot find -l", "libcuda.so cannot found", "libcuda.so cannot be found", "unable to find library -l"),
        summary="A kernel build failed: the linker cannot find a CUDA library.",
        fix="Set TRITON_LIBCUDA_PATH (or LIBRARY_PATH) to the folder of libcuda.so, or run from a cast.",
        command="ldconfig -p | grep libcuda",
        line=True,
    ),
    Cause(
        family="jit-toolchain",
        name="deepgemm-unusable",
        signs=("deepgemm", "deep_gemm", "jit_kernels"),
        pattern=r"not available|outdated|unavailable|not installed|please install|no module named|missing|fail|error"
        r"|assert",
        summary="DeepGEMM, which the engine needs for FP8, is missing or has the wrong version.",
        fix="Turn DeepGEMM off.",
        patch={"vllm.environment.VLLM_USE_DEEP_GEMM": "0", "vllm.environment.VLLM_DEEP_GEMM_WARMUP": "skip"},
    ),
    Cause(
        family="jit-toolchain",
        name="deepgemm-unusable",
        signs=(),
        where=r"deep_gemm/|deep_gemm_wrapper|deep_gemm_warmup",
        pattern=r"^(?!.{0,40}OutOfMemory)(?!.{0,60}illegal memory)",
        summary="DeepGEMM, which the engine uses for FP8, failed: it does not support this GPU or this engine.",
        fix="Turn DeepGEMM off.",
        patch={"vllm.environment.VLLM_USE_DEEP_GEMM": "0", "vllm.environment.VLLM_DEEP_GEMM_WARMUP": "skip"},
    ),
    Cause(
        family="jit-toolchain",
        name="cuda-python-missing",
        signs=("no module named 'cuda", "no module named 'nvidia.cu", "no module named 'cutlass'"),
        summary="A kernel compiler cannot find NVIDIA's Python bindings.",
        fix="Use an image that includes them.",
        command="python -m pip install cuda-python",
    ),
    Cause(
        family="jit-toolchain",
        name="jit-forbidden",
        signs=("flashinfer_disable_jit", "jit compilation is disabled", "jit is disabled", "disable_jit"),
        summary="A compiled kernel is missing, and compiling is not allowed here.",
        fix="Cast the kernel, or allow compiling.",
        command="ingot cast",
    ),
    Cause(
        family="jit-toolchain",
        name="compiler-rejects",
        signs=("nvcc fatal", "ptxas fatal", "ptxaserror", "ptxas error", "nvrtc", "unsupported gnu version",
               "llvm error", "host_config.h", "unsupported compiler", "nvcc error",
               "internal triton ptx codegen error", "cicc", "nvjitlink", "cannot select: intrinsic"),
        pattern=r"fatal|error|unsupported|fail|cannot select",
        summary="A compiler rejected a kernel: its version does not support the kernel or this GPU.",
        fix="Run from a cast, or use an image whose CUDA toolkit, Triton and compiler match and support this GPU.",
        command="nvcc --version; gcc --version",
        line=True,
        vague=True,
    ),
    Cause(
        family="jit-toolchain",
        name="cuda-version-mismatch",
        signs=("detected cuda version", "different cuda version", "cuda version mismatch",
               "mismatches the version that was used"),
        summary="The CUDA toolkit and PyTorch have different CUDA versions.",
        fix="Run from a cast, or set CUDA_HOME to the toolkit of PyTorch's CUDA version.",
        command="nvcc --version; python -c 'import torch; print(torch.version.cuda)'",
    ),
    Cause(
        family="jit-toolchain",
        name="build-failed",
        signs=("ninja build failed", "error building extension", "ninja: build stopped", "ninja -v", "cpp_extension",
               "compilation terminated", "failed to compile", "compilation failed", "compilationerror", "failed: 1",
               "error compiling", "jit compilation failed", "build failed", "nvcc"),
        pattern=r"ninja|extension|terminated|compil|nvcc",
        summary="A kernel failed to compile.",
        fix="Run from a cast, or use an image that includes the compiled kernels. The compiler's output is in the "
        "log above.",
        line=True,
        vague=True,
    ),
    Cause(
        family="jit-toolchain",
        name="build-failed",
        signs=("calledprocesserror",),
        pattern=r"(?:gcc|g\+\+|nvcc|ninja|ptxas|/cc\b|c\+\+|cicc|clang)",
        summary="A compiler started by the engine failed.",
        fix="Run from a cast, or use an image that includes the compiled kernels. The compiler's output is in the "
        "log above.",
        vague=True,
    ),
    Cause(
        family="jit-toolchain",
        name="build-failed",
        signs=(),
        where=r"(?:flashinfer/jit|triton/(?:compiler|backends|runtime/(?:build|jit))|torch/utils/cpp_extension"
        r"|tvm_ffi/cpp|cute/|tilelang/jit)[^\n]{0,200}$",
        summary="A kernel could not be compiled or loaded at run time.",
        fix="Run from a cast, or use an image that includes the compiled kernels.",
        vague=True,
    ),
)  # fmt: skip
