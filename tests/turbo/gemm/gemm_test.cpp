#include "turbo/gemm/gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "base/system/thread_pool.h"
#include "tensor/bfloat16.h"
#include "turbo/gemm/skinny.h"

namespace primus::turbo {
namespace {

constexpr GemmLayout kLayouts[] = {GemmLayout::kNT, GemmLayout::kNN, GemmLayout::kTN};
constexpr GemmProvider kProviders[] = {GemmProvider::kPortable, GemmProvider::kXsmm,
                                       GemmProvider::kAvx512Bf16, GemmProvider::kAmx};
constexpr DType kTypes[] = {DType::kF32, DType::kBF16};

// A row-major matrix of fp32 or bf16 with unused elements between rows. The unused elements hold a sentinel,
// a NaN. Reads outside the matrix make results NaN, and writes change the sentinel.
class Matrix {
 public:
  Matrix(DType dtype, std::int64_t rows, std::int64_t cols, std::int64_t gap = 0)
      : dtype_(dtype), rows_(rows), cols_(cols), ld_(cols + gap) {
    f32_.assign(static_cast<std::size_t>(rows * ld_), std::numeric_limits<float>::quiet_NaN());
    bf16_.assign(f32_.size(), BFloat16(std::numeric_limits<float>::quiet_NaN()));
  }

  std::int64_t rows() const { return rows_; }
  std::int64_t cols() const { return cols_; }
  std::int64_t ld() const { return ld_; }
  void* data() { return dtype_ == DType::kF32 ? static_cast<void*>(f32_.data()) : bf16_.data(); }
  std::size_t bytes() const { return f32_.size() * static_cast<std::size_t>(size_of(dtype_)); }

  double at(std::int64_t i, std::int64_t j) const {
    const auto x = static_cast<std::size_t>(i * ld_ + j);
    return static_cast<double>(dtype_ == DType::kF32 ? f32_[x] : static_cast<float>(bf16_[x]));
  }
  void set(std::int64_t i, std::int64_t j, float value) {
    const auto x = static_cast<std::size_t>(i * ld_ + j);
    f32_[x] = value;
    bf16_[x] = BFloat16(value);
  }
  void fill(std::mt19937& random) {
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (std::int64_t i = 0; i < rows_; ++i) {
      for (std::int64_t j = 0; j < cols_; ++j) set(i, j, uniform(random));
    }
  }
  bool gap_untouched() const {
    for (std::int64_t i = 0; i < rows_; ++i) {
      for (std::int64_t j = cols_; j < ld_; ++j) {
        if (!std::isnan(at(i, j))) return false;
      }
    }
    return true;
  }

 private:
  DType dtype_;
  std::int64_t rows_, cols_, ld_;
  std::vector<float> f32_;
  std::vector<BFloat16> bf16_;
};

struct Problem {
  GemmProvider provider;
  GemmLayout layout;
  DType ab, c_type;
  std::int64_t m, n, k;
  bool accumulate = false;
  std::int64_t gap = 0;

  std::string name() const {
    return std::string(name_of(provider)) + " layout " + std::to_string(static_cast<int>(layout)) + " " +
           std::string(primus::name_of(ab)) + "->" + std::string(primus::name_of(c_type)) + " " +
           std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k) +
           (accumulate ? " accumulate" : "");
  }
};

struct Operands {
  Matrix a, b, c;

  Operands(const Problem& p, unsigned seed)
      : a(p.ab, p.layout == GemmLayout::kTN ? p.k : p.m, p.layout == GemmLayout::kTN ? p.m : p.k, p.gap),
        b(p.ab, p.layout == GemmLayout::kNT ? p.n : p.k, p.layout == GemmLayout::kNT ? p.k : p.n, p.gap),
        c(p.c_type, p.m, p.n, p.gap) {
    std::mt19937 random(seed);
    a.fill(random);
    b.fill(random);
    if (p.accumulate) c.fill(random);
  }
};

GemmArgs arguments(const Problem& p, Operands& x) {
  return {.layout = p.layout,
          .ab_dtype = p.ab,
          .c_dtype = p.c_type,
          .accumulate = p.accumulate,
          .m = p.m,
          .n = p.n,
          .k = p.k,
          .a = x.a.data(),
          .lda = x.a.ld(),
          .b = x.b.data(),
          .ldb = x.b.ld(),
          .c = x.c.data(),
          .ldc = x.c.ld(),
          .workspace = nullptr,
          .workspace_bytes = 0,
          .provider = p.provider};
}

void multiply(ThreadPool& pool, const Problem& p, Operands& x) {
  GemmArgs g = arguments(p, x);
  // Guard bytes after the workspace detect writes after its end.
  constexpr std::size_t kGuard = 256;
  g.workspace_bytes = cpu_gemm_workspace_bytes(g, pool.size());
  std::vector<unsigned char> workspace(g.workspace_bytes + kGuard, 0xff);
  g.workspace = workspace.data();
  cpu_gemm(pool, g);
  for (std::size_t i = 0; i < kGuard; ++i) ASSERT_EQ(workspace[g.workspace_bytes + i], 0xff) << p.name();
}

double element_a(const Problem& p, const Operands& x, std::int64_t i, std::int64_t k) {
  return p.layout == GemmLayout::kTN ? x.a.at(k, i) : x.a.at(i, k);
}
double element_b(const Problem& p, const Operands& x, std::int64_t j, std::int64_t k) {
  return p.layout == GemmLayout::kNT ? x.b.at(j, k) : x.b.at(k, j);
}

// Compares every element with a float64 sum. The bound is that of an fp32 sum in any order: |error| <= (k +
// 1) eps (|C| + sum |a| |b|). Here eps is 2^-24. For bf16 units that round both products of a pair, eps is
// 2^-23. A bf16 result adds half a unit in the last place. `compute` receives the operands and fills C.
void expect_matches_reference(const Problem& p, FunctionRef<void(Operands&)> compute) {
  Operands x(p, static_cast<unsigned>(p.m * 31 + p.n * 7 + p.k));
  const Operands before = x;
  compute(x);
  EXPECT_TRUE(x.c.gap_untouched()) << p.name();
  std::vector<double> a, b;  // a is [m, k] and b is [n, k], in every layout
  for (std::int64_t i = 0; i < p.m; ++i) {
    for (std::int64_t k = 0; k < p.k; ++k) a.push_back(element_a(p, x, i, k));
  }
  for (std::int64_t j = 0; j < p.n; ++j) {
    for (std::int64_t k = 0; k < p.k; ++k) b.push_back(element_b(p, x, j, k));
  }
  std::int64_t failures = 0;
  for (std::int64_t i = 0; i < p.m; ++i) {
    for (std::int64_t j = 0; j < p.n; ++j) {
      double sum = p.accumulate ? before.c.at(i, j) : 0, magnitude = std::abs(sum);
      for (std::int64_t k = 0; k < p.k; ++k) {
        const double product =
            a[static_cast<std::size_t>(i * p.k + k)] * b[static_cast<std::size_t>(j * p.k + k)];
        sum += product;
        magnitude += std::abs(product);
      }
      double bound = static_cast<double>(p.k + 1) * 0x1p-23 * magnitude;
      if (p.c_type == DType::kBF16) bound += 0x1p-8 * (std::abs(sum) + bound);
      // The comparison is negated, so that NaN counts as a failure.
      if (!(std::abs(x.c.at(i, j) - sum) <= bound) && ++failures <= 3) {
        ADD_FAILURE() << p.name() << " at " << i << "," << j << ": " << x.c.at(i, j) << " instead of " << sum
                      << ", bound " << bound;
      }
    }
  }
  EXPECT_EQ(failures, 0) << p.name();
}

void expect_matches_reference(ThreadPool& pool, const Problem& p) {
  expect_matches_reference(p, [&](Operands& x) { multiply(pool, p, x); });
}

struct Extents {
  std::int64_t m, n, k;
};
// Cases: a single tile, partial tiles in each dimension, odd k, a single row, a single column, several panels
// of k.
constexpr Extents kExtents[] = {{1, 1, 1},     {1, 40, 33},  {8, 24, 16}, {3, 130, 65}, {16, 16, 32},
                                {33, 31, 63},  {64, 64, 64}, {65, 97, 1}, {100, 1, 50}, {48, 80, 700},
                                {2, 70, 1100}, {7, 65, 129}, {9, 33, 77}, {70, 129, 96}};

class GemmReference : public testing::TestWithParam<std::tuple<GemmProvider, DType>> {
 protected:
  void SetUp() override {
    std::tie(provider_, ab_) = GetParam();
    if (!gemm_provider_available(provider_, ab_)) GTEST_SKIP() << "this CPU does not support the provider";
  }
  GemmProvider provider_;
  DType ab_;
};

TEST_P(GemmReference, EveryRoleTypeAndOddShape) {
  ThreadPool pool(2);
  for (GemmLayout layout : kLayouts) {
    for (DType c : kTypes) {
      for (bool accumulate : {false, true}) {
        for (const Extents& e : kExtents) {
          expect_matches_reference(pool, {provider_, layout, ab_, c, e.m, e.n, e.k, accumulate, 5});
        }
      }
    }
  }
}

// A long k is divided into several blocks. For a bf16 result, intermediate sums are kept in fp32 in the
// workspace.
TEST_P(GemmReference, LongK) {
  ThreadPool pool(2);
  for (GemmLayout layout : kLayouts) {
    for (DType c : kTypes) {
      for (bool accumulate : {false, true}) {
        expect_matches_reference(pool, {provider_, layout, ab_, c, 9, 37, 9001, accumulate, 1});
      }
    }
  }
}

std::string parameter_name(const testing::TestParamInfo<std::tuple<GemmProvider, DType>>& info) {
  return std::string(name_of(std::get<0>(info.param))) + "_" +
         std::string(primus::name_of(std::get<1>(info.param)));
}
INSTANTIATE_TEST_SUITE_P(Providers, GemmReference,
                         testing::Combine(testing::ValuesIn(kProviders), testing::ValuesIn(kTypes)),
                         parameter_name);

// The kernel for few rows matches the reference in every vector width of this CPU.
TEST(Gemm, FewRowsInEveryVectorWidth) {
  ThreadPool pool(2);
  for (auto level : {gemm::VectorLevel::kBaseline, gemm::VectorLevel::kAvx2, gemm::VectorLevel::kAvx512}) {
    if (level > gemm::best_vector_level()) continue;
    for (DType ab : kTypes) {
      for (std::int64_t m = 1; m <= gemm::kSkinnyRows; ++m) {
        for (std::int64_t k : {1, 16, 61}) {
          const Problem p{GemmProvider::kAuto, GemmLayout::kNT, ab, DType::kF32, m, 39, k, m % 2 == 0, 3};
          expect_matches_reference(p, [&](Operands& x) {
            GemmArgs g = arguments(p, x);
            std::vector<char> workspace(gemm::skinny_workspace_bytes(g));
            g.workspace = workspace.data(), g.workspace_bytes = workspace.size();
            gemm::multiply_skinny(pool, g, level);
          });
        }
      }
    }
  }
}

// Calls test(provider, type) for every pair that this CPU supports.
template <class Test>
void for_each_kernel(Test test) {
  for (GemmProvider provider : kProviders) {
    for (DType type : kTypes) {
      if (gemm_provider_available(provider, type)) test(provider, type);
    }
  }
}

TEST(Gemm, BitIdenticalForAnyNumberOfThreads) {
  ThreadPool one(1), two(2), three(3), four(4);
  for_each_kernel([&](GemmProvider provider, DType ab) {
    for (GemmLayout layout : kLayouts) {
      for (const Extents& e : {Extents{130, 200, 600}, Extents{1, 700, 300}, Extents{40, 50, 4500}}) {
        const Problem p{provider, layout, ab, ab, e.m, e.n, e.k, true};
        const Operands before(p, 7);
        Operands expected = before;
        multiply(one, p, expected);
        for (ThreadPool* pool : {&one, &two, &three, &four}) {
          Operands x = before;
          multiply(*pool, p, x);
          EXPECT_EQ(std::memcmp(x.c.data(), expected.c.data(), x.c.bytes()), 0)
              << p.name() << " threads " << pool->size();
        }
      }
    }
  });
}

// The bits of an element do not depend on the position of its row and column in the matrix.
TEST(Gemm, BitIdenticalWhenSliced) {
  ThreadPool pool(2);
  for_each_kernel([&](GemmProvider provider, DType ab) {
    Problem p{provider, GemmLayout::kNT, ab, DType::kF32, 90, 150, 1100, true};
    Operands whole(p, 3);
    const Operands before = whole;
    multiply(pool, p, whole);
    GemmArgs g{.ab_dtype = ab, .accumulate = true, .m = 50, .n = 77, .k = p.k};
    Operands slice = before;
    const std::int64_t row = 21, col = 40, element = size_of(ab);
    g.a = static_cast<char*>(slice.a.data()) + row * slice.a.ld() * element, g.lda = slice.a.ld();
    g.b = static_cast<char*>(slice.b.data()) + col * slice.b.ld() * element, g.ldb = slice.b.ld();
    g.c = static_cast<float*>(slice.c.data()) + row * slice.c.ld() + col, g.ldc = slice.c.ld();
    g.provider = provider;
    std::vector<char> workspace(cpu_gemm_workspace_bytes(g, 2));
    g.workspace = workspace.data(), g.workspace_bytes = workspace.size();
    cpu_gemm(pool, g);
    for (std::int64_t i = 0; i < p.m; ++i) {
      for (std::int64_t j = 0; j < p.n; ++j) {
        const bool inside = i >= row && i < row + g.m && j >= col && j < col + g.n;
        ASSERT_EQ(slice.c.at(i, j), (inside ? whole : before).c.at(i, j)) << p.name() << " " << i << "," << j;
      }
    }
  });
}

// A row of the result has the same bits in a product of one row, of a few rows and of many rows.
TEST(Gemm, WithRowInvariantTheBitsOfARowDoNotDependOnTheNumberOfRows) {
  ThreadPool pool(2);
  for_each_kernel([&](GemmProvider provider, DType ab) {
    for (const std::int64_t k : {7, 96, 1100, 4500}) {
      for (const DType c : kTypes) {
        const Problem p{provider, GemmLayout::kNT, ab, c, 100, 75, k, k % 4 == 0, 3};
        Operands all(p, 5);
        const auto product = [&](Operands& x, std::int64_t row, std::int64_t rows) {
          GemmArgs g = arguments(p, x);
          g.row_invariant = true;
          g.m = rows;
          g.a = static_cast<char*>(x.a.data()) + row * x.a.ld() * size_of(ab);
          g.c = static_cast<char*>(x.c.data()) + row * x.c.ld() * size_of(c);
          std::vector<char> workspace(cpu_gemm_workspace_bytes(g, pool.size()));
          g.workspace = workspace.data(), g.workspace_bytes = workspace.size();
          cpu_gemm(pool, g);
        };
        product(all, 0, p.m);
        for (const std::int64_t rows : {1, 2, 3, 8, 9, 16, 17, 31, 64, 65}) {
          Operands part(p, 5);
          const std::int64_t first = (rows * 7) % (p.m - rows);
          product(part, first, rows);
          for (std::int64_t i = first; i < first + rows; ++i) {
            for (std::int64_t j = 0; j < p.n; ++j)
              ASSERT_EQ(part.c.at(i, j), all.c.at(i, j)) << p.name() << " " << rows << " rows, row " << i;
          }
        }
      }
    }
  });
}

// Rows are picked from a larger matrix by index, some rows twice. The results have the bits of a product with
// a copy of these rows in order.
TEST(Gemm, BitIdenticalWhenRowsArePicked) {
  ThreadPool pool(2);
  for_each_kernel([&](GemmProvider provider, DType ab) {
    for (const GemmLayout layout : kLayouts) {
      // Cases: several strips with and without a partial last strip, few rows, and more than one panel of k.
      for (const Extents& e : {Extents{130, 70, 96}, {64, 128, 128}, {5, 40, 33}, {70, 33, 1100}}) {
        const Problem p{provider, layout, ab, ab, e.m, e.n, e.k, false, 3};
        const Operands from(p, 11);
        for (const bool of_a : {true, false}) {
          Operands in_order = from, picked = from;
          Matrix& rows = of_a ? in_order.a : in_order.b;
          const Matrix& source = of_a ? from.a : from.b;
          std::vector<std::int32_t> indices;
          for (std::int64_t i = 0; i < rows.rows(); ++i) {
            indices.push_back(static_cast<std::int32_t>((i * 7 + 3) % rows.rows() / 2));
            for (std::int64_t j = 0; j < rows.cols(); ++j)
              rows.set(i, j, static_cast<float>(source.at(indices.back(), j)));
          }
          multiply(pool, p, in_order);
          GemmArgs g = arguments(p, picked);
          (of_a ? g.rows.a : g.rows.b) = indices.data();
          std::vector<char> workspace(cpu_gemm_workspace_bytes(g, pool.size()));
          g.workspace = workspace.data(), g.workspace_bytes = workspace.size();
          cpu_gemm(pool, g);
          // If A has few rows and B's rows are not picked, another kernel computes the product. The sums of
          // this kernel have another order.
          if (!of_a && layout == GemmLayout::kNT && e.m <= gemm::kSkinnyRows) continue;
          EXPECT_EQ(std::memcmp(in_order.c.data(), picked.c.data(), picked.c.bytes()), 0) << p.name();
        }
      }
    }
  });
}

// Neither non-temporal stores of C nor prefetching other data change the values of C or write outside C.
TEST(Gemm, NonTemporalStoresAndPrefetchingChangeNoBit) {
  const std::vector<float> elsewhere(3000);
  struct Sizes {
    std::int64_t m, n, k, gap;
  };
  // Cases: rows of complete cache lines with and without partial tiles, rows with a partial cache line, and
  // several panels of k.
  for (const Sizes& e : {Sizes{96, 128, 256, 16}, {50, 80, 40, 0}, {33, 77, 70, 3}, {64, 64, 9001, 0}}) {
    for (const GemmProvider provider : kProviders) {
      if (!gemm_provider_available(provider, DType::kBF16)) continue;
      for (const int threads : {1, 3}) {
        const Problem p{provider, GemmLayout::kTN, DType::kBF16, DType::kF32, e.m, e.n, e.k, false, e.gap};
        Operands plain(p, 7), other(p, 7);
        ThreadPool pool(threads);
        multiply(pool, p, plain);
        GemmArgs g = arguments(p, other);
        // C starts on a cache line. If rows consist of whole cache lines, every row starts on a cache line.
        std::vector<float> c(static_cast<std::size_t>(g.m * g.ldc + 16), 5.0F);
        float* aligned = c.data();
        while (reinterpret_cast<std::uintptr_t>(aligned) % 64 != 0) ++aligned;
        g.c = aligned;
        g.c_past_caches = true;
        g.ahead = {{{elsewhere.data(), 7000}, {elsewhere.data() + 1000, 5001}}};
        std::vector<char> workspace(cpu_gemm_workspace_bytes(g, threads));
        g.workspace = workspace.data();
        g.workspace_bytes = workspace.size();
        cpu_gemm(pool, g);
        for (std::int64_t i = 0; i < g.m; ++i) {
          for (std::int64_t j = 0; j < g.ldc; ++j) {
            const double expected = j < g.n ? plain.c.at(i, j) : 5;
            ASSERT_EQ(static_cast<double>(aligned[i * g.ldc + j]), expected)
                << p.name() << " " << i << " " << j;
          }
        }
      }
    }
  }
}

TEST(Gemm, NanAndInfinityPropagateToTheirRowAndColumnOnly) {
  ThreadPool pool(2);
  for_each_kernel([&](GemmProvider provider, DType ab) {
    for (GemmLayout layout : kLayouts) {
      for (DType c : kTypes) {
        const Problem p{provider, layout, ab, c, 37, 41, 67};
        Operands x(p, 5);
        const bool tn = layout == GemmLayout::kTN, nt = layout == GemmLayout::kNT;
        const float nan = std::numeric_limits<float>::quiet_NaN(),
                    inf = std::numeric_limits<float>::infinity();
        tn ? x.a.set(66, 36, nan) : x.a.set(36, 66, nan);  // affects row 36 of C
        nt ? x.b.set(40, 3, inf) : x.b.set(3, 40, inf);    // affects column 40 of C
        multiply(pool, p, x);
        for (std::int64_t i = 0; i < p.m; ++i) {
          for (std::int64_t j = 0; j < p.n; ++j) {
            const double value = x.c.at(i, j);
            if (i == 36) {
              ASSERT_TRUE(std::isnan(value)) << p.name() << " " << i << "," << j;
            } else if (j == 40) {
              ASSERT_EQ(value, element_a(p, x, i, 3) > 0 ? inf : -inf) << p.name() << " " << i << "," << j;
            } else {
              ASSERT_TRUE(std::isfinite(value)) << p.name() << " " << i << "," << j;
            }
          }
        }
      }
    }
  });
}

TEST(Gemm, SubnormalsSurviveExceptInBf16Instructions) {
  ThreadPool pool(1);
  for_each_kernel([&](GemmProvider provider, DType ab) {
    if (provider == GemmProvider::kAmx || provider == GemmProvider::kAvx512Bf16) return;
    for (std::int64_t m : {1, 20}) {
      const Problem p{provider, GemmLayout::kNT, ab, DType::kF32, m, 20, 4};
      Operands x(p, 5);
      for (std::int64_t i = 0; i < m; ++i) {
        for (std::int64_t k = 0; k < 4; ++k) x.a.set(i, k, 0x1p-130F);
      }
      for (std::int64_t j = 0; j < 20; ++j) {
        for (std::int64_t k = 0; k < 4; ++k) x.b.set(j, k, 0.5F);
      }
      multiply(pool, p, x);
      EXPECT_EQ(x.c.at(m - 1, 19), 0x1p-129) << p.name();
    }
  });
}

TEST(Gemm, EmptyExtents) {
  ThreadPool pool(2);
  for (bool accumulate : {false, true}) {
    Problem p{GemmProvider::kAuto, GemmLayout::kNT, DType::kF32, DType::kF32, 3, 4, 0, accumulate};
    Operands x(p, 1);
    const Operands before = x;
    multiply(pool, p, x);
    for (std::int64_t i = 0; i < 12; ++i)
      EXPECT_EQ(x.c.at(i / 4, i % 4), accumulate ? before.c.at(i / 4, i % 4) : 0);
    for (Extents e : {Extents{0, 4, 5}, Extents{3, 0, 5}}) {
      Problem none{GemmProvider::kAuto, GemmLayout::kNT, DType::kF32, DType::kF32, e.m, e.n, e.k};
      Operands y(none, 1);
      multiply(pool, none, y);
    }
  }
}

TEST(Gemm, MisuseThrows) {
  ThreadPool pool(1);
  float a[4] = {}, b[4] = {}, c[4] = {};
  GemmArgs good{.m = 2, .n = 2, .k = 2, .a = a, .lda = 2, .b = b, .ldb = 2, .c = c, .ldc = 2};
  std::vector<char> workspace(cpu_gemm_workspace_bytes(good, 1));
  good.workspace = workspace.data(), good.workspace_bytes = workspace.size();
  EXPECT_NO_THROW(cpu_gemm(pool, good));
  const auto expect_throw = [&](auto change) {
    GemmArgs bad = good;
    change(bad);
    EXPECT_THROW(cpu_gemm(pool, bad), std::logic_error);
  };
  expect_throw([](GemmArgs& g) { g.lda = 1; });
  expect_throw([](GemmArgs& g) { g.ldb = 1; });
  expect_throw([](GemmArgs& g) { g.ldc = 1; });
  expect_throw([](GemmArgs& g) { g.m = -1; });
  expect_throw([](GemmArgs& g) { g.a = nullptr; });
  expect_throw([](GemmArgs& g) { g.workspace_bytes -= 1; });
  expect_throw([](GemmArgs& g) { g.workspace = nullptr; });
  expect_throw([](GemmArgs& g) { g.ab_dtype = DType::kF64; });
  expect_throw([](GemmArgs& g) { g.c_dtype = DType::kI8; });
  expect_throw([](GemmArgs& g) { g.provider = GemmProvider::kAmx; });  // AMX has no tiles for fp32 operands
}

TEST(Gemm, DefaultProviderIsAvailableAndPeaksAreMeasured) {
  ThreadPool pool(2);
  for (DType type : kTypes) {
    EXPECT_TRUE(gemm_provider_available(default_gemm_provider(type), type));
    EXPECT_GT(measure_gemm_peak(pool, type, 0.0), 1e8);
    EXPECT_GE(measure_fma_peak(pool, type, 0.0), 0);
  }
}

}  // namespace
}  // namespace primus::turbo
