// Reads a published tensor as numbers from any storage: plain, or quantised in one of two formats
// (lm/exchange/exchange.h).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lm/checkpoint/safetensors.h"
#include "lm/model/language_tensors.h"

namespace primus {

struct PublishedTensor {
  DType dtype = DType::kF32;  // stored type; bf16 for a quantised tensor
  // The tensor's bytes; empty if the tensor is stored quantised or transposed.
  std::span<const std::byte> plain;
  // Reads elements [first, first + out.size()) in the order of the published shape.
  std::function<void(std::int64_t first, std::span<float> out)> read;
};

// Finds the language model's tensor by name and shape; throws kInvalid if the name is missing or the shape
// differs. Adds the full names of its stored tensors to `used`, except for fused experts, which
// LanguageTensors::check_copies() adds. The folder must outlive the result. `whole_numbers`: accepts int64.
PublishedTensor find_published(const LanguageTensors& tensors, const std::string& name,
                               const std::vector<std::int64_t>& shape, TensorNames& used,
                               bool whole_numbers = false);

}  // namespace primus
