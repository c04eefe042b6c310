#include "bench/attention_shapes.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "base/terminal/terminal.h"
#include "base/text/json_reader.h"
#include "base/text/suggest.h"

namespace primus {
namespace {

constexpr std::int64_t kMaxSize = 1 << 20;

struct ListedShape {
  std::string model;
  std::int64_t seqlen_q = 0, seqlen_kv = 0, heads = 0, kv_heads = 0, head_dim = 0, value_dim = 0;
  bool causal = true;
};

struct SizeKey {
  std::string_view name;
  std::int64_t ListedShape::*member;
};
constexpr SizeKey kSizeKeys[] = {
    {"seqlen_q", &ListedShape::seqlen_q},    {"seqlen_kv", &ListedShape::seqlen_kv},
    {"num_head_q", &ListedShape::heads},     {"num_head_kv", &ListedShape::kv_heads},
    {"head_dim_qk", &ListedShape::head_dim}, {"head_dim_v", &ListedShape::value_dim}};

ListedShape read_shape(JsonReader& json) {
  constexpr std::string_view kWhat = "of a shape,";
  ListedShape shape;
  json.require(JsonReader::Kind::kObject, "each of the shapes");
  json.object([&](std::string_view key) {
    const auto size = std::find_if(std::begin(kSizeKeys), std::end(kSizeKeys),
                                   [&](const SizeKey& known) { return known.name == key; });
    if (size != std::end(kSizeKeys)) {
      json.require(JsonReader::Kind::kNumber, kWhat, key);
      shape.*size->member = json.read_int();
      if (shape.*size->member < 1 || shape.*size->member > kMaxSize)
        json.refuse(fmt::format("'{}' must be from 1 to {}", key, kMaxSize));
    } else if (key == "model") {
      json.require(JsonReader::Kind::kString, kWhat, key);
      shape.model = json.read_string();
      // Refuses unprintable characters, because terminals and tables get the name without escaping.
      if (printable(shape.model) != shape.model || shape.model.find_first_of("\t\n") != std::string::npos)
        json.refuse("a model's name must not contain control characters");
    } else if (key == "causal") {
      json.require(JsonReader::Kind::kBool, kWhat, key);
      shape.causal = json.read_bool();
    } else {
      std::vector<std::string_view> known{"model", "causal"};
      for (const SizeKey& one : kSizeKeys) known.push_back(one.name);
      const std::string near = did_you_mean(key, known);
      json.refuse(fmt::format("'{}' is not a key of a shape{}", key, near.empty() ? "" : ": " + near));
    }
  });
  for (const SizeKey& key : kSizeKeys)
    if (shape.*key.member == 0) json.refuse(fmt::format("a shape lacks '{}'", key.name));
  if (shape.heads % shape.kv_heads != 0)
    json.refuse(
        fmt::format("num_head_q {} is not a multiple of num_head_kv {}", shape.heads, shape.kv_heads));
  return shape;
}

}  // namespace

std::vector<AttentionCase> usual_attention_shapes() {
  const auto shape = [](const char* model, std::int64_t sequence, std::int64_t heads, std::int64_t kv_heads) {
    return AttentionCase{.model = model, .sequence = sequence, .heads = heads, .kv_heads = kv_heads};
  };
  return {shape("Llama2_7B", 4096, 32, 32),   shape("Llama2_70B", 4096, 64, 8),
          shape("Llama3_8B", 8192, 32, 8),    shape("Llama3_70B", 8192, 64, 8),
          shape("mistral_8x7B", 4096, 32, 8), shape("mistral_8x22B", 4096, 48, 8)};
}

std::vector<AttentionCase> read_attention_shapes(std::string_view text, const std::string& source,
                                                 std::vector<LeftOutShape>& left_out) {
  JsonReader json(text, source, {.hint = "docs/benchmarks.md has an example of such a file"});
  std::vector<AttentionCase> cases;
  json.require(JsonReader::Kind::kArray, "the file of shapes");
  json.array([&] {
    const ListedShape shape = read_shape(json);
    if (shape.seqlen_q != shape.seqlen_kv) {
      left_out.push_back({shape.model, fmt::format("{} was skipped: its seqlen_q {} and seqlen_kv {} differ",
                                                   shape.model.empty() ? "a shape" : shape.model,
                                                   shape.seqlen_q, shape.seqlen_kv)});
      return;
    }
    cases.push_back({.model = shape.model,
                     .sequence = shape.seqlen_q,
                     .heads = shape.heads,
                     .kv_heads = shape.kv_heads,
                     .head_dim = shape.head_dim,
                     .value_dim = shape.value_dim,
                     .causal = shape.causal});
  });
  json.finish();
  return cases;
}

}  // namespace primus
