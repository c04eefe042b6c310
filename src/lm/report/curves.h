// Curves of a run in bounded memory: points come in one by one, and once there are too many, neighbours are
// put together. What a bucket keeps (least, largest, mean, how many were no number) shows every spike and
// every NaN of a run of any length. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace primus {

// Values of one curve in one bucket.
struct Bucket {
  double least = 0, largest = 0, sum = 0;  // of the finite ones
  std::int64_t finite = 0, other = 0;      // how many are finite, and how many NaN or infinite
  double mean() const { return sum / static_cast<double>(finite); }
  void add(double value);
  void add(const Bucket& later);
};

class Curves {
 public:
  static constexpr std::size_t kMostCurves = 64;

  // At most `most_buckets` (even, at least 2) are kept.
  explicit Curves(std::size_t most_buckets) : most_(most_buckets) {}

  // A new point, at a position that grows: step (any unit that orders points), and what else the x-axis may
  // show of it.
  void begin(std::int64_t step, double samples, double seconds);
  // Its value on the curve `name`. Further names than kMostCurves are passed over.
  void add(std::string_view name, double value);

  struct Position {
    std::int64_t first = 0, last = 0;  // steps
    double samples = 0, seconds = 0;   // at the last
  };
  const std::vector<Position>& positions() const { return positions_; }
  // By name; as long as positions(), and empty buckets where a point has no value.
  const std::map<std::string, std::vector<Bucket>, std::less<>>& curves() const { return curves_; }
  // Points in a bucket; 1: every value is kept as it is.
  std::int64_t points_per_bucket() const { return width_; }

 private:
  void halve();

  std::size_t most_;
  std::int64_t width_ = 1, in_last_ = 0;
  std::vector<Position> positions_;
  std::map<std::string, std::vector<Bucket>, std::less<>> curves_;
};

}  // namespace primus
