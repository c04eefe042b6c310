// Compiles fmt's library part once. Debian provides this part only as a shared library. The program must
// contain the library part, because users may copy the program to other machines. fmt's header-only mode
// would add seconds to the compile time of every source file.
#include <fmt/format-inl.h>

FMT_BEGIN_NAMESPACE
namespace detail {

// The definitions of functions that fmt's headers only declare. Shortest decimal digits of floating-point
// numbers:
template FMT_API auto dragonbox::to_decimal(float x) noexcept -> dragonbox::decimal_fp<float>;
template FMT_API auto dragonbox::to_decimal(double x) noexcept -> dragonbox::decimal_fp<double>;

// Locale punctuation:
template FMT_API locale_ref::locale_ref(const std::locale& locale);
template FMT_API auto locale_ref::get<std::locale>() const -> std::locale;
template FMT_API auto thousands_sep_impl(locale_ref locale) -> thousands_sep_result<char>;
template FMT_API auto decimal_point_impl(locale_ref locale) -> char;

// Formatting into a buffer of char:
template FMT_API void buffer<char>::append(const char* begin, const char* end);
template FMT_API void vformat_to(buffer<char>& buffer, string_view format,
                                 basic_format_args<FMT_BUFFER_CONTEXT(char)> arguments, locale_ref locale);

}  // namespace detail
FMT_END_NAMESPACE
