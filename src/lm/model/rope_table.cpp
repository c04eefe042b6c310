#include "lm/model/rope_table.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace primus {
namespace {

using std::numbers::pi;

// Returns a frequency scaled as in Llama 3.1: long wavelengths are stretched by the factor, short wavelengths
// are kept, and wavelengths in between are interpolated. If both limits are equal, no wavelength is in
// between (Llama 4 Scout).
double llama3_frequency(double frequency, const RopeScaling& s) {
  const double original = static_cast<double>(s.original_max_positions);
  const double wavelength = 2 * pi / frequency;
  if (wavelength < original / s.high_freq_factor) return frequency;
  if (wavelength >= original / s.low_freq_factor) return frequency / s.factor;
  const double smooth =
      (original / wavelength - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
  return (1 - smooth) * frequency / s.factor + smooth * frequency;
}

// Returns a frequency scaled as in YaRN (Peng et al. 2023): like Llama 3.1, but the interpolation is a linear
// ramp over dimensions, between two rotation counts.
double yarn_frequency(double frequency, double dimension, const ModelConfig& c) {
  const RopeScaling& s = c.rope_scaling;
  const double dim = static_cast<double>(c.rotary_columns());
  auto dimension_of = [&](double rotations) {
    return dim * std::log(static_cast<double>(s.original_max_positions) / (rotations * 2 * pi)) /
           (2 * std::log(c.rope_theta));
  };
  double low = dimension_of(s.beta_fast), high = dimension_of(s.beta_slow);
  if (s.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1);
  if (low == high) high += 0.001;  // avoids division by zero, as transformers does
  const double ramp = std::clamp((dimension - low) / (high - low), 0.0, 1.0);
  return frequency / s.factor * ramp + frequency * (1 - ramp);
}

double yarn_temperature(const RopeScaling& s, double m) {
  return s.factor <= 1 ? 1.0 : 0.1 * m * std::log(s.factor) + 1.0;
}

double yarn_attention_factor(const RopeScaling& s) {
  if (s.attention_factor) return *s.attention_factor;
  if (s.mscale && s.mscale_all_dim && *s.mscale != 0 && *s.mscale_all_dim != 0) {
    return yarn_temperature(s, *s.mscale) / yarn_temperature(s, *s.mscale_all_dim);
  }
  return yarn_temperature(s, 1);
}

// Returns the attention factor of LongRoPE (Phi-3; Ding et al. 2024), computed from the scaling factor.
double longrope_attention_factor(const RopeScaling& s) {
  if (s.attention_factor) return *s.attention_factor;
  if (s.factor <= 1) return 1;
  return std::sqrt(1 + std::log(s.factor) / std::log(static_cast<double>(s.original_max_positions)));
}

// Returns the factor that multiplies cosines and sines.
double amplitude_of(const RopeScaling& s) {
  switch (s.kind) {
    case RopeScaling::Kind::kYarn:
      return yarn_attention_factor(s);
    case RopeScaling::Kind::kLongrope:
      return longrope_attention_factor(s);
    case RopeScaling::Kind::kNone:
    case RopeScaling::Kind::kLinear:
    case RopeScaling::Kind::kLlama3:
      break;
  }
  return 1;
}

}  // namespace

double yarn_score_scale(const RopeScaling& s) {
  if (s.kind != RopeScaling::Kind::kYarn || !s.mscale_all_dim || *s.mscale_all_dim == 0) return 1;
  const double temperature = yarn_temperature(s, *s.mscale_all_dim);
  return temperature * temperature;
}

std::vector<float> make_rope_table(const ModelConfig& c, std::int64_t positions) {
  const std::int64_t half = c.rotary_dim() / 2, columns = c.rotary_columns();
  const bool is_long = positions > c.rope_scaling.original_max_positions;
  const std::vector<double>& divisors = is_long ? c.rope_scaling.long_factor : c.rope_scaling.short_factor;
  std::vector<double> frequencies(half);
  for (std::int64_t i = 0; i < half; ++i) {
    double f = std::pow(c.rope_theta, -static_cast<double>(2 * i) / static_cast<double>(columns));
    switch (c.rope_scaling.kind) {
      case RopeScaling::Kind::kNone:
        break;
      case RopeScaling::Kind::kLinear:
        f /= c.rope_scaling.factor;
        break;
      case RopeScaling::Kind::kLlama3:
        f = llama3_frequency(f, c.rope_scaling);
        break;
      case RopeScaling::Kind::kYarn:
        f = yarn_frequency(f, static_cast<double>(i), c);
        break;
      case RopeScaling::Kind::kLongrope:
        f /= divisors[static_cast<std::size_t>(i)];
        break;
    }
    frequencies[i] = f;
  }
  const double amplitude = amplitude_of(c.rope_scaling);
  std::vector<float> table(positions * 2 * half);
  for (std::int64_t p = 0; p < positions; ++p) {
    float* row = &table[p * 2 * half];
    for (std::int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(p) * frequencies[i];
      row[i] = static_cast<float>(amplitude * std::cos(angle));
      row[half + i] = static_cast<float>(amplitude * std::sin(angle));
    }
  }
  return table;
}

}  // namespace primus
