// A published tensor as numbers, however it is stored: plain, or quantised in the two ways that models in the
// wild are (lm/exchange/exchange.h).
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
  DType dtype = DType::kF32;         // as stored; of a quantised tensor bf16
  std::span<const std::byte> plain;  // its bytes; empty when quantised, or stored by columns
  // Elements [first, first + out.size()) in the order of the published shape.
  std::function<void(std::int64_t first, std::span<float> out)> read;
};

// The language model's tensor of that name and shape; throws kInvalid when there is none, or its shape is
// another. The full names of what it is stored in are added to `used`, but for fused experts, which
// LanguageTensors::check_copies() adds. The folder must outlive the result. `whole_numbers`: it may be int64.
PublishedTensor find_published(const LanguageTensors& tensors, const std::string& name,
                               const std::vector<std::int64_t>& shape, TensorNames& used,
                               bool whole_numbers = false);

}  // namespace primus
