// The files of the report page, embedded from this folder. 'primus dashboard' uses the style sheet and the
// charts, too.
#pragma once

#include <string_view>

namespace primus {

extern const std::string_view k_page_html, k_page_css, k_charts_js, k_page_js;

}  // namespace primus
