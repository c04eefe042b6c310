#include "turbo/linear/amd_products.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <vector>

#include "base/error.h"
#include "turbo/fp8_linear/fp8_fnuz.h"
#include "turbo/linear/fake_amd.h"
#include "turbo/linear_layer.h"
#include "turbo/operator_test.h"

namespace primus::turbo::test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

constexpr const char* kNowhere[] = {"libhipblaslt-that-is-not-there.so.1"};
constexpr const char* kNoRocblas[] = {"librocblas-that-is-not-there.so.5"};
constexpr const char* kNotWhole[] = {OLD_HIPBLASLT, "libhipblaslt-that-is-not-there.so.1"};

// Opens the fake library and resets its state.
FakeAmd& state_of(const char* library) {
  void* const opened = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (!opened) throw std::runtime_error(dlerror());
  auto& state = *static_cast<FakeAmd*>(dlsym(opened, "fake_amd_state"));
  state = FakeAmd();
  return state;
}

class AmdProductsTest : public ::testing::Test {
 protected:
  ~AmdProductsTest() override {
    products_.reset();
    for (const FakeAmd* fake : {&lt_, &rocblas_}) {
      EXPECT_STREQ(fake->error, "");
      EXPECT_EQ(fake->handles, 0);
      EXPECT_EQ(fake->objects, 0);
    }
    std::filesystem::remove_all(folder_);
  }

  AmdProducts& products() {
    if (!products_) make();
    return *products_;
  }
  void make() {
    tuning_ = std::make_unique<ProductTuning>(folder_, [] { return std::string("AMD Instinct MI300X"); });
    products_.emplace(
        options_, *tuning_, [this](const std::string& choice) { ++choices_[choice]; }, &stream_);
  }
  void forget() {
    products_.reset();
    choices_.clear();
  }

  struct Types {
    DType operands, result;
  };
  Gemm gemm(GemmRole role, const Layer& layer, Types types, bool accumulate) {
    const Shapes s = shapes(role, layer);
    Tensor c = bench_.upload(random_values(s.c.elements(), 3), types.result, s.c);
    return {.role = role,
            .a = bench_.upload(random_values(s.a.elements(), 1), types.operands, s.a),
            .b = bench_.upload(random_values(s.b.elements(), 2), types.operands, s.b),
            .c = c,
            .accumulate = accumulate,
            .workspace = workspace_};
  }
  Gemm small() { return gemm(GemmRole::kForward, {5, 12, 7}, {DType::kBF16, DType::kF32}, false); }

  // Checks that the product equals the result of the CPU operator and of the definition, rounded once.
  void expect_product(GemmRole role, const Layer& layer, Types types, bool accumulate) {
    SCOPED_TRACE("role " + std::to_string(static_cast<int>(role)) + " tokens " +
                 std::to_string(layer.tokens) + " " + std::string(name_of(types.operands)) + " to " +
                 std::string(name_of(types.result)) + (accumulate ? " +=" : ""));
    const Gemm call = gemm(role, layer, types, accumulate);
    Gemm by_cpu = gemm(role, layer, types, accumulate);
    by_cpu.workspace = {};
    const Values before = bench_.download(call.c);
    Values expected = product(role, layer, bench_.download(call.a), bench_.download(call.b));
    if (accumulate) {
      for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += before[i];
    }
    ASSERT_TRUE(products().multiply({call}));
    EXPECT_LE(normalised_error(bench_.download(call.c), expected), rounding_error(types.result));
    bench_.run(by_cpu);
    EXPECT_LE(normalised_error(bench_.download(call.c), bench_.download(by_cpu.c)),
              2 * rounding_error(types.result) + 2e-6);
  }
  void expect_all_products() {
    for (const Layer& layer : {Layer{1, 1, 1}, {5, 12, 7}, {33, 64, 48}, {130, 80, 20}, {1, 300, 65}}) {
      for (const GemmRole role : kRoles) {
        for (const bool accumulate : {false, true}) {
          for (const Types types : {Types{DType::kF32, DType::kF32},
                                    {DType::kF32, DType::kBF16},
                                    {DType::kBF16, DType::kF32},
                                    {DType::kBF16, DType::kBF16},
                                    {DType::kF16, DType::kF32},
                                    {DType::kF16, DType::kF16}}) {
            // Our own kernels compute these products, because a library may round twice.
            if (accumulate && types.result != DType::kF32 && role != GemmRole::kWeightGradient) continue;
            expect_product(role, layer, types, accumulate);
          }
        }
      }
    }
  }

  FakeAmd& lt_ = state_of(FAKE_HIPBLASLT);
  FakeAmd& rocblas_ = state_of(FAKE_ROCBLAS);
  const std::string folder_ = ::testing::TempDir() + "amd-products-" + std::to_string(getpid());
  AmdProducts::Options options_;  // the fake libraries are found by the names of the real libraries
  int stream_ = 0;
  std::map<std::string, int> choices_;
  OperatorBench bench_;
  Tensor workspace_ = bench_.zeros(DType::kU8, {kLibraryWorkspaceBytes});
  std::unique_ptr<ProductTuning> tuning_;
  std::optional<AmdProducts> products_;
};

TEST_F(AmdProductsTest, HipblasltEqualsTheCpu) {
  expect_all_products();
  EXPECT_THAT(choices_, ElementsAre(Pair("products: hipBLASLt", 5 * (3 * 2 * 6 - 6))));
  EXPECT_EQ(rocblas_.products, 0);
  EXPECT_EQ(lt_.stream, &stream_);
  EXPECT_EQ(lt_.workspace_memory, workspace_.data);
}

TEST_F(AmdProductsTest, RocblasEqualsTheCpu) {
  options_.hipblaslt = false;
  expect_all_products();
  EXPECT_THAT(choices_, ElementsAre(Pair(
                            "products: rocBLAS (hipBLASLt is switched off by PRIMUS_MATMUL_LIBRARY)", 150)));
  EXPECT_EQ(lt_.handles, 0);
  EXPECT_EQ(rocblas_.stream, &stream_);
  EXPECT_EQ(rocblas_.workspace_memory, workspace_.data);
  EXPECT_FALSE(rocblas_.atomics);
}

// Our kernels compute products of mixed types, empty products, and sums that a library would round twice.
TEST_F(AmdProductsTest, OurKernelsMultiplyIfALibraryWouldRoundTwiceOrMixTypes) {
  Gemm mixed = small();
  mixed.b = bench_.upload(random_values(mixed.b.elements(), 2), DType::kF32, mixed.b.shape);
  Gemm added = gemm(GemmRole::kInputGradient, {5, 12, 7}, {DType::kBF16, DType::kBF16}, true);
  Gemm empty = gemm(GemmRole::kForward, {0, 12, 7}, {DType::kBF16, DType::kBF16}, false);
  for (const Gemm& call : {mixed, added, empty}) {
    const auto before = bench_.bytes(call.c);
    EXPECT_FALSE(products().multiply({call}));
    EXPECT_EQ(bench_.bytes(call.c), before);
  }
  EXPECT_THAT(choices_, ElementsAre(Pair("products: own kernel", 3)));
  EXPECT_EQ(lt_.questions + lt_.products + rocblas_.products, 0);
}

TEST_F(AmdProductsTest, TheLibraryIsAskedOncePerShape) {
  Gemm call = small();
  EXPECT_TRUE(products().multiply({call}));
  EXPECT_TRUE(products().multiply({call}));
  // hipBLASLt cannot leave multiprocessors to other kernels, so `spared` does not affect the product.
  call.spared = 8;
  EXPECT_TRUE(products().multiply({call}));
  EXPECT_EQ(lt_.questions, 1);
  EXPECT_EQ(lt_.products, 3);
}

TEST_F(AmdProductsTest, WithoutLibrariesOurOwnKernelsMultiply) {
  options_.hipblaslt_files = kNowhere;
  options_.rocblas_files = kNoRocblas;
  const Gemm call = small();
  EXPECT_FALSE(products().multiply({call}));
  EXPECT_FALSE(products().multiply({call}));
  EXPECT_THAT(
      choices_,
      ElementsAre(Pair(AllOf(HasSubstr("products: own kernel (cannot load hipBLASLt: "),
                             HasSubstr(kNowhere[0]), HasSubstr("install ROCm's hipblaslt 0.7.0 or newer"),
                             HasSubstr("cannot load rocBLAS: "), HasSubstr("install ROCm's rocblas")),
                       2)));
}

TEST_F(AmdProductsTest, MissingFunctionsAreNamedWithTheirLibrary) {
  options_.hipblaslt_files = kNotWhole;
  EXPECT_TRUE(products().multiply({small()}));
  EXPECT_THAT(choices_, ElementsAre(Pair(
                            AllOf(HasSubstr("products: rocBLAS (cannot load hipBLASLt: "),
                                  HasSubstr("has no function hipblasLtDestroy"), HasSubstr("0.7.0 or newer")),
                            1)));
}

TEST_F(AmdProductsTest, AnOldLibraryIsNotUsed) {
  lt_.version = 699;
  EXPECT_TRUE(products().multiply({small()}));
  EXPECT_THAT(
      choices_,
      ElementsAre(Pair(HasSubstr("products: rocBLAS (hipBLASLt 0.6.99 is older than 0.7.0; install"), 1)));
  EXPECT_EQ(lt_.products, 0);
}

TEST_F(AmdProductsTest, ALibraryThatDoesNotStartIsNotUsed) {
  lt_.start_status = rocblas_.start_status = 6;
  EXPECT_FALSE(products().multiply({small()}));
  EXPECT_THAT(choices_,
              ElementsAre(Pair("products: own kernel (hipBLASLt cannot be initialized: status 6; rocBLAS "
                               "cannot start: status 6)",
                               1)));
}

TEST_F(AmdProductsTest, RocblasMultipliesIfHipblasltHasNoAlgorithm) {
  lt_.algorithms = 0;
  const Gemm call = small();
  EXPECT_TRUE(products().multiply({call}));
  EXPECT_THAT(choices_, ElementsAre(Pair("products: rocBLAS (hipBLASLt has no algorithm)", 1)));
  forget();
  rocblas_.products = 0;
  rocblas_.status = 2;  // status "not implemented"
  EXPECT_FALSE(products().multiply({call}));
  EXPECT_FALSE(products().multiply({call}));
  EXPECT_THAT(choices_, ElementsAre(Pair("products: own kernel (hipBLASLt has no algorithm; rocBLAS has no "
                                         "kernel)",
                                         2)));
  EXPECT_EQ(rocblas_.products, 1) << "a shape that was refused is not tried again";
}

// rocBLAS's status "slower than possible" counts as success, and "needs more memory" as a refusal.
TEST_F(AmdProductsTest, RocblasMayNeedMemoryOrReportSlowness) {
  options_.hipblaslt = false;
  rocblas_.status = 7;  // status "done, but slower than possible"
  EXPECT_TRUE(products().multiply({small()}));
  rocblas_.status = 5;  // status "the kernel needs a larger workspace"
  EXPECT_FALSE(
      products().multiply({gemm(GemmRole::kForward, {6, 12, 7}, {DType::kF32, DType::kF32}, false)}));
}

TEST_F(AmdProductsTest, AFailedProductIsAnError) {
  const auto error_of = [&] {
    try {
      products().multiply({small()});
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kIo);
      return std::string(error.what());
    }
    return std::string("none");
  };
  lt_.status = 5;
  EXPECT_EQ(error_of(), "hipBLASLt cannot multiply: status 5");
  lt_.algorithms = 0;
  rocblas_.status = 6;
  forget();
  EXPECT_EQ(error_of(), "rocBLAS cannot multiply: status 6");
}

TEST_F(AmdProductsTest, TheEnvironmentChoosesTheLibraries) {
  const auto options = [](const char* value) {
    setenv("PRIMUS_MATMUL_LIBRARY", value, 1);
    const auto result = AmdProducts::options_of_environment();
    unsetenv("PRIMUS_MATMUL_LIBRARY");
    return std::pair(result.hipblaslt, result.rocblas);
  };
  const auto unset = AmdProducts::options_of_environment();
  EXPECT_TRUE(unset.hipblaslt && unset.rocblas);
  EXPECT_EQ(options("hipblaslt"), std::pair(true, true));
  EXPECT_EQ(options("rocblas"), std::pair(false, true));
  EXPECT_EQ(options("own"), std::pair(false, false));
  try {
    options("cublas");
    ADD_FAILURE() << "cublas was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    EXPECT_THAT(error.render(), HasSubstr("PRIMUS_MATMUL_LIBRARY=cublas is not a known library"));
  }
  unsetenv("PRIMUS_MATMUL_LIBRARY");
}

// Times algorithms in host memory with the clock of the host.
class HostTrials final : public TrialDevice {
 public:
  void begin() override { ++trials; }
  std::shared_ptr<void> memory(std::int64_t bytes) override {
    return {std::malloc(static_cast<std::size_t>(bytes)), std::free};
  }
  std::shared_ptr<void> operand(const Tensor& like) override { return memory(like.bytes()); }
  double seconds(const std::function<bool()>& enqueue) override {
    const auto start = std::chrono::steady_clock::now();
    if (!enqueue()) return 0;
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  int trials = 0;
};

// In fp8, the library gets the codes in the format of the GPU. Results are those of the codes in OCP's
// format, whichever format the GPU has.
TEST_F(AmdProductsTest, Fp8ProductsAreEqualInBothKindsOfFormats) {
  constexpr std::int64_t kRows = 16, kCols = 32, kSum = 48;
  const float a_scale = 0.25F, b_scale = 3;
  const auto bytes_of = [](std::int64_t n, std::uint32_t seed) {
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(n));
    for (std::size_t i = 0; i < codes.size(); ++i) {
      const auto code = static_cast<std::uint32_t>((i + seed) * 2654435761U >> 13U & 0xFFU);
      codes[i] = static_cast<std::uint8_t>((code & 0x7FU) > 0x7BU ? code & 0xF0U : code);  // finite in both
    }
    return codes;
  };
  const std::vector<std::uint8_t> a = bytes_of(kRows * kSum, 1), b = bytes_of(kCols * kSum, 5);
  for (const DType b_type : {DType::kF8E4M3, DType::kF8E5M2}) {
    const int b_digits = b_type == DType::kF8E4M3 ? 3 : 2;
    const std::uint32_t b_top = b_type == DType::kF8E4M3 ? 0x7EU : 0x7BU;
    for (const bool fnuz : {false, true}) {
      forget();
      options_.fnuz = fnuz;
      std::vector<std::uint8_t> left = a, right = b;
      if (fnuz) {
        for (std::uint8_t& code : left) code = static_cast<std::uint8_t>(fnuz_code(code, 0x7EU));
        for (std::uint8_t& code : right) code = static_cast<std::uint8_t>(fnuz_code(code, b_top));
      }
      std::vector<float> c(static_cast<std::size_t>(kRows * kCols), 1.0F);
      const LibraryProduct product{.gemm = {.role = GemmRole::kForward,
                                            .a = Tensor(left.data(), DType::kF8E4M3, {kRows, kSum}),
                                            .b = Tensor(right.data(), b_type, {kCols, kSum}),
                                            .c = Tensor(c.data(), DType::kF32, {kRows, kCols}),
                                            .accumulate = true,
                                            .workspace = workspace_},
                                   .a_scale = &a_scale,
                                   .b_scale = &b_scale};
      ASSERT_TRUE(products().multiply(product));
      EXPECT_THAT(choices_, ElementsAre(Pair("products in fp8: hipBLASLt", 1)));
      for (std::int64_t row = 0; row < kRows; ++row) {
        for (std::int64_t col = 0; col < kCols; ++col) {
          double sum = 0, magnitude = 1;
          for (std::int64_t k = 0; k < kSum; ++k) {
            const double term = fp8_value(a[static_cast<std::size_t>(row * kSum + k)], 3, false) *
                                fp8_value(b[static_cast<std::size_t>(col * kSum + k)], b_digits, false) *
                                a_scale * b_scale;
            sum += term;
            magnitude += std::abs(term);
          }
          EXPECT_NEAR(c[static_cast<std::size_t>(row * kCols + col)], 1 + sum, 1e-6 * magnitude);
        }
      }
    }
  }
}

// No other library computes fp8 products, so there is no result without an algorithm of hipBLASLt.
TEST_F(AmdProductsTest, Fp8ProductsHaveNoFallback) {
  std::vector<std::uint8_t> codes(256);
  std::vector<float> c(256);
  const float scale = 1;
  const LibraryProduct product{.gemm = {.role = GemmRole::kForward,
                                        .a = Tensor(codes.data(), DType::kF8E4M3, {16, 16}),
                                        .b = Tensor(codes.data(), DType::kF8E4M3, {16, 16}),
                                        .c = Tensor(c.data(), DType::kF32, {16, 16}),
                                        .workspace = workspace_},
                               .a_scale = &scale,
                               .b_scale = &scale};
  lt_.algorithms = 0;
  EXPECT_FALSE(products().multiply(product));
  EXPECT_EQ(products().why_no_lt(), "hipBLASLt has no algorithm");
  forget();
  options_.hipblaslt_files = kNowhere;
  EXPECT_FALSE(products().multiply(product));
  EXPECT_THAT(products().why_no_lt(), HasSubstr("cannot load hipBLASLt"));
  EXPECT_EQ(rocblas_.products, 0);
}

class AmdTuning : public AmdProductsTest {
 protected:
  AmdTuning() {
    lt_.trials = true;
    lt_.slow = 2;  // the third algorithm is the fastest
  }
  // A product of 10^9 operations, enough to be timed.
  const Gemm call_ = gemm(GemmRole::kWeightGradient, {512, 1024, 1024}, {DType::kBF16, DType::kF32}, false);
  const std::string file_ = folder_ + "/matmul-AMD_Instinct_MI300X-hipblaslt-100100.json";
  HostTrials trials_;
};

TEST_F(AmdTuning, TheFastestAlgorithmIsChosenAndStored) {
  products().tune({call_}, trials_);
  EXPECT_TRUE(products().multiply({call_}));
  EXPECT_EQ(lt_.last_algorithm, 2);
  EXPECT_THAT(choices_, ElementsAre(Pair("products: hipBLASLt, algorithm chosen by timing", 1)));
  EXPECT_TRUE(std::filesystem::exists(file_));
  // As in a new process, the choice is read from the file.
  forget();
  products().tune({call_}, trials_);
  EXPECT_EQ(trials_.trials, 1);
  Gemm added = call_;  // microbatches that accumulate use the same algorithm
  added.accumulate = true;
  EXPECT_TRUE(products().multiply({added}));
  EXPECT_EQ(lt_.last_algorithm, 2);
}

TEST_F(AmdTuning, ShapesAreMeasuredAgainIfTheLibraryLacksTheStoredAlgorithm) {
  products().tune({call_}, trials_);
  forget();
  lt_.algorithms = 2;
  products().tune({call_}, trials_);
  EXPECT_EQ(trials_.trials, 2);
  EXPECT_TRUE(products().multiply({call_}));
  EXPECT_LT(lt_.last_algorithm, 2);
}

TEST_F(AmdTuning, EachLibraryVersionHasItsOwnChoices) {
  products().tune({call_}, trials_);
  forget();
  lt_.version = 100200;
  products().tune({call_}, trials_);
  EXPECT_EQ(trials_.trials, 2);
}

TEST_F(AmdTuning, SmallProductsAndRocblasProductsAreNotTimed) {
  products().tune({small()}, trials_);
  forget();
  lt_.algorithms = 0;
  products().tune({call_}, trials_);
  forget();
  options_.hipblaslt_files = kNowhere;
  products().tune({call_}, trials_);
  EXPECT_EQ(trials_.trials, 0);
  EXPECT_EQ(lt_.products, 0);
}

}  // namespace
}  // namespace primus::turbo::test
