#include "engine/runtime/stash.h"

namespace primus::engine {

void Buffer::reset() {
  if (node_ && --node_->references == 0) {
    node_->owner->arena_.release(node_->block);
    node_->owner->idle_.push_back(node_);
  }
  node_ = nullptr;
}

Buffer Stash::allocate(std::int64_t bytes) {
  if (idle_.empty()) {
    nodes_.push_back({});
    idle_.push_back(&nodes_.back());
  }
  Buffer::Node* node = idle_.back();
  node->block = arena_.allocate(bytes);
  idle_.pop_back();
  node->owner = this;
  node->references = 1;
  return Buffer(node);
}

}  // namespace primus::engine
