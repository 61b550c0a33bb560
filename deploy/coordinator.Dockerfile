# Coordinator and relay: everything but training, so no torch: 165 MB on top of the base image, of which numpy is 73.
# Built from the repository's root:
#
#   docker build --file deploy/coordinator.Dockerfile --tag lockstep-coordinator .
#
# All of the build's surroundings are arguments. Empty ones leave pip as the base image has set it up.
ARG BASE_IMAGE=python:3.11.14-slim-bookworm

FROM ${BASE_IMAGE} AS requirements
ARG PIP_INDEX_URL=
ARG PIP_EXTRA_INDEX_URL=
# A directory of the base image, or an address, where wheels lie.
ARG PIP_FIND_LINKS=
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /source
RUN python -m venv --without-pip /opt/lockstep
# A stage and a layer of their own: a change of the sources neither installs nor copies them again.
COPY pyproject.toml constraints.txt ./
RUN python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"], sep="\n")' \
        > requirements.txt \
    && python -m pip --python /opt/lockstep/bin/python install --constraint constraints.txt --requirement requirements.txt

FROM requirements AS build
COPY . .
RUN python -m pip --python /opt/lockstep/bin/python install --no-deps --prefix /own .

FROM ${BASE_IMAGE}
RUN useradd --uid 50700 --user-group --no-create-home --shell /usr/sbin/nologin lockstep \
    && install --directory --owner lockstep --group lockstep /state
COPY --from=requirements /opt/lockstep /opt/lockstep
COPY --from=build /own /opt/lockstep
COPY deploy/chaos.py deploy/entrypoint_coordinator.py deploy/healthcheck.py /opt/lockstep/deploy/
# Libraries that want to keep something of their own do it where a read-only container has room.
ENV PATH=/opt/lockstep/bin:$PATH PYTHONDONTWRITEBYTECODE=1 HOME=/tmp LOCKSTEP_DIRECTORY=/state
USER lockstep
VOLUME /state
STOPSIGNAL SIGTERM
ENTRYPOINT ["lockstep"]
CMD ["--help"]
