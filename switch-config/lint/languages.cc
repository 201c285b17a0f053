#include "switch-config/lint/languages.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "switch-config/lint/cumulus_settings.h"
#include "switch-config/lint/mlnx_qos.h"
#include "switch-config/lint/sonic.h"
#include "switch-config/lint/text.h"

namespace tensorlane::lint {
namespace {

struct Entry {
  Language language;
  const char* name;
  Result<Device> (*parse)(std::string_view, const std::string&, const std::string&, findings::Report&);
};

constexpr Entry kEntries[] = {
    {Language::kSonic, "sonic", parse_sonic},
    {Language::kEos, "eos", parse_eos},
    {Language::kNxos, "nxos", parse_nxos},
    {Language::kJunos, "junos", parse_junos},
    {Language::kCumulus, "cumulus", parse_cumulus},
    {Language::kMlnxQos, "mlnx_qos", parse_mlnx_qos},
    {Language::kDcb, "dcb", parse_dcb},
};

const Entry& entry(Language language) {
  return *std::find_if(std::begin(kEntries), std::end(kEntries),
                       [&](const Entry& e) { return e.language == language; });
}

// How much a line speaks for a language, by its first words.
struct Sign {
  std::string_view words;
  Language language;
};

constexpr Sign kSigns[] = {
    {"nv set", Language::kCumulus},
    {"set class-of-service", Language::kJunos},
    {"set interfaces", Language::kJunos},
    {"set system", Language::kJunos},
    {"set version", Language::kJunos},
    {"class-of-service {", Language::kJunos},
    {"system {", Language::kJunos},
    {"interfaces {", Language::kJunos},
    {"forwarding-classes {", Language::kJunos},
    {"classifiers {", Language::kJunos},
    {"scheduler-maps {", Language::kJunos},
    {"congestion-notification-profile {", Language::kJunos},
    {"qos map", Language::kEos},
    {"qos profile", Language::kEos},
    {"service-profile", Language::kEos},
    {"priority-flow-control on", Language::kEos},
    {"priority-flow-control priority", Language::kEos},
    {"priority-flow-control pause", Language::kEos},
    {"tx-queue", Language::kEos},
    {"uc-tx-queue", Language::kEos},
    {"class-map type", Language::kNxos},
    {"policy-map type", Language::kNxos},
    {"system qos", Language::kNxos},
    {"service-policy type", Language::kNxos},
    {"priority-flow-control mode", Language::kNxos},
    {"priority-flow-control watch-dog-interval", Language::kNxos},
    {"feature", Language::kNxos},
    {"tc-tsa", Language::kDcb},
    {"tc-bw", Language::kDcb},
    {"prio-tc", Language::kDcb},
    {"prio-pfc", Language::kDcb},
    {"dscp-prio", Language::kDcb},
    {"pfc-cap", Language::kDcb},
    {"willing", Language::kDcb},
    {"prio-buffer", Language::kDcb},
};

// Keys of qos_features.conf.
constexpr std::string_view kFlat[] = {"traffic.", "pfc.",          "default_ecn_red_conf.", "default_egress_sched.",
                                      "ecn_red.", "egress_sched.", "pfc_watchdog.",         "source.",
                                      "shaping."};
// What `dcb -j` and nothing else says.
constexpr std::string_view kDcbKeys[] = {"\"prio_pfc\"", "\"tc_tsa\"", "\"dscp_prio\"", "\"prio_buffer\"",
                                         "\"pfc_cap\""};

}  // namespace

const char* language_name(Language language) {
  return entry(language).name;
}

Result<Language> parse_language(std::string_view name) {
  std::string known;
  for (const Entry& e : kEntries) {
    if (name == e.name) return e.language;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", e.name);
  }
  return Status(Code::kInvalidArgument, fmt::format("unknown kind '{}'", name), "--kind", "expected one of " + known);
}

std::optional<Language> recognise(std::string_view text) {
  if (is_mlnx_qos(text)) return Language::kMlnxQos;
  if (cumulus::is_document(text)) return Language::kCumulus;
  const std::size_t first = text.find_first_not_of(" \t\r\n\xef\xbb\xbf");
  if (first == std::string_view::npos) return std::nullopt;
  if (text[first] == '{' || text[first] == '[') {
    const bool dcb = std::any_of(std::begin(kDcbKeys), std::end(kDcbKeys),
                                 [&](auto key) { return text.find(key) != std::string_view::npos; });
    return dcb ? Language::kDcb : Language::kSonic;
  }
  // The language that most lines speak for. Only so many are looked at: devices write QoS first, and ports last.
  constexpr std::size_t kLooked = 100'000;
  std::array<std::size_t, kLanguages.size()> votes{};
  for (std::size_t looked = 0; !text.empty() && looked < kLooked; ++looked) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = trimmed(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty()) continue;
    for (const Sign& sign : kSigns)
      if (line.starts_with(sign.words) && (line.size() == sign.words.size() || line[sign.words.size()] == ' '))
        ++votes[static_cast<std::size_t>(sign.language)];
    if (line.find('=') == std::string_view::npos) continue;
    for (const std::string_view key : kFlat)
      if (line.starts_with(key)) ++votes[static_cast<std::size_t>(Language::kCumulus)];
  }
  const auto most = std::max_element(votes.begin(), votes.end());
  if (*most == 0) return std::nullopt;
  return static_cast<Language>(most - votes.begin());
}

Result<Device> parse_configuration(Language language, std::string_view text, const std::string& path,
                                   const std::string& name, findings::Report& report) {
  return entry(language).parse(text, path, name, report);
}

}  // namespace tensorlane::lint
