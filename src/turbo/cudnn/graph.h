// Operation graphs of cuDNN. A graph is a small computation that the library compiles into one or a few
// kernels. Tensors have four dimensions, [batch, heads, rows, columns], and strides in elements.
//
//   Graph graph(library);
//   const Node q = graph.memory(1, DataType::kBF16, {b, h, s, d}, strides);
//   ...
//   std::unique_ptr<Plan> plan = graph.compile(handle, /*deterministic=*/true);
//   plan->execute(handle, {{1, address}, ...}, workspace);
//
// Functions throw Refusal if the library rejects a request. Several threads may execute one plan if each
// thread has its own handle. Otherwise not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "turbo/cudnn/library.h"

namespace primus::turbo::cudnn {

using Dims = std::array<std::int64_t, 4>;

// Reports that cuDNN does not support a graph, and why. Callers fall back to another implementation.
class Refusal : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Owns descriptors of the library, and destroys them.
class Descriptors {
 public:
  explicit Descriptors(const Library& library) : library_(&library) {}
  Descriptors(Descriptors&& other) noexcept : library_(other.library_), all_(std::exchange(other.all_, {})) {}
  Descriptors& operator=(Descriptors&&) = delete;
  ~Descriptors() {
    for (auto at = all_.rbegin(); at != all_.rend(); ++at) library_->destroy_descriptor(*at);
  }
  Descriptor make(DescriptorType type);

 private:
  const Library* library_;
  std::vector<Descriptor> all_;
};

class Plan {
 public:
  std::int64_t workspace_bytes() const { return workspace_bytes_; }
  // Returns the number of the engine that the library chose, for logs.
  std::int64_t engine() const { return engine_; }
  // Enqueues the graph on the handle's stream. `memory` has an (id, address) pair for every tensor of
  // Graph::memory. Other ids are ignored. Throws Error if the library fails.
  void execute(Handle handle, const std::vector<std::pair<std::int64_t, void*>>& memory,
               void* workspace) const;

 private:
  friend class Graph;
  Plan(const Library& library, Descriptors descriptors)
      : library_(library), descriptors_(std::move(descriptors)) {}

  const Library& library_;
  Descriptors descriptors_;
  Descriptor plan_ = nullptr;
  std::int64_t workspace_bytes_ = 0, engine_ = -1;
  std::set<std::int64_t> memory_ids_;
  std::deque<std::pair<std::int64_t, float>> scalars_;  // (id, value); a deque keeps addresses valid
};

// A tensor of a graph.
struct Node {
  Descriptor descriptor = nullptr;
  Dims dims{}, strides{};
  explicit operator bool() const { return descriptor != nullptr; }
};

class Graph {
 public:
  // The library must outlive the graph and its plan.
  explicit Graph(const Library& library) : library_(library), descriptors_(library) {}

  // Adds a tensor in device memory; its address is given at execution. `id` > 0. With `offsets` ([batches +
  // 1] int32), batch i begins at element offsets[i].
  Node memory(std::int64_t id, DataType type, const Dims& dims, const Dims& strides,
              const Node& offsets = {});
  // Adds an intermediate tensor. If possible, cuDNN's engine keeps this tensor out of device memory.
  Node temporary(DataType type, const Dims& dims, const Dims& strides, const Node& offsets = {});
  Node scalar(float value);

  // Adds y = mode(x, b, t), computed in type `compute`.
  Node pointwise(PointwiseMode mode, const Node& x, const Node& b, const Node& y,
                 DataType compute = DataType::kF32, const Node& t = {});
  // Adds a tensor whose elements are their own indices along axis 2 (rows) or 3 (columns).
  Node index(const Node& like, int axis, DataType compute);

  // The sizes of the products of a batch, if products have different sizes: `rows` and `cols` of c, and
  // `depth`, the number of terms per sum. If a node is absent, all products have the full size.
  struct Lengths {
    Node rows = {}, cols = {}, depth = {};
    bool padded = false;  // elements beyond these sizes count as 0
  };
  void matmul(const Node& a, const Node& b, const Node& c, const Lengths& lengths);
  void reduce(ReductionOperator how, const Node& x, const Node& y);
  void reshape(const Node& x, const Node& y);

  // Compiles the graph for an engine that supports the graph: the engine that the library prefers. If
  // `deterministic` is set, only bitwise reproducible engines are considered. Consumes the graph. Throws
  // Refusal if no engine remains.
  std::unique_ptr<Plan> compile(Handle handle, bool deterministic);

 private:
  Descriptor make(DescriptorType type) { return descriptors_.make(type); }
  template <class T>
  void set(Descriptor descriptor, Attribute name, AttributeType type, const T& value) {
    set_all(descriptor, name, type, 1, &value);
  }
  void set_all(Descriptor descriptor, Attribute name, AttributeType type, std::int64_t count,
               const void* elements);
  void set_node(Descriptor operation, Attribute name, const Node& node);
  void finalize(Descriptor descriptor);
  void add(Descriptor operation);
  Node tensor(std::int64_t id, DataType type, const Dims& dims, const Dims& strides, const Node& offsets,
              bool is_virtual, bool by_value);
  std::int64_t own_id() { return next_id_++; }

  static constexpr std::int64_t kFirstOwnId = 1000;
  const Library& library_;
  Descriptors descriptors_;
  std::vector<Descriptor> operations_;
  std::set<std::int64_t> memory_ids_;
  std::deque<std::pair<std::int64_t, float>> scalars_;
  std::int64_t next_id_ = kFirstOwnId;
};

}  // namespace primus::turbo::cudnn
