#include "safe/preflight/corruption.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/error.h"
#include "base/files/crc32c.h"
#include "base/random/random.h"
#include "tensor/arena.h"
#include "tensor/bfloat16.h"
#include "turbo/context.h"
#include "turbo/linear/linear.h"

namespace primus::preflight {
namespace {

constexpr std::int64_t kMaxSide = 16384;

// Device memory, released by the destructor.
class DeviceMemory {
 public:
  DeviceMemory(Device& device, std::int64_t bytes) : device_(device), address_(device.allocate(bytes)) {}
  ~DeviceMemory() { device_.release(address_); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  void* get() const { return address_; }

 private:
  Device& device_;
  void* address_;
};

// Returns integers from -4 to 3. Sums of up to 2^20 of their products stay below 2^24, where fp32 starts to
// round.
std::vector<std::int8_t> whole_numbers(std::int64_t count, std::uint32_t which) {
  const RandomStream stream(20261122, RandomPurpose::kTest, which);
  std::vector<std::int8_t> numbers(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < numbers.size(); i += 4) {
    const Philox::Counter bits = stream.quad(i / 4);
    for (std::size_t j = i; j < std::min(i + 4, numbers.size()); ++j)
      numbers[j] = static_cast<std::int8_t>(static_cast<int>(bits[j - i] >> 29) - 4);
  }
  return numbers;
}

void upload(Stream& stream, const std::vector<std::int8_t>& numbers, void* to) {
  std::vector<BFloat16> values(numbers.size());
  for (std::size_t i = 0; i < numbers.size(); ++i) values[i] = BFloat16(static_cast<float>(numbers[i]));
  stream.copy_to_device(to, values.data(), static_cast<std::int64_t>(values.size() * sizeof(BFloat16)));
  stream.synchronize();
}

// Verifies the product c [n, n] = aT [n, n] * b [n, n] row by row: (c v) = aT (b v) in integers, for a random
// v. A wrong row passes with a probability below 2^-19.
class Proof {
 public:
  Proof(const std::vector<std::int8_t>& a, const std::vector<std::int8_t>& b, std::int64_t n)
      : n_(static_cast<std::size_t>(n)), v_(n_), right_(n_) {
    const RandomStream stream(20261122, RandomPurpose::kTest, 3);
    for (std::size_t i = 0; i < n_; ++i) v_[i] = 1 + (stream.bits(i) >> 12);
    for (std::size_t t = 0; t < n_; ++t) {
      std::int64_t weighted = 0;
      for (std::size_t j = 0; j < n_; ++j) weighted += b[t * n_ + j] * v_[j];
      for (std::size_t i = 0; i < n_; ++i) right_[i] += a[t * n_ + i] * weighted;
    }
  }
  // Returns the first wrong row.
  std::optional<std::size_t> wrong_row(std::span<const float> c) const {
    for (std::size_t i = 0; i < n_; ++i) {
      std::int64_t weighted = 0;
      for (std::size_t j = 0; j < n_; ++j) {
        const float value = c[i * n_ + j];
        if (!(std::fabs(value) < 0x1p24F) || value != std::floor(value)) return i;
        weighted += static_cast<std::int64_t>(value) * v_[j];
      }
      if (weighted != right_[i]) return i;
    }
    return std::nullopt;
  }

 private:
  std::size_t n_;
  std::vector<std::int64_t> v_, right_;
};

}  // namespace

CorruptionResult scan_for_corruption(Device& device, const CorruptionOptions& options) {
  const std::int64_t n = options.side;
  if (n < 1 || n > kMaxSide || options.rounds < 1)
    throw invalid("the sides of the products must be from 1 to 16384");
  const std::vector<std::int8_t> a = whole_numbers(n * n, 1), b = whole_numbers(n * n, 2);
  const Proof proof(a, b, n);

  const std::unique_ptr<Stream> stream = device.create_stream(StreamKind::kCompute);
  const DeviceMemory a_memory(device, n * n * 2), b_memory(device, n * n * 2), c_memory(device, n * n * 4);
  upload(*stream, a, a_memory.get());
  upload(*stream, b, b_memory.get());
  // The scan uses the GEMM of the weight gradient, because the result of this GEMM is fp32.
  const turbo::Gemm product{.role = turbo::GemmRole::kWeightGradient,
                            .a = Tensor(a_memory.get(), DType::kBF16, {n, n}),
                            .b = Tensor(b_memory.get(), DType::kBF16, {n, n}),
                            .c = Tensor(c_memory.get(), DType::kF32, {n, n}),
                            .workspace = {}};
  turbo::Meter meter;
  Arena measuring("scratch");
  turbo::Context plan{device, *stream, measuring, meter};
  launch(plan, product);
  const std::int64_t workspace = std::max(measuring.high_water(), Arena::kAlignment);
  const DeviceMemory scratch_memory(device, workspace);

  CorruptionResult result;
  std::vector<float> c(static_cast<std::size_t>(n * n));
  for (; result.rounds < options.rounds; ++result.rounds) {
    Arena scratch("scratch", scratch_memory.get(), workspace);
    turbo::Context context{device, *stream, scratch, meter};
    stream->fill_zero(c_memory.get(), n * n * 4);
    launch(context, product);
    stream->copy_to_host(c.data(), c_memory.get(), n * n * 4);
    stream->synchronize();
    const std::uint32_t checksum = crc32c(0, std::as_bytes(std::span(c)));
    if (result.checksum != 0 && checksum == result.checksum) continue;
    const auto row = proof.wrong_row(c);
    if (!row && result.checksum == 0) {
      result.checksum = checksum;
      continue;
    }
    ++result.wrong;
    if (result.first_wrong.empty()) {
      result.first_wrong =
          row ? fmt::format("round {}, row {}", result.rounds + 1, *row)
              : fmt::format("round {}, an error that the row check misses", result.rounds + 1);
    }
  }
  return result;
}

}  // namespace primus::preflight
