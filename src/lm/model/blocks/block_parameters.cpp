#include "lm/model/blocks/block_parameters.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
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
                                 int chunk, NameReplacements names)
    : store_(store),
      mesh_(store.mesh()),
      layer_(layer),
      layers_(config.layers),
      hidden_(config.hidden),
      init_std_(config.init_std),
      norm_offset_(config.norm_offset()),
      chunk_(chunk),
      names_(names),
      lora_(config.lora) {}

engine::Parameter& BlockParameters::add(const std::string& name, Shape shape, Initializer initializer,
                                        std::vector<engine::CheckpointPart> parts) const {
  return add(name, Share{shape, {}}, initializer, std::move(parts));
}

engine::Parameter& BlockParameters::add(const std::string& name, Share share, Initializer initializer,
                                        std::vector<engine::CheckpointPart> parts) const {
  const std::string at = "layers." + std::to_string(layer_);
  for (engine::CheckpointPart& part : parts) part.name = published(part.name);
  return declare(store_, chunk_, at + name, share.shape, initializer, std::move(parts),
                 std::move(share.placement));
}

std::string BlockParameters::published(const std::string& name) const {
  std::string full = "model.layers." + std::to_string(layer_) + name;
  for (const auto& [from, to] : names_) {
    if (const std::size_t at = full.find(from); at != std::string::npos) full.replace(at, from.size(), to);
  }
  return full;
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
  engine::Parameter& matrix = linear(name, std::move(share), initializer, parts);
  if (lora_.has(module)) add_low_rank(matrix, name, parts);
  matrix.low_rank.possible = true;
  if (lora_.by_matrix) add_part_adapters(matrix, name, parts);
  return matrix;
}

engine::Parameter& BlockParameters::experts(std::string_view module, const std::string& name, Share share,
                                            Initializer initializer,
                                            std::vector<engine::CheckpointPart> parts) const {
  engine::Parameter& matrix = add(name, std::move(share), initializer, parts);
  matrix.per_expert = true;
  matrix.linear_of = layer_;
  matrix.group = engine::ReduceGroup::kExperts;
  if (lora_.has(module)) add_low_rank(matrix, name, parts);
  return matrix;
}

// Declares the LoRA adapters of `matrix` under the tensor names that PEFT uses. All parts of a fused matrix
// share the adapter matrix A.
void BlockParameters::add_low_rank(engine::Parameter& matrix, const std::string& name,
                                   const std::vector<engine::CheckpointPart>& parts) const {
  // both shapes are [out, in], or [experts, out, in] for the matrices of experts
  const Shape &whole = matrix.whole_shape(), &own = matrix.shape;
  const bool of_experts = whole.rank() == 3;
  const auto count = [&](const Shape& s) { return of_experts ? s[0] : 1; };
  const auto out_of = [](const Shape& s) { return s[s.rank() - 2]; };
  const auto in_of = [](const Shape& s) { return s[s.rank() - 1]; };
  const auto shape = [&](std::int64_t experts, std::int64_t rows, std::int64_t cols) {
    return of_experts ? Shape{experts, rows, cols} : Shape{rows, cols};
  };
  const std::int64_t dim = lora_.dim, out = out_of(whole), in = in_of(whole);
  const bool all = count(own) == count(whole);

  const std::string_view weight = ".weight";
  const auto name_of = [&](const engine::CheckpointPart& part, const char* which) {
    std::string base = part.name;
    if (base.ends_with(weight)) base.resize(base.size() - weight.size());
    return base.append(which).append(weight);
  };
  std::vector<engine::CheckpointPart> of_a, of_b;
  for (const engine::CheckpointPart& part : parts) {
    const std::int64_t first = part.row / out * dim, rows = std::max<std::int64_t>(part.rows / out, 1) * dim;
    if (!of_a.empty() && of_a.back().row == first) {
      of_a.back().copies.push_back(published(name_of(part, ".lora_A")));
    } else {
      of_a.push_back({name_of(part, ".lora_A"), first, rows});
    }
    of_b.push_back({name_of(part, ".lora_B"), part.row, part.rows});
  }

  Share a{shape(count(own), dim, in_of(own)), {}}, b{shape(count(own), out_of(own), dim), {}};
  if (!all || in_of(own) != in) {
    const std::int64_t first = of_experts ? matrix.placement.rows.front().whole / out : 0;
    a.placement = {.whole = shape(count(whole), dim, in),
                   .rows = {{first * dim, count(own) * dim}},
                   .column = matrix.placement.column};
  }
  if (!all || out_of(own) != out)
    b.placement = {.whole = shape(count(whole), out, dim), .rows = matrix.placement.rows};
  // The standard deviation of PyTorch's kaiming_uniform_(a=sqrt(5)) or xavier_normal_.
  const double std = lora_.kaiming ? 1 / std::sqrt(3.0 * static_cast<double>(in))
                                   : std::sqrt(2.0 / static_cast<double>(in + dim));
  engine::Parameter& down = add(name + ".lora_A", std::move(a), Initializer::normal(std), std::move(of_a));
  engine::Parameter& up = add(name + ".lora_B", std::move(b), Initializer::constant(0), std::move(of_b));
  down.is_low_rank = up.is_low_rank = true;
  if (of_experts) {
    down.per_expert = up.per_expert = true;
    // If the width of experts is divided among ranks, only one of the two adapter matrices is divided. Every
    // rank computes a partial sum of the other matrix's gradients, so its group also has the ranks of the
    // width.
    const auto group = [](bool split) {
      return split ? engine::ReduceGroup::kExperts : engine::ReduceGroup::kExpertTokens;
    };
    down.group = group(in_of(own) != in);
    up.group = group(out_of(own) != out);
  }
  matrix.low_rank = {.down = &down,
                     .up = &up,
                     .scale = static_cast<float>(lora_.scale()),
                     .dropout = static_cast<float>(lora_.training.dropout),
                     .drops_after = lora_.training.drops_after};
}

// Declares the adapters of single parts of `matrix` [out, in] under the tensor names that PEFT uses.
void BlockParameters::add_part_adapters(engine::Parameter& matrix, const std::string& name,
                                        const std::vector<engine::CheckpointPart>& parts) const {
  constexpr std::string_view kWeight = ".weight";
  const std::vector<engine::Placement::Rows>& runs = matrix.placement.rows;
  const std::int64_t in = matrix.whole_shape()[1], own_in = matrix.shape[1];
  for (const engine::CheckpointPart& part : parts) {
    if (!part.name.ends_with(kWeight)) continue;
    const std::string base = part.name.substr(0, part.name.size() - kWeight.size());
    const MatrixAdapters::Matrix* const settings = lora_.by_matrix.find(published(base));
    if (!settings) continue;
    // The rows of the part that this rank has, and their position within the rank's matrix.
    std::int64_t first = matrix.placement.is_whole() ? part.row : 0,
                 rows = matrix.placement.is_whole() ? part.rows : 0;
    std::vector<engine::Placement::Rows> of_part;
    for (const engine::Placement::Rows& run : runs) {
      if (run.whole < part.row) first += std::min(run.rows, part.row - run.whole);
      const std::int64_t begin = std::max(run.whole, part.row),
                         end = std::min(run.whole + run.rows, part.row + part.rows);
      if (begin >= end) continue;
      of_part.push_back({begin - part.row, end - begin});
      rows += end - begin;
    }
    const bool all_rows = rows == part.rows;
    const std::int64_t dim = settings->dim;
    Share a{{dim, own_in}, {}}, b{{rows, dim}, {}}, per_row{{rows}, {}};
    if (own_in != in)
      a.placement = {.whole = {dim, in}, .rows = {{0, dim}}, .column = matrix.placement.column};
    if (!all_rows) {
      b.placement = {.whole = {part.rows, dim}, .rows = of_part};
      per_row.placement = {.whole = {part.rows}, .rows = of_part};
    }
    const std::string own = name + base.substr(base.rfind('.'));
    const auto declared = [&](const char* short_name, Share share, Initializer initializer,
                              const char* ending, std::int64_t part_rows) {
      engine::Parameter& p =
          add(own + short_name, std::move(share), initializer, {{base + ending, 0, part_rows}});
      p.is_low_rank = true;
      return &p;
    };
    // The standard deviation of PyTorch's kaiming_uniform_(a=sqrt(5)).
    const Initializer random = Initializer::normal(1 / std::sqrt(3.0 * static_cast<double>(in)));
    engine::LowRank adapter{.first = first,
                            .scale = static_cast<float>(settings->scale),
                            .dropout = static_cast<float>(lora_.training.dropout)};
    adapter.down = declared(".lora_A", a, random, ".lora_A.weight", dim);
    adapter.up = declared(".lora_B", b, Initializer::constant(0), ".lora_B.weight", part.rows);
    if (lora_.by_matrix.biases)
      adapter.bias = declared(".lora_B_bias", per_row, Initializer::constant(0), ".lora_B.bias", part.rows);
    if (lora_.by_matrix.magnitudes) {
      adapter.magnitude =
          declared(".lora_magnitude", per_row, Initializer::constant(1), ".lora_magnitude_vector", part.rows);
    }
    matrix.low_rank.parts.push_back(adapter);
  }
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
    placement.rows.push_back({first, experts});  // a bias has one row per expert
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
  return norm(name, hidden_, {{published, 0, hidden_}});
}

engine::Parameter& BlockParameters::norm(const std::string& name, std::int64_t width,
                                         std::vector<engine::CheckpointPart> parts) const {
  engine::Parameter& weight = add(name, {width}, Initializer::constant(1 - norm_offset_), std::move(parts));
  weight.norm_offset = norm_offset_;
  return weight;
}

Initializer BlockParameters::matrix() const { return Initializer::normal(init_std_); }

// Returns the initializer of matrices whose output is added to the residual stream. Initial values are scaled
// by depth, so that the variance of the stream does not grow with depth (GPT-2).
Initializer BlockParameters::into_residual() const {
  return Initializer::normal(init_std_ / std::sqrt(2.0 * static_cast<double>(layers_)));
}

}  // namespace primus
