// The fp8 formats of AMD's gfx942 (MI300X, MI325X), which differ from OCP's formats (fp8_format.h). The next
// generation, gfx950 (MI350X, MI355X), uses OCP's formats.
//
//            bias      largest         infinity   negative zero   NaN
//     e4m3   8 (7)     240 (448)       none       none            0x80
//     e5m2   16 (15)   57344 (57344)   none       none            0x80      (OCP's values in parentheses)
//
// The bias is one more, so a code has half the value that it has in OCP's format, subnormal numbers included.
// So codes of products have OCP's bits on every GPU, and a product of two operands in these formats is
// multiplied by four. Results then have no other values than on GPUs with OCP's formats: the codes above
// OCP's largest number are not used. Only codes that mean something else must be replaced.
//
// All functions are pure.
#pragma once

#include <cstdint>

namespace primus::turbo {

// The value of a code in OCP's format, divided by the value in the format of gfx942.
inline constexpr float kFnuzFactor = 2;

// Returns the code for gfx942 of one byte in OCP's format. `top` is the code of OCP's largest number
// (Fp8::kTop). Codes above it become NaN, and negative zero becomes zero.
constexpr std::uint32_t fnuz_code(std::uint32_t code, std::uint32_t top) {
  constexpr std::uint32_t kNan = 0x80U, kMagnitude = 0x7FU;
  if ((code & kMagnitude) > top) return kNan;
  return code == kNan ? 0 : code;
}

}  // namespace primus::turbo
