// Builds the graphs of the forward and the backward pass in the form that cuDNN's attention engines expect.
// The engines recognise a graph by the order of its operations. Therefore both graphs have the steps of
// NVIDIA's own description.
#include <limits>

#include "turbo/attention/cudnn_attention.h"

namespace primus::turbo {
namespace {

using cudnn::DataType;
using cudnn::Dims;
using cudnn::Graph;
using cudnn::Node;
using cudnn::PointwiseMode;
using cudnn::ReductionOperator;

class Builder {
 public:
  Builder(const cudnn::Library& library, const CudnnProblem& problem)
      : p_(problem), type_(problem.type == DType::kF16 ? DataType::kF16 : DataType::kBF16), graph_(library) {
    if (p_.documents)
      lengths_ = graph_.memory(id(CudnnTensor::kLengths), DataType::kI32, {p_.batch, 1, 1, 1}, {1, 1, 1, 1});
  }

  std::unique_ptr<cudnn::Plan> forward(cudnn::Handle handle) {
    const Node q = queries(CudnnTensor::kQ, p_.q_row, CudnnTensor::kQOffsets);
    const Node k = transposed(CudnnTensor::kK, p_.head_dim, p_.k_row, p_.k_batch, CudnnTensor::kKOffsets);
    const Dims values{p_.batch, p_.kv_heads, p_.seq_k, p_.value_dim};
    const Node v = memory(CudnnTensor::kV, type_, values, {p_.v_batch, p_.value_dim, p_.v_row, 1},
                          CudnnTensor::kVOffsets);
    Node s = scores();
    graph_.matmul(q, k, s, {.rows = lengths_, .cols = lengths_, .padded = p_.documents});
    s = scaled(s);
    s = band(padded(s));

    // The softmax, step by step. The maximum and the sum include a sink.
    Node sink;
    if (p_.sinks) {
      sink = graph_.memory(id(CudnnTensor::kSinks), DataType::kF32, {1, p_.heads, 1, 1}, {p_.heads, 1, 1, 1});
    }
    Node maximum = row_values();
    graph_.reduce(ReductionOperator::kMax, s, maximum);
    if (p_.sinks) maximum = graph_.pointwise(PointwiseMode::kMax, maximum, sink, row_values());
    const Node shifted = graph_.pointwise(PointwiseMode::kSubtract, s, maximum, scores());
    const Node weights = graph_.pointwise(PointwiseMode::kExp, shifted, {}, scores());
    Node sum;
    if (p_.sinks) {
      const Node below = graph_.pointwise(PointwiseMode::kSubtract, sink, maximum, row_values());
      const Node of_sink = graph_.pointwise(PointwiseMode::kExp, below, {}, row_values());
      const Node of_keys = row_values();
      graph_.reduce(ReductionOperator::kAdd, weights, of_keys);
      sum = graph_.pointwise(PointwiseMode::kAdd, of_keys, of_sink, row_values());
    } else {
      sum = row_values();
      graph_.reduce(ReductionOperator::kAdd, weights, sum);
    }
    if (p_.statistics) {
      const Node log_sum = graph_.pointwise(PointwiseMode::kLog, sum, {}, row_values());
      graph_.pointwise(PointwiseMode::kAdd, maximum, log_sum, statistics());
    }
    // The left operand of the second product has the type of the values.
    const Node p = graph_.pointwise(PointwiseMode::kDivide, weights, sum, scores(type_));
    graph_.matmul(p, v, outputs(CudnnTensor::kOut), {.rows = lengths_, .depth = lengths_});
    return graph_.compile(handle, p_.deterministic);
  }

  std::unique_ptr<cudnn::Plan> backward(cudnn::Handle handle) {
    const Node q = queries(CudnnTensor::kQ, p_.q_row, CudnnTensor::kQOffsets);
    const Node k = transposed(CudnnTensor::kK, p_.head_dim, p_.k_row, p_.k_batch, CudnnTensor::kKOffsets);
    const Node v = transposed(CudnnTensor::kV, p_.value_dim, p_.v_row, p_.v_batch, CudnnTensor::kVOffsets);
    const Node out = outputs(CudnnTensor::kOut), d_out = outputs(CudnnTensor::kDOut);
    const Node lse = statistics();

    // delta = sum of out * d_out
    const Node products = graph_.pointwise(
        PointwiseMode::kMultiply, d_out, out,
        graph_.temporary(
            DataType::kF32, {p_.batch, p_.heads, p_.seq_q, p_.value_dim},
            {p_.heads * p_.seq_q * p_.value_dim, p_.seq_q * p_.value_dim, p_.heads * p_.value_dim, 1}));
    const Node sums = row_values();
    graph_.reduce(ReductionOperator::kAdd, products, sums);
    const Node delta = graph_.pointwise(PointwiseMode::kMultiply, sums, graph_.scalar(1), workspace_delta());

    // weights = exp(scale * q·k - lse)
    Node s = scores();
    graph_.matmul(q, k, s, {.rows = lengths_, .cols = lengths_});
    s = padded(scaled(s));
    s = band(graph_.pointwise(PointwiseMode::kSubtract, s, lse, scores()));
    const Node weights = graph_.pointwise(PointwiseMode::kExp, s, {}, scores());

    keys_gradient(weights, d_out, p_.value_dim, p_.d_v_row, CudnnTensor::kDV, CudnnTensor::kDVOffsets,
                  CudnnTensor::kDVWide);

    // d_scores = (d_out·v - delta) * weights * scale
    Node d = scores();
    graph_.matmul(d_out, v, d, {.rows = lengths_, .cols = lengths_});
    d = graph_.pointwise(PointwiseMode::kSubtract, d, delta, scores());
    d = scaled(graph_.pointwise(PointwiseMode::kMultiply, d, weights, scores()));

    keys_gradient(d, q, p_.head_dim, p_.d_k_row, CudnnTensor::kDK, CudnnTensor::kDKOffsets,
                  CudnnTensor::kDKWide);

    const Node keys =
        graph_.temporary(type_, {p_.batch, p_.kv_heads, p_.seq_k, p_.head_dim},
                         {p_.k_batch, p_.head_dim, p_.k_row, 1}, offsets(CudnnTensor::kKOffsets));
    graph_.reshape(k, keys);
    const Dims dims{p_.batch, p_.heads, p_.seq_q, p_.head_dim};
    const Graph::Lengths lengths{.rows = lengths_, .depth = lengths_};
    const Node d_q = memory(CudnnTensor::kDQ, type_, dims,
                            {p_.seq_q * p_.d_q_row, p_.head_dim, p_.d_q_row, 1}, CudnnTensor::kDQOffsets);
    if (p_.deterministic) {
      graph_.matmul(d, keys, d_q, lengths);
    } else {
      const Dims strides =
          p_.documents ? d_q.strides
                       : Dims{p_.heads * p_.seq_q * p_.head_dim, p_.seq_q * p_.head_dim, p_.head_dim, 1};
      const Node sum = memory(CudnnTensor::kDQSum, DataType::kF32, dims, strides, CudnnTensor::kDQOffsets);
      graph_.matmul(d, keys, sum, lengths);
      graph_.pointwise(PointwiseMode::kIdentity, sum, {}, d_q);
    }
    return graph_.compile(handle, p_.deterministic);
  }

 private:
  static std::int64_t id(CudnnTensor tensor) { return static_cast<std::int64_t>(tensor); }

  Node offsets(CudnnTensor which) {
    if (!p_.documents) return {};
    Node& node = offsets_[which];
    if (!node) node = graph_.memory(id(which), DataType::kI32, {p_.batch + 1, 1, 1, 1}, {1, 1, 1, 1});
    return node;
  }
  Node memory(CudnnTensor which, DataType type, const Dims& dims, const Dims& strides,
              CudnnTensor offsets_of) {
    return graph_.memory(id(which), type, dims, strides, offsets(offsets_of));
  }
  Node queries(CudnnTensor which, std::int64_t row, CudnnTensor offsets_of) {
    return memory(which, type_, {p_.batch, p_.heads, p_.seq_q, p_.head_dim},
                  {p_.q_batch, p_.head_dim, row, 1}, offsets_of);
  }
  // Returns keys or values as [batch, heads, dim, seq_k].
  Node transposed(CudnnTensor which, std::int64_t dim, std::int64_t row, std::int64_t batch,
                  CudnnTensor offsets_of) {
    return memory(which, type_, {p_.batch, p_.kv_heads, dim, p_.seq_k}, {batch, dim, 1, row}, offsets_of);
  }
  Node outputs(CudnnTensor which) {
    return memory(which, type_, {p_.batch, p_.heads, p_.seq_q, p_.value_dim},
                  {p_.out_batch, p_.value_dim, p_.out_row, 1}, CudnnTensor::kOutOffsets);
  }
  // Returns lse, [heads, tokens].
  Node statistics() {
    return memory(CudnnTensor::kLse, DataType::kF32, rows(), {p_.seq_q, p_.tokens, 1, 1},
                  CudnnTensor::kTokenOffsets);
  }
  // Returns delta, padded per document to the longest possible length. NVIDIA's graph supports packed
  // statistics only as [tokens, heads]; our statistics are [heads, tokens].
  Node workspace_delta() {
    return graph_.memory(id(CudnnTensor::kDelta), DataType::kF32, rows(),
                         {p_.heads * p_.seq_q, p_.seq_q, 1, 1});
  }

  Dims rows() const { return {p_.batch, p_.heads, p_.seq_q, 1}; }
  Node row_values() {
    return graph_.temporary(DataType::kF32, rows(), {p_.heads * p_.seq_q, p_.seq_q, 1, 1});
  }
  Node scores(DataType type = DataType::kF32) {
    return graph_.temporary(type, {p_.batch, p_.heads, p_.seq_q, p_.seq_k},
                            {p_.heads * p_.seq_q * p_.seq_k, p_.seq_q * p_.seq_k, p_.seq_k, 1});
  }
  Node scaled(const Node& s) {
    return graph_.pointwise(PointwiseMode::kMultiply, s, graph_.scalar(p_.scale), scores());
  }
  Node compare(PointwiseMode mode, const Node& x, const Node& b) {
    return graph_.pointwise(mode, x, b, scores(DataType::kBool), DataType::kBool);
  }
  Node select(const Node& s, const Node& where) {
    return graph_.pointwise(PointwiseMode::kSelect, s, graph_.scalar(-std::numeric_limits<float>::infinity()),
                            scores(), DataType::kF32, where);
  }

  // Keeps only queries and keys of the document.
  Node padded(const Node& s) {
    if (!p_.documents) return s;
    const Node row = graph_.index(s, 2, DataType::kI32), col = graph_.index(s, 3, DataType::kI32);
    const Node row_there = compare(PointwiseMode::kLess, row, lengths_);
    const Node col_there = compare(PointwiseMode::kLess, col, lengths_);
    return select(s, compare(PointwiseMode::kAnd, row_there, col_there));
  }
  // Keeps only keys up to the query's own position, and within its window.
  Node band(Node s) {
    if (p_.causal) {
      const Node row = graph_.index(s, 2, DataType::kF32), col = graph_.index(s, 3, DataType::kF32);
      s = select(s, compare(PointwiseMode::kGreaterOrEqual, row, col));
    }
    if (p_.window > 0) {
      const Node row = graph_.index(s, 2, DataType::kF32), col = graph_.index(s, 3, DataType::kF32);
      const Node moved =
          graph_.pointwise(PointwiseMode::kAdd, col, graph_.scalar(static_cast<float>(p_.window)), scores());
      s = select(s, compare(PointwiseMode::kGreater, moved, row));
    }
    return s;
  }

  // Adds the gradient of keys or values to the graph: transposed weights times query rows, summed over a
  // group's heads.
  void keys_gradient(const Node& weights, const Node& right, std::int64_t dim, std::int64_t row,
                     CudnnTensor which, CudnnTensor offsets_of, CudnnTensor wide) {
    const Node turned = graph_.temporary(type_, {p_.batch, p_.heads, p_.seq_k, p_.seq_q},
                                         {p_.heads * p_.seq_q * p_.seq_k, p_.seq_q * p_.seq_k, 1, p_.seq_k});
    graph_.reshape(weights, turned);
    const Node result = memory(which, type_, {p_.batch, p_.kv_heads, p_.seq_k, dim},
                               {p_.seq_k * row, dim, row, 1}, offsets_of);
    const Graph::Lengths lengths{.rows = lengths_, .depth = lengths_};
    if (p_.heads == p_.kv_heads) {
      graph_.matmul(turned, right, result, lengths);
      return;
    }
    const Dims dims{p_.batch, p_.heads, p_.seq_k, dim};
    const std::int64_t group = p_.heads / p_.kv_heads;
    // For this tensor, cuDNN uses the offsets of the result, multiplied by the number of heads in a group.
    const Node all_heads =
        p_.documents ? memory(wide, type_, dims,
                              {result.strides[0] * group, dim, result.strides[2] * group, 1}, offsets_of)
                     : graph_.temporary(type_, dims, {p_.heads * p_.seq_k * dim, p_.seq_k * dim, dim, 1});
    graph_.matmul(turned, right, all_heads, lengths);
    graph_.reduce(ReductionOperator::kAdd, all_heads, result);
  }

  const CudnnProblem& p_;
  const DataType type_;  // type of the operands
  Graph graph_;
  Node lengths_;
  std::map<CudnnTensor, Node> offsets_;
};

}  // namespace

std::unique_ptr<cudnn::Plan> make_cudnn_plan(const cudnn::Library& library, cudnn::Handle handle,
                                             const CudnnProblem& problem) {
  Builder builder(library, problem);
  return problem.backward ? builder.backward(handle) : builder.forward(handle);
}

}  // namespace primus::turbo
