// Kernels of multi-head latent attention (DeepSeek-V2, 2024, section 2.1) other than attention itself. A
// token's keys and values are products of one small latent vector; all heads share the part of the key that
// has the rotary position.
//
// Training materializes all heads: LatentQkv joins the heads into rows that turbo/attention reads. A cache
// stores only latents. With a cache, the kernels compute (q W_uk) · latent instead of q · (W_uk latent),
// which the paper calls absorption. The key of all heads is then the latent, and the value of all heads is
// the first columns of the latent.
#pragma once

#include "tensor/tensor.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

struct LatentShape {
  std::int64_t heads;
  std::int64_t rank;       // width of the latent of keys and values
  std::int64_t nope_dim;   // columns of q and k per head without rotary position
  std::int64_t rope_dim;   // columns of q and k per head with rotary position
  std::int64_t value_dim;  // columns of v and out per head
  std::int64_t key_dim() const { return nope_dim + rope_dim; }
  std::int64_t up_dim() const { return nope_dim + value_dim; }  // rows of the up-projection per head
};

// Joins queries, keys and values of all heads into one row per token.
struct LatentQkv {
  static constexpr KernelId kId = KernelId::kLatentQkv;
  LatentShape shape;
  Tensor q;         // [tokens, heads * key_dim]
  Tensor kv;        // [tokens, heads * up_dim]: for each head, the nope part of the key, then the value
  Tensor rope_key;  // [tokens, rope_dim]: the rope part of every head's key
  Tensor qkv;       // output: [tokens, heads * (2 * key_dim + value_dim)]
  void check() const;
  double flops() const { return 0; }
};

struct LatentQkvBackward {
  static constexpr KernelId kId = KernelId::kLatentQkvBackward;
  LatentShape shape;
  Tensor d_qkv;
  Tensor d_q, d_kv, d_rope_key;  // assigned; d_rope_key is summed over heads in fp32
  void check() const;
  double flops() const { return 0; }
};

// Multiplies each head by the head's rows of the up-projection: queries before attention over latents, or
// values after attention.
struct LatentProject {
  static constexpr KernelId kId = KernelId::kLatentProject;
  enum class Side : std::uint8_t {
    kQueries,  // x: [tokens, heads * key_dim]; out: [tokens, heads * (rank + rope_dim)]; the rope part is
               // copied
    kValues,   // x: [tokens, heads * rank]; out: [tokens, heads * value_dim]
  };
  LatentShape shape;
  Side side;
  Tensor x;
  Tensor up;  // [heads * up_dim, rank], x's type
  Tensor out;
  Tensor workspace;
  void check() const;
  double flops() const;
};

// Computes d_x, the gradient of x in LatentProject.
struct LatentProjectBackwardInput {
  static constexpr KernelId kId = KernelId::kLatentProjectBackwardInput;
  LatentShape shape;
  LatentProject::Side side;
  Tensor d_out, up;
  Tensor d_x;
  Tensor workspace;
  void check() const;
  double flops() const;
};

// d_up += the gradient of the rows of the up-projection that LatentProject uses for this `side`. All other
// rows of d_up are neither read nor written.
struct LatentProjectBackwardWeight {
  static constexpr KernelId kId = KernelId::kLatentProjectBackwardWeight;
  LatentShape shape;
  LatentProject::Side side;
  Tensor x, d_out;
  Tensor d_up;  // [heads * up_dim, rank], fp32, or bf16 with one rounding
  Tensor workspace;
  void check() const;
  double flops() const;
};

}  // namespace primus::turbo
