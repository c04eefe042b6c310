// The report as one HTML page (base/text/html_page.h).
#include <fmt/format.h>

#include <map>

#include "base/text/html_page.h"
#include "safe/preflight/report.h"

namespace primus::preflight {
namespace {

std::string charts(const Report& report) {
  // Draws one chart per kind of measurement. Measurements are of one kind if their names differ only in the
  // size.
  std::map<std::string, std::vector<ChartBar>> groups;
  for (const NodeReport& node : report.nodes) {
    for (const Measurement& m : node.measurements) {
      const std::string kind = m.name.substr(0, m.name.find(", "));
      std::string label = m.name == kind ? "" : m.name.substr(kind.size() + 2) + " ";
      label += report.nodes.size() > 1 ? fmt::format("{} rank {}", node.host, node.rank) : m.where;
      groups[fmt::format("{} ({})", kind, m.unit)].push_back(
          {label, fmt::format("{:.4g}", m.value), m.value, m.wanted});
    }
  }
  std::string text;
  for (const auto& [title, bars] : groups) text += bar_chart(title, bars);
  return text;
}

}  // namespace

std::string to_html(const Report& report, bool plots) {
  std::string page =
      fmt::format("<p>{}, primus {}</p>\n", html_escaped(report.generated), html_escaped(report.version));
  const Tally tally = tally_of(report);
  const Verdict verdict = report.verdict();
  page +=
      fmt::format("<p class=\"verdict {}\">{}: {} failures, {} warnings, {} passed, {} skipped, in {}</p>\n",
                  name_of(verdict), verdict == Verdict::kFail ? "Not ready" : "Ready", tally.failed,
                  tally.warned, tally.passed, tally.skipped, human_duration(report.seconds));
  for (const std::string& note : report.notes) page += fmt::format("<p>Note: {}</p>\n", html_escaped(note));
  page += "<h2>Nodes</h2><table><tr><th>rank<th>node<th>verdict<th>time</tr>\n";
  for (const NodeReport& node : report.nodes) {
    const Verdict of_node = verdict_of(node.findings);
    page += fmt::format("<tr><td>{}<td>{}<td class=\"verdict {}\">{}<td>{}</tr>\n", node.rank,
                        html_escaped(node.host), name_of(of_node), name_of(of_node),
                        human_duration(node.seconds));
  }
  page += "</table>\n";

  const auto rows = [&](bool trouble) {
    std::string text;
    const auto row = [&](const std::string& host, const Finding& f) {
      if ((f.verdict >= Verdict::kWarn) != trouble) return;
      text += fmt::format("<tr><td class=\"verdict {0}\">{0}<td>{1}<td>{2}<td>{3}", name_of(f.verdict),
                          html_escaped(host), html_escaped(f.check), html_escaped(f.where));
      text += fmt::format("<td>{}<td>{}{}<td>{}</tr>\n", html_escaped(f.measured), html_escaped(f.wanted),
                          f.source.empty() ? "" : "<br><small>" + html_escaped(f.source) + "</small>",
                          html_escaped(f.fix));
    };
    for (const NodeReport& node : report.nodes)
      for (const Finding& f : node.findings) row(node.host, f);
    for (const Finding& f : report.cluster) row("all", f);
    return text;
  };
  constexpr const char* kHead =
      "<tr><th>verdict<th>node<th>check<th>where<th>found<th>wanted<th>to do</tr>\n";
  const std::string trouble = rows(true);
  if (!trouble.empty()) page += fmt::format("<h2>Findings</h2><table>{}{}</table>\n", kHead, trouble);
  if (plots) {
    const std::string drawn = charts(report);
    if (!drawn.empty()) page += "<h2>Measurements</h2>\n" + drawn;
  }
  std::string measured;
  for (const NodeReport& node : report.nodes) {
    for (const Measurement& m : node.measurements)
      measured +=
          fmt::format("<tr><td>{}<td>{}<td>{}<td>{}<td>{:.4g} {}<td>{}</tr>\n", html_escaped(node.host),
                      node.rank, html_escaped(m.name), html_escaped(m.where), m.value, html_escaped(m.unit),
                      m.wanted > 0 ? fmt::format("{:.4g}", m.wanted) : "");
  }
  if (!measured.empty())
    page +=
        "<details open><summary>All "
        "measurements</summary><table><tr><th>node<th>rank<th>what<th>where<th>measured<th>at least</tr>\n" +
        measured + "</table></details>\n";
  page += fmt::format(
      "<details><summary>Checks that passed or were skipped</summary><table>{}{}</table></details>\n", kHead,
      rows(false));
  page += "<details><summary>Inventory</summary><table><tr><th>node<th>section<th>what<th>value</tr>\n";
  for (const NodeReport& node : report.nodes)
    for (const Fact& fact : node.facts)
      page += fmt::format("<tr><td>{}<td>{}<td>{}<td>{}</tr>\n", html_escaped(node.host),
                          html_escaped(fact.category), html_escaped(fact.name), html_escaped(fact.value));
  return html_page(report.title, "primus preflight", page + "</table></details>\n");
}

}  // namespace primus::preflight
