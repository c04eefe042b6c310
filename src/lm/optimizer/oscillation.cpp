#include "lm/optimizer/oscillation.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "base/check.h"
#include "turbo/mxfp4/mxfp4.h"
#include "turbo/oscillation/oscillation.h"

namespace primus {
namespace {

using engine::Buffer;
using engine::FlatRange;
using engine::Parameter;
using engine::ParameterUnit;

// A matrix is divided into squares of kMxBlock x kMxBlock elements with one fp4 scale each. This struct is
// the range of rows that contains every square of which this rank's shard has an element.
struct Squares {
  FlatRange elements;  // range of elements within the unit
  Shape shape;
  Buffer before, after;  // the fp4 values before and after the update
};

// Appends to `to` the rows whose squares contain the parameter's weights in `own`.
void add_squares(const Parameter& p, const FlatRange& own, std::vector<Squares>& to) {
  const FlatRange all{p.offset, p.offset + p.shape.elements()};
  if (own.size() == all.size()) {
    to.push_back({all, p.shape, {}, {}});
    return;
  }
  const std::int64_t rank = p.shape.rank(), cols = p.shape[rank - 1], rows = p.shape[rank - 2];
  for (std::int64_t begin = all.begin; begin < all.end; begin += rows * cols) {
    const FlatRange here = own.intersect({begin, begin + rows * cols});
    if (here.empty()) continue;
    constexpr std::int64_t kSide = turbo::kMxBlock;
    const std::int64_t first = (here.begin - begin) / cols / kSide * kSide;
    const std::int64_t last = std::min(((here.end - 1 - begin) / cols / kSide + 1) * kSide, rows);
    to.push_back({{begin + first * cols, begin + last * cols}, {last - first, cols}, {}, {}});
  }
}

// Returns the values of the complete unit. `changed`: whether this rank's values are newer than the gathered
// values.
Tensor whole_values(const UnitUpdate& u, bool changed, Buffer& buffer) {
  const ParameterUnit& unit = u.unit;
  if (unit.shard.size() == unit.elements) return unit.stored.values;
  if (!changed && !unit.values.absent()) return unit.values;
  buffer = u.rank.stash().allocate(unit.elements * size_of(unit.dtype));
  Tensor whole = buffer.view(unit.dtype, {unit.elements});
  u.parallel.gather_shards(unit, unit.stored.values, whole);
  return whole;
}

// Copies of the weights before an update.
class Masters {
 public:
  Masters(const UnitUpdate& u, const FlatRange& own) : first_(own.begin) {
    const ParameterUnit& unit = u.unit;
    const auto copy = [&](const Tensor& of_shard, Buffer& buffer) {
      if (of_shard.absent()) return Tensor();
      const Tensor from = of_shard.slice(own.begin - unit.shard.begin, own.end - unit.shard.begin);
      buffer = u.rank.stash().allocate(from.bytes());
      if (!u.rank.measuring())
        u.rank.compute().copy_on_device(buffer.view(from.dtype, from.shape).data, from.data, from.bytes());
      return buffer.view(from.dtype, from.shape);
    };
    working_ = copy(unit.stored.values, buffers_[0]);
    master_ = copy(unit.stored.master, buffers_[1]);
    remainder_ = copy(unit.stored.remainder, buffers_[2]);
  }
  Tensor working(const FlatRange& part) const { return of(working_, part); }
  Tensor master(const FlatRange& part) const { return of(master_, part); }
  Tensor remainder(const FlatRange& part) const { return of(remainder_, part); }

 private:
  Tensor of(const Tensor& tensor, const FlatRange& part) const {
    return tensor.absent() ? Tensor() : tensor.slice(part.begin - first_, part.end - first_);
  }

  std::int64_t first_;
  std::array<Buffer, 3> buffers_;
  Tensor working_, master_, remainder_;
};

class WithoutOscillation final : public UpdateRule {
 public:
  WithoutOscillation(std::shared_ptr<const UpdateRule> rule, const engine::PrecisionRecipe& recipe,
                     const OscillationSettings& settings)
      : rule_(std::move(rule)),
        name_("deosc " + std::string(rule_->name())),
        recipe_(recipe),
        settings_(settings) {}

  std::string_view name() const override { return name_; }
  // This rule's states are appended to the states of the wrapped rule, which keep their positions.
  std::vector<engine::StateSpec> states() const override {
    std::vector<engine::StateSpec> states = rule_->states();
    for (const char* name : {"deosc_moved", "deosc_jumped"}) states.push_back({name});
    return states;
  }
  bool takes(const Parameter& p) const override { return recipe_.is_fp4(p) && rule_->takes(p); }
  void set_scalars(std::int64_t step, std::span<double, turbo::kStepScalars> scalars) const override {
    rule_->set_scalars(step, scalars);
  }
  bool varies() const override { return true; }
  void update(const UnitUpdate& u) const override;

 private:
  void round(const UnitUpdate& u, bool changed, std::vector<Squares>& all) const;
  void track(const UnitUpdate& u, const Squares& squares, const FlatRange& part, const Masters& before,
             bool counted) const;

  std::shared_ptr<const UpdateRule> rule_;
  std::string name_;
  engine::PrecisionRecipe recipe_;
  OscillationSettings settings_;
};

// Rounds the weights as forward products do.
void WithoutOscillation::round(const UnitUpdate& u, bool changed, std::vector<Squares>& all) const {
  Buffer gathered;
  const Tensor values = whole_values(u, changed, gathered);
  for (Squares& squares : all) {
    Buffer& buffer = changed ? squares.after : squares.before;
    buffer = u.rank.stash().allocate(squares.elements.size() * size_of(values.dtype));
    turbo::launch(u.rank.context(),
                  turbo::RoundMxfp4{
                      .x = values.slice(squares.elements.begin, squares.elements.end).reshaped(squares.shape),
                      .out = buffer.view(values.dtype, squares.shape),
                      .blocks = turbo::RoundMxfp4::Blocks::kTiles});
  }
}

void WithoutOscillation::track(const UnitUpdate& u, const Squares& squares, const FlatRange& part,
                               const Masters& before, bool counted) const {
  if (part.empty()) return;
  const ParameterUnit& unit = u.unit;
  const auto of_shard = [&](const Tensor& tensor) {
    return tensor.absent() ? Tensor()
                           : tensor.slice(part.begin - unit.shard.begin, part.end - unit.shard.begin);
  };
  const auto of_squares = [&](const Buffer& buffer) {
    return buffer.view(unit.dtype, {squares.elements.size()})
        .slice(part.begin - squares.elements.begin, part.end - squares.elements.begin);
  };
  // These tensors are the last two states of this rule.
  Tensor moved, jumped;
  for (const engine::UnitState& state : unit.states) {
    if (state.rule != u.rule) continue;
    moved = jumped;
    jumped = state.values.slice(part.begin - state.elements.begin, part.end - state.elements.begin);
  }
  turbo::launch(u.rank.context(), turbo::TrackOscillation{.before_param = before.master(part),
                                                          .before_working = before.working(part),
                                                          .before_remainder = before.remainder(part),
                                                          .param = of_shard(unit.stored.master),
                                                          .working = of_shard(unit.stored.values),
                                                          .remainder = of_shard(unit.stored.remainder),
                                                          .before_rounded = of_squares(squares.before),
                                                          .rounded = of_squares(squares.after),
                                                          .moved = moved,
                                                          .jumped = jumped,
                                                          .grad_scale = u.gradient_scale,
                                                          .snapped = counted ? u.snapped : Tensor(),
                                                          .ratio = static_cast<float>(settings_.ratio),
                                                          .ends = settings_.ends_window(u.step)});
}

void WithoutOscillation::update(const UnitUpdate& u) const {
  const ParameterUnit& unit = u.unit;
  const bool has_some = std::any_of(unit.runs.begin(), unit.runs.end(),
                                    [&](const engine::ParameterRun& run) { return run.rule == u.rule; });
  // A measured step counts as a step inside a window, so that the memory for it is included.
  if (!has_some || !(settings_.tracks(u.step) || u.rank.measuring())) return rule_->update(u);
  PRIMUS_CHECK("weight_deosc", unit.dtype == DType::kBF16);
  std::vector<Squares> all;
  FlatRange own{unit.shard.end, unit.shard.begin};
  for (const Parameter* p : unit.parameters) {
    const FlatRange here = FlatRange{p->offset, p->offset + p->shape.elements()}.intersect(unit.shard);
    if (p->rule != u.rule || here.empty()) continue;
    own = {std::min(own.begin, here.begin), std::max(own.end, here.end)};
    add_squares(*p, here, all);
  }
  // Ranks without weights of this rule must still take part in the gathers.
  round(u, false, all);
  std::optional<Masters> before;
  if (!all.empty()) before.emplace(u, own);
  rule_->update(u);
  round(u, true, all);
  for (const Squares& squares : all) {
    const FlatRange part = squares.elements.intersect(own);
    const FlatRange counted = part.intersect(unit.slice);
    if (counted.empty()) {
      track(u, squares, part, *before, false);
      continue;
    }
    track(u, squares, {part.begin, counted.begin}, *before, false);
    track(u, squares, counted, *before, true);
    track(u, squares, {counted.end, part.end}, *before, false);
  }
}

}  // namespace

UpdateRules without_oscillation(const UpdateRules& rules, const engine::PrecisionRecipe& recipe,
                                const OscillationSettings& settings) {
  UpdateRules all;
  for (const std::shared_ptr<const UpdateRule>& rule : rules) {
    all.push_back(std::make_shared<WithoutOscillation>(rule, recipe, settings));
    all.push_back(rule);
  }
  return all;
}

}  // namespace primus
