# syntax=docker/dockerfile:1
# Optimizes models: docker run --rm --volume "$PWD:/work" onnxopt-convert optimize model.onnx -o artifact
# Built in the source tree after `make wheel`. Needs no GPU, and has no compiler.
FROM python:3.12.12-slim-bookworm

RUN --mount=type=bind,source=dist,target=/dist \
    pip install --no-cache-dir --only-binary=:all: /dist/onnxopt-*-manylinux_2_28_x86_64.whl

RUN useradd --uid 10001 --create-home onnxopt
USER 10001
# Compiled kernels are kept here; a volume keeps them for the next container. Any user may run the image.
ENV XDG_CACHE_HOME=/tmp/cache
WORKDIR /work
ENTRYPOINT ["onnxopt"]
CMD ["--help"]
