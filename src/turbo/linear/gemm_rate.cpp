#include "turbo/linear/gemm_rate.h"

#include <algorithm>
#include <chrono>

#include "turbo/linear/linear.h"

namespace primus::turbo {
namespace {

// An arena over device memory of its own.
class OwnArena {
 public:
  OwnArena(Device& device, const char* name, std::int64_t bytes)
      : device_(device), memory_(device.allocate(bytes)), arena_(name, memory_, bytes) {}
  ~OwnArena() { device_.release(memory_); }
  OwnArena(const OwnArena&) = delete;
  OwnArena& operator=(const OwnArena&) = delete;
  Arena& get() { return arena_; }

 private:
  Device& device_;
  void* memory_;
  Arena arena_;
};

}  // namespace

double measure_gemm_rate(Device& device, DType dtype, double seconds) {
  using Clock = std::chrono::steady_clock;
  constexpr std::int64_t kSize = 1536;
  const Shape square{kSize, kSize};
  const std::unique_ptr<Stream> stream = device.create_stream("compute");
  Meter meter;

  Arena measuring("scratch");
  Context plan{device, *stream, measuring, meter};
  Gemm product{.role = GemmRole::kForward,
               .a = Tensor(nullptr, dtype, square),
               .b = Tensor(nullptr, dtype, square),
               .c = Tensor(nullptr, DType::kF32, square),
               .accumulate = false,
               .workspace = {}};
  launch(plan, product);

  OwnArena scratch(device, "scratch", std::max(measuring.high_water(), Arena::kAlignment));
  OwnArena operands(device, "operands", 2 * product.a.bytes() + product.c.bytes());
  Context context{device, *stream, scratch.get(), meter};
  product.a.data = operands.get().allocate(product.a.bytes()).address;
  product.b.data = operands.get().allocate(product.b.bytes()).address;
  product.c.data = operands.get().allocate(product.c.bytes()).address;

  double best = 0;
  const auto begin = Clock::now();
  for (int i = 0; i < 3 || std::chrono::duration<double>(Clock::now() - begin).count() < seconds; ++i) {
    const auto start = Clock::now();
    launch(context, product);
    stream->synchronize();
    const double elapsed = std::chrono::duration<double>(Clock::now() - start).count();
    if (i > 0) best = std::max(best, product.flops() / elapsed);  // the first call warms up
  }
  return best;
}

}  // namespace primus::turbo
