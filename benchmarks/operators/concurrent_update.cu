// Measures whether AdamW's update of the weights can run concurrently with the products of the next forward
// pass. A step consists of the products of a model's layers (dense, by cuBLASLt) with four microbatches, and
// of the update of all parameters. Either the update runs alone before the first product, or only the
// parameters of the first products are updated before, and the others on a second stream, in the order of the
// products. The first product of a matrix waits for the matrix. The program prints the time of a step for
// each variant: different numbers of multiprocessors that the update takes and that products do not use, and
// an update that gets only free multiprocessors (a stream of lower priority). Values have no meaning.
//
//   nvcc -std=c++20 -O3 -gencode=arch=compute_90a,code=sm_90a concurrent_update.cu -lcublasLt -o measure
//   ./measure
//
// Needs a GPU with 132 multiprocessors and 60 GB (H100 or H200), and CUDA 13. Takes about 35 s.
#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <tuple>
#include <vector>

namespace {

using Half = __nv_bfloat16;
constexpr int kMultiprocessors = 132, kBytesOfParameter = 18;  // 10 read, 8 written

void check(int status, int line) {
  if (status == 0) return;
  std::printf("error %d in line %d\n", status, line);
  std::exit(1);
}
#define CHECK(call) check(static_cast<int>(call), __LINE__)

__device__ unsigned mixed(unsigned x) {
  x = (x ^ (x >> 16)) * 0x7FEB352DU;
  x = (x ^ (x >> 15)) * 0x846CA68BU;
  return x ^ (x >> 16);
}

// Sets random values between -scale and scale. Products of random values need more power than products of
// zeros.
__global__ void fill(Half* to, long n, float scale, unsigned seed) {
  for (long i = blockIdx.x * static_cast<long>(blockDim.x) + threadIdx.x; i < n;
       i += static_cast<long>(gridDim.x) * blockDim.x) {
    const unsigned r = mixed(static_cast<unsigned>(i) ^ mixed(seed + static_cast<unsigned>(i >> 32)));
    to[i] = __float2bfloat16(scale * ((r & 0xFFFFU) / 65536.0F + (r >> 16) / 65536.0F - 1.0F));
  }
}

// ---- The update -------------------------------------------------------------------------------------------

// Working values, remainders, gradients and moments of the parameters.
struct Parameters {
  Half* working;
  short* remainder;
  Half *gradient, *first, *second;
  Parameters from(long at) const {
    return {working + at, remainder + at, gradient + at, first + at, second + at};
  }
};
struct Eight {
  uint4 working, remainder, gradient, first, second;
};

__device__ Half rounded(float x, unsigned random) {
  return __ushort_as_bfloat16(static_cast<unsigned short>((__float_as_uint(x) + (random & 0xFFFFU)) >> 16));
}

// The operations of AdamW on eight parameters, with stochastic rounding of the moments.
__device__ void update(Eight& of, long i) {
  auto* const working = reinterpret_cast<Half*>(&of.working);
  auto* const remainder = reinterpret_cast<short*>(&of.remainder);
  const auto* const gradient = reinterpret_cast<const Half*>(&of.gradient);
  auto *const first = reinterpret_cast<Half*>(&of.first), *const second = reinterpret_cast<Half*>(&of.second);
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const unsigned high = static_cast<unsigned>(__bfloat16_as_ushort(working[k])) << 16;
    float p = __uint_as_float(high + static_cast<unsigned>(static_cast<int>(remainder[k])));
    const float g = __bfloat162float(gradient[k]) * 0.5F;
    const float m = 0.9F * __bfloat162float(first[k]) + 0.1F * g;
    const float v = 0.95F * fabsf(__bfloat162float(second[k])) + 0.05F * g * g;
    p = p * (1 - 1e-8F) - __fdividef(1e-8F * m, sqrtf(v) + 1e-8F);
    const unsigned random = mixed(mixed(static_cast<unsigned>(i + k)));
    first[k] = rounded(m, random);
    second[k] = rounded(v, random >> 16);
    const unsigned bits = __float_as_uint(p);
    remainder[k] = static_cast<short>(bits);
    working[k] = __ushort_as_bfloat16(static_cast<unsigned short>((bits + 0x8000U) >> 16));
  }
}
template <class T>
__device__ T at(const void* from, long i) {
  return static_cast<const T*>(from)[i];
}
__device__ void store(const Parameters& to, long i, const Eight& x) {
  reinterpret_cast<uint4*>(to.working)[i] = x.working;
  reinterpret_cast<uint4*>(to.remainder)[i] = x.remainder;
  reinterpret_cast<uint4*>(to.first)[i] = x.first;
  reinterpret_cast<uint4*>(to.second)[i] = x.second;
}

// As the program updates parameters: four per thread, as many blocks as needed.
__global__ void __launch_bounds__(256) update_by_all(Parameters of, long n) {
  const long i = blockIdx.x * 256L + threadIdx.x;
  if (i * 4 >= n) return;
  Eight x{};
  const auto set = [&](uint4& to, const void* from) {
    const auto half = at<uint2>(from, i);
    to.x = half.x, to.y = half.y;
  };
  set(x.working, of.working);
  set(x.remainder, of.remainder);
  set(x.gradient, of.gradient);
  set(x.first, of.first);
  set(x.second, of.second);
  update(x, i * 4);
  const auto give = [&](void* to, const uint4& from) { static_cast<uint2*>(to)[i] = {from.x, from.y}; };
  give(of.working, x.working);
  give(of.remainder, x.remainder);
  give(of.first, x.first);
  give(of.second, x.second);
}

// A block takes an entire multiprocessor, because it needs most of the shared memory.
constexpr int kAlone = 200 << 10;
__global__ void __launch_bounds__(1024, 1) update_by_registers(Parameters of, long n) {
  for (long i = blockIdx.x * 1024L + threadIdx.x; i * 8 < n; i += gridDim.x * 1024L) {
    Eight x{at<uint4>(of.working, i), at<uint4>(of.remainder, i), at<uint4>(of.gradient, i),
            at<uint4>(of.first, i), at<uint4>(of.second, i)};
    update(x, i * 8);
    store(of, i, x);
  }
}

// Like update_by_registers(), but copies fetch the parameters of several iterations ahead to shared memory.
constexpr int kThreads = 512, kStages = 5, kRingBytes = kThreads * kStages * 5 * 16;
__device__ void copy_async(void* to, const void* from) {
  asm volatile(
      "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(to))),
      "l"(__cvta_generic_to_global(from))
      : "memory");
}
__global__ void __launch_bounds__(kThreads, 1) update_by_ring(Parameters of, long n) {
  extern __shared__ uint4 ring[];  // [kStages][5][kThreads]
  const long step = gridDim.x * static_cast<long>(kThreads), end = n / 8;
  long i = blockIdx.x * static_cast<long>(kThreads) + threadIdx.x, ahead = i;
  const auto fetch = [&](int stage) {
    if (ahead < end) {
      uint4* const to = ring + stage * 5 * kThreads + threadIdx.x;
      copy_async(to, reinterpret_cast<uint4*>(of.working) + ahead);
      copy_async(to + kThreads, reinterpret_cast<uint4*>(of.remainder) + ahead);
      copy_async(to + 2 * kThreads, reinterpret_cast<uint4*>(of.gradient) + ahead);
      copy_async(to + 3 * kThreads, reinterpret_cast<uint4*>(of.first) + ahead);
      copy_async(to + 4 * kThreads, reinterpret_cast<uint4*>(of.second) + ahead);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
    ahead += step;
  };
#pragma unroll
  for (int stage = 0; stage < kStages - 1; ++stage) fetch(stage);
  for (int stage = 0; i < end; i += step, stage = (stage + 1) % kStages) {
    fetch((stage + kStages - 1) % kStages);
    asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 1) : "memory");
    const uint4* const here = ring + stage * 5 * kThreads + threadIdx.x;
    Eight x{here[0], here[kThreads], here[2 * kThreads], here[3 * kThreads], here[4 * kThreads]};
    update(x, i * 8);
    store(of, i, x);
  }
}

enum class By { kAll, kRegisters, kRing };
void enqueue_update(By by, int multiprocessors, const Parameters& of, long n, cudaStream_t stream) {
  switch (by) {
    case By::kAll:
      update_by_all<<<static_cast<unsigned>((n / 4 + 255) / 256), 256, 0, stream>>>(of, n);
      break;
    case By::kRegisters:
      update_by_registers<<<multiprocessors, 1024, kAlone, stream>>>(of, n);
      break;
    case By::kRing:
      update_by_ring<<<multiprocessors, kThreads, kRingBytes, stream>>>(of, n);
  }
  CHECK(cudaGetLastError());
}

// ---- Products ---------------------------------------------------------------------------------------------

// y[m, n] = x[m, k] w[n, k]', `batch` times. `first`: index of the first parameter of w.
struct Product {
  long m, n, k;
  int batch;
  long first;
};

class Products {
 public:
  explicit Products(cudaStream_t stream) : stream_(stream) {
    CHECK(cublasLtCreate(&library_));
    CHECK(cudaMalloc(&workspace_, kWorkspace));
  }
  // The product leaves `spared` multiprocessors to other work. The first call of a size chooses the fastest
  // of the library's proposals.
  void enqueue(const Product& p, int spared, const Half* x, const Half* w, Half* y) {
    const auto key = std::make_tuple(p.m, p.n, p.k, p.batch, spared);
    auto plan = plans_.find(key);
    if (plan == plans_.end()) plan = plans_.emplace(key, choose(p, spared, x, w, y)).first;
    run(plan->second, x, w, y);
  }

 private:
  static constexpr std::size_t kWorkspace = std::size_t{64} << 20;
  struct Plan {
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t w, x, y;
    cublasLtMatmulAlgo_t algorithm;
  };

  void run(const Plan& p, const Half* x, const Half* w, Half* y) {
    const float one = 1, zero = 0;
    CHECK(cublasLtMatmul(library_, p.desc, &one, w, p.w, x, p.x, &zero, y, p.y, y, p.y, &p.algorithm,
                         workspace_, kWorkspace, stream_));
  }
  Plan choose(const Product& p, int spared, const Half* x, const Half* w, Half* y) {
    Plan plan;
    CHECK(cublasLtMatmulDescCreate(&plan.desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    const cublasOperation_t transposed = CUBLAS_OP_T;
    CHECK(cublasLtMatmulDescSetAttribute(plan.desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                         sizeof(transposed)));
    const int target = kMultiprocessors - spared;
    if (spared > 0)
      CHECK(cublasLtMatmulDescSetAttribute(plan.desc, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, &target,
                                           sizeof(target)));
    const auto layout = [&](cublasLtMatrixLayout_t& of, long rows, long cols) {
      CHECK(cublasLtMatrixLayoutCreate(&of, CUDA_R_16BF, rows, cols, rows));
      const long step = rows * cols;
      CHECK(cublasLtMatrixLayoutSetAttribute(of, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &p.batch,
                                             sizeof(p.batch)));
      CHECK(cublasLtMatrixLayoutSetAttribute(of, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step,
                                             sizeof(step)));
    };
    layout(plan.w, p.k, p.n);
    layout(plan.x, p.k, p.m);
    layout(plan.y, p.n, p.m);
    cublasLtMatmulPreference_t preference;
    CHECK(cublasLtMatmulPreferenceCreate(&preference));
    CHECK(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                               &kWorkspace, sizeof(kWorkspace)));
    constexpr int kProposals = 6, kRepeats = 2;
    cublasLtMatmulHeuristicResult_t proposals[kProposals];
    int found = 0;
    CHECK(cublasLtMatmulAlgoGetHeuristic(library_, plan.desc, plan.w, plan.x, plan.y, plan.y, preference,
                                         kProposals, proposals, &found));
    cudaEvent_t begin, end;
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    float best = 1e9F;
    int chosen = 0;
    for (int i = 0; i < found; ++i) {
      plan.algorithm = proposals[i].algo;
      run(plan, x, w, y);
      CHECK(cudaEventRecord(begin, stream_));
      for (int n = 0; n < kRepeats; ++n) run(plan, x, w, y);
      CHECK(cudaEventRecord(end, stream_));
      CHECK(cudaEventSynchronize(end));
      float milliseconds = 0;
      CHECK(cudaEventElapsedTime(&milliseconds, begin, end));
      if (milliseconds < best) best = milliseconds, chosen = i;
    }
    plan.algorithm = proposals[chosen].algo;
    return plan;
  }

  cudaStream_t stream_;
  cublasLtHandle_t library_ = nullptr;
  void* workspace_ = nullptr;
  std::map<std::tuple<long, long, long, int, int>, Plan> plans_;
};

// ---- Steps ------------------------------------------------------------------------------------------------

struct Model {
  std::string name;
  long parameters;  // at first those of the embedding
  int before;       // number of products whose parameters are updated before the forward pass
  std::vector<Product> products = {};
  void add(long m, long n, long k, int batch) {
    products.push_back({m, n, k, batch, parameters});
    parameters += n * k * batch;
  }
};
// Mixtral 8x7B with two layers, and Qwen3-30B-A3B with six: 8192 tokens, all experts have equally many rows.
std::vector<Model> models() {
  Model mixtral{"mixtral", 32000L * 4096, 3}, moe{"moe", 151936L * 2048, 4};
  for (int layer = 0; layer < 2; ++layer) {
    mixtral.add(8192, 6144, 4096, 1);
    mixtral.add(8192, 4096, 4096, 1);
    mixtral.add(2048, 28672, 4096, 8);
    mixtral.add(2048, 4096, 14336, 8);
  }
  mixtral.add(8192, 32000, 4096, 1);
  for (int layer = 0; layer < 6; ++layer) {
    moe.add(8192, 5120, 2048, 1);
    moe.add(8192, 2048, 4096, 1);
    moe.add(512, 1536, 2048, 128);
    moe.add(512, 2048, 768, 128);
  }
  moe.add(8192, 151936, 2048, 1);
  return {mixtral, moe};
}

class Steps {
 public:
  Steps() {
    int lowest = 0, highest = 0;
    CHECK(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
    for (auto [stream, priority] : {std::pair{&compute_, highest}, {&second_, highest}, {&low_, lowest}})
      CHECK(cudaStreamCreateWithPriority(stream, cudaStreamNonBlocking, priority));
    CHECK(cudaFuncSetAttribute(update_by_registers, cudaFuncAttributeMaxDynamicSharedMemorySize, kAlone));
    CHECK(cudaFuncSetAttribute(update_by_ring, cudaFuncAttributeMaxDynamicSharedMemorySize, kRingBytes));
    for (auto [to, scale] : {std::pair{reinterpret_cast<void**>(&all_.working), 0.02F},
                             {reinterpret_cast<void**>(&all_.remainder), 0.02F},
                             {reinterpret_cast<void**>(&all_.gradient), 0.01F},
                             {reinterpret_cast<void**>(&all_.first), 0.01F},
                             {reinterpret_cast<void**>(&all_.second), 0.0001F}})
      *to = random(kMost, scale);
    x_ = random(16384L * 28672, 1);
    CHECK(cudaMalloc(&y_, 2 * 8192L * 151936));
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaEventCreate(&begin_));
    CHECK(cudaEventCreate(&end_));
    CHECK(cudaEventCreateWithFlags(&start_, cudaEventDisableTiming));
    for (cudaEvent_t& event : ready_) CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    products_ = new Products(compute_);
  }

  void measure_updates() {
    const long n = 1L << 30;
    std::printf("update by all: %.0f GB/s\n",
                rate(n, [&] { enqueue_update(By::kAll, 0, all_, n, compute_); }));
    for (const int count : {1, 8, 16, 24, 32, 48, 64, 132}) {
      const long some = std::min(n, count * (1L << 26));
      std::printf("update on %d multiprocessors: by registers %.0f, by a ring %.0f GB/s\n", count,
                  rate(some, [&] { enqueue_update(By::kRegisters, count, all_, some, compute_); }),
                  rate(some, [&] { enqueue_update(By::kRing, count, all_, some, compute_); }));
    }
  }

  // The products with index >= `before` are updated on the second stream.
  void measure(const Model& model, const char* what, int before, By by, int multiprocessors, int spared) {
    const auto step = [&] { enqueue(model, before, by, multiprocessors, spared); };
    step();
    constexpr int kSteps = 3;
    CHECK(cudaEventRecord(begin_, compute_));
    for (int i = 0; i < kSteps; ++i) step();
    CHECK(cudaEventRecord(end_, compute_));
    CHECK(cudaEventSynchronize(end_));
    float milliseconds = 0;
    CHECK(cudaEventElapsedTime(&milliseconds, begin_, end_));
    std::printf("%s: %s, %d multiprocessors, products spare %d: %.2f ms\n", model.name.c_str(), what,
                multiprocessors, spared, milliseconds / kSteps);
    std::fflush(stdout);
  }

 private:
  static constexpr long kMost = 4400L << 20;

  static Half* random(long n, float scale) {
    static unsigned seed = 0;
    Half* memory = nullptr;
    CHECK(cudaMalloc(&memory, 2 * n));
    fill<<<4096, 256>>>(memory, n, scale, ++seed);
    return memory;
  }
  template <class Work>
  double rate(long n, Work work) {
    work();
    CHECK(cudaEventRecord(begin_, compute_));
    work();
    CHECK(cudaEventRecord(end_, compute_));
    CHECK(cudaEventSynchronize(end_));
    float milliseconds = 0;
    CHECK(cudaEventElapsedTime(&milliseconds, begin_, end_));
    return 1e-6 * kBytesOfParameter * static_cast<double>(n) / milliseconds;
  }
  void multiply(const Product& p, int spared) {
    products_->enqueue(p, spared, x_, all_.working + p.first, y_);
  }
  void enqueue(const Model& model, int before, By by, int multiprocessors, int spared) {
    const auto& list = model.products;
    const int count = static_cast<int>(list.size());
    enqueue_update(By::kAll, 0, all_, before < count ? list[before].first : model.parameters, compute_);
    if (before < count) {
      cudaStream_t second = by == By::kAll ? low_ : second_;
      CHECK(cudaEventRecord(start_, compute_));
      CHECK(cudaStreamWaitEvent(second, start_, 0));
      for (int i = before; i < count; ++i) {
        const long end = i + 1 < count ? list[i + 1].first : model.parameters;
        enqueue_update(by, multiprocessors, all_.from(list[i].first), end - list[i].first, second);
        CHECK(cudaEventRecord(ready_[i], second));
      }
    }
    for (int i = 0; i < count; ++i) {
      if (i >= before) CHECK(cudaStreamWaitEvent(compute_, ready_[i], 0));
      multiply(list[i], before < count ? spared : 0);
    }
    // The two backward products have the sizes of the forward product.
    for (int i = 0; i < 2 * count; ++i) multiply(list[count - 1 - i % count], 0);
    for (int i = 0; i < 3 * 3 * count; ++i) multiply(list[i % count], 0);
  }

  cudaStream_t compute_ = nullptr, second_ = nullptr, low_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr, start_ = nullptr, ready_[32] = {};
  Parameters all_{};
  Half *x_ = nullptr, *y_ = nullptr;
  Products* products_ = nullptr;
};

}  // namespace

int main() {
  Steps steps;
  steps.measure_updates();
  for (const Model& model : models()) {
    const int count = static_cast<int>(model.products.size()), before = model.before;
    std::printf("%s: %.1f GB\n", model.name.c_str(), 1e-9 * kBytesOfParameter * model.parameters);
    for (int i = 0; i < 2; ++i) steps.measure(model, "before the products", count, By::kAll, 0, 0);
    for (const int n : {8, 16, 24, 32, 48})
      steps.measure(model, "concurrent, by a ring", before, By::kRing, n, n);
    steps.measure(model, "concurrent, by a ring", before, By::kRing, 16, 0);
    steps.measure(model, "concurrent, by registers", before, By::kRegisters, 24, 24);
    steps.measure(model, "concurrent, on free multiprocessors", before, By::kAll, 0, 0);
    steps.measure(model, "before the products", count, By::kAll, 0, 0);
  }
  CHECK(cudaDeviceSynchronize());
}
