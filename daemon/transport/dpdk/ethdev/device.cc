#include "daemon/transport/dpdk/ethdev/device.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <net/if.h>
#include <rte_bus.h>
#include <rte_errno.h>
#include <rte_mbuf.h>
#include <spdlog/spdlog.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <set>
#include <string_view>

#include "daemon/transport/dpdk/ethdev/eal.h"
#include "daemon/transport/dpdk/ethdev/log_stream.h"

namespace tensorlane::dpdk {
namespace {

constexpr std::uint32_t kMinDataRoom = 2048;

// Devices that this process has opened. DPDK plugs and configures devices for one thread at a time only.
struct OpenDevices {
  std::mutex mutex;
  std::set<std::string> names;
};
OpenDevices& open_devices() {
  static OpenDevices one;
  return one;
}

Status failed(const std::string& what, const std::string& device, int error) {
  const std::string said = complaints();
  const std::string text = fmt::format("{}: {}", what, said.empty() ? rte_strerror(error) : said);
  if (said.find("in use") != std::string::npos) error = EADDRINUSE;
  if (said.find("Failed to connect socket") != std::string::npos)
    return {Code::kUnavailable, text, device, "start the process whose role is server first, or correct socket="};
  if (said.find("failed to parse device") != std::string::npos)
    return {Code::kNotFound, text, device, "correct the driver's name: the DPDK of this host has none of that name"};
  switch (error) {
    case ENOMEM:
    case ENOBUFS:
      return {Code::kResourceExhausted, text, device, "give DPDK more memory (-m), or the port shorter queues"};
    case EPERM:
    case EACCES:
      return {Code::kPermissionDenied, text, device,
              "run as root, or with CAP_NET_RAW, CAP_NET_ADMIN and access to the device"};
    case EEXIST:
    case EADDRINUSE:
      return {Code::kAlreadyExists, text, device, "let every device be used once"};
    case ENODEV:
    case ENOENT:
      return {Code::kNotFound, text, device, "correct the name of the device"};
    case EINVAL:
    case ENOTSUP:
      return {Code::kInvalidArgument, text, device, "correct the device's arguments, or the port's values"};
    default:
      return {Code::kInternal, text, device, "see the lines of DPDK in the log"};
  }
}

// Drivers of virtual devices say that something went wrong, and seldom what.
Status check_interface(const DeviceString& device, std::uint16_t mtu) {
  if (!device.driver_is("net_af_packet") && !device.driver_is("net_af_xdp")) return {};
  const auto interface = device.argument("iface");
  if (!interface) return {Code::kInvalidArgument, "the device has no interface", device.name, "add iface=NAME"};
  if (if_nametoindex(interface->c_str()) == 0)
    return {Code::kNotFound, fmt::format("this host has no network interface \"{}\"", *interface), device.name,
            "correct iface="};
  const int raw = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);
  if (raw < 0 && (errno == EPERM || errno == EACCES))
    return {Code::kPermissionDenied, "this process may not open packet sockets", device.name,
            "run as root, or with CAP_NET_RAW and CAP_NET_ADMIN"};
  if (raw < 0) return {};
  ifreq about{};
  std::copy_n(interface->begin(), std::min(interface->size(), sizeof about.ifr_name - 1), about.ifr_name);
  const bool known = ioctl(raw, SIOCGIFMTU, &about) == 0;
  close(raw);
  // Longer packets would be lost without a word.
  if (known && about.ifr_mtu < mtu)
    return {Code::kInvalidArgument,
            fmt::format("{} has an MTU of {}, and packets have up to {} bytes, as the fabric file says of this host's "
                        "links (1500 where it has none)",
                        *interface, about.ifr_mtu, mtu),
            device.name, fmt::format("ip link set dev {} mtu {}", *interface, mtu)};
  return {};
}

// Whether somebody serves the socket of a memif server. Asked of the kernel, because a connection that closes at once
// ends the process of a server with DPDK 22.11.
Status check_socket(const DeviceString& device) {
  if (!device.driver_is("net_memif") || device.argument("role").value_or("client") != "server") return {};
  const std::string path = device.argument("socket").value_or("/run/memif.sock");
  std::ifstream sockets("/proc/net/unix");
  for (std::string line; std::getline(sockets, line);)
    if (line.ends_with(" " + path) || line.ends_with(" @" + path))
      return {Code::kAlreadyExists, fmt::format("another device serves the socket {}", path), device.name,
              "give each server its own socket"};
  return {};
}

// So that a descriptor can be read until it is empty.
bool do_not_block(int descriptor) {
  const int flags = fcntl(descriptor, F_GETFL);
  return flags >= 0 && fcntl(descriptor, F_SETFL, flags | O_NONBLOCK) == 0;
}

// A PCI device that DPDK has not brought up: its drivers do not say why.
Status explain_pci(const std::string& address, const Status& failure) {
  std::error_code ignored;
  const std::filesystem::path device = "/sys/bus/pci/devices/" + address;
  if (!std::filesystem::exists(device, ignored))
    return {Code::kNotFound, "this host has no such device on PCI", address, "take an address that `lspci -D` lists"};
  const std::string driver = std::filesystem::read_symlink(device / "driver", ignored).filename().string();
  const std::string doctor = "`tensorlane doctor` says what else is wrong";
  if (driver == "vfio-pci")
    return {failure.code(), failure.what(), address,
            fmt::format("let DPDK see it, by `eal: ['-a', '{}']`; {}", address, doctor)};
  const std::string has =
      driver.empty() ? "no driver is bound to the device" : fmt::format("the driver '{}' has the device", driver);
  return {Code::kUnavailable, fmt::format("{}, and DPDK did not bring it up: {}", has, failure.what()), address,
          "bind it to vfio-pci; " + doctor};
}

}  // namespace

Result<std::unique_ptr<Device>> Device::open(const PortConfig& config) {
  if (!eal_runs())
    return Status(Code::kUnavailable, "DPDK does not run in this process", config.device,
                  "start it first: start_eal()");
  TL_RETURN_IF_ERROR(check(config));
  TL_ASSIGN_OR_RETURN(DeviceString string, parse_device(config.device));
  const bool af_packet = string.driver_is("net_af_packet"), memif = string.driver_is("net_memif");
  complete_device(string, std::max<std::size_t>(config.queues.size(), config.receive_queues), config.mtu,
                  config.receive_packets);
  std::unique_ptr<Device> device(new Device(std::move(string)));
  TL_RETURN_IF_ERROR(device->find(config.mtu));
  rte_eth_dev_info info{};
  if (const int error = rte_eth_dev_info_get(device->id_, &info); error != 0)
    return failed("the device does not say what it can", device->name(), -error);
  const std::string_view driver = info.driver_name == nullptr ? "" : info.driver_name;
  const bool virtio = driver == "net_virtio" || driver == "net_virtio_user";
  // The kernel spreads what arrives over all of its queues. A peer over shared memory, which has as many classes, needs
  // a queue here for each of its own. Queues of virtio are pairs: what arrives comes in those of all that send.
  device->receive_queues_ = config.receive_queues;
  if (af_packet) device->receive_queues_ = info.max_rx_queues;
  if (memif || virtio)
    device->receive_queues_ = std::max(device->receive_queues_, static_cast<std::uint16_t>(config.queues.size()));
  if (af_packet || device->string_.driver_is("net_af_xdp"))
    device->kernel_link_ = std::make_unique<KernelLink>(*device->string_.argument("iface"));
  TL_RETURN_IF_ERROR(device->configure(config, info, config.interrupts));
  TL_RETURN_IF_ERROR(device->make_pool(config));
  TL_RETURN_IF_ERROR(device->set_up_queues(config));
  Status status = device->start(config);
  if (!status.ok() && config.interrupts) {
    spdlog::warn("{}: does not start with interrupts ({}), so it is polled", device->name(), status.what());
    TL_RETURN_IF_ERROR(device->configure(config, info, false));
    TL_RETURN_IF_ERROR(device->set_up_queues(config));
    status = device->start(config);
  }
  TL_RETURN_IF_ERROR(status);
  if (config.interrupts) device->find_wake_descriptors();
  return device;
}

Status Device::find(std::uint16_t mtu) {
  OpenDevices& open = open_devices();
  const std::lock_guard lock(open.mutex);
  if (open.names.contains(string_.name))
    return {Code::kAlreadyExists, "the device is open already", string_.name, "give each port a device of its own"};
  TL_RETURN_IF_ERROR(check_interface(string_, mtu));
  TL_RETURN_IF_ERROR(check_socket(string_));
  forget_complaints();
  const std::uint16_t before = rte_eth_dev_count_avail();
  if (rte_eth_dev_get_port_by_name(string_.name.c_str(), &id_) != 0) {
    const int error = rte_dev_probe(string_.to_string().c_str());
    // A driver may fail, and its bus be content.
    const bool found = rte_eth_dev_get_port_by_name(string_.name.c_str(), &id_) == 0;
    if (error != 0 || !found || (!string_.pci && rte_eth_dev_count_avail() == before)) {
      id_ = RTE_MAX_ETHPORTS;
      // -1 is EPERM by its number, and what drivers answer for anything.
      const int why = error == 0 ? ENODEV : error == -1 ? EIO : -error;
      const Status failure = failed("DPDK did not bring the device up", string_.name, why);
      return string_.pci ? explain_pci(string_.name, failure) : failure;
    }
    rte_eth_dev_info info{};
    if (!string_.pci && rte_eth_dev_info_get(id_, &info) == 0) plugged_ = info.device;
  }
  open.names.insert(string_.name);
  named_ = true;
  return {};
}

Status Device::configure(const PortConfig& config, const rte_eth_dev_info& info, bool interrupts) {
  if (config.queues.size() > info.max_tx_queues || receive_queues_ > info.max_rx_queues)
    return {Code::kInvalidArgument,
            fmt::format("the device has {} transmit and {} receive queues, and {} and {} are wanted",
                        info.max_tx_queues, info.max_rx_queues, config.queues.size(), receive_queues_),
            string_.name, "use fewer classes, or give the device more queues"};
  rte_eth_conf conf{};
  // af_packet knows no frames longer than those of 1500 bytes, and moves them: the kernel's MTU of the interface
  // counts.
  const bool af_packet = string_.driver_is("net_af_packet");
  if (config.mtu > info.max_mtu && !af_packet)
    return {Code::kInvalidArgument,
            fmt::format("the device's largest MTU is {}, and {} is wanted", info.max_mtu, config.mtu), string_.name,
            "give the port a smaller mtu"};
  conf.rxmode.mtu = af_packet ? std::min<std::uint16_t>(config.mtu, RTE_ETHER_MTU) : config.mtu;
  conf.rxmode.offloads = info.rx_offload_capa & (RTE_ETH_RX_OFFLOAD_IPV4_CKSUM | RTE_ETH_RX_OFFLOAD_UDP_CKSUM);
  const bool memif = string_.driver_is("net_memif") && string_.argument("zero-copy").value_or("no") != "yes";
  copies_ = (af_packet || memif) && (info.tx_offload_capa & RTE_ETH_TX_OFFLOAD_MULTI_SEGS) != 0;
  transmit_offloads_ =
      info.tx_offload_capa & (RTE_ETH_TX_OFFLOAD_IPV4_CKSUM | RTE_ETH_TX_OFFLOAD_UDP_CKSUM |
                              (copies_ ? RTE_ETH_TX_OFFLOAD_MULTI_SEGS : RTE_ETH_TX_OFFLOAD_MBUF_FAST_FREE));
  conf.txmode.offloads = transmit_offloads_;
  checksums_ = {(transmit_offloads_ & RTE_ETH_TX_OFFLOAD_IPV4_CKSUM) != 0,
                (transmit_offloads_ & RTE_ETH_TX_OFFLOAD_UDP_CKSUM) != 0};
  const std::uint64_t hash =
      info.flow_type_rss_offloads & (RTE_ETH_RSS_NONFRAG_IPV4_UDP | RTE_ETH_RSS_NONFRAG_IPV6_UDP);
  if (receive_queues_ > 1 && hash != 0) {
    conf.rxmode.mq_mode = RTE_ETH_MQ_RX_RSS;
    conf.rx_adv_conf.rss_conf.rss_hf = hash;
  }
  conf.intr_conf.rxq = interrupts ? 1 : 0;
  forget_complaints();
  if (const int error =
          rte_eth_dev_configure(id_, receive_queues_, static_cast<std::uint16_t>(config.queues.size()), &conf);
      error != 0)
    return failed("the device refuses its configuration", string_.name, -error);
  receive_descriptors_ = config.receive_packets;
  transmit_descriptors_ = config.queue_packets;
  if (const int error = rte_eth_dev_adjust_nb_rx_tx_desc(id_, &receive_descriptors_, &transmit_descriptors_);
      error != 0)
    return failed("the device has no queues of that length", string_.name, -error);
  return {};
}

Status Device::make_pool(const PortConfig& config) {
  const auto queues = static_cast<std::uint32_t>(config.queues.size());
  const std::uint32_t count = receive_queues_ * std::uint32_t{receive_descriptors_} +
                              queues * (std::uint32_t{transmit_descriptors_} + (copies_ ? kMostParts : 1) * kStaged) +
                              kHeld + 2 * kCached;
  // Frames that arrive lie in one piece.
  std::uint32_t room = std::max<std::uint32_t>(kMinDataRoom, config.mtu + payload_offset(kMaxHeaderBytes));
  if (const auto frame = string_.argument("framesz"))
    room =
        std::clamp<std::uint32_t>(static_cast<std::uint32_t>(std::strtoul(frame->c_str(), nullptr, 10)), room, 32768);
  room = (room + 63) / 64 * 64 + RTE_PKTMBUF_HEADROOM;
  const int socket = rte_eth_dev_socket_id(id_);
  pool_ = rte_pktmbuf_pool_create(fmt::format("tensorlane_{}", id_).c_str(), count, kCached, 0,
                                  static_cast<std::uint16_t>(room), socket < 0 ? SOCKET_ID_ANY : socket);
  if (pool_ != nullptr) return {};
  return {Code::kResourceExhausted,
          fmt::format("DPDK has no {} MiB for {} packet buffers of {} bytes: {}",
                      (std::uint64_t{count} * (room + 192) >> 20) + 1, count, room, rte_strerror(rte_errno)),
          string_.name, "give DPDK more memory (-m), or the port shorter queues"};
}

Status Device::set_up_queues(const PortConfig& config) {
  rte_eth_dev_info info{};
  rte_eth_dev_info_get(id_, &info);
  const unsigned socket = static_cast<unsigned>(rte_eth_dev_socket_id(id_));
  forget_complaints();
  rte_eth_rxconf receive = info.default_rxconf;
  for (std::uint16_t queue = 0; queue < receive_queues_; ++queue)
    if (const int error = rte_eth_rx_queue_setup(id_, queue, receive_descriptors_, socket, &receive, pool_); error != 0)
      return failed(fmt::format("receive queue {} cannot be set up", queue), string_.name, -error);
  rte_eth_txconf transmit = info.default_txconf;
  transmit.offloads = transmit_offloads_;
  for (std::uint16_t queue = 0; queue < config.queues.size(); ++queue)
    if (const int error = rte_eth_tx_queue_setup(id_, queue, transmit_descriptors_, socket, &transmit); error != 0)
      return failed(fmt::format("transmit queue {} cannot be set up", queue), string_.name, -error);
  return {};
}

Status Device::start(const PortConfig& config) {
  forget_complaints();
  if (const int error = rte_eth_dev_start(id_); error != 0)
    return failed("the device does not start", string_.name, -error);
  started_ = true;
  rte_ether_addr address{};
  if (const int error = rte_eth_macaddr_get(id_, &address); error != 0)
    return failed("the device has no MAC address", string_.name, -error);
  std::copy(std::begin(address.addr_bytes), std::end(address.addr_bytes), mac_.begin());
  if (!is_unicast(mac_)) {
    return {Code::kInvalidArgument, "the device has no MAC address of a host: " + to_string(mac_), string_.name,
            "name a NIC, not loopback"};
  }
  TL_RETURN_IF_ERROR(hear_groups(config));
  const int count = rte_eth_xstats_get_names(id_, nullptr, 0);
  std::vector<rte_eth_xstat_name> names(static_cast<std::size_t>(std::max(count, 0)));
  if (!names.empty() && rte_eth_xstats_get_names(id_, names.data(), static_cast<unsigned>(count)) == count)
    for (const rte_eth_xstat_name& name : names) count_names_.emplace_back(name.name);
  return {};
}

// Questions of neighbour discovery go to groups. Frames with a VLAN tag are no strangers.
Status Device::hear_groups(const PortConfig& config) {
  const bool v6 = std::any_of(config.addresses.begin(), config.addresses.end(),
                              [](const LocalAddress& local) { return local.address.v6; });
  if (!v6 && !config.vlan) return {};
  const bool groups = v6 && rte_eth_allmulticast_enable(id_) == 0;
  if (!config.vlan && groups) return {};
  if (const int error = rte_eth_promiscuous_enable(id_); error != 0)
    spdlog::warn("{}: cannot be made promiscuous ({}), so it may miss frames with a VLAN tag or questions of IPv6",
                 string_.name, rte_strerror(-error));
  return {};
}

void Device::find_wake_descriptors() {
  forget_complaints();
  for (std::uint16_t queue = 0; queue < receive_queues_; ++queue) {
    const int descriptor = rte_eth_dev_rx_intr_ctl_q_get_fd(id_, queue);
    // A driver may have descriptors, and no way to ask for interrupts.
    const bool works = descriptor >= 0 && rte_eth_dev_rx_intr_enable(id_, queue) == 0 &&
                       rte_eth_dev_rx_intr_disable(id_, queue) == 0 && do_not_block(descriptor);
    if (!works) {
      wake_descriptors_.clear();
      spdlog::info("{}: has no interrupts for packets that arrive, so it is polled", string_.name);
      return;
    }
    wake_descriptors_.push_back(descriptor);
  }
}

Device::~Device() {
  OpenDevices& open = open_devices();
  const std::lock_guard lock(open.mutex);
  if (started_) rte_eth_dev_stop(id_);
  if (plugged_ != nullptr)
    rte_dev_remove(plugged_);  // closes it, too
  else if (named_)
    rte_eth_dev_close(id_);
  rte_mempool_free(pool_);
  if (named_) open.names.erase(string_.name);
}

std::optional<LinkState> Device::link() {
  if (kernel_link_) return kernel_link_->look();
  rte_eth_link seen{};
  if (rte_eth_link_get_nowait(id_, &seen) != 0) return std::nullopt;
  const bool up = seen.link_status == RTE_ETH_LINK_UP;
  const bool known = up && seen.link_speed != RTE_ETH_SPEED_NUM_UNKNOWN;
  return LinkState{up, BitsPerSecond(known ? std::uint64_t{seen.link_speed} * 1'000'000 : 0)};
}

std::vector<DeviceCount> Device::counts() const {
  std::vector<rte_eth_xstat> values(count_names_.size());
  const int count = rte_eth_xstats_get(id_, values.data(), static_cast<unsigned>(values.size()));
  std::vector<DeviceCount> all;
  for (int i = 0; i < std::min(count, static_cast<int>(values.size())); ++i)
    if (values[i].id < count_names_.size()) all.push_back({count_names_[values[i].id], values[i].value});
  return all;
}

}  // namespace tensorlane::dpdk
