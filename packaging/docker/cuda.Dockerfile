# Primus for NVIDIA GPUs: the driver of the host, and the libraries of CUDA 13 in the image. From the repository's root:
#
#   docker build -f packaging/docker/cuda.Dockerfile -t primus:cuda .
#   docker run --rm --gpus all --ipc host primus:cuda device list
#
# CUDA_ARCHS chooses for which GPUs, as scripts/build-gpu.sh takes them.
FROM debian:bookworm AS cuda-packages
# NVIDIA's package source for Debian 12.
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates curl \
    && curl -fsSLo /tmp/keyring.deb \
      https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/cuda-keyring_1.1-1_all.deb \
    && dpkg -i /tmp/keyring.deb && rm -rf /tmp/keyring.deb /var/lib/apt/lists/*

FROM cuda-packages AS build
ARG CUDA_ARCHS="80 90a 100"
WORKDIR /src
COPY scripts scripts
RUN apt-get update && scripts/install-packages.sh build \
    && apt-get install -y --no-install-recommends cuda-nvcc-13-0 cuda-cudart-dev-13-0 libcublas-dev-13-0 \
    && rm -rf /var/lib/apt/lists/*
ENV PATH=/usr/local/cuda-13.0/bin:$PATH
COPY CMakeLists.txt CMakePresets.json LICENSE README.md ./
COPY cmake cmake
COPY docs docs
COPY examples examples
COPY presets presets
COPY src src
RUN scripts/build.sh -DPRIMUS_TESTS=OFF && scripts/build-gpu.sh cuda $CUDA_ARCHS \
    && cmake --install build --prefix /opt/primus --strip

FROM cuda-packages
COPY scripts/install-packages.sh scripts/debian-packages.txt /tmp/packages/
RUN apt-get update && /tmp/packages/install-packages.sh runtime \
    && apt-get install -y --no-install-recommends libcublas-13-0 libcudnn9-cuda-13 libnccl2 \
    && rm -rf /var/lib/apt/lists/* /tmp/packages
COPY --from=build /opt/primus /opt/primus
ENV PATH=/opt/primus/bin:$PATH \
    LD_LIBRARY_PATH=/usr/local/cuda-13.0/lib64 \
    NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
WORKDIR /workspace
ENTRYPOINT ["primus"]
CMD ["--help"]
