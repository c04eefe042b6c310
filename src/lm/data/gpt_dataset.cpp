#include "lm/data/gpt_dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <set>

#include "base/checked.h"
#include "base/error.h"
#include "lm/data/numpy_random.h"

namespace primus::data {

GptDataset::GptDataset(std::shared_ptr<const TokenSource> source, const OrderOptions& order, TokenRules rules,
                       std::string_view split, const Path& cache)
    : source_(std::move(source)),
      description_(fmt::format("{} ({})", source_->name(), split)),
      rules_(rules),
      seq_length_(order.seq_length) {
  const auto length = [this](std::int64_t i) { return source_->length(i); };
  order_ = cache.empty() ? build_sample_order(order, length, description_)
                         : cached_sample_order(order, length, description_, cache);
}

void GptDataset::check_unchanged() const {
  source_->check_unchanged();
  order_.file.check_unchanged();
}

void GptDataset::read(std::int64_t index, std::span<std::int32_t> tokens) const {
  // Checks every index, because another process may change the mapped files at any time.
  const auto check = [this](bool inside) {
    if (inside) return;
    check_unchanged();
    throw invalid(fmt::format("the sample order of {} is damaged", description_));
  };
  const auto row = static_cast<std::size_t>(order_.shuffle[static_cast<std::size_t>(index)]);
  check(row + 1 < order_.rows.size());
  const SampleOrder::Place end = order_.rows[row + 1];
  SampleOrder::Place at = order_.rows[row];
  std::size_t filled = 0;
  while (filled < tokens.size()) {
    check(at.document <= end.document && end.document < order_.documents.size());
    const std::int32_t sequence = order_.documents[at.document];
    check(sequence >= 0 && sequence < source_->sequences());
    const std::int64_t length = source_->length(sequence);
    const std::int64_t stop = at.document == end.document ? std::int64_t{end.offset} + 1 : length;
    check(at.offset <= stop && stop <= length);
    const auto count = static_cast<std::size_t>(stop - at.offset);
    check(count <= tokens.size() - filled);
    source_->read(sequence, at.offset, tokens.subspan(filled, count));
    if (rules_.vocab_size > 0) {
      check_vocabulary(*source_, sequence, at.offset, tokens.subspan(filled, count), rules_.vocab_size,
                       description_);
    }
    filled += count;
    at = {at.document + 1, 0};
  }
}

void GptDataset::sample(std::int64_t index, std::span<std::int32_t> tokens,
                        std::span<float> loss_mask) const {
  try {
    read(index, tokens);
  } catch (const Error&) {
    check_unchanged();  // throws a better message if a file changed
    throw;
  }
  check_unchanged();
  std::fill(loss_mask.begin(), loss_mask.end(), 1.0f);
  if (rules_.loss_end) {
    for (std::size_t i = 0; i < loss_mask.size(); ++i) {
      if (tokens[i] == *rules_.loss_end) loss_mask[i] = 0;
    }
  }
  if (rules_.pad) {
    for (std::size_t i = 0; i < loss_mask.size(); ++i) {
      if (tokens[i + 1] == *rules_.pad) loss_mask[i] = 0;
    }
    std::replace(tokens.begin(), tokens.end(), *rules_.pad, 0);
  }
}

double GptDataset::learned_tokens(std::int64_t index) const {
  const bool masks = rules_.loss_end || rules_.pad;
  return masks ? Dataset::learned_tokens(index) : static_cast<double>(seq_length_);
}

BlendOrder build_blend_order(const std::vector<double>& weights, std::int64_t size) {
  BlendOrder order;
  order.dataset.reserve(static_cast<std::size_t>(size));
  order.sample.reserve(static_cast<std::size_t>(size));
  std::vector<std::int64_t> counts(weights.size());
  for (std::int64_t i = 0; i < size; ++i) {
    const double place = std::max(static_cast<double>(i), 1.0);
    std::size_t best = 0;
    double best_error = weights[0] * place - static_cast<double>(counts[0]);
    for (std::size_t d = 1; d < weights.size(); ++d) {
      const double error = weights[d] * place - static_cast<double>(counts[d]);
      if (error > best_error) {
        best = d;
        best_error = error;
      }
    }
    order.dataset.push_back(static_cast<std::uint16_t>(best));
    order.sample.push_back(static_cast<std::uint32_t>(counts[best]++));
  }
  return order;
}

BlendOrder build_exhaustive_blend_order(const std::vector<std::int64_t>& sizes) {
  std::int64_t total = 0;
  std::set<std::size_t> unspent;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    total = checked_add(total, sizes[d], "samples of a blend");
    if (sizes[d] > 0) unspent.insert(d);
  }
  BlendOrder order;
  std::vector<std::int64_t> counts(sizes.size());
  for (std::int64_t i = 0; !unspent.empty(); ++i) {
    const double place = std::max(static_cast<double>(i), 1.0);
    std::size_t best = 0;
    double best_error = std::numeric_limits<double>::lowest();
    for (const std::size_t d : unspent) {
      const double weight = static_cast<double>(sizes[d]) / static_cast<double>(total);
      const double error = weight * place - static_cast<double>(counts[d]);
      if (error > best_error) {
        best = d;
        best_error = error;
      }
    }
    order.dataset.push_back(static_cast<std::uint16_t>(best));
    order.sample.push_back(static_cast<std::uint32_t>(counts[best]++));
    if (counts[best] == sizes[best]) unspent.erase(best);
  }
  return order;
}

BlendedDataset::BlendedDataset(std::vector<std::unique_ptr<const Dataset>> datasets, BlendOrder order)
    : datasets_(std::move(datasets)), order_(std::move(order)) {
  for (std::size_t i = 0; i < order_.sample.size(); ++i) {
    const Dataset& dataset = *datasets_[order_.dataset[i]];
    if (order_.sample[i] < dataset.size()) continue;
    throw invalid(
        fmt::format("the blend draws more than the {} samples of {}", dataset.size(), dataset.description()),
        "give the data sets weights, which lets small ones repeat");
  }
}

void BlendedDataset::sample(std::int64_t index, std::span<std::int32_t> tokens,
                            std::span<float> loss_mask) const {
  const auto i = static_cast<std::size_t>(index);
  datasets_[order_.dataset[i]]->sample(order_.sample[i], tokens, loss_mask);
}

double BlendedDataset::learned_tokens(std::int64_t index) const {
  const auto i = static_cast<std::size_t>(index);
  return datasets_[order_.dataset[i]]->learned_tokens(order_.sample[i]);
}

std::string BlendedDataset::description() const {
  std::string text = "a blend of ";
  for (std::size_t d = 0; d < datasets_.size() && d < 3; ++d) {
    text += fmt::format("{}{}", d == 0 ? "" : ", ", datasets_[d]->description());
  }
  if (datasets_.size() > 3) text += fmt::format(" and {} more", datasets_.size() - 3);
  return text;
}

namespace {

class MockSource final : public TokenSource {
 public:
  MockSource(std::int64_t vocab_size, std::int32_t eod)
      : vocab_size_(vocab_size), eod_(eod), lengths_(100'000) {
    Generator random(0);
    for (std::int32_t& length : lengths_) length = random.integer(1, 4096);
  }
  std::int64_t sequences() const override { return static_cast<std::int64_t>(lengths_.size()); }
  std::int32_t length(std::int64_t sequence) const override {
    return lengths_[static_cast<std::size_t>(sequence)];
  }
  void read(std::int64_t sequence, std::int64_t offset, std::span<std::int32_t> out) const override {
    const std::int64_t last = length(sequence) - 1;
    for (std::int32_t& token : out) {
      token = offset == last ? eod_ : static_cast<std::int32_t>((offset + 1) % vocab_size_);
      ++offset;
    }
  }
  std::string name() const override { return "mock data"; }
  // The hash does not include the sequence lengths, because mock data always has the same lengths.
  std::uint64_t fingerprint() const override {
    return static_cast<std::uint64_t>(vocab_size_) << 32 | static_cast<std::uint32_t>(eod_);
  }

 private:
  std::int64_t vocab_size_;
  std::int32_t eod_;
  std::vector<std::int32_t> lengths_;
};

// Parses the numbers of a text like "969, 30, 1". As in Megatron, all characters except digits and dots
// separate numbers.
std::vector<double> parse_split(std::string_view split) {
  std::vector<double> shares;
  constexpr std::string_view kNumber = ".0123456789";
  for (std::size_t begin; (begin = split.find_first_of(kNumber)) != std::string_view::npos;) {
    split.remove_prefix(begin);
    const std::string_view number = split.substr(0, split.find_first_not_of(kNumber));
    double value = 0;
    const auto result = std::from_chars(number.data(), number.data() + number.size(), value);
    if (result.ec != std::errc() || result.ptr != number.data() + number.size()) return {};
    shares.push_back(value);
    split.remove_prefix(number.size());
  }
  if (shares.size() > 3) return {};
  shares.resize(shares.empty() ? 0 : 3);
  return shares;
}

}  // namespace

std::shared_ptr<const TokenSource> make_mock_source(std::int64_t vocab_size, std::int32_t eod) {
  return std::make_shared<MockSource>(vocab_size, eod);
}

std::vector<Share> split_sequences(std::string_view split, std::int64_t sequences) {
  const std::vector<double> shares = parse_split(split);
  const double total = pairwise_sum(shares);
  if (shares.empty() || !(total > 0) || !std::isfinite(total) || split.find('-') != std::string_view::npos) {
    throw invalid(fmt::format("the split '{}' is not up to three numbers for train, valid and test", split),
                  "e.g. split: 969,30,1");
  }
  std::vector<Share> result;
  double low = 0;
  for (const double share : shares) {
    const double high = low + share / total;
    Share& part = result.emplace_back();
    if (high > low) {
      // nearbyint() rounds ties to even, like Python's round().
      part.first = static_cast<std::int64_t>(std::nearbyint(low * static_cast<double>(sequences)));
      part.last = static_cast<std::int64_t>(std::nearbyint(high * static_cast<double>(sequences)));
    }
    low = high;
  }
  return result;
}

}  // namespace primus::data
