# Primus for AMD GPUs: the driver of the host, and HIP's runtime as Debian 12 has it. From the repository's root:
#
#   docker build -f packaging/docker/rocm.Dockerfile -t primus:rocm .
#   docker run --rm --device /dev/kfd --device /dev/dri --group-add video --ipc host primus:rocm device list
#
# HIP_ARCHS chooses for which GPUs, as scripts/build-gpu.sh takes them.
FROM debian:bookworm AS build
ARG HIP_ARCHS="gfx90a gfx942"
WORKDIR /src
COPY scripts scripts
RUN apt-get update && scripts/install-packages.sh build hip && rm -rf /var/lib/apt/lists/*
COPY CMakeLists.txt CMakePresets.json LICENSE README.md ./
COPY cmake cmake
COPY docs docs
COPY examples examples
COPY presets presets
COPY src src
RUN scripts/build.sh -DPRIMUS_TESTS=OFF && scripts/build-gpu.sh hip $HIP_ARCHS \
    && cmake --install build --prefix /opt/primus --strip

FROM debian:bookworm-slim
COPY scripts/install-packages.sh scripts/debian-packages.txt /tmp/packages/
RUN apt-get update && /tmp/packages/install-packages.sh runtime hip-runtime \
    && rm -rf /var/lib/apt/lists/* /tmp/packages
COPY --from=build /opt/primus /opt/primus
ENV PATH=/opt/primus/bin:$PATH
WORKDIR /workspace
ENTRYPOINT ["primus"]
CMD ["--help"]
