#include "common/probe/host.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>

namespace tensorlane::probe {
namespace {

// "Global tclass=106" or a bare number, as drivers write it.
int last_number(const std::string& text) {
  std::size_t end = text.size();
  while (end > 0 && std::isdigit(static_cast<unsigned char>(text[end - 1])) == 0) --end;
  std::size_t begin = end;
  while (begin > 0 && std::isdigit(static_cast<unsigned char>(text[begin - 1])) != 0) --begin;
  return begin == end || end - begin > 4 ? -1 : std::atoi(text.substr(begin, end - begin).c_str());
}

}  // namespace

std::vector<OwnAddress> own_addresses() {
  std::vector<OwnAddress> own;
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return own;
  for (const ifaddrs* at = all; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr || (at->ifa_flags & IFF_LOOPBACK) != 0 || (at->ifa_flags & IFF_UP) == 0) continue;
    char text[INET6_ADDRSTRLEN] = {};
    if (at->ifa_addr->sa_family == AF_INET) {
      ::inet_ntop(AF_INET, &reinterpret_cast<sockaddr_in*>(at->ifa_addr)->sin_addr, text, sizeof text);
      own.push_back({at->ifa_name, text, false});
    } else if (at->ifa_addr->sa_family == AF_INET6) {
      const in6_addr& address = reinterpret_cast<sockaddr_in6*>(at->ifa_addr)->sin6_addr;
      if (IN6_IS_ADDR_LINKLOCAL(&address)) continue;
      ::inet_ntop(AF_INET6, &address, text, sizeof text);
      own.push_back({at->ifa_name, text, true});
    }
  }
  ::freeifaddrs(all);
  return own;
}

std::vector<Override> overrides(const std::string& root) {
  namespace fs = std::filesystem;
  std::vector<Override> found;
  std::error_code ignored;
  for (const auto& device : fs::directory_iterator(root + "/sys/class/infiniband", ignored)) {
    for (const auto& port : fs::directory_iterator(device.path() / "tc", ignored)) {
      std::ifstream file(port.path() / "traffic_class");
      const std::string text{std::istreambuf_iterator<char>(file), {}};
      const int traffic_class = last_number(text);
      if (traffic_class > 0 && traffic_class < 256)
        found.push_back({(port.path() / "traffic_class").string(), traffic_class >> 2});
    }
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.where < b.where; });
  return found;
}

std::map<std::string, std::string> marking_environment() {
  std::map<std::string, std::string> set;
  for (const char* name : {"NCCL_IB_TC", "NCCL_IB_SL", "NCCL_IB_FIFO_TC", "UCX_IB_TRAFFIC_CLASS", "UCX_IB_SL"})
    if (const char* value = std::getenv(name); value != nullptr) set[name] = value;
  return set;
}

}  // namespace tensorlane::probe
