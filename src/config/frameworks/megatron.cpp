// Megatron-LM needs no translator, because Megatron-LM's settings are our keys.
#include "config/framework.h"

namespace primus::config {

extern const FrameworkEntry kMegatron{
    .name = "megatron", .title = "Megatron-LM", .place = 1, .keys = Framework::kMegatron};

}  // namespace primus::config
