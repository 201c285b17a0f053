#include "daemon/transport/dpdk/ethdev/device_string.h"

#include <fmt/format.h>

#include <algorithm>

namespace tensorlane::dpdk {
namespace {

constexpr std::size_t kMaxName = 63, kMaxText = 1023;
constexpr std::uint16_t kPlainFrameMtu = 1900;

bool is_pci(std::string_view name) {
  return !name.empty() && name.find(':') != std::string_view::npos &&
         name.find_first_not_of("0123456789abcdefABCDEF:.") == std::string_view::npos;
}

bool is_virtual(std::string_view name) {
  return name.starts_with("net_") &&
         name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") == std::string_view::npos;
}

bool is_plain(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 127; });
}

}  // namespace

bool DeviceString::driver_is(std::string_view driver) const {
  return !pci && std::string_view(name).starts_with(driver) &&
         std::string_view(name).substr(driver.size()).find_first_not_of("0123456789") == std::string_view::npos;
}

std::optional<std::string> DeviceString::argument(std::string_view key) const {
  for (const auto& [name_of, value] : arguments)
    if (name_of == key) return value;
  return std::nullopt;
}

std::string DeviceString::to_string() const {
  std::string text = name;
  for (const auto& [key, value] : arguments) text += value.empty() ? "," + key : "," + key + "=" + value;
  return text;
}

Result<DeviceString> parse_device(std::string_view text) {
  const auto wrong = [&](std::string what) {
    return Status(Code::kInvalidArgument, std::move(what), std::string(text),
                  "name a PCI address, or a virtual device as net_af_packet0,iface=eth0");
  };
  if (text.size() > kMaxText || !is_plain(text)) return wrong("this is no name of a device");
  DeviceString device;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    const std::string_view word = text.substr(at, end - at);
    if (word.empty()) return wrong("there is an empty word in the name of the device");
    const std::size_t equals = word.find('=');
    if (at > 0 && device.argument(word.substr(0, equals)))
      return wrong(fmt::format("the device has two arguments '{}'", word.substr(0, equals)));
    if (at == 0)
      device.name = word;
    else if (equals == 0)
      return wrong("an argument of the device has no name");
    else if (equals == std::string_view::npos)
      device.arguments.emplace_back(word, "");
    else
      device.arguments.emplace_back(word.substr(0, equals), word.substr(equals + 1));
    at = end + 1;
  }
  device.pci = is_pci(device.name);
  // As DPDK and the kernel name a device of the first domain, which people leave out.
  if (device.pci && std::count(device.name.begin(), device.name.end(), ':') == 1) device.name = "0000:" + device.name;
  if (device.name.size() > kMaxName || (!device.pci && !is_virtual(device.name)))
    return wrong("this is neither a PCI address nor a virtual network device");
  return device;
}

void complete_device(DeviceString& device, std::size_t queues, std::uint16_t mtu, std::uint16_t receive_packets) {
  if (!device.driver_is("net_af_packet")) return;
  const auto add = [&](const char* key, std::size_t value) {
    if (!device.argument(key)) device.arguments.emplace_back(key, fmt::format("{}", value));
  };
  add("qpairs", queues);
  if (!device.argument("framesz") && !device.argument("blocksz") && mtu > kPlainFrameMtu) {
    add("blocksz", 20480);  // of whole pages, and of whole frames
    add("framesz", 10240);
  }
  add("framecnt", receive_packets / 2 * 2);
}

}  // namespace tensorlane::dpdk
