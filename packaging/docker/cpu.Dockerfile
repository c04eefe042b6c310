# Primus for CPUs. From the repository's root (scripts/build-images.sh --cpu uses podman, and tests the image):
#
#   docker build -f packaging/docker/cpu.Dockerfile -t primus:cpu .
#   docker run --rm --user "$(id -u):$(id -g)" --volume "$PWD:/workspace" primus:cpu train pretrain --config exp.yaml
FROM debian:bookworm AS build
WORKDIR /src
# Rarely changed layers come first: packages, then sources, then files that are only installed.
COPY scripts/install-packages.sh scripts/debian-packages.txt scripts/
RUN scripts/install-packages.sh build && rm -rf /var/lib/apt/lists/*
COPY CMakeLists.txt CMakePresets.json LICENSE ./
COPY cmake cmake
COPY src src
COPY scripts/build.sh scripts/
RUN --mount=type=cache,target=/ccache CCACHE_DIR=/ccache scripts/build.sh -DPRIMUS_TESTS=OFF
COPY README.md ./
COPY docs docs
COPY examples examples
COPY presets presets
RUN cmake --install build --prefix /opt/primus --strip

FROM debian:bookworm-slim
LABEL org.opencontainers.image.title="Primus" \
      org.opencontainers.image.description="Trains foundation models from one native program" \
      org.opencontainers.image.version="0.3.0" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY scripts/install-packages.sh scripts/debian-packages.txt /opt/packages/
RUN /opt/packages/install-packages.sh runtime && rm -rf /var/lib/apt/lists/* /opt/packages
COPY --from=build /opt/primus /opt/primus
ENV PATH=/opt/primus/bin:$PATH
# No USER: in rootless podman and on Kubernetes, volumes belong to root inside the container. --user selects another user.
WORKDIR /workspace
ENTRYPOINT ["primus"]
CMD ["--help"]
