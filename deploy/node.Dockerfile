# A node that trains: 1.68 GB on top of the base image, two fifths of it torch (for CPUs). Build it
# from the root of the repository:
#
#   docker build --file deploy/node.Dockerfile --tag lockstep-node .
#   docker build --file deploy/node.Dockerfile --tag lockstep-node:cuda --build-arg TORCH_INDEX= .
#
# Package sources are build arguments; an empty one leaves pip as the base image has set it up.
ARG BASE_IMAGE=python:3.11.14-slim-bookworm

FROM ${BASE_IMAGE} AS requirements
ARG PIP_INDEX_URL=
# Directory of the base image, or address, with wheels.
ARG PIP_FIND_LINKS=
# Index of torch's builds, by default for CPUs; empty: the usual index, whose Linux build has CUDA.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
# yes: only the files whose hashes are in the locks (`make lock`), which are for Linux on x86-64 and
# Python 3.11. Anything else: what constraints.txt allows, without hashes. torch from another index
# than the one for CPUs is pinned by its version alone, and what comes with it (NVIDIA's packages) not.
ARG LOCKED=yes
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /source
RUN python -m venv --without-pip /opt/lockstep
# A stage and a layer of their own: a change of the sources does not install them again. torch comes
# first: it is most of the image.
COPY pyproject.toml constraints.txt deploy/requirements-node.lock deploy/requirements-torch-cpu.lock ./
RUN export PIP_EXTRA_INDEX_URL=$TORCH_INDEX; \
    case "$LOCKED:$TORCH_INDEX" in \
    yes:*/cpu) python -m pip --python /opt/lockstep/bin/python install \
        --require-hashes --no-deps --only-binary :all: \
        --requirement requirements-torch-cpu.lock;; \
    *) python -m pip --python /opt/lockstep/bin/python install --constraint constraints.txt torch;; \
    esac
ARG PIP_EXTRA_INDEX_URL=
RUN if [ "$LOCKED" = yes ]; then \
        python -m pip --python /opt/lockstep/bin/python install \
            --require-hashes --no-deps --only-binary :all: \
            --requirement requirements-node.lock; \
    else \
        python -c 'import tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
            print(*project["dependencies"], *project["optional-dependencies"]["node"], sep="\n")' \
            > requirements.txt \
        && python -m pip --python /opt/lockstep/bin/python install \
            --constraint constraints.txt --requirement requirements.txt \
        && python -m pip --python /opt/lockstep/bin/python install --no-deps \
            --constraint constraints.txt hivemind; \
    fi

FROM requirements AS build
COPY . .
RUN python -m pip --python /opt/lockstep/bin/python install --no-deps --prefix /own .

FROM ${BASE_IMAGE}
# iproute2 shapes the container's own interface into a home link.
RUN if ! command -v tc > /dev/null; then \
        apt-get update && apt-get install --yes --no-install-recommends iproute2 \
        && rm -rf /var/lib/apt/lists/*; fi
RUN useradd --uid 50700 --user-group --no-create-home --shell /usr/sbin/nologin lockstep \
    && install --directory --owner lockstep --group lockstep /state /corpora /invitation
COPY --from=requirements /opt/lockstep /opt/lockstep
COPY --from=build /own /opt/lockstep
COPY deploy/entrypoint_node.sh deploy/healthcheck.py deploy/invited.sh /opt/lockstep/deploy/
# Libraries keep their caches where a read-only container has room; none downloads anything.
ENV PATH=/opt/lockstep/bin:$PATH PYTHONDONTWRITEBYTECODE=1 HOME=/tmp HF_HUB_OFFLINE=1 \
    LOCKSTEP_DIRECTORY=/state LOCKSTEP_CORPORA=/corpora
USER lockstep
VOLUME /state /corpora
STOPSIGNAL SIGTERM
ENTRYPOINT ["lockstep"]
CMD ["--help"]
