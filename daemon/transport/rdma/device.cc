#include "daemon/transport/rdma/device.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <net/if.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include "daemon/transport/handshake/socket.h"

namespace tensorlane::rdma {
namespace {

constexpr std::size_t kMaxGids = 512;

using handshake::errno_text;

std::string read_text(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

std::vector<GidEntry> read_gids(ibv_context* context, std::uint8_t port) {
  std::vector<ibv_gid_entry> raw(kMaxGids);
  const ssize_t count = ibv_query_gid_table(context, raw.data(), raw.size(), 0);
  std::vector<GidEntry> gids;
  for (ssize_t i = 0; i < count; ++i) {
    const ibv_gid_entry& entry = raw[static_cast<std::size_t>(i)];
    if (entry.port_num != port) continue;
    GidEntry gid{entry.gid_index, static_cast<GidType>(entry.gid_type), {}, {}};
    std::copy(std::begin(entry.gid.raw), std::end(entry.gid.raw), gid.gid.begin());
    char name[IF_NAMESIZE] = {};
    if (::if_indextoname(entry.ndev_ifindex, name) != nullptr) gid.interface = name;
    gids.push_back(std::move(gid));
  }
  return gids;
}

Status no_device(const std::string& wanted, const std::vector<std::string>& names) {
  std::string all;
  for (const std::string& name : names) all += (all.empty() ? "" : ", ") + name;
  if (names.empty()) {
    return {Code::kNotFound, "this host has no RDMA device", "/sys/class/infiniband",
            "load the driver of the network card (Soft-RoCE: `rdma link add rxe0 type rxe netdev eth0`), or set "
            "`transport: tcp` in daemon.yaml"};
  }
  return {Code::kNotFound, fmt::format("this host has no RDMA device '{}'", wanted), "/sys/class/infiniband",
          fmt::format("set `rdma: device` in daemon.yaml to one of {}", all)};
}

// Nobody said which of several devices is meant, so the reason may be any one's.
Status none_of(const std::vector<Status>& refusals, const std::string& address) {
  if (refusals.size() == 1) return refusals.front();
  std::string each;
  for (const Status& r : refusals) each += fmt::format("{}{}: {}", each.empty() ? "" : "; ", r.where(), r.what());
  return {Code::kNotFound,
          fmt::format("none of {} RDMA devices can be used at this host's rdma address {}", refusals.size(), address),
          each, "bring the one that is meant up, and give its interface that address"};
}

}  // namespace

std::uint32_t mtu_bytes(ibv_mtu mtu) {
  return 128u << static_cast<unsigned>(mtu);
}

Status check_traffic_class(const std::string& text, const std::string& path, const std::string& where) {
  // mlx5 writes "Global tclass=106" where one is forced; other drivers a number.
  const std::size_t digits = text.find_first_of("0123456789");
  if (digits == std::string::npos) return {};
  const long value = std::strtol(text.c_str() + digits, nullptr, 0);
  if (value <= 0) return {};
  return {Code::kMismatch,
          fmt::format("a device-wide traffic class {} (DSCP {}) is set, which puts all classes into one", value,
                      value >> 2),
          where, fmt::format("echo 0 > {}", path)};
}

namespace {

Retries at_least(Duration time, Retries retries) {
  const auto all = [&retries] { return (std::int64_t{4096} << retries.timeout) * (retries.count + 1); };
  while (retries.timeout < 31 && all() < time.value) ++retries.timeout;
  return retries;
}

}  // namespace

Retries retries_beyond(Duration detection) {
  return at_least(Duration(detection.value + detection.value / 2), {18, 7});
}

Retries retries_for(Duration time) {
  return at_least(time, {12, 6});
}

Status unreachable(const GidBytes& peer, const std::string& why, const Device& device) {
  return {Code::kUnavailable, fmt::format("cannot reach {} by RDMA: {}", address_of_gid(peer), why), device.describe(),
          "put the rdma addresses of both hosts into one subnet, or route between them"};
}

Status unresolved(const GidBytes& peer, const Device& device) {
  return {Code::kInProgress,
          fmt::format("cannot reach {} by RDMA: nobody answers for that address", address_of_gid(peer)),
          device.describe(), "look whether its interface and VLAN are up there and here"};
}

Status registration_failed(int error, std::uint64_t bytes, const std::string& where) {
  rlimit limit{};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  const bool limited = limit.rlim_cur != RLIM_INFINITY && (error == ENOMEM || error == EPERM || error == EAGAIN);
  if (!limited) {
    return {Code::kResourceExhausted, fmt::format("cannot register {} bytes for RDMA: {}", bytes, errno_text(error)),
            where, "look at the kernel's log for the device's reason"};
  }
  return {Code::kResourceExhausted,
          fmt::format("cannot register {} bytes for RDMA: the limit of locked memory (RLIMIT_MEMLOCK) is {} bytes",
                      bytes, limit.rlim_cur),
          where,
          "set LimitMEMLOCK=infinity in tensorlaned's unit (or `ulimit -l unlimited`): all arenas, the staging and the "
          "message buffers must fit"};
}

Status dmabuf_failed(int error, std::uint64_t bytes, const std::string& where) {
  const std::string what = fmt::format("cannot register {} bytes of device memory (dmabuf) for RDMA", bytes);
  switch (error) {
    case EOPNOTSUPP:
    case ENOSYS:
    case ENOTTY:
      return {Code::kUnavailable, what + ": the card, its driver or the kernel does not support it", where,
              "use a card whose driver does (mlx5, Linux 5.12 or later), or keep the tensors in host memory"};
    case EBADF:
    case EINVAL:
      return {Code::kInvalidArgument, fmt::format("{}: {}", what, errno_text(error)), where,
              "give a descriptor of a dmabuf, and an offset and length inside it"};
    default:
      return registration_failed(error, bytes, where);
  }
}

Device::~Device() {
  if (context_ != nullptr) ibv_close_device(context_);
}

Result<std::unique_ptr<Device>> Device::open(const DeviceChoice& choice) {
  int count = 0;
  ibv_device** list = ibv_get_device_list(&count);
  std::vector<std::string> names;
  std::vector<Status> refusals;
  std::unique_ptr<Device> chosen;
  for (int i = 0; i < count && !chosen; ++i) {
    names.emplace_back(ibv_get_device_name(list[i]));
    if (!choice.device.empty() && names.back() != choice.device) continue;
    std::unique_ptr<Device> device(new Device);
    Status status = device->open_context(list[i]);
    if (status.ok()) status = device->choose(choice);
    if (status.ok()) chosen = std::move(device);
    if (!status.ok()) refusals.push_back(std::move(status));
  }
  if (list != nullptr) ibv_free_device_list(list);
  if (chosen) return chosen;
  if (!refusals.empty()) return none_of(refusals, choice.address);
  return no_device(choice.device, names);
}

Status Device::open_context(ibv_device* device) {
  name_ = ibv_get_device_name(device);
  context_ = ibv_open_device(device);
  if (context_ == nullptr) {
    const bool denied = errno == EACCES || errno == EPERM;
    return {denied ? Code::kPermissionDenied : Code::kUnavailable, "cannot open the RDMA device: " + errno_text(errno),
            name_, "let the daemon's user open /dev/infiniband/uverbs*"};
  }
  software_ = !std::filesystem::exists(std::string(device->ibdev_path) + "/device");
  ::fcntl(context_->async_fd, F_SETFL, ::fcntl(context_->async_fd, F_GETFL) | O_NONBLOCK);
  if (const int error = ibv_query_device(context_, &limits_); error != 0)
    return {Code::kUnavailable, "cannot ask the RDMA device for its limits: " + errno_text(error), name_};
  return {};
}

Status Device::choose(const DeviceChoice& choice) {
  const std::string device = name_;
  port_ = choice.port;
  name_ = fmt::format("{} port {}", device, port_);
  if (port_ < 1 || port_ > limits_.phys_port_cnt) {
    return {Code::kInvalidArgument, fmt::format("the device has no port {}", port_), device,
            fmt::format("set `rdma: port` to 1 to {}", limits_.phys_port_cnt)};
  }
  ibv_port_attr attributes{};
  if (const int error = ibv_query_port(context_, port_, &attributes); error != 0)
    return {Code::kUnavailable, "cannot ask for the port's state: " + errno_text(error), name_};
  if (attributes.link_layer != IBV_LINK_LAYER_ETHERNET) {
    return {Code::kInvalidArgument, "the port is not Ethernet", name_, "use a port that speaks RoCE v2"};
  }
  if (attributes.state != IBV_PORT_ACTIVE) {
    return {Code::kUnavailable, fmt::format("the port is {}", ibv_port_state_str(attributes.state)), name_,
            "bring its network interface up and look at the cable"};
  }
  mtu_ = attributes.active_mtu;
  TL_ASSIGN_OR_RETURN(gid_, choose_gid(read_gids(context_, port_), choice.address, choice.gid_index, name_));
  const std::string path = fmt::format("/sys/class/infiniband/{}/tc/{}/traffic_class", device, port_);
  return check_traffic_class(read_text(path), path, name_);
}

std::string Device::link() const {
  return fmt::format("{}/{}", ibv_get_device_name(context_->device), port_);
}

std::string Device::describe() const {
  return fmt::format("{}, GID {} = {}{}, path MTU {}", name_, gid_.index, address_of_gid(gid_.gid),
                     gid_.interface.empty() ? "" : " (" + gid_.interface + ")", mtu_bytes(mtu_));
}

std::string Device::marks(ConnectBy by) const {
  const bool verbs = by == ConnectBy::kVerbs;
  const char* priority = software_ ? "only by tc skbedit (software device)"
                         : verbs   ? "by service level"
                                   : "by the kernel's table for the TOS";
  return fmt::format("connected by {}, PCP {}", verbs ? "verbs: DSCP by traffic class" : "rdma_cm: DSCP by TOS",
                     priority);
}

}  // namespace tensorlane::rdma
