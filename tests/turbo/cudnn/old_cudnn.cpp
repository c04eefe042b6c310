// A library that says to be cuDNN 9.12, and has no more than that to it.
#include <cstddef>

extern "C" std::size_t cudnnGetVersion() { return 91200; }
