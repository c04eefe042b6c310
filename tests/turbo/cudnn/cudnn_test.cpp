#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "turbo/cudnn/fake_cudnn.h"
#include "turbo/cudnn/graph.h"

namespace primus::turbo::cudnn {
namespace {

using ::testing::HasSubstr;

TEST(CudnnLibrary, AMissingLibraryIsNamedWithTheNextStep) {
  std::string why;
  EXPECT_EQ(open_library("libcudnn-that-is-not-there.so.9", why), nullptr);
  EXPECT_THAT(why, HasSubstr("libcudnn-that-is-not-there.so.9"));
  EXPECT_THAT(why, HasSubstr("install NVIDIA's cuDNN 9.13.0 or newer"));
}

TEST(CudnnLibrary, AnOlderLibraryIsRefusedByItsVersion) {
  std::string why;
  EXPECT_EQ(open_library(OLD_CUDNN, why), nullptr);
  EXPECT_THAT(why, HasSubstr("is cuDNN 9.12.0, older than 9.13.0"));
}

TEST(CudnnLibrary, VersionsHaveNvidiasForm) {
  EXPECT_EQ(version_text(91900), "9.19.0");
  EXPECT_EQ(version_text(91002), "9.10.2");
}

class CudnnGraph : public ::testing::Test {
 protected:
  CudnnGraph() { fake::reset(); }
  ~CudnnGraph() override { EXPECT_EQ(fake::alive(), 0); }

  // Compiles the graph of c = a + 2 * b.
  std::unique_ptr<Plan> compile(bool deterministic) {
    Graph graph(library_);
    const Dims dims{1, 2, 3, 4}, strides{24, 12, 4, 1};
    const Node a = graph.memory(1, DataType::kBF16, dims, strides),
               b = graph.memory(2, DataType::kBF16, dims, strides);
    const Node twice = graph.pointwise(PointwiseMode::kMultiply, b, graph.scalar(2),
                                       graph.temporary(DataType::kF32, dims, strides));
    graph.pointwise(PointwiseMode::kAdd, a, twice, graph.memory(3, DataType::kBF16, dims, strides));
    return graph.compile(nullptr, deterministic);
  }
  static std::string refusal_of(const std::function<void()>& action) {
    try {
      action();
    } catch (const Refusal& refusal) {
      return refusal.what();
    }
    return "none";
  }

  const Library library_ = fake::library();
};

// The plan uses the first engine that the library offers.
TEST_F(CudnnGraph, UsesTheFirstEngine) {
  fake::settings().engines = {{.number = 7, .workspace = 100}, {.number = 8, .workspace = 200}};
  const auto plan = compile(true);
  EXPECT_EQ(plan->engine(), 7);
  EXPECT_EQ(plan->workspace_bytes(), 100);
}

TEST_F(CudnnGraph, EnginesWhoseResultsVaryAreSkippedIfResultsMustRepeat) {
  fake::settings().engines = {{.number = 7, .varies = true}, {.number = 8}};
  EXPECT_EQ(compile(true)->engine(), 8);
  EXPECT_EQ(compile(false)->engine(), 7);
  fake::settings().engines = {{.number = 7, .varies = true}};
  EXPECT_THAT(refusal_of([&] { compile(true); }), HasSubstr("deterministic"));
}

TEST_F(CudnnGraph, IfAnEngineDoesNotCompileTheNextIsUsed) {
  fake::settings().engines = {{.number = 7, .compiles = false}, {.number = 8}};
  EXPECT_EQ(compile(true)->engine(), 8);
  fake::settings().engines = {{.number = 7, .compiles = false}};
  // The refusal has the message of the library, reduced to one line.
  EXPECT_EQ(refusal_of([&] { compile(true); }), "status 3000: this engine does not compile");
}

TEST_F(CudnnGraph, GraphsWithoutAnEngineAreRefused) {
  fake::settings().engines = {};
  EXPECT_THAT(refusal_of([&] { compile(false); }), HasSubstr("no engine"));
}

TEST_F(CudnnGraph, ExecutionPassesExactlyTheGraphsTensors) {
  const auto plan = compile(true);
  int a = 0, b = 0, c = 0, other = 0, workspace = 0;
  plan->execute(nullptr, {{1, &a}, {2, &b}, {3, &c}, {44, &other}}, &workspace);
  const auto& given = fake::executed();
  EXPECT_EQ(given.at(1), &a);
  EXPECT_EQ(given.at(2), &b);
  EXPECT_EQ(given.at(3), &c);
  EXPECT_EQ(given.count(44), 0U);
  ASSERT_EQ(given.size(), 4U);  // three tensors, and the scalar 2 in host memory
  for (const auto& [id, address] : given) {
    if (id <= 3) continue;
    EXPECT_EQ(*static_cast<const float*>(address), 2.0F);
  }
  EXPECT_EQ(fake::executed_workspace(), &workspace);
}

}  // namespace
}  // namespace primus::turbo::cudnn
