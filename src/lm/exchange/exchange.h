// Imports and exports model folders. Checks a Hugging Face folder or a training checkpoint, and copies it to
// a plain Hugging Face folder. The copy may have another element type or number of files.
//
// Every tensor is compared with the model that config.json describes. A missing, unexpected, or wrongly
// shaped tensor causes an error that names the tensor, before anything is written. Elements whose type does
// not change are copied bit for bit. Tensors are streamed: memory use is a few MB, independent of the model's
// size.
//
// Adapters (LoraConfig) are merged into their weights: the result is an ordinary model.
//
// Quantised models are also supported. Their copy is bf16 by default:
//   fp8    DeepSeek-V3: X.weight in float8 e4m3, and X.weight_scale_inv with one fp32 per 128 x 128 block
//   4 bits bitsandbytes' nf4 and fp4 (lm/exchange/four_bit.h); the copy has the model's compute type
//   mxfp4  gpt-oss: X_blocks with two e2m1 numbers per byte, and X_scales with an e8m0 exponent per 32
//          numbers
//
// Errors: kInvalid for a missing, unexpected or wrongly shaped tensor, for a number that the new type cannot
// hold, and for a target that exists, has no name, or is being written by another process; kUnsupported for a
// family or an element type; FileError if a file cannot be read or written. The target TO appears only when
// the copy is complete. Until then the copy is in TO.partial (base/files/partial_folder.h).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/files/file.h"
#include "lm/checkpoint/tensor_source.h"
#include "lm/generate/model_folder.h"
#include "lm/model/family.h"
#include "tensor/dtype.h"

namespace primus {

struct ExchangeOptions {
  // Element type of the copy: fp32, bf16 or fp16; nullopt: each tensor keeps its type. Tensors that a model
  // always keeps in fp32 stay fp32. If the source is a training checkpoint, fp32 copies the master weights.
  std::optional<DType> dtype;
  std::uint64_t max_shard_bytes = 5'000'000'000;
  // kReplace: the target may be an existing model folder, which remains until the new one is complete.
  Existing existing = Existing::kRefuse;
};

struct ExchangeReport {
  ModelConfig config;
  // Number of tensors and of parameters. Tied and copied tensors of a model count once; those of adapters
  // count as often as the file has them.
  std::int64_t tensors = 0, parameters = 0;
  std::uint64_t bytes = 0;          // total bytes of all weight files
  std::size_t files = 0;            // number of weight files
  std::vector<std::string> copied;  // names of the other files that were copied, such as the tokenizer's
  std::vector<std::string> notes;   // sentences for the user on omissions, changes, and weights that are NaN
                                    // or infinite
};

// Checks the weights against the folder's config.json without writing anything. The checks and errors are
// those of copy_model(). Reads data only of tensors that must equal each other.
void check_model(const ModelFolder& from, const FamilyRegistry& families);

// Calls `visit` with each tensor that copy_model() would write without a conversion.
void read_model(const ModelFolder& from, const FamilyRegistry& families,
                const std::function<void(const TensorSource& tensor)>& visit);

// Copies a model. Calls `progress` with the bytes written and the total bytes. `to` must be absent or an
// empty folder. With kReplace, it may also be a model folder, which contains config.json and further files,
// but no subfolders and no training checkpoint. `to` is written through `env`.
ExchangeReport copy_model(const ModelFolder& from, const Path& to, const ExchangeOptions& options,
                          const FamilyRegistry& families,
                          const std::function<void(std::uint64_t done, std::uint64_t total)>& progress = {},
                          Env& env = Env::posix());

// Writes the model's adapters, and the modules that are trained without adapters, as a PEFT folder in fp32:
// adapter_config.json and adapter_model.safetensors. `to` must be absent or empty. `base`: the value of
// base_model_name_or_path; PEFT and find_model_folder() look for the base model there. Throws kInvalid if the
// model has no adapters, and kUnsupported for adapters that PEFT cannot load (write_peft_config).
ExchangeReport write_adapters(const ModelFolder& from, const Path& to, const std::string& base,
                              const FamilyRegistry& families);

}  // namespace primus
