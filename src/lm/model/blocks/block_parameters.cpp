#include "lm/model/blocks/block_parameters.h"

#include <cmath>
#include <numeric>

#include "lm/model/family.h"

namespace primus {

using engine::Initializer;

engine::SharedVocabulary shared_vocabulary(const ModelConfig& config, const engine::ParameterStore& store) {
  return {store.mesh() ? store.mesh()->tensor() : nullptr, config.vocab};
}

Share vocabulary_share(const engine::SharedVocabulary& vocabulary, std::int64_t cols) {
  const Shape whole{vocabulary.size, cols};
  if (!vocabulary.group) return {whole, {}};
  const engine::FlatRange own = vocabulary.own();
  return {{own.size(), cols}, {.whole = whole, .rows = {{own.begin, own.size()}}}};
}

BlockParameters::BlockParameters(const ModelConfig& config, engine::ParameterStore& store, std::int64_t layer,
                                 int chunk)
    : store_(store),
      mesh_(store.mesh()),
      layer_(layer),
      layers_(config.layers),
      hidden_(config.hidden),
      init_std_(config.init_std),
      chunk_(chunk),
      lora_(config.lora) {}

engine::Parameter& BlockParameters::add(const std::string& name, Shape shape, Initializer initializer,
                                        std::vector<engine::CheckpointPart> parts) const {
  return add(name, Share{shape, {}}, initializer, std::move(parts));
}

engine::Parameter& BlockParameters::add(const std::string& name, Share share, Initializer initializer,
                                        std::vector<engine::CheckpointPart> parts) const {
  const std::string at = "layers." + std::to_string(layer_);
  for (engine::CheckpointPart& part : parts) part.name = "model." + at + part.name;
  return declare(store_, chunk_, at + name, share.shape, initializer, std::move(parts),
                 std::move(share.placement));
}

engine::Parameter& BlockParameters::linear(const std::string& name, Share share, Initializer initializer,
                                           std::vector<engine::CheckpointPart> parts) const {
  engine::Parameter& matrix = add(name, std::move(share), initializer, std::move(parts));
  matrix.linear_of = layer_;
  return matrix;
}

engine::Parameter& BlockParameters::linear(std::string_view module, const std::string& name, Share share,
                                           Initializer initializer,
                                           std::vector<engine::CheckpointPart> parts) const {
  engine::Parameter& matrix = linear(name, share, initializer, parts);
  if (lora_.has(module)) add_low_rank(matrix, name, share, parts);
  return matrix;
}

// Names are those that PEFT gives them. A is shared by all parts of a fused matrix.
void BlockParameters::add_low_rank(engine::Parameter& matrix, const std::string& name, const Share& share,
                                   const std::vector<engine::CheckpointPart>& parts) const {
  const std::string weight = ".weight";
  const auto published = [&](const engine::CheckpointPart& part, const char* which) {
    return part.name.substr(0, part.name.size() - weight.size()) + which + weight;
  };
  const std::int64_t dim = lora_.dim, in = matrix.whole_shape()[1];
  // Of the standard deviations of PyTorch's xavier_normal_ and kaiming_uniform_(a=sqrt(5)).
  const double std = lora_.kaiming ? 1 / std::sqrt(3.0 * static_cast<double>(in))
                                   : std::sqrt(2.0 / static_cast<double>(in + dim));
  engine::CheckpointPart of_a{published(parts.front(), ".lora_A"), 0, dim};
  for (std::size_t i = 1; i < parts.size(); ++i)
    of_a.copies.push_back("model.layers." + std::to_string(layer_) + published(parts[i], ".lora_A"));
  std::vector<engine::CheckpointPart> of_b;
  for (const engine::CheckpointPart& part : parts)
    of_b.push_back({published(part, ".lora_B"), part.row, part.rows});

  Share a{{dim, in}, {}}, b{{matrix.shape[0], dim}, {}};
  if (matrix.shape[1] != in) {
    a = {{dim, matrix.shape[1]}, {.whole = {dim, in}, .rows = {{0, dim}}, .column = share.placement.column}};
  } else if (!share.placement.is_whole()) {
    b.placement = {.whole = {share.placement.whole[0], dim}, .rows = share.placement.rows};
  }
  matrix.low_rank = {
      .down = &add(name + ".lora_A", std::move(a), Initializer::normal(std), {std::move(of_a)}),
      .up = &add(name + ".lora_B", std::move(b), Initializer::constant(0), std::move(of_b)),
      .scale = static_cast<float>(lora_.scale())};
  matrix.low_rank.down->is_low_rank = matrix.low_rank.up->is_low_rank = true;
}

EqualShare BlockParameters::tensor() const {
  return mesh_ ? EqualShare{mesh_->shape().tensor, mesh_->place().tensor} : EqualShare{};
}

EqualShare BlockParameters::experts() const {
  return mesh_ ? EqualShare{mesh_->shape().expert, mesh_->place().expert} : EqualShare{};
}

EqualShare BlockParameters::expert_tensor() const {
  return mesh_ ? EqualShare{mesh_->shape().expert_tensor, mesh_->place().expert_tensor} : EqualShare{};
}

Share BlockParameters::rows(const std::vector<std::int64_t>& runs, std::int64_t cols) const {
  const EqualShare slice = tensor();
  const std::int64_t all = std::accumulate(runs.begin(), runs.end(), std::int64_t{0});
  const auto shape = [cols](std::int64_t rows) { return cols > 0 ? Shape{rows, cols} : Shape{rows}; };
  if (slice.ranks == 1) return {shape(all), {}};
  engine::Placement placement{.whole = shape(all)};
  std::int64_t begin = 0;
  for (const std::int64_t run : runs) {
    placement.rows.push_back({begin + slice.begin(run), slice.size(run)});
    begin += run;
  }
  return {shape(slice.size(all)), std::move(placement)};
}

Share BlockParameters::columns(std::int64_t rows, std::int64_t cols) const {
  const EqualShare slice = tensor();
  if (slice.ranks == 1) return {{rows, cols}, {}};
  return {{rows, slice.size(cols)},
          {.whole = {rows, cols}, .rows = {{0, rows}}, .column = slice.begin(cols)}};
}

Share BlockParameters::expert_rows(std::int64_t count, const std::vector<std::int64_t>& runs,
                                   std::int64_t cols) const {
  const EqualShare own = experts(), width = expert_tensor();
  const std::int64_t rows = std::accumulate(runs.begin(), runs.end(), std::int64_t{0});
  const auto shape = [cols](std::int64_t e, std::int64_t n) {
    return cols > 0 ? Shape{e, n, cols} : Shape{e, n};
  };
  const Shape whole = shape(count, rows);
  if (own.ranks == 1 && width.ranks == 1) return {whole, {}};
  engine::Placement placement{.whole = whole};
  const std::int64_t first = own.begin(count), experts = own.size(count);
  if (cols == 0) {
    placement.rows.push_back({first, experts});  // a row for each expert
  } else if (width.ranks == 1) {
    placement.rows.push_back({first * rows, experts * rows});
  } else {
    std::int64_t begin = first * rows;
    for (std::int64_t e = 0; e < experts; ++e) {
      for (const std::int64_t run : runs) {
        placement.rows.push_back({begin + width.begin(run), width.size(run)});
        begin += run;
      }
    }
  }
  return {shape(experts, width.size(rows)), std::move(placement)};
}

Share BlockParameters::expert_columns(std::int64_t count, std::int64_t rows, std::int64_t cols) const {
  const EqualShare own = experts(), width = expert_tensor();
  if (own.ranks == 1 && width.ranks == 1) return {{count, rows, cols}, {}};
  return {{own.size(count), rows, width.size(cols)},
          {.whole = {count, rows, cols},
           .rows = {{own.begin(count) * rows, own.size(count) * rows}},
           .column = width.begin(cols)}};
}

engine::Parameter& BlockParameters::norm(const std::string& name, const std::string& published) const {
  return add(name, {hidden_}, Initializer::constant(1), {{published, 0, hidden_}});
}

Initializer BlockParameters::matrix() const { return Initializer::normal(init_std_); }

// So that the variance of the residual stream does not grow with depth (GPT-2).
Initializer BlockParameters::into_residual() const {
  return Initializer::normal(init_std_ / std::sqrt(2.0 * static_cast<double>(layers_)));
}

}  // namespace primus
