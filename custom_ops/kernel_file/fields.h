// Fields of kernels.json that several kinds of kernels have.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernel_file/kernel.h"
#include "support/json_reader.h"

namespace onnxopt {

Dtype ReadDtype(const JsonReader& json);

std::vector<Dtype> ReadDtypes(const JsonReader& list);

// A name that C and ONNX take.
std::string ReadIdentifier(const JsonReader& json);

std::vector<std::uint32_t> ReadIds(const JsonReader& list);

// The fields that entry points of every kind have.
Variant ReadVariant(const JsonReader& json);

}  // namespace onnxopt
