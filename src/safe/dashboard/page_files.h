// The files of the dashboard's page, embedded from this folder.
#pragma once

#include <string_view>

namespace primus::dashboard {

extern const std::string_view k_dashboard_html, k_dashboard_css, k_dashboard_js, k_timeline_js;

}  // namespace primus::dashboard
