# Primus for AMD GPUs. The image has Debian 12's HIP runtime, and uses the host's driver. From the repository's root
# (scripts/build-images.sh --rocm uses podman):
#
#   docker build -f packaging/docker/rocm.Dockerfile -t primus:rocm .
#   docker run --rm --device /dev/kfd --device /dev/dri --group-add "$(stat -c %g /dev/kfd)" --ipc host primus:rocm device list
#
# HIP_ARCHS selects the GPU architectures, with the names of scripts/build-gpu.sh. HIP 5.2, the runtime of Debian 12, supports
# no GPU after gfx90a (MI200). An MI300 needs AMD's image (primus container) and a plug-in that was built in it.
#
# The steps up to the build of the program equal those of cpu.Dockerfile, so a container engine reuses their layers.
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
RUN scripts/install-packages.sh hip && rm -rf /var/lib/apt/lists/*
ARG HIP_ARCHS="gfx90a"
COPY scripts/build-gpu.sh scripts/
RUN scripts/build-gpu.sh hip $HIP_ARCHS
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
RUN /opt/packages/install-packages.sh runtime hip-runtime && rm -rf /var/lib/apt/lists/* /opt/packages
COPY --from=build /opt/primus /opt/primus
ENV PATH=/opt/primus/bin:$PATH
# No USER: in rootless podman and on Kubernetes, volumes belong to root inside the container. --user selects another user.
WORKDIR /workspace
ENTRYPOINT ["primus"]
CMD ["--help"]
