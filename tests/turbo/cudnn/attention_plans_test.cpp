// Tests which attention calls are delegated to cuDNN, with which graphs, and which calls are refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "turbo/attention/causal_shape.h"
#include "turbo/attention/cudnn_attention.h"
#include "turbo/cudnn/fake_cudnn.h"

namespace primus::turbo {
namespace {

namespace fake = cudnn::fake;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

AttentionShape shape(std::int64_t batch, std::int64_t seq, std::int64_t heads, std::int64_t kv_heads,
                     std::int64_t dim, std::int64_t value_dim) {
  AttentionShape s = test::causal_shape(batch, seq, heads, kv_heads, dim, value_dim);
  s.scale = 0.5F;
  return s;
}

// An address of operands, which is never dereferenced.
void* const kSomewhere = reinterpret_cast<void*>(4096);

Tensor at(void* address, DType type, Shape extents) { return Tensor(address, type, extents); }

AttentionForward forward(const AttentionShape& s, DType type = DType::kBF16) {
  const std::int64_t tokens = s.batch * s.seq_q;
  const std::int64_t width = s.heads * s.head_dim + s.kv_heads * (s.head_dim + s.value_dim);
  AttentionForward call{};
  call.shape = s;
  call.q = call.k = call.v = at(kSomewhere, type, {tokens, width});
  call.q_stride = call.k_stride = call.v_stride = width;
  call.out = at(kSomewhere, type, {tokens, s.heads * s.value_dim});
  call.lse = at(kSomewhere, DType::kF32, {s.heads, tokens});
  return call;
}

AttentionBackward backward(const AttentionShape& s, DType type = DType::kBF16) {
  const AttentionForward f = forward(s, type);
  AttentionBackward call{};
  call.shape = s;
  call.q = call.k = call.v = call.d_q = call.d_k = call.d_v = f.q;
  call.q_stride = call.k_stride = call.v_stride = call.d_q_stride = call.d_k_stride = call.d_v_stride =
      f.q_stride;
  call.out = call.d_out = f.out;
  call.lse = f.lse;
  return call;
}

const Tensor& documents(AttentionForward& call) {
  return call.first_key = at(kSomewhere, DType::kI32, {call.shape.batch * call.shape.seq_q});
}

constexpr auto kQ = static_cast<std::int64_t>(CudnnTensor::kQ),
               kK = static_cast<std::int64_t>(CudnnTensor::kK),
               kOut = static_cast<std::int64_t>(CudnnTensor::kOut),
               kLse = static_cast<std::int64_t>(CudnnTensor::kLse),
               kDQ = static_cast<std::int64_t>(CudnnTensor::kDQ),
               kDK = static_cast<std::int64_t>(CudnnTensor::kDK),
               kDV = static_cast<std::int64_t>(CudnnTensor::kDV);

class CudnnPlans : public ::testing::Test {
 protected:
  CudnnPlans() { fake::reset(); }

  CudnnAttention make(const CudnnAttention::Options& options = {}) { return {library_, nullptr, options}; }
  static int count(cudnn::PointwiseMode mode) {
    return static_cast<int>(fake::compiled().pointwise.count(mode));
  }

  const cudnn::Library library_ = fake::library();
};

// The graph reads q, k and v where the fused projection has written them, with its row stride.
TEST_F(CudnnPlans, OperandsMayBeColumnsOfAFusedProjection) {
  CudnnAttention attention = make();
  const CudnnCall& call = attention.find(forward(shape(2, 96, 4, 2, 64, 32)));
  ASSERT_TRUE(call.plan) << call.refusal;
  const std::int64_t row = 4 * 64 + 2 * (64 + 32);
  const fake::Compiled& graph = fake::compiled();
  EXPECT_THAT(graph.dims.at(kQ), ElementsAre(2, 4, 96, 64));
  EXPECT_THAT(graph.strides.at(kQ), ElementsAre(96 * row, 64, row, 1));
  EXPECT_THAT(graph.dims.at(kK), ElementsAre(2, 2, 64, 96));  // keys are transposed
  EXPECT_THAT(graph.strides.at(kK), ElementsAre(96 * row, 64, 1, row));
  EXPECT_THAT(graph.strides.at(kOut), ElementsAre(96 * 4 * 32, 32, 4 * 32, 1));
  EXPECT_THAT(graph.strides.at(kLse), ElementsAre(96, 2 * 96, 1, 1));  // the layout is [heads, tokens]
  EXPECT_EQ(graph.matmuls, 2);
  EXPECT_EQ(count(cudnn::PointwiseMode::kGreaterOrEqual), 1);
  EXPECT_EQ(count(cudnn::PointwiseMode::kGreater), 0);
}

TEST_F(CudnnPlans, EqualCallsShareOnePlan) {
  CudnnAttention attention = make();
  const CudnnCall& first = attention.find(forward(shape(2, 96, 4, 2, 64, 64)));
  EXPECT_EQ(&attention.find(forward(shape(2, 96, 4, 2, 64, 64))), &first);
  EXPECT_EQ(fake::plans_made(), 1);
  EXPECT_NE(&attention.find(forward(shape(2, 97, 4, 2, 64, 64))), &first);
  AttentionForward no_statistics = forward(shape(2, 96, 4, 2, 64, 64));
  no_statistics.lse = {};
  EXPECT_NE(&attention.find(no_statistics), &first);
  EXPECT_EQ(fake::compiled().dims.count(kLse), 0U);
  EXPECT_EQ(fake::plans_made(), 3);
}

TEST_F(CudnnPlans, OperandsHaveOneTypeOfSixteenBits) {
  CudnnAttention attention = make();
  const AttentionShape s = shape(2, 128, 4, 2, 64, 64);
  const std::pair<DType, cudnn::DataType> types[] = {{DType::kBF16, cudnn::DataType::kBF16},
                                                     {DType::kF16, cudnn::DataType::kF16}};
  for (const auto& [type, cudnn_type] : types) {
    ASSERT_TRUE(attention.find(forward(s, type)).plan);
    for (const std::int64_t id : {kQ, kK, kOut}) EXPECT_EQ(fake::compiled().types.at(id), cudnn_type);
    EXPECT_EQ(fake::compiled().types.at(kLse), cudnn::DataType::kF32);
    ASSERT_TRUE(attention.find(backward(s, type)).plan);
    for (const std::int64_t id : {kQ, kDQ, kDK, kDV}) EXPECT_EQ(fake::compiled().types.at(id), cudnn_type);
  }
  EXPECT_EQ(fake::plans_made(), 4) << "every type needs its own plan";
  AttentionForward call = forward(s, DType::kF16);
  call.sinks = at(kSomewhere, DType::kF16, {4});
  EXPECT_THAT(attention.find(call).refusal, HasSubstr("sinks in fp16"));
  call = forward(s, DType::kF16);
  documents(call);
  EXPECT_THAT(attention.find(call).refusal, HasSubstr("documents in fp16"));
}

TEST_F(CudnnPlans, WindowsAndSinksArePartOfTheGraph) {
  CudnnAttention attention = make();
  AttentionShape s = shape(1, 256, 4, 4, 64, 64);
  s.window = 100;
  AttentionForward call = forward(s);
  call.sinks = at(kSomewhere, DType::kBF16, {4});
  ASSERT_TRUE(attention.find(call).plan);
  EXPECT_EQ(count(cudnn::PointwiseMode::kGreater), 1);
  EXPECT_EQ(count(cudnn::PointwiseMode::kMax), 1);
  EXPECT_THAT(fake::compiled().dims.at(static_cast<std::int64_t>(CudnnTensor::kSinks)),
              ElementsAre(1, 4, 1, 1));
  EXPECT_GE(attention.find(call).workspace.total, 4 * 4);
  // A window as long as the sequence does not mask any pair.
  s.window = 256;
  attention.find(forward(s));
  EXPECT_EQ(count(cudnn::PointwiseMode::kGreater), 0);
}

// Chunks that divide the sequence are planned as a larger batch of short sequences.
TEST_F(CudnnPlans, ChunksThatDivideTheSequenceBecomeSequences) {
  CudnnAttention attention = make();
  AttentionShape s = shape(3, 128, 2, 2, 64, 64);
  s.chunk = 32;
  ASSERT_TRUE(attention.find(forward(s)).plan);
  EXPECT_THAT(fake::compiled().dims.at(kQ), ElementsAre(12, 2, 32, 64));
  EXPECT_EQ(fake::compiled().strides.at(kQ)[0], 32 * 6 * 64);
  s.chunk = 48;
  EXPECT_THAT(attention.find(forward(s)).refusal, HasSubstr("does not divide"));
}

TEST_F(CudnnPlans, DocumentsBecomeSequencesOfVaryingLength) {
  CudnnAttention attention = make();
  AttentionForward call = forward(shape(2, 512, 4, 2, 64, 64));
  documents(call);
  const CudnnCall& found = attention.find(call);
  ASSERT_TRUE(found.plan) << found.refusal;
  EXPECT_EQ(found.problem.batch, cudnn_documents(2, 1024));
  EXPECT_GT(found.problem.batch, 2);
  const fake::Compiled& graph = fake::compiled();
  EXPECT_EQ(graph.dims.at(kQ)[0], found.problem.batch);
  EXPECT_EQ(graph.offsets.at(kQ), static_cast<std::int64_t>(CudnnTensor::kQOffsets));
  EXPECT_EQ(graph.offsets.at(kLse), static_cast<std::int64_t>(CudnnTensor::kTokenOffsets));
  EXPECT_EQ(graph.offsets.at(kOut), static_cast<std::int64_t>(CudnnTensor::kOutOffsets));
  EXPECT_GE(found.workspace.total, cudnn_documents_bytes(found.problem.batch));
}

TEST_F(CudnnPlans, ADeterministicBackwardPassIsDividedIntoGroupsOfHeads) {
  constexpr std::int64_t kSeq = 1024, kOfHead = kSeq * kSeq * 2;
  CudnnAttention attention = make({.good_workspace = 5 * kOfHead, .max_workspace = 100 * kOfHead});
  // There are 16 heads in 8 groups of two. The workspace is large enough for two groups at a time.
  const CudnnCall& call = attention.find(backward(shape(1, kSeq, 16, 8, 64, 64)));
  ASSERT_TRUE(call.plan) << call.refusal;
  EXPECT_EQ(call.head_slices, 4);
  EXPECT_EQ(call.batch_slices, 1);
  EXPECT_EQ(call.problem.heads, 4);
  EXPECT_EQ(call.problem.kv_heads, 2);
  EXPECT_EQ(fake::compiled().dims.at(kDQ)[1], 4);
  EXPECT_EQ(fake::compiled().dims.at(kDK)[1], 2);
  EXPECT_EQ(fake::compiled().strides.at(kLse)[1], kSeq);
  // If there are several sequences, the batch is divided before heads are divided.
  const CudnnCall& many = attention.find(backward(shape(6, kSeq, 4, 4, 64, 64)));
  EXPECT_EQ(many.batch_slices, 6);
  EXPECT_EQ(many.head_slices, 1);
  // The workspace is large enough for the complete call.
  EXPECT_EQ(attention.find(backward(shape(1, kSeq, 4, 2, 64, 64))).head_slices, 1);
}

// A deterministic backward pass whose workspace exceeds the maximum is refused.
TEST_F(CudnnPlans, ADeterministicBackwardPassThatNeedsTooMuchMemoryIsRefused) {
  CudnnAttention attention = make({.good_workspace = 1 << 20, .max_workspace = 1 << 21});
  EXPECT_THAT(attention.find(backward(shape(1, 2048, 4, 4, 64, 64))).refusal, HasSubstr("too much memory"));
  EXPECT_EQ(fake::plans_made(), 0);
}

TEST_F(CudnnPlans, OurOwnKernelDoesADeterministicBackwardOfANarrowWindow) {
  CudnnAttention attention = make();
  AttentionShape s = shape(1, 1024, 8, 2, 128, 128);
  s.window = 512;
  const CudnnCall& call = attention.find(backward(s), true);
  EXPECT_FALSE(call.plan);
  EXPECT_THAT(call.refusal, HasSubstr("a window"));
  EXPECT_EQ(fake::plans_made(), 0);
  // cuDNN is used if it is at least as fast as our own kernel. This is the case on GPUs without warpgroups,
  // for head dims other than 64 and 128, and for windows that mask no pairs or few pairs.
  EXPECT_TRUE(attention.find(backward(s), false).plan);
  s.window = 640;
  EXPECT_TRUE(attention.find(backward(s), true).plan);
  s.window = 0;
  EXPECT_TRUE(attention.find(backward(s), true).plan);
  AttentionShape wide = shape(1, 1024, 8, 8, 192, 128);
  wide.window = 100;
  EXPECT_TRUE(attention.find(backward(wide), true).plan);
  // A forward pass, and a backward pass with atomics, need no workspace proportional to the square of the
  // sequence length.
  s.window = 512;
  CudnnAttention fast = make({.deterministic = false});
  EXPECT_TRUE(fast.find(backward(s), true).plan);
  EXPECT_TRUE(attention.find(forward(s)).plan);
}

TEST_F(CudnnPlans, WithoutDeterminismGradientsOfQueriesAreSummedInFp32) {
  CudnnAttention attention = make({.deterministic = false});
  const CudnnCall& call = attention.find(backward(shape(2, 256, 8, 2, 64, 64)));
  ASSERT_TRUE(call.plan);
  EXPECT_EQ(call.head_slices * call.batch_slices, 1);
  EXPECT_EQ(fake::compiled().dims.count(static_cast<std::int64_t>(CudnnTensor::kDQSum)), 1U);
  EXPECT_GE(call.workspace.total, 2 * 256 * 8 * 64 * 4);
  CudnnAttention strict = make();
  strict.find(backward(shape(2, 256, 8, 2, 64, 64)));
  EXPECT_EQ(fake::compiled().dims.count(static_cast<std::int64_t>(CudnnTensor::kDQSum)), 0U);
}

TEST_F(CudnnPlans, PartsOfAWorkspaceDoNotOverlap) {
  fake::settings().engines = {{.workspace = 1000}};
  CudnnAttention attention = make({.deterministic = false});
  AttentionBackward call = backward(shape(1, 512, 8, 2, 64, 64));
  call.first_key = at(kSomewhere, DType::kI32, {512});
  const CudnnCall& found = attention.find(call);
  ASSERT_TRUE(found.plan) << found.refusal;
  const CudnnWorkspace& w = found.workspace;
  const std::int64_t tokens = 512;
  const std::vector<std::pair<std::int64_t, std::int64_t>> parts{
      {w.documents, cudnn_documents_bytes(found.problem.batch)},
      {w.delta, tokens * 8 * 4},
      {w.d_q_sum, tokens * found.problem.d_q_row * 4},
      {w.d_k, tokens * 2 * 64 * 2},
      {w.d_v, tokens * 2 * 64 * 2},
      {w.d_k_wide, tokens * 8 * 64 * 2},
      {w.d_v_wide, tokens * 8 * 64 * 2},
      {w.plan, 1000}};
  for (std::size_t i = 0; i < parts.size(); ++i) {
    EXPECT_EQ(parts[i].first % CudnnWorkspace::kAlignment, 0);
    EXPECT_LE(parts[i].first + parts[i].second, i + 1 < parts.size() ? parts[i + 1].first : w.total) << i;
  }
}

// Each unsupported call is refused with its reason.
TEST_F(CudnnPlans, UnsupportedCallsAreRefusedWithAReason) {
  CudnnAttention attention = make();
  const AttentionShape s = shape(1, 128, 4, 2, 64, 64);
  EXPECT_THAT(attention.find(forward(s, DType::kF32)).refusal, HasSubstr("fp32"));
  AttentionShape capped = s;
  capped.score_cap = 50;
  EXPECT_THAT(attention.find(forward(capped)).refusal, HasSubstr("soft cap"));
  EXPECT_THAT(attention.find(backward(capped)).refusal, HasSubstr("soft cap"));
  AttentionShape part = s;
  part.k_first = 64;
  EXPECT_THAT(attention.find(forward(part)).refusal, HasSubstr("different positions"));
  part.k_first = 0, part.q_first = 127;  // the first query does not see the last key
  part.seq_k = part.capacity_k = 129;
  EXPECT_THAT(attention.find(forward(part)).refusal, HasSubstr("different positions"));
  EXPECT_THAT(attention.find(forward(shape(1, 128, 4, 2, 60, 64))).refusal, HasSubstr("multiple of 8"));
  EXPECT_THAT(attention.find(forward(shape(1, 128, 1, 1, 264, 64))).refusal,
              HasSubstr("head dimensions above 256"));
  EXPECT_THAT(attention.find(forward(shape(1, 1, 4, 2, 64, 64))).refusal, HasSubstr("less than two"));
  AttentionShape past = s;
  past.causal = false, past.window = 10;
  EXPECT_THAT(attention.find(forward(past)).refusal, HasSubstr("without a causal mask"));
  AttentionForward odd = forward(s);
  odd.k = at(reinterpret_cast<void*>(4096 + 8), DType::kBF16, odd.k.shape);
  EXPECT_THAT(attention.find(odd).refusal, HasSubstr("multiple of 16"));
  AttentionBackward packed = backward(s);
  packed.first_key = at(kSomewhere, DType::kI32, {128});
  EXPECT_THAT(attention.find(packed).refusal, HasSubstr("deterministic_mode: false"));
  EXPECT_EQ(fake::plans_made(), 0);
}

// Masks depend only on the difference of query and key positions. Context parallelism calls attention with
// slices of queries and keys at equal positions.
TEST_F(CudnnPlans, OnlyDistancesBetweenPositionsMatter) {
  CudnnAttention attention = make();
  AttentionShape s = shape(1, 256, 4, 2, 64, 64);
  const CudnnCall& first = attention.find(forward(s));
  ASSERT_TRUE(first.plan) << first.refusal;
  s.q_first = s.k_first = 768;
  EXPECT_EQ(&attention.find(forward(s)), &first);
  s.window = 100;
  EXPECT_EQ(attention.find(forward(s)).problem.window, 100);
  // Chunks are counted from the beginning of the sequence.
  s.window = 0, s.chunk = 128;
  EXPECT_TRUE(attention.find(forward(s)).plan);
  s.q_first = s.k_first = 64;
  EXPECT_FALSE(attention.find(forward(s)).plan);
}

TEST_F(CudnnPlans, WithoutHiddenKeysNoMaskIsUsed) {
  CudnnAttention attention = make();
  AttentionShape s = shape(1, 256, 4, 2, 64, 32);
  s.seq_k = s.capacity_k = 512, s.q_first = 1000, s.k_first = 256;
  const std::int64_t row = 4 * 64 + 2 * (64 + 32);
  for (const auto& [window, chunk] : {std::pair{0, 0}, std::pair{1000, 0}, std::pair{0, 1500}}) {
    s.window = window, s.chunk = chunk;
    const CudnnCall& call = attention.find(forward(s));
    ASSERT_TRUE(call.plan) << call.refusal;
    EXPECT_FALSE(call.problem.causal);
    EXPECT_EQ(call.problem.window, 0);
    EXPECT_EQ(count(cudnn::PointwiseMode::kGreaterOrEqual), 0);
    EXPECT_THAT(fake::compiled().dims.at(kQ), ElementsAre(1, 4, 256, 64));
    EXPECT_THAT(fake::compiled().dims.at(kK), ElementsAre(1, 2, 64, 512));
    EXPECT_THAT(fake::compiled().strides.at(kK), ElementsAre(512 * row, 64, 1, row));
    EXPECT_THAT(fake::compiled().strides.at(kLse), ElementsAre(256, 256, 1, 1));
  }
  EXPECT_EQ(fake::plans_made(), 1);
  // The last query is at position 1255. It sees the keys from 256 on with a window of 1000, and the keys from
  // 257 on with a window of 999.
  s.window = 999, s.chunk = 0;
  EXPECT_THAT(attention.find(forward(s)).refusal, HasSubstr("different positions"));
  s.window = 0, s.chunk = 1200;  // the last queries are in the second chunk
  EXPECT_THAT(attention.find(forward(s)).refusal, HasSubstr("different positions"));
  // first_key has absolute positions and may mask some of the keys.
  s.chunk = 0;
  AttentionForward packed = forward(s);
  documents(packed);
  EXPECT_THAT(attention.find(packed).refusal, HasSubstr("different positions"));
  const AttentionBackward call = backward(s);
  ASSERT_TRUE(attention.find(call).plan);
  EXPECT_EQ(fake::compiled().dims.at(kDQ)[2], 256);
  EXPECT_EQ(fake::compiled().dims.at(kDK)[2], 512);
}

TEST_F(CudnnPlans, AccumulatedGradientsUseTheWorkspace) {
  CudnnAttention attention = make({.deterministic = false});
  AttentionShape s = shape(1, 256, 8, 2, 64, 32);
  s.seq_k = s.capacity_k = 128, s.q_first = 128;
  AttentionBackward wide = backward(s), added = backward(s);
  const CudnnCall& assigned = attention.find(added);
  ASSERT_TRUE(assigned.plan);
  EXPECT_FALSE(assigned.problem.gradients_apart);
  EXPECT_EQ(fake::compiled().strides.at(kDQ)[2], added.d_q_stride);
  wide.d_q = wide.d_k = wide.d_v = at(kSomewhere, DType::kF32, wide.d_q.shape);
  const CudnnCall& call = attention.find(wide);
  ASSERT_TRUE(call.plan) << call.refusal;
  EXPECT_TRUE(call.problem.gradients_apart);
  EXPECT_THAT(fake::compiled().strides.at(kDQ), ElementsAre(256 * 8 * 64, 64, 8 * 64, 1));
  EXPECT_THAT(fake::compiled().strides.at(kDK), ElementsAre(128 * 2 * 64, 64, 2 * 64, 1));
  EXPECT_THAT(fake::compiled().strides.at(kDV), ElementsAre(128 * 2 * 32, 32, 2 * 32, 1));
  const CudnnWorkspace& w = call.workspace;
  EXPECT_GE(w.d_q, w.d_q_sum + 256 * 8 * 64 * 4);
  EXPECT_GE(w.d_k, w.d_q + 256 * 8 * 64 * 2);
  EXPECT_GE(w.d_v, w.d_k + 128 * 2 * 64 * 2);
  EXPECT_GE(w.plan, w.d_v + 128 * 2 * 32 * 2);
  // Calls that accumulate or have different row strides use the same plan.
  added.accumulate_d_q = true;
  added.d_q_stride += 64;
  EXPECT_EQ(&attention.find(added), &call);
  added.accumulate_d_q = false, added.accumulate_d_kv = true;
  EXPECT_EQ(&attention.find(added), &call);
  added.first_key = at(kSomewhere, DType::kI32, {256});
  added.shape.seq_k = added.shape.capacity_k = 256, added.shape.q_first = 0;
  EXPECT_THAT(attention.find(added).refusal, HasSubstr("added to others"));
}

TEST_F(CudnnPlans, SlicesOfADeterministicBackwardPassHaveSeparateHeadGradients) {
  constexpr std::int64_t kOfHead = 1024 * 512 * 2;
  CudnnAttention attention = make({.good_workspace = 4 * kOfHead, .max_workspace = 100 * kOfHead});
  AttentionShape s = shape(1, 1024, 16, 8, 64, 64);
  s.seq_k = s.capacity_k = 512, s.q_first = 512;
  AttentionBackward call = backward(s);
  call.accumulate_d_q = true;
  const CudnnCall& found = attention.find(call);
  ASSERT_TRUE(found.plan) << found.refusal;
  // The matrix of a head has half the size, because there are half as many keys as queries.
  EXPECT_EQ(found.head_slices, 4);
  EXPECT_EQ(found.problem.d_q_row, 4 * 64);
  EXPECT_EQ(found.problem.d_k_row, 2 * 64);
  EXPECT_THAT(fake::compiled().strides.at(kDQ), ElementsAre(1024 * 4 * 64, 64, 4 * 64, 1));
}

TEST_F(CudnnPlans, ARefusalOfTheLibraryIsStored) {
  fake::settings().engines = {{.compiles = false}};
  CudnnAttention attention = make();
  const CudnnCall& call = attention.find(forward(shape(1, 128, 4, 2, 64, 64)));
  EXPECT_FALSE(call.plan);
  EXPECT_EQ(call.refusal, "cuDNN refuses: status 3000: this engine does not compile");
  fake::settings().engines = {{}};
  EXPECT_EQ(&attention.find(forward(shape(1, 128, 4, 2, 64, 64))), &call);
  EXPECT_EQ(fake::plans_made(), 0);
}

// Up to version 9.15.1, cuDNN computes wrong gradients if sequences are not multiples of 128, so these calls
// are refused.
TEST_F(CudnnPlans, VersionsWithWrongTailsAreNotUsedForTails) {
  fake::settings().version = 91400;
  const cudnn::Library old = fake::library();
  CudnnAttention attention(old, nullptr, {});
  EXPECT_THAT(attention.find(backward(shape(1, 130, 4, 2, 64, 64))).refusal,
              HasSubstr("not a multiple of 128"));
  EXPECT_TRUE(attention.find(backward(shape(1, 256, 4, 2, 64, 64))).plan);
  CudnnAttention mended = make();
  EXPECT_TRUE(mended.find(backward(shape(1, 130, 4, 2, 64, 64))).plan);
}

}  // namespace
}  // namespace primus::turbo
