// Curves of a run in bounded memory. Points are added one by one. If there are too many points, neighbouring
// points are merged into buckets. A bucket keeps the minimum, maximum, mean and number of non-finite values,
// so every spike and every NaN stays visible, whatever the length of the run. Not thread-safe.
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
  double minimum = 0, largest = 0, sum = 0;  // minimum, maximum and sum of the finite values
  std::int64_t finite = 0, other = 0;        // number of finite values, and number of NaN or infinite values
  double mean() const { return sum / static_cast<double>(finite); }
  void add(double value);
  void add(const Bucket& later);
};

class Curves {
 public:
  static constexpr std::size_t kMaxCurves = 64;

  // `max_buckets`: maximum number of buckets; must be even and at least 2.
  explicit Curves(std::size_t max_buckets) : max_(max_buckets) {}

  // Starts a new point. `step` must increase from point to point; its unit is arbitrary. `samples` and
  // `seconds` are the point's position on other x-axes.
  void begin(std::int64_t step, double samples, double seconds);
  // Sets the value of the new point on the curve `name`. After kMaxCurves curves, further names are ignored.
  void add(std::string_view name, double value);

  struct Position {
    std::int64_t first = 0, last = 0;  // first and last step of the points in the bucket
    double samples = 0, seconds = 0;   // samples and seconds at the last of these steps
  };
  const std::vector<Position>& positions() const { return positions_; }
  // Returns the curves by name. Each curve has one bucket per entry of positions(); a bucket is empty if its
  // points have no value on the curve.
  const std::map<std::string, std::vector<Bucket>, std::less<>>& curves() const { return curves_; }
  // Returns the number of points per bucket; 1 means that every value is kept.
  std::int64_t points_per_bucket() const { return width_; }

 private:
  void halve();

  std::size_t max_;
  std::int64_t width_ = 1, in_last_ = 0;
  std::vector<Position> positions_;
  std::map<std::string, std::vector<Bucket>, std::less<>> curves_;
};

}  // namespace primus
