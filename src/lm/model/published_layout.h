// Between a parameter's elements in memory and the tensors of published checkpoints: which elements a part
// is, and in which order (engine/parameters.h, CheckpointPart). Host memory only; pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/parameters.h"

namespace primus {

// The shape of the published tensor.
std::vector<std::int64_t> published_shape(const engine::Parameter& p, const engine::CheckpointPart& part);
// The part's elements within `whole`, which is as large as the parameter: one run, in the order of memory.
Tensor part_of(const Tensor& whole, const engine::Parameter& p, const engine::CheckpointPart& part);

// Elements of `element_bytes` each from the published order to that of memory, and back. Both spans hold the
// whole part, or as many leading slabs (elements of the first axis) as the source does.
void to_memory_order(const engine::PublishedLayout& layout, std::size_t element_bytes,
                     std::span<const std::byte> published, std::span<std::byte> memory);
void to_published_order(const engine::PublishedLayout& layout, std::size_t element_bytes,
                        std::span<const std::byte> memory, std::span<std::byte> published);

// Wraps a source that reads memory order into one that gives the published order, a slab at a time.
using FillFunction = std::function<void(std::uint64_t offset, std::span<std::byte> out)>;
FillFunction published_order(const engine::PublishedLayout& layout, std::size_t element_bytes,
                             FillFunction memory_order);

}  // namespace primus
