# Coordinator and relay: everything but training, so no torch. 165 MB on top of the base image, of
# which numpy takes 73. Build it from the root of the repository:
#
#   docker build --file deploy/coordinator.Dockerfile --tag lockstep-coordinator .
#
# Package sources are build arguments; an empty one leaves pip as the base image has set it up.
ARG BASE_IMAGE=python:3.11.14-slim-bookworm

FROM ${BASE_IMAGE} AS requirements
ARG PIP_INDEX_URL=
ARG PIP_EXTRA_INDEX_URL=
# Directory of the base image, or address, with wheels.
ARG PIP_FIND_LINKS=
# yes: only the files whose hashes are in the lock (`make lock`), which is one for Linux on x86-64 and
# Python 3.11. Anything else: what constraints.txt allows, without hashes.
ARG LOCKED=yes
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /source
RUN python -m venv --without-pip /opt/lockstep
# A stage and a layer of their own: a change of the sources does not install them again.
COPY pyproject.toml constraints.txt deploy/requirements-coordinator.lock ./
RUN if [ "$LOCKED" = yes ]; then \
        python -m pip --python /opt/lockstep/bin/python install \
            --require-hashes --no-deps --only-binary :all: \
            --requirement requirements-coordinator.lock; \
    else \
        python -c 'import tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
            print(*project["dependencies"], sep="\n")' > requirements.txt \
        && python -m pip --python /opt/lockstep/bin/python install \
            --constraint constraints.txt --requirement requirements.txt; \
    fi

FROM requirements AS build
COPY . .
RUN python -m pip --python /opt/lockstep/bin/python install --no-deps --prefix /own .

FROM ${BASE_IMAGE}
RUN useradd --uid 50700 --user-group --no-create-home --shell /usr/sbin/nologin lockstep \
    && install --directory --owner lockstep --group lockstep /state /invitation
COPY --from=requirements /opt/lockstep /opt/lockstep
COPY --from=build /own /opt/lockstep
COPY deploy/chaos.py deploy/entrypoint_coordinator.py deploy/healthcheck.py /opt/lockstep/deploy/
COPY deploy/invite.py deploy/invited.sh /opt/lockstep/deploy/
# Libraries keep their caches where a read-only container has room.
ENV PATH=/opt/lockstep/bin:$PATH PYTHONDONTWRITEBYTECODE=1 HOME=/tmp LOCKSTEP_DIRECTORY=/state
USER lockstep
VOLUME /state
STOPSIGNAL SIGTERM
ENTRYPOINT ["lockstep"]
CMD ["--help"]
