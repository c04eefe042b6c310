// A library that claims to be cuDNN 9.12 and has no other function.
#include <cstddef>

extern "C" std::size_t cudnnGetVersion() { return 91200; }
