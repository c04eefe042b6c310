// The settings of one training run: a plain struct with one typed field per key of keys.def, named as the
// key.
//
// A default-constructed TrainerConfig holds the defaults. Keys marked .derived in keys.def are 0 (or "") in
// it: derive() fills them in, and load_experiment() has already done so, after which every field can be read
// as it is. Plain data: copy it freely; reading it from several threads is safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace primus::config {

struct TrainerConfig {
#define GROUP(id, title)
#define KEY(type, name, fallback, ...) type name = fallback;
#include "config/keys.def"
#undef KEY
#undef GROUP

  // Microbatches in one optimizer step of one rank. Needs micro_batch_size > 0.
  std::int64_t num_microbatches(std::int64_t data_parallel_size = 1) const {
    return global_batch_size / (micro_batch_size * data_parallel_size);
  }
  // Rows of the embedding: `vocabulary` rounded up to make_vocab_size_divisible_by.
  std::int64_t padded_vocab_size(std::int64_t vocabulary) const {
    const std::int64_t unit = make_vocab_size_divisible_by;
    return (vocabulary + unit - 1) / unit * unit;
  }

  bool operator==(const TrainerConfig&) const = default;
};

// Fills every .derived field that is still unset from the others. Does nothing to fields that are set, and
// leaves a field unset where what it comes from is unset too.
void derive(TrainerConfig& config);

// Whether train_iters is not known yet: it follows from train_epochs or train_minutes, which take data or
// time to be turned into steps (set_train_iters in experiment.h). It is 0 until then.
inline bool length_is_open(const TrainerConfig& config) {
  return (config.train_epochs || config.train_minutes) && config.train_iters == 0;
}

}  // namespace primus::config
