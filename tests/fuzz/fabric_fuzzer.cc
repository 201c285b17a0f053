// fabric.yaml and the units in it: a file that is accepted is written and read back to the same fabric.
#include "common/fabric/fabric.h"
#include "input.h"

namespace tensorlane::fuzz {
namespace {

void check_file(const std::string& text, fabric::Keys keys) {
  const Result<fabric::Fabric> fabric = fabric::parse(text, "fabric.yaml", keys);
  if (!fabric.ok()) {
    expect_explained(fabric.status());
    TL_ASSERT(fabric.status().where().starts_with("fabric.yaml:") && !fabric.status().fix().empty());
    return;
  }
  const std::string written = fabric::to_yaml(*fabric);
  const Result<fabric::Fabric> back = fabric::parse(written, "fabric.yaml", keys);
  TL_ASSERT(back.ok() && fabric::to_yaml(*back) == written);
  const fabric::ClassTable& classes = fabric->classes;
  TL_ASSERT(classes.data.size() >= fabric::kMinFileClasses && classes.data.size() <= fabric::kMaxFileClasses);
  TL_ASSERT(classes.thresholds.size() + 1 == classes.data.size());
  std::size_t some = 0;  // a pattern may stand for thousands
  for (const fabric::Host& host : fabric->hosts) {
    if (++some > 16) break;
    TL_ASSERT(fabric->find_host(host.name) == &host);
    for (const fabric::TrafficClass& cls : classes.data)
      TL_ASSERT(fabric::window(cls, fabric->link_speed(host)).value > 0);
  }
}

void check_units(const std::string& text) {
  if (const auto rate = fabric::parse_rate(text); rate.ok()) {
    const auto back = fabric::parse_rate(fabric::format_rate(*rate));
    TL_ASSERT(rate->value > 0 && back.ok() && *back == *rate);
  }
  if (const auto bytes = fabric::parse_bytes(text); bytes.ok()) {
    const auto back = fabric::parse_bytes(fabric::format_bytes(*bytes));
    TL_ASSERT(bytes->value > 0 && back.ok() && *back == *bytes);
  }
  if (const auto duration = fabric::parse_duration(text); duration.ok()) TL_ASSERT(duration->value >= 0);
}

}  // namespace
}  // namespace tensorlane::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tensorlane;
  const std::string text(reinterpret_cast<const char*>(data), size);
  fuzz::check_file(text, fabric::Keys::kRequired);
  fuzz::check_file(text, fabric::Keys::kOptional);
  fuzz::check_units(text);
  return 0;
}
