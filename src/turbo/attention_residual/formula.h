// The mixture of residual candidates and its gradient, shared by the kernels of all devices.
#pragma once

#include <cstdint>

#include "turbo/attention_residual/attention_residual.h"
#include "turbo/formula.h"
#include "turbo/rms_norm/formula.h"

namespace primus::turbo::PRIMUS_KERNELS {

// The mixture of one token's candidates.
struct ResidualMixture {
  float share[ResidualCandidates::kMax];  // softmax of the scores
  float score[ResidualCandidates::kMax];
  float scale[ResidualCandidates::kMax];  // 1 / root mean square of a candidate

  // `dot` is the product of the candidate and norm * proj.
  PRIMUS_FORMULA void set_score(std::int64_t j, float squares, float dot, std::int64_t hidden, float eps) {
    scale[j] = inverse_rms(squares, hidden, eps);
    score[j] = dot * scale[j];
  }
  // Computes the shares: the softmax of the scores.
  PRIMUS_FORMULA void mix(std::int64_t count) {
    float largest = score[0], sum = 0;
    for (std::int64_t j = 1; j < count; ++j) largest = largest < score[j] ? score[j] : largest;
    for (std::int64_t j = 0; j < count; ++j) sum += share[j] = exp(score[j] - largest);
    for (std::int64_t j = 0; j < count; ++j) share[j] /= sum;
  }
};

// The gradient of candidate j:
//
//     d v_j = share_j d_out + d_score_j scale_j (w - score_j scale_j / hidden · v_j),   w = norm * proj
//
// `along` = v_j · d_out; `mean` = Σ_i share_i v_i · d_out.
struct CandidateGradient {
  float share, of_w, of_v;

  PRIMUS_FORMULA CandidateGradient(const ResidualMixture& m, std::int64_t j, float along, float mean,
                                   std::int64_t hidden)
      : share(m.share[j]) {
    const float d_score = share * (along - mean);
    of_w = d_score * m.scale[j];
    of_v = d_score * m.score[j] * m.scale[j] * m.scale[j] / static_cast<float>(hidden);
  }
  // Returns an element's gradient; v: the candidate's element.
  PRIMUS_FORMULA float operator()(float d_out, float norm, float proj, float v) const {
    return share * d_out + of_w * (norm * proj) - of_v * v;
  }
};

}  // namespace primus::turbo::PRIMUS_KERNELS
