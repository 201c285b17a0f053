// What the network interfaces of this host show of probes: the marks of first packets (SYN) as they leave the kernel,
// behind its queues and filters, and the 802.1Q priority with which they arrive. Needs CAP_NET_RAW.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>

#include "common/probe/exchange.h"
#include "common/probe/socket.h"

namespace tensorlane::probe {

struct Marks {
  std::uint8_t dscp = kUnknown;
  std::uint8_t pcp = kUnknown;  // where the frame has an 802.1Q tag
};

// Any thread.
class Capture {
 public:
  // 0, or errno: EPERM without the capability.
  int open();
  bool is_open() const { return socket_.valid(); }

  // How the last SYN left from `source_port` to this address and port; nothing where none was seen.
  std::optional<Marks> outgoing(const std::string& destination, std::uint16_t port, std::uint16_t source_port);
  // How it arrived from there at `port` of this host.
  std::optional<Marks> incoming(const std::string& source, std::uint16_t source_port, std::uint16_t port);

 private:
  // The other end, the port that listens, the port that connects.
  using Key = std::tuple<std::string, std::uint16_t, std::uint16_t>;
  static constexpr std::size_t kMaxKept = 8192;

  void drain();
  static std::optional<Marks> find(const std::map<Key, Marks>& seen, const Key& key);

  Socket socket_;
  std::mutex mutex_;
  std::map<Key, Marks> out_, in_;
};

}  // namespace tensorlane::probe
