#include "daemon/transport/dpdk/ethdev/kernel_link.h"

#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

namespace tensorlane::dpdk {
namespace {

ifreq request_for(const std::string& interface) {
  ifreq request{};
  std::copy_n(interface.begin(), std::min<std::size_t>(interface.size(), IFNAMSIZ - 1), request.ifr_name);
  return request;
}

}  // namespace

KernelLink::KernelLink(std::string interface)
    : interface_(std::move(interface)), socket_(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {}

KernelLink::~KernelLink() {
  if (socket_ >= 0) close(socket_);
}

LinkState KernelLink::look() {
  ifreq request = request_for(interface_);
  const bool up = ioctl(socket_, SIOCGIFFLAGS, &request) == 0 && (request.ifr_flags & IFF_RUNNING) != 0;
  if (up == last_.up) return last_;
  last_ = {.up = up, .speed = BitsPerSecond(0)};
  if (!up) return last_;
  ethtool_cmd settings{};
  settings.cmd = ETHTOOL_GSET;
  request = request_for(interface_);
  request.ifr_data = reinterpret_cast<char*>(&settings);
  if (ioctl(socket_, SIOCETHTOOL, &request) != 0) return last_;
  const std::uint32_t speed = ethtool_cmd_speed(&settings);
  if (speed != static_cast<std::uint32_t>(SPEED_UNKNOWN)) last_.speed = BitsPerSecond(std::uint64_t{speed} * 1'000'000);
  return last_;
}

}  // namespace tensorlane::dpdk
