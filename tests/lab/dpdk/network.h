// A network of two interfaces that are one cable (veth), in a network namespace of this test's process.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tensorlane::dpdk::testing {

// Runs a shell command; false where it fails.
bool run(const std::string& command);

// Puts the calling thread into a namespace of its own with the interfaces tla and tlb, once. The reason why it cannot;
// empty: it has. Neither interface has an address, and the kernel leaves them alone.
std::string make_network();

// Instead: the interfaces tlend1, tlend2, ..., each of which is one end of a cable to a bridge.
std::string make_bridge(int ends);

// Gives interface tlb addresses of the kernel's, and takes them away again.
class KernelHost {
 public:
  // In the order of `ip`: "10.9.0.2/24". On a VLAN: an interface of the kernel's in it.
  KernelHost(const std::vector<std::string>& addresses);
  ~KernelHost();
  KernelHost(const KernelHost&) = delete;
  KernelHost& operator=(const KernelHost&) = delete;
};

// A third party: every frame that comes to an interface, as the kernel sees it.
class Capture {
 public:
  explicit Capture(const std::string& interface);
  ~Capture();
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  struct Frame {
    std::vector<std::byte> bytes;      // without the VLAN tag
    std::optional<std::uint16_t> tci;  // of the tag
  };
  // The next frame, or nothing if none comes for 200 ms.
  std::optional<Frame> next();
  // Sends a frame as it is.
  void send(std::span<const std::byte> frame);

 private:
  int socket_ = -1;
};

// A UDP socket of the kernel's, bound to a port.
class KernelSocket {
 public:
  KernelSocket(bool v6, std::uint16_t port);
  ~KernelSocket();
  KernelSocket(const KernelSocket&) = delete;
  KernelSocket& operator=(const KernelSocket&) = delete;

  bool send(const std::string& address, std::uint16_t port, const std::string& payload);
  // Empty if none comes for 10 ms.
  std::string receive();

 private:
  bool v6_;
  int socket_ = -1;
};

// Frames that have come to an interface.
std::uint64_t received_frames(const std::string& interface);

}  // namespace tensorlane::dpdk::testing
