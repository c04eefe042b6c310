// Reads the numbers of a published tensor, whether it is stored plainly or in a quantised format
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
  // The tensor's bytes; empty if the tensor is stored in quantised or transposed form.
  std::span<const std::byte> plain;
  // Reads elements [first, first + out.size()), counted in the order of the published shape.
  std::function<void(std::int64_t first, std::span<float> out)> read;
};

// Finds a tensor of the language model by name and shape; throws kInvalid if it is missing or has another
// shape. Adds to `used` the full names of the tensors that store the tensor. For fused experts,
// LanguageTensors::check_copies() adds the names instead. The folder must outlive the result.
// `whole_numbers`: whether int64 is accepted.
PublishedTensor find_published(const LanguageTensors& tensors, const std::string& name,
                               const std::vector<std::int64_t>& shape, TensorNames& used,
                               bool whole_numbers = false);

// Adds a note if `used` has tensors in 4 bits, whose numbers are written in their type before quantisation.
void note_four_bit(const TensorNames& used, std::vector<std::string>& notes);

}  // namespace primus
