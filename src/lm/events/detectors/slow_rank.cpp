// Detects a rank whose own work in a step takes longer than that of the other ranks. The time without
// waiting for other ranks is compared, because the steps of all ranks take equally long.
//
// Ranks of a pipeline stage do equal work and are compared with each other. A rank that is alone in its stage
// is compared with its first steps, relative to the change of the other ranks.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>

#include "base/terminal/terminal.h"
#include "lm/events/detectors/detector.h"

namespace primus {
namespace {

constexpr std::string_view kName = "slow_rank";
// The steps of a window of at least so many steps and seconds are judged, so that a short interruption causes
// no warning. Steps too short for a window of kMax steps are not judged.
constexpr std::size_t kSteps = 16, kMax = 1024;
constexpr double kSeconds = 3;
// A rank is slow if its ratio to the others exceeds kFactor in all but kQuantile of the steps, and exceeds 1
// by kDeviations standard errors of this quantile. With the median, two bursts within a window would suffice.
constexpr double kQuantile = 0.35, kFactor = 1.055, kRecovered = 1.03, kDeviations = 5;
constexpr std::size_t kSkipped = 2;  // the first steps fill caches

// Returns the median of sorted values without the one at `left_out`.
double median_without(const std::vector<double>& sorted, std::size_t left_out) {
  const auto at = [&](std::size_t i) { return sorted[i < left_out ? i : i + 1]; };
  const std::size_t rest = sorted.size() - 1;
  return (at((rest - 1) / 2) + at(rest / 2)) / 2;
}

// Divides each of `values` by the median of the others.
std::vector<double> ratios_to_others(const std::vector<double>& values) {
  std::vector<double> sorted = values, ratios;
  std::ranges::sort(sorted);
  for (const double value : values) {
    const auto place = static_cast<std::size_t>(std::ranges::lower_bound(sorted, value) - sorted.begin());
    const double others = median_without(sorted, place);
    ratios.push_back(others > 0 ? value / others : 1);
  }
  return ratios;
}

double quantile_of(std::vector<double> values, double share) {
  const auto place = values.begin() + static_cast<std::ptrdiff_t>(share * static_cast<double>(values.size()));
  std::nth_element(values.begin(), place, values.end());
  return *place;
}

class SlowRank final : public Detector {
 public:
  std::optional<RunWarning> iteration(const IterationRecord& record) override {
    const std::size_t world = record.ranks.size();
    if (world < 2) return std::nullopt;
    if (ranks_.size() != world) start(record.ranks);
    if (seen_++ < kSkipped) return std::nullopt;
    add(record);
    if (window_.size() < kSteps || seconds_ < kSeconds) return std::nullopt;
    // With many short steps, the medians need not be computed in every step.
    if (++since_judged_ < window_.size() / 8) return std::nullopt;
    since_judged_ = 0;
    return judge(record.iteration);
  }

 private:
  struct Rank {
    std::deque<double> ratios;  // ratios of the steps in the window
    double base = 0;            // median work of the first window; 0: not known yet
    RankWork first = {};        // medians of the parts of this work
    bool reported = false;
  };
  struct Step {
    double seconds;
    std::vector<RankWork> ranks;
    std::vector<double> work;  // of each rank, as it is compared
  };

  void start(const std::vector<RankWork>& ranks) {
    *this = SlowRank();
    ranks_.resize(ranks.size());
    for (std::size_t i = 0; i < ranks.size(); ++i) stages_[ranks[i].stage].push_back(i);
  }

  void add(const IterationRecord& record) {
    // If the device's work is not measured, the step's time is the work that all ranks have in common.
    std::vector<double> work;
    double largest = 0;
    bool whole = false;
    for (const RankWork& rank : record.ranks) {
      work.push_back(rank.total());
      largest = std::max(largest, rank.total());
      whole = whole || rank.passes > 0;
    }
    const double seconds = record.throughput.now.seconds_per_iteration;
    if (!whole) {
      for (double& value : work) value += std::max(seconds - largest, 0.0);
    }
    std::vector<double> ratios(work.size(), 1);
    for (const auto& [stage, members] : stages_) compare(members, work, ratios);
    for (std::size_t i = 0; i < ratios.size(); ++i) ranks_[i].ratios.push_back(ratios[i]);
    window_.push_back({seconds, record.ranks, std::move(work)});
    seconds_ += seconds;
    while (window_.size() > kSteps &&
           (seconds_ - window_.front().seconds >= kSeconds || window_.size() > kMax)) {
      seconds_ -= window_.front().seconds;
      window_.pop_front();
      for (Rank& rank : ranks_) rank.ratios.pop_front();
    }
  }

  void compare(const std::vector<std::size_t>& members, const std::vector<double>& work,
               std::vector<double>& ratios) {
    std::vector<double> values;
    if (members.size() > 1) {
      for (const std::size_t i : members) values.push_back(work[i]);
      const std::vector<double> of_members = ratios_to_others(values);
      for (std::size_t i = 0; i < members.size(); ++i) ratios[members[i]] = of_members[i];
      return;
    }
    for (std::size_t i = 0; i < work.size(); ++i) {
      if (ranks_[i].base == 0) return;
      values.push_back(work[i] / ranks_[i].base);
    }
    ratios[members[0]] = ratios_to_others(values)[members[0]];
  }

  std::optional<RunWarning> judge(std::int64_t iteration) {
    if (ranks_[0].base == 0) {
      for (std::size_t i = 0; i < ranks_.size(); ++i) {
        ranks_[i].base = median_compared(i);
        ranks_[i].first = {.data = median_work(i, data_of),
                           .passes = median_work(i, passes_of),
                           .update = median_work(i, update_of)};
      }
    }
    std::vector<double> typical, spreads;
    for (const Rank& rank : ranks_) {
      typical.push_back(quantile_of({rank.ratios.begin(), rank.ratios.end()}, kQuantile));
      // Differences between successive steps do not grow when a rank becomes slow.
      std::vector<double> differences;
      for (std::size_t i = 1; i < rank.ratios.size(); ++i)
        differences.push_back(std::abs(rank.ratios[i] - rank.ratios[i - 1]));
      spreads.push_back(median_of(std::move(differences)));
    }
    // The usual noise, as a standard deviation. The constants hold for normal distributions: the median
    // difference of two values is 0.954 deviations, and the standard error of the quantile is 1.29 times that
    // of a mean.
    const double noise = median_of(std::move(spreads)) / 0.954;
    constexpr double kKept = 0.9;
    noise_ = noise_ == 0 ? noise : kKept * noise_ + (1 - kKept) * noise;
    const double error =
        1.29 * (noise > 2 * noise_ ? noise : noise_) / std::sqrt(static_cast<double>(window_.size()));
    const double limit = std::max(kFactor, 1 + kDeviations * error);
    std::optional<std::size_t> slowest;
    int others = 0;
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      if (typical[i] < kRecovered) ranks_[i].reported = false;
      if (typical[i] < limit || std::exchange(ranks_[i].reported, true)) continue;
      others += slowest ? 1 : 0;
      if (!slowest || typical[i] > typical[*slowest]) slowest = i;
    }
    if (!slowest) return std::nullopt;
    return warning(iteration, *slowest, typical[*slowest], limit, others);
  }

  double median_compared(std::size_t rank) const {
    std::vector<double> values;
    for (const Step& step : window_) values.push_back(step.work[rank]);
    return median_of(std::move(values));
  }

  static double data_of(const RankWork& work) { return work.data; }
  static double passes_of(const RankWork& work) { return work.passes; }
  static double update_of(const RankWork& work) { return work.update; }
  bool is_alone(std::size_t rank) const { return stages_.at(window_.back().ranks[rank].stage).size() == 1; }

  double median_work(std::size_t rank, double (*part)(const RankWork&)) const {
    std::vector<double> values;
    for (const Step& step : window_) values.push_back(part(step.ranks[rank]));
    return median_of(std::move(values));
  }

  // Returns the seconds by which a part of the rank's work exceeds the median of its peers; for a rank that
  // is alone in its stage, the work of its first steps.
  double excess(std::size_t rank, double (*part)(const RankWork&)) const {
    std::vector<double> peers;
    const int stage = window_.back().ranks[rank].stage;
    for (const std::size_t i : stages_.at(stage)) {
      if (i != rank) peers.push_back(median_work(i, part));
    }
    return median_work(rank, part) - (peers.empty() ? part(ranks_[rank].first) : median_of(std::move(peers)));
  }

  RunWarning warning(std::int64_t iteration, std::size_t rank, double ratio, double limit, int others) const {
    const double data = excess(rank, data_of);
    const double passes = excess(rank, passes_of);
    const double update = excess(rank, update_of);
    const bool by_data = data >= passes && data >= update;
    const bool by_update = !by_data && update > passes;
    const char* const where = by_data     ? "waiting for data"
                              : by_update ? "in the update or in copying a checkpoint"
                                          : "in forward and backward passes";
    std::uint32_t symptoms = 0;
    for (const Step& step : window_) symptoms |= step.ranks[rank].symptoms;
    const double usual = window_.back().seconds / std::max(ratio, 1.0);
    std::string text = fmt::format(
        "rank {} is slow: its own work in a step takes {:.0f} % longer than {}, mostly {}", rank,
        100 * (ratio - 1),
        is_alone(rank) ? "in its first steps, compared with the ranks of other stages" : "that of its peers",
        where);
    if (others > 0) text += fmt::format("; {} more ranks are slow", others);
    const std::string found = describe_symptoms(symptoms);
    std::string advice = !found.empty() ? fmt::format("on the machine of rank {}, {}", rank, found)
                         : by_data      ? std::string(
                                              "look for a slow disk or busy cores on its machine; a larger "
                                                   "num_workers prepares batches earlier")
                                   : std::string(
                                         "no cause is known: look for other programs on its cores, and "
                                         "compare its machine with the others ('primus preflight')");
    return {.iteration = iteration,
            .value = ratio * usual,
            .usual = usual,
            .limit = limit * usual,
            .text = std::move(text),
            .advice = std::move(advice),
            .rank = static_cast<int>(rank)};
  }

  std::vector<Rank> ranks_;
  std::map<int, std::vector<std::size_t>> stages_;  // ranks by stage
  std::deque<Step> window_;
  double seconds_ = 0;  // of the steps in the window
  double noise_ = 0;    // running mean of the noise; 0: unknown
  std::size_t seen_ = 0, since_judged_ = 0;
};

}  // namespace

extern const DetectorEntry kSlowRank{kName, [] { return std::unique_ptr<Detector>(new SlowRank); }};

}  // namespace primus
