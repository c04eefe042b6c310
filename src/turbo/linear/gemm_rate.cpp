#include "turbo/linear/gemm_rate.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <memory>

#include "turbo/elementwise/elementwise.h"
#include "turbo/linear/linear.h"

namespace primus::turbo {
namespace {

// An arena that owns its device memory.
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

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Returns the CPU seconds of all threads of this process.
double processor_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Repeats products of square matrices.
class Products {
 public:
  // `count` is the number of products per repetition.
  Products(Device& device, DType dtype, std::int64_t side, std::int64_t count)
      : count_(count), stream_(device.create_stream(StreamKind::kCompute)) {
    const Shape square{side, side};
    Arena measuring("scratch");
    turbo::Context plan{device, *stream_, measuring, meter_};
    product_.a = Tensor(nullptr, dtype, square);
    product_.b = Tensor(nullptr, dtype, square);
    product_.c = Tensor(nullptr, DType::kF32, square);
    launch(plan, product_);

    scratch_ =
        std::make_unique<OwnArena>(device, "scratch", std::max(measuring.high_water(), Arena::kAlignment));
    operands_ = std::make_unique<OwnArena>(device, "operands", 2 * product_.a.bytes() + product_.c.bytes());
    context_ = std::unique_ptr<turbo::Context>(new turbo::Context{device, *stream_, scratch_->get(), meter_});
    product_.a.data = operands_->get().allocate(product_.a.bytes()).address;
    product_.b.data = operands_->get().allocate(product_.b.bytes()).address;
    product_.c.data = operands_->get().allocate(product_.c.bytes()).address;

    // Operands are random. A GPU multiplies zeros faster, because zeros need less power.
    for (const Tensor& operand : {product_.a, product_.b}) {
      const bool wide = dtype == DType::kF32;
      launch(*context_, RandomNormal{.out = wide ? operand : product_.c,
                                     .seed = 1,
                                     .stream = operand.data == product_.a.data ? 1U : 2U,
                                     .offset = 0,
                                     .mean = 0,
                                     .std = 1});
      if (!wide) launch(*context_, Cast{.x = product_.c, .out = operand});
    }
    stream_->synchronize();
  }

  struct Repetition {
    double seconds, rate;  // FLOP/s
    double cores;          // mean number of cores that this process kept busy
  };
  Repetition run() {
    const double busy = processor_seconds();
    const auto start = Clock::now();
    for (std::int64_t i = 0; i < count_; ++i) launch(*context_, product_);
    stream_->synchronize();
    const double seconds = seconds_since(start);
    return {seconds, static_cast<double>(count_) * product_.flops() / seconds,
            (processor_seconds() - busy) / seconds};
  }

 private:
  std::int64_t count_;
  std::unique_ptr<Stream> stream_;
  Meter meter_;
  Gemm product_{.role = GemmRole::kForward, .a = {}, .b = {}, .c = {}, .accumulate = false, .workspace = {}};
  std::unique_ptr<OwnArena> scratch_, operands_;
  std::unique_ptr<turbo::Context> context_;
};

// Returns the best rate among the repetitions for which counts(cores) is true, or nothing if there was none.
template <class Counts>
std::optional<double> best_rate(Device& device, DType dtype, RateTime time, Counts&& counts) {
  const bool host = device.properties().host_memory;
  // On a GPU, a repetition has several large products, because small products would measure the launch time,
  // and a synchronization after each product would add host time. On few CPU cores, side 1024 has the rate of
  // larger sides. On many cores, products of this side are too short, so side 1536 is used.
  constexpr double kTooShort = 0.003;
  auto products = std::make_unique<Products>(device, dtype, host ? 1024 : 4096, host ? 1 : 16);
  products->run();  // the first run compiles kernels and touches memory
  if (host && products->run().seconds < kTooShort) {
    products.reset();
    products = std::make_unique<Products>(device, dtype, 1536, 1);
    products->run();
  }
  double best = 0, second = 0;
  const auto settled = [&] { return host && second > 0 && best <= second * (1 + time.settled); };
  const auto begin = Clock::now();
  for (int i = 0; i < 2 || (!settled() && seconds_since(begin) < time.seconds); ++i) {
    const Products::Repetition now = products->run();
    if (!counts(now.cores)) continue;
    second = std::max(second, std::min(best, now.rate));
    best = std::max(best, now.rate);
  }
  return best > 0 ? std::optional(best) : std::nullopt;
}

}  // namespace

double measure_gemm_rate(Device& device, DType dtype, RateTime time) {
  return *best_rate(device, dtype, time, [](double) { return true; });
}

std::optional<double> measure_gemm_peak(Device& device, DType dtype, int threads, RateTime time) {
  // A repetition counts if it used this fraction of the cores, because threads wait for each other a little
  // even on an idle machine.
  constexpr double kWhole = 0.97;
  const bool watched = device.synchronous();
  return best_rate(device, dtype, time, [&](double cores) { return !watched || cores >= kWhole * threads; });
}

}  // namespace primus::turbo
