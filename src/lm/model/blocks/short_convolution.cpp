#include "engine/operators/short_convolution.h"

#include <fmt/format.h>

#include "engine/parallel/context_attention.h"
#include "engine/parallel/tensor_parallel.h"
#include "lm/model/blocks/layers.h"
#include "lm/model/language_model.h"
#include "lm/model/layer_kind.h"

namespace primus {

// Width in tokens of short convolutions, and whether the convolutions and the projections have biases.
PRIMUS_MODEL_FIELD(CONVOLUTION, std::int64_t, width, 3, conv_L_cache, kShape, "conv_L_cache");
PRIMUS_MODEL_FIELD(CONVOLUTION, bool, bias, false, conv_bias, kShape, "conv_bias");

namespace {

using engine::Initializer;
using engine::Normed;
using engine::Parameter;
using engine::Value;

// Channels are independent between the two projections, so tensor ranks divide the channels.
class ShortConvolution final : public Layer {
 public:
  ShortConvolution(const ModelConfig& c, const BlockParameters& p)
      : group_(p.tensor_group()),
        channels_(p.tensor().size(c.hidden)),
        width_(c.convolution.width),
        layer_(p.layer()),
        in_(p.linear(".conv.in", p.rows({c.hidden, c.hidden, c.hidden}, c.hidden), p.matrix(),
                     {{".conv.in_proj.weight", 0, 3 * c.hidden}})),
        kernel_(p.add(".conv.kernel", p.rows({c.hidden}, width_), p.matrix(),
                      {{".conv.conv.weight", 0, c.hidden, {.shape = {c.hidden, 1, width_}}}})),
        out_(p.linear(".conv.out", p.columns(c.hidden, c.hidden), p.into_residual(),
                      {{".conv.out_proj.weight", 0, c.hidden}})) {
    kernel_.kernel = true;
    if (!c.convolution.bias) return;
    const auto bias = [&](const std::string& name, Share share, const std::string& published,
                          std::int64_t n) {
      return &p.add(name, std::move(share), Initializer::constant(0), {{published, 0, n}});
    };
    in_bias_ =
        bias(".conv.in_bias", p.rows({c.hidden, c.hidden, c.hidden}), ".conv.in_proj.bias", 3 * c.hidden);
    bias_ = bias(".conv.bias", p.rows({c.hidden}), ".conv.conv.bias", c.hidden);
    out_bias_ = bias(".conv.out_bias", {{c.hidden}, {}}, ".conv.out_proj.bias", c.hidden);
  }

  Value forward(const Normed& h, const BlockInputs& in) const override {
    Value bcx;
    if (group_) {
      bcx = gathered_linear(h.value(), in_, group_, in.tensor);
      if (in_bias_) bcx = add_bias(std::move(bcx), *in_bias_);
    } else {
      bcx = h.linear(in_, in_bias_);
    }
    const Value mixed = engine::short_convolution(
        bcx, kernel_, {.batch = in.batch, .sequence = in.sequence, .channels = channels_, .width = width_},
        {.cache = in.cache ? in.cache->layer(layer_) : engine::CachedSequences(),
         .context = in.context,
         .first_key = in.first_key,
         .bias = bias_});
    Value out = scattered_linear(mixed, out_, group_, in.tensor);
    return out_bias_ ? add_bias(std::move(out), *out_bias_) : out;
  }

 private:
  comm::Communicator* group_;  // the ranks over which the channels are divided
  std::int64_t channels_;      // number of channels on this rank
  std::int64_t width_, layer_;
  Parameter &in_, &kernel_, &out_;
  Parameter *in_bias_ = nullptr, *bias_ = nullptr, *out_bias_ = nullptr;
};

std::vector<LayerProduct> products(const ModelConfig& c, std::int64_t) {
  return {{"convolution in", 3 * c.hidden, c.hidden}, {"convolution out", c.hidden, c.hidden}};
}

std::vector<SharedExtent> shared(const ModelConfig& c) {
  return {{c.hidden, "channels of short convolutions (hidden_size)"}};
}

std::optional<MeshMismatch> context_mismatch(const ModelConfig& c, const engine::MeshShape& shape,
                                             std::int64_t sequence) {
  return slices_too_short(c.convolution.width, "conv_L_cache", shape, sequence);
}

void make_cache(const ModelConfig& c, const CacheRequest& request, engine::Phase& phase,
                engine::KvCacheLayer& entry) {
  entry.ring = phase.tensor(
      DType::kF32, {request.sequences, conv_ring(c.convolution.width), c.hidden / request.tensor_ranks});
}

// Counts the fp32 inputs of the convolution that decoding reads per token.
double bytes_read(const ModelConfig& c, std::int64_t, std::int64_t, DType) {
  return static_cast<double>(c.convolution.width * c.hidden) * 4;
}

std::string summary(const ModelConfig& c) {
  return fmt::format("short convolutions over {} tokens in {} of {} layers", c.convolution.width,
                     c.layers_keeping(Keeps::kInputs).size(), c.layers);
}

std::unique_ptr<Layer> make(const ModelConfig& config, const BlockParameters& parameters) {
  return std::make_unique<ShortConvolution>(config, parameters);
}

}  // namespace

// A gated short convolution over the last conv_L_cache tokens: conv.{in_proj,conv,out_proj}.
extern const LayerKind kShortConvolution{.branch = LayerKind::Branch::kAttention,
                                         .keeps = Keeps::kInputs,
                                         .products = products,
                                         .mixing = nullptr,
                                         .shared_by_tensor_ranks = shared,
                                         .context_mismatch = context_mismatch,
                                         .make_cache = make_cache,
                                         .bytes_read = bytes_read,
                                         .summary = summary,
                                         .make = make};

}  // namespace primus
