// A library whose only function reports the version cuDNN 9.12.
#include <cstddef>

extern "C" std::size_t cudnnGetVersion() { return 91200; }
