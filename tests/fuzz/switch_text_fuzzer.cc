// Configurations of switches and hosts in each of their languages: whatever a file holds, the linter reads it or says
// why not, and says the same twice.
#include "input.h"
#include "switch-config/findings/findings.h"
#include "switch-config/lint/languages.h"
#include "switch-config/lint/rules.h"

namespace {

using namespace tensorlane;

// What is found in a text, as JSON; the error, where there is one.
std::string lint_as(lint::Language language, const std::string& text) {
  findings::Report report;
  auto device = lint::parse_configuration(language, text, "config.txt", "switch", report);
  if (!device.ok()) {
    fuzz::expect_explained(device.status());
    return device.status().to_string();
  }
  lint::check_device(*device, report);
  std::vector<lint::Device> devices;
  devices.push_back(std::move(*device));
  lint::check_fabric(devices, report);
  findings::sort(report);
  for (const auto& finding : report.findings) TL_ASSERT(!findings::rule_text(finding.rule).empty());
  return findings::to_json(report);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto recognised = lint::recognise(text);
  for (const lint::Language language : lint::kLanguages) {
    const std::string found = lint_as(language, text);
    if (language == recognised) TL_ASSERT(lint_as(language, text) == found);
  }
  return 0;
}
