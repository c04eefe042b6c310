#include "lm/data/inspect.h"

#include <algorithm>
#include <bit>

namespace primus::data {

namespace {

void count_lengths(const IndexedDataset& dataset, Inspection& result) {
  for (std::int64_t i = 0; i < dataset.sequences(); ++i) {
    const std::int32_t length = dataset.length(i);
    const auto bin = static_cast<std::size_t>(std::bit_width(static_cast<std::uint32_t>(length)));
    while (result.histogram.size() <= bin) {
      const auto k = static_cast<int>(result.histogram.size());
      result.histogram.push_back(
          k == 0 ? Inspection::Bin{}
                 : Inspection::Bin{std::int64_t{1} << (k - 1), (std::int64_t{1} << k) - 1});
    }
    ++result.histogram[bin].sequences;
    result.histogram[bin].tokens += length;
    result.empty_sequences += length == 0;
    result.shortest = i == 0 ? length : std::min(result.shortest, length);
    result.longest = std::max(result.longest, length);
  }
}

void read_tokens(const IndexedDataset& dataset, const InspectOptions& options, Inspection& result) {
  std::vector<std::int32_t> tokens;
  for (std::int64_t document = 0; document < dataset.documents(); ++document) {
    std::optional<std::int32_t> last;
    std::int64_t before = 0;  // number of tokens of the same document before this sequence
    for (std::int64_t i = dataset.document_start(document); i < dataset.document_start(document + 1); ++i) {
      if (dataset.length(i) == 0) continue;
      tokens.resize(static_cast<std::size_t>(dataset.length(i)));
      dataset.read(i, 0, tokens);
      const auto [low, high] = std::minmax_element(tokens.begin(), tokens.end());
      result.smallest_id = std::min(result.smallest_id.value_or(*low), *low);
      result.largest_id = std::max(result.largest_id.value_or(*high), *high);
      if (options.vocab_size > 0 && (*low < 0 || *high >= options.vocab_size)) {
        const auto beyond = [&](std::int32_t token) { return token < 0 || token >= options.vocab_size; };
        result.beyond_vocabulary += std::count_if(tokens.begin(), tokens.end(), beyond);
        if (!result.first_beyond) {
          const auto first = std::find_if(tokens.begin(), tokens.end(), beyond);
          result.first_beyond = {document, before + (first - tokens.begin()), *first};
        }
      }
      before += dataset.length(i);
      last = tokens.back();
    }
    result.ended_documents += last && last == options.eod;
  }
}

}  // namespace

Inspection inspect(const IndexedDataset& dataset, const InspectOptions& options) {
  Inspection result;
  result.documents = dataset.documents();
  result.sequences = dataset.sequences();
  result.tokens = dataset.tokens();
  for (std::int64_t i = 0; i < dataset.documents(); ++i) {
    result.empty_documents += dataset.document_start(i) == dataset.document_start(i + 1);
  }
  count_lengths(dataset, result);
  result.unused_bytes = std::max<std::int64_t>(
      0, dataset.data_bytes() - dataset.tokens() * std::int64_t{token_size(dataset.token_type())});
  if (options.read_tokens) read_tokens(dataset, options, result);
  dataset.check_unchanged();
  return result;
}

}  // namespace primus::data
