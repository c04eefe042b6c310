// The texts of fine-tuning data, divided into units that samples are packed from (sft_dataset.h). A unit is
// never divided between two samples. A unit is one conversation, or the texts that an objective compares: a
// chosen and a rejected answer (preference_dataset.h).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/system/thread_pool.h"
#include "lm/data/batch.h"
#include "lm/data/conversation_files.h"

namespace primus::data {

// One text of a unit within a sample.
struct UnitDocument {
  std::int64_t tokens = 0;  // number of tokens after truncation
  DocumentRole role = DocumentRole::kNone;
  float value = 0;  // Batch::document_values
};

// Sentences for the log about all units; empty: nothing to report.
struct UnitRemarks {
  std::string fact, warning;
};

// The parameter `room` is the number of tokens of a sample, including the label of the last input. A unit
// that needs more tokens is truncated.
//
// Thread-safety: const methods may be called from any number of threads at once.
class TrainingUnits {
 public:
  virtual ~TrainingUnits() = default;

  // Returns the texts from which the units were made, with the counts of reading.
  virtual const TokenizedConversations& texts() const = 0;
  // Returns the name of one unit, for messages: "conversation".
  virtual std::string_view noun() const = 0;
  // Return why units are left out, for messages: a text after "skipped 2 of 9 pairs:". `lack`: units that
  // have no label within seq_length. `lack_at_any_length`: units that have no label even if they are not
  // truncated.
  virtual std::string_view lack() const { return "no answer tokens within seq_length"; }
  virtual std::string_view lack_at_any_length() const { return "no answer"; }
  // Returns what the user can do if all units lack labels within seq_length; empty: the usual hint.
  virtual std::string_view remedy() const { return {}; }
  // Returns whether the units contain answers. If not, they are prompts.
  virtual bool has_answers() const { return true; }
  virtual UnitRemarks remarks() const { return {}; }
  virtual std::size_t size() const = 0;
  // Returns the number of tokens of a unit before truncation.
  virtual std::int64_t tokens(std::size_t unit) const = 0;
  // Returns the number of tokens of a unit after truncation.
  virtual std::int64_t kept(std::size_t unit, std::int64_t room) const = 0;
  // Returns the number of learned labels after truncation; 0 if the unit cannot be learned.
  virtual std::int64_t labels(std::size_t unit, std::int64_t room) const = 0;
  // Returns what a learnable unit adds to the divisor of the loss (Dataset::learned_tokens).
  virtual std::int64_t divisor(std::size_t unit, std::int64_t room) const { return labels(unit, room); }
  // Writes kept() tokens to `tokens`, and 1 to mask[k] if the label of input k is learned. Leaves all other
  // entries unchanged.
  virtual void write(std::size_t unit, std::int64_t room, std::span<std::int32_t> tokens,
                     std::span<float> mask) const = 0;
  // Appends the texts of the unit, in the order of write().
  virtual void documents(std::size_t unit, std::int64_t room, std::vector<UnitDocument>& out) const = 0;
  // Returns whether the texts have roles. If so, attention always stays within a text.
  virtual bool has_roles() const { return false; }
  // Calls `update` with bytes that identify the content of the truncated unit.
  virtual void hash(std::size_t unit, std::int64_t room,
                    FunctionRef<void(const void*, std::size_t)> update) const = 0;
};

}  // namespace primus::data
