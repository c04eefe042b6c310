#include "turbo/linear/library_product.h"

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace primus::turbo {
namespace {

// Returns the largest power of two up to 16 that divides an address.
unsigned alignment_of(const void* address) {
  const auto low = static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(address) & 15U);
  return low == 0 ? 16U : low & (~low + 1U);
}

bool sustained_trials() {
  const char* const how = std::getenv("PRIMUS_MATMUL_TRIALS");
  return how && std::strcmp(how, "sustained") == 0;
}

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

bool is_for_library(const LibraryProduct& product) {
  if (product.is_fp8()) return true;
  const Gemm& call = product.gemm;
  // If the operands have different types, the product must be as exact as in fp32, and the library's product
  // is less exact. The library rejects empty products.
  if (call.a.dtype != call.b.dtype) return false;
  // When the library accumulates into a 16-bit result, it rounds twice. Only weight gradients may be rounded
  // twice. For other products, added_apart.h adds the product separately.
  if (call.accumulate && size_of(call.c.dtype) == 2 && call.role != GemmRole::kWeightGradient) return false;
  return call.a.elements() > 0 && call.b.elements() > 0 && call.c.elements() > 0;
}

ProductKey key_of(const LibraryProduct& product) {
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

ProductKey tuned_key(ProductKey key) {
  if (key.role == GemmRole::kWeightGradient || (is_fp8(key.a) && key.c == DType::kF32)) key.accumulate = true;
  return key;
}

std::string name_of(const ProductKey& key) {
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

ProductTuning::ProductTuning(std::string folder, std::function<std::string()> device_name)
    : folder_(std::move(folder)),
      device_name_(std::move(device_name)),
      sustained_(sustained_trials()),
      trials_(steady_seconds, sustained_ ? AlgorithmTrials::Limits() : AlgorithmTrials::bursts()) {}

std::optional<AlgorithmWords> ProductTuning::known(const ProductKey& key) {
  const std::lock_guard lock(mutex_);
  const auto at = chosen_.find(key);
  return at == chosen_.end() ? std::nullopt : std::optional(at->second);
}

void ProductTuning::choose(const ProductKey& key, const std::string& library,
                           const std::function<bool(const AlgorithmChoice&)>& usable,
                           const std::function<std::optional<AlgorithmChoice>(AlgorithmTrials&)>& measure) {
  if (!cache_) {
    cache_ =
        std::make_unique<AlgorithmCache>(folder_, device_name_(), library + (sustained_ ? "-sustained" : ""));
  }
  const std::optional<AlgorithmChoice> choice =
      cache_->choose(name_of(key), usable, [&] { return measure(trials_); });
  const std::lock_guard lock(mutex_);
  if (choice) chosen_.emplace(key, choice->algorithm);
}

}  // namespace primus::turbo
