// The RDMA device and port that a transport uses: found, checked and explained.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>
#include <string>

#include "common/base/status.h"
#include "common/base/units.h"
#include "daemon/transport/rdma/connect_by.h"
#include "daemon/transport/rdma/gid.h"

namespace tensorlane::rdma {

struct DeviceChoice {
  std::string device;  // "mlx5_0"; empty: the one whose port has the address
  std::uint8_t port = 1;
  int gid_index = -1;   // negative: by the address
  std::string address;  // this host's rdma address in fabric.yaml
};

class Device {
 public:
  // Errors: kNotFound (no device, no such device, no GID), kUnavailable (the port is down), kInvalidArgument (a port or
  // GID that does not exist), kPermissionDenied (/dev/infiniband), kMismatch (a device-wide traffic class, which would
  // put all classes into one). Where there are several, none is named and none can be used: kNotFound, with the reason
  // of each.
  static Result<std::unique_ptr<Device>> open(const DeviceChoice& choice);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  ibv_context* context() const { return context_; }
  std::uint8_t port() const { return port_; }
  const GidEntry& gid() const { return gid_; }
  ibv_mtu mtu() const { return mtu_; }
  const ibv_device_attr& limits() const { return limits_; }
  // "rxe0 port 1"
  const std::string& name() const { return name_; }
  // "rxe0/1", as the rdma command calls it.
  std::string link() const;
  // No PCI device stands behind it: it puts no PCP into frames by itself, whatever the service level.
  bool software() const { return software_; }
  // Everything that was chosen, for status: "rxe0 port 1, GID 1 = 10.77.0.1 (eth0), path MTU 4096".
  std::string describe() const;
  // What marks the packets of queue pairs that are connected so: "connected by verbs: DSCP by traffic class, PCP by
  // service level".
  std::string marks(ConnectBy by) const;

 private:
  Device() = default;
  Status open_context(ibv_device* device);
  Status choose(const DeviceChoice& choice);

  ibv_context* context_ = nullptr;
  std::uint8_t port_ = 1;
  GidEntry gid_;
  ibv_mtu mtu_ = IBV_MTU_1024;
  ibv_device_attr limits_{};
  std::string name_;
  bool software_ = false;
};

// 256, 512...
std::uint32_t mtu_bytes(ibv_mtu mtu);

// Whether a driver forces one traffic class on the whole device: `text` is the content of
// /sys/class/infiniband/DEVICE/tc/PORT/traffic_class, which is 0 or empty, or names a "Global tclass", when nothing is
// forced. Errors: kMismatch.
Status check_traffic_class(const std::string& text, const std::string& path, const std::string& where);

// How long a queue pair sends again what nobody acknowledges, before it is lost: count + 1 times 4.096 us * 2^timeout,
// at least; devices may take up to four times as long.
struct Retries {
  std::uint8_t timeout = 18, count = 7;
  bool operator==(const Retries&) const = default;
};
// More than the detection time and half as much: liveness is decided by heartbeats, and strict priority may starve a
// class meanwhile (law 10). With a time-out of 18 (1.07 s) at least: shorter ones retransmit what only waits in a
// queue.
Retries retries_beyond(Duration detection);
// At least so long, and not much longer, for flows that are resumed. Soft-RoCE takes a count of 7 for "without end".
Retries retries_for(Duration time);

// The error that says that no way leads to a peer. Returns kUnavailable.
Status unreachable(const GidBytes& peer, const std::string& why, const Device& device);
// The error that says that nobody has answered so far for a peer's address. Returns kInProgress.
Status unresolved(const GidBytes& peer, const Device& device);

// The error that explains why memory could not be registered (`error` is an errno): names the limit of locked memory,
// its value and what is needed.
Status registration_failed(int error, std::uint64_t bytes, const std::string& where);
// The same for device memory behind a dmabuf. Returns kUnavailable (the card, its driver or the kernel cannot do it),
// kInvalidArgument (the descriptor, or what it is to hold), or registration_failed()'s.
Status dmabuf_failed(int error, std::uint64_t bytes, const std::string& where);

}  // namespace tensorlane::rdma
