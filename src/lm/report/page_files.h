// The files of the report page (page.html, page.css, page.js), embedded from this folder.
#pragma once

#include <string_view>

namespace primus {

extern const std::string_view k_page_html, k_page_css, k_page_js;

}  // namespace primus
