// Configurations of switches and hosts in the languages of their vendors, as the linter sees them.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "switch-config/findings/findings.h"
#include "switch-config/lint/observed.h"

namespace tensorlane::lint {

enum class Language { kSonic, kEos, kNxos, kJunos, kCumulus, kMlnxQos, kDcb };
inline constexpr std::array kLanguages{Language::kSonic,   Language::kEos,     Language::kNxos, Language::kJunos,
                                       Language::kCumulus, Language::kMlnxQos, Language::kDcb};

// "sonic", "eos", "nxos", "junos", "cumulus", "mlnx_qos", "dcb".
const char* language_name(Language language);
// InvalidArgument that names the known ones.
Result<Language> parse_language(std::string_view name);

// Whether it speaks of a NIC.
constexpr bool is_of_hosts(Language language) {
  return language == Language::kMlnxQos || language == Language::kDcb;
}

// By what only one of them says; unset for a text that none would, such as a fabric file.
std::optional<Language> recognise(std::string_view text);

// Reads the QoS of one device, which is called as the text says, else `name`. What the device would not take, or not as
// it was meant, goes to `report` right away, and so do lines about QoS that are not understood; all others are
// ignored. InvalidArgument, where = "PATH" or "PATH:LINE", for what is no text in that language.
Result<Device> parse_configuration(Language language, std::string_view text, const std::string& path,
                                   const std::string& name, findings::Report& report);

// One for each language, as parse_configuration().
Result<Device> parse_eos(std::string_view text, const std::string& path, const std::string& name,
                         findings::Report& report);
Result<Device> parse_nxos(std::string_view text, const std::string& path, const std::string& name,
                          findings::Report& report);
// `set` commands or braces.
Result<Device> parse_junos(std::string_view text, const std::string& path, const std::string& name,
                           findings::Report& report);
// `nv set` commands, the document of `nv config show`, or qos_features.conf.
Result<Device> parse_cumulus(std::string_view text, const std::string& path, const std::string& name,
                             findings::Report& report);
// What `dcb ... show` printed, as text or JSON, one object after the other; and lines "/sys/...:VALUE" of its QoS
// files.
Result<Device> parse_dcb(std::string_view text, const std::string& path, const std::string& name,
                         findings::Report& report);

}  // namespace tensorlane::lint
