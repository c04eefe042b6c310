// A reference in double of the gated delta rule and its gradients, token by token.
#pragma once

#include <cmath>
#include <map>
#include <string>

#include "turbo/delta_rule/delta_rule.h"
#include "turbo/operator_test.h"

namespace primus::turbo::test {

enum class GateKind : std::uint8_t { kMild, kNone, kStrong, kMixed };

struct DeltaCase {
  std::int64_t batch, sequence, key_heads, value_heads, key_dim, value_dim;
  bool channel_gates = false, normalise = true, documents = false;
  DType dtype = DType::kF32;
  GateKind gates = GateKind::kMild;

  DeltaRuleShape shape() const {
    return {.batch = batch,
            .sequence = sequence,
            .key_heads = key_heads,
            .value_heads = value_heads,
            .key_dim = key_dim,
            .value_dim = value_dim,
            .channel_gates = channel_gates,
            .normalise = normalise,
            .scale = 0.4F};
  }
  std::int64_t rows() const { return batch * sequence; }
  // Returns the first token of a position's document. Documents have 1, 2, 3, 20 and 71 tokens, repeated
  // cyclically.
  std::int64_t first_key(std::int64_t position) const {
    std::int64_t begin = 0;
    while (documents) {
      for (const std::int64_t length : {1, 2, 3, 20, 71}) {
        if (position < begin + length) return begin;
        begin += length;
      }
    }
    return 0;
  }
  Values first_keys() const {
    Values keys;
    for (std::int64_t row = 0; row < rows(); ++row)
      keys.push_back(static_cast<double>(first_key(row % sequence)));
    return keys;
  }
};

inline std::ostream& operator<<(std::ostream& out, const DeltaCase& c) {
  return out << c.batch << " x " << c.sequence << " tokens, " << c.key_heads << " and " << c.value_heads
             << " heads of " << c.key_dim << " and " << c.value_dim << (c.channel_gates ? ", by channel" : "")
             << (c.normalise ? ", normalised" : "") << (c.documents ? ", documents" : "") << ", "
             << name_of(c.dtype) << ", gates " << static_cast<int>(c.gates);
}

struct DeltaOperands {
  Values qkv, g, beta, d_out;

  explicit DeltaOperands(const DeltaCase& c) {
    const DeltaRuleShape s = c.shape();
    // Keys that are not normalised must have a small norm; otherwise the state would grow without bound.
    qkv = random_values(c.rows() * s.width(), 1, c.normalise ? 1.0 : 0.5 / std::sqrt(double(c.key_dim)));
    qkv = rounded(qkv, c.dtype);
    d_out = rounded(random_values(c.rows() * s.out_width(), 2), c.dtype);
    g = random_values(c.rows() * s.gates(), 3);
    beta = random_values(c.rows() * c.value_heads, 4);
    for (std::size_t i = 0; i < g.size(); ++i) {
      const double mild = -0.1 * std::abs(g[i]), strong = -5 - 15 * std::abs(std::sin(g[i]));
      const bool hit = c.gates == GateKind::kStrong || (c.gates == GateKind::kMixed && i % 7 == 0);
      g[i] = rounded(c.gates == GateKind::kNone ? 0.0 : hit ? strong : mild, DType::kF32);
    }
    for (double& value : beta) value = rounded(1 / (1 + std::exp(-value)), DType::kF32);
  }
};

struct DeltaResults {
  Values out, d_qkv, d_g, d_beta;
};

// Computes one value head of one sequence.
class DeltaReference {
 public:
  DeltaReference(const DeltaCase& of, const DeltaOperands& operands, DeltaResults& results)
      : c(of), s(of.shape()), o(operands), r(results) {}

  void run(std::int64_t sequence, std::int64_t head) {
    const auto size = static_cast<std::size_t>(s.key_dim * s.value_dim);
    const std::int64_t begin = sequence * s.sequence;
    std::vector<Step> steps;
    Values state(size);
    for (std::int64_t t = 0; t < s.sequence; ++t) {
      if (c.first_key(t) == t) state.assign(size, 0.0);
      steps.push_back(forward(begin + t, head, state));
    }
    Values d_state(size);
    for (std::int64_t t = s.sequence - 1; t >= 0; --t) {
      backward(begin + t, head, steps[static_cast<std::size_t>(t)], d_state);
      if (c.first_key(t) == t) d_state.assign(size, 0.0);
    }
  }

 private:
  struct Step {
    Values q, k, faded, error, u, state;
  };

  std::size_t at(std::int64_t i, std::int64_t j) const {
    return static_cast<std::size_t>(i * s.value_dim + j);
  }
  std::size_t q_at(std::int64_t row, std::int64_t head) const {
    return static_cast<std::size_t>(row * s.width() + head / (s.value_heads / s.key_heads) * s.key_dim);
  }
  std::size_t gate(std::int64_t row, std::int64_t head, std::int64_t i) const {
    return static_cast<std::size_t>(row * s.gates() + (s.channel_gates ? head * s.key_dim + i : head));
  }
  std::size_t v_at(std::int64_t row, std::int64_t head) const {
    return static_cast<std::size_t>(row * s.width() + s.v_column() + head * s.value_dim);
  }
  double factor(std::size_t from) const {
    if (!s.normalise) return 1;
    double square = 0;
    for (std::int64_t i = 0; i < s.key_dim; ++i)
      square += std::pow(o.qkv[from + static_cast<std::size_t>(i)], 2);
    return 1 / std::sqrt(square + static_cast<double>(s.epsilon));
  }
  Values vector(std::size_t from) const {
    Values v(o.qkv.begin() + static_cast<std::ptrdiff_t>(from),
             o.qkv.begin() + static_cast<std::ptrdiff_t>(from) + s.key_dim);
    for (double& value : v) value *= factor(from);
    return v;
  }

  Step forward(std::int64_t row, std::int64_t head, Values& state) {
    const std::size_t q = q_at(row, head), k = q + static_cast<std::size_t>(s.k_column());
    Step step{vector(q), vector(k), state, {}, {}, {}};
    for (std::int64_t i = 0; i < s.key_dim; ++i) {
      for (std::int64_t j = 0; j < s.value_dim; ++j)
        step.faded[at(i, j)] *= std::exp(o.g[gate(row, head, i)]);
    }
    state = step.faded;
    for (std::int64_t j = 0; j < s.value_dim; ++j) {
      double error = o.qkv[v_at(row, head) + static_cast<std::size_t>(j)];
      for (std::int64_t i = 0; i < s.key_dim; ++i)
        error -= state[at(i, j)] * step.k[static_cast<std::size_t>(i)];
      const double u = o.beta[static_cast<std::size_t>(row * s.value_heads + head)] * error;
      double out = 0;
      for (std::int64_t i = 0; i < s.key_dim; ++i) {
        state[at(i, j)] += step.k[static_cast<std::size_t>(i)] * u;
        out += state[at(i, j)] * step.q[static_cast<std::size_t>(i)];
      }
      step.error.push_back(error);
      step.u.push_back(u);
      r.out[static_cast<std::size_t>(row * s.out_width() + head * s.value_dim + j)] =
          out * static_cast<double>(s.scale);
    }
    step.state = state;
    return step;
  }

  // On entry, d_state is the gradient of the state after the token; on return, it is the gradient of the
  // state before the token.
  void backward(std::int64_t row, std::int64_t head, const Step& step, Values& d_state) {
    const auto beta_at = static_cast<std::size_t>(row * s.value_heads + head);
    Values d_q(step.q.size()), d_k(step.k.size());
    for (std::int64_t j = 0; j < s.value_dim; ++j) {
      const auto column = static_cast<std::size_t>(j);
      const double d_out = static_cast<double>(s.scale) *
                           o.d_out[static_cast<std::size_t>(row * s.out_width() + head * s.value_dim + j)];
      double d_u = 0;
      for (std::size_t i = 0; i < d_q.size(); ++i) {
        const std::size_t e = at(static_cast<std::int64_t>(i), j);
        d_q[i] += step.state[e] * d_out;
        d_state[e] += step.q[i] * d_out;
        d_u += d_state[e] * step.k[i];
        d_k[i] += d_state[e] * step.u[column];
      }
      const double d_error = o.beta[beta_at] * d_u;
      r.d_beta[beta_at] += d_u * step.error[column];
      r.d_qkv[v_at(row, head) + column] += d_error;
      for (std::size_t i = 0; i < d_k.size(); ++i) {
        const std::size_t e = at(static_cast<std::int64_t>(i), j);
        d_k[i] -= d_error * step.faded[e];
        d_state[e] -= d_error * step.k[i];
        const std::size_t g = gate(row, head, static_cast<std::int64_t>(i));
        r.d_g[g] += d_state[e] * step.faded[e];
        d_state[e] *= std::exp(o.g[g]);
      }
    }
    add_vector(q_at(row, head), step.q, d_q);
    add_vector(q_at(row, head) + static_cast<std::size_t>(s.k_column()), step.k, d_k);
  }
  void add_vector(std::size_t to, const Values& x, const Values& d) {
    const double along = s.normalise ? dot(x, d) : 0;
    for (std::size_t i = 0; i < x.size(); ++i) r.d_qkv[to + i] += factor(to) * (d[i] - along * x[i]);
  }

  const DeltaCase& c;
  DeltaRuleShape s;
  const DeltaOperands& o;
  DeltaResults& r;
};

inline DeltaResults delta_reference(const DeltaCase& c, const DeltaOperands& o) {
  DeltaResults r{Values(o.d_out.size()), Values(o.qkv.size()), Values(o.g.size()), Values(o.beta.size())};
  DeltaReference reference(c, o, r);
  for (std::int64_t sequence = 0; sequence < c.batch; ++sequence) {
    for (std::int64_t head = 0; head < c.value_heads; ++head) reference.run(sequence, head);
  }
  return r;
}

// Returns the reference results of a case, computed once for all devices.
inline const DeltaResults& delta_expected(const DeltaCase& c) {
  static std::map<std::string, DeltaResults> known;
  const auto [at, added] = known.try_emplace(::testing::PrintToString(c));
  if (added) at->second = delta_reference(c, DeltaOperands(c));
  return at->second;
}

}  // namespace primus::turbo::test
