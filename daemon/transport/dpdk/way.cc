#include "daemon/transport/dpdk/way.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "daemon/transport/datagram/packet.h"

namespace tensorlane::dpdk {
namespace {

constexpr const char* kWhere = "dpdk";
// Shorter packets carry hardly anything.
constexpr std::size_t kLeastPacket = 512;

}  // namespace

Result<std::uint32_t> FlowNumbers::add() {
  if (free_.empty() && entries_.size() > kPlace)
    return Status(Code::kResourceExhausted, "there are 65536 flows", kWhere, "end jobs, or use more rails");
  std::uint32_t number = static_cast<std::uint32_t>(entries_.size());
  if (free_.empty()) {
    entries_.emplace_back();
  } else {
    number = free_.back();
    free_.pop_back();
  }
  entries_[number & kPlace] = {number, nullptr};
  return number;
}

void FlowNumbers::remove(std::uint32_t number) {
  Entry& entry = entries_[number & kPlace];
  entry = {number + kAgain, nullptr};
  free_.push_back(number + kAgain);
}

Result<std::unique_ptr<Way>> Way::open(FlowNumbers& numbers, PacketPort& port) {
  TL_ASSIGN_OR_RETURN(const std::uint32_t number, numbers.add());
  return std::unique_ptr<Way>(new Way(numbers, port, number));
}

Way::~Way() {
  numbers_.remove(number_);
  if (has_peer_) port_.remove_peer(path_.peer);
}

Parameters Way::mine() const {
  const PortConfig& config = port_.config();
  const IpAddress& address = config.addresses.front().address;
  return {.version = datagram::kVersion,
          .number = number_,
          .address = address.bytes,
          .packet_bytes = static_cast<std::uint16_t>(port_.max_payload(address.v6)),
          .udp_port = config.udp_port,
          .unasked = static_cast<std::uint16_t>(kUnasked.value),
          .v6 = address.v6 ? std::uint8_t{1} : std::uint8_t{0}};
}

Status Way::go(const Parameters& theirs, std::uint64_t hash) {
  const Parameters own = mine();
  if (theirs.version != own.version)
    return {Code::kMismatch, fmt::format("datagrams of version {}, expected {}", theirs.version, own.version), kWhere,
            "install the same release on all hosts"};
  if (theirs.udp_port != own.udp_port)
    return {Code::kMismatch, fmt::format("UDP port {} there and {} here", theirs.udp_port, own.udp_port), kWhere,
            "set the same `dpdk: port` on all hosts"};
  if (theirs.v6 != own.v6 || theirs.packet_bytes < kLeastPacket)
    return {Code::kMismatch,
            theirs.v6 != own.v6 ? "one end has an IPv4 address and the other one an IPv6 address"
                                : fmt::format("packets of {} bytes", theirs.packet_bytes),
            kWhere, "give all hosts dpdk addresses of one family, and ports with an MTU of 1280 or more"};
  peer_ = {.bytes = theirs.address, .v6 = theirs.v6 != 0};
  // Of an IPv4 address what is behind it, too: else it would not be the one that its packets come from.
  const bool padded = !peer_.v6 && std::ranges::any_of(std::span(peer_.bytes).subspan(peer_.size()),
                                                       [](std::uint8_t b) { return b != 0; });
  if (padded || !is_unicast(peer_)) return {Code::kInvalidArgument, to_string(peer_) + " is no host's address", kWhere};
  TL_ASSIGN_OR_RETURN(path_.peer, port_.add_peer(peer_));
  has_peer_ = true;
  path_.source_port = flow_source_port(hash);
  remote_ = theirs.number;
  unasked_ = Bytes(theirs.unasked);
  packet_bytes_ = std::min(theirs.packet_bytes, own.packet_bytes);
  return {};
}

}  // namespace tensorlane::dpdk
