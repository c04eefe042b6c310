#include "turbo/linear/amd_products.h"

#include <cstdlib>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace primus::turbo {
namespace {

constexpr const char* kVariable = "PRIMUS_MATMUL_LIBRARY";

std::string off(const char* library) { return std::string(library) + " is switched off by " + kVariable; }

}  // namespace

AmdProducts::Options AmdProducts::options_of_environment() {
  const char* const value = std::getenv(kVariable);
  const std::string_view wanted = value ? value : "hipblaslt";
  Options options;
  options.hipblaslt = wanted == "hipblaslt";
  options.rocblas = options.hipblaslt || wanted == "rocblas";
  if (!options.rocblas && wanted != "own") {
    throw invalid(std::string(kVariable) + "=" + std::string(wanted) + " is not a known library",
                  std::string("set ") + kVariable + " to hipblaslt, rocblas or own, or unset it");
  }
  return options;
}

AmdProducts::AmdProducts(const Options& options, ProductTuning& tuning,
                         std::function<void(const std::string&)> count, void* stream)
    : options_(options), tuning_(tuning), count_(std::move(count)), stream_(stream) {}

LtProducts<hipblaslt::Api>* AmdProducts::lt_products() {
  if (!std::exchange(asked_lt_, true)) {
    if (!options_.hipblaslt) {
      why_no_lt_ = off("hipBLASLt");
    } else if (const auto library = hipblaslt::open_library(options_.hipblaslt_files, why_no_lt_)) {
      // Passes 0 multiprocessors, because hipBLASLt has no such setting.
      if (const hipblaslt::Handle handle = hipblaslt::start(*library, why_no_lt_))
        lt_.emplace(hipblaslt::Api{*library, options_.fnuz}, handle, tuning_, 0);
    }
  }
  return lt_ ? &*lt_ : nullptr;
}

rocblas::Products* AmdProducts::rocblas_products() {
  if (!std::exchange(asked_rocblas_, true)) {
    if (!options_.rocblas) {
      why_no_rocblas_ = off("rocBLAS");
    } else if (auto library = rocblas::open_library(options_.rocblas_files, why_no_rocblas_)) {
      try {
        rocblas_.emplace(std::move(library), stream_);
      } catch (const Error& error) {
        why_no_rocblas_ = error.what();
      }
    }
  }
  return rocblas_ ? &*rocblas_ : nullptr;
}

bool AmdProducts::multiply(const LibraryProduct& product) {
  if (!is_for_library(product)) {
    count_("products: own kernel");
    return false;
  }
  const std::string what = product.is_fp8() ? "products in fp8" : "products";
  if (auto* const lt = lt_products()) {
    if (const auto* const plan = lt->find(product)) {
      count_(what + (plan->tuned ? ": hipBLASLt, algorithm chosen by timing" : ": hipBLASLt"));
      lt->run(*plan, product, stream_);
      return true;
    }
  }
  if (product.is_fp8()) return false;
  const std::string why = why_no_lt();
  auto* const fallback = rocblas_products();
  if (fallback && fallback->multiply(product)) {
    count_("products: rocBLAS (" + why + ")");
    return true;
  }
  count_("products: own kernel (" + why + "; " + (fallback ? "rocBLAS has no kernel" : why_no_rocblas_) +
         ")");
  return false;
}

void AmdProducts::tune(const LibraryProduct& product, TrialDevice& device) {
  if (product.is_fp8()) return;
  if (auto* const lt = lt_products()) lt->tune(product, device);
}

}  // namespace primus::turbo
