// The settings of one training run: a struct with one typed field per key of keys.def, named like the key.
//
// A new key changes this header and recompiles each file that includes it. A change of a key's help, rules or
// default does not recompile these files. Include this header only in .cpp files that read a field, and
// forward-declare TrainerConfig in headers. The build compiles the including files of a folder together
// (primus_library).
//
// A default-constructed TrainerConfig contains the defaults, with 0 (or "") in keys marked .derived in
// keys.def. derive() computes these fields. load_experiment() calls derive(), so that all its fields are
// valid. Plain data: copy it freely; reading it from several threads is safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace primus::config {

// The defaults of all keys. The values are not in the header, so that a changed default recompiles only
// config/.
struct KeyDefaults {
#define PRIMUS_KEY_FIELD(type, name) type name;
#include "config/key_fields.def"  // generated from keys.def
#undef PRIMUS_KEY_FIELD
};
const KeyDefaults& key_defaults();

struct TrainerConfig {
#define PRIMUS_KEY_FIELD(type, name) type name = key_defaults().name;
#include "config/key_fields.def"
#undef PRIMUS_KEY_FIELD

  // Microbatches per optimizer step of one rank. Needs micro_batch_size > 0.
  std::int64_t num_microbatches(std::int64_t data_parallel_size = 1) const {
    return global_batch_size / (micro_batch_size * data_parallel_size);
  }
  // Rows of the embedding: `vocabulary` rounded up to a multiple of make_vocab_size_divisible_by.
  std::int64_t padded_vocab_size(std::int64_t vocabulary) const {
    const std::int64_t unit = make_vocab_size_divisible_by;
    return (vocabulary + unit - 1) / unit * unit;
  }

  bool operator==(const TrainerConfig&) const;
};

// Computes every unset .derived field. A field stays unset if its sources are unset, too.
void derive(TrainerConfig& config);

// Returns whether train_iters is still unknown (0), because it follows from train_epochs or train_minutes.
// The conversion needs the data or the time of a step (set_train_iters in experiment.h).
inline bool length_is_open(const TrainerConfig& config) {
  return (config.train_epochs || config.train_minutes) && config.train_iters == 0;
}

}  // namespace primus::config
