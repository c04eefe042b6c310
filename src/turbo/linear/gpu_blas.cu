#include <string>

#include "base/error.h"
#include "turbo/linear/gpu_blas.h"

#ifdef PRIMUS_GPU_VENDOR

#include <optional>

#include "turbo/fp8_linear/fp8_format.h"
#include "turbo/gpu/values.h"
#include "turbo/linear/library_product.h"
#if defined(__HIP__)
#include "turbo/linear/amd_products.h"
#else
#include "turbo/linear/gpu_cublaslt.h"
#include "turbo/linear/lt_products.h"
#endif

namespace primus::turbo::PRIMUS_GPU {
namespace {

namespace runtime = gpu::PRIMUS_GPU;

// Fills memory with random numbers of type T, because products of zeros are faster than other products.
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

class TimedEvent {
 public:
  TimedEvent() { runtime::check(PRIMUS_GPU_CALL(EventCreate)(&event_), "create an event"); }
  ~TimedEvent() { (void)PRIMUS_GPU_CALL(EventDestroy)(event_); }
  TimedEvent(const TimedEvent&) = delete;
  TimedEvent& operator=(const TimedEvent&) = delete;
  EventHandle get() const { return event_; }
  void record() const { runtime::check(PRIMUS_GPU_CALL(EventRecord)(event_, nullptr), "time a product"); }

 private:
  EventHandle event_ = nullptr;
};

// Times algorithms on the default stream of a GPU. The context must have no stream.
class GpuTrials final : public TrialDevice {
 public:
  explicit GpuTrials(Context& context) : context_(context) {}

  void begin() override {
    runtime::check(PRIMUS_GPU_CALL(SetDevice)(context_.shared().index()), "choose a GPU");
  }
  std::shared_ptr<void> memory(std::int64_t bytes) override {
    return {runtime::malloc(bytes), [](void* address) { runtime::free(address); }};
  }
  std::shared_ptr<void> operand(const Tensor& like) override {
    std::shared_ptr<void> result = memory(like.bytes());
    const auto fill = [&](auto tag) {
      using T = decltype(tag);
      const std::int64_t n = like.elements();
      launch(context_, blocks_for(n, Noise<T>::kThreads), Noise<T>{static_cast<T*>(result.get()), n});
    };
    if (is_fp8(like.dtype)) {
      with_fp8_type(like.dtype, fill);
    } else {
      with_operand_type(like.dtype, fill);
    }
    return result;
  }
  double seconds(const std::function<bool()>& enqueue) override {
    if (!events_) events_.emplace();
    events_->begin.record();
    if (!enqueue()) return 0;
    events_->end.record();
    runtime::check(PRIMUS_GPU_CALL(EventSynchronize)(events_->end.get()), "time a product");
    float milliseconds = 0;
    runtime::check(PRIMUS_GPU_CALL(EventElapsedTime)(&milliseconds, events_->begin.get(), events_->end.get()),
                   "time a product");
    return static_cast<double>(milliseconds) * 1e-3;
  }

 private:
  struct Events {
    TimedEvent begin, end;
  };
  Context& context_;
  std::optional<Events> events_;
};

// Tunes the products of one device.
class DeviceTuning : public ProductTuning {
 public:
  explicit DeviceTuning(GpuShared& shared)
      : ProductTuning(shared.tuning_folder(), [index = shared.index()] {
          RuntimeProperties properties;
          runtime::check(PRIMUS_GPU_CALL(GetDeviceProperties)(&properties, index),
                         "read the properties of a GPU");
          return std::string(properties.name);
        }) {}
};

#if defined(__HIP__)

// The first two digits of gfx942 and of gfx950, which multiply fp8 codes.
constexpr int kFnuzCapability = 94, kOcpCapability = 95;

// The products of one stream.
class StreamProducts {
 public:
  explicit StreamProducts(Context& context)
      : shared_(context.shared()),
        products_(
            options_for(context), shared_.library<DeviceTuning>(),
            [this](const std::string& choice) { shared_.count(choice); }, context.stream()) {}

  bool multiply(Context&, const LibraryProduct& product) { return products_.multiply(product); }
  std::string why_not() const { return products_.why_no_lt(); }
  void tune(Context& context, const LibraryProduct& product) {
    GpuTrials trials(context);
    trials.begin();  // makes this GPU current, so that the library creates its handle for this GPU
    products_.tune(product, trials);
  }

 private:
  static AmdProducts::Options options_for(const Context& context) {
    AmdProducts::Options options = AmdProducts::options_of_environment();
    options.fnuz = context.capability() == kFnuzCapability;
    return options;
  }

  GpuShared& shared_;
  AmdProducts products_;
};

#else

using CublasLt = LtProducts<CublasLtApi>;

// The products of one stream.
class StreamProducts {
 public:
  explicit StreamProducts(Context& context) : StreamProducts(context, CublasLtApi::open()) {}

  bool multiply(Context& context, const LibraryProduct& product) {
    const CublasLt::Plan* const plan = products_.find(product);
    const std::string what = product.is_fp8() ? "products in fp8" : "products";
    shared_.count(what + (!plan         ? ": own kernel"
                          : plan->tuned ? ": cuBLASLt, algorithm chosen by timing"
                                        : ": cuBLASLt"));
    if (!plan) return false;
    products_.run(*plan, product, context.stream());
    return true;
  }
  void tune(Context& context, const LibraryProduct& product) {
    GpuTrials trials(context);
    products_.tune(product, trials);
  }

 private:
  StreamProducts(Context& context, const CublasLtApi& api)
      : shared_(context.shared()),
        products_(api, start(api), shared_.library<DeviceTuning>(), context.multiprocessors()) {}
  static cublasLtHandle_t start(const CublasLtApi& api) {
    cublasLtHandle_t handle = nullptr;
    CublasLt::check(api.create(&handle), "start");
    return handle;
  }

  GpuShared& shared_;
  CublasLt products_;
};

#endif

std::int64_t workspace_of(Context& context, const LibraryProduct& product) {
  // Tunes products here, because this function runs early for every product: the memory of a step is not yet
  // allocated, and ranks do not yet wait for each other.
  if (!context.shared().tuning_folder().empty() && context.stream() == nullptr) {
    context.library<StreamProducts>().tune(context, product);
  }
  return kLibraryWorkspaceBytes;
}

}  // namespace

std::int64_t library_workspace(Context& context, const Gemm& call) { return workspace_of(context, {call}); }

bool multiply_by_library(Context& context, const Gemm& call) {
  return context.library<StreamProducts>().multiply(context, {call});
}

namespace {

LibraryProduct product_of(const CodeProduct& call) {
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

}  // namespace

#if defined(__HIP__)

std::int64_t library_workspace(Context& context, const CodeProduct& call) {
  const int capability = context.capability();
  if (capability != kFnuzCapability && capability != kOcpCapability) {
    throw invalid("products in fp8 need an AMD GPU gfx942 or gfx950, and this one is gfx" +
                      std::to_string(capability) + "x",
                  "compute in bf16, or take an MI300X, MI325X, MI350X or MI355X");
  }
  return workspace_of(context, product_of(call));
}

void multiply_by_library(Context& context, const CodeProduct& call) {
  auto& products = context.library<StreamProducts>();
  if (products.multiply(context, product_of(call))) return;
  throw unsupported("hipBLASLt does not compute a product in fp8, " + std::to_string(call.a.rows()) + " x " +
                        std::to_string(call.b.rows()) + " x " + std::to_string(call.a.cols()) + ", " +
                        std::string(primus::name_of(call.a.dtype)) + " by " +
                        std::string(primus::name_of(call.b.dtype)) + " to " +
                        std::string(primus::name_of(call.c.dtype)) + ": " + products.why_not(),
                    "install a newer hipBLASLt, or compute in bf16");
}

#else

std::int64_t library_workspace(Context& context, const CodeProduct& call) {
  constexpr int kMinCapability = 89;
  const int capability = context.capability();
  if (capability < kMinCapability) {
    throw invalid("products in fp8 need a GPU of compute capability 8.9 or more, and this one has " +
                      std::to_string(capability / 10) + "." + std::to_string(capability % 10),
                  "compute in bf16, or take an Ada, Hopper or Blackwell GPU");
  }
  return workspace_of(context, product_of(call));
}

void multiply_by_library(Context& context, const CodeProduct& call) {
  if (context.library<StreamProducts>().multiply(context, product_of(call))) return;
  throw unsupported("cuBLASLt has no algorithm for a product in fp8, " + std::to_string(call.a.rows()) +
                        " x " + std::to_string(call.b.rows()) + " x " + std::to_string(call.a.cols()) + ", " +
                        std::string(primus::name_of(call.a.dtype)) + " by " +
                        std::string(primus::name_of(call.b.dtype)) + " to " +
                        std::string(primus::name_of(call.c.dtype)),
                    "install a newer cuBLAS (13), or compute in bf16");
}

#endif

}  // namespace primus::turbo::PRIMUS_GPU

#else

namespace primus::turbo::PRIMUS_GPU {

std::int64_t library_workspace(gpu::PRIMUS_GPU::Context&, const Gemm&) { return 0; }
bool multiply_by_library(gpu::PRIMUS_GPU::Context&, const Gemm&) { return false; }

}  // namespace primus::turbo::PRIMUS_GPU

#endif
