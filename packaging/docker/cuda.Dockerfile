# Primus for NVIDIA GPUs. The image has the libraries of CUDA 13, and uses the host's driver. From the repository's root:
#
#   docker build -f packaging/docker/cuda.Dockerfile -t primus:cuda .
#   docker run --rm --gpus all --ipc host primus:cuda device list
#
# CUDA_ARCHS selects the GPU architectures, with the names of scripts/build-gpu.sh.
FROM debian:bookworm AS cuda-packages
# NVIDIA's package source for Debian 12.
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates curl \
    && curl -fsSLo /tmp/keyring.deb \
      https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/cuda-keyring_1.1-1_all.deb \
    && dpkg -i /tmp/keyring.deb && rm -rf /tmp/keyring.deb /var/lib/apt/lists/*

FROM cuda-packages AS build
WORKDIR /src
# Rarely changed layers come first: packages, then sources, then files that are only installed.
COPY scripts/install-packages.sh scripts/debian-packages.txt scripts/
RUN scripts/install-packages.sh build && rm -rf /var/lib/apt/lists/*
RUN apt-get update \
    && apt-get install -y --no-install-recommends cuda-nvcc-13-0 cuda-cudart-dev-13-0 libcublas-dev-13-0 \
    && rm -rf /var/lib/apt/lists/*
ENV PATH=/usr/local/cuda-13.0/bin:$PATH
COPY CMakeLists.txt CMakePresets.json LICENSE ./
COPY cmake cmake
COPY src src
COPY scripts/build.sh scripts/
RUN --mount=type=cache,target=/ccache CCACHE_DIR=/ccache scripts/build.sh -DPRIMUS_TESTS=OFF
ARG CUDA_ARCHS="80 90a 100"
COPY scripts/build-gpu.sh scripts/
RUN --mount=type=cache,target=/ccache CCACHE_DIR=/ccache scripts/build-gpu.sh cuda $CUDA_ARCHS
COPY README.md ./
COPY docs docs
COPY examples examples
COPY presets presets
RUN cmake --install build --prefix /opt/primus --strip

FROM cuda-packages
LABEL org.opencontainers.image.title="Primus" \
      org.opencontainers.image.description="Trains foundation models from one native program" \
      org.opencontainers.image.version="0.3.0" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY scripts/install-packages.sh scripts/debian-packages.txt /opt/packages/
# cuDNN compiles some attention kernels with NVRTC at first use.
RUN /opt/packages/install-packages.sh runtime && apt-get update \
    && apt-get install -y --no-install-recommends libcublas-13-0 libcudnn9-cuda-13 cuda-nvrtc-13-0 libnccl2 \
    && rm -rf /var/lib/apt/lists/* /opt/packages
COPY --from=build /opt/primus /opt/primus
# The packages install libraries in this folder. Only some of them create the link /usr/local/cuda-13.0/lib64.
ENV PATH=/opt/primus/bin:$PATH \
    LD_LIBRARY_PATH=/usr/local/cuda-13.0/targets/x86_64-linux/lib \
    NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
# No USER: in rootless podman and on Kubernetes, volumes belong to root inside the container. --user selects another user.
WORKDIR /workspace
ENTRYPOINT ["primus"]
CMD ["--help"]
