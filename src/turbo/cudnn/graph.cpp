#include "turbo/cudnn/graph.h"

#include <algorithm>

#include "base/error.h"
#include "device/lost_device.h"

namespace primus::turbo::cudnn {
namespace {

std::string message_of(const Library& library, Status status) {
  std::array<char, 512> text{};
  library.last_error(text.data(), text.size());
  text.back() = 0;
  std::string message(text.data());
  // A message may have several lines or end with a line feed. The first line describes the problem.
  message = message.substr(0, message.find('\n'));
  return "status " + std::to_string(static_cast<int>(status)) + (message.empty() ? "" : ": " + message);
}

}  // namespace

Descriptor Descriptors::make(DescriptorType type) {
  Descriptor descriptor = nullptr;
  const Status status = library_->create_descriptor(type, &descriptor);
  if (status != Status::kSuccess) throw Refusal("descriptor: " + message_of(*library_, status));
  all_.push_back(descriptor);
  return descriptor;
}

void Graph::set_all(Descriptor descriptor, Attribute name, AttributeType type, std::int64_t count,
                    const void* elements) {
  const Status status = library_.set_attribute(descriptor, name, type, count, elements);
  if (status != Status::kSuccess) {
    throw Refusal("attribute " + std::to_string(static_cast<int>(name)) + ": " +
                  message_of(library_, status));
  }
}

void Graph::set_node(Descriptor operation, Attribute name, const Node& node) {
  if (node) set(operation, name, AttributeType::kDescriptor, node.descriptor);
}

void Graph::finalize(Descriptor descriptor) {
  const Status status = library_.finalize(descriptor);
  if (status != Status::kSuccess) throw Refusal(message_of(library_, status));
}

void Graph::add(Descriptor operation) {
  finalize(operation);
  operations_.push_back(operation);
}

Node Graph::tensor(std::int64_t id, DataType type, const Dims& dims, const Dims& strides, const Node& offsets,
                   bool is_virtual, bool by_value) {
  constexpr std::int64_t kAlignment = 16;
  const Descriptor made = make(DescriptorType::kTensor);
  set(made, Attribute::kTensorDataType, AttributeType::kDataType, type);
  set_all(made, Attribute::kTensorDimensions, AttributeType::kInt64, 4, dims.data());
  set_all(made, Attribute::kTensorStrides, AttributeType::kInt64, 4, strides.data());
  set(made, Attribute::kTensorUniqueId, AttributeType::kInt64, id);
  set(made, Attribute::kTensorByteAlignment, AttributeType::kInt64, kAlignment);
  if (is_virtual) set(made, Attribute::kTensorIsVirtual, AttributeType::kBool, true);
  if (by_value) set(made, Attribute::kTensorIsByValue, AttributeType::kBool, true);
  set_node(made, Attribute::kTensorRaggedOffset, offsets);
  finalize(made);
  return {made, dims, strides};
}

Node Graph::memory(std::int64_t id, DataType type, const Dims& dims, const Dims& strides,
                   const Node& offsets) {
  memory_ids_.insert(id);
  return tensor(id, type, dims, strides, offsets, false, false);
}

Node Graph::temporary(DataType type, const Dims& dims, const Dims& strides, const Node& offsets) {
  return tensor(own_id(), type, dims, strides, offsets, true, false);
}

Node Graph::scalar(float value) {
  scalars_.emplace_back(own_id(), value);
  return tensor(scalars_.back().first, DataType::kF32, {1, 1, 1, 1}, {1, 1, 1, 1}, {}, false, true);
}

Node Graph::pointwise(PointwiseMode mode, const Node& x, const Node& b, const Node& y, DataType compute,
                      const Node& t) {
  const Descriptor how = make(DescriptorType::kPointwise);
  set(how, Attribute::kPointwiseMode, AttributeType::kPointwiseMode, mode);
  set(how, Attribute::kPointwiseMathPrecision, AttributeType::kDataType, compute);
  finalize(how);
  const Descriptor operation = make(DescriptorType::kOperationPointwise);
  set(operation, Attribute::kOperationPointwiseDescriptor, AttributeType::kDescriptor, how);
  set_node(operation, Attribute::kOperationPointwiseX, x);
  set_node(operation, Attribute::kOperationPointwiseB, b);
  set_node(operation, Attribute::kOperationPointwiseT, t);
  set_node(operation, Attribute::kOperationPointwiseY, y);
  add(operation);
  return y;
}

Node Graph::index(const Node& like, int axis, DataType compute) {
  const Descriptor how = make(DescriptorType::kPointwise);
  set(how, Attribute::kPointwiseMode, AttributeType::kPointwiseMode, PointwiseMode::kIndex);
  set(how, Attribute::kPointwiseMathPrecision, AttributeType::kDataType, compute);
  set(how, Attribute::kPointwiseAxis, AttributeType::kInt64, std::int64_t{axis});
  finalize(how);
  const Node y = temporary(DataType::kI32, like.dims, like.strides);
  const Descriptor operation = make(DescriptorType::kOperationPointwise);
  set(operation, Attribute::kOperationPointwiseDescriptor, AttributeType::kDescriptor, how);
  set_node(operation, Attribute::kOperationPointwiseX, like);
  set_node(operation, Attribute::kOperationPointwiseY, y);
  add(operation);
  return y;
}

void Graph::matmul(const Node& a, const Node& b, const Node& c, const Lengths& lengths) {
  const Descriptor how = make(DescriptorType::kMatmul);
  set(how, Attribute::kMatmulComputeType, AttributeType::kDataType, DataType::kF32);
  if (lengths.padded) set(how, Attribute::kMatmulPaddingValue, AttributeType::kDouble, 0.0);
  finalize(how);
  const Descriptor operation = make(DescriptorType::kOperationMatmul);
  set_node(operation, Attribute::kOperationMatmulA, a);
  set_node(operation, Attribute::kOperationMatmulB, b);
  set_node(operation, Attribute::kOperationMatmulC, c);
  set(operation, Attribute::kOperationMatmulDescriptor, AttributeType::kDescriptor, how);
  set_node(operation, Attribute::kOperationMatmulRows, lengths.rows);
  set_node(operation, Attribute::kOperationMatmulCols, lengths.cols);
  set_node(operation, Attribute::kOperationMatmulDepth, lengths.depth);
  add(operation);
}

void Graph::reduce(ReductionOperator how, const Node& x, const Node& y) {
  const Descriptor reduction = make(DescriptorType::kReduction);
  set(reduction, Attribute::kReductionComputeType, AttributeType::kDataType, DataType::kF32);
  set(reduction, Attribute::kReductionOperator, AttributeType::kReductionOperator, how);
  finalize(reduction);
  const Descriptor operation = make(DescriptorType::kOperationReduction);
  set(operation, Attribute::kOperationReductionDescriptor, AttributeType::kDescriptor, reduction);
  set_node(operation, Attribute::kOperationReductionX, x);
  set_node(operation, Attribute::kOperationReductionY, y);
  add(operation);
}

void Graph::reshape(const Node& x, const Node& y) {
  const Descriptor operation = make(DescriptorType::kOperationReshape);
  set_node(operation, Attribute::kOperationReshapeX, x);
  set_node(operation, Attribute::kOperationReshapeY, y);
  add(operation);
}

std::unique_ptr<Plan> Graph::compile(Handle handle, bool deterministic) {
  const Descriptor graph = make(DescriptorType::kOperationGraph);
  set_all(graph, Attribute::kGraphOperations, AttributeType::kDescriptor,
          static_cast<std::int64_t>(operations_.size()), operations_.data());
  set(graph, Attribute::kGraphHandle, AttributeType::kHandle, handle);
  finalize(graph);

  const Descriptor heuristics = make(DescriptorType::kEngineHeuristics);
  set(heuristics, Attribute::kHeuristicsGraph, AttributeType::kDescriptor, graph);
  set(heuristics, Attribute::kHeuristicsMode, AttributeType::kHeuristicsMode, HeuristicsMode::kA);
  finalize(heuristics);
  // The library does not change descriptors that it does not fill.
  std::array<Descriptor, 16> configs{};
  for (Descriptor& config : configs) config = make(DescriptorType::kEngineConfig);
  std::int64_t count = 0;
  const Status asked =
      library_.get_attribute(heuristics, Attribute::kHeuristicsResults, AttributeType::kDescriptor,
                             static_cast<std::int64_t>(configs.size()), &count, configs.data());
  if (asked != Status::kSuccess) throw Refusal("heuristics: " + message_of(library_, asked));

  std::string why = "the library has no engine for it";
  count = std::min(count, static_cast<std::int64_t>(configs.size()));
  for (std::int64_t i = 0; i < count; ++i) {
    const Descriptor config = configs[static_cast<std::size_t>(i)];
    Descriptor engine = make(DescriptorType::kEngine);
    std::int64_t got = 0;
    if (library_.get_attribute(config, Attribute::kEngineConfigEngine, AttributeType::kDescriptor, 1, &got,
                               &engine) != Status::kSuccess) {
      continue;
    }
    std::int64_t number = -1;
    library_.get_attribute(engine, Attribute::kEngineGlobalIndex, AttributeType::kInt64, 1, &got, &number);
    std::array<NumericalNote, 32> notes{};
    got = 0;
    const Status noted =
        library_.get_attribute(engine, Attribute::kEngineNumericalNote, AttributeType::kNumericalNote,
                               static_cast<std::int64_t>(notes.size()), &got, notes.data());
    got = std::clamp<std::int64_t>(got, 0, static_cast<std::int64_t>(notes.size()));
    const bool varies = noted != Status::kSuccess ||
                        std::find(notes.begin(), notes.begin() + got, NumericalNote::kNonDeterministic) !=
                            notes.begin() + got;
    if (deterministic && varies) {
      why = "no engine is deterministic";
      continue;
    }
    const Descriptor made = make(DescriptorType::kExecutionPlan);
    try {
      set(made, Attribute::kPlanHandle, AttributeType::kHandle, handle);
      set(made, Attribute::kPlanEngineConfig, AttributeType::kDescriptor, config);
      finalize(made);
    } catch (const Refusal& refusal) {
      why = refusal.what();
      continue;
    }
    std::int64_t bytes = 0;
    if (library_.get_attribute(made, Attribute::kPlanWorkspaceSize, AttributeType::kInt64, 1, &got, &bytes) !=
            Status::kSuccess ||
        bytes < 0) {
      why = "the plan does not report its workspace size";
      continue;
    }
    std::unique_ptr<Plan> plan(new Plan(library_, std::move(descriptors_)));
    plan->plan_ = made;
    plan->workspace_bytes_ = bytes;
    plan->engine_ = number;
    plan->memory_ids_ = std::move(memory_ids_);
    plan->scalars_ = std::move(scalars_);
    return plan;
  }
  throw Refusal(why);
}

void Plan::execute(Handle handle, const std::vector<std::pair<std::int64_t, void*>>& memory,
                   void* workspace) const {
  std::vector<std::int64_t> ids;
  std::vector<void*> addresses;
  ids.reserve(memory.size() + scalars_.size());
  addresses.reserve(memory.size() + scalars_.size());
  for (const auto& [id, address] : memory) {
    if (memory_ids_.count(id) == 0) continue;
    ids.push_back(id);
    addresses.push_back(address);
  }
  for (const auto& [id, value] : scalars_) {
    ids.push_back(id);
    addresses.push_back(const_cast<float*>(&value));
  }
  const auto check = [this](Status status) {
    if (status == Status::kSuccess) return;
    throw Error(ErrorKind::kIo, "cuDNN " + library_.version_text + " failed: " + message_of(library_, status),
                kLostDeviceHint);
  };
  Descriptors owner(library_);
  const Descriptor pack = owner.make(DescriptorType::kVariantPack);
  const auto count = static_cast<std::int64_t>(ids.size());
  check(library_.set_attribute(pack, Attribute::kVariantPackPointers, AttributeType::kVoidPointer, count,
                               addresses.data()));
  check(library_.set_attribute(pack, Attribute::kVariantPackUniqueIds, AttributeType::kInt64, count,
                               ids.data()));
  check(library_.set_attribute(pack, Attribute::kVariantPackWorkspace, AttributeType::kVoidPointer, 1,
                               &workspace));
  check(library_.finalize(pack));
  check(library_.execute(handle, plan_, pack));
}

}  // namespace primus::turbo::cudnn
