#include "turbo/linear/gemm_rate.h"

#include <algorithm>
#include <chrono>
#include <ctime>

#include "turbo/elementwise/elementwise.h"
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

// Seconds of processor time, of all threads.
double processor_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Calls visit(FLOP/s, mean number of cores kept busy) for each repetition but the first, which warms up.
template <class Visit>
void repeat_gemm(Device& device, DType dtype, double seconds, Visit&& visit) {
  using Clock = std::chrono::steady_clock;
  // On a GPU small products would measure launches, and a wait behind each of them the host.
  const bool gpu = !device.properties().host_memory;
  const std::int64_t size = gpu ? 4096 : 1536, products = gpu ? 16 : 1;
  const Shape square{size, size};
  const std::unique_ptr<Stream> stream = device.create_stream(StreamKind::kCompute);
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

  // Random operands: a GPU multiplies zeros faster, since that takes less power.
  for (const Tensor& operand : {product.a, product.b}) {
    const bool wide = dtype == DType::kF32;
    launch(context, RandomNormal{.out = wide ? operand : product.c,
                                 .seed = 1,
                                 .stream = operand.data == product.a.data ? 1U : 2U,
                                 .offset = 0,
                                 .mean = 0,
                                 .std = 1});
    if (!wide) launch(context, Cast{.x = product.c, .out = operand});
  }
  stream->synchronize();

  const auto begin = Clock::now();
  for (int i = 0; i < 3 || std::chrono::duration<double>(Clock::now() - begin).count() < seconds; ++i) {
    const double busy = processor_seconds();
    const auto start = Clock::now();
    for (std::int64_t j = 0; j < products; ++j) launch(context, product);
    stream->synchronize();
    const double elapsed = std::chrono::duration<double>(Clock::now() - start).count();
    if (i > 0)
      visit(static_cast<double>(products) * product.flops() / elapsed,
            (processor_seconds() - busy) / elapsed);
  }
}

}  // namespace

double measure_gemm_rate(Device& device, DType dtype, double seconds) {
  double best = 0;
  repeat_gemm(device, dtype, seconds, [&](double rate, double) { best = std::max(best, rate); });
  return best;
}

std::optional<double> measure_gemm_peak(Device& device, DType dtype, int threads, double seconds) {
  // Threads wait for each other a little even when nobody else is there.
  constexpr double kWhole = 0.97;
  std::optional<double> best;
  repeat_gemm(device, dtype, seconds, [&](double rate, double cores) {
    if (device.synchronous() && cores < kWhole * threads) return;
    best = std::max(best.value_or(0), rate);
  });
  return best;
}

}  // namespace primus::turbo
