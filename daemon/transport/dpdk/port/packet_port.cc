#include "daemon/transport/dpdk/port/packet_port.h"

#include <fmt/format.h>

#include <algorithm>

namespace tensorlane::dpdk {
namespace {

Status wrong(std::string what, std::string where, std::string fix) {
  return {Code::kInvalidArgument, std::move(what), std::move(where), std::move(fix)};
}

Status check_address(const LocalAddress& local) {
  const std::string name = to_string(local.address);
  if (!is_unicast(local.address))
    return wrong("this is no address of a host", name, "give the port an address of its own");
  if (local.prefix > local.address.size() * 8)
    return wrong(fmt::format("the prefix of {} bits is longer than the address", local.prefix), name,
                 "write a shorter one");
  if (!local.gateway) return {};
  if (!same_network(local.address, *local.gateway, local.prefix) || !is_unicast(*local.gateway) ||
      *local.gateway == local.address)
    return wrong(fmt::format("the gateway {} is no neighbour", to_string(*local.gateway)), name,
                 "give an address inside of the prefix, of another host");
  return {};
}

Status check_addresses(const PortConfig& config) {
  if (config.addresses.empty() || config.addresses.size() > kMaxLocalAddresses)
    return wrong(fmt::format("a port has 1 to {} addresses", kMaxLocalAddresses), config.device,
                 "change how many there are");
  for (std::size_t i = 0; i < config.addresses.size(); ++i) {
    TL_RETURN_IF_ERROR(check_address(config.addresses[i]));
    for (std::size_t j = 0; j < i; ++j)
      if (config.addresses[i].address == config.addresses[j].address)
        return wrong("the address is there twice", to_string(config.addresses[i].address), "leave one out");
  }
  for (std::size_t i = 0; i < config.neighbours.size(); ++i) {
    const StaticNeighbour& neighbour = config.neighbours[i];
    if (!is_unicast(neighbour.address) || !is_unicast(neighbour.mac))
      return wrong(fmt::format("{} is no neighbour", to_string(neighbour.mac)), to_string(neighbour.address),
                   "give the addresses of one host");
    for (std::size_t j = 0; j < i; ++j)
      if (neighbour.address == config.neighbours[j].address)
        return wrong("the neighbour is there twice", to_string(neighbour.address), "leave one out");
  }
  if (config.max_peers == 0 || config.max_peers > (1U << 20) || config.neighbours.size() > config.max_peers)
    return wrong("a port has 1 to 1048576 peers, and not more static neighbours", config.device, "change max_peers");
  return {};
}

}  // namespace

Status check(const PortConfig& config) {
  if (config.device.empty())
    return wrong("no device is named", "packet port", "give a PCI address or a virtual device");
  if (config.udp_port == 0) return wrong("the UDP port is 0", config.device, "give the port that all hosts receive at");
  if (config.queues.empty() || config.queues.size() > kMaxTransmitQueues)
    return wrong(fmt::format("a port has 1 to {} transmit queues", kMaxTransmitQueues), config.device,
                 "change how many classes there are");
  for (const QueueTags& tags : config.queues)
    if (tags.dscp > 63 || tags.pcp > 7)
      return wrong(fmt::format("DSCP {} or PCP {} is too large", tags.dscp, tags.pcp), config.device,
                   "DSCP is at most 63, PCP at most 7");
  if (config.vlan && *config.vlan > 4094)
    return wrong(fmt::format("there is no VLAN {}", *config.vlan), config.device,
                 "VLANs are 1 to 4094; 0 tags without one");
  if (config.mtu < kMinMtu || config.mtu > kMaxMtu)
    return wrong(fmt::format("the MTU of {} is out of range", config.mtu), config.device,
                 fmt::format("give {} to {}", kMinMtu, kMaxMtu));
  if (config.receive_queues == 0 || config.receive_queues > kMaxReceiveQueues)
    return wrong(fmt::format("a port has 1 to {} receive queues", kMaxReceiveQueues), config.device,
                 "change receive_queues");
  if (config.queue_packets < 32 || config.queue_packets > 4096 || config.receive_packets < 64 ||
      config.receive_packets > 8192)
    return wrong("a queue is too short or too long", config.device,
                 "a transmit queue holds 32 to 4096 packets, a receive queue 64 to 8192");
  return check_addresses(config);
}

const char* drop_name(Drop drop) {
  static constexpr std::array<const char*, kDrops> kNames = {
      "short",           "segments",      "own",        "foreign_mac",   "foreign_vlan", "foreign_protocol",
      "foreign_address", "foreign_port",  "bad_source", "fragment",      "bad_length",   "ip_checksum",
      "udp_checksum",    "bad_neighbour", "unasked",    "answer_limited"};
  return kNames[static_cast<std::size_t>(drop)];
}

}  // namespace tensorlane::dpdk
