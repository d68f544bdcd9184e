"""A stand-in for libcudnn.so.9 that writes down every call, and a program that drives the library's code with it.

The heuristic offers FAKE_CONFIGS configurations; engine k is number 10 + k and has one knob of type 3 and value k.
FAKE_REFUSED: engines whose plans cannot be finalized, as "0 1"; FAKE_REFUSES_FIRST: how many plans are refused before
others are not; FAKE_REFUSES_EPILOGUES: so are those of graphs with more than one operation. FAKE_NOTES: numerical
notes of every engine, as "0 4". FAKE_WORKSPACE: bytes that plans ask for. FAKE_COMPILED: engines that compile at run
time. FAKE_ONLY_FALLBACKS: the heuristic offers nothing but fallbacks. FAKE_FAILING: engines whose plans fail when they
run. The plan of engine 10 as text is "plan of 10".
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

from onnxopt.program.convolution import Convolution
from onnxopt.program.window import Window
from tests.support import builds
from tests.support.emulation import library_programs
from tests.support.fakes import fake_products

_TENSOR = 17  # a kind of descriptor
_LIBRARY = r"""
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
typedef struct { int id, kind, engine, operations, mode; } Descriptor;
static int made = 0;
static int number(const char* name) { const char* text = getenv(name); return text ? atoi(text) : 0; }
static int listed(const char* name, int wanted) {
  const char* at = getenv(name);
  while (at && *at) { char* end; if (strtol(at, &end, 10) == wanted && end != at) return 1; at = *end ? end + 1 : end; }
  return 0;
}
size_t cudnnGetVersion() { return 91900; }
size_t cudnnGetCudartVersion() { return 13000; }
const char* cudnnGetErrorString(int status) { return "CUDNN_STATUS_FAKE"; }
int cudnnCreate(void** handle) { static char handles[1024]; static int made; *handle = handles + made++; return 0; }
int cudnnSetStream(void* handle, void* stream) { printf("stream %p\n", stream); return 0; }
int cudnnBackendCreateDescriptor(int kind, Descriptor** descriptor) {
  *descriptor = calloc(1, sizeof(Descriptor));
  (*descriptor)->id = __sync_add_and_fetch(&made, 1);
  (*descriptor)->kind = kind;
  printf("create %d kind %d\n", (*descriptor)->id, kind);
  return 0;
}
int cudnnBackendDestroyDescriptor(Descriptor* d) { free(d); return 0; }
int cudnnBackendFinalize(Descriptor* d) {
  static int plans = 0;
  int refused = d->kind == 5 && (plans++ < number("FAKE_REFUSES_FIRST") || listed("FAKE_REFUSED", d->engine - 10) ||
                                 (number("FAKE_REFUSES_EPILOGUES") && d->operations > 1));
  printf("finalize %d %s\n", d->id, refused ? "refused" : "ok");
  return refused ? 4001 : 0;
}
int cudnnBackendSetAttribute(Descriptor* d, int name, int type, int64_t count, const void* values) {
  printf("set %d name %d type %d:", d->id, name, type);
  for (int64_t k = 0; k < count; ++k) {
    if (type == 24) printf("%c", ((const char*)values)[k]);
    else if (type == 2) printf(" %d", ((const char*)values)[k]);
    else if (type == 3) printf(" %lld", (long long)((const int64_t*)values)[k]);
    else if (type == 4) printf(" %g", ((const float*)values)[k]);
    else if (type == 5) printf(" %g", ((const double*)values)[k]);
    else if (type == 0 || type == 6) printf(" %lld", (long long)((void* const*)values)[k]);
    else if (type == 15) {
      Descriptor* other = ((Descriptor* const*)values)[k];
      printf(" %d", other->id);
      if (name == 201 || name == 1300 || name == 300 || name == 401) d->operations = other->operations;
      if (name == 300 || name == 401) d->engine = other->engine;
    } else printf(" %d", ((const int*)values)[k]);
  }
  if (name == 405) sscanf((const char*)values, "plan of %d", &d->engine);
  if (name == 200) d->mode = *(const int*)values;
  if (name == 801) d->operations = (int)count;
  if (name == 1301) d->engine = (int)*(const int64_t*)values;
  printf("\n");
  return 0;
}
int cudnnBackendGetAttribute(Descriptor* d, int name, int type, int64_t wanted, int64_t* count, void* values) {
  Descriptor** found = values;
  *count = 1;
  if (name == 202) {
    *count = d->mode == 3 && number("FAKE_ONLY_FALLBACKS") ? 0 : number("FAKE_CONFIGS");
    for (int k = 0; k < wanted; ++k) { found[k]->engine = 10 + k; found[k]->operations = d->operations; }
  } else if (name == 300) {
    found[0]->engine = d->engine;
    found[0]->operations = d->operations;
  } else if (name == 302) {
    found[0]->engine = d->engine - 10;
  } else if (name == 600) { *(int*)values = 3;
  } else if (name == 601) { *(int64_t*)values = d->engine;
  } else if (name == 1301) { *(int64_t*)values = d->engine;
  } else if (name == 405) {
    char text[32];
    *count = snprintf(text, sizeof(text), "plan of %d", d->engine);
    if (wanted) memcpy(values, text, wanted);
  } else if (name == 402) { *(int64_t*)values = number("FAKE_WORKSPACE");
  } else if (name == 1303 || name == 1305) {
    *count = 0;
    for (int note = 0; note < 16; ++note) {
      if (name == 1303 && listed("FAKE_NOTES", note)) ((int*)values)[(*count)++] = note;
      if (name == 1305 && note == 0 && listed("FAKE_COMPILED", d->engine - 10)) ((int*)values)[(*count)++] = note;
    }
  }
  return 0;
}
void onnxopt_test_takes(int engine);  // fake_products.py
int cudnnBackendExecute(void* handle, Descriptor* plan, Descriptor* pack) {
  if (listed("FAKE_FAILING", plan->engine - 10)) return 5000;
  printf("execute %d with %d\n", plan->engine, pack->id);
  onnxopt_test_takes(plan->engine);
  return 0;
}
int cudnnCreateTensorDescriptor(void** t) { *t = malloc(1); return 0; }
int cudnnDestroyTensorDescriptor(void* t) { free(t); return 0; }
int cudnnSetTensor4dDescriptorEx(void* t, int dtype, int n, int c, int h, int w, int sn, int sc, int sh, int sw) {
  printf("tensor %d: %d %d %d %d strides %d %d %d %d\n", dtype, n, c, h, w, sn, sc, sh, sw);
  return 0;
}
int cudnnAddTensor(void* h, const float* alpha, void* a, void* x, const float* beta, void* c, void* y) {
  printf("add %lld to %lld, %g", (long long)x, (long long)y, *beta);
  printf(*alpha != 1 ? " times %.4f\n" : "\n", *alpha);
  return 0;
}
int cudnnCreateActivationDescriptor(void** a) { *a = malloc(1); return 0; }
int cudnnDestroyActivationDescriptor(void* a) { free(a); return 0; }
int cudnnSetActivationDescriptor(void* a, int mode, int nan, double c) {
  printf("activation %d", mode);
  printf(c ? " to %g\n" : "\n", c);
  return 0;
}
int cudnnActivationForward(void* h, void* a, const float* p, void* xt, void* x, const float* q, void* yt, void* y) {
  printf(x == y ? "activate %lld\n" : "activate %lld to %lld\n", (long long)x, (long long)y);
  if (*p != 1 || *q != 0) printf("blend %g %g\n", *p, *q);
  return 0;
}
int cudnnSetTensor(void* h, void* t, void* y, const void* value) {
  printf("fill %lld with %08x\n", (long long)y, *(const unsigned*)value);
  return 0;
}
int cudnnCreateOpTensorDescriptor(void** o) { *o = malloc(1); return 0; }
int cudnnDestroyOpTensorDescriptor(void* o) { free(o); return 0; }
int cudnnSetOpTensorDescriptor(void* o, int mode, int type, int nan) {
  printf("product %d %d\n", mode, type);
  return 0;
}
int cudnnOpTensor(void* h, void* o, const float* p, void* at, const void* a, const float* q, void* bt, const void* b,
                  const float* r, void* ct, void* c) {
  printf("multiply %lld %lld %lld", (long long)a, (long long)b, (long long)c);
  printf(*q != 1 ? " times %g\n" : "\n", *q);
  return 0;
}
"""
# Reads a meaning as JSON and the shapes of its inputs; builds a plan and runs it on operands that lie at 16, 32, ...
_MAIN = r"""
#include <cstdio>
#include <fstream>
#include <iostream>
#include <memory>
#include <set>
#include <vector>
#include "cuda/convolution/other_sizes.h"
#include "cuda/convolution/pending.h"
#include "kernel_file/fields.h"
#include "kernel_file/generated/readers.h"
using namespace onnxopt;
int DriveProduct(const char* path);
int main(int count, char** arguments) {
  setvbuf(stdout, nullptr, _IONBF, 0);
  if (count > 2) return DriveProduct(arguments[2]);
  try {
    std::ifstream stream(arguments[1]);
    const nlohmann::json json = nlohmann::json::parse(stream);
    const JsonReader root(json, "");
    const std::vector<Dtype> inputs = ReadDtypes(root["inputs"]);
    cuda::ConvolutionProblem problem{ReadConvolution(root, inputs, ReadDtypes(root["outputs"])), {}};
    Shape shapes[Convolution::kMaxInputs];
    for (std::size_t k = 0; k < inputs.size(); ++k) {
      shapes[k].rank = 0;
      for (const auto& dim : json["shapes"][k]) shapes[k].dims[shapes[k].rank++] = dim.get<std::int64_t>();
    }
    problem.sizes = MakeConvolution(&problem.convolution, shapes);
    problem.sizes.x_pixel = json["pixels"].value("x", problem.sizes.x_pixel);
    problem.sizes.residual_pixel = json["pixels"].value("residual", problem.sizes.residual_pixel);
    problem.sizes.y_pixel = json["pixels"].value("y", problem.sizes.y_pixel);
    problem.tf32 = json["tf32"].get<bool>();
    problem.alignment = json["alignment"].get<std::int64_t>();
    std::printf("problem %s\n", problem.Describe().c_str());
    const cudnn::Api* api = cudnn::Find();
    if (api == nullptr) throw Error("no stand-in");
    cuda::EngineChoice choice{42, {{3, 7}, {5, 1}}};
    const auto context = reinterpret_cast<cuda::Context>(8);
    const cuda::PlanDevice device{"H200", "H200 9.0"};
    const auto preference = json["soon"].get<bool>() ? cuda::Preference::kSoonest : cuda::Preference::kFastest;
    const auto* measured = json["measured"].get<bool>() ? &choice : nullptr;
    const auto ready = cuda::ReadyFor(*api, context, device, problem, measured, preference);
    if (ready != cuda::ReadyFor(*api, context, device, problem, measured, preference)) throw Error("built twice");
    if (json["sizes"].get<bool>()) cuda::ChooseForSizes(*api, context, device.name, problem);
    if (json["threads"].get<int>() > 0) {
      std::vector<std::shared_ptr<cuda::PendingConvolution>> all;
      for (int k = 0; k < json["threads"].get<int>(); ++k) {
        all.push_back(cuda::PendingConvolution::Start([&] {
          return cuda::ReadyFor(*api, reinterpret_cast<cuda::Context>(16), device, problem, nullptr, preference);
        }));
      }
      for (const auto& pending : all) {
        if (pending->Take() != all[0]->Take()) throw Error("threads built different plans");
      }
      cuda::PendingConvolution::Start([&]() -> cuda::PendingConvolution::Ready { throw Error("unseen"); });
      const auto failing = cuda::PendingConvolution::Start([&]() -> cuda::PendingConvolution::Ready {
        throw Error("as the test asked");
      });
      for (int k = 0; k < 2; ++k) {
        try {
          failing->Take();
        } catch (const Error& e) {
          std::printf("caught %s\n", e.what());
        }
      }
    }
    const auto stream_of = [](std::size_t k) { return reinterpret_cast<cuda::Stream>(k); };
    if (json["handles"].get<bool>()) {
      std::set<cudnn::Handle> handles;
      {
        std::vector<std::unique_ptr<const cuda::BorrowedHandle>> at_once;
        for (std::size_t k = 0; k < 3; ++k) {
          at_once.push_back(std::make_unique<const cuda::BorrowedHandle>(*api, context, stream_of(9)));
          handles.insert(at_once.back()->raw());
        }
        if (handles.size() != 3) throw Error("threads that enqueue at once share a handle");
      }
      for (std::size_t k = 20; k < 120; ++k) {
        const cudnn::Handle first = cuda::BorrowedHandle(*api, context, stream_of(k)).raw();
        if (first != cuda::BorrowedHandle(*api, context, stream_of(k)).raw()) throw Error("two of one stream");
        handles.insert(first);
      }
      if (handles.size() > cuda::BorrowedHandle::kMaxIdle) throw Error("a handle for every stream that ever was");
      std::printf("handles %zu\n", handles.size());
    }
    if (json["offers"].get<bool>()) {
      const auto offered = json["ready"].get<bool>() ? cuda::Preference::kReady : preference;
      for (const cuda::EnginePlan& plan : cuda::OfferedPlans(*api, nullptr, problem, 16, offered)) {
        const auto found = plan.Choice();
        std::string text = std::to_string(found->engine) + " compiled " + std::to_string(plan.compiled()) + " knobs";
        for (const auto& [type, value] : found->knobs) text += " " + std::to_string(type) + "=" + std::to_string(value);
        std::printf("offered %s\n", text.c_str());
      }
    }
    const auto at = [](std::size_t k) { return reinterpret_cast<void*>(16 * (k + 1)); };
    const Convolution& c = problem.convolution;
    const cuda::ConvolutionPointers pointers{at(c.x), at(c.w), c.bias ? at(*c.bias) : nullptr,
                                             c.residual ? at(*c.residual) : nullptr, c.slope ? at(*c.slope) : nullptr,
                                             reinterpret_cast<void*>(4096)};
    for (int k = 0; k < json["loads"].get<int>(); ++k) {
      cuda::LoadForSizes(*api, context, stream_of(9), device.name, problem, pointers, [](std::size_t bytes) {
        std::printf("scratch %zu\n", bytes);
        return reinterpret_cast<void*>(1 << 20);
      });
      std::printf("loaded\n");
    }
    const cuda::BorrowedHandle handle(*api, context, stream_of(9));
    ready->Run(*api, handle.raw(), pointers, reinterpret_cast<void*>(8192));
    std::printf("workspace %lld\n", static_cast<long long>(ready->workspace()));
  } catch (const std::exception& e) {
    std::printf("error %s\n", e.what());
    return 1;
  }
}
"""


@dataclasses.dataclass
class Descriptor:
    """What was set: attribute's number -> values, as text. kind: cudnnBackendDescriptorType_t."""

    kind: int
    values: dict[int, list[str]] = dataclasses.field(default_factory=dict)
    ok: bool = False

    def numbers(self, name: int) -> list[int]:
        return [int(v) for v in self.values[name]]


@dataclasses.dataclass
class Log:
    """What the program wrote: all lines, and the descriptors by number."""

    lines: list[str]
    made: dict[int, Descriptor]

    def of_kind(self, kind: int) -> list[Descriptor]:
        return [d for d in self.made.values() if d.kind == kind]

    def starting(self, word: str) -> list[str]:
        return [line.removeprefix(word + " ") for line in self.lines if line.startswith(word + " ")]


def tensors(log: Log) -> dict[int, list[int]]:
    """Dims and strides by number, dims as N, C, H, W; those of the last graph, where there are several."""
    return {t.numbers(906)[0]: t.numbers(902) + t.numbers(903) for t in log.of_kind(_TENSOR)}


def program() -> Path:
    """The program, beside its stand-in for libcudnn.so.9, which is that of fake_products.NAMES as well."""
    return builds.once("fake_cudnn", _build) / "drive"


def _build(folder: Path) -> None:
    (folder / "cudnn.c").write_text(_LIBRARY + fake_products.LIBRARY)
    stand_in = ["g++", "-x", "c", "-shared", "-fPIC", "-w", "-o", str(folder / "libcudnn.so.9")]
    subprocess.run([*stand_in, str(folder / "cudnn.c")], check=True)
    for name in fake_products.NAMES:
        (folder / name).symlink_to("libcudnn.so.9")
    (folder / "main.cc").write_text(_MAIN + fake_products.MAIN)
    library_programs.compiled(folder / "main.cc", folder / "drive")


def run(program: Path, *arguments: str | Path, **variables: str) -> Log:
    """Drive the library's code with the meaning in a file, or with "product" and the file of a product."""
    ours = {"LD_LIBRARY_PATH": str(program.parent), "FAKE_CONFIGS": "3", "ONNXOPT_CACHE_SIZE": "0"}
    given = {**os.environ, **ours, **variables}
    done = subprocess.run([program, *arguments], capture_output=True, text=True, env=given, check=False)
    lines = done.stdout.splitlines() + [f"warned {line}" for line in done.stderr.splitlines()]
    made: dict[int, Descriptor] = {}
    for line in lines:
        if match := re.fullmatch(r"create (\d+) kind (\d+)", line):
            made[int(match[1])] = Descriptor(int(match[2]))
        elif match := re.fullmatch(r"set (\d+) name (\d+) type \d+:(.*)", line):
            made[int(match[1])].values[int(match[2])] = match[3].split()
        elif match := re.fullmatch(r"finalize (\d+) ok", line):
            made[int(match[1])].ok = True
    return Log(lines, made)


def drive(
    program: Path,
    folder: Path,
    meaning: Convolution,
    shapes: list[list[int]],
    *,
    tf32: bool = False,
    alignment: int = 16,
    measured: bool = False,
    soon: bool = False,
    ready: bool = False,
    offers: bool = False,
    sizes: bool = False,
    loads: int = 0,
    threads: int = 0,
    handles: bool = False,
    pixels: dict[str, int] | None = None,
    **variables: str,
) -> Log:
    """Drive the library's code with a meaning and the shapes of its inputs.

    sizes: asks the heuristic for other sizes too, as `tune` does. loads: how often kernels for them are loaded. pixels:
    elements from one pixel of x, residual or y to the next, where it is a part. variables: of the environment.
    """
    meaning.verify()
    more = {"shapes": shapes, "tf32": tf32, "alignment": alignment, "measured": measured, "soon": soon, "ready": ready}
    more |= {"offers": offers, "sizes": sizes, "loads": loads, "threads": threads, "handles": handles}
    more |= {"pixels": pixels or {}}
    (folder / "meaning.json").write_text(json.dumps(meaning.to_json() | more))
    return run(program, folder / "meaning.json", **variables)


def convolution(count: int = 3, dtype: str = "float16", **fields: Any) -> Convolution:
    """The meaning of a kernel with so many inputs, 3x3 with padding where no window is given."""
    fields.setdefault("window", Window((3, 3), pads=(1, 1, 1, 1)))
    return Convolution((dtype,) * count, (dtype,), **fields)
