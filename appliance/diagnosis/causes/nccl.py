"""Collectives between GPUs, and their shared memory."""

from appliance.diagnosis.cause import Cause, halved, when

_SHM = (
    "Give the container more shared memory (--shm-size=16g, or --ipc=host; in Kubernetes an emptyDir with medium "
    "Memory at /dev/shm)."
)

CAUSES = (
    Cause(
        family="nccl",
        name="custom-all-reduce",
        signs=("custom_all_reduce.cuh", "custom_all_reduce.cu", "custom_all_reduce.hpp"),
        pattern=r"(?:cuda|hip) error[^\n]{0,200}?custom_all_reduce\.\w{2,4}:\d{1,6} '(?P<why>[^'\n]{1,80})",
        summary="vLLM's own all-reduce failed: {why}. These GPUs cannot reach each other's memory directly.",
        fix="Turn off custom all-reduce.",
        patch={"vllm.extra-args.disable-custom-all-reduce": True},
        line=True,
        deadly=True,
    ),
    Cause(
        family="nccl",
        name="shared-memory-too-small",
        signs=("/dev/shm/nccl", "creating shared memory segment", "failed to extend /dev/shm",
               "insufficient shared memory", "/dev/shm", "shared memory segment",
               "unable to open shared memory object", "out of shared memory", "shmget"),
        pattern=r"(?:fail|error|insufficient|no space|unable|warn|out of shared|too small|bus error)",
        details=r"(?P<segment>/dev/shm/nccl-\w{1,40})",
        summary="Shared memory (/dev/shm) is too small for NCCL and the engine's processes.",
        fix=f"{_SHM} NCCL can do without it, at the cost of speed.",
        patch={"vllm.environment.NCCL_SHM_DISABLE": when("segment", "1")},
        look="df -h /dev/shm",
        line=True,
    ),
    Cause(
        family="nccl",
        name="shared-memory-too-small",
        signs=("no space left on device", "[errno 28]"),
        where=r"(?:shared_memory|shm_\w{1,40})\.py[^\n]{0,200}$",
        summary="Shared memory (/dev/shm) is full.",
        fix=_SHM,
        look="df -h /dev/shm",
    ),
    Cause(
        family="nccl",
        name="shared-memory-too-small",
        signs=("no space left on device",),
        pattern=r"</?torch_\d{1,9}_\d{1,9}",
        summary="Shared memory (/dev/shm) is full.",
        fix=_SHM,
        look="df -h /dev/shm",
        line=True,
    ),
    Cause(
        family="nccl",
        name="nvshmem",
        signs=("nvshmem", "ibgda"),
        pattern=r"^(?!.{0,2000}cooperative).{0,2000}?(?:fail|error|non-zero status|null value|unable|abort"
        r"|before nvshmem init)",
        summary="NVSHMEM, which DeepEP uses to exchange experts between GPUs, could not set up its connections.",
        fix="Check that the InfiniBand devices work, and that the container has them and may lock memory; or turn "
        "DeepEP off.",
        look="ibv_devinfo; ulimit -l",
        line=True,
    ),
    Cause(
        family="nccl",
        name="duplicate-gpu",
        signs=("duplicate gpu detected",),
        summary="Two ranks share a GPU, or two slices of one GPU.",
        fix="Give every rank its own GPU; NCCL does not work across MIG slices of one GPU.",
        patch={"tensor-parallel-size": halved("tensor-parallel-size")},
        look="nvidia-smi -L",
        line=True,
    ),
    Cause(
        family="nccl",
        name="peer-access",
        signs=("peer access is not supported", "peer access", "cudaerrorpeeraccess", "custom_all_reduce",
               "custom allreduce", "p2p is disabled", "cudaipc", "cuda_ipc", "invalid device context", "cuipc",
               "mapping of buffer object failed"),
        pattern=r"not supported|unsupported|fail|error|invalid|already enabled|cannot|not enabled",
        summary="The GPUs cannot access each other's memory directly.",
        fix="Turn off custom all-reduce and P2P.",
        patch={"vllm.extra-args.disable-custom-all-reduce": True, "vllm.environment.NCCL_P2P_DISABLE": "1"},
        look="nvidia-smi topo -p2p r",
    ),
    Cause(
        family="nccl",
        name="collective-timeout",
        signs=("watchdog caught collective operation timeout", "collective operation timeout",
               "watchdog thread terminated", "nccl timeout", "timed out waiting for collective",
               "some nccl operations have failed or timed out"),
        summary="A collective timed out: one rank died, hangs, or took another path.",
        fix="Look for the first error of any rank; with NCCL_DEBUG=INFO the log names the link. If there is none, "
        "try NCCL_P2P_DISABLE=1.",
        line=True,
        deadly=True,
    ),
    Cause(
        family="nccl",
        name="no-interface",
        signs=("no socket interface found", "bootstrap : no", "nccl_socket_ifname", "no usable listening ports",
               "unable to find address for", "gloo_socket_ifname", "interface"),
        pattern=r"(?:no socket interface|SOCKET_IFNAME|unable to find (?:address|interface)|no interface"
        r"|interface .{0,40}not found)",
        summary="NCCL or Gloo found no usable network interface.",
        fix="Name the interface (NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME); for a single host, use lo.",
        patch={"vllm.environment.NCCL_SOCKET_IFNAME": "lo", "vllm.environment.GLOO_SOCKET_IFNAME": "lo"},
        look="ip -brief address",
        line=True,
    ),
    Cause(
        family="nccl",
        name="peer-not-reached",
        signs=("nccl warn", "ncclremoteerror"),
        pattern=r"connect to (?P<address>[\w.:\[\]-]{3,60})[^\n]{0,60}(?:fail|refused|timed out|unreachable)"
        r"|call to connect[^\n]{0,80}(?:fail|refused|timed out|unreachable|no route)",
        summary="NCCL cannot reach another rank: {address}.",
        fix="Name the network interface that connects the hosts (NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME), and "
        "check that no firewall blocks it.",
        look="ip -brief address",
        line=True,
    ),
    Cause(
        family="nccl",
        name="nvls-or-infiniband",
        signs=("nccl warn", "nvls", "ibv_", "net/ib", "infiniband", "multicast", "cumem"),
        pattern=r"(?:nvls|ibv_|net/ib|infiniband|multicast|cumem).{0,200}?(?:fail|error|not supported|invalid"
        r"|unable)",
        summary="NCCL cannot use NVLink SHARP or InfiniBand on this machine.",
        fix="Turn it off: NCCL_NVLS_ENABLE=0, or NCCL_IB_DISABLE=1.",
        patch={"vllm.environment.NCCL_NVLS_ENABLE": "0", "vllm.environment.NCCL_CUMEM_ENABLE": "0"},
        line=True,
        aside=True,
    ),
    Cause(
        family="nccl",
        name="ucx",
        signs=("ucx error", "ucx  error", "ucx fatal", "ucx  fatal"),
        pattern=r"UCX {1,4}(?:ERROR|FATAL) {1,4}(?P<why>[^\n]{3,200})|UCX error: (?P<also>[^\n]{3,200})",
        summary="UCX, which carries data between the engine's processes, failed: {why}.",
        fix="Check the network device that it names, and that the container has it. UCX_NET_DEVICES chooses others, "
        "and UCX_TLS=tcp,cuda_copy,cuda_ipc does without RDMA.",
        look="ibv_devinfo; ucx_info -d | grep -e Transport -e Device",
        line=True,
    ),
    Cause(
        family="nccl",
        name="nccl-error",
        signs=("nccl warn",),
        pattern=r"NCCL WARN (?P<why>(?!.{0,60}(?:deprecat|not recommended|is not set|unset|recommended|performance"
        r"|plugin))[^\n]{1,200})",
        summary="NCCL failed: {why}",
        fix="With NCCL_DEBUG=INFO the log names the link that failed. Turning off P2P or shared memory can narrow "
        "it down.",
        line=True,
        aside=True,
        vague=True,
    ),
    Cause(
        family="nccl",
        name="library-missing",
        signs=("libnccl", "nccl library", "failed to load nccl", "vllm_nccl_so_path", "nccl version"),
        pattern=r"fail|not found|cannot|no such|mismatch|too old|unable",
        summary="NCCL cannot be loaded, or its version does not match.",
        fix="Use the container image, or install the NCCL version that PyTorch was built with.",
        look="python -m pip show nvidia-nccl-cu12 nvidia-nccl-cu13",
    ),
    Cause(
        family="nccl",
        name="rank-gone",
        signs=("connection closed by", "connection reset by peer", "remote process exited"),
        pattern=r"gloo|nccl|processgroup|c10d|socketprogress|tcpstore",
        summary="Another rank went away during a collective.",
        fix="Look for the first error of the other ranks: in this log, on the other hosts, or in the kernel log.",
        vague=True,
    ),
    Cause(
        family="nccl",
        name="nccl-error",
        signs=("nccl error", "ncclsystemerror", "ncclinternalerror", "ncclunhandledcudaerror", "ncclinvalidusage",
               "ncclinvalidargument", "unhandled system error", "unhandled cuda error", "ncclremoteerror",
               "nccl communicator", "distbackenderror", "nccl failure", "failed nccl", "ncclcomminitrank",
               "processgroupnccl", "c10d", "gloo"),
        pattern=r"nccl|unhandled|distbackend|gloo|c10d",
        summary="Communication between the GPUs failed.",
        fix="Check the size of /dev/shm (16 GB, or --ipc=host); with NCCL_DEBUG=INFO the log says why. If P2P is "
        "the problem, NCCL_P2P_DISABLE=1 helps.",
        look="df -h /dev/shm; nvidia-smi topo -m",
        vague=True,
    ),
)  # fmt: skip
