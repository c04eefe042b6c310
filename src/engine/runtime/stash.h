// The stash: activations and their gradients, as reference-counted blocks of one arena.
//
// Blocks are freed in any order (several microbatches in flight, deferred weight gradients), so the stash is
// not a stack. Lifetimes are the same in every step, so measuring one step is enough. Not thread-safe.
#pragma once

#include <deque>
#include <utility>
#include <vector>

#include "base/check.h"
#include "tensor/arena.h"
#include "tensor/tensor.h"

namespace primus::engine {

class Stash;

// Shared ownership of one block. Empty by default.
class Buffer {
 public:
  Buffer() = default;
  Buffer(const Buffer& other) : node_(other.node_) {
    if (node_) ++node_->references;
  }
  Buffer(Buffer&& other) noexcept : node_(std::exchange(other.node_, nullptr)) {}
  Buffer& operator=(Buffer other) noexcept {
    std::swap(node_, other.node_);
    return *this;
  }
  ~Buffer() { reset(); }

  void reset();
  explicit operator bool() const { return node_ != nullptr; }
  bool unique() const { return node_ && node_->references == 1; }
  // The buffer must not be empty.
  Tensor view(DType dtype, const Shape& shape) const {
    PRIMUS_CHECK("Buffer::view", node_);
    return {node_->block.address, dtype, shape};
  }

 private:
  friend class Stash;
  struct Node {
    Stash* owner = nullptr;
    Arena::Block block;
    int references = 0;
  };
  explicit Buffer(Node* node) : node_(node) {}
  Node* node_ = nullptr;
};

class Stash {
 public:
  explicit Stash(Arena& arena) : arena_(arena) {}
  Stash(const Stash&) = delete;
  Stash& operator=(const Stash&) = delete;

  Buffer allocate(std::int64_t bytes);
  bool measuring() const { return arena_.measuring(); }
  bool empty() const { return arena_.in_use() == 0; }

 private:
  friend class Buffer;
  Arena& arena_;
  std::deque<Buffer::Node> nodes_;
  std::vector<Buffer::Node*> idle_;
};

}  // namespace primus::engine
