#include "lm/train/objectives/kept_answers.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "lm/train/step/session.h"

namespace primus {
namespace {

// Names of the tensors in a checkpoint.
constexpr const char *kResults = "rollouts.results", *kTexts = "rollouts.texts",
                     *kSampled = "rollouts.sampled_log_probs", *kOld = "rollouts.old_log_probs",
                     *kEstimates = "rollouts.estimates";

// The first columns of the texts: the index of the prompt's record, the number of tokens of the prompt, the
// number of tokens of the answer, and whether the model ended the answer. The tokens of both follow.
enum Column : std::int64_t { kRecord, kPrompt, kAnswer, kFinished, kTokens };

// A tensor [answers, columns] of which a rank has some rows.
template <class T>
struct Table {
  Table(std::int64_t rows, std::int64_t columns) : width(columns) {
    values.resize(static_cast<std::size_t>(rows * columns));
  }
  std::span<T> row(std::int64_t index) {
    return std::span(values).subspan(static_cast<std::size_t>(index * width),
                                     static_cast<std::size_t>(width));
  }
  std::int64_t width;
  std::vector<T> values;
};

template <class T>
TensorSource source_of(const char* name, DType dtype, std::int64_t answers, Table<T> table, HeldRuns runs) {
  TensorSource source;
  source.name = name;
  source.dtype = dtype;
  source.shape = {answers, table.width};
  source.runs = std::move(runs);
  const auto kept = std::make_shared<const std::vector<T>>(std::move(table.values));
  source.fill = [kept](std::uint64_t offset, std::span<std::byte> out) {
    std::memcpy(out.data(), std::as_bytes(std::span(*kept)).data() + offset, out.size());
  };
  return source;
}

// Reads a whole tensor [answers, columns]. Empty if the checkpoint has no such tensor.
template <class T>
std::optional<Table<T>> read_table(const CheckpointReader& checkpoint, const char* name, DType dtype,
                                   std::int64_t answers, std::int64_t columns) {
  const std::optional<TensorView> saved = checkpoint.find(TensorPart::kOptimizer, name);
  const std::array shape = {answers, columns};
  if (!saved || !std::ranges::equal(saved->shape, shape)) return std::nullopt;
  Table<T> table(answers, columns);
  checkpoint.read(TensorPart::kOptimizer, name, dtype, shape,
                  std::as_writable_bytes(std::span(table.values)));
  return table;
}

}  // namespace

Error impossible_answer(const CheckpointReader& checkpoint, std::int64_t number) {
  return invalid(fmt::format("{}: the saved answer {} has impossible lengths or tokens",
                             checkpoint.folder().string(), number),
                 "set no_load_optim: true to continue without the saved answers and optimizer states, or "
                 "remove this checkpoint to continue from the one before it");
}

KeptAnswers::KeptAnswers(TrainingSession& session, Place place)
    : session_(session), place_(std::move(place)), collector_(session) {
  const std::int64_t context = session.rank().mesh().shape().context;
  losses_ = session.rank().persistent(
      DType::kF32, {place_.rows.microbatches, place_.rows.micro_batch * place_.rows.sequence / context});
}

void KeptAnswers::keep(std::vector<Rollout> answers, std::int64_t filled) {
  answers_ = std::move(answers);
  filled_ = filled;
  records_ = answers_.empty() || answers_.front().old_log_probs.empty();
}

void KeptAnswers::record(const TokenLosses& tokens) {
  engine::Rank& rank = tokens.rank;
  if (rank.measuring() || !records_ || tokens.microbatch >= filled_) return;
  const Tensor row = losses_.slice(tokens.microbatch, tokens.microbatch + 1);
  PRIMUS_CHECK("KeptAnswers::record", row.bytes() == tokens.losses.bytes());
  rank.compute().copy_on_device(row.data, tokens.losses.data, row.bytes());
}

std::span<const Rollout> KeptAnswers::answers() {
  collect();
  return answers_;
}

void KeptAnswers::collect() {
  if (session_.rank().measuring()) {
    for (std::int64_t i = 0; i < place_.rows.microbatches; ++i) collector_.collect(losses_);
    return;
  }
  if (!std::exchange(records_, false)) return;
  std::vector<float> all;
  for (std::int64_t i = 0; i < filled_; ++i) {
    const Tensor row = losses_.slice(i, i + 1).reshaped({losses_.cols()});
    const std::vector<float> values = collector_.collect(row);
    all.insert(all.end(), values.begin(), values.end());
  }
  std::vector<std::int64_t> lengths;
  for (const Rollout& answer : answers_) lengths.push_back(answer.inputs());
  const std::vector<std::int64_t> begins = first_fit(lengths, place_.rows.sequence);
  for (std::size_t i = 0; i < answers_.size(); ++i) {
    Rollout& answer = answers_[i];
    answer.old_log_probs.clear();
    const std::int64_t first = begins[i] + std::ssize(answer.prompt) - 1;
    for (std::int64_t t = 0; t < std::ssize(answer.answer); ++t)
      answer.old_log_probs.push_back(-all[static_cast<std::size_t>(first + t)]);
  }
}

std::vector<TensorSource> KeptAnswers::state(std::span<const double> results) {
  collect();
  const std::int64_t rows = std::ssize(place_.numbers), sequence = place_.rows.sequence;
  Table<double> values(place_.writes ? rows : 0, place_.columns);
  Table<std::int32_t> texts(place_.writes ? rows : 0, kTokens + length());
  Table<float> sampled(place_.writes ? rows : 0, sequence), old(place_.writes ? rows : 0, sequence);
  // The values, advantages and returns of PPO, one after the other.
  Table<float> estimates(place_.writes && place_.estimates ? rows : 0, 3 * length());
  const auto runs_of = [&](std::int64_t columns) {
    HeldRuns runs;
    for (const std::int64_t number : place_.numbers)
      if (place_.writes) runs.push_back({.begin = number * columns, .length = columns});
    return runs;
  };
  for (std::int64_t i = 0; place_.writes && i < rows; ++i) {
    const std::int64_t number = place_.numbers[static_cast<std::size_t>(i)];
    const Rollout& answer = answers_[static_cast<std::size_t>(i)];
    std::ranges::copy(results.subspan(static_cast<std::size_t>(number * place_.columns),
                                      static_cast<std::size_t>(place_.columns)),
                      values.row(i).begin());
    const std::span<std::int32_t> text = texts.row(i);
    text[kRecord] = static_cast<std::int32_t>(answer.record);
    text[kPrompt] = static_cast<std::int32_t>(answer.prompt.size());
    text[kAnswer] = static_cast<std::int32_t>(answer.answer.size());
    text[kFinished] = answer.finished ? 1 : 0;
    const auto begin = std::ranges::copy(answer.prompt, text.begin() + kTokens).out;
    std::ranges::copy(answer.answer, begin);
    // An appended token is stored as the complement of its id, which is negative.
    for (std::size_t t = 0; t < answer.generated.size(); ++t)
      if (answer.generated[t] == 0) begin[static_cast<std::ptrdiff_t>(t)] = ~answer.answer[t];
    std::ranges::copy(answer.log_probs, sampled.row(i).begin());
    std::ranges::copy(answer.old_log_probs, old.row(i).begin());
    if (!place_.estimates) continue;
    auto to = estimates.row(i).begin();
    for (const std::vector<float>* const one : {&answer.values, &answer.advantages, &answer.returns}) {
      std::ranges::copy(*one, to);
      to += length();
    }
  }
  std::vector<TensorSource> sources;
  const std::int64_t all = place_.answers, columns = place_.columns, width = texts.width;
  sources.push_back(source_of(kResults, DType::kF64, all, std::move(values), runs_of(columns)));
  sources.push_back(source_of(kTexts, DType::kI32, all, std::move(texts), runs_of(width)));
  sources.push_back(source_of(kSampled, DType::kF32, all, std::move(sampled), runs_of(sequence)));
  sources.push_back(source_of(kOld, DType::kF32, all, std::move(old), runs_of(sequence)));
  if (place_.estimates) {
    const std::int64_t wide = estimates.width;
    sources.push_back(source_of(kEstimates, DType::kF32, all, std::move(estimates), runs_of(wide)));
  }
  return sources;
}

std::vector<double> KeptAnswers::restore(const CheckpointReader& checkpoint) {
  const std::int64_t all = place_.answers, sequence = place_.rows.sequence;
  auto results = read_table<double>(checkpoint, kResults, DType::kF64, all, place_.columns);
  auto texts = read_table<std::int32_t>(checkpoint, kTexts, DType::kI32, all, kTokens + length());
  auto sampled = read_table<float>(checkpoint, kSampled, DType::kF32, all, sequence);
  auto old = read_table<float>(checkpoint, kOld, DType::kF32, all, sequence);
  std::optional<Table<float>> estimates;
  if (place_.estimates) estimates = read_table<float>(checkpoint, kEstimates, DType::kF32, all, 3 * length());
  if (!results || !texts || !sampled || !old || estimates.has_value() != place_.estimates) return {};
  std::vector<Rollout> answers;
  for (const std::int64_t number : place_.numbers) {
    const std::span<const std::int32_t> row = texts->row(number), tokens = row.subspan(kTokens);
    const std::int64_t prompt = row[kPrompt], answer = row[kAnswer];
    const std::int64_t vocab = session_.settings().model.vocab;
    const bool fits = prompt > 0 && answer > 0 && prompt <= sequence && answer <= sequence &&
                      prompt + answer <= length() &&
                      std::ranges::all_of(tokens.first(static_cast<std::size_t>(prompt + answer)),
                                          [vocab](std::int32_t id) { return std::max(id, ~id) < vocab; }) &&
                      std::ranges::none_of(tokens.first(static_cast<std::size_t>(prompt)),
                                           [](std::int32_t id) { return id < 0; });
    if (!fits) throw impossible_answer(checkpoint, number);
    const auto middle = tokens.begin() + prompt;
    answers.push_back({.record = row[kRecord],
                       .prompt = {tokens.begin(), middle},
                       .answer = {middle, middle + answer},
                       .log_probs = {},
                       .old_log_probs = {},
                       .finished = row[kFinished] != 0});
    const auto values = [&](Table<float>& table) {
      const std::span<const float> from = table.row(number).first(static_cast<std::size_t>(answer));
      return std::vector<float>(from.begin(), from.end());
    };
    std::vector<std::int32_t>& ids = answers.back().answer;
    if (std::ranges::any_of(ids, [](std::int32_t id) { return id < 0; })) {
      for (std::int32_t& id : ids) {
        answers.back().generated.push_back(id >= 0 ? 1 : 0);
        id = std::max(id, ~id);
      }
    }
    answers.back().log_probs = values(*sampled);
    answers.back().old_log_probs = values(*old);
    if (!estimates) continue;
    answers.back().last_is_input = true;
    auto from = estimates->row(number).begin();
    for (std::vector<float>* const one :
         {&answers.back().values, &answers.back().advantages, &answers.back().returns}) {
      one->assign(from, from + answer + 1);
      from += length();
    }
  }
  answers_ = std::move(answers);
  records_ = false;
  return std::move(results->values);
}

}  // namespace primus
