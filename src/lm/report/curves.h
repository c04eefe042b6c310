// Curves of a run in bounded memory: points arrive one by one, and when there are too many, neighbouring
// points are merged into buckets. A bucket keeps minimum, maximum, mean and the number of non-finite values,
// so every spike and every NaN stays visible in a run of any length. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace primus {

// The values of one curve in one bucket.
struct Bucket {
  double minimum = 0, largest = 0, sum = 0;  // over the finite values
  std::int64_t finite = 0, other = 0;        // number of finite values, and number of NaN or infinite values
  double mean() const { return sum / static_cast<double>(finite); }
  void add(double value);
  void add(const Bucket& later);
};

class Curves {
 public:
  static constexpr std::size_t kMaxCurves = 64;

  // `max_buckets`: max number of buckets; even, at least 2.
  explicit Curves(std::size_t max_buckets) : max_(max_buckets) {}

  // Starts a new point. `step` increases from point to point, in any unit. `samples` and `seconds` are
  // alternative positions of the point on the x-axis.
  void begin(std::int64_t step, double samples, double seconds);
  // Sets the new point's value on the curve `name`. Names beyond kMaxCurves curves are ignored.
  void add(std::string_view name, double value);

  struct Position {
    std::int64_t first = 0, last = 0;  // first and last step
    double samples = 0, seconds = 0;   // samples and seconds at the last step
  };
  const std::vector<Position>& positions() const { return positions_; }
  // Curves by name. Each curve has as many buckets as positions(); a bucket is empty if its points have no
  // value.
  const std::map<std::string, std::vector<Bucket>, std::less<>>& curves() const { return curves_; }
  // Points per bucket; 1: every value is kept.
  std::int64_t points_per_bucket() const { return width_; }

 private:
  void halve();

  std::size_t max_;
  std::int64_t width_ = 1, in_last_ = 0;
  std::vector<Position> positions_;
  std::map<std::string, std::vector<Bucket>, std::less<>> curves_;
};

}  // namespace primus
