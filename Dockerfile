# The images of compose.yaml: engine, console, gate. docs/containers.md says how to build and run them.
#
# What changes at its own pace has a stage of its own: the packages without torch (builder), torch (torch), our code
# (code). `pip --root` writes what a stage adds into a folder beside the environment, and the images take exactly that:
# after a code change a few megabytes are copied, and nothing is installed again.

FROM debian:bookworm-slim AS gate
RUN apt-get update -q \
 && apt-get install -y -q --no-install-recommends haproxy \
 && rm -rf /var/lib/apt/lists/*
COPY gate/haproxy.cfg /etc/haproxy/haproxy.cfg
LABEL org.opencontainers.image.title="ingot gate" \
      org.opencontainers.image.description="Lets the console act on the engine's container, and on nothing else" \
      org.opencontainers.image.licenses="Apache-2.0"
# compose.yaml names the user that may open the socket: hosts differ.
USER haproxy
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s --start-interval=500ms \
    CMD ["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/8404 && printf 'GET /healthy HTTP/1.0\\r\\n\\r\\n' >&3 && head -n 1 <&3 | grep -q ' 200 '"]
ENTRYPOINT ["haproxy", "-db", "-f", "/etc/haproxy/haproxy.cfg"]


FROM python:3.11-slim-bookworm AS base
RUN groupadd --gid 10001 ingot \
 && useradd --uid 10001 --gid ingot --home-dir /tmp --no-create-home --shell /usr/sbin/nologin ingot \
 && install -d -o ingot -g ingot -m 0700 /var/lib/ingot \
 && install -d /models
ENV PATH=/opt/venv/bin:$PATH \
    HOME=/tmp \
    INGOT_HOME=/var/lib/ingot \
    INGOT_MODELS=/models \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1


# What has to be installed, as files that stay the same when anything else in pyproject.toml changes.
FROM base AS requirements
WORKDIR /requirements
COPY pyproject.toml .
RUN python -c "import tomllib; \
document = tomllib.load(open('pyproject.toml', 'rb')); \
needed = document['project']['dependencies']; \
open('build.txt', 'w').write('\n'.join(document['build-system']['requires'])); \
open('torch.txt', 'w').write('\n'.join(row for row in needed if row.startswith('torch'))); \
open('console.txt', 'w').write('\n'.join(row for row in needed if not row.startswith('torch')))"


FROM base AS builder
# Another index or mirror, such as one with CPU builds of torch. pip reads these from its environment.
ARG PIP_EXTRA_INDEX_URL
ARG PIP_TRUSTED_HOST
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_WARN_SCRIPT_LOCATION=1
WORKDIR /build
COPY constraints.txt .
COPY --from=requirements /requirements/build.txt /requirements/console.txt ./
# What runs has no pip: /opt/build has it, and installs into /opt/venv.
RUN python -m venv /opt/build \
 && /opt/build/bin/pip install --constraint constraints.txt --requirement build.txt \
 && python -m venv --without-pip /opt/venv \
 && /opt/build/bin/pip --python /opt/venv/bin/python install --constraint constraints.txt --requirement console.txt


FROM builder AS torch
ARG VARIANT=cpu
COPY --from=requirements /requirements/torch.txt ./
RUN test "$VARIANT" = cpu || { echo "VARIANT is $VARIANT: only cpu can be built yet." >&2; exit 1; }
RUN /opt/build/bin/pip --python /opt/venv/bin/python install --root /layer \
    --constraint constraints.txt --requirement torch.txt


FROM builder AS code
COPY . .
RUN /opt/build/bin/pip wheel --no-build-isolation --no-deps --wheel-dir /wheels . \
 && /opt/build/bin/pip --python /opt/venv/bin/python install --root /layer --no-index --no-deps /wheels/*.whl


FROM base AS engine
COPY --from=builder /opt/venv /opt/venv
COPY --from=torch /layer/opt/venv /opt/venv
COPY --from=code /layer/opt/venv /opt/venv
LABEL org.opencontainers.image.title="ingot engine" \
      org.opencontainers.image.description="Runs a model and answers the OpenAI API" \
      org.opencontainers.image.licenses="Apache-2.0"
USER ingot
VOLUME /var/lib/ingot
EXPOSE 8000
# Healthy once a real token has been generated. A large model takes minutes; the console tells more, and sooner.
HEALTHCHECK --interval=10s --timeout=5s --start-period=5m --start-interval=1s \
    CMD ["python", "-c", "import http.client as h; c = h.HTTPConnection('127.0.0.1', 8000, timeout=4); c.request('GET', '/health'); raise SystemExit(c.getresponse().status != 200)"]
ENTRYPOINT ["ingot"]
CMD ["serve", "--host", "0.0.0.0", "--port", "8000"]


FROM base AS console
COPY --from=builder /opt/venv /opt/venv
COPY --from=code /layer/opt/venv /opt/venv
LABEL org.opencontainers.image.title="ingot console" \
      org.opencontainers.image.description="Keeps profiles, starts the engine, and says what is wrong" \
      org.opencontainers.image.licenses="Apache-2.0"
USER ingot
VOLUME /var/lib/ingot
EXPOSE 8080
ENV INGOT_CONSOLE_HOST=0.0.0.0
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --start-interval=500ms \
    CMD ["python", "-c", "import http.client as h; c = h.HTTPConnection('127.0.0.1', 8080, timeout=4); c.request('GET', '/sign-in'); raise SystemExit(c.getresponse().status >= 400)"]
ENTRYPOINT ["ingot"]
CMD ["up"]
