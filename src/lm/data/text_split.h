// Chooses which sequences of a text, and which conversations, are used for training, validation and test.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "lm/data/gpt_dataset.h"

namespace primus::data {

// A number of sequences so large that split_sequences() gives every share above 0 at least one sequence.
inline constexpr std::int64_t kManySequences = std::int64_t{1} << 50;

// Returns the first sequence that is used for validation if the user sets no split. Returns `wanted` if the
// sequences from `wanted` on fill a sample. Otherwise, validation gets the last hundredth of the sequences,
// but at least enough for one sample. The border is between two sequences, so that no sequence is used for
// both. If the data are too short to divide, returns `wanted`. For text, whose share has no fixed rounding,
// pass the number of sequences as `wanted`.
std::int64_t held_out_from(const TokenSource& source, std::int64_t seq_length, std::int64_t wanted);

// Like split_sequences(), but enlarges validation or test shares that are above 0 and round to zero
// sequences. A share is enlarged only if `drawn` says that its samples will be drawn. The enlarged share
// begins at sequence start_before(end), where `end` is the end of the share. Training gets fewer sequences.
// If no sequence would remain for training, returns the result of split_sequences().
std::vector<Share> split_with_minimum(std::string_view shares, std::int64_t sequences,
                                      const std::array<bool, 3>& drawn,
                                      const std::function<std::int64_t(std::int64_t)>& start_before);

// Like split_with_minimum(), for text: training, validation and test data each get at least enough sequences
// for one sample.
std::vector<Share> split_text(const TokenSource& source, std::string_view shares,
                              const std::array<bool, 3>& drawn, std::int64_t seq_length);

// Returns a text for the log such as "20 of 1120 tokens (1.8 %) are held out for validation", or "... for the
// test" if `test`.
std::string describe_held_out(const TokenSource& source, const Share& share, bool test);

// Returns a text for the log that an evaluation draws more sequences than its data have. `part`: "validation"
// or "test". `sequences`: number of different sequences of the part. `drawn`: number of sequences of one
// evaluation, which is larger.
std::string describe_repeats(std::string_view part, std::int64_t sequences, std::int64_t drawn);

// Returns the warning for a share of validation or test data that exceeds `wanted` (a fraction of all
// tokens) by more than a tenth of all tokens; "" if the share is smaller. The warning states the reason and
// the remedies. `data`, `text`: as for nothing_to_hold_out().
std::string note_on_large_share(std::string_view data, const TokenSource& source, const Share& share,
                                double wanted, std::int64_t seq_length, bool test, bool text);

// Returns the warning for a share that is less than a third of `wanted`; "" if the share is larger. Shares
// are counted in pieces, and the last pieces of data can be much shorter than the others.
std::string note_on_small_share(std::string_view data, const TokenSource& source, const Share& share,
                                double wanted, bool test);

// Returns a note on data of which held_out_from() holds out no sequence. The note states the reason and the
// remedy. `data`: the path that the user gave. `text`: whether the data are text, and not a .bin file.
std::string nothing_to_hold_out(std::string_view data, const TokenSource& source, std::int64_t seq_length,
                                bool text);

// Returns the error for a share that is above 0 but contains no sequence. `part`: "train", "valid" or "test".
Error empty_share(std::string_view shares, std::string_view part, std::string_view data,
                  std::int64_t sequences);

}  // namespace primus::data
