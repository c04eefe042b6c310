#include "lm/data/text_split.h"

#include <fmt/format.h>

namespace primus::data {
namespace {

bool is_empty(const Share& share) { return share.first == share.last; }

std::int64_t tokens_in(const TokenSource& source, const Share& share) {
  std::int64_t tokens = 0;
  for (std::int64_t i = share.first; i < share.last; ++i) tokens += source.length(i);
  return tokens;
}

bool fills_a_sample(const TokenSource& source, const Share& share, std::int64_t seq_length) {
  std::int64_t tokens = 0;
  for (std::int64_t i = share.first; i < share.last && tokens <= seq_length; ++i) tokens += source.length(i);
  return tokens > seq_length;
}

}  // namespace

std::int64_t held_out_from(const TokenSource& source, std::int64_t seq_length, std::int64_t wanted) {
  constexpr std::int64_t kHundredth = 100;
  const std::int64_t all = source.sequences();
  if (fills_a_sample(source, {wanted, all}, seq_length)) return wanted;
  std::int64_t from = all, tokens = 0;
  while (from > 1 && (all - from < (all + kHundredth - 1) / kHundredth || tokens <= seq_length))
    tokens += source.length(--from);
  std::int64_t rest = 0;
  for (std::int64_t i = 0; i < from && rest <= seq_length; ++i) rest += source.length(i);
  return tokens > seq_length && rest > seq_length ? from : wanted;
}

std::vector<Share> split_with_minimum(std::string_view shares, std::int64_t sequences,
                                      const std::array<bool, 3>& drawn,
                                      const std::function<std::int64_t(std::int64_t)>& start_before) {
  const std::vector<Share> rounded = split_sequences(shares, sequences);
  const std::vector<Share> wanted = split_sequences(shares, kManySequences);
  const auto lacks = [&](std::size_t split) {
    return drawn[split] && !is_empty(wanted[split]) && is_empty(rounded[split]);
  };
  if (is_empty(wanted[0]) || (!lacks(1) && !lacks(2))) return rounded;
  std::vector<Share> parts = rounded;
  std::int64_t valid_end = sequences;
  if (lacks(2)) {
    valid_end = start_before(sequences);
    parts[2] = {valid_end, sequences};
  } else if (!is_empty(rounded[2])) {
    valid_end = rounded[2].first;
  }
  if (lacks(1)) {
    parts[1] = {start_before(valid_end), valid_end};
  } else if (!is_empty(rounded[1])) {
    parts[1] = {valid_end - (rounded[1].last - rounded[1].first), valid_end};
  }
  parts[0].last = is_empty(parts[1]) ? valid_end : parts[1].first;
  return parts[0].last > parts[0].first ? parts : rounded;
}

std::vector<Share> split_text(const TokenSource& source, std::string_view shares,
                              const std::array<bool, 3>& drawn, std::int64_t seq_length) {
  const auto start_before = [&](std::int64_t end) {
    std::int64_t from = end, tokens = 0;
    while (from > 0 && tokens <= seq_length) tokens += source.length(--from);
    return from;
  };
  const std::vector<Share> rounded = split_sequences(shares, source.sequences());
  const std::vector<Share> parts = split_with_minimum(shares, source.sequences(), drawn, start_before);
  const bool same = parts[0].last == rounded[0].last;
  return same || fills_a_sample(source, parts[0], seq_length) ? parts : rounded;
}

std::string describe_held_out(const TokenSource& source, const Share& share, bool test) {
  const std::int64_t all = tokens_in(source, {0, source.sequences()}), held = tokens_in(source, share);
  return fmt::format("{} of {} tokens ({:.1f} %) are held out for {}", held, all,
                     100.0 * static_cast<double>(held) / static_cast<double>(all),
                     test ? "the test" : "validation");
}

std::string describe_repeats(std::string_view part, std::int64_t sequences, std::int64_t drawn) {
  return fmt::format("the {} set has {} sequence{}; each evaluation draws {}, so sequences repeat", part,
                     sequences, sequences == 1 ? "" : "s", drawn);
}

std::string note_on_large_share(std::string_view data, const TokenSource& source, const Share& share,
                                double wanted, std::int64_t seq_length, bool test, bool text) {
  constexpr double kTolerance = 0.1;
  const auto all = static_cast<double>(tokens_in(source, {0, source.sequences()}));
  if (static_cast<double>(tokens_in(source, share)) <= (wanted + kTolerance) * all) return "";
  return fmt::format(
      "{}: {}, because this share consists of whole pieces with at least seq_length + 1 ({}) tokens. {}, or "
      "name other data (train_data_path, {}_data_path), or train on all of it (split=100,0,0)",
      data, describe_held_out(source, share, test), seq_length + 1,
      text ? "A JSON line is a piece; plain text (.txt) is cut into pieces of at most 64 KB. To hold out "
             "less, write the data as plain text, add data"
           : "A sequence of the .bin file is a piece. To hold out less, add data",
      test ? "test" : "valid");
}

std::string note_on_small_share(std::string_view data, const TokenSource& source, const Share& share,
                                double wanted, bool test) {
  constexpr double kLeast = 1.0 / 3, kPercent = 100;
  const auto all = static_cast<double>(tokens_in(source, {0, source.sequences()}));
  if (static_cast<double>(tokens_in(source, share)) >= kLeast * wanted * all) return "";
  return fmt::format(
      "{}: {}, far less than {:.3g} %, because whole pieces are held out and the last pieces are short. To "
      "hold out more, set a larger share (split=90,10,0), or name other data (train_data_path, "
      "{}_data_path)",
      data, describe_held_out(source, share, test), kPercent * wanted, test ? "test" : "valid");
}

std::string nothing_to_hold_out(std::string_view data, const TokenSource& source, std::int64_t seq_length,
                                bool text) {
  const std::int64_t tokens = tokens_in(source, {0, source.sequences()});
  const std::int64_t needed = 2 * (seq_length + 1);
  if (tokens < needed) {
    return fmt::format(
        "{}: too little {} to hold some out for validation: it has {} tokens, and training and validation "
        "need {} (seq_length {})",
        data, text ? "text" : "data", tokens, needed, seq_length);
  }
  const std::int64_t pieces = source.sequences();
  return fmt::format(
      "{}: nothing is held out for validation, because {}. {}, or name other data for validation "
      "(train_data_path, valid_data_path)",
      data,
      pieces > 1 ? fmt::format("no division of its {} pieces leaves both training and validation a sequence "
                               "of {} tokens",
                               pieces, seq_length)
      : text     ? "its text is one piece"
                 : "it is one piece",
      text ? "A JSON line is a piece; plain text (.txt) is cut into pieces of at least 1 KB. Add text, write "
             "it as plain text"
           : "A sequence of the .bin file is a piece. Add sequences");
}

Error empty_share(std::string_view shares, std::string_view part, std::string_view data,
                  std::int64_t sequences) {
  constexpr std::int64_t kFewest = 4;
  const std::int64_t percent = (100 + sequences - 1) / sequences;
  const bool test = part == "test";
  return invalid(fmt::format("split '{}' gives {} no sequence of {}, which has {} sequences", shares, part,
                             data, sequences),
                 sequences < kFewest
                     ? "give it more data, or a share of 0"
                     : fmt::format("the smallest share is {} of 100, one sequence (split: {},{},{})", percent,
                                   100 - (test ? 2 : 1) * percent, percent, test ? percent : 0));
}

}  // namespace primus::data
