// Dynamic fine-tuning (DFT, arXiv:2508.05629): supervised fine-tuning in which the loss -ln p(label) of each
// token is multiplied by p(label), a constant for the gradient. Tokens that the model finds improbable count
// less than in ordinary fine-tuning.
#pragma once

#include "lm/train/step/loss_rule.h"

namespace primus {

MakeLossRule dft_rule();

}  // namespace primus
