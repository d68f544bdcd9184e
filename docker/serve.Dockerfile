# syntax=docker/dockerfile:1
# Serves an artifact over HTTP with ONNX Runtime alone; nothing of onnxopt or PyTorch is installed:
#     docker run --rm --gpus all --publish 8000:8000 --volume "$PWD/artifact:/artifact:ro" onnxopt-serve
# Without --gpus it runs on the CPU. examples/fastapi/app.py lists the environment variables that set it up. The host needs
# NVIDIA's driver 580 or later and its container toolkit.
FROM python:3.12.12-slim-bookworm

RUN pip install --no-cache-dir --only-binary=:all: \
    "onnxruntime-gpu[cuda,cudnn]==1.31.1" fastapi==0.165.0 numpy==2.4.6 prometheus-client==0.26.0 uvicorn==0.54.0

# Where pip puts CUDA's and cuDNN's libraries, which ONNX Runtime and the artifact's library ask the loader for.
ENV LD_LIBRARY_PATH=/usr/local/lib/python3.12/site-packages/nvidia/cu13/lib:/usr/local/lib/python3.12/site-packages/nvidia/cudnn/lib

COPY examples/fastapi /service
RUN useradd --uid 10001 --create-home service
USER 10001
WORKDIR /home/service
# The library keeps what it measured at first runs below the home; a volume keeps it for the next container.
ENV ARTIFACT=/artifact
EXPOSE 8000
# Opening a session and first runs take a while.
HEALTHCHECK --start-period=120s --interval=10s --timeout=5s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/v2/health/ready', timeout=4)"]
CMD ["uvicorn", "--app-dir", "/service", "--factory", "app:create_app", "--host", "0.0.0.0", "--port", "8000"]
