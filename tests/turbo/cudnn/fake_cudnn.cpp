#include "turbo/cudnn/fake_cudnn.h"

#include <algorithm>
#include <cstring>
#include <memory>

namespace primus::turbo::cudnn::fake {
namespace {

struct Object {
  DescriptorType type;
  std::map<Attribute, std::vector<unsigned char>> attributes;
  std::map<Attribute, std::int64_t> counts;
  bool finalized = false;
  std::size_t engine = 0;  // the engine of a configuration or an engine descriptor

  template <class T>
  std::vector<T> get(Attribute name) const {
    const auto at = attributes.find(name);
    if (at == attributes.end()) return {};
    std::vector<T> values(at->second.size() / sizeof(T));
    std::memcpy(values.data(), at->second.data(), values.size() * sizeof(T));
    return values;
  }
};

Settings set;
Compiled last;
std::map<std::int64_t, void*> pointers;
void* workspace = nullptr;
int plans = 0;
bool over = true;  // true: the next tensor begins a new graph
std::map<Descriptor, std::unique_ptr<Object>> objects;
std::string error;

Object& of(Descriptor descriptor) { return *objects.at(descriptor); }

std::size_t size_of(AttributeType type) {
  switch (type) {
    case AttributeType::kInt64:
    case AttributeType::kDouble:
    case AttributeType::kVoidPointer:
    case AttributeType::kDescriptor:
    case AttributeType::kHandle:
      return 8;
    case AttributeType::kBool:
      return 1;
    default:
      return 4;
  }
}

Status fail(const char* why) {
  error = why;
  return static_cast<Status>(3000);
}

Status create(Handle* handle) {
  *handle = reinterpret_cast<Handle>(&set);
  return Status::kSuccess;
}

Status create_descriptor(DescriptorType type, Descriptor* descriptor) {
  auto object = std::make_unique<Object>();
  object->type = type;
  *descriptor = object.get();
  objects[*descriptor] = std::move(object);
  return Status::kSuccess;
}

Status destroy_descriptor(Descriptor descriptor) {
  return objects.erase(descriptor) == 1 ? Status::kSuccess : fail("no such descriptor");
}

Status set_attribute(Descriptor descriptor, Attribute name, AttributeType type, std::int64_t count,
                     const void* elements) {
  Object& object = of(descriptor);
  if (object.finalized) return fail("a finalized descriptor cannot be changed");
  const auto* bytes = static_cast<const unsigned char*>(elements);
  object.attributes[name].assign(bytes, bytes + size_of(type) * static_cast<std::size_t>(count));
  return Status::kSuccess;
}

Status get_attribute(Descriptor descriptor, Attribute name, AttributeType, std::int64_t room,
                     std::int64_t* count, void* elements) {
  const Object& object = of(descriptor);
  const auto engine = [&]() -> const Engine& { return set.engines.at(object.engine); };
  const auto give = [&](const auto& value) {
    *count = 1;
    std::memcpy(elements, &value, sizeof(value));
  };
  switch (name) {
    case Attribute::kHeuristicsResults:
      *count = static_cast<std::int64_t>(set.engines.size());
      for (std::size_t i = 0; i < set.engines.size() && static_cast<std::int64_t>(i) < room; ++i) {
        of(static_cast<Descriptor*>(elements)[i]).engine = i;
      }
      return Status::kSuccess;
    case Attribute::kEngineConfigEngine:
      *count = 1;
      of(*static_cast<Descriptor*>(elements)).engine = object.engine;
      return Status::kSuccess;
    case Attribute::kEngineGlobalIndex:
      give(engine().number);
      return Status::kSuccess;
    case Attribute::kEngineNumericalNote:
      *count = 0;
      if (engine().varies) give(NumericalNote::kNonDeterministic);
      return Status::kSuccess;
    case Attribute::kPlanWorkspaceSize:
      give(set.engines.at(of(object.get<Descriptor>(Attribute::kPlanEngineConfig).at(0)).engine).workspace);
      return Status::kSuccess;
    default:
      return fail("unknown attribute");
  }
}

void remember_tensor(const Object& object) {
  if (over) last = {};
  over = false;
  if (object.attributes.count(Attribute::kTensorIsVirtual) ||
      object.attributes.count(Attribute::kTensorIsByValue))
    return;
  const std::int64_t id = object.get<std::int64_t>(Attribute::kTensorUniqueId).at(0);
  last.dims[id] = object.get<std::int64_t>(Attribute::kTensorDimensions);
  last.types[id] = object.get<DataType>(Attribute::kTensorDataType).at(0);
  last.strides[id] = object.get<std::int64_t>(Attribute::kTensorStrides);
  if (const auto offsets = object.get<Descriptor>(Attribute::kTensorRaggedOffset); !offsets.empty()) {
    last.offsets[id] = of(offsets[0]).get<std::int64_t>(Attribute::kTensorUniqueId).at(0);
  }
}

Status finalize(Descriptor descriptor) {
  Object& object = of(descriptor);
  switch (object.type) {
    case DescriptorType::kTensor:
      remember_tensor(object);
      break;
    case DescriptorType::kPointwise:
      last.pointwise.insert(object.get<PointwiseMode>(Attribute::kPointwiseMode).at(0));
      break;
    case DescriptorType::kOperationMatmul:
      ++last.matmuls;
      break;
    case DescriptorType::kOperationReduction:
      ++last.reductions;
      break;
    case DescriptorType::kExecutionPlan:
      over = true;
      if (!set.engines.at(of(object.get<Descriptor>(Attribute::kPlanEngineConfig).at(0)).engine).compiles) {
        return fail("this engine does not compile\nsecond line");
      }
      ++plans;
      break;
    default:
      break;
  }
  object.finalized = true;
  return Status::kSuccess;
}

Status execute(Handle, Descriptor plan, Descriptor pack) {
  if (!of(plan).finalized || !of(pack).finalized) return fail("not finalized");
  const auto ids = of(pack).get<std::int64_t>(Attribute::kVariantPackUniqueIds);
  const auto addresses = of(pack).get<void*>(Attribute::kVariantPackPointers);
  if (ids.size() != addresses.size()) return fail("as many ids as pointers");
  pointers.clear();
  for (std::size_t i = 0; i < ids.size(); ++i) pointers[ids[i]] = addresses[i];
  workspace = of(pack).get<void*>(Attribute::kVariantPackWorkspace).at(0);
  return Status::kSuccess;
}

}  // namespace

Settings& settings() { return set; }
const Compiled& compiled() { return last; }
int plans_made() { return plans; }
const std::map<std::int64_t, void*>& executed() { return pointers; }
void* executed_workspace() { return workspace; }
int alive() { return static_cast<int>(objects.size()); }

Library library() {
  Library library{};
  library.version = set.version;
  library.version_text = version_text(set.version);
  library.get_version = [] { return set.version; };
  library.last_error = [](char* message, std::size_t bytes) { std::strncpy(message, error.c_str(), bytes); };
  library.create = create;
  library.destroy = [](Handle) { return Status::kSuccess; };
  library.set_stream = [](Handle, void*) { return Status::kSuccess; };
  library.create_descriptor = create_descriptor;
  library.destroy_descriptor = destroy_descriptor;
  library.set_attribute = set_attribute;
  library.get_attribute = get_attribute;
  library.finalize = finalize;
  library.execute = execute;
  return library;
}

void reset() {
  set = {};
  last = {};
  pointers.clear();
  workspace = nullptr;
  plans = 0;
  over = true;
  error.clear();
}

}  // namespace primus::turbo::cudnn::fake
