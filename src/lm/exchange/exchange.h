// Model folders in and out: a checked copy of a Hugging Face folder or a training checkpoint as a plain
// Hugging Face folder, in another element type or another number of files if asked for.
//
// Every tensor is held against the model that config.json describes: missing, misshapen and foreign ones are
// refused by name before anything is written. Elements that keep their type keep their bits. Tensors are
// streamed: memory stays at a few MB, whatever the model's size.
//
// Adapters (LoraConfig) are folded into the weights that they belong to: what comes out is an ordinary model.
//
// Quantised publications are read, too, and come out in bf16 unless told otherwise:
//   fp8    DeepSeek-V3: X.weight in float8 e4m3 beside X.weight_scale_inv, fp32, one for each 128 x 128 block
//   mxfp4  gpt-oss: X_blocks, two e2m1 numbers to a byte, beside X_scales, an exponent (e8m0) for each 32
//   numbers
//
// Errors: kInvalid (what is missing, misshapen or foreign; a number that the new type cannot hold; a target
// that exists, is nameless, or is written by another process), kUnsupported (a family or an element type),
// FileError. The target appears whole or not at all: until then it lies in TO.partial
// (base/files/partial_folder.h).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/files/file.h"
#include "lm/generate/model_folder.h"
#include "lm/model/family.h"
#include "tensor/dtype.h"

namespace primus {

struct ExchangeOptions {
  // fp32, bf16 or fp16; empty: each tensor as it is. What a model always keeps in fp32 stays so. Of a
  // training checkpoint, fp32 takes the master weights.
  std::optional<DType> dtype;
  std::uint64_t max_shard_bytes = 5'000'000'000;
  // kReplace: another model folder may be where the new one goes. It stays until the new one is complete.
  Existing existing = Existing::kRefuse;
};

struct ExchangeReport {
  ModelConfig config;
  std::int64_t tensors = 0, parameters = 0;  // tied and copied tensors count once
  std::uint64_t bytes = 0;                   // of all weight files
  std::size_t files = 0;                     // that hold weights
  std::vector<std::string> copied;           // other files that came along: tokenizer and the like
  std::vector<std::string> notes;  // what was left out or changed, and weights that are nan or inf; sentences
};

// Holds the weights against the folder's config.json as copy_model() does before it writes, and throws what
// it would throw. Only what must be equal to another tensor is read.
void check_model(const ModelFolder& from, const FamilyRegistry& families);

// `progress` is told bytes written and bytes in all. `to` must not exist, be an empty folder, or, with
// options.existing, be a model folder: a config.json and other files, no folders and no checkpoint of
// training. `env` is where it is written.
ExchangeReport copy_model(const ModelFolder& from, const Path& to, const ExchangeOptions& options,
                          const FamilyRegistry& families,
                          const std::function<void(std::uint64_t done, std::uint64_t total)>& progress = {},
                          Env& env = Env::posix());

}  // namespace primus
