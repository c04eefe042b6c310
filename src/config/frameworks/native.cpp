#include "config/framework.h"

namespace primus::config {

extern const FrameworkEntry kNative{
    .name = "native", .title = "Primus's own engine", .place = 0, .keys = Framework::kNative};

}  // namespace primus::config
