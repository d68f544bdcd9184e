"""Stand-ins for the CUDA driver and cuBLASLt with a clock, and what drives the library's choice for a product.

Part of the stand-in and of the program of fake_cudnn.py: one file is all three libraries, so that they share the clock.
FAKE_ALGORITHMS: microseconds of each algorithm that cuBLASLt offers. FAKE_ENGINES: of each engine of cuDNN's.
FAKE_REFUSES_ALGORITHMS: cuBLASLt takes none that was chosen before.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from onnxopt.program.gemm import Gemm
from tests.support.fakes import custom_ops_fake_driver

NAMES = ("libcuda.so.1", "libcublasLt.so.13")
_OWN = (
    "cuMemAlloc_v2", "cuEventCreate", "cuEventRecord", "cuEventElapsedTime", "cuStreamBeginCapture_v2",
    "cuStreamEndCapture", "cuGraphLaunch",
)  # fmt: skip
_CLOCK = r"""
static double now, captured;
static int capturing;
static void takes(double microseconds) { *(capturing ? &captured : &now) += microseconds; }
static int listed_time(const char* name, int k, double* time) {
  const char* at = getenv(name);
  for (; at && *at; --k) {
    char* end;
    *time = strtod(at, &end);
    if (k == 0) return 1;
    at = *end ? end + 1 : end;
  }
  return 0;
}
void onnxopt_test_takes(int engine) {
  double time = 1000;
  listed_time("FAKE_ENGINES", engine - 10, &time);
  takes(time);
}
int cuMemAlloc_v2(size_t* data, size_t bytes) { *data = 4096; return 0; }
int cuEventCreate(double** event, unsigned flags) { *event = malloc(sizeof(double)); return 0; }
int cuEventRecord(double* event, void* stream) { *event = now; return 0; }
int cuEventElapsedTime(float* ms, double* start, double* end) { *ms = (*end - *start) / 1000; return 0; }
int cuStreamBeginCapture_v2(void* stream, int mode) { capturing = 1; captured = 0; return 0; }
int cuStreamEndCapture(void* stream, void** graph) { capturing = 0; *graph = (void*)8; return 0; }
int cuGraphLaunch(void* executable, void* stream) { now += captured; return 0; }
typedef struct { unsigned long long data[8]; size_t workspace; int state; float waves; int reserved[4]; } Candidate;
int cublasLtCreate(void** handle) { *handle = (void*)8; return 0; }
int cublasLtDestroy(void* handle) { return 0; }
size_t cublasLtGetVersion() { return 130100; }
const char* cublasLtGetStatusName(int status) { return "CUBLAS_STATUS_FAKE"; }
int cublasLtMatmulDescCreate(void** made, int compute, int scale) { *made = (void*)8; return 0; }
int cublasLtMatmulDescDestroy(void* made) { return 0; }
int cublasLtMatmulDescSetAttribute(void* made, int attribute, const void* value, size_t size) { return 0; }
int cublasLtMatrixLayoutCreate(void** made, int type, uint64_t r, uint64_t c, int64_t d) { *made = (void*)8; return 0; }
int cublasLtMatrixLayoutDestroy(void* made) { return 0; }
int cublasLtMatrixLayoutSetAttribute(void* made, int attribute, const void* value, size_t size) { return 0; }
int cublasLtMatmulPreferenceCreate(void** made) { *made = (void*)8; return 0; }
int cublasLtMatmulPreferenceDestroy(void* made) { return 0; }
int cublasLtMatmulPreferenceSetAttribute(void* made, int attribute, const void* value, size_t size) { return 0; }
int cublasLtMatmulAlgoGetHeuristic(void* h, void* o, void* a, void* b, void* c, void* d, void* p, int wanted,
                                   Candidate* candidates, int* found) {
  double time;
  memset(candidates, 0, wanted * sizeof(Candidate));
  for (*found = 0; *found < wanted && listed_time("FAKE_ALGORITHMS", *found, &time); ++*found) {
    candidates[*found].data[0] = *found;
  }
  return 0;
}
int cublasLtMatmulAlgoCheck(void* h, void* o, void* a, void* b, void* c, void* d, void* algorithm, Candidate* result) {
  memset(result, 0, sizeof(Candidate));
  return getenv("FAKE_REFUSES_ALGORITHMS") ? 15 : 0;
}
int cublasLtMatmul(void* h, void* o, void* alpha, void* a, void* al, void* b, void* bl, void* beta, void* c, void* cl,
                   void* d, void* dl, const Candidate* algorithm, void* workspace, size_t bytes, void* stream) {
  double time = 1000;
  listed_time("FAKE_ALGORITHMS", (int)algorithm->data[0], &time);
  printf("multiply %lld\n", (long long)algorithm->data[0]);
  takes(time);
  return 0;
}
"""
LIBRARY = "".join(
    (
        *(f"#define {name} replaced_{name}\n" for name in _OWN),
        # One file with fake_cudnn.LIBRARY, which has these names too.
        "#define number number_of_driver\n#define answer answer_of_driver\n",
        custom_ops_fake_driver.SOURCE,
        "#undef number\n#undef answer\n",
        *(f"#undef {name}\n" for name in _OWN),
        _CLOCK,
    )
)
# Reads a meaning as JSON and the shapes of its inputs; chooses how it runs, and runs it once.
MAIN = r"""
#include <cstdio>
#include <fstream>
#include "call/gemm.h"
#include "cuda/gemm/choose.h"
#include "cuda/gemm/other_sizes.h"
#include "kernel_file/fields.h"
#include "kernel_file/variants.h"
#include "kernel_file/generated/readers.h"
using namespace onnxopt;
int DriveProduct(const char* path) {
  try {
    std::ifstream stream(path);
    const nlohmann::json json = nlohmann::json::parse(stream);
    const JsonReader root(json, "");
    const std::vector<Dtype> inputs = ReadDtypes(root["inputs"]);
    const Gemm gemm = ReadGemm(root, inputs, ReadDtypes(root["outputs"]));
    Shape shapes[Gemm::kMaxInputs];
    for (std::size_t k = 0; k < inputs.size(); ++k) {
      shapes[k].rank = 0;
      for (const auto& dim : json["shapes"][k]) shapes[k].dims[shapes[k].rank++] = dim.get<std::int64_t>();
    }
    const Product product = MakeProduct(gemm, shapes);
    const unsigned aligned = json["alignment"].get<unsigned>();
    const cuda::PlanKey key{product.m, product.n, product.k, 1, 0, 0, 0, product.ldb, aligned, 16, 16, 16,
                            json["tf32"].get<bool>(), json["workspace"].get<bool>(), gemm.operands()};
    const cuda::Driver* const driver = cuda::FindDriver();
    const cublaslt::Api* const api = cublaslt::Find();
    if (driver == nullptr || api == nullptr) throw Error("no stand-in");
    cuda::Plan plan(*api, gemm, key);
    void* const memory = reinterpret_cast<void*>(8192);
    const auto eight = [](auto* of) { return reinterpret_cast<decltype(of)>(8); };
    const cuda::ProductCall call{*driver, *api, eight(cublaslt::Handle()), eight(cuda::Context()),
                                 eight(cuda::Stream()), json["capturing"].get<bool>(), json["states"].get<bool>(),
                                 json["first"].get<bool>(), shapes[gemm.a], [&](std::size_t) { return memory; }};
    const auto at = [](std::size_t k) { return reinterpret_cast<void*>(16 * (k + 1)); };
    const cuda::Operands operands{at(gemm.a), at(gemm.b), gemm.bias ? at(*gemm.bias) : nullptr,
                                  gemm.residual ? at(*gemm.residual) : nullptr, reinterpret_cast<void*>(4096)};
    for (int k = 0; k < json["loads"].get<int>(); ++k) {
      cuda::LoadForSizes(call, cuda::NameOfGpu(*driver), operands, gemm, key);
      std::printf("loaded\n");
    }
    cuda::Choose(call, operands, &plan);
    plan.Run(call.handle, operands, call.scratch, call.stream);
  } catch (const std::exception& e) {
    std::printf("error %s\n", e.what());
    return 1;
  }
  return 0;
}
"""


@dataclasses.dataclass(frozen=True)
class Call:
    """A product and the shapes of its inputs. alignment: of a, in bytes. workspace: whether there may be one.

    states: whether the graph states the shapes. first: whether they are those that the node meets first. loads: how
    often kernels for other numbers of rows are loaded first.
    """

    meaning: Gemm
    shapes: Sequence[Sequence[int]]
    alignment: int = 16
    tf32: bool = False
    workspace: bool = True
    capturing: bool = False
    states: bool = True
    first: bool = False
    loads: int = 0

    def write(self, path: Path) -> Path:
        """For the program."""
        self.meaning.verify()
        more: dict[str, Any] = {k: v for k, v in dataclasses.asdict(self).items() if k != "meaning"}
        path.write_text(json.dumps(self.meaning.to_json() | more))
        return path


def ran(lines: Sequence[str]) -> str:
    """What ran the product once it was chosen: "algorithm 2" or "engine 12". AssertionError where nothing did."""
    last = lines[-1]
    match = re.fullmatch(r"(multiply|execute) (\d+).*", last)
    assert match is not None, lines
    return f"{'algorithm' if match[1] == 'multiply' else 'engine'} {match[2]}"
