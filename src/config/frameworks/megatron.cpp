// Megatron-LM: its settings are our keys, so it needs no translator.
#include "config/framework.h"

namespace primus::config {

extern const FrameworkEntry kMegatron{
    .name = "megatron", .title = "Megatron-LM", .place = 1, .keys = Framework::kMegatron};

}  // namespace primus::config
