#include "config/framework.h"

namespace primus::config {

extern const FrameworkEntry kNative{
    .name = "native", .title = "the native engine", .place = 0, .keys = Framework::kNative};

}  // namespace primus::config
