// The gradients of one chunk of the delta rule on the CPU.
#pragma once

#include "turbo/delta_rule/cpu_chunks.h"

namespace primus::turbo::PRIMUS_CPU_ISA {

template <class Gates>
class DeltaChunkBackward : public DeltaChunk<Gates> {
 public:
  DeltaChunkBackward(Carver& carver, const DeltaSizes& sizes)
      : DeltaChunk<Gates>(carver, sizes),
        d_matrices_{carver.take<float>(kDeltaChunk * kDeltaChunk),
                    carver.take<float>(kDeltaChunk * kDeltaChunk)},
        of_head_{this->keys(carver), this->keys(carver), this->keys(carver)},
        d_out_(this->values(carver)),
        d_u_(this->values(carver)),
        d_error_(this->values(carver)),
        product_(this->keys(carver)),
        last_(carver.take<float>(sizes.key_width)),
        u_transposed_(carver.take<float>(kDeltaChunk * sizes.value_width)),
        state_transposed_(carver.take<float>(sizes.state())) {}

  // Computes the gradients of a chunk, after load() and solve(state). `d_state` is the gradient of the state
  // after the chunk. If `d_state_is_there` is false, this gradient is zero, and d_state is not read. If there
  // is a state before the chunk, the gradient of this state overwrites d_state. Adds to d_q and d_k [tokens,
  // key_width] of the key head. d_v, d_g and d_beta are addressed as in load().
  template <class T>
  void backward(const float* state, float* d_state, bool d_state_is_there, const T* d_out, float* d_q,
                float* d_k, T* d_v, float* d_g, float* d_beta, std::int64_t head) {
    const DeltaSizes& z = this->sizes_;
    const DeltaRuleShape& s = z.s;
    const ChunkKeys& keys = this->keys_;
    const std::int64_t n = keys.tokens, values = z.value_width, width = keys.width;
    load_rows(d_out + head * s.value_dim, s.out_width(), n, s.value_dim, d_out_, values, n);
    for (std::int64_t i = 0; i < n * values; ++i) d_out_[i] *= s.scale;
    multiply(n, values, n, {this->matrices_.read, 1, kDeltaChunk}, d_out_, values, d_u_, values);
    if (d_state_is_there)
      multiply_accumulate(n, values, width, {this->key_until_, width, 1}, d_state, values, d_u_, values);
    solve_backward(d_beta, head);
    for (std::int64_t i = 0; i < n * values; ++i) this->rows_[i] = -d_error_[i];
    store_rows(this->rows_, values, n, s.value_dim, d_v + head * s.value_dim, s.width());

    std::fill_n(of_head_.q, n * width, 0.0F);
    std::fill_n(of_head_.looking, n * width, 0.0F);
    std::fill_n(of_head_.seen, n * width, 0.0F);
    std::fill_n(last_, width, 0.0F);
    if (d_state_is_there) end_backward(state, d_state);
    if (state) begin_backward(state, d_state, d_state_is_there);
    std::fill_n(u_transposed_, kDeltaChunk * values, 0.0F);
    transpose(this->u_, values, n, values, u_transposed_, kDeltaChunk);
    multiply(n, kDeltaChunk, values, {d_out_, values, 1}, u_transposed_, kDeltaChunk, d_matrices_.read,
             kDeltaChunk);
    multiply(n, kDeltaChunk, values, {d_error_, values, 1}, u_transposed_, kDeltaChunk, d_matrices_.write,
             kDeltaChunk);
    this->gates_.matrices_backward(keys, d_matrices_, of_head_);
    gates_backward(d_g + head * Gates::columns(s.key_dim), !state);
    PRIMUS_SIMD()
    for (std::int64_t i = 0; i < n * width; ++i) {
      d_q[i] += of_head_.q[i];
      d_k[i] += of_head_.looking[i] + of_head_.seen[i];
    }
  }

 private:
  // Computes d_error_ = -(gradient of the errors) from d_u_.
  void solve_backward(float* d_beta, std::int64_t head) {
    const std::int64_t n = this->keys_.tokens, width = this->sizes_.value_width;
    const float* const write = this->matrices_.write;
    for (std::int64_t begin = (n - 1) / this->kStrip * this->kStrip; begin >= 0; begin -= this->kStrip) {
      const std::int64_t end = std::min(begin + this->kStrip, n);
      multiply_accumulate(end - begin, width, n - end, {write + end * kDeltaChunk + begin, 1, kDeltaChunk},
                          d_error_ + end * width, width, d_u_ + begin * width, width);
      for (std::int64_t i = end - 1; i >= begin; --i) {
        float* d_u = d_u_ + i * width;
        for (std::int64_t j = i + 1; j < end; ++j)
          this->add(write[j * kDeltaChunk + i], d_error_ + j * width, d_u);
        const float* error = this->error_ + i * width;
        d_beta[i * this->sizes_.s.value_heads + head] =
            sum_terms(width, [=](std::int64_t c) { return d_u[c] * error[c]; });
        for (std::int64_t c = 0; c < width; ++c) d_error_[i * width + c] = -this->beta_[i] * d_u[c];
      }
    }
  }
  // Computes the gradients of keys and gates that come from the gradient of the state after the chunk.
  void end_backward(const float* state, const float* d_state) {
    const DeltaSizes& z = this->sizes_;
    const std::int64_t n = this->keys_.tokens, values = z.value_width, width = z.key_width;
    transpose(d_state, values, width, values, state_transposed_, width);
    multiply(n, width, values, {this->u_, values, 1}, state_transposed_, width, product_, width);
    for (std::int64_t i = 0; i < n; ++i) {
      const float *gradient = product_ + i * width, *key = this->key_until_ + i * width;
      PRIMUS_SIMD()
      for (std::int64_t c = 0; c < width; ++c) last_[c] = multiply_add(gradient[c], key[c], last_[c]);
    }
    this->gates_.until_end(this->keys_, product_, of_head_.seen);
    for (std::int64_t c = 0; state && c < width; ++c) {
      const float *before = state + c * values, *d_after = d_state + c * values;
      last_[c] +=
          this->gates_.through(c) * sum_terms(values, [=](std::int64_t i) { return before[i] * d_after[i]; });
    }
  }
  // Computes the gradients that come from reading the state before the chunk.
  void begin_backward(const float* state, float* d_state, bool d_state_is_there) {
    const DeltaSizes& z = this->sizes_;
    const std::int64_t n = this->keys_.tokens, values = z.value_width, width = z.key_width;
    transpose(state, values, width, values, state_transposed_, width);
    multiply(n, width, values, {d_out_, values, 1}, state_transposed_, width, product_, width);
    this->gates_.since_begin(this->keys_, product_, of_head_.q);
    multiply(n, width, values, {d_error_, values, 1}, state_transposed_, width, product_, width);
    this->gates_.since_begin(this->keys_, product_, of_head_.looking);
    this->gates_.since_begin(this->keys_, this->keys_.q, this->query_since_);
    if (d_state_is_there) {
      this->fade(d_state);
    } else {
      std::fill_n(d_state, z.state(), 0.0F);
    }
    multiply_accumulate(width, values, n, {this->query_since_, 1, width}, d_out_, values, d_state, values);
    multiply_accumulate(width, values, n, {this->key_since_, 1, width}, d_error_, values, d_state, values);
  }
  // In the decays, a token's sum of gates has a positive sign for the rows of this token (its query, and its
  // key as a row of the matrices), and a negative sign for its key as a column. The gradient of the sum adds
  // the products of decayed values and their gradients, with these signs.
  void gates_backward(float* d_g, bool first) {
    const DeltaRuleShape& s = this->sizes_.s;
    const ChunkKeys& keys = this->keys_;
    const std::int64_t n = keys.tokens, width = keys.width;
    const auto at = [&](std::int64_t i, std::int64_t c) {
      const std::int64_t e = i * width + c;
      return multiply_add(keys.q[e], of_head_.q[e], keys.k[e] * (of_head_.looking[e] - of_head_.seen[e]));
    };
    if (Gates::columns(2) == 1) {
      double sum = static_cast<double>(sum_terms(width, [&](std::int64_t c) { return last_[c]; }));
      for (std::int64_t i = n - 1; i >= 0; --i) {
        sum += static_cast<double>(sum_terms(width, [&](std::int64_t c) { return at(i, c); }));
        d_g[i * s.gates()] = first && i == 0 ? 0.0F : static_cast<float>(sum);
      }
      return;
    }
    for (std::int64_t i = n - 1; i >= 0; --i) {
      PRIMUS_SIMD()
      for (std::int64_t c = 0; c < s.key_dim; ++c) {
        last_[c] += at(i, c);
        d_g[i * s.gates() + c] = last_[c];
      }
    }
    if (first) std::fill_n(d_g, s.key_dim, 0.0F);
  }

  ChunkMatrices d_matrices_;
  ChunkGradients of_head_;
  float *d_out_, *d_u_, *d_error_;  // [tokens, value_width]
  float* product_;                  // [tokens, key_width]
  float* last_;                     // [key_width]: the gradient of the sums of gates at the chunk's end
  float *u_transposed_, *state_transposed_;
};

}  // namespace primus::turbo::PRIMUS_CPU_ISA
