#include "turbo/linear/gpu_blas.h"

#if defined(__CUDACC__) && !defined(__HIP__)

#include <cublasLt.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <compare>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <set>

#include "base/error.h"
#include "device/lost_device.h"
#include "turbo/fp8_linear/fp8_format.h"
#include "turbo/gpu/values.h"
#include "turbo/linear/algorithm_cache.h"
#include "turbo/linear/algorithm_trial.h"

namespace primus::turbo::cuda {
namespace {

using gpu::cuda::Context;
using gpu::cuda::GpuShared;

constexpr std::int64_t kWorkspaceBytes = std::int64_t{32} << 20;

// The functions we call, by their own types.
struct Functions {
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
  decltype(&cublasLtMatmulDescCreate) desc_create = nullptr;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) layout_create = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
  decltype(&cublasLtMatmulAlgoCheck) check = nullptr;
  decltype(&cublasLtGetVersion) version = nullptr;
};

// What the library multiplies. Products in fp8 are a forward product of codes, which have scales.
struct Product {
  Gemm gemm;
  const void *a_scale = nullptr, *b_scale = nullptr;  // of fp8: one float each, on the device
  bool fast = false;                                  // CodeProduct has what it means

  bool is_fp8() const { return primus::turbo::is_fp8(gemm.a.dtype); }
};

Product product_of(const CodeProduct& call) {
  return {.gemm = {.role = GemmRole::kForward,
                   .a = call.a,
                   .b = call.b,
                   .c = call.c,
                   .accumulate = call.accumulate,
                   .spared = call.spared,
                   .workspace = call.workspace},
          .a_scale = call.a_scale,
          .b_scale = call.b_scale,
          .fast = call.fast};
}

// One product's shape: everything that an algorithm may depend on.
struct Key {
  GemmRole role;
  DType a, b, c;
  bool accumulate, fast;
  std::int64_t rows, cols, left;  // of the result; elements of its left operand
  unsigned a_alignment, b_alignment, c_alignment;
  int spared;

  auto operator<=>(const Key&) const = default;
};

// What a weight gradient's algorithm is chosen as: the first microbatch of a step assigns and later ones add,
// by one algorithm for both. In fp8 it is what has an fp32 result.
Key tuned_key(Key key) {
  if (key.role == GemmRole::kWeightGradient || (is_fp8(key.a) && key.c == DType::kF32)) key.accumulate = true;
  return key;
}

// The largest power of two up to 16 that divides an address.
unsigned alignment_of(const void* address) {
  const auto low = static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(address) & 15U);
  return low == 0 ? 16U : low & (~low + 1U);
}

Key key_of(const Product& product) {
  const Gemm& call = product.gemm;
  return {.role = call.role,
          .a = call.a.dtype,
          .b = call.b.dtype,
          .c = call.c.dtype,
          .accumulate = call.accumulate,
          .fast = product.fast,
          .rows = call.c.rows(),
          .cols = call.c.cols(),
          .left = call.a.elements(),
          .a_alignment = alignment_of(call.a.data),
          .b_alignment = alignment_of(call.b.data),
          .c_alignment = alignment_of(call.c.data),
          .spared = call.spared};
}

// What a product is called in the file of choices.
std::string name_of(const Key& key) {
  constexpr const char* kRoles[] = {"forward", "input_gradient", "weight_gradient"};
  std::string name = kRoles[static_cast<int>(key.role)];
  name += " " + std::string(primus::name_of(key.a));
  if (key.b != key.a) name += " by " + std::string(primus::name_of(key.b));
  name += " " + std::string(primus::name_of(key.c));
  if (key.fast) name += " fast";
  if (key.accumulate) name += " added";
  name += " " + std::to_string(key.rows) + "x" + std::to_string(key.cols);
  name += " of " + std::to_string(key.left) + " aligned " + std::to_string(key.a_alignment);
  name += "," + std::to_string(key.b_alignment) + "," + std::to_string(key.c_alignment);
  return key.spared > 0 ? name + " sparing " + std::to_string(key.spared) : name;
}

// The algorithms that were chosen by timing, of one device. Thread-safe.
class Tuning {
 public:
  explicit Tuning(GpuShared& shared) : shared_(shared) {}

  std::optional<AlgorithmWords> known(const Key& key) {
    const std::lock_guard lock(mutex_);
    const auto at = chosen_.find(key);
    return at == chosen_.end() ? std::nullopt : std::optional(at->second);
  }
  void choose(const Key& key, std::size_t version, const std::function<bool(const AlgorithmChoice&)>& usable,
              const std::function<std::optional<AlgorithmChoice>(AlgorithmTrials&)>& measure) {
    if (!cache_) {
      cudaDeviceProp properties;
      gpu::cuda::check(cudaGetDeviceProperties(&properties, shared_.index()), "read the properties of a GPU");
      cache_ = std::make_unique<AlgorithmCache>(
          shared_.tuning_folder(), properties.name,
          "cublaslt-" + std::to_string(version) + (sustained_ ? "-sustained" : ""));
    }
    const std::optional<AlgorithmChoice> choice =
        cache_->choose(name_of(key), usable, [&] { return measure(trials_); });
    const std::lock_guard lock(mutex_);
    if (choice) chosen_.emplace(key, choice->algorithm);
  }

 private:
  GpuShared& shared_;
  std::mutex mutex_;
  std::map<Key, AlgorithmWords> chosen_;
  std::unique_ptr<AlgorithmCache> cache_;
  // By short bursts, which chose better algorithms on an H200 (docs/performance.md). The other way, to
  // compare both on one machine: PRIMUS_MATMUL_TRIALS=sustained.
  const bool sustained_ = [] {
    const char* const how = std::getenv("PRIMUS_MATMUL_TRIALS");
    return how && std::strcmp(how, "sustained") == 0;
  }();
  AlgorithmTrials trials_{
      [] {
        return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
      },
      sustained_ ? AlgorithmTrials::Limits() : AlgorithmTrials::bursts()};
};

// The library's favourites, the best first. It names at most eight for a question, so it is asked twice.
constexpr int kCandidates = 16;
struct Candidates {
  std::array<cublasLtMatmulHeuristicResult_t, kCandidates> all{};
  int count = 0;
};

struct Plan {
  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t left = nullptr, right = nullptr, result = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
  bool found = false, tuned = false;
};

// Of one stream.
class CublasLt {
 public:
  explicit CublasLt(Context& context)
      : shared_(context.shared()), multiprocessors_(context.multiprocessors()) {
    open();
  }
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;
  ~CublasLt() {
    for (auto& [key, plan] : plans_) {
      f_.desc_destroy(plan.product);
      for (cublasLtMatrixLayout_t layout : {plan.left, plan.right, plan.result}) f_.layout_destroy(layout);
    }
    if (handle_) f_.destroy(handle_);
  }

  bool multiply(Context& context, const Product& product);
  // Chooses the algorithm of a product that is about to come by timing several, unless one is known.
  void tune(Context& context, const Product& product);

 private:
  void open();
  static void check(cublasStatus_t status, const char* what) {
    if (status == CUBLAS_STATUS_SUCCESS) return;
    throw Error(
        ErrorKind::kIo,
        std::string("cuBLASLt cannot ") + what + ": status " + std::to_string(static_cast<int>(status)),
        kLostDeviceHint);
  }
  // Null: the library does not take it.
  const Plan* find(const Product& product);
  Plan make_plan(const Product& product, const Key& key);
  Candidates candidates(const Plan& plan, const Key& key, std::int64_t workspace, int most);
  std::optional<AlgorithmChoice> measure(Context& context, const Gemm& call, const Plan& plan, const Key& key,
                                         AlgorithmTrials& trials);
  static cudaDataType_t type_of(DType dtype) {
    switch (dtype) {
      case DType::kF32:
        return CUDA_R_32F;
      case DType::kF8E4M3:
        return CUDA_R_8F_E4M3;
      case DType::kF8E5M2:
        return CUDA_R_8F_E5M2;
      default:
        return CUDA_R_16BF;
    }
  }

  GpuShared& shared_;
  int multiprocessors_;
  Functions f_;
  cublasLtHandle_t handle_ = nullptr;
  std::map<Key, Plan> plans_;
  std::set<Key> tuned_;  // whatever came of it
};

void CublasLt::open() {
  void* library = nullptr;
  for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12"}) {
    library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library) break;
  }
  if (!library) {
    throw Error(ErrorKind::kDependency, std::string("cannot load cuBLASLt: ") + dlerror(),
                "install CUDA's libcublas (version 13 or 12), or add its folder to LD_LIBRARY_PATH");
  }
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    if (!function) throw Error(ErrorKind::kDependency, std::string("cuBLASLt has no function ") + name);
  };
  find(f_.create, "cublasLtCreate");
  find(f_.destroy, "cublasLtDestroy");
  find(f_.matmul, "cublasLtMatmul");
  find(f_.heuristic, "cublasLtMatmulAlgoGetHeuristic");
  find(f_.desc_create, "cublasLtMatmulDescCreate");
  find(f_.desc_destroy, "cublasLtMatmulDescDestroy");
  find(f_.desc_set, "cublasLtMatmulDescSetAttribute");
  find(f_.layout_create, "cublasLtMatrixLayoutCreate");
  find(f_.layout_destroy, "cublasLtMatrixLayoutDestroy");
  find(f_.preference_create, "cublasLtMatmulPreferenceCreate");
  find(f_.preference_destroy, "cublasLtMatmulPreferenceDestroy");
  find(f_.preference_set, "cublasLtMatmulPreferenceSetAttribute");
  find(f_.check, "cublasLtMatmulAlgoCheck");
  find(f_.version, "cublasLtGetVersion");
  check(f_.create(&handle_), "start");
}

// Our row-major C = op(A) · op(B) is, read by columns as the library does, Cᵀ = op(B)ᵀ · op(A)ᵀ: the right
// operand comes first.
Plan CublasLt::make_plan(const Product& product, const Key& key) {
  const Gemm& call = product.gemm;
  Plan plan;
  const auto rows = [](const Tensor& t) { return static_cast<std::uint64_t>(t.rows()); };
  const auto cols = [](const Tensor& t) { return static_cast<std::uint64_t>(t.cols()); };
  const cublasOperation_t first = call.role == GemmRole::kForward ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t second = call.role == GemmRole::kWeightGradient ? CUBLAS_OP_T : CUBLAS_OP_N;
  f_.desc_create(&plan.product, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  f_.desc_set(plan.product, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof(first));
  f_.desc_set(plan.product, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof(second));
  if (product.fast) {
    const std::int8_t fast = 1;
    f_.desc_set(plan.product, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof(fast));
  }
  if (call.spared > 0) {
    const std::int32_t target = std::max(multiprocessors_ - call.spared, 1);
    f_.desc_set(plan.product, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, &target, sizeof(target));
  }
  f_.layout_create(&plan.left, type_of(call.b.dtype), cols(call.b), rows(call.b), call.b.cols());
  f_.layout_create(&plan.right, type_of(call.a.dtype), cols(call.a), rows(call.a), call.a.cols());
  f_.layout_create(&plan.result, type_of(call.c.dtype), cols(call.c), rows(call.c), call.c.cols());
  const auto found = candidates(plan, key, call.workspace.bytes(), 1);
  plan.found = found.count > 0;
  if (!plan.found) return plan;
  plan.algorithm = found.all[0].algo;
  if (const auto tuned = shared_.library<Tuning>().known(tuned_key(key))) {
    plan.algorithm = std::bit_cast<cublasLtMatmulAlgo_t>(*tuned);
    plan.tuned = true;
  }
  return plan;
}

// The library's favourites, the best first.
Candidates CublasLt::candidates(const Plan& plan, const Key& key, std::int64_t workspace, int most) {
  cublasLtMatmulPreference_t preference = nullptr;
  f_.preference_create(&preference);
  const auto bytes = static_cast<std::uint64_t>(workspace);
  f_.preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof(bytes));
  // Parts of a sum are added in fp32, never in the result's type.
  const std::uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  f_.preference_set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof(reductions));
  const std::uint32_t a = key.b_alignment, b = key.a_alignment, c = key.c_alignment;
  f_.preference_set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &a, sizeof(a));
  f_.preference_set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &b, sizeof(b));
  f_.preference_set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &c, sizeof(c));
  f_.preference_set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &c, sizeof(c));
  Candidates results;
  int count = 0;
  const cublasStatus_t status = f_.heuristic(handle_, plan.product, plan.left, plan.right, plan.result,
                                             plan.result, preference, most, results.all.data(), &count);
  f_.preference_destroy(preference);
  results.count = status == CUBLAS_STATUS_SUCCESS ? std::clamp(count, 0, most) : 0;
  return results;
}

const Plan* CublasLt::find(const Product& product) {
  const Gemm& call = product.gemm;
  if (!product.is_fp8()) {
    // Mixed operands are as exact as fp32, which the library's mixed products are not. Empty ones it refuses.
    if (call.a.dtype != call.b.dtype) return nullptr;
    // And it rounds a bf16 result twice when it adds to one. Our own kernel rounds once, but is too slow for
    // weight gradients, a third of all products.
    if (call.accumulate && call.c.dtype == DType::kBF16 && call.role != GemmRole::kWeightGradient)
      return nullptr;
    if (call.a.elements() == 0 || call.b.elements() == 0 || call.c.elements() == 0) return nullptr;
  }
  const Key key = key_of(product);
  auto at = plans_.find(key);
  if (at == plans_.end()) at = plans_.emplace(key, make_plan(product, key)).first;
  return at->second.found ? &at->second : nullptr;
}

bool CublasLt::multiply(Context& context, const Product& product) {
  const Gemm& call = product.gemm;
  const Plan* const plan = find(product);
  const std::string what = product.is_fp8() ? "products in fp8" : "products";
  shared_.count(what + (!plan         ? ": own kernel"
                        : plan->tuned ? ": cuBLASLt, algorithm chosen by timing"
                                      : ": cuBLASLt"));
  if (!plan) return false;
  if (product.is_fp8()) {
    // The library's first operand is our second one. It reads the addresses now, and the scales later.
    f_.desc_set(plan->product, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &product.b_scale, sizeof(const void*));
    f_.desc_set(plan->product, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &product.a_scale, sizeof(const void*));
  }
  const float alpha = 1, beta = call.accumulate ? 1.0F : 0.0F;
  check(f_.matmul(handle_, plan->product, &alpha, call.b.data, plan->left, call.a.data, plan->right, &beta,
                  call.c.data, plan->result, call.c.data, plan->result, &plan->algorithm, call.workspace.data,
                  static_cast<std::size_t>(call.workspace.bytes()), context.stream()),
        "multiply");
  return true;
}

void CublasLt::tune(Context& context, const Product& product) {
  // Smaller ones take longer to start than to run, and there may be many of them.
  constexpr double kLeastWork = 1e9;
  if (product.gemm.flops() < kLeastWork) return;
  const Key key = tuned_key(key_of(product));
  if (!tuned_.insert(key).second) return;
  auto& tuning = shared_.library<Tuning>();
  Product sized = product;
  sized.gemm.accumulate = key.accumulate;
  sized.gemm.workspace = Tensor(nullptr, DType::kU8, {kWorkspaceBytes});
  const Plan* const plan = find(sized);
  if (!plan) return;
  const auto usable = [&](const AlgorithmChoice& choice) {
    const auto algorithm = std::bit_cast<cublasLtMatmulAlgo_t>(choice.algorithm);
    cublasLtMatmulHeuristicResult_t result{};
    return f_.check(handle_, plan->product, plan->left, plan->right, plan->result, plan->result, &algorithm,
                    &result) == CUBLAS_STATUS_SUCCESS &&
           result.state == CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= static_cast<std::size_t>(kWorkspaceBytes);
  };
  tuning.choose(key, f_.version(), usable,
                [&](AlgorithmTrials& trials) { return measure(context, sized.gemm, *plan, key, trials); });
}

// Random numbers of any type, because products of zeros are faster.
template <class T>
struct Noise {
  static constexpr int kThreads = 256;
  T* to;
  std::int64_t n;

  PRIMUS_DEVICE void operator()() const {
    const std::int64_t i = block() * kThreads + thread();
    if (i >= n) return;
    const auto mixed = static_cast<std::uint32_t>((i + 1) * 2654435761LL);
    const float noise = static_cast<float>(static_cast<std::int32_t>(mixed ^ (mixed >> 15U))) * 0x1p-31F;
    if constexpr (sizeof(T) == 1) {
      to[i] = T::nearest(noise * T::largest());
    } else {
      to[i] = from_float<T>(noise);
    }
  }
};

class DeviceBuffer {
 public:
  DeviceBuffer(Context& context, const Tensor& like) : data_(gpu::cuda::malloc(like.bytes())) {
    if (is_fp8(like.dtype)) {
      with_fp8_type(like.dtype, [&](auto tag) { fill<decltype(tag)>(context, like.elements()); });
    } else {
      with_float_type(like.dtype, [&](auto tag) { fill<decltype(tag)>(context, like.elements()); });
    }
  }
  explicit DeviceBuffer(std::int64_t bytes) : data_(gpu::cuda::malloc(bytes)) {}
  ~DeviceBuffer() { gpu::cuda::free(data_); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  void* get() const { return data_; }

 private:
  template <class T>
  void fill(Context& context, std::int64_t n) {
    launch(context, blocks_for(n, Noise<T>::kThreads), Noise<T>{static_cast<T*>(data_), n});
  }

  void* data_;
};

class TimedEvent {
 public:
  TimedEvent() { gpu::cuda::check(cudaEventCreate(&event_), "create an event"); }
  ~TimedEvent() { (void)cudaEventDestroy(event_); }
  TimedEvent(const TimedEvent&) = delete;
  TimedEvent& operator=(const TimedEvent&) = delete;
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

// The fastest of the library's favourites in the state of a training step (algorithm_trial.h), on memory of
// its own.
std::optional<AlgorithmChoice> CublasLt::measure(Context& context, const Gemm& call, const Plan& plan,
                                                 const Key& key, AlgorithmTrials& trials) {
  Candidates found = candidates(plan, key, kWorkspaceBytes, kCandidates);
  if (found.count == 0) return std::nullopt;
  const Candidates without = candidates(plan, key, 0, kCandidates);  // sums in one piece
  for (int i = 0; i < without.count && found.count < kCandidates; ++i) {
    const auto words = [](const cublasLtMatmulHeuristicResult_t& result) {
      return std::bit_cast<AlgorithmWords>(result.algo);
    };
    const auto& one = without.all[static_cast<std::size_t>(i)];
    const auto same = [&](const cublasLtMatmulHeuristicResult_t& other) {
      return words(other) == words(one);
    };
    if (std::none_of(found.all.begin(), found.all.begin() + found.count, same)) {
      found.all[static_cast<std::size_t>(found.count++)] = one;
    }
  }
  gpu::cuda::check(cudaSetDevice(shared_.index()), "choose a GPU");
  const DeviceBuffer a(context, call.a), b(context, call.b), c(context, call.c), workspace(kWorkspaceBytes);
  const TimedEvent begin, end;
  const float alpha = 1, beta = call.accumulate ? 1.0F : 0.0F;
  const auto run = [&](int candidate, int products) {
    gpu::cuda::check(cudaEventRecord(begin.get(), nullptr), "time a product");
    for (int i = 0; i < products; ++i) {
      if (f_.matmul(handle_, plan.product, &alpha, b.get(), plan.left, a.get(), plan.right, &beta, c.get(),
                    plan.result, c.get(), plan.result, &found.all[static_cast<std::size_t>(candidate)].algo,
                    workspace.get(), static_cast<std::size_t>(kWorkspaceBytes),
                    nullptr) != CUBLAS_STATUS_SUCCESS) {
        return 0.0;
      }
    }
    gpu::cuda::check(cudaEventRecord(end.get(), nullptr), "time a product");
    gpu::cuda::check(cudaEventSynchronize(end.get()), "time a product");
    float milliseconds = 0;
    gpu::cuda::check(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()), "time a product");
    return static_cast<double>(milliseconds) * 1e-3;
  };
  const std::optional<AlgorithmTrial> trial = trials.choose(found.count, run);
  if (!trial) return std::nullopt;
  constexpr double kMicro = 1e6;
  return AlgorithmChoice{
      .algorithm = std::bit_cast<AlgorithmWords>(found.all[static_cast<std::size_t>(trial->best)].algo),
      .microseconds = trial->seconds * kMicro,
      .next_microseconds = trial->next * kMicro,
      .of = trial->of};
}

}  // namespace

namespace {

std::int64_t workspace_of(Context& context, const Product& product) {
  // Asked for every product before memory is taken for a step, and before other ranks are waited for.
  if (!context.shared().tuning_folder().empty() && context.stream() == nullptr) {
    context.library<CublasLt>().tune(context, product);
  }
  return kWorkspaceBytes;
}

}  // namespace

std::int64_t library_workspace(Context& context, const Gemm& call) { return workspace_of(context, {call}); }

bool multiply_by_library(Context& context, const Gemm& call) {
  return context.library<CublasLt>().multiply(context, {call});
}

std::int64_t library_workspace(Context& context, const CodeProduct& call) {
  constexpr int kLeastCapability = 89;
  const int capability = context.capability();
  if (capability < kLeastCapability) {
    throw invalid("products in fp8 need a GPU of compute capability 8.9 or more, and this one has " +
                      std::to_string(capability / 10) + "." + std::to_string(capability % 10),
                  "compute in bf16, or take an Ada, Hopper or Blackwell GPU");
  }
  return workspace_of(context, product_of(call));
}

void multiply_by_library(Context& context, const CodeProduct& call) {
  if (context.library<CublasLt>().multiply(context, product_of(call))) return;
  throw unsupported("cuBLASLt has no algorithm for a product in fp8, " + std::to_string(call.a.rows()) +
                        " x " + std::to_string(call.b.rows()) + " x " + std::to_string(call.a.cols()) + ", " +
                        std::string(primus::name_of(call.a.dtype)) + " by " +
                        std::string(primus::name_of(call.b.dtype)) + " to " +
                        std::string(primus::name_of(call.c.dtype)),
                    "install a newer cuBLAS (13), or compute in bf16");
}

}  // namespace primus::turbo::cuda

#else

#include "base/error.h"

namespace primus::turbo::PRIMUS_GPU {

std::int64_t library_workspace(gpu::PRIMUS_GPU::Context&, const Gemm&) { return 0; }
bool multiply_by_library(gpu::PRIMUS_GPU::Context&, const Gemm&) { return false; }

namespace {

[[noreturn]] void refuse_fp8() {
  throw unsupported("products in fp8 are not there on AMD's GPUs yet", "compute in bf16");
}

}  // namespace

std::int64_t library_workspace(gpu::PRIMUS_GPU::Context&, const CodeProduct&) { refuse_fp8(); }
void multiply_by_library(gpu::PRIMUS_GPU::Context&, const CodeProduct&) { refuse_fp8(); }

}  // namespace primus::turbo::PRIMUS_GPU

#endif
