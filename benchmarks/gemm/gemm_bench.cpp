// Measures the CPU GEMM on the products of a training step, in GFLOP/s and as a share of the arithmetic
// units' peak.
//   gemm_bench [--threads N] [--seconds S] [--provider auto|portable|xsmm|avx512_bf16|amx]
//              [--dtype fp32|bf16] [--only TEXT] [--clock wall|cpu]
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/system/thread_pool.h"
#include "tensor/bfloat16.h"
#include "turbo/gemm/gemm.h"

namespace {

using namespace primus;
using namespace primus::turbo;

struct Options {
  int threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  double seconds = 0.2;
  GemmProvider provider = GemmProvider::kAuto;
  std::string dtype, only;
  bool cpu_time = false;
};

struct Case {
  std::string name;
  GemmLayout layout;
  std::int64_t m, n, k;
  DType c_dtype;
  bool accumulate;
};

// Adds the forward, dgrad and wgrad products of y[tokens, out] = x[tokens, in] · Wᵀ.
void add_linear(std::vector<Case>& cases, const std::string& name, std::int64_t tokens, std::int64_t out,
                std::int64_t in, DType activation) {
  cases.push_back({name + " forward", GemmLayout::kNT, tokens, out, in, activation, false});
  cases.push_back({name + " d_input", GemmLayout::kNN, tokens, in, out, activation, false});
  cases.push_back({name + " d_weight", GemmLayout::kTN, out, in, tokens, DType::kF32, true});
}

std::vector<Case> cases_of(DType dtype) {
  std::vector<Case> cases;
  add_linear(cases, "square 2048 T=2048", 2048, 2048, 2048, DType::kF32);
  add_linear(cases, "qkv 2304x768 T=2048", 2048, 2304, 768, dtype);
  add_linear(cases, "out 768x768 T=2048", 2048, 768, 768, dtype);
  add_linear(cases, "up 4096x768 T=2048", 2048, 4096, 768, dtype);
  add_linear(cases, "down 768x2048 T=2048", 2048, 768, 2048, dtype);
  for (std::int64_t tokens : {256, 512, 1024}) {
    add_linear(cases, fmt::format("head 50304x768 T={}", tokens), tokens, 50304, 768, dtype);
  }
  cases.push_back({"generate M=1 4096x768", GemmLayout::kNT, 1, 4096, 768, dtype, false});
  cases.push_back({"generate M=1 50304x768", GemmLayout::kNT, 1, 50304, 768, dtype, false});
  cases.push_back({"generate M=8 50304x768", GemmLayout::kNT, 8, 50304, 768, dtype, false});
  return cases;
}

// Memory aligned to a cache line, like the memory of a tensor.
class Buffer {
 public:
  explicit Buffer(std::int64_t bytes) : lines_(static_cast<std::size_t>(bytes) / sizeof(Line) + 1) {}
  template <class T = void>
  T* data() {
    return reinterpret_cast<T*>(lines_.data());
  }

 private:
  struct alignas(64) Line {
    char bytes[64];
  };
  std::vector<Line> lines_;
};

// Returns values in [-1, 1) from a multiplicative sequence, which is fast and contains no subnormal numbers.
Buffer operand(std::int64_t elements, DType dtype) {
  Buffer buffer(elements * size_of(dtype));
  std::uint32_t state = 12345;
  for (std::int64_t i = 0; i < elements; ++i) {
    state = state * 1664525U + 1013904223U;
    const float value = static_cast<float>(static_cast<std::int32_t>(state)) * 0x1p-31F;
    if (dtype == DType::kBF16) {
      buffer.data<BFloat16>()[i] = BFloat16(value);
    } else {
      buffer.data<float>()[i] = value;
    }
  }
  return buffer;
}

// Returns wall time, or the CPU time of all threads divided by the number of threads. Other load affects CPU
// time less than wall time, but CPU time does not include waiting.
double clock_seconds(const Options& options) {
  timespec t{};
  clock_gettime(options.cpu_time ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  const double seconds = static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  return options.cpu_time ? seconds / options.threads : seconds;
}

struct Times {
  double median, best;
};

template <class Body>
Times measure(const Options& options, Body body) {
  body();
  std::vector<double> times;
  const double end = clock_seconds(options) + options.seconds;
  while (times.size() < 3 || clock_seconds(options) < end) {
    const double start = clock_seconds(options);
    body();
    times.push_back(clock_seconds(options) - start);
  }
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times.front()};
}

void run(ThreadPool& pool, const Options& options, DType dtype, const Case& c, double peak) {
  GemmArgs g{.layout = c.layout,
             .ab_dtype = dtype,
             .c_dtype = c.c_dtype,
             .accumulate = c.accumulate,
             .m = c.m,
             .n = c.n,
             .k = c.k};
  g.provider = options.provider;
  Buffer a = operand(c.m * c.k, dtype), b = operand(c.n * c.k, dtype), result(c.m * c.n * size_of(c.c_dtype));
  g.a = a.data(), g.lda = c.layout == GemmLayout::kTN ? c.m : c.k;
  g.b = b.data(), g.ldb = c.layout == GemmLayout::kNT ? c.k : c.n;
  g.c = result.data(), g.ldc = c.n;
  g.workspace_bytes = cpu_gemm_workspace_bytes(g, pool.size());
  Buffer workspace(static_cast<std::int64_t>(g.workspace_bytes));
  g.workspace = workspace.data();

  const Times times = measure(options, [&] { cpu_gemm(pool, g); });
  const double gflop = gemm_flops(g) * 1e-9;
  fmt::print("{:<32} {:>9.3f} ms {:>8.1f} GFLOP/s {:>5.1f} %  best {:>8.1f}", c.name, times.median * 1e3,
             gflop / times.median, peak > 0 ? 100e9 * gflop / times.median / peak : 0.0, gflop / times.best);
  fmt::print("\n");
  std::fflush(stdout);
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view key = argv[i], value = argv[i + 1];
    if (key == "--threads") options.threads = static_cast<int>(std::strtol(argv[i + 1], nullptr, 10));
    if (key == "--seconds") options.seconds = std::strtod(argv[i + 1], nullptr);
    if (key == "--dtype") options.dtype = value;
    if (key == "--only") options.only = value;
    if (key == "--clock") options.cpu_time = value == "cpu";
    if (key == "--provider") {
      for (auto p :
           {GemmProvider::kPortable, GemmProvider::kXsmm, GemmProvider::kAvx512Bf16, GemmProvider::kAmx}) {
        if (name_of(p) == value) options.provider = p;
      }
    }
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  ThreadPool pool(options.threads);
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    if (!options.dtype.empty() && options.dtype != name_of(dtype)) continue;
    if (!gemm_provider_available(options.provider, dtype)) continue;
    const double peak = measure_fma_peak(pool, dtype, options.seconds);
    fmt::print(
        "{} operands, provider {}, {} threads: arithmetic peak {:.1f} GFLOP/s, GEMM peak {:.1f} GFLOP/s\n",
        name_of(dtype),
        name_of(options.provider == GemmProvider::kAuto ? default_gemm_provider(dtype) : options.provider),
        pool.size(), peak / 1e9, measure_gemm_peak(pool, dtype, options.seconds) / 1e9);
    for (const Case& c : cases_of(dtype)) {
      if (c.name.find(options.only) != std::string::npos) run(pool, options, dtype, c, peak);
    }
  }
  return 0;
}
