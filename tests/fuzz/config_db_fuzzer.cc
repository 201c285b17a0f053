// config_db.json of others, and what mlnx_qos printed: whatever it holds, the linter reads it or says why not, and says
// the same twice.
#include "input.h"
#include "switch-config/findings/findings.h"
#include "switch-config/lint/mlnx_qos.h"
#include "switch-config/lint/rules.h"
#include "switch-config/lint/sonic.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tensorlane;
  const std::string text(reinterpret_cast<const char*>(data), size);
  std::string before;
  for (int i = 0; i < 2; ++i) {
    findings::Report report;
    const auto parse = lint::is_mlnx_qos(text) ? lint::parse_mlnx_qos : lint::parse_sonic;
    auto device = parse(text, "config_db.json", "switch", report);
    if (!device.ok()) {
      fuzz::expect_explained(device.status());
      return 0;
    }
    lint::check_device(*device, report);
    std::vector<lint::Device> devices;
    devices.push_back(std::move(*device));
    lint::check_fabric(devices, report);
    findings::sort(report);
    for (const auto& finding : report.findings) TL_ASSERT(!findings::rule_text(finding.rule).empty());
    const std::string json = findings::to_json(report) + findings::to_sarif(report) + findings::to_text(report);
    TL_ASSERT(i == 0 || json == before);
    before = json;
  }
  return 0;
}
