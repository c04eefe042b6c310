# Primus for CPUs. From the repository's root:
#
#   docker build -f packaging/docker/cpu.Dockerfile -t primus:cpu .
#   docker run --rm primus:cpu version
FROM debian:bookworm AS build
WORKDIR /src
COPY scripts scripts
RUN apt-get update && scripts/install-packages.sh build && rm -rf /var/lib/apt/lists/*
COPY CMakeLists.txt CMakePresets.json LICENSE README.md ./
COPY cmake cmake
COPY docs docs
COPY examples examples
COPY presets presets
COPY src src
RUN scripts/build.sh -DPRIMUS_TESTS=OFF && cmake --install build --prefix /opt/primus --strip

FROM debian:bookworm-slim
COPY scripts/install-packages.sh scripts/debian-packages.txt /tmp/packages/
RUN apt-get update && /tmp/packages/install-packages.sh runtime && rm -rf /var/lib/apt/lists/* /tmp/packages
COPY --from=build /opt/primus /opt/primus
ENV PATH=/opt/primus/bin:$PATH
WORKDIR /workspace
ENTRYPOINT ["primus"]
CMD ["--help"]
